package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sealpost/sealpost/internal/webhook"
)

// maxTaskErrors ends the creation of an event's tasks: one queue at fault must
// not keep the others waiting, all of them at fault need not be asked.
const maxTaskErrors = 8

// schedule makes sure that every task exists and returns how many do. It shares
// the process's slots with all other events, and goes on past a task that cannot
// be created.
func (in *Ingester) schedule(ctx context.Context, ts []webhook.Task) (int, error) {
	if len(ts) == 1 {
		if err := in.one(ctx, ts[0]); err != nil {
			return 0, err
		}
		return 1, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu      sync.Mutex
		errs    []error
		created int
		wg      sync.WaitGroup
	)
	next := make(chan webhook.Task)
	for range min(len(ts), in.o.TaskConcurrency) {
		wg.Go(func() {
			for t := range next {
				err := in.one(ctx, t)
				mu.Lock()
				if err == nil {
					created++
				} else if errs = append(errs, err); len(errs) >= maxTaskErrors {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	for _, t := range ts {
		if ctx.Err() != nil {
			break
		}
		next <- t
	}
	close(next)
	wg.Wait()
	if len(errs) == 0 && created < len(ts) {
		errs = append(errs, ctx.Err())
	}
	if len(errs) > 0 {
		return created, fmt.Errorf("%d of %d tasks are missing: %w", len(ts)-created, len(ts), errors.Join(errs[:min(len(errs), maxTaskErrors)]...))
	}
	return created, nil
}

// one creates a task within a slot. A panic counts as an error: it would end the
// process from a goroutine of ours, where a message's own only ends the message.
func (in *Ingester) one(ctx context.Context, t webhook.Task) (err error) {
	if err := in.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer in.slots.Release(1)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("schedule %s: panic: %v", t.Key, p)
		}
	}()
	if err := in.o.Queue.Schedule(ctx, t); err != nil {
		return err
	}
	return in.step(ctx, StepTaskCreated)
}
