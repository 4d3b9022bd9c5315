package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// desk is limits with a clock that is moved and reservations that are its own.
type desk struct {
	*limits
	at     time.Time
	allots map[string]webhook.Allotment
	asked  []webhook.SlotRequest
	err    error
}

func newDesk(most int) *desk {
	d := &desk{at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), allots: map[string]webhook.Allotment{}}
	d.limits = newLimits("us", most, func() time.Time { return d.at }, func(_ context.Context, q webhook.SlotRequest) (got webhook.Slots, err error) {
		if d.err != nil {
			return got, d.err
		}
		d.asked = append(d.asked, q)
		d.allots[q.Endpoint], got = d.allots[q.Endpoint].Reserve(q, d.at)
		return got, nil
	})
	return d
}

func from(tenant, endpoint string, n int) asking {
	return asking{rate: 50, concurrency: 20, key: webhook.AttemptKey{Event: webhook.KeyOf("s", tenant, fmt.Sprint(n)), Tenant: tenant, Endpoint: endpoint, Generation: 1, Attempt: 1, Task: 1}}
}

// run asks n times and gives the releases of those admitted, and what the last of the
// others was told.
func (d *desk) run(t *testing.T, n int, a asking) (releases []func(), put later) {
	t.Helper()
	for range n {
		release, l, err := d.admit(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if release != nil {
			releases = append(releases, release)
		} else {
			put = l
		}
	}
	return releases, put
}

// Slow endpoints and tenants fill half of an instance, and beyond that their share;
// then the others still find room.
func TestSharesOfAnInstance(t *testing.T) {
	t.Parallel()
	d := newDesk(100)
	slow, put := d.run(t, 80, from("big", "slow", 1))
	if len(slow) != 50 || put.why != whyEndpoint || !put.slot.IsZero() || put.at.Sub(d.at) < leastWait {
		t.Errorf("one endpoint: %d admitted, then %+v", len(slow), put)
	}
	// Its tenant has more than a quarter by now; other tenants' endpoints have nothing.
	if got, put := d.run(t, 5, from("big", "other", 1)); len(got) != 0 || put.why != whyTenant {
		t.Errorf("the tenant's other endpoint: %d, %+v", len(got), put)
	}
	for i := range 5 {
		want := max(0, min(10, 25-10*i))
		if got, put := d.run(t, 12, from("small", fmt.Sprint("ep-", i), 1)); len(got) != want || put.why == "" {
			t.Errorf("endpoint %d of another tenant: %d, %+v", i, len(got), put)
		}
	}
	// 75 are under way. A third tenant finds 25 places, the fourth none.
	for i, n := range []int{10, 10, 5} {
		d.run(t, n, from("third", fmt.Sprint("ep-", i), 1))
	}
	if _, _, err := d.admit(t.Context(), from("fourth", "ep", 1)); !errors.Is(err, errFull) {
		t.Errorf("a full instance: %v", err)
	}
	for _, release := range slow {
		release()
		release() // harmless
	}
	if d.inFlight != 50 || d.tenants["big"] != 0 {
		t.Errorf("%d under way, %v", d.inFlight, d.tenants)
	}
	if got, _ := d.run(t, 1, from("fourth", "ep", 1)); len(got) != 1 {
		t.Error("no room after the slow ones have ended")
	}
}

// Own queues have their limits in Cloud Tasks: nothing is reserved for them.
func TestOwnQueuesAreNotLimitedTwice(t *testing.T) {
	t.Parallel()
	d := newDesk(100)
	a := from("t", "a", 1)
	a.rate, a.concurrency = 0.001, 1
	if got, _ := d.run(t, 40, a); len(got) != 40 || len(d.asked) != 0 {
		t.Errorf("%d admitted, %d reservations", len(got), len(d.asked))
	}
}

func TestPooledRate(t *testing.T) {
	t.Parallel()
	d := newDesk(100)
	a := from("t", "a", 1)
	a.pooled, a.rate, a.concurrency = true, 1, 1000
	got, put := d.run(t, 10, a) // as many as a queue would send at once, and no more
	if len(got) != 10 || put.why != "" {
		t.Fatalf("%d admitted, %+v", len(got), put)
	}
	_, put = d.run(t, 1, a)
	if want := d.at.Add(time.Second); !put.slot.Equal(want) || !put.at.Equal(want) || put.why != whyRate {
		t.Fatalf("%+v, want %s", put, want)
	}
	carrying := a
	carrying.slot = put.slot
	before := len(d.asked)
	if _, again := d.run(t, 1, carrying); !again.at.Equal(put.at) || len(d.asked) != before {
		t.Errorf("before its time: %+v after %d reservations", again, len(d.asked))
	}
	d.at = put.slot.Add(-early)
	if got, _ := d.run(t, 1, carrying); len(got) != 1 {
		t.Error("at its time it is not admitted")
	}
	d.at = put.slot.Add(slotLife)
	if d.run(t, 1, carrying); len(d.asked) != before+1 {
		t.Error("a slot of long ago still counts")
	}
	// Slow limits keep attempts apart from the first on.
	a = from("t", "slow", 1)
	a.pooled, a.rate = true, 0.1
	if got, put := d.run(t, 2, a); len(got) != 1 || put.slot.Sub(d.at) != 10*time.Second {
		t.Errorf("%d admitted, %+v", len(got), put)
	}
	// What is beyond the horizon comes back without a slot, and asks no more for a while.
	a = from("t", "stuck", 1)
	a.pooled, a.rate = true, 0.001
	d.run(t, 10, a)
	before = len(d.asked)
	for range 3 {
		if _, put := d.run(t, 1, a); !put.slot.IsZero() || put.at.Sub(d.at) < slotHorizon/2 || put.at.Sub(d.at) > slotHorizon {
			t.Errorf("%+v", put)
		}
	}
	if len(d.asked) != before {
		t.Errorf("%d reservations for nothing", len(d.asked)-before)
	}
	d.err = errors.New("Spanner is away")
	d.at = d.at.Add(time.Minute)
	if _, _, err := d.admit(t.Context(), a); !errors.Is(err, d.err) {
		t.Errorf("%v", err)
	}
}

// Each instance has its part of an endpoint's concurrency; those put back come back as
// others are likely to have ended.
func TestPooledConcurrency(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit     int64
		instances int
		want      int
	}{{20, 1, 20}, {5000, 1, PoolShare}, {4, 1, 4}, {20, 3, 6}, {2, 3, 1}, {0, 1, 1}} {
		d := newDesk(1000)
		for i := range c.instances - 1 {
			d.allots["a"], _ = d.allots["a"].Reserve(webhook.SlotRequest{Holder: fmt.Sprint("other ", i), Count: 1, Interval: time.Millisecond}, d.at)
		}
		a := from("t", "a", 1)
		a.pooled, a.rate, a.concurrency = true, 500, c.limit
		got, put := d.run(t, 50, a)
		if len(got) != c.want || put.why != whyConcurrency {
			t.Errorf("limit %d over %d instances: %d admitted, want %d; %+v", c.limit, c.instances, len(got), c.want, put)
		}
	}
	d := newDesk(1000)
	a := from("t", "a", 1)
	a.pooled, a.rate, a.concurrency = true, 500, 4
	got, _ := d.run(t, 4, a)
	d.at = d.at.Add(8 * time.Second)
	got[0]()
	got[1]()
	d.run(t, 2, a)
	var times []time.Duration
	for i := range 40 {
		b := from("t", "a", i)
		b.pooled, b.rate, b.concurrency = true, 500, 4
		_, put := d.run(t, 1, b)
		times = append(times, put.at.Sub(d.at))
	}
	if times[0] != 4*time.Second || times[1] != 6*time.Second || times[2] != 8*time.Second {
		t.Errorf("attempts of 8 s, 4 at once, come back after %v", times[:3])
	}
	if last := times[39]; last < mostWait/2 || last > mostWait {
		t.Errorf("the last comes back after %s", last)
	}
}

// Attempts that come while slots are being reserved share the next reservation; one
// that hangs up leaves the others alone.
func TestOneReservationForMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls, slots atomic.Int64
		var allot webhook.Allotment
		var mu sync.Mutex
		l := newLimits("us", 10_000, time.Now, func(_ context.Context, q webhook.SlotRequest) (got webhook.Slots, err error) {
			time.Sleep(15 * time.Millisecond) // in the bubble: Spanner's time
			mu.Lock()
			defer mu.Unlock()
			calls.Add(1)
			slots.Add(int64(q.Count))
			allot, got = allot.Reserve(q, time.Now())
			return got, nil
		})
		gone, cancel := context.WithCancel(t.Context())
		var admitted, put, hung atomic.Int64
		for i := range 500 {
			ctx := t.Context()
			if i == 3 {
				ctx = gone
			}
			go func() {
				a := from("t", "a", i)
				a.pooled, a.rate, a.concurrency = true, 1, 5000
				release, _, err := l.admit(ctx, a)
				switch {
				case err != nil:
					hung.Add(1)
				case release != nil:
					admitted.Add(1)
					release()
				default:
					put.Add(1)
				}
			}()
		}
		synctest.Wait()
		cancel()
		time.Sleep(time.Minute)
		if calls.Load() > 3 || admitted.Load() != 10 || admitted.Load()+put.Load()+hung.Load() != 500 || hung.Load() > 1 || slots.Load() > 502 {
			t.Errorf("%d reservations of %d slots; %d admitted, %d put back, %d hung up", calls.Load(), slots.Load(), admitted.Load(), put.Load(), hung.Load())
		}
	})
}

// What is known of endpoints that are idle is forgotten.
func TestIdleEndpointsAreForgotten(t *testing.T) {
	t.Parallel()
	d := newDesk(100)
	busy, _ := d.run(t, 1, from("t", "busy", 1))
	for i := range 5000 {
		got, _ := d.run(t, 1, from("t", fmt.Sprint("ep-", i), 1))
		got[0]()
		d.at = d.at.Add(time.Second)
	}
	if n := len(d.endpoints); n > 1100 || d.endpoints[endpointName{"t", "busy"}] == nil {
		t.Errorf("%d endpoints are remembered", n)
	}
	busy[0]()
	if d.inFlight != 0 || len(d.tenants) != 0 {
		t.Errorf("%d under way, %v", d.inFlight, d.tenants)
	}
}
