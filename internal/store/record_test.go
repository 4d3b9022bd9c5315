package store

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// one ingests one event for one endpoint and returns its delivery.
func (f *fixture) one(endpoint string) webhook.Delivery {
	f.t.Helper()
	f.endpoint("default", endpoint)
	e := event("default", "s", "for "+endpoint, "x")
	f.ingest(e)
	d, _ := f.getDelivery(e.Key, endpoint)
	return d
}

func TestRecordFollowsTheScheduleToItsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	for n := int64(1); ; n++ {
		rec := f.attempt(d, failing)
		r := f.record(rec)[0]
		got, attempts := f.getDelivery(d.Event, "a")
		if !r.Applied || !reflect.DeepEqual(r.Delivery, got) || int64(len(attempts)) != n {
			t.Fatalf("attempt %d: %+v, row %+v, %d attempts", n, r, got, len(attempts))
		}
		if want := rec.Attempt; !reflect.DeepEqual(attempts[n-1], want) {
			t.Fatalf("attempt %d is kept as\n%+v, want\n%+v", n, attempts[n-1], want)
		}
		if n == 10 {
			if got.State != webhook.DeliveryDead || got.Attempt != 10 || got.Reason != webhook.ReasonAttemptsExhausted || r.Next != nil {
				t.Fatalf("after the last attempt: %+v", got)
			}
			break
		}
		if got.State != webhook.DeliveryScheduled || got.Attempt != n+1 || r.Next == nil || r.Next.Key != got.Key() ||
			!r.Next.At.Equal(rec.Decision.NextAttemptAt) || r.Next.Queue != rec.Queue || got.LastStatus != 500 {
			t.Fatalf("attempt %d: %+v, %+v", n, r, got)
		}
		f.clock.set(got.NextAttemptAt)
		d = got
	}
	if row := f.row(d.Event); row.ExpireAt.IsZero() {
		t.Error("nothing is open, yet the event never expires")
	}
}

func TestRecordOfStaleLateAndRepeatedAttempts(t *testing.T) {
	t.Parallel()
	// Each case starts with a delivery whose first attempt failed: it is scheduled
	// at attempt 2, and gets one more record.
	later := func(r AttemptRecord) AttemptRecord {
		r.Attempt.StartedAt = r.Attempt.StartedAt.Add(time.Second) // another run of the same task
		return r
	}
	for _, c := range []struct {
		name     string
		record   func(f *fixture, first AttemptRecord, d webhook.Delivery) AttemptRecord
		applied  bool
		state    webhook.DeliveryState
		attempt  int64 // of the row, after
		attempts int   // in the history, after
	}{
		{"the same record again", func(_ *fixture, first AttemptRecord, _ webhook.Delivery) AttemptRecord { return first }, true, webhook.DeliveryScheduled, 2, 1},
		{"a late failure", func(_ *fixture, first AttemptRecord, _ webhook.Delivery) AttemptRecord { return later(first) }, false, webhook.DeliveryScheduled, 2, 1},
		{"a late success", func(f *fixture, first AttemptRecord, _ webhook.Delivery) AttemptRecord {
			r := later(first)
			r.Attempt.Outcome, r.Decision = delivered, webhook.Decision{State: webhook.DeliveryDelivered}
			return r
		}, true, webhook.DeliveryDelivered, 2, 2},
		{"a success of another generation", func(f *fixture, _ AttemptRecord, d webhook.Delivery) AttemptRecord {
			d.Generation = 2
			return f.attempt(d, delivered)
		}, false, webhook.DeliveryScheduled, 2, 1},
		{"the next attempt", func(f *fixture, _ AttemptRecord, d webhook.Delivery) AttemptRecord { return f.attempt(d, delivered) }, true, webhook.DeliveryDelivered, 2, 2},
		{"the next attempt under an older task", func(f *fixture, _ AttemptRecord, d webhook.Delivery) AttemptRecord {
			d.Task = 0
			return f.attempt(d, failing)
		}, true, webhook.DeliveryScheduled, 3, 2},
		{"another tenant's key", func(f *fixture, _ AttemptRecord, d webhook.Delivery) AttemptRecord {
			d.Tenant = "other"
			return f.attempt(d, delivered)
		}, false, webhook.DeliveryScheduled, 2, 1},
		{"an unknown endpoint", func(f *fixture, _ AttemptRecord, d webhook.Delivery) AttemptRecord {
			d.Endpoint = "nobody"
			return f.attempt(d, delivered)
		}, false, webhook.DeliveryScheduled, 2, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			d := f.one("a")
			first := f.attempt(d, failing)
			f.record(first)
			f.clock.move(time.Minute)
			second, _ := f.getDelivery(d.Event, "a")
			rec := c.record(f, first, second)
			for call := range 2 { // the second call repeats the first, and must change nothing
				r := f.record(rec)[0]
				got, attempts := f.getDelivery(d.Event, "a")
				if r.Applied != c.applied || got.State != c.state || got.Attempt != c.attempt || len(attempts) != c.attempts {
					t.Errorf("call %d: applied %v, %s at %d with %d attempts; want %v, %s, %d, %d", call, r.Applied, got.State, got.Attempt, len(attempts),
						c.applied, c.state, c.attempt, c.attempts)
				}
				own := rec.Attempt.Key.Tenant == "default" && rec.Attempt.Key.Endpoint == "a"
				if wantNext := own && c.state == webhook.DeliveryScheduled; (r.Next != nil) != wantNext || wantNext && r.Next.Key != got.Key() {
					t.Errorf("call %d: next %+v, want one: %v", call, r.Next, wantNext)
				}
			}
		})
	}
}

func TestRecordRepeatedInOneGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	rec := f.attempt(d, failing)
	out := f.record(rec, rec, rec)
	for i, r := range out {
		if !r.Applied || r.Next == nil || r.Next.Key.Attempt != 2 {
			t.Errorf("result %d: %+v", i, r)
		}
	}
	if _, attempts := f.getDelivery(d.Event, "a"); len(attempts) != 1 {
		t.Errorf("%d attempts, want 1", len(attempts))
	}
}

func TestRecordAfterACommitOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	l := &lossy{}
	f := newFixture(t, Options{}, l.option())
	for _, o := range []webhook.Outcome{failing, delivered, gone} {
		d := f.one(fmt.Sprint("e", o.Status))
		rec := f.attempt(d, o)
		l.n.Store(1)
		if _, err := f.Record(f.ctx, []AttemptRecord{rec}); !Transient(err) {
			t.Fatalf("error = %v, want a transient one", err)
		}
		r := f.record(rec)[0]
		if _, attempts := f.getDelivery(d.Event, d.Endpoint); !r.Applied || len(attempts) != 1 || (r.Next != nil) != (o == failing) {
			t.Errorf("%d: %+v with %d attempts", o.Status, r, len(attempts))
		}
	}
}

func TestRecordOfASuccessOnAHeldDelivery(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	rec := f.attempt(d, delivered)
	f.set("a", webhook.EndpointPaused)
	f.settle(d)
	r := f.record(rec)[0]
	got, attempts := f.getDelivery(d.Event, "a")
	if !r.Applied || got.State != webhook.DeliveryDelivered || got.Attempt != 1 || len(attempts) != 1 || attempts[0].Key.Attempt != 1 {
		t.Errorf("%+v, %+v, %+v", r, got, attempts)
	}
}

func TestRecordRefusesNonsense(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	for name, edit := range map[string]func(*AttemptRecord){
		"no start":          func(r *AttemptRecord) { r.Attempt.StartedAt = time.Time{} },
		"no endpoint":       func(r *AttemptRecord) { r.Attempt.Key.Endpoint = "" },
		"no decision":       func(r *AttemptRecord) { r.Decision = webhook.Decision{} },
		"skips an attempt":  func(r *AttemptRecord) { r.Decision.NextAttempt++ },
		"schedules no time": func(r *AttemptRecord) { r.Decision.NextAttemptAt = time.Time{} },
	} {
		rec := f.attempt(d, failing)
		edit(&rec)
		if _, err := f.Record(f.ctx, []AttemptRecord{rec}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What an endpoint answered never prevents the record of it (case H45).
func TestRecordKeepsWhateverTheEndpointSaid(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	rec := f.attempt(d, failing)
	rec.Attempt.Excerpt = noise(maxExcerpt + 1)
	rec.Attempt.Error = strings.Repeat("é", 5_000) + "\xff"
	rec.Attempt.URL = "https://x.example/" + strings.Repeat("a", 9_000)
	rec.Attempt.RemoteAddr = strings.Repeat("f", 500)
	rec.Attempt.Outcome.RetryAfter = 1<<63 - 1
	rec.Decision.Reason = strings.Repeat("r", 3_000)
	if r := f.record(rec)[0]; !r.Applied {
		t.Fatalf("%+v", r)
	}
	_, attempts := f.getDelivery(d.Event, "a")
	if a := attempts[0]; len(a.Excerpt) != maxExcerpt || !a.Truncated || len(a.Error) != 4096 || len(a.URL) != 4096 {
		t.Errorf("%d bytes of excerpt, truncated %v, error %d, URL %d", len(a.Excerpt), a.Truncated, len(a.Error), len(a.URL))
	}
}

func TestGoneDisablesTheEndpointOfThatTenantOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("other", "a")
	d := f.one("a")
	before := event("default", "s", "before", "x")
	f.ingest(before)
	f.clock.move(time.Minute)
	f.record(f.attempt(d, gone))
	ep, err := f.Endpoint(f.ctx, "default", "a")
	if err != nil || ep.State != webhook.EndpointDisabled || ep.StateReason != webhook.ReasonGone || !ep.StateSince.Equal(f.clock.now()) {
		t.Errorf("%+v, %v", ep, err)
	}
	if got, _ := f.getDelivery(d.Event, "a"); got.State != webhook.DeliveryHeld || got.Attempt != 1 {
		t.Errorf("%+v", got)
	}
	if ep, _ := f.Endpoint(f.ctx, "other", "a"); ep.State != webhook.EndpointActive {
		t.Errorf("the other tenant's endpoint is %s", ep.State)
	}
	// What was scheduled before is held when it comes up; what comes later at once.
	held, _ := f.getDelivery(before.Key, "a")
	if c, err := f.Claim(f.ctx, held.Key()); err != nil || c.Verdict != VerdictHeld || c.Reason != webhook.ReasonEndpointDisabled {
		t.Errorf("%+v, %v", c, err)
	}
	after := event("default", "s", "after", "x")
	if r := f.ingest(after)[0]; len(r.Tasks) != 0 {
		t.Errorf("%+v", r)
	}
	audit, _, err := f.ListAudit(f.ctx, "default", Page{})
	if err != nil || len(audit) != 2 || audit[0].Action != "endpoint.disable" || audit[0].Actor != "system" || audit[0].Target != "a" {
		t.Errorf("%+v, %v", audit, err)
	}
	f.record(f.attempt(d, gone)) // again: nothing more
	if again, _, _ := f.ListAudit(f.ctx, "default", Page{}); len(again) != 2 {
		t.Errorf("%d lines of audit", len(again))
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		key     func(webhook.AttemptKey) webhook.AttemptKey
		to      webhook.DeliveryState
		want    webhook.DeliveryState
		expires bool
	}{
		{"held", nil, webhook.DeliveryHeld, webhook.DeliveryHeld, false},
		{"cancelled", nil, webhook.DeliveryCancelled, webhook.DeliveryCancelled, true},
		{"another attempt", func(k webhook.AttemptKey) webhook.AttemptKey { k.Attempt = 2; return k }, webhook.DeliveryCancelled, webhook.DeliveryScheduled, false},
		{"another generation", func(k webhook.AttemptKey) webhook.AttemptKey { k.Generation = 2; return k }, webhook.DeliveryHeld, webhook.DeliveryScheduled, false},
		{"another tenant", func(k webhook.AttemptKey) webhook.AttemptKey { k.Tenant = "other"; return k }, webhook.DeliveryHeld, webhook.DeliveryScheduled, false},
		{"no such delivery", func(k webhook.AttemptKey) webhook.AttemptKey { k.Endpoint = "none"; return k }, webhook.DeliveryHeld, webhook.DeliveryScheduled, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			d := f.one("a")
			k := d.Key()
			if c.key != nil {
				k = c.key(k)
			}
			if c.to == webhook.DeliveryHeld {
				f.set("a", webhook.EndpointPaused)
			}
			for range 2 {
				if settled, err := f.Settle(f.ctx, k, c.to, webhook.ReasonEndpointPaused); err != nil || !settled {
					t.Fatal(settled, err)
				}
			}
			got, _ := f.getDelivery(d.Event, "a")
			if got.State != c.want || got.State != webhook.DeliveryScheduled && (got.Reason != webhook.ReasonEndpointPaused || got.Attempt != 0 || !got.NextAttemptAt.IsZero()) {
				t.Errorf("%+v, want %s", got, c.want)
			}
			if row := f.row(d.Event); row.ExpireAt.IsZero() == c.expires {
				t.Errorf("expires at %s, want any: %v", row.ExpireAt, c.expires)
			}
		})
	}
	f := newFixture(t, Options{})
	if _, err := f.Settle(f.ctx, webhook.AttemptKey{}, webhook.DeliveryDelivered, ""); !errors.Is(err, ErrInvalid) {
		t.Errorf("settled as delivered: %v", err)
	}
}

func TestClaimVerdicts(t *testing.T) {
	t.Parallel()
	same := func(k webhook.AttemptKey) webhook.AttemptKey { return k }
	for _, c := range []struct {
		name    string
		prepare func(f *fixture, d webhook.Delivery)
		key     func(webhook.AttemptKey) webhook.AttemptKey
		want    Verdict
		reason  string
		current int64 // attempt of the current task; 0 if there is to be none
	}{
		{"as planned", nil, same, VerdictRun, "", 0},
		{"a newer task", nil, func(k webhook.AttemptKey) webhook.AttemptKey { k.Task = 5; return k }, VerdictRun, "", 0},
		{"an older task", nil, func(k webhook.AttemptKey) webhook.AttemptKey { k.Task = 0; return k }, VerdictStale, "", 1},
		{"an earlier attempt", func(f *fixture, d webhook.Delivery) { f.record(f.attempt(d, failing)) }, same, VerdictStale, "", 2},
		{"a later attempt", nil, func(k webhook.AttemptKey) webhook.AttemptKey { k.Attempt = 2; return k }, VerdictStale, "", 1},
		{"another generation", nil, func(k webhook.AttemptKey) webhook.AttemptKey { k.Generation = 2; return k }, VerdictStale, "", 1},
		{"delivered", func(f *fixture, d webhook.Delivery) { f.record(f.attempt(d, delivered)) }, same, VerdictStale, "", 0},
		{"held before", func(f *fixture, d webhook.Delivery) { f.set("a", webhook.EndpointPaused); f.settle(d) }, same, VerdictStale, "", 0},
		{"endpoint paused", func(f *fixture, d webhook.Delivery) { f.set("a", webhook.EndpointPaused) }, same, VerdictHeld, webhook.ReasonEndpointPaused, 0},
		{"breaker open", func(f *fixture, d webhook.Delivery) { f.trip("a") }, same, VerdictHeld, webhook.ReasonBreakerOpen, 0},
		{"cool-down over", func(f *fixture, d webhook.Delivery) { f.trip("a"); f.clock.move(2 * time.Minute) }, same, VerdictProbe, "", 0},
		{"throttled", func(f *fixture, d webhook.Delivery) {
			f.after("a", webhook.Outcome{Class: webhook.ClassStatus, Status: 503})
		}, same, VerdictLater, webhook.ReasonThrottled, 0},
		{"another tenant", nil, func(k webhook.AttemptKey) webhook.AttemptKey { k.Tenant = "other"; return k }, VerdictGone, "", 0},
		{"unknown endpoint", nil, func(k webhook.AttemptKey) webhook.AttemptKey { k.Endpoint = "none"; return k }, VerdictGone, "", 0},
		{"unknown event", nil, func(k webhook.AttemptKey) webhook.AttemptKey { k.Event[0]++; return k }, VerdictGone, "", 0},
		{"endpoint disabled", func(f *fixture, d webhook.Delivery) {
			other := event("default", "s", "2", "x")
			f.ingest(other)
			o, _ := f.getDelivery(other.Key, "a")
			f.record(f.attempt(o, gone))
		}, same, VerdictHeld, webhook.ReasonEndpointDisabled, 0},
		{"endpoint deleted", func(f *fixture, d webhook.Delivery) {
			_ = f.changeEndpoint(f.ctx, "test", "default", "a", -1, func(ep *webhook.Endpoint, now time.Time) (*mutation, bool) {
				ep.State = webhook.EndpointDeleted // as DeleteEndpoint does, before it comes to cancel
				return nil, true
			})
		}, same, VerdictCancelled, webhook.ReasonEndpointDeleted, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			d := f.one("a")
			if c.prepare != nil {
				c.prepare(f, d)
			}
			got, err := f.Claim(f.ctx, c.key(d.Key()))
			if err != nil {
				t.Fatal(err)
			}
			if got.Verdict != c.want || got.Reason != c.reason {
				t.Fatalf("%s (%s), want %s (%s)", got.Verdict, got.Reason, c.want, c.reason)
			}
			if (got.Current != nil) != (c.current > 0) || got.Current != nil && (got.Current.Key.Attempt != c.current || got.Current.Queue.Own != "q-a") {
				t.Errorf("current task %+v, want attempt %d", got.Current, c.current)
			}
			if c.want == VerdictRun && (got.Unpack() != nil || got.Endpoint.URL == "" || len(got.Keys) != 1 || string(got.Event.Body) != `{"id":"for a"}` || got.Delivery.Key() != d.Key()) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// The test reads the expunged payload strongly: what a recent read may still show
// for two seconds is not what is tested.
func TestClaimOfAnExpungedEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	for range 2 {
		if err := f.Expunge(f.ctx, "default", d.Event, "tester"); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Expunge(f.ctx, "other", d.Event, "tester"); !errors.Is(err, ErrNotFound) {
		t.Errorf("another tenant expunges: %v", err)
	}
	if _, err := f.Payload(f.ctx, "default", d.Event); !errors.Is(err, ErrNotFound) {
		t.Errorf("payload: %v", err)
	}
	row := f.row(d.Event)
	if !row.ExpungedAt.Equal(t0) || row.Size == 0 {
		t.Errorf("%+v", row)
	}
	if r := f.ingest(event("default", "s", "for a", "x"))[0]; !r.Duplicate {
		t.Errorf("the row no longer tells duplicates: %+v", r)
	}
	ev, err := f.storedEvent(f.ctx, "default", d.Event, strong)
	if err != nil || ev == nil || ev.body != nil {
		t.Errorf("%+v, %v", ev, err)
	}
	// Closing the event does not need its payload.
	f.record(f.attempt(d, delivered))
	if row := f.row(d.Event); row.ExpireAt.IsZero() {
		t.Error("never expires")
	}
}

func TestClaimSeesChangesWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	other := f.open(Options{}) // another process, with a cache of its own
	claim := func() Verdict {
		c, err := other.Claim(f.ctx, d.Key())
		if err != nil {
			t.Fatal(err)
		}
		return c.Verdict
	}
	if v := claim(); v != VerdictRun {
		t.Fatal(v)
	}
	if err := f.changeEndpoint(f.ctx, "test", "default", "a", 0, func(ep *webhook.Endpoint, _ time.Time) (*mutation, bool) {
		ep.State = webhook.EndpointDisabled
		return nil, true
	}); err != nil {
		t.Fatal(err)
	}
	f.clock.move(cardAge - 1)
	if v := claim(); v != VerdictRun {
		t.Errorf("within two seconds: %s", v)
	}
	f.clock.move(1)
	if v := claim(); v != VerdictHeld {
		t.Errorf("after two seconds: %s", v)
	}
	// The process that made the change sees it at once.
	if c, err := f.Claim(f.ctx, d.Key()); err != nil || c.Verdict != VerdictHeld {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for _, c := range []struct {
		name             string
		received, closed time.Duration // after t0
		payload, row     time.Duration // after t0
	}{
		{"at once", 0, 0, 30 * day, 45 * day},
		{"late receipt", -10 * day, 0, 20 * day, 35 * day},
		{"old payload", -29*day - time.Hour, 0, 1 * day, 32 * day},
		{"older than everything", -60 * day, 0, day, 32 * day},
		{"closed late", 0, 44*day + time.Hour, 45*day + time.Hour, 76*day + time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Options{})
			f.endpoint("default", "a")
			e, lone := event("default", "s", "1", "x"), event("nobody", "s", "1", "x")
			e.ReceivedAt, lone.ReceivedAt = t0.Add(c.received), t0.Add(c.received)
			f.ingest(e)
			if row := f.row(e.Key); !row.ExpireAt.IsZero() {
				t.Fatalf("open, yet expires at %s", row.ExpireAt)
			}
			f.clock.set(t0.Add(c.closed))
			d, _ := f.getDelivery(e.Key, "a")
			f.record(f.attempt(d, delivered))
			f.ingest(lone) // closed from the start
			for _, k := range []webhook.EventKey{e.Key, lone.Key} {
				var row eventRow
				var body payloadRow
				f.read("Events", k, eventColumns, &row)
				f.read("Payloads", k, payloadColumns, &body)
				if got := row.ExpireAt.Time.Sub(t0); got != c.row {
					t.Errorf("the row of %s expires after %s, want %s", k, got, c.row)
				}
				if got := body.ExpireAt.Time.Sub(t0); got != c.payload {
					t.Errorf("the payload of %s expires after %s, want %s", k, got, c.payload)
				}
			}
			// Spanner deletes later; until then reads leave it out.
			f.clock.set(t0.Add(c.row - 1))
			f.row(e.Key)
			f.clock.set(t0.Add(c.payload))
			if _, err := f.Payload(f.ctx, "default", e.Key); !errors.Is(err, ErrNotFound) {
				t.Errorf("payload at its end: %v", err)
			}
			f.clock.set(t0.Add(c.row))
			if _, err := f.Event(f.ctx, "default", e.Key); !errors.Is(err, ErrNotFound) {
				t.Errorf("row at its end: %v", err)
			}
			if _, _, err := f.Delivery(f.ctx, "default", e.Key, "a"); !errors.Is(err, ErrNotFound) {
				t.Errorf("delivery at its event's end: %v", err)
			}
			for name, n := range f.listed("default", e.Key) {
				if n != 0 {
					t.Errorf("%s still shows %d", name, n)
				}
			}
			if c, err := f.Claim(f.ctx, d.Key()); err != nil || c.Verdict != VerdictGone {
				t.Errorf("claim: %+v, %v", c, err)
			}
		})
	}
}

// Many closers at once: the event stays open until the last, and then is not.
func TestConcurrentClosersCloseTheEventOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoints("default", 20)
	e := event("default", "s", "1", "x")
	f.ingest(e)
	var wg sync.WaitGroup
	closeOne := func(i int) {
		d, _ := f.getDelivery(e.Key, fmt.Sprintf("ep-%05d", i))
		var err error
		switch i % 3 {
		case 0:
			_, err = f.Record(f.ctx, []AttemptRecord{f.attempt(d, delivered)})
		case 1:
			_, err = f.Settle(f.ctx, d.Key(), webhook.DeliveryCancelled, "")
		case 2:
			_, err = f.DeleteEndpoint(f.ctx, "default", d.Endpoint, "tester")
		}
		if err != nil {
			t.Error(err)
		}
	}
	for i := range 19 {
		wg.Go(func() { closeOne(i) })
	}
	wg.Wait()
	if row := f.row(e.Key); !row.ExpireAt.IsZero() {
		t.Fatalf("one is open, yet the event expires at %s", row.ExpireAt)
	}
	d, _ := f.getDelivery(e.Key, "ep-00019")
	f.record(f.attempt(d, failing))
	if row := f.row(e.Key); !row.ExpireAt.IsZero() {
		t.Fatal("a retry is open")
	}
	d, _ = f.getDelivery(e.Key, "ep-00019")
	f.record(f.attempt(d, delivered))
	if row := f.row(e.Key); row.ExpireAt.IsZero() {
		t.Fatal("never expires")
	}

	// All of another event's at the very same time.
	for i := range 8 {
		f.endpoint("other", fmt.Sprint("e", i))
	}
	e = event("other", "s", "1", "x")
	for _, task := range f.ingest(e)[0].Tasks {
		wg.Go(func() {
			d, _, err := f.Delivery(f.ctx, "other", e.Key, task.Key.Endpoint)
			if err == nil {
				_, err = f.Record(f.ctx, []AttemptRecord{f.attempt(d, delivered)})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if row, err := f.Event(f.ctx, "other", e.Key); err != nil || row.ExpireAt.IsZero() {
		t.Fatalf("%+v, %v", row, err)
	}
}

// A group that ends deliveries of wide events asks about each, though one limited
// read cannot answer for all.
func TestOpenBesidesBeyondItsLimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoints("default", 150)
	var recs []AttemptRecord
	var keys []webhook.EventKey
	for _, e := range events(4) {
		f.ingest(e)
		keys = append(keys, e.Key)
	}
	last := keys[3]
	for i := range 150 {
		d, _ := f.getDelivery(last, fmt.Sprintf("ep-%05d", i))
		if i > 0 {
			f.record(f.attempt(d, delivered))
			continue
		}
		recs = append(recs, f.attempt(d, delivered)) // all but this one are closed
	}
	for _, k := range keys[:3] {
		d, _ := f.getDelivery(k, "ep-00000")
		recs = append(recs, f.attempt(d, delivered))
	}
	f.record(recs...)
	for i, k := range keys {
		if row := f.row(k); row.ExpireAt.IsZero() == (k == last) {
			t.Errorf("event %d expires at %s, though it is the closed one: %v", i, row.ExpireAt, k == last)
		}
	}
}

func TestOverdue(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.ingest(events(40)...) // over all shards
	f.clock.move(time.Hour)
	late := event("default", "s", "late", "x")
	f.ingest(late)
	d, _ := f.getDelivery(events(1)[0].Key, "a")
	f.record(f.attempt(d, delivered))
	for _, c := range []struct {
		before time.Time
		limit  int
		want   int
	}{
		{t0, 100, 0},
		{t0.Add(1), 100, 39},
		{t0.Add(1), 7, 7},
		{t0.Add(time.Hour), 100, 39},
		{t0.Add(time.Hour + 1), 100, 40},
		{t0.Add(time.Hour), 0, 0},
	} {
		got, err := f.Overdue(f.ctx, c.before, c.limit)
		if err != nil || len(got) != c.want {
			t.Errorf("before %s, at most %d: %d, %v; want %d", c.before, c.limit, len(got), err, c.want)
		}
		for i, task := range got {
			if i > 0 && task.At.Before(got[i-1].At) || task.Queue.Own != "q-a" || task.Key.Attempt != 1 || task.Key.Tenant != "default" {
				t.Errorf("task %d: %+v", i, task)
			}
		}
	}
}

// The task of a test or a probe, made anew, does not go to the endpoint's own queue
// either: that may be paused.
func TestOverdueGoesAroundAPausedQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	if err := f.MarkQueueReady(f.ctx, "default", "a", "q-a"); err != nil {
		t.Fatal(err)
	}
	f.clock.move(time.Minute)
	f.ingest(event("default", "s", "1", "x"))
	if _, err := f.CreateTest(f.ctx, "default", "a", event("default", "s", "try", webhook.TypeTest)); err != nil {
		t.Fatal(err)
	}
	f.clock.move(time.Minute)
	got, err := f.Overdue(f.ctx, f.clock.now(), 10)
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, task := range got {
		if test := task.Key.Event == event("default", "s", "try", "").Key; task.Direct != test || task.InOwnQueue() == test {
			t.Errorf("test: %v, task %+v", test, task)
		}
	}
}

// An endpoint that answers a probe with 410 is disabled; the delivery is no probe when
// it is sent again.
func TestGoneProbeIsAnOrdinaryDeliveryAfter(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	f.trip("a")
	f.settle(d)
	f.clock.move(2 * time.Minute)
	p, err := f.StartProbe(f.ctx, webhook.Control{Kind: webhook.ControlProbe, Tenant: "default", Endpoint: "a", Epoch: f.health("a").Epoch})
	if err != nil || !p.Started || p.Task.Key.Event != d.Event {
		t.Fatalf("%+v, %v", p, err)
	}
	d, _ = f.getDelivery(d.Event, "a")
	f.record(f.attempt(d, webhook.Outcome{Class: webhook.ClassStatus, Status: 410}))
	if d, as := f.getDelivery(d.Event, "a"); d.State != webhook.DeliveryHeld || d.Trigger != webhook.TriggerAutomatic || as[0].Trigger != webhook.TriggerProbe {
		t.Errorf("after 410: %+v, %+v", d, as)
	}
}

// The exchange of a test is kept whole; other attempts have none.
func TestRecordKeepsAnExchange(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	rec := f.attempt(d, delivered)
	rec.Attempt.Exchange = &webhook.Exchange{Protocol: "HTTP/2.0", TLS: "TLS 1.3",
		Request:  webhook.ExchangeRequest{Method: "POST", URL: "https://hooks.example.com/", Headers: []webhook.Header{{Name: "X-A", Value: "b"}}, Body: []byte("{\xff}"), BodySize: 3},
		Response: &webhook.ExchangeResponse{Status: 200, Headers: []webhook.Header{}, Body: []byte("ok")}}
	f.record(rec)
	if _, attempts := f.getDelivery(d.Event, "a"); len(attempts) != 1 || !reflect.DeepEqual(attempts[0].Exchange, rec.Attempt.Exchange) {
		t.Errorf("kept as %+v", attempts)
	}
}
