package deliver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// post is where notices are published to.
type post struct {
	mu  sync.Mutex
	got []bus.EventMessage
}

func (p *post) publish(_ context.Context, m bus.EventMessage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, m)
	return nil
}

// kinds counts the notices, each id once.
func (p *post) kinds() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, seen := map[string]int{}, map[string]bool{}
	for _, m := range p.got {
		if !seen[m.ID] {
			seen[m.ID] = true
			out[strings.TrimPrefix(m.Type, "sealpost.endpoint.")]++
		}
	}
	return out
}

// newPostedBench is a bench whose notices are kept.
func newPostedBench(t *testing.T) (*bench, *post) {
	p := &post{}
	return newBench(t, func(o *deliver.Options) { o.Publish = p.publish }), p
}

// switchable is an endpoint whose answer tests change.
type switchable struct {
	*receiver
	mu     sync.Mutex
	answer int
	retry  string
	clock  func() time.Time
	times  []time.Time
}

func newSwitchable(t *testing.T, b *bench, answer int) *switchable {
	s := &switchable{answer: answer, clock: b.clock.Now}
	s.receiver = newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.times = append(s.times, s.clock())
		if s.retry != "" {
			w.Header().Set("Retry-After", s.retry)
		}
		w.WriteHeader(s.answer)
	})
	return s
}

func (s *switchable) set(answer int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *switchable) calls() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.times)
}

func (b *bench) health(endpoint string) webhook.Health {
	b.t.Helper()
	h, err := b.store.Health(b.t.Context(), "default", endpoint)
	must(b.t, err)
	return h
}

// states counts what became of deliveries.
func (b *bench) states(endpoint string, keys []webhook.EventKey) string {
	b.t.Helper()
	n, asked := map[webhook.DeliveryState]int{}, map[webhook.EventKey]bool{}
	for _, k := range keys {
		asked[k] = true
	}
	for page := (store.Page{Size: 500}); ; {
		ds, next, err := b.store.ListDeliveries(b.t.Context(), store.DeliveryFilter{Tenant: "default", Endpoint: endpoint}, page)
		must(b.t, err)
		for _, d := range ds {
			if asked[d.Event] {
				n[d.State]++
			}
		}
		if page.Token = next; next == "" {
			break
		}
	}
	var out []string
	for _, s := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%d %s", n[s], s))
	}
	return strings.Join(out, ", ")
}

// publishMany is publish for many events at once.
func (b *bench) publishMany(prefix string, n int) (keys []webhook.EventKey) {
	b.t.Helper()
	var events []webhook.Event
	for i := range n {
		ev := webhook.Event{Tenant: "default", Source: "app", PublisherID: fmt.Sprint(prefix, i), Type: "invoice.paid", Body: []byte(`{}`),
			ReceivedAt: b.clock.Now(), Receipt: fmt.Sprint(prefix, i)}
		ev.Seal()
		events, keys = append(events, ev), append(keys, ev.Key)
	}
	got, err := b.store.Ingest(b.t.Context(), events)
	must(b.t, err)
	for _, r := range got {
		for _, task := range r.Tasks {
			must(b.t, b.queue.Schedule(b.t.Context(), task))
		}
	}
	return keys
}

// change makes a change of an endpoint as the API does: the change, then its controls.
func (b *bench) change(c store.EndpointChange, err error) store.EndpointChange {
	b.t.Helper()
	must(b.t, err)
	for _, control := range c.Controls {
		must(b.t, b.queue.Control(b.t.Context(), control))
	}
	return c
}

func (b *bench) setState(endpoint string, to webhook.EndpointState) store.EndpointChange {
	b.t.Helper()
	return b.change(b.store.SetEndpointState(b.t.Context(), "default", endpoint, store.StateChange{To: to, Actor: "tester"}))
}

// trip opens the breaker by ten failures, whose retries are far away, and gives
// those events.
func (b *bench) trip(endpoint string) []webhook.EventKey {
	b.t.Helper()
	keys := b.publishMany("trip ", webhook.DefaultFailuresToOpen)
	b.clock.Advance(time.Second)
	if h := b.health(endpoint); h.Breaker != webhook.BreakerOpen {
		b.t.Fatalf("after ten failures %+v", h)
	}
	return keys
}

// slowly has an endpoint's retries come after an hour each.
func slowly(ep *webhook.Endpoint) {
	ep.Retry.Delays = []time.Duration{0, time.Hour, time.Hour, time.Hour, time.Hour}
}

// The whole life of a breaker: it opens, what comes is held, probes find the
// endpoint still failing, less and less often, one finds it well, and everything is
// delivered, once.
func TestBreakerOpensProbesAndReleases(t *testing.T) {
	t.Parallel()
	b, told := newPostedBench(t)
	rc := newSwitchable(t, b, 500)
	b.endpoint("ep-1", rc.URL, slowly)
	failed := b.trip("ep-1")
	opened := b.clock.Now()
	held := b.publishMany("held ", 30)
	b.clock.Advance(time.Second)
	if s := b.states("ep-1", held); s != "30 held" {
		t.Fatalf("while it is open: %s", s)
	}
	b.clock.Advance(20 * time.Minute)
	probes := rc.calls()[10:]
	if len(probes) != 4 { // after about 1, 2, 4 and 8 minutes
		t.Fatalf("%d probes in 20 minutes", len(probes))
	}
	last := opened
	for i, at := range probes {
		want := time.Minute << i
		if gap := at.Sub(last); gap < want-time.Second || gap > want+want/5+2*time.Second {
			t.Errorf("probe %d came after %s, want %s to 20%% more", i+1, gap, want)
		}
		last = at
	}
	if s := b.states("ep-1", held); s != "30 held" {
		t.Errorf("after failed probes: %s", s)
	}
	spent := 0
	for _, k := range held {
		_, attempts := b.delivery(k, "ep-1")
		for _, a := range attempts {
			if spent++; a.Trigger != webhook.TriggerProbe {
				t.Errorf("an attempt by %s while the circuit was open", a.Trigger)
			}
		}
	}
	if spent != 4 {
		t.Errorf("%d attempts are recorded of 4 probes", spent)
	}
	rc.set(200)
	b.clock.Advance(20 * time.Minute)
	if s := b.states("ep-1", held); s != "30 delivered" {
		t.Errorf("after a good probe: %s", s)
	}
	b.clock.Advance(2 * time.Hour)
	if s := b.states("ep-1", failed); s != "10 delivered" {
		t.Errorf("those whose retries were due later: %s", s)
	}
	if n := len(rc.calls()); n != 10+4+30+10 {
		t.Errorf("%d requests in all, want %d", n, 54)
	}
	if got := told.kinds(); !maps.Equal(got, map[string]int{"breaker_opened": 1, "breaker_closed": 1}) {
		t.Errorf("the owner was told %v", got)
	}
	if h := b.health("ep-1"); !h.Closed() || h.Releasing() {
		t.Errorf("%+v", h)
	}
	for _, s := range b.statuses {
		if s != http.StatusNoContent {
			t.Errorf("the dispatcher answered Cloud Tasks %d", s)
		}
	}
}

// Whatever is stopped, at whichever step, and however often: the breaker's whole
// life comes to the same end, and the owner is told the same.
func TestBreakerSurvivesStopsAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{deliver.StepClaimed, deliver.StepSent, deliver.StepRecorded, deliver.StepNext, deliver.StepScheduled,
		deliver.StepProbeBegun, deliver.StepPageTaken, deliver.StepPageTasks, deliver.StepPublished, deliver.StepQueueSet} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b, told := newPostedBench(t)
			rc := newSwitchable(t, b, 500)
			b.endpoint("ep-1", rc.URL, slowly)
			visits, stopped := 0, 0
			b.mu.Lock()
			b.step = func(s string) error {
				if s != step {
					return nil
				}
				if visits++; visits%2 == 1 { // the first, and every second after it
					stopped++
					return fmt.Errorf("stopped when %s", s)
				}
				return nil
			}
			b.mu.Unlock()
			keys := b.publishMany("a", 14)
			b.clock.Advance(10 * time.Second)
			keys = append(keys, b.publishMany("b", 10)...)
			b.clock.Advance(10 * time.Minute)
			if h := b.health("ep-1"); h.Closed() {
				t.Fatalf("ten minutes on: %+v", h)
			}
			rc.set(200)
			b.clock.Advance(5 * time.Hour)
			if s := b.states("ep-1", keys); s != "24 delivered" {
				t.Errorf("in the end: %s; health %+v", s, b.health("ep-1"))
			}
			if got := told.kinds(); !maps.Equal(got, map[string]int{"breaker_opened": 1, "breaker_closed": 1}) {
				t.Errorf("the owner was told %v", got)
			}
			if stopped == 0 {
				t.Errorf("nothing was stopped in %d visits", visits)
			}
		})
	}
}

// With nothing to probe with, the next event that comes is the probe, and all
// others wait for it.
func TestNextEventIsTheProbeWhereNothingWaits(t *testing.T) {
	t.Parallel()
	for _, good := range []bool{true, false} {
		b, _ := newPostedBench(t)
		rc := newSwitchable(t, b, 500)
		b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) { ep.Retry.Delays = []time.Duration{0} })
		if s := b.states("ep-1", b.trip("ep-1")); s != "10 dead" {
			t.Fatal(s)
		}
		b.clock.Advance(6 * time.Hour)
		if n := len(rc.calls()); n != 10 {
			t.Fatalf("%d requests with nothing to send", n)
		}
		if good {
			rc.set(200)
		}
		first := b.publish("first", []byte(`{}`))
		second := b.publish("second", []byte(`{}`))
		b.clock.Advance(time.Second)
		d, attempts := b.delivery(first, "ep-1")
		if len(attempts) != 1 || attempts[0].Trigger != webhook.TriggerProbe {
			t.Fatalf("the first is %+v, %+v", d, attempts)
		}
		if !good {
			if s := b.states("ep-1", []webhook.EventKey{first, second}); s != "2 held" {
				t.Errorf("after a failed probe: %s", s)
			}
			rc.set(200)
		}
		b.clock.Advance(10 * time.Minute)
		if s := b.states("ep-1", []webhook.EventKey{first, second}); s != "2 delivered" {
			t.Errorf("good %v: %s", good, s)
		}
	}
}

// A probe that never reports is given up, and another made.
func TestProbeIsGivenUp(t *testing.T) {
	t.Parallel()
	b, _ := newPostedBench(t)
	rc := newSwitchable(t, b, 500)
	b.endpoint("ep-1", rc.URL, slowly)
	b.trip("ep-1")
	held := b.publishMany("held ", 3)
	b.mu.Lock()
	b.step = func(s string) error { // no probe's attempt gets anywhere
		if s == deliver.StepClaimed {
			return fmt.Errorf("stopped")
		}
		return nil
	}
	b.mu.Unlock()
	b.clock.Advance(3 * time.Minute)
	if h := b.health("ep-1"); h.Breaker != webhook.BreakerHalfOpen {
		t.Fatalf("%+v", h)
	}
	b.mu.Lock()
	b.step = nil
	b.mu.Unlock()
	rc.set(200)
	b.clock.Advance(10 * time.Minute)
	if s := b.states("ep-1", held); s != "3 delivered" {
		t.Errorf("%s; %+v", s, b.health("ep-1"))
	}
}

// Several dispatchers at once: one breaker, one notice, nothing lost.
func TestBreakerWithTwoDispatchers(t *testing.T) {
	t.Parallel()
	b, told := newPostedBench(t)
	rc := newSwitchable(t, b, 500)
	b.endpoint("ep-1", rc.URL, slowly)
	other, err := store.Open(t.Context(), b.database, store.Options{Now: b.clock.Now})
	must(t, err)
	t.Cleanup(other.Close)
	d2 := deliver.New(deliver.Options{Store: other, Queue: b.queue, Sealer: b.sealer, Policy: b.policy, Now: b.clock.Now, Publish: told.publish})
	t.Cleanup(d2.Close)
	run := func(keys []webhook.AttemptKey) {
		var wg sync.WaitGroup
		for i, k := range keys {
			for _, d := range []*deliver.Dispatcher{b.d, d2} { // both get everything
				wg.Go(func() {
					if err := d.Attempt(t.Context(), k); err != nil {
						t.Errorf("%d: %v", i, err)
					}
				})
			}
		}
		wg.Wait()
	}
	var keys []webhook.EventKey
	var attempts []webhook.AttemptKey
	for i := range 30 {
		k := b.publish(fmt.Sprint(i), []byte(`{}`))
		d, _ := b.delivery(k, "ep-1")
		keys, attempts = append(keys, k), append(attempts, d.Key())
	}
	run(attempts)
	if h := b.health("ep-1"); h.Closed() || h.ConsecutiveFailures > 30 {
		t.Errorf("after 30 failures through two dispatchers: %+v", h)
	}
	rc.set(200)
	b.clock.Advance(3 * time.Hour)
	if s := b.states("ep-1", keys); s != "30 delivered" {
		t.Errorf("in the end: %s", s)
	}
	if got := told.kinds(); !maps.Equal(got, map[string]int{"breaker_opened": 1, "breaker_closed": 1}) {
		t.Errorf("the owner was told %v", got)
	}
}

// A paused endpoint is sent nothing, and everything once it is resumed.
func TestPauseHoldsAndResumeReleases(t *testing.T) {
	t.Parallel()
	b, told := newPostedBench(t)
	rc := newSwitchable(t, b, 200)
	b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) { ep.RatePerSecond = 100 })
	before := b.publishMany("before ", 100)
	b.setState("ep-1", webhook.EndpointPaused)
	after := b.publishMany("after ", 450)
	b.clock.Advance(time.Hour)
	if n := len(rc.calls()); n != 0 {
		t.Errorf("%d requests while paused", n)
	}
	if s := b.states("ep-1", after); s != "450 held" {
		t.Errorf("what came while it was paused: %s", s)
	}
	resumed := b.clock.Now()
	b.setState("ep-1", webhook.EndpointActive)
	b.clock.Advance(time.Hour)
	if s := b.states("ep-1", append(before, after...)); s != "550 delivered" {
		t.Errorf("after: %s", s)
	}
	calls := rc.calls()
	if len(calls) != 550 {
		t.Errorf("%d requests for 550 deliveries", len(calls))
	}
	if took := calls[len(calls)-1].Sub(resumed); took < 4*time.Second || took > time.Minute {
		t.Errorf("450 deliveries at 100 a second came back within %s", took)
	}
	if got := told.kinds(); len(got) != 0 {
		t.Errorf("the owner was told %v", got)
	}
}

// Enabling can leave what was held. It goes out when somebody says so, and not with
// what a breaker's closing releases.
func TestEnablingCanLeaveWhatWasHeld(t *testing.T) {
	t.Parallel()
	b, told := newPostedBench(t)
	rc := newSwitchable(t, b, 410)
	b.endpoint("ep-1", rc.URL, slowly)
	old := b.publishMany("old ", 1)
	b.clock.Advance(time.Second)
	old = append(old, b.publishMany("older ", 4)...)
	if s := b.states("ep-1", old); s != "5 held" {
		t.Fatal(s)
	}
	rc.set(500)
	b.change(b.store.SetEndpointState(t.Context(), "default", "ep-1", store.StateChange{To: webhook.EndpointActive, LeaveHeld: true, Actor: "tester"}))
	b.clock.Advance(time.Minute)
	b.trip("ep-1")
	held := b.publishMany("held ", 3)
	rc.set(200)
	b.clock.Advance(10 * time.Minute)
	if s := b.states("ep-1", held); s != "3 delivered" {
		t.Errorf("what the breaker held: %s", s)
	}
	if s := b.states("ep-1", old); s != "5 held" {
		t.Errorf("what was left: %s", s)
	}
	b.change(b.store.Release(t.Context(), "default", "ep-1", "tester"))
	b.clock.Advance(time.Minute)
	if s := b.states("ep-1", old); s != "5 delivered" {
		t.Errorf("what was left, once released: %s", s)
	}
	if got := told.kinds(); !maps.Equal(got, map[string]int{"disabled": 1, "enabled": 1, "breaker_opened": 1, "breaker_closed": 1}) {
		t.Errorf("the owner was told %v", got)
	}
}

// A change whose controls were never made heals by itself with the next attempt.
func TestForgottenReleaseHeals(t *testing.T) {
	t.Parallel()
	b, _ := newPostedBench(t)
	rc := newSwitchable(t, b, 200)
	b.endpoint("ep-1", rc.URL, nil)
	b.setState("ep-1", webhook.EndpointPaused)
	held := b.publishMany("held ", 5)
	b.clock.Advance(time.Minute)
	_, err := b.store.SetEndpointState(t.Context(), "default", "ep-1", store.StateChange{To: webhook.EndpointActive, Actor: "tester"})
	must(t, err) // and there the process ends
	must(t, b.queue.Resume(t.Context(), "ep-ep-1"))
	b.clock.Advance(time.Hour)
	if s := b.states("ep-1", held); s != "5 held" {
		t.Fatal(s)
	}
	b.publish("next", []byte(`{}`))
	b.clock.Advance(time.Minute)
	if s := b.states("ep-1", held); s != "5 delivered" {
		t.Error(s)
	}
}

// 503 and 429 keep an endpoint's other dispatches back too, which are no attempts.
func TestThrottlePostponesOthers(t *testing.T) {
	t.Parallel()
	b, _ := newPostedBench(t)
	rc := newSwitchable(t, b, 503)
	rc.retry = "600"
	b.endpoint("ep-1", rc.URL, nil)
	first := b.publish("first", []byte(`{}`))
	b.clock.Advance(time.Second)
	others := b.publishMany("other ", 20)
	rc.set(200)
	b.clock.Advance(500 * time.Second)
	if n := len(rc.calls()); n != 1 {
		t.Errorf("%d requests within the wait that was asked for", n)
	}
	for _, k := range others {
		if d, attempts := b.delivery(k, "ep-1"); len(attempts) != 0 || d.Attempt != 1 || d.Task != 2 || d.Reason != webhook.ReasonThrottled {
			t.Fatalf("%+v, %d attempts", d, len(attempts))
		}
	}
	b.clock.Advance(5 * time.Minute)
	if s := b.states("ep-1", append(others, first)); s != "21 delivered" {
		t.Error(s)
	}
	calls := rc.calls()
	seconds := map[int64]bool{}
	for _, at := range calls[1:] {
		if wait := at.Sub(calls[0]); wait < 600*time.Second || wait > 661*time.Second {
			t.Errorf("a request after %s", wait)
		}
		seconds[at.Unix()] = true
	}
	if len(seconds) < 8 {
		t.Errorf("20 postponed deliveries came back within %d different seconds", len(seconds))
	}
}

// Somebody who resets a throttle gets what it had put off at once.
func TestResetEndsAThrottle(t *testing.T) {
	t.Parallel()
	b, _ := newPostedBench(t)
	rc := newSwitchable(t, b, 503)
	rc.retry = "86400"
	b.endpoint("ep-1", rc.URL, nil)
	b.publish("first", []byte(`{}`))
	b.clock.Advance(time.Second)
	others := b.publishMany("other ", 20)
	rc.set(200)
	b.clock.Advance(time.Minute)
	b.setState("ep-1", webhook.EndpointActive)
	b.clock.Advance(time.Minute)
	if s := b.states("ep-1", others); s != "20 delivered" {
		t.Error(s)
	}
}

// Nothing but failures: warned after one day and three, disabled after five.
func TestDisabledAfterDaysOfFailures(t *testing.T) {
	t.Parallel()
	b, told := newPostedBench(t)
	rc := newSwitchable(t, b, 500)
	b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) { ep.Owner = "ops@example.com"; ep.Health.MaxCoolDown = 6 * time.Hour })
	start := b.clock.Now()
	var keys []webhook.EventKey
	for day := range 6 {
		keys = append(keys, b.publishMany(fmt.Sprintf("day %d ", day), 3)...)
		b.clock.Advance(24 * time.Hour)
	}
	ep, err := b.store.Endpoint(t.Context(), "default", "ep-1")
	must(t, err)
	if ep.State != webhook.EndpointDisabled || ep.StateReason != webhook.ReasonFailingForDays {
		t.Fatalf("%+v", ep)
	}
	if after := ep.StateSince.Sub(start); after < 5*24*time.Hour || after > 5*24*time.Hour+8*time.Hour {
		t.Errorf("disabled after %s", after)
	}
	if got := told.kinds(); !maps.Equal(got, map[string]int{"breaker_opened": 1, "failing": 2, "disabled": 1}) {
		t.Errorf("the owner was told %v", got)
	}
	var notice struct {
		Notice, Tenant, Endpoint, URL, State, Reason, Owner string
		Since                                               time.Time
		ConsecutiveFailures                                 int `json:"consecutive_failures"`
	}
	must(t, json.Unmarshal(told.got[len(told.got)-1].Data, &notice))
	if notice.Notice != "endpoint.disabled" || notice.Endpoint != "ep-1" || notice.Owner != "ops@example.com" || notice.State != "disabled" ||
		notice.Reason != webhook.ReasonFailingForDays || notice.ConsecutiveFailures < 15 || !notice.Since.Equal(ep.StateSince) || !strings.HasPrefix(notice.URL, "http://127.0.0.1") {
		t.Errorf("%s", told.got[len(told.got)-1].Data)
	}
	n := len(rc.calls())
	b.clock.Advance(48 * time.Hour)
	if more := len(rc.calls()) - n; more != 0 {
		t.Errorf("%d requests after it was disabled", more)
	}
	rc.set(200)
	b.setState("ep-1", webhook.EndpointActive)
	b.clock.Advance(24 * time.Hour)
	for _, k := range keys {
		if d, _ := b.delivery(k, "ep-1"); d.State != webhook.DeliveryDelivered && d.State != webhook.DeliveryDead {
			t.Errorf("%+v", d)
		}
	}
}

// A notice that was published, and not marked so, goes out again under its id.
func TestNoticesGoOutAtLeastOnceUnderOneID(t *testing.T) {
	t.Parallel()
	b, told := newPostedBench(t)
	rc := newSwitchable(t, b, 410)
	b.endpoint("ep-1", rc.URL+"/hook?token=s3cret", nil)
	b.stopOnce(deliver.StepPublished)
	b.publish("1", []byte(`{}`))
	b.clock.Advance(time.Hour)
	if len(told.got) != 2 || told.got[0].ID != told.got[1].ID || told.got[0].Type != "sealpost.endpoint.disabled" || told.got[0].Tenant != "default" ||
		strings.Contains(string(told.got[0].Data), "s3cret") {
		t.Errorf("%+v", told.got)
	}
	all, _, err := b.store.ListNotices(t.Context(), "default", store.Page{})
	if err != nil || len(all) != 1 || all[0].SentAt.IsZero() {
		t.Errorf("%+v, %v", all, err)
	}
}

// A test goes out whatever the endpoint's state, once, and changes nothing.
func TestTestDeliveries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(b *bench, rc *switchable)
		answer  int
		state   webhook.DeliveryState
	}{
		{"well", func(*bench, *switchable) {}, 200, webhook.DeliveryDelivered},
		{"failing", func(*bench, *switchable) {}, 500, webhook.DeliveryDead},
		{"gone", func(*bench, *switchable) {}, 410, webhook.DeliveryDead},
		{"paused", func(b *bench, _ *switchable) { b.setState("ep-1", webhook.EndpointPaused) }, 200, webhook.DeliveryDelivered},
		{"disabled", func(b *bench, _ *switchable) { b.setState("ep-1", webhook.EndpointDisabled) }, 500, webhook.DeliveryDead},
		{"open", func(b *bench, rc *switchable) { rc.set(500); b.trip("ep-1") }, 200, webhook.DeliveryDelivered},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, _ := newPostedBench(t)
			rc := newSwitchable(t, b, 200)
			b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) { ep.EventTypes = []string{"other.*", "invoice.*"}; slowly(ep) })
			b.endpoint("ep-2", rc.URL, nil)
			c.prepare(b, rc)
			b.clock.Advance(10 * time.Second)
			before, n := b.health("ep-1"), len(rc.calls())
			rc.set(c.answer)
			ev := webhook.Event{Tenant: "default", Source: "app:sealpost", PublisherID: "test 1", Type: webhook.TypeTest, Body: []byte(`{}`), ReceivedAt: b.clock.Now(), Receipt: "t"}
			ev.Seal()
			for range 2 {
				task, err := b.store.CreateTest(t.Context(), "default", "ep-1", ev)
				must(t, err)
				must(t, b.queue.Schedule(t.Context(), task))
			}
			b.clock.Advance(2 * time.Second)
			d, attempts := b.delivery(ev.Key, "ep-1")
			if d.State != c.state || len(attempts) != 1 || attempts[0].Trigger != webhook.TriggerTest || len(rc.calls()) != n+1 {
				t.Errorf("%+v, %+v, %d requests", d, attempts, len(rc.calls())-n)
			}
			if after := b.health("ep-1"); after != before {
				t.Errorf("a test changed the health from %+v to %+v", before, after)
			}
			if _, _, err := b.store.Delivery(t.Context(), "default", ev.Key, "ep-2"); err == nil {
				t.Error("another endpoint got it too")
			}
		})
	}
}

// After disabling has returned, no request starts but what was under way: H51.
func TestDisablingStopsWhatIsQueued(t *testing.T) {
	t.Parallel()
	b, _ := newPostedBench(t)
	rc := newSwitchable(t, b, 200)
	b.endpoint("ep-1", rc.URL, nil)
	keys := b.publishMany("queued ", 100)
	b.setState("ep-1", webhook.EndpointDisabled)
	must(t, b.queue.Resume(t.Context(), "ep-ep-1")) // pausing saves work and decides nothing
	b.clock.Advance(time.Minute)
	must(t, b.queue.Resume(t.Context(), "ep-ep-1"))
	b.clock.Advance(time.Minute)
	if n, s := len(rc.calls()), b.states("ep-1", keys); n != 0 || s != "100 held" {
		t.Errorf("%d requests, %s", n, s)
	}
}

// Deleting cancels what waits, what is held included, by a control task.
func TestDeletingCancelsWhatIsHeld(t *testing.T) {
	t.Parallel()
	b, _ := newPostedBench(t)
	rc := newSwitchable(t, b, 200)
	b.endpoint("ep-1", rc.URL, nil)
	keys := b.publishMany("queued ", 5)
	b.setState("ep-1", webhook.EndpointPaused)
	keys = append(keys, b.publishMany("held ", 5)...)
	b.clock.Advance(time.Second)
	b.change(b.store.RemoveEndpoint(t.Context(), "default", "ep-1", "tester"))
	b.clock.Advance(10 * time.Second)
	if n, s := len(rc.calls()), b.states("ep-1", keys); n != 0 || s != "10 cancelled" {
		t.Errorf("%d requests, %s", n, s)
	}
}

// Equal ids in two tenants have nothing to do with one another: H62.
func TestTenantsBreakersAreApart(t *testing.T) {
	t.Parallel()
	b, told := newPostedBench(t)
	bad, good := newSwitchable(t, b, 500), newSwitchable(t, b, 200)
	b.endpoint("ep-1", bad.URL, nil)
	_, err := b.store.CreateEndpoint(t.Context(), webhook.Endpoint{Tenant: "other", ID: "ep-1", URL: good.URL, EventTypes: []string{"*"}},
		[]store.SealedKey{b.sealFor("other", "ep-1")}, "test")
	must(t, err)
	b.trip("ep-1")
	h, err := b.store.Health(t.Context(), "other", "ep-1")
	if err != nil || h != (webhook.Health{}) {
		t.Errorf("the other tenant's endpoint: %+v, %v", h, err)
	}
	ev := webhook.Event{Tenant: "other", Source: "app", PublisherID: "trip 0", Type: "invoice.paid", Body: []byte(`{}`), ReceivedAt: b.clock.Now(), Receipt: "1"}
	ev.Seal()
	got, err := b.store.Ingest(t.Context(), []webhook.Event{ev})
	must(t, err)
	must(t, b.queue.Schedule(t.Context(), got[0].Tasks[0]))
	b.clock.Advance(time.Second)
	if len(good.calls()) != 1 {
		t.Errorf("%d requests to the other tenant's endpoint", len(good.calls()))
	}
	for _, m := range told.got {
		if m.Tenant != "default" {
			t.Errorf("%s was told %s", m.Tenant, m.Type)
		}
	}
	if _, err := b.store.Release(t.Context(), "other", "ep-1", "tester"); err != nil {
		t.Error(err)
	}
	if h := b.health("ep-1"); h.Closed() {
		t.Error("the other tenant's release closed our breaker")
	}
}

// A task of nobody's making is dropped; a control for an endpoint that is not there
// is done with.
func TestControlTasksThatMeanNothing(t *testing.T) {
	t.Parallel()
	b, _ := newPostedBench(t)
	for _, kind := range []webhook.ControlKind{webhook.ControlProbe, webhook.ControlHold, webhook.ControlRelease, webhook.ControlCancel, webhook.ControlNotify} {
		if err := b.d.Control(t.Context(), webhook.Control{Kind: kind, Tenant: "default", Endpoint: "none", Epoch: 1}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
