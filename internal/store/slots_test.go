package store

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

func slotsOf(holder string, count int) webhook.SlotRequest {
	return webhook.SlotRequest{Tenant: "default", Endpoint: "a", Holder: holder, Count: count, Interval: 100 * time.Millisecond, Burst: 2, Horizon: time.Hour}
}

func (f *fixture) reserve(reqs ...webhook.SlotRequest) []webhook.Slots {
	f.t.Helper()
	got, err := f.ReserveSlots(f.ctx, reqs)
	if err != nil {
		f.t.Fatal(err)
	}
	return got
}

// Nobody's slots are anybody else's, however many instances ask at once: in any
// second an endpoint gets no more than its rate and its burst.
func TestSlotsAreExactOverInstances(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	var mu sync.Mutex
	var times []time.Time
	var wg sync.WaitGroup
	for i := range 4 {
		st := f.open(Options{})
		wg.Go(func() {
			for range 5 {
				got, err := st.ReserveSlots(t.Context(), []webhook.SlotRequest{slotsOf(fmt.Sprint("instance ", i), 3), slotsOf(fmt.Sprint("instance ", i), 2)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, s := range got {
					for n := range s.Count {
						times = append(times, s.First.Add(time.Duration(n)*s.Interval))
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(times, time.Time.Compare)
	if len(times) != 100 || !times[0].Equal(t0.Add(-200*time.Millisecond)) {
		t.Fatalf("%d slots from %s", len(times), times[0])
	}
	for i := 1; i < len(times); i++ {
		if gap := times[i].Sub(times[i-1]); gap != 100*time.Millisecond {
			t.Fatalf("slots %d and %d are %s apart", i-1, i, gap)
		}
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	other := slotsOf("one", 1)
	other.Endpoint = "b"
	got := f.reserve(slotsOf("one", 3), other)
	if !got[0].First.Equal(t0.Add(-200*time.Millisecond)) || got[0].Count != 3 || got[1].First != got[0].First || got[0].Holders != 1 {
		t.Errorf("%+v", got)
	}
	if got := f.reserve(slotsOf("two", 1))[0]; !got.First.Equal(t0.Add(100*time.Millisecond)) || got.Holders != 2 {
		t.Errorf("the next one: %+v", got)
	}
	// What was not used in a pause does not pile up beyond the burst.
	f.clock.move(time.Minute)
	if got := f.reserve(slotsOf("two", 1))[0]; !got.First.Equal(t0.Add(time.Minute - 200*time.Millisecond)) {
		t.Errorf("after a pause: %+v", got)
	}
	f.clock.move(webhook.MaxTimeout + 10*time.Second)
	if got := f.reserve(slotsOf("three", 1))[0]; got.Holders != 1 {
		t.Errorf("instances that are gone are counted: %+v", got)
	}
	// Nothing is reserved beyond the horizon.
	far := slotsOf("one", 100)
	far.Interval, far.Burst, far.Horizon = time.Minute, 0, 10*time.Minute
	far.Endpoint = "c"
	got = f.reserve(far, far)
	if got[0].Count != 11 || got[1].Count != 0 {
		t.Errorf("to the horizon: %+v", got)
	}
	for _, bad := range []webhook.SlotRequest{{}, slotsOf("", 1), slotsOf("x", 0), {Holder: "x", Count: 1}} {
		if _, err := f.ReserveSlots(f.ctx, []webhook.SlotRequest{bad}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A deferred attempt keeps its number and is not overdue until its new time; the task
// that it had is stale.
func TestDefer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	d := f.one("a")
	at := t0.Add(20 * time.Minute)
	other := d.Key()
	other.Attempt = 7
	foreign := d.Key()
	foreign.Tenant = "other"
	bounced := d.Key()
	bounced.Bounce = 3
	got, err := f.Defer(f.ctx, []Deferral{{other, at}, {bounced, at}, {foreign, at}})
	if err != nil || got[0] != nil || got[2] != nil || got[1] == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	task := *got[1]
	if k := task.Key; k.Attempt != 1 || k.Task != 2 || k.Bounce != 0 || !task.At.Equal(at) || task.Queue.Own != "q-a" {
		t.Errorf("%+v", task)
	}
	overdue, err := f.Overdue(f.ctx, at, 10)
	if err != nil || len(overdue) != 0 {
		t.Errorf("overdue: %+v, %v", overdue, err)
	}
	if c, err := f.Claim(f.ctx, bounced); err != nil || c.Verdict != VerdictStale || c.Current.Key != task.Key {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := f.Claim(f.ctx, task.Key); err != nil || c.Verdict != VerdictRun || !c.Delivery.NextAttemptAt.Equal(at) {
		t.Errorf("%+v, %v", c, err)
	}
	got, err = f.Defer(f.ctx, []Deferral{{task.Key, t0}, {webhook.AttemptKey{Event: d.Event, Tenant: "default", Endpoint: "none", Generation: 1, Attempt: 1, Task: 1}, at}})
	if err != nil || got[1] != nil || !got[0].At.Equal(at) {
		t.Errorf("to an earlier time: %+v, %v", got, err)
	}
}
