package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// origin is where the task of an attempt came from, as the headers of Cloud Tasks say.
type origin struct {
	queue string // empty: not from Cloud Tasks
	slot  time.Time
}

type originKey struct{}

// withOrigin notes where the request's task came from.
func withOrigin(ctx context.Context, h http.Header) context.Context {
	o := origin{queue: h.Get("X-CloudTasks-QueueName")}
	if at, err := time.Parse(time.RFC3339Nano, h.Get(tasks.SlotHeader)); err == nil {
		o.slot = at
	}
	return context.WithValue(ctx, originKey{}, o)
}

// admit lets the claimed attempt k begin, until release is called, or puts it back for
// a time when it may; then release is nil. An error is ours.
func (d *Dispatcher) admit(ctx context.Context, k webhook.AttemptKey, c *store.Claim) (release func(), err error) {
	from, _ := ctx.Value(originKey{}).(origin)
	release, put, err := d.limits.admit(ctx, asking{key: k, rate: c.Endpoint.RatePerSecond, concurrency: c.Endpoint.MaxConcurrency,
		pooled: d.o.Queue.IsPool(from.queue), slot: from.slot})
	if release != nil {
		return release, nil
	}
	if c.Delivery.Ordered() { // the claim holds its key for this run
		err = errors.Join(err, d.o.Store.EndLease(ctx, k))
	}
	if err != nil {
		return nil, fmt.Errorf("admit %s: %w", k, err)
	}
	d.o.Log.LogAttrs(ctx, slog.LevelInfo, "attempt put back", append(keyAttrs("put_back", k),
		slog.String("reason", put.why), slog.Int64("bounce", k.Bounce), slog.Time("next_attempt_at", put.at.UTC()))...)
	if put.at.Sub(c.Delivery.NextAttemptAt) < deferAfter {
		return nil, d.o.Queue.PutBack(ctx, k, from.queue, put.at, put.slot)
	}
	t, err := d.deferrals.Do(ctx, store.Deferral{Key: k, At: put.at})
	if err != nil {
		return nil, fmt.Errorf("defer %s: %w", k, err)
	}
	if t == nil {
		return nil, nil // it has moved on meanwhile
	}
	t.Slot = put.slot
	return nil, d.schedule(ctx, t)
}
