package deliver_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// story is an endpoint to which anything happens.
type story struct {
	*bench
	r    *rand.Rand
	rc   *switchable
	keys map[string][]webhook.EventKey // by ordering key
	did  []string
}

// steps are where runs may end before their time.
var steps = []string{deliver.StepClaimed, deliver.StepSent, deliver.StepRecorded, deliver.StepNext, deliver.StepScheduled,
	deliver.StepProbeBegun, deliver.StepPageTaken, deliver.StepPageTasks, deliver.StepQueueSet}

// orderings are what the endpoint's ordering may be changed to.
var orderings = []webhook.Ordering{webhook.OrderingBlock, webhook.OrderingSkipAfterDead, webhook.OrderingParkKey}

// happen makes one thing happen.
func (s *story) happen() {
	pick := func(states ...webhook.EndpointState) webhook.EndpointState { return states[s.r.IntN(len(states))] }
	switch n := s.r.IntN(22); {
	case n < 7:
		key := []string{"", "key 1", "key 2"}[s.r.IntN(3)]
		s.note("publish %s", key)
		s.publishTo(key)
	case n < 12:
		d := []time.Duration{time.Second, 20 * time.Second, 2 * time.Minute, 20 * time.Minute}[s.r.IntN(4)]
		s.note("wait %s", d)
		s.clock.Advance(d)
	case n < 16:
		code := []int{200, 200, 500, 503, 429, 410, 302}[s.r.IntN(7)]
		s.note("answer %d", code)
		s.rc.set(code)
	case n < 18:
		to := pick(webhook.EndpointActive, webhook.EndpointActive, webhook.EndpointPaused, webhook.EndpointDisabled)
		c, err := s.store.SetEndpointState(s.t.Context(), "default", "ep-1", store.StateChange{To: to, Actor: "tester"})
		if s.note("%s: %v", to, err); err == nil {
			s.change(c, nil)
		}
	case n < 19:
		step := steps[s.r.IntN(len(steps))]
		s.note("stop at %q", step)
		s.stopOnce(step)
	case n < 20:
		s.note("leave the queue")
		must(s.t, s.store.LeaveQueue(s.t.Context(), "default", "ep-1"))
	case n < 21:
		c, err := s.store.Release(s.t.Context(), "default", "ep-1", "tester")
		if s.note("release: %v", err); err == nil {
			s.change(c, nil)
		}
	default:
		o := orderings[s.r.IntN(len(orderings))]
		s.note("ordering %q", o)
		_, err := s.store.UpdateEndpoint(s.t.Context(), "default", "ep-1", func(ep *webhook.Endpoint) error { ep.Ordering = o; return nil }, "tester")
		must(s.t, err)
	}
}

func (s *story) note(format string, args ...any) { s.did = append(s.did, fmt.Sprintf(format, args...)) }

func (s *story) publishTo(key string) {
	s.clock.Advance(time.Millisecond)
	id := fmt.Sprint(key, " number ", len(s.keys[key]))
	ev := webhook.Event{Tenant: "default", Source: "app", PublisherID: id, Type: "invoice.paid", OrderingKey: key,
		Body: []byte(`{}`), ReceivedAt: s.clock.Now(), OccurredAt: s.clock.Now(), Receipt: id}
	ev.Seal()
	got, err := s.store.Ingest(s.t.Context(), []webhook.Event{ev})
	must(s.t, err)
	for _, task := range got[0].Tasks {
		must(s.t, s.queue.Schedule(s.t.Context(), task))
	}
	s.keys[key] = append(s.keys[key], ev.Key)
}

// settle ends whatever keeps deliveries from ending, as somebody would.
func (s *story) settle() {
	s.rc.set(http.StatusOK)
	for range 12 {
		s.setState("ep-1", webhook.EndpointActive)
		for range 4 {
			s.clock.Advance(30 * time.Minute)
		}
		stopped, err := s.store.StoppedKeys(s.t.Context(), "default", "ep-1", 10)
		must(s.t, err)
		for _, k := range stopped {
			task, err := s.store.ReleaseKey(s.t.Context(), "default", "ep-1", k.OrderingKey, "tester")
			must(s.t, err)
			if task != nil {
				must(s.t, s.queue.Schedule(s.t.Context(), *task))
			}
		}
	}
}

// Whatever happens to an ordered endpoint, and wherever runs end before their time: once
// it answers again every delivery comes to its end, and no event was sent after a later
// one of its key.
func TestWhateverHappensEverythingEnds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b, _ := newPostedBench(t)
			s := &story{bench: b, r: rand.New(rand.NewPCG(seed, 1)), rc: newSwitchable(t, b, 200), keys: map[string][]webhook.EventKey{}}
			b.endpoint("ep-1", s.rc.URL, func(ep *webhook.Endpoint) {
				ep.Ordering = orderings[seed%3]
				ep.Retry.Delays = []time.Duration{0, 30 * time.Second, 5 * time.Minute}
				ep.Health.FailuresToOpen = 3
				if seed%2 == 1 {
					ep.Queue, ep.Queueing, ep.RatePerSecond = "", webhook.QueueingPool, 0.05
				}
			})
			for range 60 {
				s.happen()
			}
			s.settle()
			for key, keys := range s.keys {
				for i, k := range keys {
					if d, _ := b.delivery(k, "ep-1"); d.State.Open() {
						t.Errorf("%s number %d is %s (%s), attempt %d", key, i, d.State, d.Reason, d.Attempt)
					}
				}
				sent := slices.DeleteFunc(order(s.rc.receiver, keys), func(i int) bool { return i < 0 })
				if key != "" && !slices.IsSorted(sent) {
					t.Errorf("%s was sent in the order %v", key, sent)
				}
			}
			if t.Failed() {
				t.Logf("health %+v\n%s", b.health("ep-1"), strings.Join(s.did, "; "))
			}
		})
	}
}
