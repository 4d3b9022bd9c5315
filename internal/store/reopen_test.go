package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// again is a repeat of e that came now, under a receipt of its own.
func (f *fixture) again(e webhook.Event, receipt string) webhook.Event {
	e.Receipt, e.ReceivedAt = receipt, f.clock.now()
	return e
}

// end makes the delivery's next attempt the last one, a second later.
func (f *fixture) end(k webhook.EventKey, endpoint string, as webhook.DeliveryState) {
	f.t.Helper()
	f.clock.move(time.Second)
	d, _ := f.getDelivery(k, endpoint)
	rec := f.attempt(d, failing)
	rec.Decision = webhook.Decision{State: as, Reason: "tested"}
	if got := f.record(rec); !got[0].Applied || got[0].Delivery.State != as {
		f.t.Fatalf("%s: %+v", endpoint, got[0])
	}
	f.clock.move(time.Second)
}

// A provider's repeat re-opens what is dead, and nothing else.
func TestRepeatReopensDeadDeliveries(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for _, id := range []string{"dead", "delivered", "held", "cancelled", "open", "removed"} {
		f.endpoint("default", id)
	}
	e := event("default", "github", "1", "push")
	f.ingest(e)
	f.end(e.Key, "dead", webhook.DeliveryDead)
	f.end(e.Key, "removed", webhook.DeliveryDead)
	f.end(e.Key, "delivered", webhook.DeliveryDelivered)
	f.end(e.Key, "held", webhook.DeliveryHeld)
	f.end(e.Key, "cancelled", webhook.DeliveryCancelled)
	if _, err := f.DeleteEndpoint(f.ctx, "default", "removed", "tester"); err != nil {
		t.Fatal(err)
	}
	before := map[string]webhook.Delivery{}
	for _, id := range []string{"delivered", "held", "cancelled", "open", "removed"} {
		before[id], _ = f.getDelivery(e.Key, id)
	}
	got := f.ingest(f.again(e, "r2"))[0]
	if !got.Duplicate || got.Redelivery || got.Reopened != 1 || len(got.Tasks) != 2 { // dead's and open's
		t.Errorf("%+v", got)
	}
	d, attempts := f.getDelivery(e.Key, "dead")
	now := f.clock.now()
	if d.State != webhook.DeliveryScheduled || d.Generation != 2 || d.Attempt != 1 || d.Task != 1 || d.Trigger != webhook.TriggerProviderRedelivery ||
		d.Reason != "" || !d.StartedAt.Equal(now) || !d.NextAttemptAt.Equal(now) || len(attempts) != 1 {
		t.Errorf("re-opened: %+v, %d attempts", d, len(attempts))
	}
	for id, was := range before {
		if d, _ := f.getDelivery(e.Key, id); d != was {
			t.Errorf("%s was %+v, is %+v", id, was, d)
		}
	}
	if tasks, err := f.Overdue(f.ctx, now.Add(time.Minute), 10); err != nil || len(tasks) != 2 {
		t.Errorf("the sweep sees %d tasks, %v", len(tasks), err)
	}
	// The history shows who asked, and goes on as any other.
	f.record(f.attempt(d, failing))
	d, attempts = f.getDelivery(e.Key, "dead")
	if len(attempts) != 2 || attempts[1].Trigger != webhook.TriggerProviderRedelivery || attempts[1].Key.Generation != 2 || attempts[1].Key.Attempt != 1 ||
		d.Attempt != 2 || d.Trigger != webhook.TriggerAutomatic {
		t.Errorf("after an attempt: %+v, %+v", d, attempts)
	}
	if row := f.row(e.Key); row.Duplicates != 1 {
		t.Errorf("%d duplicates counted", row.Duplicates)
	}
}

// Neither event nor payload expires while a re-opened delivery is open; both do
// once it has ended.
func TestReopeningStopsTheRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	e := event("default", "github", "1", "push")
	f.ingest(e)
	expiry := func() (row, payload bool) {
		var p payloadRow
		f.read("Payloads", e.Key, []string{"ExpireAt"}, &p)
		return !f.row(e.Key).ExpireAt.IsZero(), p.ExpireAt.Valid
	}
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"new", func() {}, false},
		{"dead", func() { f.end(e.Key, "a", webhook.DeliveryDead) }, true},
		{"re-opened", func() { f.ingest(f.again(e, "r2")) }, false},
		{"delivered", func() { f.end(e.Key, "a", webhook.DeliveryDelivered) }, true},
		{"repeated", func() { f.ingest(f.again(e, "r3")) }, true},
	} {
		step.do()
		if row, payload := expiry(); row != step.want || payload != step.want {
			t.Errorf("%s: the row expires: %v, the payload: %v; want %v", step.what, row, payload, step.want)
		}
	}
}

// Once per receipt, in whatever order and company Pub/Sub brings it again.
func TestReopeningIsIdempotentPerReceipt(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.patient("a")
	e := event("default", "github", "1", "push")
	f.ingest(e)
	generation := func() int64 {
		d, _ := f.getDelivery(e.Key, "a")
		return d.Generation
	}
	f.end(e.Key, "a", webhook.DeliveryDead)
	r2 := f.again(e, "r2")
	f.ingest(r2)
	f.ingest(r2)                            // its task was not made
	f.end(e.Key, "a", webhook.DeliveryDead) // generation 2
	if f.ingest(r2); generation() != 2 || f.row(e.Key).ExpireAt.IsZero() {
		t.Fatalf("the same receipt re-opened again: generation %d", generation())
	}
	early := f.again(e, "early") // waits in Pub/Sub
	f.clock.move(time.Second)
	r3 := f.again(e, "r3")
	if got := f.ingest(r3); got[0].Reopened != 1 {
		t.Fatalf("another receipt: %+v", got)
	}
	f.end(e.Key, "a", webhook.DeliveryDead) // generation 3
	// Receipts alternate; one comes late that was received before the last death; the
	// first comes again; one has a clock that runs ahead.
	ahead := f.again(e, "r2")
	ahead.ReceivedAt = f.clock.now().Add(time.Hour)
	first := f.again(e, e.Receipt)
	f.ingest(r2)
	f.ingest(r3)
	f.ingest(r2, r3, early, first, ahead)
	if generation() != 3 {
		t.Fatalf("re-opened by what came before: generation %d", generation())
	}
	// Several in one group re-open once, and are all spent.
	got := f.ingest(r2, f.again(e, "r4"), f.again(e, "r5"), f.again(e, "r4"))
	if generation() != 4 || got[0].Reopened != 1 || got[1].Reopened+got[2].Reopened+got[3].Reopened != 0 || len(got[3].Tasks) != 1 {
		t.Fatalf("generation %d, %+v", generation(), got)
	}
	f.end(e.Key, "a", webhook.DeliveryDead)
	late := f.again(e, "r5")
	if f.ingest(late); generation() != 4 {
		t.Errorf("a receipt of a group re-opened again: generation %d", generation())
	}
	// Every receipt is one more generation, up to a bound; r4 and r5 shared one.
	for i := range maxReopenings + 5 {
		f.ingest(f.again(e, fmt.Sprint("more ", i)))
		if d, _ := f.getDelivery(e.Key, "a"); d.State == webhook.DeliveryScheduled {
			f.end(e.Key, "a", webhook.DeliveryDead)
		}
	}
	if generation() != maxReopenings {
		t.Errorf("generation %d after %d receipts and more", generation(), maxReopenings)
	}
}

// Repeats that come at once, through several processes, re-open once.
func TestConcurrentRepeatsReopenOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.endpoint("default", "b")
	e := event("default", "github", "1", "push")
	f.ingest(e)
	f.end(e.Key, "a", webhook.DeliveryDead)
	f.end(e.Key, "b", webhook.DeliveryDead)
	var wg sync.WaitGroup
	for _, s := range []*Store{f.Store, f.open(Options{})} {
		b := NewBatcher(BatcherOptions[webhook.Event]{MaxItems: 4, Concurrency: 2}, s.Ingest)
		t.Cleanup(b.Close)
		for i := range 15 {
			again := f.again(e, fmt.Sprint("r", i%20)) // some are redelivered to the other
			wg.Go(func() {
				if r, err := b.Do(f.ctx, again); err != nil || len(r.Tasks) != 2 {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
	}
	wg.Wait()
	for _, id := range []string{"a", "b"} {
		if d, _ := f.getDelivery(e.Key, id); d.Generation != 2 || d.State != webhook.DeliveryScheduled {
			t.Errorf("%+v", d)
		}
	}
}

func TestWhatReopensNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{Retention: Retention{Payload: 5 * 24 * time.Hour}})
	f.endpoint("default", "a")
	f.patient("a")
	for _, c := range []struct {
		name, source string
		prepare      func(k webhook.EventKey)
		want         int
	}{
		{"an inbound source", "github", func(webhook.EventKey) {}, 1},
		{"an application", "app", func(webhook.EventKey) {}, 0},
		{"an application with a source", "app:/orders", func(webhook.EventKey) {}, 0},
		{"just before the payload's end", "github", func(webhook.EventKey) { f.clock.move(5*24*time.Hour - 10*time.Minute) }, 1},
		{"at the payload's end", "github", func(webhook.EventKey) { f.clock.move(5 * 24 * time.Hour) }, 0},
		{"payload expunged", "github", func(k webhook.EventKey) {
			if err := f.Expunge(f.ctx, "default", k, "tester"); err != nil {
				f.t.Fatal(err)
			}
		}, 0},
	} {
		e := event("default", c.source, c.name, "x")
		e.ReceivedAt = f.clock.now()
		f.ingest(e)
		f.end(e.Key, "a", webhook.DeliveryDead)
		c.prepare(e.Key)
		got := f.ingest(f.again(e, "again"))[0]
		d, _ := f.getDelivery(e.Key, "a")
		if got.Reopened != c.want || !got.Duplicate || (d.State == webhook.DeliveryScheduled) != (c.want == 1) {
			t.Errorf("%s: %+v, %+v", c.name, got, d)
		}
	}
	// Another tenant's event of the same source and id is another event.
	e := event("default", "github", "tenants", "x")
	f.ingest(e)
	f.end(e.Key, "a", webhook.DeliveryDead)
	other := event("other", "github", "tenants", "x")
	other.ReceivedAt = f.clock.now()
	if got := f.ingest(other)[0]; got.Duplicate || got.Reopened != 0 {
		t.Errorf("%+v", got)
	}
}

// A disabled endpoint's deliveries wait for its release, as new ones do.
func TestReopeningForADisabledEndpoint(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	e, other := event("default", "github", "1", "x"), event("default", "github", "2", "x")
	f.ingest(e, other)
	f.end(e.Key, "a", webhook.DeliveryDead)
	d, _ := f.getDelivery(other.Key, "a")
	f.record(f.attempt(d, gone)) // disables it
	f.clock.move(time.Second)
	got := f.ingest(f.again(e, "r2"))[0]
	d, _ = f.getDelivery(e.Key, "a")
	if got.Reopened != 1 || len(got.Tasks) != 0 || d.State != webhook.DeliveryHeld || d.Reason != webhook.ReasonEndpointDisabled || d.Generation != 2 ||
		d.Attempt != 0 || !f.row(e.Key).ExpireAt.IsZero() {
		t.Errorf("%+v, %+v", got, d)
	}
}

// More dead deliveries than one transaction holds.
func TestReopeningInChunks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	const n = reopenChunk + 7
	f.endpoints("default", n)
	e := event("default", "github", "1", "x")
	r := f.ingest(e)[0]
	f.clock.move(time.Second)
	var recs []AttemptRecord
	for _, task := range r.Tasks {
		rec := f.attempt(webhook.Delivery{Event: e.Key, Tenant: "default", Endpoint: task.Key.Endpoint, State: webhook.DeliveryScheduled, Generation: 1, Attempt: 1, Task: 1,
			Trigger: webhook.TriggerAutomatic, StartedAt: t0}, failing)
		rec.Decision = webhook.Decision{State: webhook.DeliveryDead}
		recs = append(recs, rec)
	}
	f.record(recs...)
	f.clock.move(time.Second)
	r2 := f.again(e, "r2")
	if got := f.ingest(r2)[0]; got.Reopened != n || len(got.Tasks) != n {
		t.Fatalf("%d re-opened, %d tasks; want %d", got.Reopened, len(got.Tasks), n)
	}
	if got := f.ingest(r2)[0]; got.Reopened != 0 || len(got.Tasks) != n {
		t.Errorf("again: %d re-opened, %d tasks", got.Reopened, len(got.Tasks))
	}
}

// stopping ends a call at the n-th commit from when it is armed: before it, or
// after it, as a crash would.
type stopping struct {
	mu     sync.Mutex
	n      int
	commit bool // the commit happens
}

func (s *stopping) arm(n int, commit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n, s.commit = n, commit
}

func (s *stopping) option() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if !strings.HasSuffix(method, "/Commit") {
			return call(ctx, method, req, reply, cc, opts...)
		}
		s.mu.Lock()
		s.n--
		now, commit := s.n == 0, s.commit
		s.mu.Unlock()
		if now && !commit {
			return status.Error(codes.PermissionDenied, "injected: stopped before the commit")
		}
		err := call(ctx, method, req, reply, cc, opts...)
		if now && err == nil {
			return status.Error(codes.DeadlineExceeded, "injected: stopped after the commit")
		}
		return err
	}))
}

// Whoever takes a repeat may stop at any commit: its redelivery completes the work,
// once.
func TestReopeningSurvivesStops(t *testing.T) {
	t.Parallel()
	s := &stopping{}
	f := newFixture(t, Options{}, s.option())
	f.endpoints("default", 1)
	for _, c := range []struct {
		name   string
		commit int // 1 counts the duplicate, 2 re-opens
		done   bool
		want   int // re-opened by the redelivery
	}{
		{"before it is counted", 1, false, 1},
		{"after it is counted", 1, true, 1},
		{"before it is re-opened", 2, false, 1},
		{"after it is re-opened", 2, true, 0},
	} {
		e := event("default", "github", c.name, "x")
		f.ingest(e)
		f.end(e.Key, "ep-00000", webhook.DeliveryDead)
		r2 := f.again(e, "r2")
		s.arm(c.commit, c.done)
		if _, err := f.Ingest(f.ctx, []webhook.Event{r2}); err == nil {
			t.Fatalf("%s: no error", c.name)
		}
		got := f.ingest(r2)[0]
		d, _ := f.getDelivery(e.Key, "ep-00000")
		if got.Reopened != c.want || len(got.Tasks) != 1 || d.Generation != 2 || d.State != webhook.DeliveryScheduled || f.row(e.Key).Duplicates != 1 {
			t.Errorf("%s: %+v, %+v", c.name, got, d)
		}
	}
}
