package cloudtasks

import (
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	maxTaskPage = 1000
	// maxTaskSize bounds the stored task in the FULL view, defaults included,
	// as encoded protobuf: the boundary found on the real service.
	maxTaskSize   = 1<<20 - 7
	maxURL        = 2083
	maxHeaderSize = 80 << 10

	defaultDeadline = 10 * time.Minute
	minDeadline     = 15 * time.Second
	maxDeadline     = 30 * time.Minute
)

var (
	errTaskExists = status.Error(codes.AlreadyExists, "Requested entity already exists")
	errTaskRecent = status.Error(codes.AlreadyExists, "The task cannot be created because a task with this name existed too recently. For more information about task de-duplication see https://cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues.tasks/create#body.request_body.FIELDS.task.")
	errTaskGone   = status.Error(codes.NotFound, "The task no longer exists, though a task with this name existed recently. The task either successfully completed or was deleted.")
)

// CreateTask adds a task to a queue. With a name it is idempotent in it:
// ALREADY_EXISTS while such a task lives and for TaskNameTTL after.
func (s *Server) CreateTask(_ context.Context, in *cloudtaskspb.CreateTaskRequest) (*cloudtaskspb.Task, error) {
	return answer(s, "CreateTask", func() (*cloudtaskspb.Task, error) {
		if _, _, err := splitQueue(in.GetParent()); err != nil {
			return nil, err
		}
		id := ""
		if name := in.GetTask().GetName(); name != "" {
			queue, taskID, err := splitTask(name)
			if err != nil {
				return nil, err
			}
			if queue != in.GetParent() {
				return nil, invalid("The queue name from request ('%s') must be the same as the queue name in the named task ('%s').", in.GetParent(), queue)
			}
			id = taskID
		}
		now := s.e.clock.Now()
		t, err := newTask(in.GetTask(), now)
		if err != nil {
			return nil, err
		}
		s.e.mu.Lock()
		defer s.e.mu.Unlock()
		q := s.e.queues[in.GetParent()]
		if q == nil || now.Before(q.acceptFrom) {
			return nil, errNoQueue
		}
		q.expire(now, s.e.nameTTL)
		if id == "" {
			id = s.newID(q)
		} else if err := q.free(id); err != nil {
			return nil, err
		}
		t.q, t.id = q, id
		if proto.Size(t.proto(cloudtaskspb.Task_FULL)) > maxTaskSize {
			return nil, invalid("Task size too large")
		}
		s.e.seq++
		t.seq = s.e.seq
		q.add(t)
		s.e.schedule(q)
		s.e.arm()
		return t.proto(in.GetResponseView()), nil
	})
}

// free tells why a task cannot be created under id.
func (q *queue) free(id string) error {
	if q.tasks[id] != nil {
		return errTaskExists
	}
	if _, gone := q.gone[id]; gone {
		return errTaskRecent
	}
	return nil
}

// newID makes an id like those of the real service: a long decimal number.
func (s *Server) newID(q *queue) string {
	for {
		id := strconv.FormatUint(s.o.Rand.Uint64(), 10)
		if q.free(id) == nil {
			return id
		}
	}
}

// newTask checks what a caller asks for and returns it as a task without queue
// and id.
func newTask(in *cloudtaskspb.Task, now time.Time) (*task, error) {
	if in.GetAppEngineHttpRequest() != nil {
		return nil, status.Error(codes.Unimplemented, "App Engine targets are not emulated: use http_request.")
	}
	request := in.GetHttpRequest()
	if request == nil {
		return nil, invalid("Task.httpRequest is required.")
	}
	if err := checkRequest(request); err != nil {
		return nil, err
	}
	t := &task{created: now, due: now, deadline: defaultDeadline, index: -1}
	if at := in.GetScheduleTime(); at != nil {
		if at.CheckValid() != nil {
			return nil, invalid("Task.scheduleTime is not a valid timestamp.")
		}
		due := at.AsTime().Truncate(time.Microsecond)
		if due.Sub(now) > scheduleAhead {
			return nil, invalid("The Task.scheduleTime, %s, is too far in the future. Schedule time must be no more than 720h in the future.", due.Format(time.RFC3339))
		}
		if due.After(now) {
			t.due = due
		}
	}
	if d := in.GetDispatchDeadline(); d != nil {
		t.deadline = d.AsDuration().Truncate(time.Millisecond)
		if d.CheckValid() != nil || t.deadline < minDeadline || t.deadline > maxDeadline {
			return nil, invalid("Task.dispatchDeadline must be between [15s, 30m].")
		}
	}
	if in.GetRetryConfig() != nil {
		t.retry = proto.Clone(in.GetRetryConfig()).(*cloudtaskspb.RetryConfig)
		if err := settleRetry(t.retry); err != nil {
			return nil, err
		}
	}
	t.request = proto.Clone(request).(*cloudtaskspb.HttpRequest)
	if t.request.HttpMethod == cloudtaskspb.HttpMethod_HTTP_METHOD_UNSPECIFIED {
		t.request.HttpMethod = cloudtaskspb.HttpMethod_POST
	}
	// The real service shows its own User-Agent among the stored headers and
	// not what will be replaced.
	maps.DeleteFunc(t.request.Headers, func(name, _ string) bool { return reserved(name) })
	if t.request.Headers == nil {
		t.request.Headers = make(map[string]string, 1)
	}
	t.request.Headers["User-Agent"] = userAgent
	return t, nil
}

// checkRequest refuses what could never be sent. A URL that cannot be parsed
// is not among it: as in production, it makes a task that fails.
func checkRequest(r *cloudtaskspb.HttpRequest) error {
	lower := strings.ToLower(r.GetUrl())
	switch {
	case r.GetUrl() == "":
		return invalid("HttpRequest.url is required.")
	case !strings.HasPrefix(lower, "http://") && !strings.HasPrefix(lower, "https://"):
		return invalid("HttpTarget.url must start with 'http://' or 'https://'.")
	case len(r.GetUrl()) > maxURL:
		return invalid("HttpRequest.url must not be longer than %d characters.", maxURL)
	case cloudtaskspb.HttpMethod_name[int32(r.GetHttpMethod())] == "":
		return invalid("HttpRequest.httpMethod %d is unknown.", r.GetHttpMethod())
	}
	method := r.GetHttpMethod()
	if len(r.GetBody()) > 0 && method != cloudtaskspb.HttpMethod_HTTP_METHOD_UNSPECIFIED && !bodyAllowed(method) {
		return invalid("HTTP method %s cannot have a body: only POST, PUT and PATCH can.", method)
	}
	if o := r.GetOidcToken(); o != nil && o.GetServiceAccountEmail() == "" {
		return invalid("HttpRequest.oidcToken.serviceAccountEmail is required.")
	}
	if o := r.GetOauthToken(); o != nil && o.GetServiceAccountEmail() == "" {
		return invalid("HttpRequest.oauthToken.serviceAccountEmail is required.")
	}
	return checkHeaders(r.GetHeaders())
}

// checkHeaders wants names that are tokens (RFC 9110, section 5.6.2), values
// without control characters, and less than 80 KB in all.
func checkHeaders(headers map[string]string) error {
	size := 0
	for name, value := range headers {
		size += len(name) + len(value)
		valid := name != "" && strings.Trim(name, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
		if !valid || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return invalid("HTTP header %q has a name or value that HTTP does not allow.", name)
		}
	}
	if size >= maxHeaderSize {
		return invalid("The HTTP headers must be smaller than 80KB.")
	}
	return nil
}

// GetTask returns a task that lives.
func (s *Server) GetTask(_ context.Context, in *cloudtaskspb.GetTaskRequest) (*cloudtaskspb.Task, error) {
	return answer(s, "GetTask", func() (out *cloudtaskspb.Task, err error) {
		err = s.withTask(in.GetName(), func(t *task) { out = t.proto(in.GetResponseView()) })
		return out, err
	})
}

// DeleteTask deletes a task; an attempt in flight goes on, but is the last.
func (s *Server) DeleteTask(_ context.Context, in *cloudtaskspb.DeleteTaskRequest) (*emptypb.Empty, error) {
	return answer(s, "DeleteTask", func() (*emptypb.Empty, error) {
		return &emptypb.Empty{}, s.withTask(in.GetName(), func(t *task) {
			t.q.remove(t, s.e.clock.Now(), s.e.nameTTL)
		})
	})
}

// RunTask dispatches a task at once, whatever its schedule, the queue's state
// and limits, and even if it is in flight already. The answer shows the task
// as dispatched, before the target's answer.
func (s *Server) RunTask(_ context.Context, in *cloudtaskspb.RunTaskRequest) (*cloudtaskspb.Task, error) {
	return answer(s, "RunTask", func() (out *cloudtaskspb.Task, err error) {
		err = s.withTask(in.GetName(), func(t *task) {
			if t.index >= 0 {
				heap.Remove(&t.q.waiting, t.index)
			}
			now := s.e.clock.Now()
			t.due = now
			s.e.launch(t.q.begin(t, now))
			out = t.proto(in.GetResponseView())
		})
		return out, err
	})
}

// launch starts an attempt outside the queue's order. Called with the engine
// locked.
func (e *engine) launch(a *attempt) {
	if e.sequential {
		e.clock.AfterFunc(0, func() { e.run(a) })
		return
	}
	e.wg.Go(func() { e.run(a) })
}

// withTask finds a living task, hands it to do with the engine locked, and
// brings the schedule up to date.
func (s *Server) withTask(name string, do func(*task)) error {
	queue, id, err := splitTask(name)
	if err != nil {
		return err
	}
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queues[queue]
	if q == nil {
		return errNoQueue
	}
	q.expire(e.clock.Now(), e.nameTTL)
	t := q.tasks[id]
	if t == nil {
		if _, gone := q.gone[id]; gone {
			return errTaskGone
		}
		return errNoEntity
	}
	if e.closed {
		return status.Error(codes.Unavailable, "The emulator is closing.")
	}
	do(t)
	e.schedule(q)
	e.arm()
	return nil
}

// ListTasks lists the tasks of a queue in the order of their creation, at most
// 1,000 a page.
func (s *Server) ListTasks(_ context.Context, in *cloudtaskspb.ListTasksRequest) (*cloudtaskspb.ListTasksResponse, error) {
	return answer(s, "ListTasks", func() (*cloudtaskspb.ListTasksResponse, error) {
		if _, _, err := splitQueue(in.GetParent()); err != nil {
			return nil, err
		}
		size, err := pageSize(in.GetPageSize(), maxTaskPage)
		if err != nil {
			return nil, err
		}
		from, err := taskPage(in.GetPageToken())
		if err != nil {
			return nil, err
		}
		s.e.mu.Lock()
		defer s.e.mu.Unlock()
		q := s.e.queues[in.GetParent()]
		if q == nil {
			return nil, errNoQueue
		}
		q.expire(s.e.clock.Now(), s.e.nameTTL)
		out := &cloudtaskspb.ListTasksResponse{}
		for _, entry := range q.order[q.find(from):] {
			switch {
			case entry.t == nil:
			case len(out.Tasks) == size:
				out.NextPageToken = base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, entry.seq))
				return out, nil
			default:
				out.Tasks = append(out.Tasks, entry.t.proto(in.GetResponseView()))
			}
		}
		return out, nil
	})
}

// taskPage is the number of the first task of the page.
func taskPage(token string) (uint64, error) {
	if token == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != 8 {
		return 0, invalid("Invalid page token.")
	}
	return binary.BigEndian.Uint64(b), nil
}

// proto is the task as the API shows it; the BASIC view lacks the body. The
// result shares nothing with t that ever changes.
func (t *task) proto(view cloudtaskspb.Task_View) *cloudtaskspb.Task {
	if view == cloudtaskspb.Task_VIEW_UNSPECIFIED {
		view = cloudtaskspb.Task_BASIC
	}
	request := &cloudtaskspb.HttpRequest{
		Url: t.request.Url, HttpMethod: t.request.HttpMethod, Headers: maps.Clone(t.request.Headers),
		AuthorizationHeader: t.request.AuthorizationHeader,
	}
	if view == cloudtaskspb.Task_FULL {
		request.Body = t.request.Body
	}
	out := &cloudtaskspb.Task{
		Name: t.q.name + "/tasks/" + t.id, View: view,
		MessageType:      &cloudtaskspb.Task_HttpRequest{HttpRequest: request},
		CreateTime:       timestamppb.New(t.created.Truncate(time.Second)),
		ScheduleTime:     stamp(t.due),
		DispatchDeadline: durationpb.New(t.deadline),
		DispatchCount:    t.dispatches, ResponseCount: t.responses, RetryConfig: t.retry,
	}
	if t.dispatches > 0 {
		out.FirstAttempt = &cloudtaskspb.Attempt{DispatchTime: stamp(t.first)}
		out.LastAttempt = &cloudtaskspb.Attempt{ScheduleTime: stamp(t.last.scheduled), DispatchTime: stamp(t.last.dispatched)}
		if !t.last.responded.IsZero() {
			out.LastAttempt.ResponseTime, out.LastAttempt.ResponseStatus = stamp(t.last.responded), t.last.status
		}
	}
	return out
}

func stamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t.Truncate(time.Microsecond)) }
