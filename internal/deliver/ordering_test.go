package deliver_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// arrive publishes events of one ordering key, one after the other.
func (b *bench) arrive(key string, n int) (keys []webhook.EventKey) {
	b.t.Helper()
	for i := range n {
		ev := webhook.Event{Tenant: "default", Source: "app", PublisherID: fmt.Sprint(key, "/", i), Type: "invoice.paid", OrderingKey: key,
			Body: []byte(`{}`), ReceivedAt: b.clock.Now(), OccurredAt: b.clock.Now().Add(time.Duration(i) * time.Millisecond), Receipt: fmt.Sprint(key, i)}
		ev.Seal()
		got, err := b.store.Ingest(b.t.Context(), []webhook.Event{ev})
		must(b.t, err)
		for _, task := range got[0].Tasks {
			must(b.t, b.queue.Schedule(b.t.Context(), task))
		}
		keys = append(keys, ev.Key)
	}
	return keys
}

// order is which of the events the endpoint was sent, in order, repeats of the one
// before left out.
func order(rc *receiver, keys []webhook.EventKey) (out []int) {
	for _, r := range rc.requests() {
		i := slices.IndexFunc(keys, func(k webhook.EventKey) bool { return k.ID() == r.header.Get("Webhook-Id") })
		if len(out) == 0 || out[len(out)-1] != i {
			out = append(out, i)
		}
	}
	return out
}

// A dispatcher that dies at any step neither lets a later event of a key overtake nor
// leaves it waiting for ever.
func TestOrderSurvivesACrashAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", deliver.StepClaimed, deliver.StepSent, deliver.StepRecorded, deliver.StepNext, deliver.StepScheduled} {
		for _, failures := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s after %d failures", step, failures), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, nil)
				rc := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, n int) {
					if n <= failures {
						w.WriteHeader(http.StatusInternalServerError)
					}
				})
				b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) { ep.Ordering = webhook.OrderingBlock })
				if step != "" {
					b.stopOnce(step)
				}
				keys := b.arrive("order-1", 4)
				for range 30 {
					b.clock.Advance(time.Minute)
				}
				if got := order(rc, keys); !slices.Equal(got, []int{0, 1, 2, 3}) {
					t.Errorf("sent in the order %v", got)
				}
				for i, k := range keys {
					if d, _ := b.delivery(k, "ep-1"); d.State != webhook.DeliveryDelivered {
						t.Errorf("event %d is %s (%s)", i, d.State, d.Reason)
					}
				}
			})
		}
	}
}

// What is held and released, and what a dead head held up, keeps its order.
func TestOrderSurvivesPausesAndDeadHeads(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	up := false
	rc := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		if !up {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) {
		ep.Ordering, ep.Health.FailuresToOpen = webhook.OrderingBlock, -1
		ep.Retry.Delays = []time.Duration{0, 10 * time.Second}
	})
	b.setState("ep-1", webhook.EndpointPaused)
	keys := b.arrive("k", 3)
	for range 5 {
		b.clock.Advance(time.Minute)
	}
	if len(rc.requests()) != 0 {
		t.Fatal("a paused endpoint was sent something")
	}
	b.setState("ep-1", webhook.EndpointActive)
	for range 10 {
		b.clock.Advance(time.Minute)
	}
	want := []webhook.DeliveryState{webhook.DeliveryDead, webhook.DeliveryWaiting, webhook.DeliveryWaiting}
	for i, k := range keys {
		if d, _ := b.delivery(k, "ep-1"); d.State != want[i] {
			t.Errorf("event %d is %s (%s), want %s", i, d.State, d.Reason, want[i])
		}
	}
	up = true
	task, err := b.store.ReleaseKey(t.Context(), "default", "ep-1", "k", "test")
	must(t, err)
	must(t, b.queue.Schedule(t.Context(), *task))
	for range 5 {
		b.clock.Advance(time.Minute)
	}
	if got := order(rc, keys); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("sent in the order %v", got)
	}
}

// Two runs of one task at once: the second is told to come again, and nothing is
// sent by it.
func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, nil)
	var second error
	b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) { ep.Ordering = webhook.OrderingBlock })
	var k webhook.AttemptKey
	b.step = func(s string) error {
		if s == deliver.StepClaimed {
			other := deliver.New(deliver.Options{Store: b.store, Queue: b.queue, Sealer: b.sealer, Policy: b.policy, Now: b.clock.Now})
			defer other.Close()
			second = other.Attempt(t.Context(), k)
		}
		return nil
	}
	keys := b.arrive("k", 1)
	d, _ := b.delivery(keys[0], "ep-1")
	k = d.Key()
	b.clock.Advance(time.Second)
	if second == nil || len(rc.requests()) != 1 {
		t.Errorf("the second run: %v, %d requests", second, len(rc.requests()))
	}
	if c, err := b.store.Claim(t.Context(), k); err != nil || c.Verdict != store.VerdictStale {
		t.Errorf("afterwards: %+v, %v", c.Verdict, err)
	}
}
