package cloudtasks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	api "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sealpost/sealpost/internal/localcloud/cloudtasks"
)

const (
	location = "projects/demo/locations/europe-west1"
	queue    = location + "/queues/q"
)

// dial starts an emulator and returns Google's client for it.
func dial(t *testing.T, o cloudtasks.Options) (*api.Client, *cloudtasks.Server) {
	t.Helper()
	s := cloudtasks.New(o)
	addr, err := s.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	c, err := api.NewClient(t.Context(), option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, s
}

func mustCreateQueue(t *testing.T, c *api.Client, q *cloudtaskspb.Queue) *cloudtaskspb.Queue {
	t.Helper()
	got, err := c.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func post(url string) *cloudtaskspb.Task {
	return &cloudtaskspb.Task{MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{Url: url}}}
}

// received is a request as an ordinary HTTP server got it.
type received struct {
	method, host, path string
	header             http.Header
	length             int64
	body               []byte
}

// target is an HTTP server that hands every request to the test and answers
// 200.
func target(t *testing.T) (url string, got <-chan received) {
	ch := make(chan received, 100)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		ch <- received{r.Method, r.Host, r.URL.Path, r.Header, r.ContentLength, body}
	}))
	t.Cleanup(s.Close)
	return s.URL, ch
}

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{})
	mustCreateQueue(t, c, &cloudtaskspb.Queue{Name: queue})
	url, got := target(t)
	body := []byte("{\"n\":1152921504606846977,\"f\":0.0,\"e\":\"\\u001B\"}\xff\xfe\x00\n")
	task := post(url + "/attempt")
	task.Name = queue + "/tasks/a1-b_2"
	task.GetHttpRequest().Body = body
	task.GetHttpRequest().Headers = map[string]string{
		"content-type": "application/json", "X-Mine": "a, b", "Host": "forged", "content-length": "3", "USER-AGENT": "forged",
		"X-CloudTasks-QueueName": "forged", "X-Google-Foo": "forged", "x-appengine-bar": "forged", "Transfer-Encoding": "chunked",
	}
	created, err := c.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task})
	if err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.method != "POST" || r.path != "/attempt" || r.host != strings.TrimPrefix(url, "http://") || r.length != int64(len(body)) || !bytes.Equal(r.body, body) {
		t.Errorf("request %+v", r)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "X-Mine": "a, b", "User-Agent": "Google-Cloud-Tasks",
		"X-CloudTasks-QueueName": "q", "X-CloudTasks-TaskName": "a1-b_2", "X-CloudTasks-TaskRetryCount": "0", "X-CloudTasks-TaskExecutionCount": "0",
		"X-CloudTasks-TaskETA": fmt.Sprintf("%d.%06d", created.ScheduleTime.Seconds, created.ScheduleTime.Nanos/1000),
		"Content-Length":       fmt.Sprint(len(body)),
	} {
		if v := r.header.Get(name); v != want {
			t.Errorf("%s = %q, want %q", name, v, want)
		}
	}
	for _, name := range []string{"X-Google-Foo", "X-Appengine-Bar", "X-Cloudtasks-Taskpreviousresponse", "X-Cloudtasks-Taskretryreason", "Accept-Encoding", "Authorization"} {
		if v, there := r.header[name]; there {
			t.Errorf("header %s: %q", name, v)
		}
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{})
	mustCreateQueue(t, c, &cloudtaskspb.Queue{Name: queue})
	url, got := target(t)
	for m, name := range cloudtaskspb.HttpMethod_name {
		task := post(url)
		task.GetHttpRequest().HttpMethod = cloudtaskspb.HttpMethod(m)
		if _, err := c.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task}); err != nil {
			t.Fatal(name, err)
		}
		if m == 0 {
			name = "POST"
		}
		if r := <-got; r.method != name || len(r.body) != 0 {
			t.Errorf("%s arrived as %+v", name, r)
		}
	}
}

func TestRedirectIsAFailureAndNotFollowed(t *testing.T) {
	t.Parallel()
	c, s := dial(t, cloudtasks.Options{})
	mustCreateQueue(t, c, &cloudtaskspb.Queue{Name: queue, RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 2}})
	hits := make(chan string, 10)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits <- r.URL.Path
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	t.Cleanup(web.Close)
	if _, err := c.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: post(web.URL + "/first")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := <-hits; got != "/first" {
			t.Errorf("request to %s", got)
		}
	}
	if st, _ := s.Stats(queue); st.Dispatched != 2 {
		t.Errorf("stats %+v", st)
	}
}

// refusal is a call's error and what it has to be.
type refusal struct {
	what string
	err  error
	code codes.Code
	says string
}

func checkRefusals(t *testing.T, all []refusal) {
	t.Helper()
	for _, e := range all {
		if got := status.Convert(e.err); got.Code() != e.code || !strings.Contains(got.Message(), e.says) {
			t.Errorf("%s: %v, want %v with %q", e.what, e.err, e.code, e.says)
		}
	}
}

const absent = location + "/queues/absent"

func TestQueueSettingsRefused(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{})
	mustCreateQueue(t, c, &cloudtaskspb.Queue{Name: queue})
	createQueue := func(parent string, q *cloudtaskspb.Queue) error {
		return second(c.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: q}))
	}
	config := func(l *cloudtaskspb.RateLimits, r *cloudtaskspb.RetryConfig) error {
		return createQueue(location, &cloudtaskspb.Queue{Name: location + "/queues/bad", RateLimits: l, RetryConfig: r})
	}
	neg := durationpb.New(-1)
	checkRefusals(t, []refusal{
		{"queue exists", createQueue(location, &cloudtaskspb.Queue{Name: queue}), codes.AlreadyExists, "Queue already exists"},
		{"queue name", createQueue(location, &cloudtaskspb.Queue{Name: "q"}), codes.InvalidArgument, "Queue name must be formatted"},
		{"queue id too long", createQueue(location, &cloudtaskspb.Queue{Name: location + "/queues/" + strings.Repeat("a", 101)}), codes.InvalidArgument, "Queue name"},
		{"no queue given", createQueue(location, nil), codes.InvalidArgument, "Queue name"},
		{"parent", createQueue("projects/p", &cloudtaskspb.Queue{Name: queue}), codes.InvalidArgument, "parent"},
		{"other parent", createQueue("projects/p/locations/l", &cloudtaskspb.Queue{Name: queue}), codes.InvalidArgument, "must begin with"},
		{"rate negative", config(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: -1}, nil), codes.InvalidArgument, "maxDispatchesPerSecond cannot be negative"},
		{"rate too high", config(&cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 500.1}, nil), codes.InvalidArgument, "less than or equal to 500."},
		{"concurrency negative", config(&cloudtaskspb.RateLimits{MaxConcurrentDispatches: -1}, nil), codes.InvalidArgument, "maxConcurrentDispatches cannot be negative"},
		{"concurrency too high", config(&cloudtaskspb.RateLimits{MaxConcurrentDispatches: 5001}, nil), codes.InvalidArgument, "less than or equal to 5000"},
		{"attempts", config(nil, &cloudtaskspb.RetryConfig{MaxAttempts: -2}), codes.InvalidArgument, "maxAttempts must be greater or equal to -1"},
		{"doublings", config(nil, &cloudtaskspb.RetryConfig{MaxDoublings: -1}), codes.InvalidArgument, "maxDoublings cannot be negative"},
		{"min backoff", config(nil, &cloudtaskspb.RetryConfig{MinBackoff: neg}), codes.InvalidArgument, "minBackoff cannot be negative"},
		{"max backoff", config(nil, &cloudtaskspb.RetryConfig{MaxBackoff: neg}), codes.InvalidArgument, "maxBackoff cannot be negative"},
		{"backoff order", config(nil, &cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(2 * time.Second), MaxBackoff: durationpb.New(time.Second)}), codes.InvalidArgument, "minBackoff must be less than or equal"},
		{"app engine queue", createQueue(location, &cloudtaskspb.Queue{Name: absent, AppEngineRoutingOverride: &cloudtaskspb.AppEngineRouting{Service: "s"}}), codes.Unimplemented, "App Engine"},
	})
}

func TestTaskSettingsRefused(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{})
	mustCreatePaused(t, c)
	create := func(parent string, change func(*cloudtaskspb.Task, *cloudtaskspb.HttpRequest)) error {
		task := post("http://example.com/")
		if change != nil {
			change(task, task.GetHttpRequest())
		}
		return second(c.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: parent, Task: task}))
	}
	on := func(change func(*cloudtaskspb.Task, *cloudtaskspb.HttpRequest)) error { return create(queue, change) }
	type (
		T = *cloudtaskspb.Task
		R = *cloudtaskspb.HttpRequest
	)
	checkRefusals(t, []refusal{
		{"task in absent queue", create(absent, nil), codes.NotFound, "Queue does not exist."},
		{"task, bad parent", create("q", nil), codes.InvalidArgument, "Queue name"},
		{"task id", on(func(k T, _ R) { k.Name = queue + "/tasks/not a valid id" }), codes.InvalidArgument, "Task ID \"not a valid id\" can contain only"},
		{"task name", on(func(k T, _ R) { k.Name = "t" }), codes.InvalidArgument, "Task name must be formatted"},
		{"task of other queue", on(func(k T, _ R) { k.Name = absent + "/tasks/t" }), codes.InvalidArgument, "must be the same as the queue name"},
		{"task exists", on(func(k T, _ R) { k.Name = queue + "/tasks/there" }), codes.AlreadyExists, "Requested entity already exists"},
		{"task existed", on(func(k T, _ R) { k.Name = queue + "/tasks/gone" }), codes.AlreadyExists, "existed too recently"},
		{"no target", on(func(k T, _ R) { k.MessageType = nil }), codes.InvalidArgument, "httpRequest is required"},
		{"app engine", on(func(k T, _ R) {
			k.MessageType = &cloudtaskspb.Task_AppEngineHttpRequest{AppEngineHttpRequest: &cloudtaskspb.AppEngineHttpRequest{}}
		}), codes.Unimplemented, "App Engine"},
		{"no url", on(func(_ T, r R) { r.Url = "" }), codes.InvalidArgument, "HttpRequest.url is required."},
		{"url without scheme", on(func(_ T, r R) { r.Url = "example.com" }), codes.InvalidArgument, "must start with"},
		{"url of other scheme", on(func(_ T, r R) { r.Url = "ftp://example.com" }), codes.InvalidArgument, "must start with"},
		{"url too long", on(func(_ T, r R) { r.Url = "http://h/" + strings.Repeat("a", 2075) }), codes.InvalidArgument, "2083"},
		{"url of full length", on(func(_ T, r R) { r.Url = "http://h/" + strings.Repeat("a", 2074) }), codes.OK, ""},
		{"url that cannot be parsed", on(func(_ T, r R) { r.Url = "http://example.com/%zz" }), codes.OK, ""},
		{"body of a GET", on(func(_ T, r R) { r.HttpMethod, r.Body = cloudtaskspb.HttpMethod_GET, []byte("x") }), codes.InvalidArgument, "body"},
		{"unknown method", on(func(_ T, r R) { r.HttpMethod = 99 }), codes.InvalidArgument, "unknown"},
		{"header name", on(func(_ T, r R) { r.Headers = map[string]string{"a b": "c"} }), codes.InvalidArgument, "header"},
		{"header value", on(func(_ T, r R) { r.Headers = map[string]string{"a": "b\r\nc: d"} }), codes.InvalidArgument, "header"},
		{"headers too large", on(func(_ T, r R) { r.Headers = map[string]string{"a": strings.Repeat("b", 80<<10-1)} }), codes.InvalidArgument, "80KB"},
		{"oidc without account", on(func(_ T, r R) { r.AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{} }), codes.InvalidArgument, "serviceAccountEmail"},
		{"deadline too short", on(func(k T, _ R) { k.DispatchDeadline = durationpb.New(15*time.Second - time.Millisecond) }), codes.InvalidArgument, "[15s, 30m]"},
		{"shortest deadline", on(func(k T, _ R) { k.DispatchDeadline = durationpb.New(15 * time.Second) }), codes.OK, ""},
		{"longest deadline", on(func(k T, _ R) { k.DispatchDeadline = durationpb.New(30 * time.Minute) }), codes.OK, ""},
		{"deadline too long", on(func(k T, _ R) { k.DispatchDeadline = durationpb.New(30*time.Minute + time.Millisecond) }), codes.InvalidArgument, "[15s, 30m]"},
		{"schedule within 30 days", on(func(k T, _ R) { k.ScheduleTime = timestamppb.New(time.Now().Add(720*time.Hour - time.Second)) }), codes.OK, ""},
		{"schedule beyond 30 days", on(func(k T, _ R) { k.ScheduleTime = timestamppb.New(time.Now().Add(721 * time.Hour)) }), codes.InvalidArgument, "no more than 720h"},
		{"largest body", on(func(_ T, r R) { r.Body = make([]byte, 1<<20-300) }), codes.OK, ""},
		{"body too large", on(func(_ T, r R) { r.Body = make([]byte, 1<<20) }), codes.InvalidArgument, "Task size too large"},
		{"retry config of a task", on(func(k T, _ R) { k.RetryConfig = &cloudtaskspb.RetryConfig{MaxAttempts: -2} }), codes.InvalidArgument, "maxAttempts"},
	})
}

// mustCreatePaused makes a paused queue that holds the task "there" and has
// lost the task "gone".
func mustCreatePaused(t *testing.T, c *api.Client) {
	t.Helper()
	mustCreateQueue(t, c, &cloudtaskspb.Queue{Name: queue})
	if _, err := c.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: queue}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"there", "gone"} {
		task := post("http://h/")
		task.Name = queue + "/tasks/" + id
		if _, err := c.CreateTask(t.Context(), &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.DeleteTask(t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: queue + "/tasks/gone"}); err != nil {
		t.Fatal(err)
	}
}

func TestCallsRefused(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{})
	ctx := t.Context()
	mustCreatePaused(t, c)
	checkRefusals(t, []refusal{
		{"get absent queue", second(c.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: absent})), codes.NotFound, "Queue does not exist."},
		{"pause absent queue", second(c.PauseQueue(ctx, &cloudtaskspb.PauseQueueRequest{Name: absent})), codes.NotFound, "Queue does not exist."},
		{"resume absent queue", second(c.ResumeQueue(ctx, &cloudtaskspb.ResumeQueueRequest{Name: absent})), codes.NotFound, "Queue does not exist."},
		{"purge absent queue", second(c.PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: absent})), codes.NotFound, "Queue does not exist."},
		{"delete absent queue", c.DeleteQueue(ctx, &cloudtaskspb.DeleteQueueRequest{Name: absent}), codes.NotFound, "Requested entity was not found."},
		{"list tasks of absent queue", second(c.ListTasks(ctx, &cloudtaskspb.ListTasksRequest{Parent: absent}).Next()), codes.NotFound, "Queue does not exist."},
		{"get queue, bad name", second(c.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: "q"})), codes.InvalidArgument, "Queue name"},
		{"update queue, bad name", second(c.UpdateQueue(ctx, &cloudtaskspb.UpdateQueueRequest{Queue: &cloudtaskspb.Queue{Name: "q"}})), codes.InvalidArgument, "Queue name"},
		{"list queues, filter", second(c.ListQueues(ctx, &cloudtaskspb.ListQueuesRequest{Parent: location, Filter: "name:q"}).Next()), codes.InvalidArgument, "state"},
		{"list queues, token", second(c.ListQueues(ctx, &cloudtaskspb.ListQueuesRequest{Parent: location, PageToken: "?"}).Next()), codes.InvalidArgument, "page token"},
		{"list tasks, token", second(c.ListTasks(ctx, &cloudtaskspb.ListTasksRequest{Parent: queue, PageToken: "?"}).Next()), codes.InvalidArgument, "page token"},
		{"list tasks, size", second(c.ListTasks(ctx, &cloudtaskspb.ListTasksRequest{Parent: queue, PageSize: -1}).Next()), codes.InvalidArgument, "Page size"},
		{"get unknown task", second(c.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: queue + "/tasks/unknown"})), codes.NotFound, "Requested entity was not found."},
		{"get deleted task", second(c.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: queue + "/tasks/gone"})), codes.NotFound, "existed recently"},
		{"get task of absent queue", second(c.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: absent + "/tasks/t"})), codes.NotFound, ""},
		{"get task, bad name", second(c.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: queue})), codes.InvalidArgument, "Task name"},
		{"delete unknown task", c.DeleteTask(ctx, &cloudtaskspb.DeleteTaskRequest{Name: queue + "/tasks/unknown"}), codes.NotFound, "Requested entity was not found."},
		{"run unknown task", second(c.RunTask(ctx, &cloudtaskspb.RunTaskRequest{Name: queue + "/tasks/unknown"})), codes.NotFound, "Requested entity was not found."},
		{"iam", second(c.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: queue})), codes.Unimplemented, ""},
	})
}

func second[T any](_ T, err error) error { return err }

func TestUpdateQueue(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{})
	q := &cloudtaskspb.Queue{Name: queue, State: cloudtaskspb.Queue_PAUSED, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 2, MaxConcurrentDispatches: 3}}
	got, err := c.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: q})
	if err != nil || got.State != cloudtaskspb.Queue_RUNNING || got.RateLimits.MaxDispatchesPerSecond != 2 {
		t.Fatalf("update of an absent queue: %v, %v", got, err)
	}
	q.RateLimits = &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 400}
	got, err = c.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: q, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"rate_limits.max_dispatches_per_second"}}})
	if err != nil || got.RateLimits.MaxDispatchesPerSecond != 400 || got.RateLimits.MaxConcurrentDispatches != 3 || got.RateLimits.MaxBurstSize != 80 {
		t.Errorf("masked update: %v, %v", got, err)
	}
	got, err = c.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: q})
	if err != nil || got.RateLimits.MaxConcurrentDispatches != 1000 {
		t.Errorf("update of everything: %v, %v", got, err)
	}
	_, err = c.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{Queue: q, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"nonsense"}}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("unknown path: %v", err)
	}
}

func TestListQueues(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{})
	for _, id := range []string{"c", "a", "b", "e", "d"} {
		mustCreateQueue(t, c, &cloudtaskspb.Queue{Name: location + "/queues/" + id})
	}
	other := "projects/demo/locations/europe-west10"
	if _, err := c.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: other, Queue: &cloudtaskspb.Queue{Name: other + "/queues/x"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: location + "/queues/b"}); err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct{ filter, want string }{{"", "a b c d e"}, {"state: PAUSED", "b"}, {`state="RUNNING"`, "a c d e"}} {
		var got []string
		it := c.ListQueues(t.Context(), &cloudtaskspb.ListQueuesRequest{Parent: location, PageSize: 2, Filter: e.filter})
		for q, err := it.Next(); !errors.Is(err, iterator.Done); q, err = it.Next() {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimPrefix(q.Name, location+"/queues/"))
		}
		if strings.Join(got, " ") != e.want {
			t.Errorf("filter %q: %v, want %s", e.filter, got, e.want)
		}
	}
}

func TestListTasksAndViews(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{})
	ctx := t.Context()
	mustCreateQueue(t, c, &cloudtaskspb.Queue{Name: queue})
	if _, err := c.PauseQueue(ctx, &cloudtaskspb.PauseQueueRequest{Name: queue}); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 25 {
		task := post("http://h/")
		task.GetHttpRequest().Body = []byte{byte(i)}
		got, err := c.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: task})
		if err != nil || got.View != cloudtaskspb.Task_BASIC || got.GetHttpRequest().Body != nil || got.GetHttpRequest().HttpMethod != cloudtaskspb.HttpMethod_POST ||
			got.GetHttpRequest().Headers["User-Agent"] != "Google-Cloud-Tasks" || got.DispatchDeadline.AsDuration() != 10*time.Minute {
			t.Fatal(got, err)
		}
		want = append(want, got.Name)
	}
	for i := 20; i >= 0; i -= 5 { // a hole at the start of a page
		if err := c.DeleteTask(ctx, &cloudtaskspb.DeleteTaskRequest{Name: want[i]}); err != nil {
			t.Fatal(err)
		}
		want = slices.Delete(want, i, i+1)
	}
	var got []string
	it := c.ListTasks(ctx, &cloudtaskspb.ListTasksRequest{Parent: queue, PageSize: 5, ResponseView: cloudtaskspb.Task_FULL})
	for task, err := it.Next(); !errors.Is(err, iterator.Done); task, err = it.Next() {
		if err != nil || task.View != cloudtaskspb.Task_FULL || len(task.GetHttpRequest().Body) != 1 {
			t.Fatal(task, err)
		}
		got = append(got, task.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
}

func TestFaultHookReachesTheClient(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, cloudtasks.Options{Fault: func(method string) error {
		if method == "PurgeQueue" {
			return status.Error(codes.ResourceExhausted, "quota")
		}
		return nil
	}})
	mustCreateQueue(t, c, &cloudtaskspb.Queue{Name: queue})
	if _, err := c.PurgeQueue(t.Context(), &cloudtaskspb.PurgeQueueRequest{Name: queue}); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}

func TestRegisterAndClose(t *testing.T) {
	t.Parallel()
	s := cloudtasks.New(cloudtasks.Options{})
	gs := grpc.NewServer()
	s.Register(gs)
	if _, there := gs.GetServiceInfo()["google.cloud.tasks.v2.CloudTasks"]; !there {
		t.Error("not registered")
	}
	s.Close()
	if addr, err := s.Start(""); err == nil {
		t.Errorf("started on %s after Close", addr)
	}
}

func Example() {
	ctx := context.Background()
	// An endpoint, and the emulator that will call it.
	done := make(chan string)
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		done <- fmt.Sprintf("%s got %q for task %s", r.URL.Path, body, r.Header.Get("X-CloudTasks-TaskName"))
	}))
	defer endpoint.Close()
	emulator := cloudtasks.New(cloudtasks.Options{})
	defer emulator.Close()
	addr, err := emulator.Start("")
	if err != nil {
		panic(err)
	}

	// From here on, production code: Google's client, pointed at addr.
	client, err := api.NewClient(ctx, option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	const location = "projects/demo/locations/europe-west1"
	queue, err := client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{Name: location + "/queues/endpoint-1"}})
	if err != nil {
		panic(err)
	}
	_, err = client.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: queue.Name, Task: &cloudtaskspb.Task{
		Name:        queue.Name + "/tasks/first",
		MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{Url: endpoint.URL + "/attempt", Body: []byte("hello")}},
	}})
	if err != nil {
		panic(err)
	}
	fmt.Println(<-done)
	// Output: /attempt got "hello" for task first
}

// Days of retries pass in virtual time, without a network and in an order that
// is always the same.
func Example_virtualTime() {
	ctx := context.Background()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := cloudtasks.NewVirtualClock(start)
	attempts := 0
	emulator := cloudtasks.New(cloudtasks.Options{
		Clock: clock, Sequential: true,
		Transport: cloudtasks.HandlerTransport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			attempts++
			fmt.Println(clock.Now().Sub(start), r.Header.Get("X-CloudTasks-TaskName"))
			if attempts < 4 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})),
	})
	defer emulator.Close()
	const location = "projects/demo/locations/europe-west1"
	queue, err := emulator.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{
		Name:        location + "/queues/endpoint-1",
		RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(6 * time.Hour), MaxBackoff: durationpb.New(24 * time.Hour)},
	}})
	if err != nil {
		panic(err)
	}
	if _, err := emulator.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: queue.Name, Task: &cloudtaskspb.Task{
		Name:        queue.Name + "/tasks/t",
		MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: &cloudtaskspb.HttpRequest{Url: "http://endpoint.example/"}},
	}}); err != nil {
		panic(err)
	}
	clock.Advance(7 * 24 * time.Hour)
	// Output:
	// 0s t
	// 6h0m0s t
	// 18h0m0s t
	// 42h0m0s t
}
