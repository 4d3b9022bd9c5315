package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// groups is a function for batchers that notes its calls; each takes a second.
type groups struct {
	mu    sync.Mutex
	calls [][]int
	fail  func([]int) error
}

func (g *groups) do(ctx context.Context, items []int) ([]int, error) {
	g.mu.Lock()
	g.calls = append(g.calls, slices.Clone(items))
	g.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Second):
	}
	if g.fail != nil {
		if err := g.fail(items); err != nil {
			return nil, err
		}
	}
	out := make([]int, len(items))
	for i, n := range items {
		out[i] = n * n
	}
	return out, nil
}

func (g *groups) sizes() (out []int) {
	for _, c := range g.calls {
		out = append(out, len(c))
	}
	return out
}

// crowd calls Do for the numbers from 0, all at once and in order, and returns
// what each got.
func crowd(b *Batcher[int, int], n int) (results []int, errs []error) {
	results, errs = make([]int, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { results[i], errs[i] = b.Do(context.Background(), i) })
		synctest.Wait()
	}
	wg.Wait()
	return results, errs
}

func TestBatcherGroupsWhatArrivesMeanwhile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		o    BatcherOptions[int]
		n    int
		want string
	}{
		{"a lone caller", BatcherOptions[int]{}, 1, "[1]"},
		{"the rest is one group", BatcherOptions[int]{}, 40, "[1 39]"},
		{"at most so many", BatcherOptions[int]{MaxItems: 10}, 25, "[1 10 10 4]"},
		{"at most so large", BatcherOptions[int]{MaxBytes: 30, Size: func(int) int { return 10 }}, 8, "[1 3 3 1]"},
		{"larger than all alone", BatcherOptions[int]{MaxBytes: 30, Size: func(n int) int { return 31 }}, 3, "[1 1 1]"},
		{"two at a time", BatcherOptions[int]{Concurrency: 2, MaxItems: 10}, 22, "[1 1 10 10]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &groups{}
				b := NewBatcher(c.o, g.do)
				defer b.Close()
				start := time.Now()
				results, errs := crowd(b, c.n)
				for i := range results {
					if errs[i] != nil || results[i] != i*i {
						t.Errorf("item %d: %d, %v", i, results[i], errs[i])
					}
				}
				if got := fmt.Sprint(g.sizes()); got != c.want {
					t.Errorf("groups %s, want %s", got, c.want)
				}
				if c.n == 1 && time.Since(start) != time.Second {
					t.Errorf("a lone caller took %s, the call takes a second", time.Since(start))
				}
			})
		})
	}
}

func TestBatcherFailures(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad item")
	unavailable := status.Error(codes.Unavailable, "down")
	holds := func(n int, err error) func([]int) error {
		return func(items []int) error {
			if slices.Contains(items, n) {
				return err
			}
			return nil
		}
	}
	for _, c := range []struct {
		name  string
		fail  func([]int) error
		bad   []int // callers that fail
		calls int
	}{
		{"one bad item fails alone", holds(3, bad), []int{3}, 2 + 5},
		{"a permanent error too", holds(3, invalid("x")), []int{3}, 2 + 5},
		{"a panic too", func(items []int) error {
			if slices.Contains(items, 3) {
				panic("boom")
			}
			return nil
		}, []int{3}, 2 + 5},
		{"an ended goroutine too", func(items []int) error {
			if slices.Contains(items, 3) {
				runtime.Goexit()
			}
			return nil
		}, []int{3}, 2 + 5},
		{"an outage fails the group", holds(3, unavailable), []int{1, 2, 3, 4, 5}, 2},
		{"a deadline fails the group", holds(3, context.DeadlineExceeded), []int{1, 2, 3, 4, 5}, 2},
		{"an outage amid the single tries ends them", func(items []int) error {
			switch {
			case len(items) > 1:
				return bad
			case items[0] == 3:
				return unavailable
			}
			return nil
		}, []int{3, 4, 5}, 2 + 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &groups{fail: c.fail}
				b := NewBatcher(BatcherOptions[int]{}, g.do)
				defer b.Close()
				_, errs := crowd(b, 6) // groups of 1 and 5
				for i, err := range errs {
					if (err != nil) != slices.Contains(c.bad, i) {
						t.Errorf("item %d: %v", i, err)
					}
				}
				if len(g.calls) != c.calls {
					t.Errorf("%d calls, want %d", len(g.calls), c.calls)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b := NewBatcher(BatcherOptions[int]{}, func(context.Context, []int) ([]int, error) { panic("boom") })
		defer b.Close()
		var p *PanicError
		if _, err := b.Do(t.Context(), 1); !errors.As(err, &p) || p.Value != "boom" || len(p.Stack) == 0 {
			t.Errorf("%v", err)
		}
		short := NewBatcher(BatcherOptions[int]{}, func(context.Context, []int) ([]int, error) { return nil, nil })
		defer short.Close()
		if _, err := short.Do(t.Context(), 1); err == nil {
			t.Error("no result and no error")
		}
	})
}

func TestBatcherCallersWhoGiveUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &groups{}
		b := NewBatcher(BatcherOptions[int]{}, g.do)
		defer b.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		do := func(ctx context.Context, n int, want error) {
			wg.Go(func() {
				if r, err := b.Do(ctx, n); !errors.Is(err, want) || err == nil && r != n*n {
					t.Errorf("item %d: %d, %v; want %v", n, r, err, want)
				}
			})
			synctest.Wait()
		}
		do(t.Context(), 1, nil)      // under way
		do(ctx, 2, context.Canceled) // gives up while waiting
		cancel()                     //
		do(ctx, 3, context.Canceled) // comes too late
		two, giveUp := context.WithCancel(t.Context())
		do(two, 4, context.Canceled)          // gives up while under way
		do(t.Context(), 5, nil)               // in one group with it
		<-time.After(1500 * time.Millisecond) // of the bubble's time
		giveUp()
		wg.Wait()
		if got := fmt.Sprint(g.calls); got != "[[1] [4 5]]" {
			t.Errorf("calls %s", got)
		}
		// Where all give up, the call ends.
		alone, giveUp := context.WithCancel(t.Context())
		start := time.Now()
		do(alone, 6, context.Canceled)
		giveUp()
		wg.Wait()
		b.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("the call went on for %s", d)
		}
	})
}

func TestBatcherCloseDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &groups{}
		b := NewBatcher(BatcherOptions[int]{MaxItems: 2}, g.do)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if _, err := b.Do(t.Context(), i); err != nil {
					t.Errorf("accepted before Close: %v", err)
				}
			})
		}
		synctest.Wait()
		b.Close()
		wg.Wait()
		if _, err := b.Do(t.Context(), 9); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		b.Close()
	})
}

func ExampleBatcher() {
	var commits int
	b := NewBatcher(BatcherOptions[string]{MaxItems: 50}, func(_ context.Context, ids []string) ([]int, error) {
		commits++ // one commit for the group
		lengths := make([]int, len(ids))
		for i, id := range ids {
			lengths[i] = len(id)
		}
		return lengths, nil
	})
	n, err := b.Do(context.Background(), "evt_1")
	b.Close()
	fmt.Println(n, err, commits)
	// Output: 5 <nil> 1
}
