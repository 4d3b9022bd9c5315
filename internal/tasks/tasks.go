// Package tasks owns the use of Cloud Tasks: a queue per endpoint that carries
// its rate and concurrency limits, pool queues that serve endpoints whose own
// queue does not answer yet, and the timers of attempts.
//
// Cloud Tasks is a timer here, never a source of truth: a task carries the name
// of an attempt and nothing else, and Spanner decides at the claim what becomes
// of it. The package refuses to put payloads, URLs or secrets into a task.
package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	taskspb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Paths of the dispatcher that tasks post to.
const (
	AttemptPath    = "/attempt"
	QueueReadyPath = "/queue-ready"
)

// Horizon is how far ahead Cloud Tasks schedules.
// https://cloud.google.com/tasks/docs/quotas
const Horizon = 30 * 24 * time.Hour

// What Cloud Tasks allows a queue.
// https://cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2#ratelimits
const (
	MaxRate        = 500
	MinRate        = 0.001 // one in a quarter of an hour
	MaxConcurrency = 5000
)

// dispatchDeadline bounds one run of the dispatcher: the longest attempt (60 s)
// and the transactions around it.
const dispatchDeadline = 3 * time.Minute

// announceEvery spaces the control tasks that ask a new queue whether it serves.
const announceEvery = time.Minute

// Config says where tasks go.
type Config struct {
	Project  string
	Location string
	// Dispatcher is the base URL that tasks post to.
	Dispatcher string
	// Invoker is the service account whose identity the tasks carry. The creator of
	// tasks needs roles/iam.serviceAccountUser on it.
	Invoker string
	// Audience of the token; empty means Dispatcher.
	Audience string
	// Pools are the shared queues, by the last part of their names.
	Pools []string
	// MaxQueues is how many queues the region may have in all, whoever made them; 0
	// means [DefaultMaxQueues]. The last tenth is kept for endpoints that ask for a
	// queue of their own.
	MaxQueues int
	// Lost is told of an endpoint's own queue that served and is gone, and makes
	// everybody plan without it; its tasks then go to the pools. Nil: only the task
	// at hand does, and it may be made twice if the queue comes back.
	Lost func(ctx context.Context, ref webhook.QueueRef) error
	// Control is the queue of control tasks; empty means the first pool.
	Control string
	// MinBackoff and MaxBackoff bound the wait after a run of the dispatcher that
	// failed by our own fault. Zero means 5 s and 300 s.
	MinBackoff, MaxBackoff time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Validate reports every fault of the configuration.
func (c Config) Validate() error {
	var errs []error
	for name, v := range map[string]string{"project": c.Project, "location": c.Location, "dispatcher URL": c.Dispatcher, "invoker service account": c.Invoker} {
		if v == "" {
			errs = append(errs, fmt.Errorf("cloud tasks: %s is missing", name))
		}
	}
	if u, err := url.Parse(c.Dispatcher); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		errs = append(errs, fmt.Errorf("cloud tasks: dispatcher URL %q is not an http or https URL", c.Dispatcher))
	}
	if len(c.Pools) == 0 {
		errs = append(errs, errors.New("cloud tasks: no pool queue is configured"))
	}
	if c.MaxQueues < 0 {
		errs = append(errs, fmt.Errorf("cloud tasks: %d queues at most", c.MaxQueues))
	}
	return errors.Join(errs...)
}

// Queue schedules attempts and manages the endpoints' queues. It is safe for
// concurrent use.
type Queue struct {
	client *cloudtasks.Client
	cfg    Config
	parent string // projects/P/locations/L

	mu        sync.Mutex
	announced map[string]time.Time // what is done once a minute → when it last was
	counted   int                  // queues in the region, at countedAt and with those made since
	countedAt time.Time
}

// EmulatorVariable names the environment variable that holds the host:port of a
// Cloud Tasks emulator. Google has none of its own.
const EmulatorVariable = "CLOUD_TASKS_EMULATOR_HOST"

// New connects to Cloud Tasks, or to the emulator that [EmulatorVariable] names.
// It returns before the connection stands.
func New(ctx context.Context, cfg Config, opts ...option.ClientOption) (*Queue, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MinBackoff == 0 {
		cfg.MinBackoff = 5 * time.Second
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = 300 * time.Second
	}
	if cfg.MaxQueues == 0 {
		cfg.MaxQueues = DefaultMaxQueues
	}
	if cfg.Audience == "" {
		cfg.Audience = cfg.Dispatcher
	}
	if cfg.Control == "" {
		cfg.Control = cfg.Pools[0]
	}
	cfg.Dispatcher = strings.TrimRight(cfg.Dispatcher, "/")
	if host := os.Getenv(EmulatorVariable); host != "" {
		opts = append([]option.ClientOption{
			option.WithEndpoint(host),
			option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		}, opts...)
	}
	client, err := cloudtasks.NewClient(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to cloud tasks: %w", err)
	}
	return &Queue{
		client:    client,
		cfg:       cfg,
		parent:    fmt.Sprintf("projects/%s/locations/%s", cfg.Project, cfg.Location),
		announced: map[string]time.Time{},
	}, nil
}

// Close ends the connection.
func (q *Queue) Close() error { return q.client.Close() }

// IsPool reports whether name is one of the shared queues.
func (q *Queue) IsPool(name string) bool { return slices.Contains(q.cfg.Pools, name) }

// errUnsteady: an own queue that exists refused a task; trying again helps.
var errUnsteady = errors.New("the queue exists and refuses tasks")

// Schedule makes sure that a task for t.Key exists, to run not before t.At (at
// once when t.At is zero or past). It is idempotent in t.Key: the name is
// derived from it, and a name that Cloud Tasks already knows is success.
//
// An endpoint's own queue is used for what is planned once it has been seen to
// dispatch, and a pool for the rest. An own queue that has gone since is given up:
// it is deleted once more, so that no task of it can ever run, [Config.Lost] makes
// that known, and then the task goes to a pool. As long as that is not certain the
// task is not made, and the error has the caller try again.
func (q *Queue) Schedule(ctx context.Context, t webhook.Task) error {
	err := q.schedule(ctx, t)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", t.Key, err)
	}
	return nil
}

func (q *Queue) schedule(ctx context.Context, t webhook.Task) error {
	pool := PoolOf(q.cfg.Pools, t.Key)
	if !t.InOwnQueue() {
		if t.Queue.Own != "" && t.Queue.ReadyAt.IsZero() {
			q.announceDue(ctx, t.Queue)
		}
		return q.createAttempt(ctx, pool, t)
	}
	err := q.createAttempt(ctx, t.Queue.Own, t)
	if !absent(err) {
		return err
	}
	if err := q.giveUp(ctx, t.Queue); err != nil {
		return err
	}
	return q.createAttempt(ctx, pool, t)
}

// giveUp makes sure that a queue which has refused a task as absent never runs one,
// and that everybody knows.
func (q *Queue) giveUp(ctx context.Context, ref webhook.QueueRef) error {
	switch _, err := q.client.GetQueue(ctx, &taskspb.GetQueueRequest{Name: q.queueName(ref.Own)}); {
	case err == nil:
		return fmt.Errorf("queue %s: %w", ref.Own, errUnsteady)
	case !absent(err):
		return fmt.Errorf("look for queue %s: %w", ref.Own, err)
	}
	if err := q.DeleteQueue(ctx, ref.Own); err != nil {
		return err
	}
	if q.cfg.Lost == nil {
		return nil
	}
	if err := q.cfg.Lost(ctx, ref); err != nil {
		return fmt.Errorf("give queue %s up: %w", ref.Own, err)
	}
	return nil
}

// PutBack makes a task for the attempt k anew, to run not before at: k, whose task
// came from the queue from, cannot be run now. slot is at if the endpoint's rate
// limit has allotted that time to it, else zero. The new task goes to the same
// queue, or to another of the endpoint's pools. Idempotent in k.
func (q *Queue) PutBack(ctx context.Context, k webhook.AttemptKey, from string, at, slot time.Time) error {
	k.Bounce++
	t := webhook.Task{Key: k, At: at, Slot: slot}
	var err error
	if from != "" && !q.IsPool(from) {
		if err = q.createAttempt(ctx, from, t); !absent(err) {
			return wrapPutBack(k, err)
		}
	}
	return wrapPutBack(k, q.createAttempt(ctx, PoolOf(q.cfg.Pools, k), t))
}

func wrapPutBack(k webhook.AttemptKey, err error) error {
	if err != nil {
		return fmt.Errorf("put %s back: %w", k, err)
	}
	return nil
}

// SlotHeader carries [webhook.Task].Slot to the dispatcher, in RFC 3339.
const SlotHeader = "X-Sealpost-Slot"

func (q *Queue) createAttempt(ctx context.Context, queue string, t webhook.Task) error {
	body, err := json.Marshal(t.Key)
	if err != nil {
		return err
	}
	h := headers(ctx)
	if !t.Slot.IsZero() {
		h[SlotHeader] = t.Slot.UTC().Format(time.RFC3339Nano)
	}
	return q.create(ctx, queue, t.Key.TaskID(), AttemptPath, body, t.At, h)
}

// create adds a named task; that it exists already is success.
func (q *Queue) create(ctx context.Context, queue, id, path string, body []byte, at time.Time, h map[string]string) error {
	name := q.queueName(queue)
	task := &taskspb.Task{
		Name: name + "/tasks/" + id,
		MessageType: &taskspb.Task_HttpRequest{HttpRequest: &taskspb.HttpRequest{
			Url:        q.cfg.Dispatcher + path,
			HttpMethod: taskspb.HttpMethod_POST,
			Headers:    h,
			Body:       body,
			AuthorizationHeader: &taskspb.HttpRequest_OidcToken{OidcToken: &taskspb.OidcToken{
				ServiceAccountEmail: q.cfg.Invoker,
				Audience:            q.cfg.Audience,
			}},
		}},
		DispatchDeadline: durationpb.New(dispatchDeadline),
	}
	if now := q.cfg.Now(); at.After(now) {
		task.ScheduleTime = timestamppb.New(earlier(at, now.Add(Horizon-time.Hour)))
	}
	_, err := q.client.CreateTask(ctx, &taskspb.CreateTaskRequest{Parent: name, Task: task})
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}

// headers are the task's, with the trace that it continues.
func headers(ctx context.Context) map[string]string {
	h := propagation.MapCarrier{"Content-Type": "application/json"}
	propagation.TraceContext{}.Inject(ctx, h)
	return h
}

// absent reports whether err says that the queue is not there. The service has two
// codes for it: NOT_FOUND, and FAILED_PRECONDITION for one that was there recently.
func absent(err error) bool {
	c := status.Code(err)
	return c == codes.NotFound || c == codes.FailedPrecondition
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Depth counts the tasks of a queue, up to limit. For people and tests.
func (q *Queue) Depth(ctx context.Context, name string, limit int) (int, error) {
	it := q.client.ListTasks(ctx, &taskspb.ListTasksRequest{Parent: q.queueName(name), PageSize: int32(min(limit, 1000))})
	for n := 0; ; n++ {
		if n == limit {
			return n, nil
		}
		if _, err := it.Next(); errors.Is(err, iterator.Done) {
			return n, nil
		} else if err != nil {
			return 0, fmt.Errorf("list tasks of queue %s: %w", name, err)
		}
	}
}

// Ready is the body of the control task that a queue dispatches to show that it
// serves.
type Ready struct {
	Tenant   string `json:"tenant"`
	Endpoint string `json:"endpoint"`
	Queue    string `json:"queue"`
}

// Announce puts a control task into the endpoint's own queue. When it arrives at
// [QueueReadyPath], the queue has been seen to accept and to dispatch.
func (q *Queue) Announce(ctx context.Context, ref webhook.QueueRef) error {
	now := q.cfg.Now()
	q.mu.Lock()
	q.announced[ref.Own] = now
	q.mu.Unlock()
	body, err := json.Marshal(Ready{Tenant: ref.Tenant, Endpoint: ref.Endpoint, Queue: ref.Own})
	if err != nil {
		return err
	}
	id := fmt.Sprintf("ready-%d", now.Unix()/int64(announceEvery/time.Second))
	if err := q.create(ctx, ref.Own, id, QueueReadyPath, body, time.Time{}, headers(ctx)); err != nil {
		return fmt.Errorf("ask queue %s whether it serves: %w", ref.Own, err)
	}
	return nil
}

// announceDue asks again, at most once a minute and process, on behalf of an
// endpoint whose first announcement was lost or came before the queue served.
// That it fails costs nothing: the pool queue goes on serving.
func (q *Queue) announceDue(ctx context.Context, ref webhook.QueueRef) {
	if q.due(ref.Own) {
		_ = q.Announce(ctx, ref)
	}
}

// due reports whether a minute has passed since what was last done, and notes that
// it is now.
func (q *Queue) due(what string) bool {
	now := q.cfg.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.announced[what]) < announceEvery {
		return false
	}
	for name, at := range q.announced { // keep the map as small as the last minute
		if now.Sub(at) > 2*announceEvery {
			delete(q.announced, name)
		}
	}
	q.announced[what] = now
	return true
}

func (q *Queue) queueName(name string) string { return q.parent + "/queues/" + name }

// NewQueueName is a queue name that was never used before: u is fresh for each
// endpoint that is created, also when its id was used before.
func NewQueueName(u [16]byte) string {
	return "ep-" + strings.TrimPrefix(webhook.EndpointID(u), "ep_")
}
