package cloudtasks

import (
	"cmp"
	"container/heap"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/genproto/googleapis/rpc/status"
)

const (
	taskLife      = 31 * 24 * time.Hour // then a task vanishes, whatever its state
	scheduleAhead = 30 * 24 * time.Hour

	throttleMin   = time.Second
	throttleMax   = time.Minute
	retryAfterCap = time.Hour
)

// engine is the scheduler: it knows queues, tasks and time, and nothing of
// gRPC. It has no goroutine of its own; it acts when the clock's timer fires
// (fire) and starts one goroutine for each attempt in flight, or none at all
// if sequential.
type engine struct {
	clock      Clock
	transport  http.RoundTripper
	log        *slog.Logger
	nameTTL    time.Duration
	sequential bool

	ctx    context.Context // ends when the engine closes
	cancel context.CancelFunc
	wg     sync.WaitGroup // attempts in flight

	mu     sync.Mutex
	closed bool
	queues map[string]*queue
	graves map[string]time.Time // deleted queue → when its name is free again
	wakes  wakeHeap             // queues that have something to do at a known time
	seq    uint64               // numbers tasks, and timers as they are armed

	timer   uint64 // the armed timer's number, 0 if none
	timerAt time.Time
	disarm  func() bool
}

// queue is guarded by engine.mu.
type queue struct {
	name   string
	config *cloudtaskspb.Queue // replaced, never changed in place

	tasks   map[string]*task // by id; all that live, waiting or in flight
	order   []entry          // by seq; the first one lives
	holes   int              // entries without a task
	waiting taskHeap         // by due time
	gone    map[string]struct{}
	graves  []grave // of gone, oldest first

	bucket     bucket
	inFlight   int
	acceptFrom time.Time // CreateTask answers NOT_FOUND before
	startFrom  time.Time // nothing is dispatched before
	holdUntil  time.Time // system throttling
	throttle   time.Duration
	stats      Stats

	wake  time.Time
	index int // in engine.wakes, -1 if nothing to do
}

// entry keeps its place in queue.order when its task has gone.
type entry struct {
	seq uint64
	t   *task
}

type grave struct {
	id    string
	until time.Time
}

// task is guarded by engine.mu; request is never changed.
type task struct {
	q        *queue
	id       string
	seq      uint64
	request  *cloudtaskspb.HttpRequest
	retry    *cloudtaskspb.RetryConfig // nil: the queue's
	deadline time.Duration
	created  time.Time
	due      time.Time

	index   int // in queue.waiting, -1 while in flight
	running int // attempts in flight; more than one only by RunTask
	dead    bool

	dispatches int32
	responses  int32
	executions int32 // answers other than 5xx
	previous   int   // HTTP status of the last attempt, 0 if it got no answer
	first      time.Time
	last       record
}

// record is the last attempt, as GetTask reports it.
type record struct {
	scheduled, dispatched, responded time.Time
	status                           *status.Status
}

// attempt is one dispatch of a task: a snapshot that needs no lock.
type attempt struct {
	t          *task
	number     int32 // 1 for the first
	executions int32
	previous   int
	scheduled  time.Time
	dispatched time.Time
	target     *cloudtaskspb.HttpTarget
}

func (e *engine) retryOf(t *task) *cloudtaskspb.RetryConfig {
	if t.retry != nil {
		return t.retry
	}
	return t.q.config.GetRetryConfig()
}

// fire is the timer's function: it starts every attempt that is due.
func (e *engine) fire(number uint64) {
	for {
		e.mu.Lock()
		if e.timer == number {
			e.timer = 0
		}
		var a *attempt
		if !e.closed {
			a = e.next(e.clock.Now())
		}
		if a == nil {
			e.arm()
			e.mu.Unlock()
			return
		}
		if e.sequential {
			e.mu.Unlock()
			e.run(a)
			continue
		}
		e.wg.Add(1)
		e.mu.Unlock()
		go func() {
			defer e.wg.Done()
			e.run(a)
		}()
	}
}

// next takes the attempt that is to start first, nil if none is due.
func (e *engine) next(now time.Time) *attempt {
	for len(e.wakes) > 0 && !e.wakes[0].wake.After(now) {
		q := e.wakes[0]
		q.expire(now, e.nameTTL)
		var a *attempt
		if wake, ok := q.nextWake(); ok && !wake.After(now) {
			q.bucket.take(now)
			a = q.begin(heap.Pop(&q.waiting).(*task), now)
		}
		e.schedule(q)
		if a != nil {
			return a
		}
	}
	return nil
}

// nextWake is the earliest time at which the queue may start an attempt; ok is
// false if that takes a change first (a task, a resume, the end of an attempt).
func (q *queue) nextWake() (wake time.Time, ok bool) {
	if len(q.waiting) == 0 || q.config.GetState() != cloudtaskspb.Queue_RUNNING ||
		q.inFlight >= int(q.config.GetRateLimits().GetMaxConcurrentDispatches()) {
		return time.Time{}, false
	}
	wake = q.waiting[0].due
	for _, t := range []time.Time{q.startFrom, q.holdUntil, q.bucket.ready()} {
		if t.After(wake) {
			wake = t
		}
	}
	return wake, true
}

// begin marks t, which must not be waiting, as dispatched once more.
func (q *queue) begin(t *task, now time.Time) *attempt {
	t.dispatches++
	t.running++
	q.inFlight++
	q.stats.Dispatched++
	if t.first.IsZero() {
		t.first = now
	}
	t.last = record{scheduled: t.due, dispatched: now}
	return &attempt{
		t: t, number: t.dispatches, executions: t.executions, previous: t.previous,
		scheduled: t.due, dispatched: now, target: q.config.GetHttpTarget(),
	}
}

// run performs the attempt and records what came of it.
func (e *engine) run(a *attempt) {
	ctx, cancel := context.WithCancelCause(e.ctx)
	stop := e.clock.AfterFunc(a.t.deadline, func() { cancel(errDeadline) })
	o := e.send(ctx, a)
	stop()
	cancel(nil)
	e.finish(a, o)
}

func (e *engine) finish(a *attempt, o outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	t, q := a.t, a.t.q
	q.inFlight--
	t.running--
	if !e.closed {
		e.settleTask(a, o, now)
		q.adaptThrottle(o, now)
	}
	e.log.Debug("task attempt", "queue", q.name, "task", t.id, "attempt", a.number,
		"status", o.status, "error", o.err, "done", t.dead)
	if e.queues[q.name] == q {
		e.schedule(q)
		e.arm()
	}
}

// settleTask decides between done, given up and tried again.
func (e *engine) settleTask(a *attempt, o outcome, now time.Time) {
	t, q := a.t, a.t.q
	t.previous = o.status
	if o.status != 0 {
		t.responses++
		if o.status < 500 {
			t.executions++
		}
	}
	if a.number == t.dispatches {
		t.last.responded, t.last.status = now, o.rpcStatus()
	}
	retry := e.retryOf(t)
	switch {
	case t.dead: // deleted, purged, or another attempt of RunTask succeeded
	case o.ok():
		q.stats.Succeeded++
		q.remove(t, now, e.nameTTL)
	case exhausted(retry, a.number, t.first, now):
		q.stats.GivenUp++
		q.remove(t, now, e.nameTTL)
		e.log.Warn("task given up", "queue", q.name, "task", t.id, "attempts", a.number, "status", o.status, "error", o.err)
	case t.running == 0:
		t.due = now.Add(max(backoff(retry, a.number), min(o.retryAfter, retryAfterCap)))
		heap.Push(&q.waiting, t)
	}
}

// adaptThrottle holds the queue back after 429 and 503. Answers to attempts
// that were already out when the hold began prolong it by Retry-After only,
// so that a burst of refusals counts as one.
func (q *queue) adaptThrottle(o outcome, now time.Time) {
	if o.status != http.StatusTooManyRequests && o.status != http.StatusServiceUnavailable {
		if o.status != 0 {
			q.throttle = 0
		}
		return
	}
	hold := min(o.retryAfter, retryAfterCap)
	if !now.Before(q.holdUntil) {
		q.throttle = min(max(2*q.throttle, throttleMin), throttleMax)
		hold = max(hold, q.throttle)
	}
	if until := now.Add(hold); until.After(q.holdUntil) {
		q.holdUntil = until
	}
}

// add puts a task into the queue.
func (q *queue) add(t *task) {
	q.tasks[t.id] = t
	q.order = append(q.order, entry{t.seq, t})
	heap.Push(&q.waiting, t)
}

// remove takes a task out of the queue and keeps its name taken for ttl.
func (q *queue) remove(t *task, now time.Time, ttl time.Duration) {
	if t.dead {
		return
	}
	t.dead = true
	delete(q.tasks, t.id)
	if t.index >= 0 {
		heap.Remove(&q.waiting, t.index)
	}
	q.gone[t.id] = struct{}{}
	q.graves = append(q.graves, grave{t.id, now.Add(ttl)})
	q.order[q.find(t.seq)].t = nil
	q.holes++
	for len(q.order) > 0 && q.order[0].t == nil {
		q.order = q.order[1:]
		q.holes--
	}
	if q.holes > 32 && q.holes > len(q.order)/2 {
		q.order = slices.DeleteFunc(q.order, func(e entry) bool { return e.t == nil })
		q.holes = 0
	}
}

// find is the index in q.order of the first entry numbered seq or more.
func (q *queue) find(seq uint64) int {
	i, _ := slices.BinarySearchFunc(q.order, seq, func(e entry, seq uint64) int { return cmp.Compare(e.seq, seq) })
	return i
}

// expire forgets tasks and tombstones whose time is over.
func (q *queue) expire(now time.Time, ttl time.Duration) {
	for len(q.order) > 0 && now.Sub(q.order[0].t.created) >= taskLife {
		q.stats.Expired++
		q.remove(q.order[0].t, now, ttl)
	}
	for len(q.graves) > 0 && !q.graves[0].until.After(now) {
		delete(q.gone, q.graves[0].id)
		q.graves = q.graves[1:]
	}
}

// arm sets the timer to the earliest wake of any queue.
func (e *engine) arm() {
	if e.closed || len(e.wakes) == 0 {
		if e.timer != 0 {
			e.disarm()
			e.timer = 0
		}
		return
	}
	at := e.wakes[0].wake
	if e.timer != 0 {
		if e.timerAt.Equal(at) {
			return
		}
		e.disarm()
	}
	e.seq++
	number := e.seq
	e.timer, e.timerAt = number, at
	e.disarm = e.clock.AfterFunc(at.Sub(e.clock.Now()), func() { e.fire(number) })
}

// schedule puts the queue where it belongs among the wakes after any change.
func (e *engine) schedule(q *queue) {
	wake, ok := q.nextWake()
	switch {
	case !ok && q.index >= 0:
		heap.Remove(&e.wakes, q.index)
	case ok && q.index >= 0:
		q.wake = wake
		heap.Fix(&e.wakes, q.index)
	case ok:
		q.wake = wake
		heap.Push(&e.wakes, q)
	}
}

func (e *engine) close() {
	e.mu.Lock()
	e.closed = true
	e.arm()
	e.mu.Unlock()
	e.cancel()
	e.wg.Wait()
}

type taskHeap []*task

func (h taskHeap) Len() int { return len(h) }
func (h taskHeap) Less(i, j int) bool {
	if !h[i].due.Equal(h[j].due) {
		return h[i].due.Before(h[j].due)
	}
	return h[i].seq < h[j].seq
}
func (h taskHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *taskHeap) Push(x any) {
	t := x.(*task)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *taskHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}

type wakeHeap []*queue

func (h wakeHeap) Len() int { return len(h) }
func (h wakeHeap) Less(i, j int) bool {
	if !h[i].wake.Equal(h[j].wake) {
		return h[i].wake.Before(h[j].wake)
	}
	return h[i].name < h[j].name
}
func (h wakeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *wakeHeap) Push(x any) {
	q := x.(*queue)
	q.index = len(*h)
	*h = append(*h, q)
}
func (h *wakeHeap) Pop() any {
	old := *h
	q := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	q.index = -1
	return q
}
