package store

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

var fullSettings = webhook.EndpointSettings{Filter: "data.amount > 5", RecordFiltered: true, PayloadMode: webhook.PayloadThin, Ordering: webhook.OrderingBlock,
	Headers: []webhook.Header{{Name: "X-Env", Value: "prod"}}, Legacy: []webhook.SignatureTemplate{{Header: "X-Sig", Template: "sha256={hex}"}},
	Auth:   webhook.EndpointAuth{Kind: webhook.AuthBasic, Summary: "user", Sealed: []byte{1, 2}, SealedBy: "3"},
	Health: webhook.HealthPolicy{FailuresToOpen: 3, CoolDown: time.Second}, Owner: "o@example.com", Metadata: map[string]string{"k": "v"}, APIVersion: "1"}

func TestSettingsAreKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	given := webhook.Endpoint{Tenant: "default", ID: "a", URL: "pubsub://orders", EventTypes: []string{"*"}, EndpointSettings: fullSettings}
	if _, err := f.CreateEndpoint(f.ctx, given, nil, "tester"); err != nil {
		t.Fatal(err)
	}
	f.endpoint("default", "plain")
	got, err := f.Endpoint(f.ctx, "default", "a")
	if err != nil || !reflect.DeepEqual(got.EndpointSettings, fullSettings) {
		t.Errorf("\n got %+v, %v\nwant %+v", got.EndpointSettings, err, fullSettings)
	}
	var row endpointRow
	r, err := f.client.Single().ReadRow(f.ctx, "Endpoints", key("default", "plain"), endpointColumns)
	if err != nil || r.ToStruct(&row) != nil || row.Settings.Valid || row.AuthSealedBy.Valid || row.AuthSealed != nil {
		t.Errorf("nothing set is stored as %+v, %v", row, err)
	}
}

func TestUpdateEndpoint(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	before := f.endpoint("default", "a")
	f.clock.move(time.Minute)
	after, err := f.UpdateEndpoint(f.ctx, "default", "a", func(ep *webhook.Endpoint) error {
		ep.URL, ep.EndpointSettings, ep.RatePerSecond = "https://new.example/hook", fullSettings, 7
		ep.EventTypes[0] = "invoice.*"
		// None of these is an update's to change.
		ep.Tenant, ep.ID, ep.State, ep.StateReason, ep.Queue, ep.QueueReadyAt, ep.CreatedAt = "x", "y", webhook.EndpointDeleted, "z", "q", t0, t0.Add(1)
		return nil
	}, "ann")
	want := before
	want.URL, want.EndpointSettings, want.RatePerSecond, want.EventTypes, want.UpdatedAt = "https://new.example/hook", fullSettings, 7, []string{"invoice.*"}, f.clock.now()
	if err != nil || !reflect.DeepEqual(after, want) {
		t.Errorf("\n got %+v, %v\nwant %+v", after, err, want)
	}
	if read, err := f.Endpoint(f.ctx, "default", "a"); err != nil || !reflect.DeepEqual(read, want) {
		t.Errorf("read\n%+v, %v, want\n%+v", read, err, want)
	}
	audit, _, err := f.ListAudit(f.ctx, "default", Page{})
	if err != nil || audit[0].Action != "endpoint.update" || audit[0].Actor != "ann" || strings.Contains(string(audit[0].Detail), "prod") ||
		string(audit[0].Detail) != `{"fields":["AuthSealed","AuthSealedBy","EventTypes","RatePerSecond","Url","api_version","auth","filter","headers","health","legacy_signatures","metadata","ordering","owner","payload_mode","record_filtered"]}` {
		t.Errorf("%+v, %s, %v", audit[0], audit[0].Detail, err)
	}
	// What is matched follows at once.
	if r := f.ingest(event("default", "s", "1", "order.paid"))[0]; r.State != webhook.EventUnmatched {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct {
		name, id, actor string
		change          func(*webhook.Endpoint) error
		want            error
	}{
		{"nothing changed", "a", "ann", func(*webhook.Endpoint) error { return nil }, nil},
		{"its own error", "a", "ann", func(ep *webhook.Endpoint) error { return fmt.Errorf("%w: seen before", ErrConflict) }, ErrConflict},
		{"a bad field", "a", "ann", func(ep *webhook.Endpoint) error { ep.Owner = "nobody"; return nil }, ErrInvalid},
		{"a bad URL", "a", "ann", func(ep *webhook.Endpoint) error { ep.URL = "https://u:p@x.example"; return nil }, ErrInvalid},
		{"taken over by somebody", "a", "ann", func(ep *webhook.Endpoint) error { ep.ManagedBy = webhook.ManagedByTerraform; return nil }, ErrManaged},
		{"no such endpoint", "b", "ann", func(*webhook.Endpoint) error { return nil }, ErrNotFound},
		{"taken over by its manager", "a", webhook.ManagedByTerraform, func(ep *webhook.Endpoint) error { ep.ManagedBy = webhook.ManagedByTerraform; return nil }, nil},
		{"managed elsewhere", "a", "ann", func(ep *webhook.Endpoint) error { ep.Description = "mine"; return nil }, ErrManaged},
		{"given back by somebody", "a", "ann", func(ep *webhook.Endpoint) error { ep.ManagedBy = ""; return nil }, ErrManaged},
		{"changed by its manager", "a", webhook.ManagedByTerraform, func(ep *webhook.Endpoint) error { ep.Description = "ours"; return nil }, nil},
	} {
		if _, err := f.UpdateEndpoint(f.ctx, "default", c.id, c.change, c.actor); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := f.RemoveEndpoint(f.ctx, "default", "a", "ann"); !errors.Is(err, ErrManaged) {
		t.Errorf("removed by somebody: %v", err)
	}
	f.set("a", webhook.EndpointPaused) // its state is anybody's
	if audit, _, _ := f.ListAudit(f.ctx, "default", Page{}); len(audit) != 5 {
		t.Errorf("%d lines of audit, want create, 3 updates and a pause: %+v", len(audit), audit)
	}
	if _, err := f.RemoveEndpoint(f.ctx, "default", "a", webhook.ManagedByTerraform); err != nil {
		t.Error(err)
	}
	if _, err := f.UpdateEndpoint(f.ctx, "default", "a", func(*webhook.Endpoint) error { return nil }, webhook.ManagedByTerraform); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted one: %v", err)
	}
}

// Of changes that were decided from the same state one wins, and nothing is lost of
// those that add to one another.
func TestConcurrentUpdates(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	seen := f.endpoint("default", "a").UpdatedAt
	f.clock.move(time.Second)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 6 {
		wg.Go(func() {
			_, err := f.UpdateEndpoint(f.ctx, "default", "a", func(ep *webhook.Endpoint) error {
				if !ep.UpdatedAt.Equal(seen) {
					return fmt.Errorf("%w: changed at %s", ErrConflict, ep.UpdatedAt)
				}
				ep.Description = fmt.Sprint(i)
				return nil
			}, "tester")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.Is(err, ErrConflict) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			_, err := f.UpdateEndpoint(f.ctx, "default", "a", func(ep *webhook.Endpoint) error {
				if ep.Metadata == nil {
					ep.Metadata = map[string]string{}
				}
				ep.Metadata[fmt.Sprint(i)] = "v"
				return nil
			}, "tester")
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ep, err := f.Endpoint(f.ctx, "default", "a"); err != nil || won > 1 || len(ep.Metadata) != 6 {
		t.Errorf("%d won, %+v, %v", won, ep, err)
	}
}

func TestSetEndpointState(t *testing.T) {
	t.Parallel()
	const active, paused, disabled = webhook.EndpointActive, webhook.EndpointPaused, webhook.EndpointDisabled
	kinds := func(cs []webhook.Control) (out []webhook.ControlKind) {
		for _, c := range cs {
			out = append(out, c.Kind)
		}
		return out
	}
	hold, release, notify := webhook.ControlHold, webhook.ControlRelease, webhook.ControlNotify
	for _, c := range []struct {
		name     string
		from, to webhook.EndpointState
		err      error
		audit    string
		controls []webhook.ControlKind
		notices  []webhook.Notice // in all
	}{
		{"pause", active, paused, nil, "endpoint.pause", []webhook.ControlKind{hold}, nil},
		{"pause again", paused, paused, nil, "", []webhook.ControlKind{hold}, nil},
		{"resume", paused, active, nil, "endpoint.resume", []webhook.ControlKind{release}, nil},
		{"disable", active, disabled, nil, "endpoint.disable", []webhook.ControlKind{hold, notify}, []webhook.Notice{webhook.NoticeDisabled}},
		{"disable a paused one", paused, disabled, nil, "endpoint.disable", []webhook.ControlKind{hold, notify}, []webhook.Notice{webhook.NoticeDisabled}},
		{"disable again", disabled, disabled, nil, "", []webhook.ControlKind{hold, notify}, []webhook.Notice{webhook.NoticeDisabled}},
		{"enable", disabled, active, nil, "endpoint.enable", []webhook.ControlKind{release, notify}, []webhook.Notice{webhook.NoticeDisabled, webhook.NoticeEnabled}},
		{"activate an active one", active, active, nil, "", nil, nil},
		{"pause a disabled one", disabled, paused, ErrConflict, "", nil, []webhook.Notice{webhook.NoticeDisabled}},
		{"delete so", active, webhook.EndpointDeleted, ErrInvalid, "", nil, nil},
		{"into nothing", active, "", ErrInvalid, "", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			f.endpoint("default", "a")
			if c.from != active {
				f.set("a", c.from)
			}
			f.clock.move(time.Minute)
			before := f.count("AuditLog")
			got, err := f.SetEndpointState(f.ctx, "default", "a", StateChange{To: c.to, Actor: "ann"})
			if !errors.Is(err, c.err) || !slices.Equal(kinds(got.Controls), c.controls) {
				t.Fatalf("%+v, %v", got, err)
			}
			audit, _, _ := f.ListAudit(f.ctx, "default", Page{})
			if c.audit == "" != (len(audit) == before) || c.audit != "" && (audit[0].Action != c.audit || audit[0].Actor != "ann") {
				t.Errorf("audit %+v", audit[0])
			}
			ep, _ := f.Endpoint(f.ctx, "default", "a")
			if err == nil && (ep.State != c.to || !reflect.DeepEqual(ep, got.Endpoint) || c.audit != "" && (!ep.StateSince.Equal(f.clock.now()) || ep.StateReason == "" != (c.to == active))) {
				t.Errorf("%+v, said to be %+v", ep, got.Endpoint)
			}
			// As after an error whose commit has happened.
			again, err2 := f.SetEndpointState(f.ctx, "default", "a", StateChange{To: c.to, Actor: "ann"})
			if err == nil && (err2 != nil || !reflect.DeepEqual(sorted(again.Controls), sorted(got.Controls)) && c.name != "enable") {
				t.Errorf("again: %+v, %v; first %+v", again, err2, got)
			}
			var told []webhook.Notice
			all, _, err := f.ListNotices(f.ctx, "default", Page{})
			for _, n := range all {
				told = append(told, n.Kind)
			}
			if slices.Reverse(told); err != nil || !slices.Equal(told, c.notices) {
				t.Errorf("notices %v, %v; want %v", told, err, c.notices)
			}
		})
	}
	f := newFixture(t, Options{})
	for _, prepare := range []func(){func() {}, func() {
		f.endpoint("default", "a")
		if _, err := f.DeleteEndpoint(f.ctx, "default", "a", "tester"); err != nil {
			t.Fatal(err)
		}
	}} {
		prepare()
		if _, err := f.SetEndpointState(f.ctx, "default", "a", StateChange{To: active}); !errors.Is(err, ErrNotFound) {
			t.Errorf("no such endpoint: %v", err)
		}
		if _, err := f.Release(f.ctx, "default", "a", "tester"); !errors.Is(err, ErrNotFound) {
			t.Errorf("no such endpoint: %v", err)
		}
	}
}

func sorted(cs []webhook.Control) []string {
	var out []string
	for _, c := range cs {
		out = append(out, c.TaskID())
	}
	slices.Sort(out)
	return out
}

func TestReleaseByHandNeedsAnOpenWay(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.trip("a")
	if _, err := f.Release(f.ctx, "default", "a", "ann"); !errors.Is(err, ErrConflict) {
		t.Errorf("while the breaker is open: %v", err)
	}
	f.set("a", webhook.EndpointActive) // resets it
	f.set("a", webhook.EndpointPaused)
	if _, err := f.Release(f.ctx, "default", "a", "ann"); !errors.Is(err, ErrConflict) {
		t.Errorf("while paused: %v", err)
	}
	f.set("a", webhook.EndpointActive)
	first, err := f.Release(f.ctx, "default", "a", "ann")
	again, err2 := f.Release(f.ctx, "default", "a", "ann")
	if err != nil || err2 != nil || len(first.Controls) != 1 || again.Controls[0] != first.Controls[0] || first.Controls[0].Kind != webhook.ControlRelease {
		t.Errorf("%+v, %v; again %+v, %v", first, err, again, err2)
	}
}

// One commit has the attempt, the health, the state, the notices and the audit;
// another with the same records changes nothing and says that it did not.
func TestRecordJudgesOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.endpoint("default", "b")
	var recs []AttemptRecord
	for _, e := range events(12) {
		f.ingest(e)
		for _, id := range []string{"a", "b"} {
			d, _ := f.getDelivery(e.Key, id)
			o := failing
			if id == "b" {
				o = delivered
			}
			recs = append(recs, f.attempt(d, o))
		}
	}
	first, again := f.record(recs...), f.record(recs...)
	controls := 0
	for i, r := range first {
		controls += len(r.Controls)
		if r.Again || !r.Applied || !again[i].Again || !again[i].Applied || len(again[i].Controls) != 0 {
			t.Fatalf("record %d: %+v, again %+v", i, r, again[i])
		}
	}
	if controls != 3 { // hold, probe, notify
		t.Errorf("%d controls", controls)
	}
	h := f.health("a")
	if h.Breaker != webhook.BreakerOpen || h.ConsecutiveFailures != 12 || h.Epoch != 1 || h.Trips != 1 || !h.FailingSince.Equal(t0) {
		t.Errorf("%+v", h)
	}
	if h := f.health("b"); h != (webhook.Health{Breaker: webhook.BreakerClosed, LastSuccessAt: t0}) {
		t.Errorf("%+v", h)
	}
	if n := f.count("Notices"); n != 1 {
		t.Errorf("%d notices", n)
	}
	out, err := f.Outstanding(f.ctx, "default", "a")
	if err != nil || len(out) != 3 || out[2].Kind != webhook.ControlNotify {
		t.Errorf("%+v, %v", out, err)
	}
}

// What was under way when the endpoint was paused, and tests, say nothing.
func TestWhatDoesNotCount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		edit func(f *fixture, r *AttemptRecord)
	}{
		{"a test", func(f *fixture, r *AttemptRecord) { r.Attempt.Trigger = webhook.TriggerTest }},
		{"paused meanwhile", func(f *fixture, _ *AttemptRecord) { f.set("a", webhook.EndpointPaused) }},
		{"a delivery that is not there", func(f *fixture, r *AttemptRecord) { r.Attempt.Key.Event[0]++ }},
		{"another generation", func(f *fixture, r *AttemptRecord) { r.Attempt.Key.Generation++ }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			d := f.one("a")
			rec := f.attempt(d, failing)
			c.edit(f, &rec)
			f.record(rec)
			if h := f.health("a"); h.ConsecutiveFailures != 0 {
				t.Errorf("%+v", h)
			}
		})
	}
}

// A healthy endpoint's row is written once a minute.
func TestHealthyEndpointsAreNoHotSpot(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	written := map[time.Time]bool{}
	for range 30 {
		f.after("a", delivered)
		written[f.health("a").LastSuccessAt] = true
		f.clock.move(5 * time.Second)
	}
	if len(written) != 3 { // at 0, 60 and 120 s of 145
		t.Errorf("written at %v", slices.Collect(maps.Keys(written)))
	}
}

// Records of one group count in the order of their starts.
func TestDisorderWithinAGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	var recs []AttemptRecord
	for i, e := range events(12) {
		f.ingest(e)
		d, _ := f.getDelivery(e.Key, "a")
		o := failing
		if i == 5 {
			o = delivered // the row breaks in the middle
		}
		r := f.attempt(d, o)
		r.Attempt.StartedAt = t0.Add(time.Duration(i)*time.Second - time.Minute)
		recs = append(recs, r)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(recs), func(i, j int) { recs[i], recs[j] = recs[j], recs[i] })
	f.record(recs...)
	if h := f.health("a"); !h.Closed() || h.ConsecutiveFailures != 6 {
		t.Errorf("%+v", h)
	}
}

// A stale claim cannot hold what a release has passed by, nor put it off.
func TestSettleAndPostponeLookAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	if settled, err := f.Settle(f.ctx, d.Key(), webhook.DeliveryHeld, webhook.ReasonEndpointPaused); err != nil || settled {
		t.Errorf("held for an endpoint that is active: %v, %v", settled, err)
	}
	if task, postponed, err := f.Postpone(f.ctx, d.Key()); err != nil || postponed || task != nil {
		t.Errorf("put off for an endpoint that is not throttled: %v, %v", task, err)
	}
	if got, _ := f.getDelivery(d.Event, "a"); got != d {
		t.Errorf("%+v, was %+v", got, d)
	}
}

func TestPostpone(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	throttled := webhook.Outcome{Class: webhook.ClassStatus, Status: 429, RetryAfter: time.Hour}
	f.after("a", throttled)
	first, postponed, err := f.Postpone(f.ctx, d.Key())
	if err != nil || !postponed || first == nil || first.Key.Task != 2 || first.Key.Attempt != 1 || first.At.Before(t0.Add(time.Hour)) || first.At.After(t0.Add(time.Hour+time.Minute)) {
		t.Fatalf("%+v, %v", first, err)
	}
	f.clock.move(time.Minute)
	if again, postponed, err := f.Postpone(f.ctx, d.Key()); err != nil || !postponed || *again != *first {
		t.Errorf("again: %+v, %v; want %+v", again, err, first)
	}
	got, attempts := f.getDelivery(d.Event, "a")
	if got.State != webhook.DeliveryScheduled || got.Reason != webhook.ReasonThrottled || !got.NextAttemptAt.Equal(first.At) || len(attempts) != 0 {
		t.Errorf("%+v", got)
	}
	if c, err := f.Claim(f.ctx, d.Key()); err != nil || c.Verdict != VerdictStale || *c.Current != *first {
		t.Errorf("the old task: %+v, %v", c, err)
	}
	f.record(f.attempt(got, delivered))
	if task, postponed, err := f.Postpone(f.ctx, first.Key); err != nil || !postponed || task != nil {
		t.Errorf("a delivered one: %+v, %v", task, err)
	}
}

// A retry that would come before its endpoint's throttle is over comes after, by the
// commit of the attempt.
func TestRetriesWaitForTheThrottle(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	r := f.after("a", webhook.Outcome{Class: webhook.ClassStatus, Status: 503, RetryAfter: 20 * time.Hour})
	if until := f.health("a").ThrottledUntil; r.Next == nil || r.Next.At.Before(until) || !until.Equal(t0.Add(20*time.Hour)) || !r.Delivery.NextAttemptAt.Equal(r.Next.At) {
		t.Errorf("throttled until %s, next %+v", f.health("a").ThrottledUntil, r.Next)
	}
}

// What comes while an endpoint holds is held at once; what comes after is not,
// whoever stores it and whatever it knew.
func TestIngestHolds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	worker := f.open(Options{})
	n := 0
	state := func() string {
		n++
		e := event("default", "github", fmt.Sprint("hold ", n), "x")
		if _, err := worker.Ingest(f.ctx, []webhook.Event{e}); err != nil {
			t.Fatal(err)
		}
		d, _ := f.getDelivery(e.Key, "a")
		return string(d.State) + " " + d.Reason
	}
	want := func(what, want string) {
		t.Helper()
		if got := strings.TrimSpace(state()); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	want("at first", "scheduled")
	f.set("a", webhook.EndpointPaused)
	want("paused", "held "+webhook.ReasonEndpointPaused)
	f.set("a", webhook.EndpointActive)
	want("resumed", "scheduled")
	f.trip("a")
	f.clock.move(cardAge)
	want("breaker open", "held "+webhook.ReasonBreakerOpen)
	other := f.open(Options{})
	if _, err := other.SetEndpointState(f.ctx, "default", "a", StateChange{To: webhook.EndpointActive}); err != nil {
		t.Fatal(err)
	}
	want("closed, not yet known to be", "scheduled")
	f.clock.move(time.Minute)
	f.trip("a")
	f.clock.move(cardAge)
	want("open again", "held "+webhook.ReasonBreakerOpen)
	f.clock.set(f.health("a").OpenUntil)
	want("cool-down over", "scheduled")
}

// Ingestion and closing at once, many times: whatever is held when all is done was
// held before the release began, or there would be nobody to release it.
func TestNothingIsHeldBehindARelease(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	for round := range 12 {
		if round%2 == 0 {
			f.set("a", webhook.EndpointPaused)
		} else {
			f.trip("a")
		}
		f.clock.move(cardAge)
		var wg sync.WaitGroup
		for i := range 4 {
			worker := f.open(Options{})
			wg.Go(func() {
				for j := range 3 {
					if _, err := worker.Ingest(f.ctx, []webhook.Event{event("default", "s", fmt.Sprint("race ", round, i, j), "x")}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		var change EndpointChange
		wg.Go(func() { change = f.set("a", webhook.EndpointActive) })
		wg.Wait()
		page, err := f.ReleasePage(f.ctx, change.Controls[0])
		if err != nil || page.Late || page.Next != nil {
			t.Fatalf("%+v, %v", page, err)
		}
		if err := f.FinishRelease(f.ctx, change.Controls[0]); err != nil {
			t.Fatal(err)
		}
		held, _, err := f.ListDeliveries(f.ctx, DeliveryFilter{Tenant: "default", Endpoint: "a", State: webhook.DeliveryHeld}, Page{Size: 500})
		if err != nil || len(held) != 0 {
			t.Fatalf("round %d: %d are held for an endpoint that serves, %v", round, len(held), err)
		}
	}
}

// Pages, repeated, stopped and begun anew: each delivery is released once, under a
// new task and at its attempt, spread by the endpoint's rate.
func TestReleasePages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.set("a", webhook.EndpointPaused)
	var all []webhook.Event
	for i := range 950 {
		all = append(all, event("default", "s", fmt.Sprint("page ", i), "x"))
	}
	f.ingest(all...)
	c := f.set("a", webhook.EndpointActive).Controls[0]
	released, pages := map[webhook.EventKey]webhook.Task{}, 0
	for next := &c; next != nil; pages++ {
		first, err := f.ReleasePage(f.ctx, *next)
		if err != nil || first.Late {
			t.Fatalf("%+v, %v", first, err)
		}
		again, err := f.ReleasePage(f.ctx, *next) // as after a crash before the tasks
		if err != nil || again.Late || len(again.Tasks) < len(first.Tasks) && again.Next == nil {
			t.Fatalf("again: %d tasks, %v; first %d", len(again.Tasks), err, len(first.Tasks))
		}
		names := map[string]bool{}
		for _, task := range again.Tasks {
			names[task.Key.TaskID()] = true
		}
		for _, task := range first.Tasks {
			if !names[task.Key.TaskID()] {
				t.Fatalf("page %d again lacks %s", pages, task.Key)
			}
		}
		for _, task := range append(first.Tasks, again.Tasks...) {
			if was, ok := released[task.Key.Event]; ok && was != task {
				t.Fatalf("released twice: %+v and %+v", was, task)
			}
			if released[task.Key.Event] = task; task.Key.Attempt != 1 || task.Key.Task != 2 || task.At.Before(t0) || task.At.After(t0.Add(8*time.Second)) {
				t.Fatalf("%+v", task)
			}
		}
		next = again.Next
	}
	if len(released) != 950 || pages != 3 {
		t.Errorf("%d released in %d pages", len(released), pages)
	}
	if h := f.health("a"); !h.Releasing() {
		t.Errorf("%+v", h)
	}
	if err := f.FinishRelease(f.ctx, c); err != nil || func() bool { h := f.health("a"); return h.Releasing() }() {
		t.Errorf("%v, %+v", err, f.health("a"))
	}
	f.set("a", webhook.EndpointPaused)
	if page, err := f.ReleasePage(f.ctx, c); err != nil || !page.Late {
		t.Errorf("of an earlier epoch: %+v, %v", page, err)
	}
}

func TestProbesAreShared(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	last := f.trip("a")
	f.clock.move(cardAge)
	f.trouble.forget()
	f.ingest(events(40)...)
	c := last.Controls[1]
	if c.Kind != webhook.ControlProbe {
		t.Fatalf("%+v", last.Controls)
	}
	if _, err := f.StartProbe(f.ctx, c); !errors.Is(err, errEarly) {
		t.Errorf("before its time: %v", err)
	}
	bearers := map[webhook.EventKey]bool{}
	for range 8 {
		f.clock.set(c.At)
		p, err := f.StartProbe(f.ctx, c)
		if err != nil || !p.Started || p.Task.Direct != true {
			t.Fatalf("%+v, %v", p, err)
		}
		if again, err := f.StartProbe(f.ctx, c); err != nil || again.Started {
			t.Fatalf("again: %+v, %v", again, err)
		}
		bearers[p.Task.Key.Event] = true
		d, _ := f.getDelivery(p.Task.Key.Event, "a")
		claim, err := f.Claim(f.ctx, p.Task.Key)
		if err != nil || claim.Verdict != VerdictRun || d.Trigger != webhook.TriggerProbe {
			t.Fatalf("%+v, %v, %+v", claim, err, d)
		}
		rec := f.attempt(d, failing)
		rec.Decision = webhook.DecideTriggered(d, failing, webhook.RetryPolicy{Delays: []time.Duration{0}}, f.clock.now())
		r := f.record(rec)[0]
		if r.Delivery.State != webhook.DeliveryHeld || r.Delivery.Attempt != d.Attempt || r.Delivery.Trigger != webhook.TriggerAutomatic || r.Next != nil || len(r.Controls) != 2 {
			t.Fatalf("after a failed probe: %+v", r)
		}
		c = r.Controls[1]
	}
	if len(bearers) < 5 {
		t.Errorf("%d deliveries bore 8 probes", len(bearers))
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	answers := map[string]func() (bool, error){
		"yes": func() (bool, error) { return true, nil }, "no": func() (bool, error) { return false, nil },
		"fails": func() (bool, error) { return false, errors.New("no such key: amount") }}
	filter := func(ep *webhook.Endpoint, e *webhook.Event) (bool, error) {
		if len(e.Body) == 0 {
			t.Error("a filter is asked without the body")
		}
		return answers[ep.Filter]()
	}
	for _, c := range []struct {
		name, filter string
		record       bool
		with         bool // a filter is wired
		want         string
		event        webhook.EventState
		expires      bool
	}{
		{"none", "", false, false, "scheduled", webhook.EventAccepted, false},
		{"yes", "yes", false, true, "scheduled", webhook.EventAccepted, false},
		{"no", "no", false, true, "", webhook.EventUnmatched, true},
		{"no, recorded", "no", true, true, "filtered", webhook.EventAccepted, true},
		{"fails", "fails", false, true, "held filter failed: no such key: amount", webhook.EventAccepted, false},
		{"nobody to ask", "yes", false, false, "held filter failed: filters are not evaluated here", webhook.EventAccepted, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for chunk := range 2 { // in the first commit, and in a later one
				o := Options{FanoutChunk: 1}
				if c.with {
					o.Filter = filter
				}
				f := newFixture(t, o)
				if chunk > 0 {
					f.endpoint("default", "0", "x")
				}
				if _, err := f.CreateEndpoint(f.ctx, webhook.Endpoint{Tenant: "default", ID: "a", URL: "https://x.example", EventTypes: []string{"*"},
					EndpointSettings: webhook.EndpointSettings{Filter: c.filter, RecordFiltered: c.record}}, nil, "tester"); err != nil {
					t.Fatal(err)
				}
				e := event("default", "s", "1", "x")
				r := f.ingest(e)[0]
				for r.More {
					var err error
					if r, err = f.ContinueFanout(f.ctx, "default", e.Key); err != nil {
						t.Fatal(err)
					}
				}
				d, _, err := f.Delivery(f.ctx, "default", e.Key, "a")
				if got := strings.TrimSpace(string(d.State) + " " + d.Reason); got != c.want || (c.want == "") != errors.Is(err, ErrNotFound) {
					t.Errorf("%q, %v; want %q", got, err, c.want)
				}
				if chunk > 0 {
					d, _ := f.getDelivery(e.Key, "0")
					f.record(f.attempt(d, delivered))
				} else if row := f.row(e.Key); row.State != c.event {
					t.Errorf("the event is %s, want %s", row.State, c.event)
				}
				if row := f.row(e.Key); row.ExpireAt.IsZero() == c.expires {
					t.Errorf("in chunk %d, expires at %s, want any: %v", chunk, row.ExpireAt, c.expires)
				}
			}
		})
	}
}

// What a filter could not judge is not sent because a breaker closes, nor probed
// with; only because somebody says so.
func TestFilterFailuresWaitForSomebody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	if _, err := f.CreateEndpoint(f.ctx, webhook.Endpoint{Tenant: "default", ID: "a", URL: "https://x.example", EventTypes: []string{"*"},
		EndpointSettings: webhook.EndpointSettings{Filter: "x"}}, nil, "tester"); err != nil {
		t.Fatal(err)
	}
	f.ingest(events(120)...)
	release := func(c EndpointChange) int {
		page, err := f.ReleasePage(f.ctx, c.Controls[0])
		if err != nil {
			t.Fatal(err)
		}
		return page.Released
	}
	f.set("a", webhook.EndpointPaused)
	if n := release(f.set("a", webhook.EndpointActive)); n != 0 {
		t.Errorf("resuming released %d", n)
	}
	c, err := f.Release(f.ctx, "default", "a", "ann")
	if err != nil || release(c) != 120 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestDeletedEndpointsHoldNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	if _, err := f.RemoveEndpoint(f.ctx, "default", "a", "tester"); err != nil {
		t.Fatal(err)
	}
	r := f.record(f.attempt(d, gone))[0] // was under way
	if r.Delivery.State != webhook.DeliveryCancelled || r.Delivery.Reason != webhook.ReasonEndpointDeleted {
		t.Errorf("%+v", r)
	}
	if row := f.row(d.Event); row.ExpireAt.IsZero() {
		t.Error("never expires")
	}
}
