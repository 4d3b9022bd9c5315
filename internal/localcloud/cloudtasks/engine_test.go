package cloudtasks

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	testLocation = "projects/p/locations/l"
	testQueue    = testLocation + "/queues/q"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is an emulator in virtual time with one queue and one handler.
type world struct {
	*testing.T
	*Server
	clock *VirtualClock
	hits  []string      // task ids in the order of their dispatch
	times []time.Time   // of the hits
	heads []http.Header // of the hits
	reply func(w http.ResponseWriter, r *http.Request)
}

func newWorld(t *testing.T, o Options, config *cloudtaskspb.Queue) *world {
	t.Helper()
	w := &world{T: t, clock: NewVirtualClock(epoch)}
	o.Clock, o.Sequential = w.clock, true
	o.Rand = rand.New(rand.NewPCG(1, 2))
	o.Transport = HandlerTransport(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.hits = append(w.hits, r.Header.Get("X-CloudTasks-TaskName"))
		w.times = append(w.times, w.clock.Now())
		w.heads = append(w.heads, r.Header)
		if w.reply != nil {
			w.reply(rw, r)
		}
	}))
	w.Server = New(o)
	t.Cleanup(w.Close)
	if config == nil {
		config = &cloudtaskspb.Queue{}
	}
	config.Name = testQueue
	if _, err := w.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: testLocation, Queue: config}); err != nil {
		t.Fatal(err)
	}
	return w
}

// answers makes the handler answer with these statuses in turn, then 200.
func (w *world) answers(statuses ...int) {
	w.reply = func(rw http.ResponseWriter, _ *http.Request) {
		if len(statuses) > 0 {
			rw.WriteHeader(statuses[0])
			statuses = statuses[1:]
		}
	}
}

// task creates a task, at the given time from epoch; "" leaves the name out.
func (w *world) task(id string, at time.Duration) error {
	t := httpTask("http://h/")
	if id != "" {
		t.Name = testQueue + "/tasks/" + id
	}
	t.ScheduleTime = timestamppb.New(epoch.Add(at))
	_, err := w.CreateTask(w.Context(), &cloudtaskspb.CreateTaskRequest{Parent: testQueue, Task: t})
	return err
}

func (w *world) mustTask(id string, at time.Duration) {
	w.Helper()
	if err := w.task(id, at); err != nil {
		w.Fatal(err)
	}
}

func (w *world) get(id string) (*cloudtaskspb.Task, error) {
	return w.GetTask(w.Context(), &cloudtaskspb.GetTaskRequest{Name: testQueue + "/tasks/" + id})
}

func (w *world) offsets() []time.Duration {
	var out []time.Duration
	for _, t := range w.times {
		out = append(out, t.Sub(epoch))
	}
	return out
}

func httpTask(url string) *cloudtaskspb.Task {
	return &cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{Url: url}}}
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: code %v (%v), want %v", what, got, err, want)
	}
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

func TestDispatchInOrderOfSchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	w.mustTask("later", 2*time.Second)
	w.mustTask("now-1", 0)
	w.mustTask("past", -time.Hour)
	w.mustTask("soon", time.Second)
	w.clock.Advance(0)
	equal(t, "due at once", w.hits, []string{"now-1", "past"})
	w.clock.Advance(time.Hour)
	equal(t, "all", w.hits, []string{"now-1", "past", "soon", "later"})
	equal(t, "times", w.offsets(), []time.Duration{0, 0, time.Second, 2 * time.Second})
	if st, _ := w.Stats(testQueue); st != (Stats{Dispatched: 4, Succeeded: 4}) {
		t.Errorf("stats = %+v", st)
	}
}

func TestRateBelowOnePerSecond(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{Burst: func(float64) int32 { return 1 }},
		&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 0.2}})
	for i := range 4 {
		w.mustTask(fmt.Sprint(i), 0)
	}
	w.clock.Advance(time.Minute)
	equal(t, "times", w.offsets(), []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second})
}

func TestBurstThenRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1}})
	for i := range 12 {
		w.mustTask(fmt.Sprint(i), 0)
	}
	w.clock.Advance(0)
	if len(w.hits) != 10 {
		t.Errorf("%d tasks at once, want the burst of 10", len(w.hits))
	}
	w.clock.Advance(2 * time.Second)
	equal(t, "after the burst", w.offsets()[10:], []time.Duration{time.Second, 2 * time.Second})
}

func TestRetriesFollowBackoffAndHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, &cloudtaskspb.Queue{RetryConfig: retryConfig(-1, 10*time.Second, 300*time.Second, 3, 0)})
	w.answers(500, 404, 302, 500, 500, 500, 500)
	w.mustTask("t", 0)
	w.clock.Advance(time.Hour)
	s := time.Second
	equal(t, "times", w.offsets(), []time.Duration{0, 10 * s, 30 * s, 70 * s, 150 * s, 310 * s, 550 * s, 850 * s})
	for i, want := range []struct{ retries, executions, previous string }{
		{"0", "0", ""}, {"1", "0", "500"}, {"2", "1", "404"}, {"3", "2", "302"}, {"4", "2", "500"}, {"5", "2", "500"},
	} {
		h := w.heads[i]
		if h.Get("X-CloudTasks-TaskRetryCount") != want.retries || h.Get("X-CloudTasks-TaskExecutionCount") != want.executions ||
			h.Get("X-CloudTasks-TaskPreviousResponse") != want.previous {
			t.Errorf("attempt %d: headers %v, want %+v", i+1, h, want)
		}
		if reason, there := h["X-Cloudtasks-Taskretryreason"]; there != (i > 0) || strings.Join(reason, "") != "" {
			t.Errorf("attempt %d: retry reason %q", i+1, reason)
		}
	}
	if got, want := w.heads[1].Get("X-CloudTasks-TaskETA"), fmt.Sprintf("%d.000000", epoch.Add(10*s).Unix()); got != want {
		t.Errorf("ETA of the first retry = %s, want %s", got, want)
	}
	_, err := w.get("t")
	wantCode(t, "task done", err, codes.NotFound)
}

// Measured on production: answers of 503 leave the execution count at 0 while
// the retry count goes up.
func TestExecutionCountIgnoresServerErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	w.answers(503, 503, 503, 503)
	w.mustTask("t", 0)
	w.clock.Advance(time.Hour)
	var got []string
	for _, h := range w.heads {
		got = append(got, h.Get("X-CloudTasks-TaskExecutionCount")+"/"+h.Get("X-CloudTasks-TaskRetryCount"))
	}
	equal(t, "execution/retry counts", got, []string{"0/0", "0/1", "0/2", "0/3", "0/4"})
}

func TestGivingUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		retry    *cloudtaskspb.RetryConfig
		attempts int
	}{
		{"attempts only", retryConfig(3, time.Second, time.Second, 0, 0), 3},
		{"one attempt", retryConfig(1, time.Second, time.Second, 0, 0), 1},
		{"attempts, then the rest of the age", retryConfig(2, time.Second, time.Second, 0, 4*time.Second), 5},
		{"age only", retryConfig(-1, time.Second, time.Second, 0, 2*time.Second), 3},
		{"neither, to the age of 31 days", retryConfig(-1, 24*time.Hour, 24*time.Hour, 0, 0), 31},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{}, &cloudtaskspb.Queue{RetryConfig: c.retry})
			w.reply = func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(500) }
			w.mustTask("t", 0)
			w.clock.Advance(100 * 24 * time.Hour)
			if len(w.hits) != c.attempts {
				t.Errorf("%d attempts, want %d", len(w.hits), c.attempts)
			}
			st, _ := w.Stats(testQueue)
			if st.Depth != 0 || st.GivenUp+st.Expired != 1 {
				t.Errorf("stats = %+v", st)
			}
		})
	}
}

func TestTaskRetryConfigReplacesTheQueues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, &cloudtaskspb.Queue{RetryConfig: retryConfig(9, time.Second, time.Second, 0, 0)})
	w.reply = func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(500) }
	task := httpTask("http://h/")
	task.RetryConfig = retryConfig(2, time.Minute, time.Minute, 0, 0)
	if _, err := w.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: testQueue, Task: task}); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Hour)
	equal(t, "times", w.offsets(), []time.Duration{0, time.Minute})
}

func TestThrottleHoldsTheWholeQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, &cloudtaskspb.Queue{RetryConfig: retryConfig(-1, time.Second/10, time.Second/10, 0, 0)})
	w.answers(503, 503, 429, 200)
	w.mustTask("a", 0)
	w.mustTask("b", 100*time.Millisecond)
	w.clock.Advance(time.Minute)
	s := time.Second
	// 1, 2 and 4 s of hold; everything due in between waits for its end.
	equal(t, "times", w.offsets(), []time.Duration{0, s, 3 * s, 7 * s, 7 * s})

	w.answers(200, 503)
	w.mustTask("c", 2*time.Minute)
	w.mustTask("d", 3*time.Minute)
	w.clock.Advance(time.Hour)
	equal(t, "a success ends the series", w.offsets()[5:], []time.Duration{120 * s, 180 * s, 181 * s})
}

func TestRetryAfterHoldsTheWholeQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		header string
		want   time.Duration // of the other task
	}{
		{503, "30", 30 * time.Second},
		{429, epoch.Add(time.Minute).Format(http.TimeFormat), time.Minute},
		{503, "86400", time.Hour},
		{500, "30", time.Second / 2},
		{404, "30", time.Second / 2},
	} {
		w := newWorld(t, Options{}, nil)
		w.reply = func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-CloudTasks-TaskName") == "a" && len(w.hits) == 1 {
				rw.Header().Set("Retry-After", c.header)
				rw.WriteHeader(c.status)
			}
		}
		w.mustTask("a", 0)
		w.mustTask("b", time.Second/2)
		w.clock.Advance(2 * time.Hour)
		i := slices.Index(w.hits, "b")
		if got := w.offsets()[i]; got != c.want {
			t.Errorf("%d with Retry-After %q: next task after %v, want %v", c.status, c.header, got, c.want)
		}
	}
}

func TestPauseResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	if q, err := w.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: testQueue}); err != nil || q.State != cloudtaskspb.Queue_PAUSED {
		t.Fatal(q, err)
	}
	w.mustTask("a", 0)
	w.clock.Advance(time.Hour)
	equal(t, "while paused", w.hits, nil)
	for range 2 {
		if q, err := w.ResumeQueue(t.Context(), &cloudtaskspb.ResumeQueueRequest{Name: testQueue}); err != nil || q.State != cloudtaskspb.Queue_RUNNING {
			t.Fatal(q, err)
		}
	}
	w.mustTask("b", 2*time.Hour)
	w.clock.Advance(time.Hour)
	equal(t, "after resume", w.hits, []string{"a", "b"})
}

func TestPurge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	for i := range 100 {
		w.mustTask(fmt.Sprint("old", i), time.Hour)
	}
	w.clock.Advance(1500 * time.Nanosecond)
	q, err := w.PurgeQueue(t.Context(), &cloudtaskspb.PurgeQueueRequest{Name: testQueue})
	if err != nil || !q.GetPurgeTime().AsTime().Equal(epoch.Add(time.Microsecond)) {
		t.Fatal(q, err)
	}
	wantCode(t, "name of a purged task", w.task("old7", 0), codes.AlreadyExists)
	w.mustTask("new", time.Hour)
	w.clock.Advance(2 * time.Hour)
	equal(t, "hits", w.hits, []string{"new"})
}

func TestTombstones(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	w.mustTask("done", 0)
	w.mustTask("deleted", 24*time.Hour)
	wantCode(t, "duplicate of a waiting task", w.task("done", 0), codes.AlreadyExists)
	w.clock.Advance(0)
	if _, err := w.DeleteTask(t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: testQueue + "/tasks/deleted"}); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Hour - 1)
	wantCode(t, "done, just under an hour", w.task("done", 0), codes.AlreadyExists)
	wantCode(t, "deleted, just under an hour", w.task("deleted", 0), codes.AlreadyExists)
	w.clock.Advance(1)
	w.mustTask("done", 0)
	w.mustTask("deleted", 0)
	w.clock.Advance(time.Second)
	equal(t, "hits", w.hits, []string{"done", "done", "deleted"})

	none := newWorld(t, Options{TaskNameTTL: -1}, nil)
	none.mustTask("t", 0)
	none.clock.Advance(0)
	none.mustTask("t", 0)
}

func TestTombstonesArePerQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	other := testLocation + "/queues/other"
	if _, err := w.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: testLocation, Queue: &cloudtaskspb.Queue{Name: other}}); err != nil {
		t.Fatal(err)
	}
	w.mustTask("t", 0)
	w.clock.Advance(0)
	task := httpTask("http://h/")
	task.Name = other + "/tasks/t"
	if _, err := w.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: other, Task: task}); err != nil {
		t.Error(err)
	}
}

func TestQueueTombstone(t *testing.T) {
	t.Parallel()
	for _, ghost := range []bool{false, true} {
		w := newWorld(t, Options{GhostRecreate: ghost}, nil)
		w.mustTask("t", time.Hour)
		if _, err := w.DeleteQueue(t.Context(), &cloudtaskspb.DeleteQueueRequest{Name: testQueue}); err != nil {
			t.Fatal(err)
		}
		create := &cloudtaskspb.CreateQueueRequest{Parent: testLocation, Queue: &cloudtaskspb.Queue{Name: testQueue}}
		want := codes.FailedPrecondition
		if ghost {
			want = codes.OK
		}
		w.clock.Advance(7*24*time.Hour - 1)
		_, err := w.CreateQueue(t.Context(), create)
		wantCode(t, "recreate within seven days", err, want)
		_, err = w.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: create.Queue})
		wantCode(t, "recreate by update", err, want)
		_, err = w.GetQueue(t.Context(), &cloudtaskspb.GetQueueRequest{Name: testQueue})
		wantCode(t, "get", err, codes.NotFound)
		w.clock.Advance(1)
		if _, err := w.CreateQueue(t.Context(), create); err != nil {
			t.Error(err)
		}
		w.clock.Advance(time.Hour)
		equal(t, "tasks of the deleted queue", w.hits, nil)
	}
}

func TestNewQueueIsSlow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{QueueStartDelay: 2 * time.Minute, CreateTaskNotFoundFor: time.Minute}, nil)
	if _, err := w.GetQueue(t.Context(), &cloudtaskspb.GetQueueRequest{Name: testQueue}); err != nil {
		t.Error(err)
	}
	w.clock.Advance(time.Minute - 1)
	wantCode(t, "create too early", w.task("t", 0), codes.NotFound)
	w.clock.Advance(1)
	w.mustTask("t", 0)
	w.clock.Advance(time.Hour)
	equal(t, "times", w.offsets(), []time.Duration{2 * time.Minute})
}

func TestTasksVanishAfter31Days(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	if _, err := w.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: testQueue}); err != nil {
		t.Fatal(err)
	}
	w.mustTask("t", 0)
	w.clock.Advance(taskLife - 1)
	if _, err := w.get("t"); err != nil {
		t.Error(err)
	}
	w.clock.Advance(1)
	_, err := w.get("t")
	wantCode(t, "after 31 days", err, codes.NotFound)
	if _, err := w.ResumeQueue(t.Context(), &cloudtaskspb.ResumeQueueRequest{Name: testQueue}); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Hour)
	equal(t, "hits", w.hits, nil)
}

func TestUnparsableURLIsAFailingTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	task := httpTask("http://example.com/%zz")
	task.Name = testQueue + "/tasks/t"
	if _, err := w.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: testQueue, Task: task}); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Minute)
	got, err := w.get("t")
	if err != nil || got.DispatchCount < 2 || got.ResponseCount != 0 || got.LastAttempt.ResponseStatus.Code != int32(codes.Unknown) {
		t.Errorf("task = %v, %v", got, err)
	}
}

func TestRunTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, &cloudtaskspb.Queue{RetryConfig: retryConfig(-1, time.Minute, time.Minute, 0, 0)})
	w.answers(500)
	w.mustTask("t", 24*time.Hour)
	if _, err := w.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: testQueue}); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Second)
	run := func() *cloudtaskspb.Task {
		got, err := w.RunTask(t.Context(), &cloudtaskspb.RunTaskRequest{Name: testQueue + "/tasks/t"})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := run(); got.DispatchCount != 1 || got.ResponseCount != 0 || got.LastAttempt.ResponseTime != nil || !got.LastAttempt.DispatchTime.AsTime().Equal(epoch.Add(time.Second)) {
		t.Errorf("answer of RunTask = %v", got)
	}
	w.clock.Advance(0)
	got, err := w.get("t")
	if err != nil || !got.ScheduleTime.AsTime().Equal(epoch.Add(time.Second+time.Minute)) || got.LastAttempt.ResponseStatus.Code != int32(codes.Internal) {
		t.Errorf("after a failed run: %v, %v", got, err)
	}
	run()
	w.clock.Advance(0)
	_, err = w.get("t")
	wantCode(t, "after a successful run", err, codes.NotFound)
	if len(w.hits) != 2 {
		t.Errorf("%d dispatches, want 2", len(w.hits))
	}
}

func TestAttemptFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, &cloudtaskspb.Queue{RetryConfig: retryConfig(-1, time.Second, time.Second, 0, 0)})
	w.answers(500, 404, 500)
	w.reply = func(next func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) {
		return func(rw http.ResponseWriter, r *http.Request) {
			if len(w.hits) == 3 {
				panic(http.ErrAbortHandler)
			}
			next(rw, r)
		}
	}(w.reply)
	w.clock.Advance(1234567 * time.Nanosecond)
	w.mustTask("t", 0)
	got, err := w.get("t")
	if err != nil || !got.CreateTime.AsTime().Equal(epoch) || !got.ScheduleTime.AsTime().Equal(epoch.Add(1234*time.Microsecond)) || got.FirstAttempt != nil {
		t.Errorf("new task = %v, %v", got, err)
	}
	for i, want := range []struct {
		responses int32
		code      codes.Code
		message   string
	}{{1, codes.Internal, "HTTP status code 500"}, {2, codes.NotFound, "HTTP status code 404"}, {2, codes.Unknown, "HTTP status code 0"}} {
		if i > 0 {
			w.clock.Advance(time.Second)
		}
		w.clock.Advance(0)
		got, err := w.get("t")
		if err != nil {
			t.Fatal(err)
		}
		st := got.LastAttempt.ResponseStatus
		if got.DispatchCount != int32(i+1) || got.ResponseCount != want.responses || st.Code != int32(want.code) || st.Message != want.message {
			t.Errorf("after attempt %d: %v", i+1, got)
		}
	}
}

func TestDeleteFromWithinTheHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, nil)
	w.reply = func(rw http.ResponseWriter, _ *http.Request) {
		if _, err := w.DeleteQueue(w.Context(), &cloudtaskspb.DeleteQueueRequest{Name: testQueue}); err != nil {
			t.Error(err)
		}
		rw.WriteHeader(500)
	}
	w.mustTask("a", 0)
	w.mustTask("b", 0)
	w.clock.Advance(time.Hour)
	equal(t, "hits", w.hits, []string{"a"})
}

func TestFaults(t *testing.T) {
	t.Parallel()
	var before, after error
	w := newWorld(t, Options{
		Fault:       func(method string) error { return map[bool]error{true: before}[method == "CreateTask"] },
		AnswerFault: func(method string) error { return map[bool]error{true: after}[method == "CreateTask"] },
	}, nil)
	before = status.Error(codes.Unavailable, "down")
	wantCode(t, "fault", w.task("t", 0), codes.Unavailable)
	before, after = nil, status.Error(codes.DeadlineExceeded, "lost")
	wantCode(t, "lost answer", w.task("t", 0), codes.DeadlineExceeded)
	after = nil
	wantCode(t, "retry after a lost answer", w.task("t", 0), codes.AlreadyExists)
	w.clock.Advance(0)
	equal(t, "hits", w.hits, []string{"t"})
}

// The same calls in the same virtual time give the same dispatches.
func TestSequentialIsDeterministic(t *testing.T) {
	t.Parallel()
	run := func() ([]string, []time.Duration) {
		w := newWorld(t, Options{}, &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 3}})
		rng := rand.New(rand.NewPCG(7, 7))
		w.reply = func(rw http.ResponseWriter, _ *http.Request) {
			if rng.IntN(3) == 0 {
				rw.WriteHeader([]int{429, 500, 503}[rng.IntN(3)])
			}
		}
		for range 200 {
			w.mustTask("", time.Duration(rng.IntN(60))*time.Second)
		}
		w.clock.Advance(time.Hour)
		return w.hits, w.offsets()
	}
	hits, times := run()
	hits2, times2 := run()
	equal(t, "hits of the second run", hits2, hits)
	equal(t, "times of the second run", times2, times)
	if len(hits) < 200 {
		t.Errorf("only %d dispatches", len(hits))
	}
}

// blocking is a transport whose attempts last until released or cancelled.
type blocking struct{ release chan int }

func (b blocking) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case code := <-b.release:
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: http.NoBody}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func synctestServer(t *testing.T, transport http.RoundTripper, config *cloudtaskspb.Queue) *Server {
	s := New(Options{Transport: transport})
	config.Name = testQueue
	if _, err := s.CreateQueue(context.Background(), &cloudtaskspb.CreateQueueRequest{Parent: testLocation, Queue: config}); err != nil {
		t.Fatal(err)
	}
	return s
}

func add(t *testing.T, s *Server, n int, deadline time.Duration) {
	t.Helper()
	for range n {
		task := httpTask("http://h/")
		if deadline != 0 {
			task.DispatchDeadline = durationpb.New(deadline)
		}
		if _, err := s.CreateTask(context.Background(), &cloudtaskspb.CreateTaskRequest{Parent: testQueue, Task: task}); err != nil {
			t.Fatal(err)
		}
	}
}

// pass lets time go by in a bubble, and all that it sets off.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestConcurrencyLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := blocking{make(chan int)}
		s := synctestServer(t, b, &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 3}})
		defer s.Close()
		add(t, s, 5, 0)
		synctest.Wait()
		for _, want := range []Stats{{Depth: 5, InFlight: 3, Dispatched: 3}, {Depth: 4, InFlight: 3, Dispatched: 4, Succeeded: 1}, {Depth: 3, InFlight: 3, Dispatched: 5, Succeeded: 2}, {Depth: 2, InFlight: 2, Dispatched: 5, Succeeded: 3}} {
			if st, _ := s.Stats(testQueue); st != want {
				t.Errorf("stats = %+v, want %+v", st, want)
			}
			b.release <- 200
			synctest.Wait()
		}
	})
}

func TestDispatchDeadlineCancelsTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var took []time.Duration
		s := synctestServer(t, HandlerTransport(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			begin := time.Now()
			<-r.Context().Done()
			took = append(took, time.Since(begin))
		})), &cloudtaskspb.Queue{RetryConfig: retryConfig(2, time.Second, time.Second, 0, 0)})
		defer s.Close()
		add(t, s, 1, 15*time.Second)
		pass(10 * time.Second)
		list, err := s.ListTasks(context.Background(), &cloudtaskspb.ListTasksRequest{Parent: testQueue})
		if err != nil || len(list.Tasks) != 1 || list.Tasks[0].LastAttempt.ResponseTime != nil {
			t.Fatal(list, err)
		}
		pass(5 * time.Second)
		list, _ = s.ListTasks(context.Background(), &cloudtaskspb.ListTasksRequest{Parent: testQueue})
		if got := list.Tasks[0]; got.ResponseCount != 0 || got.LastAttempt.ResponseStatus.GetCode() != int32(codes.DeadlineExceeded) {
			t.Errorf("after the deadline: %v", got)
		}
		pass(time.Minute)
		equal(t, "attempts lasted", took, []time.Duration{15 * time.Second, 15 * time.Second})
		if st, _ := s.Stats(testQueue); st.GivenUp != 1 {
			t.Errorf("stats at %v = %+v", time.Since(start), st)
		}
	})
}

func TestPausePurgeDeleteRecallNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(*Server) error
		end  int
		want Stats
		gone bool
	}{
		{"pause", func(s *Server) error {
			_, err := s.PauseQueue(context.Background(), &cloudtaskspb.PauseQueueRequest{Name: testQueue})
			return err
		}, 200, Stats{Dispatched: 1, Succeeded: 1}, false},
		{"purge", func(s *Server) error {
			_, err := s.PurgeQueue(context.Background(), &cloudtaskspb.PurgeQueueRequest{Name: testQueue})
			return err
		}, 500, Stats{Dispatched: 1}, false},
		{"delete", func(s *Server) error {
			_, err := s.DeleteQueue(context.Background(), &cloudtaskspb.DeleteQueueRequest{Name: testQueue})
			return err
		}, 500, Stats{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := blocking{make(chan int)}
				s := synctestServer(t, b, &cloudtaskspb.Queue{})
				defer s.Close()
				add(t, s, 1, 0)
				synctest.Wait()
				if err := c.do(s); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				b.release <- c.end // still there to be released
				pass(time.Hour)
				if st, ok := s.Stats(testQueue); st != c.want || ok == c.gone {
					t.Errorf("stats = %+v, %v", st, ok)
				}
			})
		})
	}
}

func TestRunTaskWhileInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := blocking{make(chan int)}
		s := synctestServer(t, b, &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1}, RetryConfig: retryConfig(-1, time.Minute, time.Minute, 0, 0)})
		defer s.Close()
		add(t, s, 1, 0)
		synctest.Wait()
		list, err := s.ListTasks(context.Background(), &cloudtaskspb.ListTasksRequest{Parent: testQueue})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.RunTask(context.Background(), &cloudtaskspb.RunTaskRequest{Name: list.Tasks[0].Name}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if st, _ := s.Stats(testQueue); st.InFlight != 2 {
			t.Errorf("stats = %+v", st)
		}
		b.release <- 500
		pass(time.Hour / 10) // no retry while the other attempt lasts
		if st, _ := s.Stats(testQueue); st != (Stats{Depth: 1, InFlight: 1, Dispatched: 2}) {
			t.Errorf("stats = %+v", st)
		}
		b.release <- 200
		synctest.Wait()
		if st, _ := s.Stats(testQueue); st != (Stats{Dispatched: 2, Succeeded: 1}) {
			t.Errorf("stats = %+v", st)
		}
	})
}

func TestCloseCancelsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := synctestServer(t, blocking{nil}, &cloudtaskspb.Queue{})
		add(t, s, 10, 0)
		synctest.Wait()
		s.Close()
		s.Close()
		if st, _ := s.Stats(testQueue); st.InFlight != 0 || st.Depth != 10 {
			t.Errorf("stats = %+v", st)
		}
	})
}

func TestBacklogCostsNoGoroutines(t *testing.T) {
	s := New(Options{Transport: blocking{}})
	defer s.Close()
	ctx := t.Context()
	if _, err := s.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: testLocation, Queue: &cloudtaskspb.Queue{
		Name: testQueue, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1, MaxConcurrentDispatches: 2},
	}}); err != nil {
		t.Fatal(err)
	}
	const n = 100_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	for i := range n {
		task := httpTask("http://h/")
		task.Name = fmt.Sprintf("%s/tasks/t%d", testQueue, i)
		if _, err := s.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: testQueue, Task: task}); err != nil {
			t.Fatal(err)
		}
	}
	// Two attempts in flight, and the timer's function while it runs.
	if more := runtime.NumGoroutine() - goroutines; more > 4 {
		t.Errorf("%d more goroutines with %d tasks waiting", more, n)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n; each > 2048 {
		t.Errorf("a waiting task takes %d bytes", each)
	}
	if st, _ := s.Stats(testQueue); st.Depth != n || st.InFlight > 2 {
		t.Errorf("stats = %+v", st)
	}
}

func TestBacklogLeavesAtItsRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{}, &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1}})
	const n = 100_000
	for i := range n {
		w.mustTask(fmt.Sprintf("t%d", i), 0)
	}
	w.clock.Advance(1000 * time.Second)
	if st, _ := w.Stats(testQueue); len(w.hits) != 1010 || st.Depth != n-1010 || st.InFlight != 0 {
		t.Errorf("after 1,000 s %d dispatched (want 1,010), %+v", len(w.hits), st)
	}
}

// Everything at once, for the race detector and for panics; at the end every
// task is accounted for.
func TestHammer(t *testing.T) {
	t.Parallel()
	s := New(Options{TaskNameTTL: -1, QueueNameTTL: -1, Transport: HandlerTransport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.Header.Get("X-CloudTasks-TaskName"), "7") && r.Header.Get("X-CloudTasks-TaskRetryCount") == "0" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))})
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 400 {
				queue := fmt.Sprintf("%s/queues/q%d", testLocation, rng.IntN(3))
				name := fmt.Sprintf("%s/tasks/t%d", queue, rng.IntN(50))
				switch rng.IntN(12) {
				case 0:
					_, _ = s.UpdateQueue(ctx, &cloudtaskspb.UpdateQueueRequest{Queue: &cloudtaskspb.Queue{Name: queue, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1 + rng.Float64()*400, MaxConcurrentDispatches: int32(1 + rng.IntN(9))}}})
				case 1:
					_, _ = s.PauseQueue(ctx, &cloudtaskspb.PauseQueueRequest{Name: queue})
				case 2, 3:
					_, _ = s.ResumeQueue(ctx, &cloudtaskspb.ResumeQueueRequest{Name: queue})
				case 4:
					_, _ = s.PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: queue})
				case 5:
					if rng.IntN(10) == 0 {
						_, _ = s.DeleteQueue(ctx, &cloudtaskspb.DeleteQueueRequest{Name: queue})
					}
				case 6:
					_, _ = s.RunTask(ctx, &cloudtaskspb.RunTaskRequest{Name: name})
				case 7:
					_, _ = s.DeleteTask(ctx, &cloudtaskspb.DeleteTaskRequest{Name: name})
				case 8:
					_, _ = s.ListTasks(ctx, &cloudtaskspb.ListTasksRequest{Parent: queue, PageSize: 3})
				default:
					task := httpTask("http://h/")
					task.Name = name
					_, _ = s.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task})
				}
			}
		})
	}
	wg.Wait()
	s.Close()
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for name, q := range s.e.queues {
		if q.inFlight != 0 || len(q.order)-q.holes != len(q.tasks) || len(q.waiting) > len(q.tasks) {
			t.Errorf("%s: %d in flight, %d in order, %d holes, %d waiting, %d tasks", name, q.inFlight, len(q.order), q.holes, len(q.waiting), len(q.tasks))
		}
	}
}

func TestOIDCToken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ audience, want string }{{"", "http://h/x?y=1"}, {"https://aud.example", "https://aud.example"}} {
		w := newWorld(t, Options{}, nil)
		task := httpTask("http://h/x?y=1")
		task.GetHttpRequest().Headers = map[string]string{"authorization": "Basic mine"}
		task.GetHttpRequest().AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{OidcToken: &cloudtaskspb.OidcToken{ServiceAccountEmail: "a@p.iam.gserviceaccount.com", Audience: c.audience}}
		if _, err := w.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: testQueue, Task: task}); err != nil {
			t.Fatal(err)
		}
		w.clock.Advance(0)
		token, ok := strings.CutPrefix(w.heads[0].Get("Authorization"), "Bearer ")
		parts := strings.Split(token, ".")
		if !ok || len(parts) != 3 || parts[2] != "SIGNATURE_REMOVED_BY_GOOGLE" {
			t.Fatalf("token %q", token)
		}
		raw, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil {
			t.Fatal(err)
		}
		var claims struct {
			Iss, Aud, Email string
			Verified        bool `json:"email_verified"`
			Iat, Exp        int64
		}
		if err := json.Unmarshal(raw, &claims); err != nil {
			t.Fatal(err)
		}
		if claims.Iss != "https://accounts.google.com" || claims.Aud != c.want || claims.Email != "a@p.iam.gserviceaccount.com" || !claims.Verified ||
			claims.Iat != epoch.Unix() || claims.Exp != epoch.Add(time.Hour).Unix() {
			t.Errorf("claims %+v", claims)
		}
	}
}

func TestQueueTargetOverridesTasks(t *testing.T) {
	t.Parallel()
	host := "other.example"
	w := newWorld(t, Options{}, &cloudtaskspb.Queue{HttpTarget: &cloudtaskspb.HttpTarget{
		UriOverride:     &cloudtaskspb.UriOverride{Host: &host},
		HttpMethod:      cloudtaskspb.HttpMethod_PUT,
		HeaderOverrides: []*cloudtaskspb.HttpTarget_HeaderOverride{{Header: &cloudtaskspb.HttpTarget_Header{Key: "X-One", Value: "queue"}}, {Header: &cloudtaskspb.HttpTarget_Header{Key: "X-CloudTasks-TaskName", Value: "forged"}}},
		AuthorizationHeader: &cloudtaskspb.HttpTarget_OauthToken{OauthToken: &cloudtaskspb.OAuthToken{
			ServiceAccountEmail: "a@p.iam.gserviceaccount.com", Scope: "s",
		}},
	}})
	seen := ""
	w.reply = func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen = fmt.Sprint(r.Method, " ", r.Host, r.URL.Path, " ", r.Header.Get("X-One"), " ", string(body))
	}
	task := httpTask("http://h/x")
	task.Name = testQueue + "/tasks/t"
	task.GetHttpRequest().Body = []byte("body")
	task.GetHttpRequest().Headers = map[string]string{"X-One": "task"}
	if _, err := w.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: testQueue, Task: task}); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(0)
	if seen != "PUT other.example/x queue body" || !strings.HasPrefix(w.heads[0].Get("Authorization"), "Bearer ya29.") {
		t.Errorf("request %q, headers %v", seen, w.heads[0])
	}
	equal(t, "hits", w.hits, []string{"t"})
}

func TestVirtualClock(t *testing.T) {
	t.Parallel()
	c := NewVirtualClock(epoch)
	var got []string
	note := func(s string) func() {
		return func() { got = append(got, s+c.Now().Sub(epoch).String()) }
	}
	c.AfterFunc(2*time.Second, note("b"))
	c.AfterFunc(time.Second, func() {
		note("a")()
		c.AfterFunc(500*time.Millisecond, note("nested"))
	})
	c.AfterFunc(2*time.Second, note("c"))
	stop := c.AfterFunc(time.Second, note("never"))
	if !stop() || stop() {
		t.Error("stop is true once, before the call")
	}
	if at, ok := c.Next(); !ok || !at.Equal(epoch.Add(time.Second)) {
		t.Errorf("next = %v, %v", at, ok)
	}
	c.Advance(2 * time.Second)
	equal(t, "calls", got, []string{"a1s", "nested1.5s", "b2s", "c2s"})
	if _, ok := c.Next(); ok || !c.Now().Equal(epoch.Add(2*time.Second)) {
		t.Errorf("now = %v", c.Now())
	}
}
