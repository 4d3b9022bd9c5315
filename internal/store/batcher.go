package store

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// BatcherOptions bound what a [Batcher] puts into one call.
type BatcherOptions[T any] struct {
	MaxItems int // default 50
	// MaxBytes bounds the sum of Size over a group; an item beyond it goes alone.
	// Zero means no bound.
	MaxBytes int
	Size     func(T) int
	// Concurrency is how many calls may run at once; default 1. More help only
	// where one call does not keep Spanner busy.
	Concurrency int
	// Timeout bounds one call, so that one that hangs does not hold up all that
	// comes after it; default 30 s.
	Timeout time.Duration
}

// Batcher is a group commit: concurrent callers of Do share one call of a
// function on many items. What arrives while calls are running forms the next
// group, so a lone caller never waits and a crowd is grouped by the commit's own
// duration, without a timer.
type Batcher[T, R any] struct {
	o  BatcherOptions[T]
	do func(context.Context, []T) ([]R, error)

	mu      sync.Mutex
	idle    sync.Cond // running is 0
	queue   []*waiting[T, R]
	running int
	closed  bool
}

// waiting is one item with its caller.
type waiting[T, R any] struct {
	ctx  context.Context
	item T
	done chan outcome[R] // buffered: nobody need be there to take it
}

type outcome[R any] struct {
	result R
	err    error
}

// PanicError is a panic of the function a [Batcher] runs.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// NewBatcher makes a Batcher around do, which must give one result per item, in
// their order, or an error for all, and be safe to call again for the same items.
func NewBatcher[T, R any](o BatcherOptions[T], do func(context.Context, []T) ([]R, error)) *Batcher[T, R] {
	if o.MaxItems <= 0 {
		o.MaxItems = 50
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 1
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	b := &Batcher[T, R]{o: o, do: do}
	b.idle.L = &b.mu
	return b
}

// Do has item dealt with and returns its result. An error that says that Spanner
// could not be reached ([Transient]) goes to every caller of the group; after any
// other the items are tried singly, so that one bad item fails alone.
//
// A caller that gives up returns at once with its context's error; its item may
// still be dealt with. The others do not notice: the call's context ends only
// when all of its callers have given up or its own time is over. After Close, Do gives [ErrClosed].
func (b *Batcher[T, R]) Do(ctx context.Context, item T) (R, error) {
	w := &waiting[T, R]{ctx: ctx, item: item, done: make(chan outcome[R], 1)}
	var zero R
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return zero, ErrClosed
	}
	b.queue = append(b.queue, w)
	if b.running < b.o.Concurrency {
		b.running++
		go b.work()
	}
	b.mu.Unlock()
	select {
	case o := <-w.done:
		return o.result, o.err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// Close refuses new items and waits until those accepted are dealt with.
func (b *Batcher[T, R]) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for b.running > 0 {
		b.idle.Wait()
	}
}

// work runs groups until the queue is empty.
func (b *Batcher[T, R]) work() {
	for {
		b.mu.Lock()
		group := b.take()
		if len(group) == 0 {
			b.running--
			if b.running == 0 {
				b.idle.Broadcast()
			}
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.serve(group)
	}
}

// take removes the next group from the queue, leaving out those who gave up.
func (b *Batcher[T, R]) take() []*waiting[T, R] {
	var group []*waiting[T, R]
	bytes, n := 0, 0
	for _, w := range b.queue {
		if w.ctx.Err() == nil {
			size := 0
			if b.o.Size != nil {
				size = b.o.Size(w.item)
			}
			if len(group) == b.o.MaxItems || len(group) > 0 && b.o.MaxBytes > 0 && bytes+size > b.o.MaxBytes {
				break
			}
			bytes += size
			group = append(group, w)
		}
		n++
	}
	clear(b.queue[:n])
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil // lets go of the array
	}
	return group
}

func (b *Batcher[T, R]) serve(group []*waiting[T, R]) {
	err := b.call(group)
	if err == nil {
		return
	}
	if len(group) > 1 && !Transient(err) {
		for i, w := range group {
			if w.ctx.Err() != nil {
				continue
			}
			if err = b.call(group[i : i+1]); err != nil {
				if Transient(err) {
					fail(group[i:], err)
					return
				}
				fail(group[i:i+1], err)
			}
		}
		return
	}
	fail(group, err)
}

func fail[T, R any](group []*waiting[T, R], err error) {
	for _, w := range group {
		w.done <- outcome[R]{err: err}
	}
}

// call runs do on a group and answers its callers, or returns why it could not.
func (b *Batcher[T, R]) call(group []*waiting[T, R]) error {
	items := make([]T, len(group))
	for i, w := range group {
		items[i] = w.item
	}
	ctx, stop := together(group, b.o.Timeout)
	defer stop()
	results, err := b.guarded(ctx, items)
	if err == nil && len(results) != len(items) {
		err = fmt.Errorf("group of %d items has %d results", len(items), len(results))
	}
	if err != nil {
		return err
	}
	for i, w := range group {
		w.done <- outcome[R]{result: results[i]}
	}
	return nil
}

// guarded turns a panic in do, or its end by runtime.Goexit, into an error.
func (b *Batcher[T, R]) guarded(ctx context.Context, items []T) (results []R, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = errors.New("the goroutine of a group call was ended")
		defer func() {
			if p := recover(); p != nil {
				err = &PanicError{Value: p, Stack: debug.Stack()}
			}
		}()
		results, err = b.do(ctx, items)
	}()
	<-ended
	return results, err
}

// together is a context with the values of the group's first caller that ends
// when every caller has given up, or after the timeout.
func together[T, R any](group []*waiting[T, R], timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(group[0].ctx), timeout)
	var mu sync.Mutex
	left := len(group)
	stops := make([]func() bool, len(group))
	for i, w := range group {
		stops[i] = context.AfterFunc(w.ctx, func() {
			mu.Lock()
			defer mu.Unlock()
			if left--; left == 0 {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}
