package store

import (
	"context"
	"errors"
	"iter"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
	"google.golang.org/api/iterator"
)

// An attempt's task is in one queue only, which everybody finds from the delivery's
// row and the endpoint's (see [webhook.Task.InOwnQueue]). A change of the endpoint's
// queue therefore takes effect for what is planned from a moment on by which no one
// plans by the row as it was: cards are at most cardAge old, and clocks differ a
// little.
const queueSettle = cardAge + 500*time.Millisecond

// MarkQueueReady notes that the endpoint's own queue dispatches: what is planned from
// a few seconds later on goes there. A second call changes nothing, and neither does
// one for a queue that is not the endpoint's (any more). [ErrNotFound] if there is no
// such endpoint; a deleted one is left alone.
func (s *Store) MarkQueueReady(ctx context.Context, tenant, endpoint, queue string) error {
	err := s.changeEndpoint(ctx, "queue-ready", tenant, endpoint, 0, func(ep *webhook.Endpoint, now time.Time) (*spanner.Mutation, bool) {
		if ep.State == webhook.EndpointDeleted || ep.Queue != queue || !ep.QueueReadyAt.IsZero() {
			return nil, false
		}
		ep.QueueReadyAt = now.Add(queueSettle)
		return nil, true
	})
	return wrap(err, "mark queue of %s/%s ready", tenant, endpoint)
}

// AssignQueue gives an endpoint that has no queue of its own the name of one, and
// returns it as it then is; one that has a queue, or is deleted, stays as it is. The
// queue carries tasks once it is marked ready. [ErrNotFound] if there is no such
// endpoint.
func (s *Store) AssignQueue(ctx context.Context, tenant, endpoint, queue string) (webhook.Endpoint, error) {
	var out webhook.Endpoint
	err := s.changeEndpoint(ctx, "assign-queue", tenant, endpoint, 0, func(ep *webhook.Endpoint, _ time.Time) (*spanner.Mutation, bool) {
		change := ep.Queue == "" && ep.State != webhook.EndpointDeleted
		if change {
			ep.Queue, ep.QueueReadyAt, ep.QueueLeftAt = queue, time.Time{}, time.Time{}
		}
		out = *ep
		return nil, change
	})
	return out, wrap(err, "assign queue %s to %s/%s", queue, tenant, endpoint)
}

// LeaveQueue has the pools carry what is planned for the endpoint from a few seconds
// later on. Its own queue is emptied and stays the endpoint's until [Store.DropQueue];
// one that never served is dropped at once. Idempotent. [ErrNotFound] if there is no
// such endpoint.
func (s *Store) LeaveQueue(ctx context.Context, tenant, endpoint string) error {
	err := s.changeEndpoint(ctx, "leave-queue", tenant, endpoint, 0, func(ep *webhook.Endpoint, now time.Time) (*spanner.Mutation, bool) {
		switch {
		case ep.Queue == "" || !ep.QueueLeftAt.IsZero():
			return nil, false
		case ep.QueueReadyAt.IsZero():
			ep.Queue = ""
		default:
			ep.QueueLeftAt = now.Add(queueSettle)
		}
		return nil, true
	})
	return wrap(err, "leave queue of %s/%s", tenant, endpoint)
}

// DropQueue notes that the queue is gone: the pools carry everything of the endpoint.
// It must be certain that no task of the queue can ever run. A queue that is not the
// endpoint's is left alone. The name of a queue that is declared in Terraform stays,
// to be used again if it serves again. [ErrNotFound] if there is no such endpoint.
func (s *Store) DropQueue(ctx context.Context, tenant, endpoint, queue string) error {
	err := s.changeEndpoint(ctx, "drop-queue", tenant, endpoint, 0, func(ep *webhook.Endpoint, _ time.Time) (*spanner.Mutation, bool) {
		if queue == "" || ep.Queue != queue {
			return nil, false
		}
		if ep.ManagedBy != webhook.ManagedByTerraform {
			ep.Queue = ""
		}
		ep.QueueReadyAt, ep.QueueLeftAt = time.Time{}, time.Time{}
		return nil, true
	})
	return wrap(err, "drop queue %s of %s/%s", queue, tenant, endpoint)
}

// LostQueue is [Store.DropQueue] in the form of tasks.Config.Lost.
func (s *Store) LostQueue(ctx context.Context, ref webhook.QueueRef) error {
	return s.DropQueue(ctx, ref.Tenant, ref.Endpoint, ref.Own)
}

// QueueState is an endpoint with whether its own queue is to stand still.
type QueueState struct {
	Endpoint webhook.Endpoint
	Hold     bool
}

// QueueStates are all endpoints of all tenants, deleted ones included, as they are when
// the reading begins. Signing keys are not read.
func (s *Store) QueueStates(ctx context.Context) iter.Seq2[QueueState, error] {
	return func(yield func(QueueState, error) bool) {
		txn := s.client.ReadOnlyTransaction()
		defer txn.Close()
		health := map[endpointID]webhook.Health{}
		err := txn.ReadWithOptions(ctx, "EndpointHealth", spanner.AllKeys(), healthColumns, tag("queue-states")).Do(func(r *spanner.Row) error {
			var h healthRow
			if err := r.ToStruct(&h); err != nil {
				return err
			}
			health[endpointID{h.Tenant, h.EndpointID}] = h.health()
			return nil
		})
		it := txn.ReadWithOptions(ctx, "Endpoints", spanner.AllKeys(), endpointColumns, tag("queue-states"))
		defer it.Stop()
		for err == nil {
			var r *spanner.Row
			if r, err = it.Next(); errors.Is(err, iterator.Done) {
				return
			}
			var row endpointRow
			if err == nil {
				err = r.ToStruct(&row)
			}
			var ep webhook.Endpoint
			if err == nil {
				ep, err = row.endpoint()
			}
			if err != nil {
				break
			}
			h := health[endpointID{ep.Tenant, ep.ID}]
			if !yield(QueueState{ep, holdsQueue(&ep, &h)}, nil) {
				return
			}
		}
		yield(QueueState{}, wrap(err, "read the queues of endpoints"))
	}
}

// holdsQueue reports whether an endpoint's own queue is to stand still. A breaker that
// awaits its probe has no end: the probe comes through the queue.
func holdsQueue(ep *webhook.Endpoint, h *webhook.Health) bool {
	return ep.State != webhook.EndpointActive || !h.Closed() && !h.OpenUntil.IsZero()
}
