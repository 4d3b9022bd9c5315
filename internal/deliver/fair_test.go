package deliver

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/localcloud"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// simulation is a number of dispatchers behind the pool queues of the topology, in
// virtual time: Cloud Tasks as far as it matters here, and the real choice of pools and
// real limits.
type simulation struct {
	now     time.Time
	events  eventHeap
	seq     int
	pools   []string
	queues  map[string]*simQueue
	fleet   []*limits
	turn    int
	allots  map[string]webhook.Allotment
	started map[string][]time.Time // attempts by endpoint
	late    map[string][]time.Duration
	flying  map[string]int
	most    map[string]int // in flight at once
}

// simQueue dispatches what is due in the order in which it fell due, within its token
// bucket and its concurrency.
type simQueue struct {
	rate        float64
	concurrency int
	tokens      float64
	filled      time.Time
	flying      int
	waiting     []*simTask
	waking      bool // a call of dispatch is planned
}

type simEndpoint struct {
	id          string
	rate        float64
	concurrency int64
	takes       time.Duration // an attempt
}

type simTask struct {
	ep      *simEndpoint
	key     webhook.AttemptKey
	due     time.Time // of this task
	planned time.Time // of the attempt
	slot    time.Time
}

// handling is how long the dispatcher takes for an attempt, besides the endpoint: the
// claim, and either the record or the making of another task.
const handling = 20 * time.Millisecond

func newSimulation(t *testing.T, instances int) *simulation {
	topology, err := localcloud.LoadTopology()
	if err != nil {
		t.Fatal(err)
	}
	s := &simulation{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), queues: map[string]*simQueue{}, pools: topology.PoolQueues(),
		allots: map[string]webhook.Allotment{}, started: map[string][]time.Time{}, late: map[string][]time.Duration{}, flying: map[string]int{}, most: map[string]int{}}
	for _, name := range s.pools {
		q := topology.Queues[name]
		s.queues[name] = &simQueue{rate: q.MaxDispatchesPerSecond, concurrency: int(q.MaxConcurrentDispatches), tokens: 1, filled: s.now}
	}
	for i := range instances {
		s.fleet = append(s.fleet, newLimits(fmt.Sprint("instance ", i), DefaultMaxInFlight, func() time.Time { return s.now }, s.reserve))
	}
	return s
}

func (s *simulation) reserve(_ context.Context, q webhook.SlotRequest) (got webhook.Slots, err error) {
	s.allots[q.Endpoint], got = s.allots[q.Endpoint].Reserve(q, s.now)
	return got, nil
}

func (s *simulation) at(at time.Time, do func()) {
	s.seq++
	heap.Push(&s.events, event{at, s.seq, do})
}

// run lets time pass.
func (s *simulation) run(d time.Duration) {
	end := s.now.Add(d)
	for len(s.events) > 0 && !s.events[0].at.After(end) {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
	}
	s.now = end
}

func (s *simulation) create(tk *simTask) {
	q := s.queues[tasks.PoolOf(s.pools, tk.key)]
	due := tk.due
	if due.Before(s.now) {
		due = s.now
	}
	s.at(due, func() { q.waiting = append(q.waiting, tk); s.dispatch(q) })
}

func (s *simulation) dispatch(q *simQueue) {
	q.tokens = min(math.Max(10, q.rate/5), q.tokens+s.now.Sub(q.filled).Seconds()*q.rate)
	q.filled = s.now
	for len(q.waiting) > 0 && q.flying < q.concurrency && q.tokens >= 1 {
		tk := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.tokens--
		q.flying++
		s.at(s.now.Add(handling/2), func() { s.handle(q, tk) })
	}
	if len(q.waiting) > 0 && q.flying < q.concurrency && !q.waking {
		q.waking = true
		s.at(s.now.Add(time.Duration((1-q.tokens)/q.rate*1e9)+1), func() { q.waking = false; s.dispatch(q) })
	}
}

func (s *simulation) handle(q *simQueue, tk *simTask) {
	s.turn++
	release, put, err := s.fleet[s.turn%len(s.fleet)].admit(context.Background(),
		asking{key: tk.key, rate: tk.ep.rate, concurrency: tk.ep.concurrency, pooled: true, slot: tk.slot})
	done := s.now.Add(handling / 2)
	switch {
	case err != nil: // 503: tried again by the queue
		again := *tk
		again.due = s.now.Add(5 * time.Second)
		s.create(&again)
	case release == nil:
		again := &simTask{tk.ep, tk.key, put.at, tk.planned, put.slot}
		again.key.Bounce++
		s.create(again)
	default:
		s.started[tk.ep.id] = append(s.started[tk.ep.id], s.now)
		s.late[tk.ep.id] = append(s.late[tk.ep.id], s.now.Sub(tk.planned))
		s.flying[tk.ep.id]++
		s.most[tk.ep.id] = max(s.most[tk.ep.id], s.flying[tk.ep.id])
		done = done.Add(tk.ep.takes)
		s.at(done, func() { release(); s.flying[tk.ep.id]-- })
	}
	s.at(done, func() { q.flying--; s.dispatch(q) })
}

// publish plans n attempts, every apart, from after now on.
func (s *simulation) publish(ep *simEndpoint, n int, after, every time.Duration) {
	for i := range n {
		at := s.now.Add(after + time.Duration(i)*every)
		s.create(&simTask{ep: ep, due: at, planned: at, key: webhook.AttemptKey{Event: webhook.KeyOf("s", ep.id, strconv.Itoa(i)), Tenant: "t", Endpoint: ep.id, Generation: 1, Attempt: 1, Task: 1}})
	}
}

func p99(late []time.Duration) time.Duration {
	late = slices.Sorted(slices.Values(late))
	return late[(len(late)-1)*99/100]
}

// shards are the pools that an endpoint's attempts go to.
func (s *simulation) shards(id string) string {
	seen := map[string]bool{}
	for i := range 100 {
		seen[tasks.PoolOf(s.pools, webhook.AttemptKey{Event: webhook.KeyOf("s", id, strconv.Itoa(i)), Tenant: "t", Endpoint: id, Generation: 1, Attempt: 1, Task: 1})] = true
	}
	var names []string
	for n := range seen {
		names = append(names, n)
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// neighbours are two endpoints that share all their pools, the worst case.
func (s *simulation) neighbours() (a, b string) {
	seen := map[string]string{}
	for i := 0; ; i++ {
		id := fmt.Sprint("ep-", i)
		shards := s.shards(id)
		if other, ok := seen[shards]; ok {
			return other, id
		}
		seen[shards] = id
	}
}

// Behind a neighbour with 1,000 waiting tasks, with whom it shares all its pools, an
// endpoint's p99 grows by a second at most, whatever the neighbour's trouble; the
// neighbour gets all its attempts, and no more at once than its limits say.
func TestNeighbourCostsASecondAtMost(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{1, 4} {
		for i, nb := range []simEndpoint{
			{"limited to one a second", 1, 20, 10 * time.Millisecond},
			{"limited to ten a second", 10, 20, 100 * time.Millisecond},
			{"with default limits", webhook.DefaultRatePerSecond, webhook.DefaultMaxConcurrency, 50 * time.Millisecond},
			{"as fast as can be asked for", 500, 5000, 10 * time.Millisecond},
			{"hanging until its timeout", webhook.DefaultRatePerSecond, webhook.DefaultMaxConcurrency, 15 * time.Second},
			{"hanging, asking for all there is", 500, 5000, 15 * time.Second},
			{"one at a time, a second each", webhook.DefaultRatePerSecond, 1, time.Second},
		} {
			if instances == 1 && i%2 == 1 {
				continue // half of them say enough of one
			}
			t.Run(fmt.Sprintf("%d instances, a neighbour %s", instances, nb.id), func(t *testing.T) {
				t.Parallel()
				measure := func(flood int) (*simulation, string, string, time.Duration) {
					s := newSimulation(t, instances)
					a, b := s.neighbours()
					neighbour := nb
					neighbour.id = b
					s.publish(&neighbour, flood, 10*time.Second, 0)
					// The seconds after, at most of its rate.
					s.publish(&simEndpoint{a, webhook.DefaultRatePerSecond, webhook.DefaultMaxConcurrency, 50 * time.Millisecond}, 200, 10*time.Second, 25*time.Millisecond)
					s.run(20 * time.Second)
					if n := len(s.started[a]); n != 200 {
						t.Fatalf("%d of 200 attempts", n)
					}
					return s, a, b, p99(s.late[a])
				}
				_, _, _, alone := measure(0)
				s, _, b, behind := measure(1000)
				if grown := behind - alone; grown > time.Second {
					t.Errorf("p99 is %s alone and %s behind it", alone, behind)
				}
				t.Logf("p99 is %s alone and %s behind it", alone, behind)
				s.run(6 * time.Hour)
				times := s.started[b]
				if len(times) != 1000 {
					t.Fatalf("the neighbour got %d of 1000 attempts", len(times))
				}
				limit := int(min(nb.concurrency, PoolShare))
				if most := s.most[b]; most > max(limit, instances)+instances {
					t.Errorf("%d attempts at once, the limit is %d", most, limit)
				}
				slices.SortFunc(times, time.Time.Compare)
				window := max(int(nb.rate), 1) + burst(nb.rate) + 1
				for i := window + 1; i < len(times); i++ {
					if span := times[i].Sub(times[i-window-1]); span < time.Second-2*early {
						t.Fatalf("%d attempts within %s", window+1, span)
					}
				}
			})
		}
	}
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}
