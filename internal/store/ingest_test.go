package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestIngestMatchesAndPlans(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "all")
	f.endpoint("default", "invoices", "invoice.*")
	f.endpoint("default", "orders", "order.*")
	f.endpoint("other", "all")
	rejected := event("default", "s", "3", "invoice.paid")
	rejected.Rejection = "no amount"
	got := f.ingest(event("default", "s", "1", "invoice.paid"), event("other", "s", "1", "x"), event("nobody", "s", "1", "x"), rejected)
	for i, want := range []struct {
		state webhook.EventState
		tasks []string
	}{
		{webhook.EventAccepted, []string{"all", "invoices"}},
		{webhook.EventAccepted, []string{"all"}},
		{webhook.EventUnmatched, nil},
		{webhook.EventRejected, nil},
	} {
		r := got[i]
		if r.State != want.state || r.Duplicate || r.More || len(r.Tasks) != len(want.tasks) {
			t.Errorf("event %d: %+v, want %+v", i, r, want)
			continue
		}
		for j, task := range r.Tasks {
			if task.Key.Endpoint != want.tasks[j] || !task.At.Equal(t0) || task.Queue.Own != "q-"+want.tasks[j] ||
				task.Key.Generation != 1 || task.Key.Attempt != 1 || task.Key.Task != 1 {
				t.Errorf("event %d: task %+v", i, task)
			}
		}
	}
	again := f.ingest(event("default", "s", "1", "invoice.paid"))[0]
	if !again.Duplicate || !again.Redelivery || len(again.Tasks) != 2 || again.Tasks[0] != got[0].Tasks[0] {
		t.Errorf("again: %+v", again)
	}
}

func TestIngestCountsDuplicatesOncePerReceipt(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	with := func(receipt string) webhook.Event {
		e := event("default", "s", "1", "x")
		e.Receipt = receipt
		return e
	}
	// In one group: an event, its redelivery, and a repeat by the publisher.
	got := f.ingest(with("a"), with("a"), with("b"))
	for i, want := range []struct{ duplicate, redelivery bool }{{false, false}, {true, true}, {true, false}} {
		if got[i].Duplicate != want.duplicate || got[i].Redelivery != want.redelivery || got[i].State != webhook.EventUnmatched {
			t.Errorf("result %d: %+v, want %+v", i, got[i], want)
		}
	}
	k := got[0].Key
	for _, step := range []struct {
		receipts []string
		want     int64
	}{
		{nil, 1},
		{[]string{"a"}, 1},           // redelivery of the first
		{[]string{"b"}, 1},           // redelivery of the repeat
		{[]string{"c"}, 2},           // another repeat
		{[]string{"d", "a", "d"}, 3}, // in a group
	} {
		f.clock.move(time.Minute)
		for _, r := range step.receipts {
			f.ingest(with(r))
		}
		row := f.row(k)
		if row.Duplicates != step.want {
			t.Errorf("after %v: %d duplicates, want %d", step.receipts, row.Duplicates, step.want)
		}
	}
	if row := f.row(k); !row.LastDuplicateAt.Equal(f.clock.now()) || row.Receipt != "a" {
		t.Errorf("row: %+v", row)
	}
}

// Fifty posts of one event at once, as the worker sees them.
func TestConcurrentRepeatsAreOneEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.endpoint("default", "b")
	// Two processes, each grouping what it gets.
	var firsts, tasks atomic.Int64
	var wg sync.WaitGroup
	for _, s := range []*Store{f.Store, f.open(Options{})} {
		b := NewBatcher(BatcherOptions[webhook.Event]{MaxItems: 20, Concurrency: 2}, s.Ingest)
		t.Cleanup(b.Close)
		for i := range 25 {
			wg.Go(func() {
				e := event("default", "stripe", "evt", "invoice.paid")
				e.Receipt = fmt.Sprint("receipt ", i)
				r, err := b.Do(f.ctx, e)
				if err != nil {
					t.Error(err)
				}
				if !r.Duplicate {
					firsts.Add(1)
				}
				if len(r.Tasks) == 2 {
					tasks.Add(1)
				}
			})
		}
	}
	wg.Wait()
	if firsts.Load() != 1 || tasks.Load() != 50 {
		t.Errorf("%d firsts and %d with tasks, want 1 and 50", firsts.Load(), tasks.Load())
	}
	for table, want := range map[string]int{"Events": 1, "Payloads": 1, "Deliveries": 2} {
		if n := f.count(table); n != want {
			t.Errorf("%s has %d rows, want %d", table, n, want)
		}
	}
}

// Distinct events of one moment with equal bodies are all kept (case H67).
func TestConcurrentDistinctEventsAreAllKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	b := NewBatcher(BatcherOptions[webhook.Event]{Concurrency: 2}, f.Ingest)
	defer b.Close()
	var wg sync.WaitGroup
	for _, e := range events(1_000) {
		e.Body = []byte("{}")
		e.Seal()
		wg.Go(func() {
			if r, err := b.Do(f.ctx, e); err != nil || r.Duplicate || len(r.Tasks) != 1 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	wg.Wait()
	if n := f.count("Deliveries"); n != 1_000 {
		t.Errorf("%d deliveries, want 1000", n)
	}
}

// lossy lets commits happen and reports one as failed: the n-th from when n is set.
type lossy struct{ n atomic.Int64 }

func (l *lossy) option() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := call(ctx, method, req, reply, cc, opts...)
		if err == nil && strings.HasSuffix(method, "/Commit") && l.n.Add(-1) == 0 {
			return status.Error(codes.DeadlineExceeded, "injected: the answer was lost")
		}
		return err
	}))
}

func TestIngestAfterACommitOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	l := &lossy{}
	f := newFixture(t, Options{}, l.option())
	f.endpoint("default", "a")
	l.n.Store(1)
	_, err := f.Ingest(f.ctx, events(3))
	if !Transient(err) || Permanent(err) {
		t.Fatalf("error = %v, want a transient one", err)
	}
	for _, r := range f.ingest(events(3)...) {
		if !r.Duplicate || !r.Redelivery || len(r.Tasks) != 1 || f.row(r.Key).Duplicates != 0 {
			t.Errorf("%+v", r)
		}
	}
}

func TestWideFanOutGoesOnInChunks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{FanoutChunk: 7})
	f.endpoints("default", 50)
	e := event("default", "s", "wide", "x")
	r := f.ingest(e)[0]
	seen := map[string]int{}
	for _, task := range r.Tasks {
		seen[task.Key.Endpoint]++
	}
	calls := 1
	for r.More {
		if row := f.row(e.Key); !row.FanoutPending || !row.ExpireAt.IsZero() {
			t.Fatalf("unfinished: %+v", row)
		}
		// Whoever took the event stops here, another process gets it again.
		other := f.open(Options{FanoutChunk: 7})
		again, err := other.Ingest(f.ctx, []webhook.Event{e})
		if err != nil || !again[0].More || !again[0].Redelivery || len(again[0].Tasks) != calls*7 {
			t.Fatalf("after %d chunks: %+v, %v", calls, again, err)
		}
		if r, err = other.ContinueFanout(f.ctx, "default", e.Key); err != nil {
			t.Fatal(err)
		}
		for _, task := range r.Tasks {
			seen[task.Key.Endpoint]++
		}
		calls++
	}
	if calls != 8 || len(seen) != 50 || f.count("Deliveries") != 50 {
		t.Errorf("%d commits made %d tasks and %d deliveries, want 8, 50 and 50", calls, len(seen), f.count("Deliveries"))
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s has %d tasks", id, n)
		}
	}
	if r, err := f.ContinueFanout(f.ctx, "default", e.Key); err != nil || r.More || r.Tasks != nil || r.State != webhook.EventAccepted {
		t.Errorf("continuing what is complete: %+v, %v", r, err)
	}
	if _, err := f.ContinueFanout(f.ctx, "other", e.Key); !errors.Is(err, ErrNotFound) {
		t.Errorf("another tenant: %v", err)
	}
}

func TestFanOutThatEndsBeforeItsEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{FanoutChunk: 2})
	f.endpoints("default", 3)
	e := event("default", "s", "1", "x")
	r := f.ingest(e)[0]
	for _, task := range r.Tasks {
		d, _ := f.getDelivery(e.Key, task.Key.Endpoint)
		f.record(f.attempt(d, delivered))
	}
	if row := f.row(e.Key); !row.FanoutPending || !row.ExpireAt.IsZero() {
		t.Fatalf("everything made so far is delivered, but more is to come: %+v", row)
	}
	// The last endpoint goes before its turn comes: nothing is left to close the event.
	if _, err := f.DeleteEndpoint(f.ctx, "default", "ep-00002", "tester"); err != nil {
		t.Fatal(err)
	}
	if r, err := f.ContinueFanout(f.ctx, "default", e.Key); err != nil || r.More || len(r.Tasks) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if row := f.row(e.Key); row.FanoutPending || row.ExpireAt.IsZero() {
		t.Errorf("complete and all delivered: %+v", row)
	}
}

func TestFanOutToFiveThousandEndpoints(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoints("default", 5_000)
	e := event("default", "s", "1", "x")
	// In a group with others, which must not be held up nor lost.
	got := f.ingest(event("nobody", "s", "0", "x"), e, event("nobody", "s", "2", "x"))
	r, commits := got[1], 1
	tasks := len(r.Tasks)
	for r.More {
		var err error
		if r, err = f.ContinueFanout(f.ctx, "default", e.Key); err != nil {
			t.Fatal(err)
		}
		tasks += len(r.Tasks)
		commits++
	}
	if tasks != 5_000 || commits != (5_000+maxChunk-1)/maxChunk || f.count("Deliveries") != 5_000 {
		t.Errorf("%d tasks in %d commits", tasks, commits)
	}
}

func TestGroupsBeyondTheLimitsAreSplit(t *testing.T) {
	t.Parallel()
	l := &counting{}
	f := newFixture(t, Options{FanoutChunk: 10}, l.option())
	for i := range 4 {
		f.endpoint("default", fmt.Sprint("e", i))
	}
	l.commits.Store(0)
	got := f.ingest(events(10)...) // 40 deliveries: two events fit a commit
	for i, r := range got {
		if len(r.Tasks) != 4 || r.More || r.Key != events(10)[i].Key {
			t.Errorf("event %d: %+v", i, r)
		}
	}
	if n := l.commits.Load(); n != 5 {
		t.Errorf("%d commits, want 5", n)
	}
	// By size: incompressible bodies of 9 MiB, of which seven fit.
	big := noise(9 << 20)
	var wide []webhook.Event
	for i := range 8 {
		e := event("nobody", "s", fmt.Sprint("big", i), "x")
		e.Body = append([]byte{byte(i)}, big...)
		e.Seal()
		wide = append(wide, e)
	}
	l.commits.Store(0)
	f.ingest(wide...)
	if n := l.commits.Load(); n != 2 {
		t.Errorf("%d commits, want 2", n)
	}
	l.commits.Store(0)
	f.ingest(events(maxGroup + 20)...)
	if n := l.commits.Load(); n < 2 {
		t.Errorf("%d commits for %d events", n, maxGroup+20)
	}
}

type counting struct{ commits atomic.Int64 }

func (c *counting) option() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if strings.HasSuffix(method, "/Commit") {
			c.commits.Add(1)
		}
		return call(ctx, method, req, reply, cc, opts...)
	}))
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestIngestRefusesWhatSpannerWould(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	change := func(edit func(*webhook.Event)) webhook.Event {
		e := event("default", "s", "1", "x")
		edit(&e)
		e.Seal()
		return e
	}
	long := func(n int) string { return strings.Repeat("a", n) }
	unsealed := event("default", "s", "1", "x")
	unsealed.PublisherID = "2"
	for _, c := range []struct {
		name string
		e    webhook.Event
		want error
	}{
		{"body of a cell", change(func(e *webhook.Event) { e.Body = noise(maxCell) }), nil},
		{"body of a cell and a byte", change(func(e *webhook.Event) { e.Body = noise(maxCell + 1) }), ErrTooLarge},
		{"25 MB that compress", change(func(e *webhook.Event) { e.Body = bytes.Repeat([]byte("text "), 5_000_000) }), nil},
		{"beyond every front door", change(func(e *webhook.Event) { e.Body = make([]byte, maxBody+1) }), ErrTooLarge},
		{"subject of 2048", change(func(e *webhook.Event) { e.Subject = long(2048) }), nil},
		{"subject of 2049", change(func(e *webhook.Event) { e.Subject = long(2049) }), ErrTooLarge},
		{"ordering key of 1025", change(func(e *webhook.Event) { e.OrderingKey = long(1025) }), ErrTooLarge},
		{"content type of 2049", change(func(e *webhook.Event) { e.ContentType = long(2049) }), ErrTooLarge},
		{"source of 2049", change(func(e *webhook.Event) { e.Source = long(2049) }), ErrTooLarge},
		{"id of 513", change(func(e *webhook.Event) { e.PublisherID = long(513) }), ErrTooLarge},
		{"receipt of 257", change(func(e *webhook.Event) { e.Receipt = long(257) }), ErrTooLarge},
		{"headers of a MiB", change(func(e *webhook.Event) { e.Headers = []webhook.Header{{Name: "a", Value: long(1 << 20)}} }), ErrTooLarge},
		{"subject not UTF-8", change(func(e *webhook.Event) { e.Subject = "\xff" }), ErrInvalid},
		{"type of 257", change(func(e *webhook.Event) { e.Type = long(257) }), ErrInvalid},
		{"no tenant", change(func(e *webhook.Event) { e.Tenant = "" }), ErrInvalid},
		{"no source", change(func(e *webhook.Event) { e.Source = "" }), ErrInvalid},
		{"no id", change(func(e *webhook.Event) { e.PublisherID = "" }), ErrInvalid},
		{"no time", change(func(e *webhook.Event) { e.ReceivedAt = time.Time{} }), ErrInvalid},
		{"not sealed", unsealed, ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := f.Ingest(f.ctx, []webhook.Event{event("default", "s", "good", "x"), c.e})
			if !errors.Is(err, c.want) || err != nil && (!strings.Contains(err.Error(), c.e.Key.ID()) || !Permanent(err)) {
				t.Fatalf("error = %v, want %v naming %s", err, c.want, c.e.Key)
			}
		})
	}
}

// Bodies come back byte for byte (case H50), and so does everything else.
func TestEventsComeBackAsTheyWent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	for i, body := range [][]byte{
		{},
		[]byte(`{"b":1,"a":{"z":1,"a":2},"a":3}`),
		[]byte("{\"u\":\"\\u001B \\/\", \"f\":0.0, \"n\":1152921504606846977 }\n"),
		{0, 0xff, 0xfe, 0x80, '\n'},
		[]byte("payload=%7B%22zen%22%3A%22a+b%22%7D"),
		bytes.Repeat([]byte("{\"compresses\":true}\r\n"), 10_000),
		noise(200_000),
	} {
		e := event("default", "s", fmt.Sprint(i), "a/b.c")
		e.Body = body
		e.Subject, e.OrderingKey, e.ContentType = "sub/ject", "key", "application/x-www-form-urlencoded; charset=\"utf-8\""
		e.Headers = []webhook.Header{{Name: "X-Dup", Value: "1"}, {Name: "X-Dup", Value: "2 <&>\u2028"}}
		e.OccurredAt = t0.Add(-time.Hour - 1)
		e.Seal()
		f.ingest(e)
		got, err := f.Payload(f.ctx, "default", e.Key)
		if err != nil || !bytes.Equal(got, body) || sha256.Sum256(got) != e.BodyHash {
			t.Errorf("body %d: %d bytes, %v; want %d", i, len(got), err, len(body))
		}
		row := f.row(e.Key)
		if row.CommittedAt.IsZero() || row.Size != int64(len(body)) || row.State != webhook.EventAccepted {
			t.Errorf("row %d: %+v", i, row)
		}
		want := e
		want.Body = nil
		if !reflect.DeepEqual(row.Event, want) {
			t.Errorf("row %d:\n got %+v\nwant %+v", i, row.Event, want)
		}
		d, _ := f.getDelivery(e.Key, "a")
		c, err := f.Claim(f.ctx, d.Key())
		if err != nil || c.Verdict != VerdictRun || c.Unpack() != nil || c.Size != int64(len(body)) || !reflect.DeepEqual(c.Event.Body, body) {
			t.Errorf("claim %d: %v, %v", i, c, err)
		}
	}
}

// An endpoint that was created before an event's commit gets the event, however
// many processes hold older lists.
func TestNewEndpointsAreSeenAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	other := f.open(Options{})
	for i := range 5 {
		if _, err := other.Ingest(f.ctx, []webhook.Event{event("default", "s", fmt.Sprint("before", i), "x")}); err != nil {
			t.Fatal(err)
		}
		f.endpoint("default", fmt.Sprint("e", i))
		r, err := other.Ingest(f.ctx, []webhook.Event{event("default", "s", fmt.Sprint("after", i), "x")})
		if err != nil || len(r[0].Tasks) != i+1 {
			t.Fatalf("%d endpoints: %+v, %v", i+1, r, err)
		}
	}
}

func TestDisabledEndpointsGetHeldDeliveries(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	if _, err := f.CreateEndpoint(f.ctx, webhook.Endpoint{Tenant: "default", ID: "off", URL: "https://x.example", EventTypes: []string{"*"},
		State: webhook.EndpointDisabled}, nil, "tester"); err != nil {
		t.Fatal(err)
	}
	e := event("default", "s", "1", "x")
	r := f.ingest(e)[0]
	d, _ := f.getDelivery(e.Key, "off")
	if len(r.Tasks) != 0 || r.State != webhook.EventAccepted || d.State != webhook.DeliveryHeld || d.Reason != webhook.ReasonEndpointDisabled || d.Attempt != 0 {
		t.Errorf("%+v, %+v", r, d)
	}
	if row := f.row(e.Key); !row.ExpireAt.IsZero() {
		t.Errorf("a held delivery is open, yet the event expires at %s", row.ExpireAt)
	}
}

func TestCustomMatchSeesTheBodyInEveryChunk(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{FanoutChunk: 2, Match: func(ep *webhook.Endpoint, e *webhook.Event) bool {
		return bytes.Contains(e.Body, []byte(ep.ID))
	}})
	f.endpoints("default", 9)
	e := event("default", "s", "1", "x")
	e.Body = []byte("ep-00001 ep-00003 ep-00006 ep-00008")
	e.Seal()
	r := f.ingest(e)[0]
	tasks := r.Tasks
	for r.More {
		var err error
		if r, err = f.ContinueFanout(f.ctx, "default", e.Key); err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, r.Tasks...)
	}
	if len(tasks) != 4 || tasks[3].Key.Endpoint != "ep-00008" {
		t.Errorf("%+v", tasks)
	}
}
