package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	taskspb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/sealpost/sealpost/internal/localcloud/cloudtasks"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// rows are endpoints as the store keeps them.
type rows struct {
	eps   []webhook.Endpoint
	names int
	// held are the endpoints that hold; look, when not nil, is called before each look.
	held []string
	look func()
}

func (r *rows) find(id string) *webhook.Endpoint {
	for i := range r.eps {
		if r.eps[i].ID == id {
			return &r.eps[i]
		}
	}
	return nil
}

func (r *rows) AssignQueue(_ context.Context, _, id, queue string) (webhook.Endpoint, error) {
	ep := r.find(id)
	if ep.Queue == "" {
		ep.Queue = queue
	}
	return *ep, nil
}

func (r *rows) HoldQueue(_ context.Context, _, id string) (string, bool, error) {
	if r.look != nil {
		r.look()
	}
	return r.find(id).Queue, slices.Contains(r.held, id), nil
}

func (r *rows) DropQueue(_ context.Context, _, id, queue string) error {
	if ep := r.find(id); ep.Queue == queue {
		ep.Queue, ep.QueueReadyAt, ep.QueueLeftAt = "", time.Time{}, time.Time{}
	}
	return nil
}

// reconcile runs a pass with the endpoints named paused, and says in words what it did.
func (r *rows) reconcile(t *testing.T, b *bench, paused ...string) []string {
	t.Helper()
	r.held = paused
	changes, err := b.q.Reconcile(t.Context(), func() iter.Seq2[tasks.Wanted, error] {
		return func(yield func(tasks.Wanted, error) bool) {
			for _, ep := range r.eps {
				w := tasks.Wanted{Endpoint: ep}
				for _, id := range paused {
					w.Paused = w.Paused || id == ep.ID
				}
				if !yield(w, nil) {
					return
				}
			}
		}
	}, r, func() string { r.names++; return fmt.Sprint("ep-new-", r.names) })
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range changes {
		s := c.Endpoint + " " + c.What
		if c.Err != nil {
			s += " (" + status.Code(errors.Unwrap(c.Err)).String() + ")"
		}
		out = append(out, s)
	}
	return out
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func (b *bench) queue(name string) *taskspb.Queue {
	q, err := b.srv.GetQueue(context.Background(), &taskspb.GetQueueRequest{Name: "projects/p/locations/us-central1/queues/" + name})
	if err != nil {
		return nil
	}
	return q
}

// Endpoints get queues of their own up to the limit, of which a tenth is kept for those
// that ask; the rest are in the pools and get theirs once there is room.
func TestAllocation(t *testing.T) {
	t.Parallel()
	b := newLimitedBench(t, cloudtasks.Options{}, 10) // two are pools
	r := &rows{}
	for i := range 9 {
		ep := endpoint(fmt.Sprint(i))
		err := b.q.CreateQueue(t.Context(), ep)
		if errors.Is(err, tasks.ErrNoQuota) != (i >= 7) || !errors.Is(err, tasks.ErrNoQuota) && err != nil {
			t.Errorf("queue %d: %v", i, err)
		}
		if err != nil {
			ep.Queue = "" // as the caller notes
		}
		r.eps = append(r.eps, *ep)
	}
	r.find("8").Queueing = webhook.QueueingOwn
	same(t, "one that asks is served from the reserve", r.reconcile(t, b), "8 created")
	same(t, "nothing is left", r.reconcile(t, b))
	if got := r.find("8"); got.Queue != "ep-new-1" || b.queue("ep-new-1") == nil {
		t.Errorf("%+v", got)
	}
	r.find("3").State = webhook.EndpointDeleted
	r.find("4").State = webhook.EndpointDeleted
	same(t, "deleted endpoints' queues go", r.reconcile(t, b), "3 deleted", "4 deleted")
	if b.queue("ep-3") != nil {
		t.Error("queue of a deleted endpoint is still there")
	}
	same(t, "and make room", r.reconcile(t, b), "7 created")
	r.find("7").Queueing = webhook.QueueingPool
	same(t, "steady", r.reconcile(t, b))
}

// The region's own quota counts like ours.
func TestQuotaOfTheRegion(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{MaxQueues: 3})
	r := &rows{eps: []webhook.Endpoint{*endpoint("a"), *endpoint("b")}}
	same(t, "the second has no queue", r.reconcile(t, b), "a created", "b no quota")
	if ep := r.find("b"); ep.Queue != "" {
		t.Errorf("%+v", ep)
	}
	schedule(t, b, task(r.find("b"), 1, time.Time{}))
	b.clock.Advance(time.Second)
	if got := b.take(); len(got) == 0 || !strings.HasPrefix(got[len(got)-1].queue, "pool-") {
		t.Errorf("%+v", got)
	}
	if err := b.q.DeleteQueue(t.Context(), "ep-a"); err != nil {
		t.Fatal(err)
	}
	r.eps = r.eps[1:]
	same(t, "later it has", r.reconcile(t, b), "b created")
}

// What drifted is set right; what Terraform declares is paused and resumed only.
func TestReconcileMends(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{})
	declared := endpoint("declared")
	r := &rows{eps: []webhook.Endpoint{*endpoint("a"), *endpoint("b")}}
	same(t, "first", r.reconcile(t, b), "a created", "b created")
	if err := b.q.CreateQueue(t.Context(), declared); err != nil { // Terraform's doing
		t.Fatal(err)
	}
	declared.ManagedBy, declared.RatePerSecond = webhook.ManagedByTerraform, 400
	r.eps = append(r.eps, *declared)
	set := func(name, path string, limits *taskspb.RateLimits) {
		t.Helper()
		_, err := b.srv.UpdateQueue(t.Context(), &taskspb.UpdateQueueRequest{UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{path}},
			Queue: &taskspb.Queue{Name: "projects/p/locations/us-central1/queues/" + name, RateLimits: limits}})
		if err != nil {
			t.Fatal(err)
		}
	}
	set("ep-a", "rate_limits.max_dispatches_per_second", &taskspb.RateLimits{MaxDispatchesPerSecond: 3})
	set("ep-b", "rate_limits.max_concurrent_dispatches", &taskspb.RateLimits{MaxConcurrentDispatches: 7})
	same(t, "drift", r.reconcile(t, b, "a", "declared"), "a updated rate", "a paused", "b updated concurrency", "declared paused")
	same(t, "steady", r.reconcile(t, b, "a", "declared"))
	if q := b.queue("ep-a"); q.GetState() != taskspb.Queue_PAUSED || q.GetRateLimits().GetMaxDispatchesPerSecond() != 50 {
		t.Errorf("%v", q)
	}
	if q := b.queue("ep-declared"); q.GetRateLimits().GetMaxDispatchesPerSecond() != 50 {
		t.Errorf("Terraform's queue was changed: %v", q)
	}
	// A limit that is changed goes to the queue at once and leaves it paused.
	r.find("a").RatePerSecond = 9
	if err := b.q.UpdateQueue(t.Context(), r.find("a")); err != nil {
		t.Fatal(err)
	}
	if q := b.queue("ep-a"); q.GetState() != taskspb.Queue_PAUSED || q.GetRateLimits().GetMaxDispatchesPerSecond() != 9 {
		t.Errorf("%v", q)
	}
	same(t, "resume", r.reconcile(t, b), "a resumed", "declared resumed")
	// What is not there is not made by a change of limits.
	gone := endpoint("gone")
	if err := b.q.UpdateQueue(t.Context(), gone); err != nil || b.queue("ep-gone") != nil {
		t.Errorf("an update made a queue: %v", err)
	}
}

// An endpoint that is switched on again while a pass goes on is not left with a queue that
// stands still, whenever that is.
func TestReconcileDoesNotPauseByOldNews(t *testing.T) {
	t.Parallel()
	for before := range 3 { // looks at its state until it serves again
		b := newBench(t, cloudtasks.Options{})
		r := &rows{eps: []webhook.Endpoint{*endpoint("a")}}
		r.reconcile(t, b)
		looks := 0
		r.look = func() {
			if looks++; looks > before {
				r.held = nil
			}
		}
		r.reconcile(t, b, "a")
		r.look = nil
		if looks > before && b.queue("ep-a").GetState() != taskspb.Queue_RUNNING {
			t.Errorf("after %d looks the queue of an endpoint that serves is %s", before, b.queue("ep-a").GetState())
		}
	}
}

// A queue that its endpoint has left goes once it is empty; one that vanished, or whose
// name was spent by a deletion (H76), is replaced under a new name.
func TestQueuesAreReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{})
	r := &rows{eps: []webhook.Endpoint{*endpoint("left"), *endpoint("vanished"), *endpoint("spent")}}
	r.reconcile(t, b)
	b.take()
	for _, id := range []string{"left", "vanished"} {
		r.find(id).QueueReadyAt = b.clock.Now()
	}
	left := r.find("left")
	schedule(t, b, task(left, 1, b.clock.Now().Add(time.Hour)))
	left.QueueLeftAt, left.Queueing = b.clock.Now(), webhook.QueueingPool
	for _, name := range []string{"ep-vanished", "ep-spent"} {
		if err := b.q.DeleteQueue(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.Advance(time.Second)
	same(t, "replaced", r.reconcile(t, b), "vanished lost", "spent created (FailedPrecondition)", "spent created")
	if len(b.lost) != 1 || b.lost[0] != "ep-vanished" {
		t.Errorf("lost: %q", b.lost)
	}
	if err := r.DropQueue(t.Context(), "", "vanished", "ep-vanished"); err != nil { // what Config.Lost does
		t.Fatal(err)
	}
	if ep := r.find("spent"); ep.Queue != "ep-new-1" || b.queue("ep-new-1") == nil {
		t.Errorf("%+v", ep)
	}
	same(t, "another", r.reconcile(t, b), "vanished created")
	if left.Queue == "" {
		t.Fatal("a queue with tasks was dropped")
	}
	b.clock.Advance(2 * time.Hour) // its last task has run
	same(t, "emptied", r.reconcile(t, b), "left deleted")
	if left.Queue != "" || b.queue("ep-left") != nil {
		t.Errorf("%+v", left)
	}
}

// A creation that failed is tried again on the way, without a reconciliation, once a
// minute at most.
func TestFailedCreationIsTriedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	calls, fault := 0, error(nil)
	b := newBench(t, cloudtasks.Options{Fault: func(method string) error {
		mu.Lock()
		defer mu.Unlock()
		if method != "CreateQueue" {
			return nil
		}
		calls++
		return fault
	}})
	set := func(err error) { mu.Lock(); defer mu.Unlock(); calls, fault = 0, err }
	set(status.Error(codes.Unavailable, "not now"))
	ep := endpoint("a")
	for range 3 {
		b.q.Ensure(t.Context(), ep)
	}
	if b.queue("ep-a") != nil || calls == 0 {
		t.Fatalf("made in spite of the fault, or not tried: %d calls", calls)
	}
	set(nil)
	b.q.Ensure(t.Context(), ep)
	if calls != 0 {
		t.Error("tried again within the minute")
	}
	b.clock.Advance(time.Minute)
	b.q.Ensure(t.Context(), ep)
	if b.queue("ep-a") == nil {
		t.Error("not tried again after a minute")
	}
	ready := endpoint("b")
	ready.QueueReadyAt = start
	b.q.Ensure(t.Context(), ready)
	if b.queue("ep-b") != nil {
		t.Error("a queue that served is made anew under its old name")
	}
}

// One attempt is never in two queues: a queue that refuses a task as absent is either
// gone for good before the task goes elsewhere, or the task is not made.
func TestNeverInTwoQueues(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	refuse := false
	b := newBench(t, cloudtasks.Options{Fault: func(method string) error {
		mu.Lock()
		defer mu.Unlock()
		if method == "CreateTask" && refuse {
			refuse = false
			return status.Error(codes.NotFound, "Queue does not exist.")
		}
		return nil
	}})
	once := func() { mu.Lock(); refuse = true; mu.Unlock() }
	ep := endpoint("a")
	if err := b.q.CreateQueue(t.Context(), ep); err != nil {
		t.Fatal(err)
	}
	ep.QueueReadyAt = b.clock.Now()
	b.clock.Advance(time.Second)
	b.take()

	once() // and exists
	if err := b.q.Schedule(t.Context(), task(ep, 1, time.Time{})); err == nil {
		t.Error("scheduled elsewhere although the queue exists")
	}
	schedule(t, b, task(ep, 1, time.Time{}))
	b.clock.Advance(time.Second)
	if got := b.take(); len(got) != 1 || got[0].queue != "ep-a" {
		t.Errorf("%+v", got)
	}

	if err := b.q.DeleteQueue(t.Context(), "ep-a"); err != nil {
		t.Fatal(err)
	}
	b.lostErr = errors.New("Spanner is away")
	if err := b.q.Schedule(t.Context(), task(ep, 2, time.Time{})); err == nil {
		t.Error("scheduled elsewhere although nobody knows that the queue is lost")
	}
	b.lostErr = nil
	for range 2 {
		schedule(t, b, task(ep, 2, time.Time{}))
	}
	b.clock.Advance(time.Second)
	if got := b.take(); len(got) != 1 || !strings.HasPrefix(got[0].queue, "pool-") || len(b.lost) == 0 {
		t.Errorf("%+v, lost %q", got, b.lost)
	}
}

// A task name is an attempt's alone: a failed attempt's next one is never swallowed by
// what Cloud Tasks remembers, and making one twice runs it once (H36).
func TestNamesAreAttemptsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{TaskNameTTL: 24 * time.Hour})
	ep := endpoint("a")
	for n := int64(1); n <= 3; n++ {
		for range 2 {
			schedule(t, b, task(ep, n, time.Time{}))
		}
		b.clock.Advance(time.Second)
		if got := b.take(); len(got) != 1 || !strings.Contains(got[0].body, fmt.Sprintf(`"attempt":%d`, n)) {
			t.Fatalf("attempt %d: %+v", n, got)
		}
		schedule(t, b, task(ep, n, time.Time{})) // a late duplicate
	}
	b.clock.Advance(time.Hour)
	if got := b.take(); len(got) != 0 {
		t.Errorf("run again: %+v", got)
	}
}

// An attempt that is put back keeps to its queue and to its time, and is put back once.
func TestPutBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{})
	ep := endpoint("a")
	if err := b.q.CreateQueue(t.Context(), ep); err != nil {
		t.Fatal(err)
	}
	b.clock.Advance(time.Second)
	b.take()
	k := task(ep, 1, time.Time{}).Key
	at := b.clock.Now().Add(20 * time.Second)
	for _, from := range []string{"ep-a", tasks.PoolOf([]string{"pool-0", "pool-1"}, k), "ep-gone"} {
		for range 2 {
			if err := b.q.PutBack(t.Context(), k, from, at, at); err != nil {
				t.Fatal(err)
			}
		}
		k.Bounce++
	}
	b.clock.Advance(19 * time.Second)
	if got := b.take(); len(got) != 0 {
		t.Errorf("before its time: %+v", got)
	}
	b.clock.Advance(time.Second)
	got := b.take()
	if len(got) != 3 {
		t.Fatalf("%+v", got)
	}
	for _, c := range got {
		k, err := webhook.ParseAttemptKey([]byte(c.body))
		if err != nil || c.slot != at.Format(time.RFC3339Nano) || (c.queue == "ep-a") != (k.Bounce == 1) {
			t.Errorf("%+v, %v", c, err)
		}
	}
}
