package tasks

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	taskspb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/sealpost/sealpost/internal/webhook"
)

// DefaultMaxQueues is the quota of queues that a project has per region unless it
// asks for more. https://cloud.google.com/tasks/docs/quotas
const DefaultMaxQueues = 1000

// countAge is how long a count of the region's queues serves. Lists are limited to
// 600 a minute (same page).
const countAge = time.Minute

// ErrNoQuota says that the region has no queue left for the endpoint: the pools
// carry it, until there is one.
var ErrNoQuota = errors.New("the region's queues are used up")

// CreateQueue creates the endpoint's own queue with its limits and asks it, by a
// control task, to show that it dispatches. Idempotent in ep.Queue. An endpoint
// without a queue's name, or whose queue is Terraform's, is left alone.
//
// [ErrNoQuota] if Config.MaxQueues is reached, less a tenth for endpoints that did
// not ask for a queue of their own, or if Cloud Tasks says RESOURCE_EXHAUSTED.
//
// A name that was deleted cannot be used again for days; [NewQueueName] never
// gives one twice.
func (q *Queue) CreateQueue(ctx context.Context, ep *webhook.Endpoint) error {
	if ep.Queue == "" || ep.ManagedBy == webhook.ManagedByTerraform {
		return nil
	}
	fail := func(err error) error {
		return fmt.Errorf("create queue %s of endpoint %s/%s: %w", ep.Queue, ep.Tenant, ep.ID, err)
	}
	room, err := q.room(ctx, ep.Queueing)
	if err != nil {
		return fail(err)
	}
	if !room {
		return fail(ErrNoQuota)
	}
	_, err = q.client.CreateQueue(ctx, &taskspb.CreateQueueRequest{Parent: q.parent, Queue: q.spec(ep)})
	switch status.Code(err) {
	case codes.OK:
		q.mu.Lock()
		q.counted++
		q.mu.Unlock()
	case codes.AlreadyExists:
	case codes.ResourceExhausted:
		return fail(fmt.Errorf("%w: %w", ErrNoQuota, err))
	default:
		return fail(err)
	}
	if err := q.Announce(ctx, ep.QueueRef()); err != nil && !absent(err) {
		return err
	}
	return nil
}

// room reports whether the region may have one queue more.
func (q *Queue) room(ctx context.Context, kind webhook.Queueing) (bool, error) {
	most := q.cfg.MaxQueues
	if kind != webhook.QueueingOwn {
		most -= most / 10
	}
	now := q.cfg.Now()
	q.mu.Lock()
	n, fresh := q.counted, !q.countedAt.IsZero() && now.Sub(q.countedAt) < countAge
	q.mu.Unlock()
	if !fresh {
		n = 0
		for _, err := range q.list(ctx) {
			if err != nil {
				return false, fmt.Errorf("count queues: %w", err)
			}
			n++
		}
		q.mu.Lock()
		q.counted, q.countedAt = n, now
		q.mu.Unlock()
	}
	return n < most, nil
}

func (q *Queue) list(ctx context.Context) iter.Seq2[*taskspb.Queue, error] {
	return func(yield func(*taskspb.Queue, error) bool) {
		it := q.client.ListQueues(ctx, &taskspb.ListQueuesRequest{Parent: q.parent})
		for {
			queue, err := it.Next()
			if errors.Is(err, iterator.Done) || !yield(queue, err) || err != nil {
				return
			}
		}
	}
}

// Ensure creates the endpoint's own queue once more if it does not serve yet, at
// most once a minute and process: its first creation may have failed, or its
// announcement may have been lost. That it fails costs nothing: the pools go on
// serving.
func (q *Queue) Ensure(ctx context.Context, ep *webhook.Endpoint) {
	if ep.Queue != "" && ep.QueueReadyAt.IsZero() && ep.State != webhook.EndpointDeleted && q.due("create "+ep.Queue) {
		_ = q.CreateQueue(ctx, ep)
	}
}

// spec is the endpoint's queue as Cloud Tasks is to have it. A fault of one task
// backs off alone, without end: giving up is Spanner's decision.
func (q *Queue) spec(ep *webhook.Endpoint) *taskspb.Queue {
	return &taskspb.Queue{
		Name: q.queueName(ep.Queue),
		RateLimits: &taskspb.RateLimits{
			MaxDispatchesPerSecond:  min(max(ep.RatePerSecond, MinRate), MaxRate),
			MaxConcurrentDispatches: int32(min(max(ep.MaxConcurrency, 1), MaxConcurrency)),
		},
		RetryConfig: &taskspb.RetryConfig{
			MaxAttempts:  -1,
			MinBackoff:   durationpb.New(q.cfg.MinBackoff),
			MaxBackoff:   durationpb.New(q.cfg.MaxBackoff),
			MaxDoublings: 6,
		},
	}
}

// ours are the fields that spec sets. UpdateQueue with them leaves the state alone.
var ours = []string{"rate_limits.max_dispatches_per_second", "rate_limits.max_concurrent_dispatches",
	"retry_config.max_attempts", "retry_config.min_backoff", "retry_config.max_backoff", "retry_config.max_doublings"}

// differs names the first setting in which have is not as wanted; "" if none.
func differs(have, want *taskspb.Queue) string {
	h, w, hr, wr := have.GetRateLimits(), want.GetRateLimits(), have.GetRetryConfig(), want.GetRetryConfig()
	switch {
	case math.Abs(h.GetMaxDispatchesPerSecond()-w.GetMaxDispatchesPerSecond()) > 1e-9*w.GetMaxDispatchesPerSecond():
		return "rate"
	case h.GetMaxConcurrentDispatches() != w.GetMaxConcurrentDispatches():
		return "concurrency"
	case hr.GetMaxAttempts() != wr.GetMaxAttempts() || hr.GetMaxDoublings() != wr.GetMaxDoublings() ||
		hr.GetMinBackoff().AsDuration() != wr.GetMinBackoff().AsDuration() || hr.GetMaxBackoff().AsDuration() != wr.GetMaxBackoff().AsDuration():
		return "retry settings"
	}
	return ""
}

// UpdateQueue gives the endpoint's own queue the endpoint's limits. An endpoint
// without one, or whose queue is Terraform's, is left alone. A queue that is not
// there is success: whoever makes it gives it these limits. It is looked for first,
// since Cloud Tasks' UpdateQueue creates what is absent, be it deleted a moment ago.
// https://cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2#cloudtasks
func (q *Queue) UpdateQueue(ctx context.Context, ep *webhook.Endpoint) error {
	if ep.Queue == "" || ep.ManagedBy == webhook.ManagedByTerraform {
		return nil
	}
	have, err := q.client.GetQueue(ctx, &taskspb.GetQueueRequest{Name: q.queueName(ep.Queue)})
	if absent(err) {
		return nil
	}
	if err == nil && differs(have, q.spec(ep)) != "" {
		_, err = q.client.UpdateQueue(ctx, &taskspb.UpdateQueueRequest{Queue: q.spec(ep), UpdateMask: &fieldmaskpb.FieldMask{Paths: ours}})
	}
	if err != nil {
		return fmt.Errorf("update queue %s of endpoint %s/%s: %w", ep.Queue, ep.Tenant, ep.ID, err)
	}
	return nil
}

// DeleteQueue deletes an endpoint's own queue with the tasks in it. A queue that
// is not there is success.
func (q *Queue) DeleteQueue(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	err := q.client.DeleteQueue(ctx, &taskspb.DeleteQueueRequest{Name: q.queueName(name)})
	if err != nil && !absent(err) {
		return fmt.Errorf("delete queue %s: %w", name, err)
	}
	return nil
}

// Wanted is an endpoint as its queue ought to be.
type Wanted struct {
	Endpoint webhook.Endpoint
	// Paused says that the queue is to stop: nothing of it would be sent now.
	Paused bool
}

// Change is one thing that [Queue.Reconcile] did, or could not do.
type Change struct {
	Tenant, Endpoint, Queue string
	What                    string // "created", "updated rate", "paused", "resumed", "deleted", "lost", "no quota", …
	Err                     error
}

func (c Change) String() string {
	s := fmt.Sprintf("queue %s of %s/%s: %s", c.Queue, c.Tenant, c.Endpoint, c.What)
	if c.Err != nil {
		s += ": " + c.Err.Error()
	}
	return s
}

// Assigner reads and changes what an endpoint's row says of its queue. Package store has it.
type Assigner interface {
	// HoldQueue says, as of now, which queue the endpoint has and whether it is to stop.
	HoldQueue(ctx context.Context, tenant, endpoint string) (queue string, hold bool, err error)
	// AssignQueue gives an endpoint that has none the name, and returns it as it is.
	AssignQueue(ctx context.Context, tenant, endpoint, queue string) (webhook.Endpoint, error)
	// DropQueue takes the name away, if the endpoint still has it.
	DropQueue(ctx context.Context, tenant, endpoint, queue string) error
}

// Reconcile compares the queues of endpoints with what they ought to be and mends
// what differs. It goes on past single faults and returns everything that it did or
// could not do; its error says that it could not look.
//
//   - Missing queues are made, for endpoints in the pools too once there is room:
//     first those that ask for one.
//   - Rates, concurrency and retry settings that drifted are set right; queues that
//     are paused and ought not to be are resumed, and the other way round.
//   - Queues that are left are deleted once they are empty, those of deleted endpoints
//     at once. A queue that no endpoint names is somebody else's.
//   - Queues of endpoints declared in Terraform are paused and resumed, no more.
//
// wanted must be read after the call began, deleted endpoints included: newName
// makes a name that was never used.
func (q *Queue) Reconcile(ctx context.Context, wanted func() iter.Seq2[Wanted, error], rows Assigner, newName func() string) ([]Change, error) {
	have := map[string]*taskspb.Queue{}
	for queue, err := range q.list(ctx) {
		if err != nil {
			return nil, fmt.Errorf("list queues: %w", err)
		}
		have[strings.TrimPrefix(queue.GetName(), q.parent+"/queues/")] = queue
	}
	q.mu.Lock()
	q.counted, q.countedAt = len(have), q.cfg.Now()
	q.mu.Unlock()
	r := &reconciling{q: q, rows: rows, newName: newName}
	for w, err := range wanted() {
		if err != nil {
			return r.changes, fmt.Errorf("list endpoints: %w", err)
		}
		r.one(ctx, &w, have[w.Endpoint.Queue])
	}
	for _, kind := range []webhook.Queueing{webhook.QueueingOwn, webhook.QueueingAuto} {
		for i := range r.pooled {
			if ep := &r.pooled[i]; ep.Queueing == kind && !r.assign(ctx, ep) {
				break
			}
		}
	}
	return r.changes, nil
}

type reconciling struct {
	q       *Queue
	rows    Assigner
	newName func() string
	pooled  []webhook.Endpoint // that may have a queue of their own, and have none
	changes []Change
}

func (r *reconciling) note(ep *webhook.Endpoint, what string, err error) {
	r.changes = append(r.changes, Change{ep.Tenant, ep.ID, ep.Queue, what, err})
}

// one sees to one endpoint; have is its queue, nil if that is not there.
func (r *reconciling) one(ctx context.Context, w *Wanted, have *taskspb.Queue) {
	ep := &w.Endpoint
	declared := ep.ManagedBy == webhook.ManagedByTerraform
	switch {
	case ep.State == webhook.EndpointDeleted:
		if have != nil && !declared {
			r.note(ep, "deleted", r.q.DeleteQueue(ctx, ep.Queue))
		}
		return
	case ep.Queue == "":
		if ep.Queueing != webhook.QueueingPool && !declared {
			r.pooled = append(r.pooled, *ep)
		}
		return
	case have == nil:
		r.missing(ctx, ep, declared)
		return
	}
	if !declared {
		if what := differs(have, r.q.spec(ep)); what != "" {
			r.note(ep, "updated "+what, r.q.UpdateQueue(ctx, ep))
		}
	}
	if paused := have.GetState() == taskspb.Queue_PAUSED; paused != w.Paused {
		r.align(ctx, ep, paused)
	}
	switch {
	case declared:
	case !ep.QueueLeftAt.IsZero() && r.q.cfg.Now().After(ep.QueueLeftAt):
		r.drained(ctx, ep)
	case ep.QueueReadyAt.IsZero():
		_ = r.q.Announce(ctx, ep.QueueRef()) // it will be asked again
	}
}

// errUnsettled: the endpoint's state keeps changing.
var errUnsettled = errors.New("the endpoint's state is changing")

// align has a queue stop or go on as its endpoint's state says now, and looks at the state
// again after: what was read when the pass began may be minutes old, and a queue must not
// be left standing for an endpoint that serves again.
func (r *reconciling) align(ctx context.Context, ep *webhook.Endpoint, paused bool) {
	was := paused
	for range 4 {
		queue, hold, err := r.rows.HoldQueue(ctx, ep.Tenant, ep.ID)
		if err != nil {
			r.note(ep, "looked for", err)
			return
		}
		if queue != ep.Queue || hold == paused {
			if paused != was {
				r.note(ep, stateName(paused), nil)
			}
			return
		}
		if hold {
			err = r.q.Pause(ctx, queue)
		} else {
			err = r.q.Resume(ctx, queue)
		}
		if err != nil {
			r.note(ep, stateName(hold), err)
			return
		}
		paused = hold
	}
	r.note(ep, stateName(paused), errUnsettled)
}

func stateName(paused bool) string {
	if paused {
		return "paused"
	}
	return "resumed"
}

// missing deals with a queue that ought to be there.
func (r *reconciling) missing(ctx context.Context, ep *webhook.Endpoint, declared bool) {
	if ep.QueueReadyAt.IsZero() {
		if declared {
			return // Terraform will
		}
		err := r.q.CreateQueue(ctx, ep)
		if errors.Is(err, ErrNoQuota) {
			r.note(ep, "no quota", r.rows.DropQueue(ctx, ep.Tenant, ep.ID, ep.Queue))
			return
		}
		r.note(ep, "created", err)
		if status.Code(err) == codes.FailedPrecondition {
			// Somebody has deleted it: the name is spent, the endpoint gets another.
			if err := r.rows.DropQueue(ctx, ep.Tenant, ep.ID, ep.Queue); err != nil {
				r.note(ep, "lost", err)
				return
			}
			r.pooled = append(r.pooled, *ep)
		}
		return
	}
	err := r.q.giveUp(ctx, ep.QueueRef())
	if err == nil && r.q.cfg.Lost == nil {
		err = r.rows.DropQueue(ctx, ep.Tenant, ep.ID, ep.Queue)
	}
	r.note(ep, "lost", err)
}

// drained takes a queue away that its endpoint has left, once nothing is in it.
func (r *reconciling) drained(ctx context.Context, ep *webhook.Endpoint) {
	n, err := r.q.Depth(ctx, ep.Queue, 1)
	if err != nil || n > 0 {
		return
	}
	if err = r.q.DeleteQueue(ctx, ep.Queue); err == nil {
		err = r.rows.DropQueue(ctx, ep.Tenant, ep.ID, ep.Queue)
	}
	r.note(ep, "deleted", err)
}

// assign gives an endpoint a queue of its own; false means that there is none left.
func (r *reconciling) assign(ctx context.Context, ep *webhook.Endpoint) bool {
	room, err := r.q.room(ctx, ep.Queueing)
	if err != nil || !room {
		return false
	}
	got, err := r.rows.AssignQueue(ctx, ep.Tenant, ep.ID, r.newName())
	if err != nil {
		r.note(ep, "created", err)
		return true
	}
	if err = r.q.CreateQueue(ctx, &got); errors.Is(err, ErrNoQuota) {
		r.note(&got, "no quota", r.rows.DropQueue(ctx, got.Tenant, got.ID, got.Queue))
		return false
	}
	r.note(&got, "created", err)
	return true
}
