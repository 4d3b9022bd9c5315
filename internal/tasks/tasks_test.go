package tasks_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sealpost/sealpost/internal/localcloud/cloudtasks"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// bench is Cloud Tasks in virtual time with a handler that notes what it is sent.
type bench struct {
	clock *cloudtasks.VirtualClock
	srv   *cloudtasks.Server
	q     *tasks.Queue

	mu   sync.Mutex
	got  []call
	code int

	maxQueues int // of tasks.Config
	lost      []string
	lostErr   error
}

type call struct {
	queue, path, body, auth, slot string
	at                            time.Time
}

func newBench(t *testing.T, o cloudtasks.Options) *bench {
	t.Helper()
	return newLimitedBench(t, o, 0)
}

func newLimitedBench(t *testing.T, o cloudtasks.Options, maxQueues int) *bench {
	t.Helper()
	b := &bench{clock: cloudtasks.NewVirtualClock(start), code: http.StatusNoContent, maxQueues: maxQueues}
	o.Clock, o.Sequential = b.clock, true
	o.Transport = cloudtasks.HandlerTransport(http.HandlerFunc(b.serve))
	b.srv = cloudtasks.New(o)
	addr, err := b.srv.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.srv.Close)
	b.q, err = tasks.New(t.Context(), tasks.Config{
		Project: "p", Location: "us-central1", Dispatcher: "http://dispatcher.test", Invoker: "dispatch@p.iam.gserviceaccount.com",
		Pools: []string{"pool-0", "pool-1"}, Now: b.clock.Now, MaxQueues: b.maxQueues,
		Lost: func(_ context.Context, ref webhook.QueueRef) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.lost = append(b.lost, ref.Own)
			return b.lostErr
		},
	}, option.WithEndpoint(addr), option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.q.Close() })
	for _, name := range []string{"pool-0", "pool-1"} {
		if err := b.q.CreateQueue(t.Context(), &webhook.Endpoint{Tenant: "pool", ID: name, Queue: name, RatePerSecond: 500, MaxConcurrency: 100}); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.Advance(10 * time.Minute) // the pools serve, whatever a new queue takes
	b.take()
	return b
}

func (b *bench) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, call{r.Header.Get("X-CloudTasks-QueueName"), r.URL.Path, string(body), r.Header.Get("Authorization"), r.Header.Get(tasks.SlotHeader), b.clock.Now()})
	w.WriteHeader(b.code)
}

// take gives what has arrived since the last time.
func (b *bench) take() []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	got := b.got
	b.got = nil
	return got
}

func endpoint(id string) *webhook.Endpoint {
	return &webhook.Endpoint{Tenant: "t", ID: id, Queue: "ep-" + id, RatePerSecond: 50, MaxConcurrency: 20}
}

func task(ep *webhook.Endpoint, attempt int64, at time.Time) webhook.Task {
	return webhook.Task{At: at, Planned: start.Add(24 * time.Hour), Queue: ep.QueueRef(), Key: webhook.AttemptKey{
		Event: webhook.KeyOf("s", "t", "1"), Tenant: ep.Tenant, Endpoint: ep.ID, Generation: 1, Attempt: attempt, Task: 1}}
}

func schedule(t *testing.T, b *bench, tk webhook.Task) {
	t.Helper()
	if err := b.q.Schedule(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
}

// A task arrives at the dispatcher with its key, our identity, and no sooner than
// asked; scheduling it again, before or after it ran, changes nothing.
func TestScheduleIsIdempotent(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{})
	ep := endpoint("a")
	later := task(ep, 2, b.clock.Now().Add(5*time.Minute))
	schedule(t, b, task(ep, 1, time.Time{}))
	schedule(t, b, task(ep, 1, time.Time{}))
	schedule(t, b, later)
	b.clock.Advance(time.Second)
	got := b.take()
	if len(got) != 1 || got[0].path != tasks.AttemptPath || !strings.HasPrefix(got[0].auth, "Bearer ") || !strings.HasPrefix(got[0].queue, "pool-") {
		t.Fatalf("at once: %+v", got)
	}
	if k, err := webhook.ParseAttemptKey([]byte(got[0].body)); err != nil || k != task(ep, 1, time.Time{}).Key {
		t.Errorf("body %s: %v, %v", got[0].body, k, err)
	}
	schedule(t, b, task(ep, 1, time.Time{})) // the name is a tombstone now
	b.clock.Advance(4 * time.Minute)
	if got := b.take(); len(got) != 0 {
		t.Fatalf("before its time, or twice: %+v", got)
	}
	b.clock.Advance(time.Minute)
	if got := b.take(); len(got) != 1 || got[0].at.Before(later.At) {
		t.Errorf("at its time: %+v", got)
	}
	// The next attempt's name is another one: a tombstone never swallows it.
	schedule(t, b, task(ep, 3, time.Time{}))
	b.clock.Advance(time.Second)
	if got := b.take(); len(got) != 1 {
		t.Errorf("attempt 3: %+v", got)
	}
}

// Our own fault has the task run again after 5 s and more, for ever.
func TestFailedRunComesAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{})
	b.code = http.StatusInternalServerError
	schedule(t, b, task(endpoint("a"), 1, time.Time{}))
	b.clock.Advance(24 * time.Hour)
	got := b.take()
	if len(got) < 280 {
		t.Fatalf("%d runs in a day, want one every 300 s at least", len(got))
	}
	if gap := got[1].at.Sub(got[0].at); gap < 5*time.Second {
		t.Errorf("second run after %s", gap)
	}
}

// A new endpoint's tasks go through a pool queue until its own queue has shown
// that it dispatches; then through its own; and through the pool again if its own
// is not there.
func TestPoolUntilOwnQueueServes(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{QueueStartDelay: 3 * time.Minute, CreateTaskNotFoundFor: 90 * time.Second})
	ep := endpoint("a")
	if err := b.q.CreateQueue(t.Context(), ep); err != nil {
		t.Fatal(err)
	}
	if err := b.q.CreateQueue(t.Context(), ep); err != nil {
		t.Fatalf("creating again: %v", err)
	}
	schedule(t, b, task(ep, 1, time.Time{}))
	b.clock.Advance(30 * time.Second)
	if got := b.take(); len(got) != 1 || !strings.HasPrefix(got[0].queue, "pool-") {
		t.Fatalf("while the own queue is not there: %+v", got)
	}
	// The first announcement was refused; another is made on the way, at most once a minute.
	b.clock.Advance(2 * time.Minute)
	schedule(t, b, task(ep, 2, time.Time{}))
	schedule(t, b, task(ep, 3, time.Time{}))
	b.clock.Advance(5 * time.Minute)
	var ready []tasks.Ready
	for _, c := range b.take() {
		if c.path == tasks.QueueReadyPath {
			var r tasks.Ready
			if err := json.Unmarshal([]byte(c.body), &r); err != nil {
				t.Fatal(err)
			}
			ready = append(ready, r)
		}
	}
	if len(ready) != 1 || ready[0] != (tasks.Ready{Tenant: "t", Endpoint: "a", Queue: "ep-a"}) {
		t.Fatalf("announcements: %+v", ready)
	}
	ep.QueueReadyAt = b.clock.Now()
	schedule(t, b, task(ep, 4, time.Time{}))
	b.clock.Advance(time.Second)
	if got := b.take(); len(got) != 1 || got[0].queue != "ep-a" {
		t.Errorf("once ready: %+v", got)
	}
	if err := b.q.DeleteQueue(t.Context(), ep.Queue); err != nil {
		t.Fatal(err)
	}
	if err := b.q.DeleteQueue(t.Context(), ep.Queue); err != nil {
		t.Fatalf("deleting again: %v", err)
	}
	schedule(t, b, task(ep, 5, time.Time{}))
	b.clock.Advance(time.Second)
	if got := b.take(); len(got) != 1 || !strings.HasPrefix(got[0].queue, "pool-") {
		t.Errorf("own queue gone: %+v", got)
	}
}

// An outage of Cloud Tasks is an error; a lost answer is healed by the next try.
func TestScheduleErrors(t *testing.T) {
	t.Parallel()
	var fault, answer error
	var mu sync.Mutex
	give := func(p *error) func(string) error {
		return func(method string) error {
			mu.Lock()
			defer mu.Unlock()
			if method != "CreateTask" {
				return nil
			}
			return *p
		}
	}
	b := newBench(t, cloudtasks.Options{Fault: give(&fault), AnswerFault: give(&answer)})
	set := func(p *error, err error) { mu.Lock(); *p = err; mu.Unlock() }

	set(&fault, status.Error(codes.ResourceExhausted, "quota"))
	if err := b.q.Schedule(t.Context(), task(endpoint("a"), 1, time.Time{})); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("over quota: %v", err)
	}
	set(&fault, nil)
	set(&answer, status.Error(codes.Internal, "connection broke"))
	if err := b.q.Schedule(t.Context(), task(endpoint("a"), 1, time.Time{})); err == nil {
		t.Error("a lost answer passes for success")
	}
	set(&answer, nil)
	schedule(t, b, task(endpoint("a"), 1, time.Time{}))
	b.clock.Advance(time.Minute)
	if got := b.take(); len(got) != 1 {
		t.Errorf("%d runs, want one", len(got))
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	err := tasks.Config{}.Validate()
	for _, want := range []string{"project", "location", "dispatcher URL", "invoker", "pool queue"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name the %s", err, want)
		}
	}
}
