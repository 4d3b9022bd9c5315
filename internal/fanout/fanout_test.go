package fanout_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/localcloud/cloudtasks"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/schema"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// bench is a database of its own and a Cloud Tasks whose time stands still, so
// that tasks wait to be counted.
type bench struct {
	t     testing.TB
	db    string
	store *store.Store
	queue *tasks.Queue
	clock *cloudtasks.VirtualClock

	fault   atomic.Pointer[func() error] // of CreateTask
	creates atomic.Int64                 // calls of CreateTask

	mu  sync.Mutex
	ran []webhook.AttemptKey
}

func newBench(t testing.TB, o store.Options) *bench {
	t.Helper()
	var ddl []string
	for _, s := range store.Statements() {
		ddl = append(ddl, s.SQL)
	}
	b := &bench{t: t, db: localtest.Database(t, ddl), clock: cloudtasks.NewVirtualClock(time.Now())}
	b.store = b.open(o)
	srv := cloudtasks.New(cloudtasks.Options{Clock: b.clock, Sequential: true, Fault: b.createFault, Transport: cloudtasks.HandlerTransport(http.HandlerFunc(b.attempt))})
	addr, err := srv.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	b.queue, err = tasks.New(context.Background(), tasks.Config{Project: "p", Location: "us-central1", Dispatcher: "http://dispatcher.test", Invoker: "d@p.iam", Pools: []string{"pool"}},
		option.WithEndpoint(addr), option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.queue.Close() })
	if err := b.queue.CreateQueue(context.Background(), &webhook.Endpoint{Tenant: "t", ID: "pool", Queue: "pool", RatePerSecond: 500, MaxConcurrency: 1000}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) open(o store.Options) *store.Store {
	b.t.Helper()
	s, err := store.Open(context.Background(), b.db, o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(s.Close)
	return s
}

func (b *bench) createFault(method string) error {
	if method != "CreateTask" {
		return nil
	}
	b.creates.Add(1)
	if f := b.fault.Load(); f != nil {
		return (*f)()
	}
	return nil
}

func (b *bench) failTasks(f func() error) {
	if f == nil {
		b.fault.Store(nil)
		return
	}
	b.fault.Store(&f)
}

func (b *bench) attempt(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if k, err := webhook.ParseAttemptKey(body); r.URL.Path == tasks.AttemptPath {
		if err != nil {
			b.t.Error(err)
		}
		b.mu.Lock()
		b.ran = append(b.ran, k)
		b.mu.Unlock()
	}
	w.WriteHeader(http.StatusNoContent)
}

// tasks lets a little time pass and returns all the tasks that ran, ever.
func (b *bench) tasks() []webhook.AttemptKey {
	b.clock.Advance(10 * time.Second)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ran
}

func (b *bench) endpoint(tenant, id string, types ...string) {
	b.t.Helper()
	_, err := b.store.CreateEndpoint(context.Background(), webhook.Endpoint{Tenant: tenant, ID: id, URL: "https://hooks.example.com/" + id, EventTypes: types},
		[]store.SealedKey{{ID: "key_1", Kind: "v1", Sealed: []byte("x"), SealedBy: "1"}}, "test")
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) ingester(o fanout.Options) *fanout.Ingester {
	if o.Store == nil {
		o.Store = b.store
	}
	o.Queue = b.queue
	in := fanout.New(o)
	b.t.Cleanup(in.Close)
	return in
}

func (b *bench) event(tenant string, k webhook.EventKey) store.EventRow {
	b.t.Helper()
	row, err := b.store.Event(context.Background(), tenant, k)
	if err != nil {
		b.t.Fatal(err)
	}
	return row
}

func (b *bench) dead() []store.DeadMessage {
	b.t.Helper()
	heads, _, err := b.store.ListDeadMessages(context.Background(), "", store.Page{})
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range heads {
		if heads[i], err = b.store.DeadMessage(context.Background(), "", heads[i].ID); err != nil {
			b.t.Fatal(err)
		}
	}
	return heads
}

var published = time.Date(2026, 11, 1, 2, 3, 4, 0, time.UTC)

// message is one of the events topic in binary mode, or with no type a plain one.
func message(id, typ, body string, kv ...string) bus.Message {
	m := bus.Message{ID: id, Subscription: "projects/p/subscriptions/s", PublishTime: published, Data: []byte(body), Attributes: map[string]string{}}
	if typ != "" {
		m.Attributes["ce-type"] = typ
	}
	for i := 0; i < len(kv); i += 2 {
		m.Attributes[kv[i]] = kv[i+1]
	}
	return m
}

func key(source, tenant, id string) webhook.EventKey { return webhook.KeyOf(source, tenant, id) }

const exact = "\x80\xff\x00\x1b{\"esc\":\"\\u001B\",\"f\":0.0,\"n\":1152921504606846977}\r\n\n"

func TestHandleEvents(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	b.endpoint("default", "invoices", "invoice.*", "*", "invoice.paid")
	b.endpoint("other", "not-mine", "*")
	b.endpoint("lonely", "picky", "order.*")
	schemas, err := schema.Parse([]byte(`[{"type":"order.made","schema":{"type":"object","required":["total"],"properties":{"total":{"type":"number","minimum":0}}}}]`))
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	in := b.ingester(fanout.Options{Schemas: schemas, Log: slog.New(slog.NewJSONHandler(&logged, nil))})
	for i, c := range []struct {
		name       string
		kind       fanout.Kind
		m          bus.Message
		key        webhook.EventKey
		tenant     string
		state      webhook.EventState
		tasks      int
		duplicates int64
		body       string
	}{
		{"published", fanout.Events, message("m1", "invoice.paid", exact), key("app", "default", "m1"), "default", webhook.EventAccepted, 2, 0, exact},
		{"the same message again", fanout.Events, message("m1", "invoice.paid", exact), key("app", "default", "m1"), "default", webhook.EventAccepted, 0, 0, exact},
		{"inbound", fanout.Inbound, message("m2", "invoice.paid", exact, "ce-source", "stripe", "ce-id", "evt_1", "sealpost-receipt", "r1"), key("stripe", "default", "evt_1"), "default", webhook.EventAccepted, 2, 0, exact},
		{"the provider's repeat", fanout.Inbound, message("m3", "invoice.paid", exact, "ce-source", "stripe", "ce-id", "evt_1", "sealpost-receipt", "r2"), key("stripe", "default", "evt_1"), "default", webhook.EventAccepted, 0, 1, exact},
		{"the same id at another tenant", fanout.Inbound, message("m4", "invoice.paid", "", "ce-source", "stripe", "ce-id", "evt_1", "tenant", "other"), key("stripe", "other", "evt_1"), "other", webhook.EventAccepted, 1, 0, ""},
		{"nobody subscribes", fanout.Events, message("m5", "invoice.paid", "x", "tenant", "lonely"), key("app", "lonely", "m5"), "lonely", webhook.EventUnmatched, 0, 0, "x"},
		{"fits its schema", fanout.Events, message("m6", "order.made", `{"total":0.0}`, "tenant", "lonely"), key("app", "lonely", "m6"), "lonely", webhook.EventAccepted, 1, 0, `{"total":0.0}`},
		{"breaks its schema", fanout.Events, message("m7", "order.made", `{"total":"secret"}`, "tenant", "lonely"), key("app", "lonely", "m7"), "lonely", webhook.EventRejected, 0, 0, `{"total":"secret"}`},
		{"breaks its schema, inbound", fanout.Inbound, message("m8", "order.made", `nope`, "tenant", "lonely", "ce-source", "shop"), key("shop", "lonely", "m8"), "lonely", webhook.EventRejected, 0, 0, "nope"},
		{"JSON", fanout.Events, message("", "", `{"type":"x","id":"j1","source":"/a","data":{ "f": 0.0 }}`), key("app:/a", "default", "j1"), "default", webhook.EventAccepted, 2, 0, `{ "f": 0.0 }`},
	} {
		before := len(b.tasks())
		if err := in.Handle(t.Context(), c.m, c.kind); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		row := b.event(c.tenant, c.key)
		body, err := b.store.Payload(t.Context(), c.tenant, c.key)
		if err != nil || string(body) != c.body {
			t.Errorf("%s: payload %q, %v", c.name, body, err)
		}
		ran := b.tasks()
		if row.State != c.state || row.Duplicates != c.duplicates || len(ran)-before != c.tasks {
			t.Errorf("%s: state %s, %d duplicates, %d new tasks", c.name, row.State, row.Duplicates, len(ran)-before)
		}
		for _, k := range ran[before:] {
			if k.Event != c.key || k.Tenant != c.tenant || k.Generation != 1 || k.Attempt != 1 {
				t.Errorf("%s: task %v", c.name, k)
			}
		}
		if lines := strings.Count(logged.String(), `"event":"ingest"`); lines != i+1 {
			t.Errorf("%s: %d log lines", c.name, lines)
		}
	}
	if len(b.dead()) != 0 {
		t.Errorf("dead messages: %+v", b.dead())
	}
	for _, field := range []string{`"event_id":"evt_`, `"tenant":"lonely"`, `"source":"stripe"`, `"event_type":"invoice.paid"`, `"state":"rejected"`, `"duplicate":true`, `"redelivery":true`, `"deliveries":2`, `"ms":`, `"outcome":"done"`} {
		if !strings.Contains(logged.String(), field) {
			t.Errorf("the log has no %s", field)
		}
	}
	for _, payload := range []string{"secret", "1152921504606846977", "nope"} {
		if strings.Contains(logged.String(), payload) {
			t.Errorf("the log holds the payload's %s", payload)
		}
	}
}

// What cannot become an event is stored once, with the reason, and not retried.
func TestHandleDeadMessages(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	in := b.ingester(fanout.Options{})
	inbound := []string{"ce-source", "stripe", "ce-id", "1"}
	for _, c := range []struct {
		name   string
		kind   fanout.Kind
		m      bus.Message
		reason bus.Code
	}{
		{"message without anything", fanout.Events, bus.Message{ID: "2"}, bus.CodeEmpty},
		{"inbound without anything", fanout.Inbound, bus.Message{ID: "2"}, bus.CodeEmpty},
		{"no JSON", fanout.Events, message("3", "", "\xffhello"), bus.CodeBadJSON},
		{"no type", fanout.Events, message("4", "", "{}"), bus.CodeNoType},
		{"bad tenant", fanout.Events, message("5", "a.b", "", "tenant", "A!"), bus.CodeBadTenant},
		{"published to the wrong topic", fanout.Inbound, message("6", "a.b", "x"), bus.CodeBadSource},
		{"counts on the wrong topic", fanout.Events, message("7", "", "[]", "sealpost-kind", "counts"), bus.CodeBadJSON},
		{"bad counts", fanout.Inbound, message("8", "", "[{}]", "sealpost-kind", "counts"), bus.CodeBadCounts},
		{"corrupt body", fanout.Inbound, message("9", "a.b", "x", append(inbound, "sealpost-encoding", "zstd")...), bus.CodeBadEncoding},
		{"more than can be stored", fanout.Inbound, message("10", "a.b", "x", append(inbound, "sealpost-receipt", strings.Repeat("r", 300))...), bus.CodeTooLarge},
		{"a count before there was time", fanout.Inbound, message("11", "", `[{"source":"s","reason":"r","minute":"1999-01-01T00:00:00Z","count":1,"reporter":"x"}]`, "sealpost-kind", "counts"), bus.CodeBadCounts},
	} {
		before := len(b.dead())
		for range 3 {
			if err := in.Handle(t.Context(), c.m, c.kind); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		dead := b.dead()
		if len(dead) != before+1 {
			t.Errorf("%s: %d dead messages more", c.name, len(dead)-before)
			continue
		}
		found := false
		for _, d := range dead {
			if d.MessageID == c.m.ID && d.Topic == "sealpost-"+string(c.kind) {
				found = true
				if !strings.HasPrefix(d.Reason, string(c.reason)+": ") || !bytes.Equal(d.Body, c.m.Data) || d.Subscription != c.m.Subscription || len(d.Attributes) != len(c.m.Attributes) {
					t.Errorf("%s: stored %+v", c.name, d)
				}
			}
		}
		if !found {
			t.Errorf("%s: not found", c.name)
		}
	}
	if n := len(b.tasks()); n != 0 {
		t.Errorf("%d tasks", n)
	}
}

func TestHandleCounts(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	in := b.ingester(fanout.Options{})
	minute := time.Now().UTC().Truncate(time.Minute)
	text := fmt.Sprintf(`[{"source":"stripe","reason":"bad_signature","minute":%q,"count":3,"reporter":"i-1"},{"source":"stripe","reason":"bad_signature","minute":%q,"count":4,"reporter":"i-2"}]`, minute.Format(time.RFC3339), minute.Format(time.RFC3339))
	for range 2 { // delivered twice, counted once
		if err := in.Handle(t.Context(), message("c1", "", text, "sealpost-kind", "counts"), fanout.Inbound); err != nil {
			t.Fatal(err)
		}
	}
	counts, _, err := b.store.ListSourceCounts(t.Context(), store.SourceCountFilter{Tenant: "default"}, store.Page{})
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, c := range counts {
		if c.Source != "stripe" || c.Reason != "bad_signature" || !c.Minute.Equal(minute) {
			t.Errorf("count %+v", c)
		}
		sum += c.Count
	}
	if sum != 7 {
		t.Errorf("sum is %d", sum)
	}
}

// What a report says about secrets is kept apart from its counts, and for longer.
func TestHandleSecretUses(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	in := b.ingester(fanout.Options{})
	minute := time.Now().UTC().Truncate(time.Minute)
	text := fmt.Sprintf(`[{"source":"gh","reason":"accepted","minute":%[1]q,"count":3,"reporter":"i"},
		{"source":"gh","reason":"secret_used","minute":%[1]q,"count":2,"reporter":"i","secret":"s","version":1,"scheme":"github"},
		{"source":"gh","reason":"secret_used","minute":%[1]q,"count":1,"reporter":"i","secret":"s","version":2,"scheme":"github"},
		{"source":"gh","reason":"secret_listed","minute":%[1]q,"count":1,"reporter":"i","secret":"s","version":2,"scheme":"github"}]`, minute.Format(time.RFC3339))
	for range 2 {
		if err := in.Handle(t.Context(), message("c2", "", text, "sealpost-kind", "counts"), fanout.Inbound); err != nil {
			t.Fatal(err)
		}
	}
	uses, err := b.store.ListSecretUses(t.Context(), "default", "gh")
	if err != nil || len(uses) != 2 || !uses[0].UsedAt.Equal(minute) || !uses[0].ListedAt.IsZero() || !uses[1].UsedAt.Equal(minute) || !uses[1].ListedAt.Equal(minute) || uses[1].Scheme != "github" {
		t.Errorf("%+v, %v", uses, err)
	}
	sums, err := b.store.SumSourceCounts(t.Context(), "default", "gh", minute)
	if err != nil || len(sums) != 1 || sums["accepted"] != 3 {
		t.Errorf("%v, %v", sums, err)
	}
}

var errStop = errors.New("stopped")

// Stopped at any step, by an error or a panic, a message that comes again leaves
// one event, one delivery and one task per endpoint.
func TestCrashThenRedelivery(t *testing.T) {
	t.Parallel()
	for _, step := range []string{fanout.StepDecoded, fanout.StepCommitted, fanout.StepTaskCreated, fanout.StepScheduled} {
		for _, how := range []string{"error", "panic"} {
			t.Run(step+" "+how, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, store.Options{})
				for i := range 3 {
					b.endpoint("default", fmt.Sprintf("ep-%d", i), "*")
				}
				stopped := false
				crash := b.ingester(fanout.Options{TaskConcurrency: 1, Step: func(_ context.Context, at string) error {
					if at != step || stopped {
						return nil
					}
					stopped = true
					if how == "panic" {
						panic(errStop)
					}
					return errStop
				}})
				m := message("m1", "a.b", exact, "ce-source", "stripe", "ce-id", "1", "sealpost-receipt", "r")
				if err := handleOrPanic(crash, m); err == nil {
					t.Fatal("the crash was acknowledged")
				}
				k := key("stripe", "default", "1")
				if _, err := b.store.Event(t.Context(), "default", k); (err == nil) != (step != fanout.StepDecoded) {
					t.Errorf("after the crash: %v", err)
				}
				if step == fanout.StepCommitted && b.creates.Load() > 1 { // one made by the bench's own queue
					t.Errorf("%d tasks were created before the crash", b.creates.Load()-1)
				}
				again := b.ingester(fanout.Options{Store: b.open(store.Options{})}) // another process
				for range 2 {
					if err := again.Handle(t.Context(), m, fanout.Inbound); err != nil {
						t.Fatal(err)
					}
				}
				ran := b.tasks()
				endpoints := map[string]bool{}
				for _, k := range ran {
					endpoints[k.Endpoint] = true
				}
				row := b.event("default", k)
				if len(ran) != 3 || len(endpoints) != 3 || row.State != webhook.EventAccepted || row.Duplicates != 0 {
					t.Errorf("%d tasks for %d endpoints, event %s with %d duplicates", len(ran), len(endpoints), row.State, row.Duplicates)
				}
			})
		}
	}
}

func handleOrPanic(in *fanout.Ingester, m bus.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return in.Handle(context.Background(), m, fanout.Inbound)
}

// A fan-out in several commits goes on where it was stopped.
func TestWideFanoutCrash(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{FanoutChunk: 3})
	const n = 10
	for i := range n {
		b.endpoint("default", fmt.Sprintf("ep-%02d", i), "*")
	}
	m := message("m1", "a.b", "x", "ce-source", "stripe", "ce-id", "1")
	for stopAt := 1; stopAt <= 3; stopAt++ { // each try gets one chunk further
		commits := 0
		crash := b.ingester(fanout.Options{Step: func(_ context.Context, at string) error {
			if at == fanout.StepCommitted {
				if commits++; commits == stopAt {
					return errStop
				}
			}
			return nil
		}})
		if err := crash.Handle(t.Context(), m, fanout.Inbound); !errors.Is(err, errStop) {
			t.Fatalf("try %d: %v", stopAt, err)
		}
	}
	in := b.ingester(fanout.Options{})
	if err := in.Handle(t.Context(), m, fanout.Inbound); err != nil {
		t.Fatal(err)
	}
	endpoints := map[string]int{}
	for _, k := range b.tasks() {
		endpoints[k.Endpoint]++
	}
	if len(endpoints) != n {
		t.Errorf("tasks for %d endpoints: %v", len(endpoints), endpoints)
	}
	for ep, times := range endpoints {
		if times != 1 {
			t.Errorf("%s has %d tasks", ep, times)
		}
	}
}

// Cloud Tasks at fault: the message comes again; one queue at fault keeps no other
// endpoint waiting.
func TestTaskCreationFails(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	for i := range 20 {
		b.endpoint("default", fmt.Sprintf("ep-%02d", i), "*")
	}
	in := b.ingester(fanout.Options{TaskConcurrency: 4})
	m := message("m1", "a.b", "x", "ce-source", "stripe", "ce-id", "1")
	var first atomic.Bool
	b.failTasks(func() error {
		if first.CompareAndSwap(false, true) {
			return status.Error(codes.PermissionDenied, "one queue at fault")
		}
		return nil
	})
	if err := in.Handle(t.Context(), m, fanout.Inbound); status.Code(unwrapAll(err)) != codes.PermissionDenied || !strings.Contains(err.Error(), "1 of 20 tasks") {
		t.Fatalf("got %v", err)
	}
	if n := len(b.tasks()); n != 19 {
		t.Errorf("%d tasks beside the one at fault", n)
	}
	b.failTasks(func() error { return status.Error(codes.PermissionDenied, "all at fault") })
	before := b.creates.Load()
	if err := in.Handle(t.Context(), m, fanout.Inbound); err == nil {
		t.Fatal("acknowledged without tasks")
	}
	if n := b.creates.Load() - before; n > 12 {
		t.Errorf("asked %d times while everything was at fault", n)
	}
	b.failTasks(nil)
	if err := in.Handle(t.Context(), m, fanout.Inbound); err != nil {
		t.Fatal(err)
	}
	if n := len(b.tasks()); n != 20 {
		t.Errorf("%d tasks in the end", n)
	}
}

func unwrapAll(err error) error {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Err()
	}
	return err
}

// Spanner out of reach: nothing is dead, everything comes again.
func TestStoreOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	closed := b.open(store.Options{})
	closed.Close()
	in := b.ingester(fanout.Options{Store: closed})
	for _, m := range []bus.Message{message("1", "a.b", "x"), message("2", "", "not JSON")} {
		if err := in.Handle(t.Context(), m, fanout.Events); err == nil {
			t.Errorf("message %s was acknowledged", m.ID)
		}
	}
	if len(b.dead()) != 0 {
		t.Error("an outage made messages dead")
	}
}

// In a group, one event that cannot be stored fails alone.
func TestGroupWithOneBadEvent(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	in := b.ingester(fanout.Options{})
	var wg sync.WaitGroup
	for i := range 40 {
		m := message(fmt.Sprint(i), "a.b", "x", "ce-source", "stripe", "ce-id", fmt.Sprint(i))
		if i == 20 {
			m.Attributes["sealpost-receipt"] = strings.Repeat("r", 300)
		}
		wg.Go(func() {
			if err := in.Handle(t.Context(), m, fanout.Inbound); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if tasks, dead := len(b.tasks()), len(b.dead()); tasks != 39 || dead != 1 {
		t.Errorf("%d tasks, %d dead messages", tasks, dead)
	}
}

// Distinct events in the same moment, with identical bodies, over three instances:
// each is delivered once. One event at all of them at once: delivered once.
func TestManyInstancesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	var ins []*fanout.Ingester
	for range 3 {
		ins = append(ins, b.ingester(fanout.Options{Store: b.open(store.Options{})}))
	}
	var wg sync.WaitGroup
	const n = 300
	for i := range n {
		wg.Go(func() {
			m := message(fmt.Sprint(i), "a.b", "same", "ce-source", "stripe", "ce-id", fmt.Sprint(i))
			if err := ins[i%3].Handle(t.Context(), m, fanout.Inbound); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 50 {
		wg.Go(func() {
			m := message(fmt.Sprint("same", i), "a.b", "same", "ce-source", "stripe", "ce-id", "same", "sealpost-receipt", fmt.Sprint("r", i))
			if err := ins[i%3].Handle(t.Context(), m, fanout.Inbound); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	times := map[webhook.EventKey]int{}
	for _, k := range b.tasks() {
		times[k.Event]++
	}
	if len(times) != n+1 {
		t.Errorf("tasks for %d events, want %d", len(times), n+1)
	}
	for k, c := range times {
		if c != 1 {
			t.Errorf("%s has %d tasks", k, c)
		}
	}
	if row := b.event("default", key("stripe", "default", "same")); row.Duplicates < 1 || row.Duplicates > 49 {
		t.Errorf("%d duplicates were counted", row.Duplicates)
	}
}

func BenchmarkHandle(b *testing.B) {
	bb := newBench(b, store.Options{})
	bb.endpoint("default", "all", "*")
	in := bb.ingester(fanout.Options{})
	body := strings.Repeat("x", 1024)
	var n atomic.Int64
	var wg sync.WaitGroup
	next := make(chan struct{})
	for range 64 {
		wg.Go(func() {
			for range next {
				id := fmt.Sprint(n.Add(1))
				if err := in.Handle(b.Context(), message(id, "a.b", body, "ce-source", "stripe", "ce-id", id), fanout.Inbound); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "events/s")
}
