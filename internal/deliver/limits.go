package deliver

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Who may send when.
//
// An endpoint with a queue of its own has its limits there. For one in the shared
// pool queues, and for all that concerns this instance, the limits are here, and
// their answer to an attempt that may not begin now is always the same: its task is
// made anew for a time when it may, and the old one answered with success, within
// milliseconds. Nothing waits inside the dispatcher: a waiting request would occupy
// the place in the pool queue, and in this instance, that a neighbour's needs. And
// nothing is refused: Cloud Tasks answers 429 and 503 by slowing the whole queue
// down, neighbours included. Only when this instance as a whole is full it says 503,
// for then every queue had better slow down.
// https://cloud.google.com/tasks/docs/common-pitfalls#backoff_errors_and_enforced_rates
//
//   - Rate: exact over all instances. The store hands out times, Interval apart, in
//     blocks of a tenth of a second's worth; an attempt takes one, and one that is put back
//     carries the time it is put back for.
//   - Concurrency: each instance may use its part of the limit, by the number of
//     instances that had attempts at the endpoint in the last minute. It is exceeded
//     while an instance does not know yet of another that has begun, a second or so,
//     and where the limit is smaller than the number of instances. Exactly to hold it
//     would take two writes to Spanner for each attempt; who needs that asks for a
//     queue.
//   - Shares: as long as half of this instance is free anyone may use it. The other
//     half is for endpoints below a tenth, and tenants below a quarter, of the
//     instance, so that slow ones never keep others waiting.

const (
	// DefaultMaxInFlight is how many attempts an instance makes at once.
	DefaultMaxInFlight = 250
	// PoolShare is how many attempts at one endpoint in the shared queues are under way
	// at most, over all instances: a fifth of the places of a pool queue, and dealt
	// over several of these.
	PoolShare = 20
	// slotHorizon is how far ahead times are given away. What comes beyond is put back
	// without one, so that a limit that is raised takes effect within the hour.
	slotHorizon = time.Hour
	// blockTime is for how long an instance reserves slots beforehand: so few writes to
	// Spanner a second each endpoint in use takes at most, and so long others may wait
	// for slots that it does not use.
	blockTime = 100 * time.Millisecond
	// early is how long before its time an attempt may begin, rather than be put back
	// for a few milliseconds.
	early = 100 * time.Millisecond
	// slotLife is how long after its time a carried slot still counts: those that were
	// missed in an outage do not all come at once.
	slotLife = 10 * time.Second
	// leastWait and mostWait bound for how long an attempt is put back for want of
	// concurrency.
	leastWait = 200 * time.Millisecond
	mostWait  = time.Minute
	// deferAfter is how much later than planned an attempt may be without the store
	// being told. It is less than what the sweep takes for lost.
	deferAfter = time.Minute
)

// errFull: this instance makes as many attempts as it can.
var errFull = errors.New("this instance is full")

// limits admits attempts. It is safe for concurrent use.
type limits struct {
	holder  string // names this instance
	max     int    // attempts at once
	now     func() time.Time
	reserve func(context.Context, webhook.SlotRequest) (webhook.Slots, error)

	mu        sync.Mutex
	inFlight  int
	tenants   map[string]int // in flight
	endpoints map[endpointName]*usage
	swept     int // entries left by the last sweep
}

type endpointName struct{ tenant, id string }

// usage is what this instance knows of one endpoint.
type usage struct {
	inFlight int
	holders  int // instances, this one included
	// Slots that were reserved and are not used: left of them, from next on.
	next     time.Time
	left     int
	interval time.Duration

	block      int // size of the last reservation
	reservedAt time.Time
	slack      bool          // the last one came from what was saved up
	reserving  chan struct{} // closed when the reservation under way has ended
	waiting    int           // attempts that wait for that
	noneUntil  time.Time     // until when there is nothing to reserve within the horizon

	mean   time.Duration // of an attempt, moving
	pace   time.Time     // until when attempts have been put back for want of concurrency
	usedAt time.Time
}

func newLimits(holder string, most int, now func() time.Time, reserve func(context.Context, webhook.SlotRequest) (webhook.Slots, error)) *limits {
	return &limits{holder: holder, max: most, now: now, reserve: reserve, tenants: map[string]int{}, endpoints: map[endpointName]*usage{}}
}

// asking is an attempt that wants to begin.
type asking struct {
	key         webhook.AttemptKey
	rate        float64 // per second
	concurrency int64
	pooled      bool      // its task came from a shared queue
	slot        time.Time // that its task carries; zero if none
}

// later says when to try again, and whether that time is the attempt's own.
type later struct {
	at   time.Time
	slot time.Time // zero, or at
	why  string
}

// Reasons for putting an attempt back, for the log.
const (
	whyRate        = "rate"
	whyConcurrency = "concurrency"
	whyEndpoint    = "endpoint's share"
	whyTenant      = "tenant's share"
)

// admit lets the attempt begin, until release is called, or says when to try again.
// An error is ours.
func (l *limits) admit(ctx context.Context, a asking) (release func(), put later, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		now := l.now()
		u := l.usage(endpointName{a.key.Tenant, a.key.Endpoint}, now)
		if l.inFlight >= l.max {
			return nil, later{}, fmt.Errorf("%w: %d attempts", errFull, l.inFlight)
		}
		if why := l.unfair(a, u); why != "" {
			return nil, u.putBack(a, now, why), nil
		}
		if !a.pooled {
			return l.begin(a, u, now), later{}, nil
		}
		if u.inFlight >= u.places(a.concurrency) {
			return nil, u.putBack(a, now, whyConcurrency), nil
		}
		if at := a.slot; !at.IsZero() && now.Sub(at) < slotLife {
			if at.Sub(now) > early { // Cloud Tasks is never early, but may be asked to run a task
				return nil, later{at, at, whyRate}, nil
			}
			return l.begin(a, u, now), later{}, nil
		}
		at, ok := u.take(now)
		switch {
		case ok && at.Sub(now) <= early:
			return l.begin(a, u, now), later{}, nil
		case ok:
			return nil, later{at, at, whyRate}, nil
		}
		n, err := l.refill(ctx, a, u, now)
		if err != nil {
			return nil, later{}, err
		}
		if n == 0 {
			wait := slotHorizon/2 + time.Duration(float64(slotHorizon/2)*spread(a.key))
			return nil, later{at: now.Add(wait), why: whyRate}, nil
		}
	}
}

// begin counts the attempt in.
func (l *limits) begin(a asking, u *usage, now time.Time) (release func()) {
	l.inFlight++
	l.tenants[a.key.Tenant]++
	u.inFlight++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.inFlight--
		if l.tenants[a.key.Tenant]--; l.tenants[a.key.Tenant] == 0 {
			delete(l.tenants, a.key.Tenant)
		}
		u.inFlight--
		end := l.now()
		u.usedAt = end
		if took := end.Sub(now); u.mean == 0 {
			u.mean = took
		} else {
			u.mean += (took - u.mean) / 8
		}
	})
}

// unfair says whose share of the instance the attempt would exceed, "" if nobody's.
func (l *limits) unfair(a asking, u *usage) string {
	switch {
	case l.inFlight < l.max/2:
		return ""
	case u.inFlight >= max(1, l.max/10):
		return whyEndpoint
	case l.tenants[a.key.Tenant] >= max(1, l.max/4):
		return whyTenant
	}
	return ""
}

// places is this instance's part of the endpoint's concurrency.
func (u *usage) places(limit int64) int {
	return max(1, int(min(max(limit, 1), PoolShare))/max(u.holders, 1))
}

// putBack finds a time for an attempt that has to wait for others to end: they end,
// on the average, u.mean ÷ their number apart.
func (u *usage) putBack(a asking, now time.Time, why string) later {
	step := u.mean / time.Duration(max(u.inFlight, 1))
	at := now.Add(max(leastWait, u.mean/2))
	if next := u.pace.Add(step); next.After(at) {
		at = next
	}
	if most := now.Add(mostWait); at.After(most) {
		// The estimate says little beyond; come back at different times.
		return later{at: now.Add(mostWait/2 + time.Duration(float64(mostWait/2)*spread(a.key))), why: why}
	}
	u.pace = at
	return later{at: at, why: why}
}

// take uses one of the reserved slots. Those too long past are lost.
func (u *usage) take(now time.Time) (at time.Time, ok bool) {
	for u.left > 0 {
		at = u.next
		u.next, u.left = u.next.Add(u.interval), u.left-1
		if now.Sub(at) <= slotLife {
			return at, true
		}
	}
	return time.Time{}, false
}

// refill reserves slots, or waits for whoever is doing that, with l.mu released
// meanwhile. n is how many there are; 0 means none within the horizon.
func (l *limits) refill(ctx context.Context, a asking, u *usage, now time.Time) (n int, err error) {
	if now.Before(u.noneUntil) {
		return 0, nil
	}
	if under := u.reserving; under != nil {
		u.waiting++
		l.mu.Unlock()
		defer func() { l.mu.Lock(); u.waiting-- }()
		select {
		case <-under:
			return 1, nil // look again
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	rate := min(max(a.rate, 1e-4), 1000)
	u.block = u.nextBlock(rate, now)
	q := webhook.SlotRequest{Tenant: a.key.Tenant, Endpoint: a.key.Endpoint, Holder: l.holder, Count: u.block,
		Interval: time.Duration(float64(time.Second) / rate), Burst: burst(rate), Horizon: slotHorizon}
	done := make(chan struct{})
	u.reserving = done
	l.mu.Unlock()
	got, err := l.reserve(ctx, q)
	l.mu.Lock()
	u.reserving = nil
	close(done)
	if err != nil {
		return 0, fmt.Errorf("reserve slots of %s/%s: %w", q.Tenant, q.Endpoint, err)
	}
	u.reservedAt, u.holders = now, got.Holders
	u.next, u.left, u.interval = got.First, got.Count, got.Interval
	u.slack = got.First.Before(now)
	if got.Count == 0 {
		u.noneUntil = now.Add(time.Second)
	}
	return got.Count, nil
}

// nextBlock is how many slots to reserve: one for each attempt that waits, or for what
// blockTime is likely to bring by the pace at which the last block went. While the
// endpoint is called less than it might be, up to a second's worth is taken of what is
// saved up for bursts: half of it at most, which nobody else will miss.
func (u *usage) nextBlock(rate float64, now time.Time) int {
	ahead, most := blockTime, int(rate*blockTime.Seconds())
	if u.slack {
		ahead, most = time.Second, max(most, (burst(rate)+1)/2)
	}
	pace := float64(u.block) / max(now.Sub(u.reservedAt), time.Millisecond).Seconds()
	return max(u.waiting+1, min(int(pace*ahead.Seconds()+0.5), most))
}

// burst is how many attempts may follow a pause at once, as for a queue of that rate:
// Cloud Tasks picks a fifth of the rate, at least 10. Slow limits are there to keep
// attempts apart, and get one.
func burst(rate float64) int {
	if rate < 1 {
		return 0
	}
	return max(10, int(rate/5)) - 1
}

// usage finds what is known of an endpoint, and now and then forgets what is of no
// more use: idle for longer than it is counted as a holder.
func (l *limits) usage(name endpointName, now time.Time) *usage {
	u := l.endpoints[name]
	if u == nil {
		if len(l.endpoints) >= max(1024, 2*l.swept) {
			for n, u := range l.endpoints {
				if u.inFlight == 0 && u.reserving == nil && now.Sub(u.usedAt) > 2*webhook.MaxTimeout {
					delete(l.endpoints, n)
				}
			}
			l.swept = len(l.endpoints)
		}
		u = &usage{holders: 1}
		l.endpoints[name] = u
	}
	u.usedAt = now
	return u
}

// spread is a number in [0, 1) drawn from the task's name.
func spread(k webhook.AttemptKey) float64 {
	h := fnv.New64a()
	h.Write([]byte(k.TaskID())) // begins with a hash of its own, which mixes well
	return float64(h.Sum64()>>11) / (1 << 53)
}
