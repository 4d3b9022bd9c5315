package store

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// line is a store with an ordered endpoint "a" and the deliveries to it.
type line struct {
	*fixture
	ordering webhook.Ordering
	keys     []webhook.EventKey
}

func newLine(t *testing.T, ordering webhook.Ordering, o Options) *line {
	t.Helper()
	l := &line{fixture: newFixture(t, o), ordering: ordering}
	l.ordered("a", ordering)
	return l
}

// ordered makes an ordered endpoint of two attempts a generation.
func (l *line) ordered(id string, ordering webhook.Ordering) {
	l.t.Helper()
	_, err := l.CreateEndpoint(l.ctx, webhook.Endpoint{Tenant: "default", ID: id, URL: "https://hooks.example.com/" + id, EventTypes: []string{"*"},
		Queue: "q-" + id, EndpointSettings: webhook.EndpointSettings{Ordering: ordering}},
		[]SealedKey{{ID: "key_1", Kind: "v1", Sealed: []byte("sealed"), SealedBy: "1"}}, "tester")
	if err != nil {
		l.t.Fatal(err)
	}
}

// arrive stores an event of an ordering key.
func (l *line) arrive(key, id string) Ingested {
	l.t.Helper()
	l.clock.move(time.Millisecond)
	e := event("default", "stripe", id, "invoice.paid")
	e.OrderingKey, e.ReceivedAt = key, l.clock.now()
	out := l.ingest(e)[0]
	l.keys = append(l.keys, out.Key)
	return out
}

// end finishes the delivery of the i-th event with the outcome, whatever attempt it
// stands at; dead takes all of its attempts.
func (l *line) end(i int, o webhook.Outcome) Recorded {
	l.t.Helper()
	d, _ := l.getDelivery(l.keys[i], "a")
	r := l.attempt(d, o)
	r.Ordering = l.ordering
	if !o.OK() {
		r.Decision = webhook.Decision{State: webhook.DeliveryDead, Reason: webhook.ReasonAttemptsExhausted}
	}
	return l.record(r)[0]
}

// states compares the states of the deliveries to "a", in the order of arrival.
func (l *line) states(want ...webhook.DeliveryState) {
	l.t.Helper()
	for i, k := range l.keys {
		if d, _ := l.getDelivery(k, "a"); d.State != want[i] {
			l.t.Errorf("delivery %d is %s (%s), want %s", i, d.State, d.Reason, want[i])
		}
	}
}

func (l *line) follower(r Recorded, want int) {
	l.t.Helper()
	switch {
	case want < 0 && r.Follower != nil:
		l.t.Errorf("follower %v, want none", r.Follower.Key)
	case want >= 0 && (r.Follower == nil || r.Follower.Key.Event != l.keys[want] || r.Follower.Key.Attempt != 1):
		l.t.Errorf("follower %+v, want attempt 1 of delivery %d", r.Follower, want)
	}
}

const (
	waits     = webhook.DeliveryWaiting
	scheduled = webhook.DeliveryScheduled
	held      = webhook.DeliveryHeld
	dead      = webhook.DeliveryDead
	done      = webhook.DeliveryDelivered
)

func TestOneOfAKeyAtATime(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{})
	l.endpoint("default", "free")
	for i := range 3 {
		got := l.arrive("order-1", fmt.Sprint(i))
		want := 2 // to "a" and to "free", which has no order
		if i > 0 {
			want = 1
		}
		if len(got.Tasks) != want {
			t.Errorf("event %d has %d tasks, want %d", i, len(got.Tasks), want)
		}
	}
	l.states(scheduled, waits, waits)
	l.arrive("order-2", "other key")
	l.arrive("", "no key")
	l.states(scheduled, waits, waits, scheduled, scheduled)
	// A repeat has the tasks of what is scheduled, and of nothing that waits.
	if again := l.ingest(event("default", "stripe", "1", "invoice.paid"))[0]; len(again.Tasks) != 1 || again.Tasks[0].Key.Endpoint != "free" {
		t.Errorf("tasks of a repeat: %v", again.Tasks)
	}
	l.follower(l.end(0, delivered), 1)
	l.states(done, scheduled, waits, scheduled, scheduled)
	l.follower(l.end(1, delivered), 2)
	l.follower(l.end(2, delivered), -1)
	l.states(done, done, done, scheduled, scheduled)
	if got := l.arrive("order-1", "later"); len(got.Tasks) != 2 {
		t.Errorf("the first of a line that was empty has %d tasks", len(got.Tasks))
	}
}

// A failure that is tried again holds the line up; nobody overtakes.
func TestRetriesKeepThePlace(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingSkipAfterDead, Options{})
	l.arrive("k", "0")
	l.arrive("k", "1")
	d, _ := l.getDelivery(l.keys[0], "a")
	r := l.attempt(d, failing)
	r.Ordering = l.ordering
	got := l.record(r)[0]
	l.follower(got, -1)
	if got.Next == nil || got.Next.Key.Attempt != 2 {
		t.Errorf("next attempt %+v", got.Next)
	}
	l.states(scheduled, waits)
}

func TestDeadHeads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ordering webhook.Ordering
		follower int
		behind   webhook.DeliveryState // of the one that follows
		arrived  webhook.DeliveryState // of one that comes afterwards
		stopped  int
	}{
		{webhook.OrderingBlock, -1, waits, waits, 1},
		{webhook.OrderingParkKey, -1, held, held, 1},
		{webhook.OrderingSkipAfterDead, 1, scheduled, waits, 0},
	} {
		t.Run(string(c.ordering), func(t *testing.T) {
			t.Parallel()
			l := newLine(t, c.ordering, Options{})
			l.arrive("k", "0")
			l.arrive("k", "1")
			l.follower(l.end(0, failing), c.follower)
			l.arrive("k", "2")
			l.states(dead, c.behind, c.arrived)
			stopped, err := l.StoppedKeys(l.ctx, "default", "a", 10)
			if err != nil || len(stopped) != c.stopped {
				t.Fatalf("stopped keys %v, %v", stopped, err)
			}
			if c.stopped == 0 {
				return
			}
			if s := stopped[0]; s.OrderingKey != "k" || s.Head != l.keys[0] || s.Parked != (c.ordering == webhook.OrderingParkKey) || !s.StoppedAt.Equal(l.clock.now().Add(-time.Millisecond)) {
				t.Errorf("stopped key %+v", s)
			}
			// Nothing moves by itself. Then the dead one is stepped over, once.
			for range 2 {
				task, err := l.ReleaseKey(l.ctx, "default", "a", "k", "tester")
				if err != nil || task == nil || task.Key.Event != l.keys[1] {
					t.Fatalf("release: %v, %v", task, err)
				}
			}
			l.states(dead, scheduled, c.arrived)
			l.follower(l.end(1, delivered), 2)
			l.follower(l.end(2, delivered), -1)
			l.states(dead, done, done)
		})
	}
}

func TestReleaseKeyThatIsNone(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{})
	if _, err := l.ReleaseKey(l.ctx, "default", "a", "k", "tester"); !errors.Is(err, ErrNotFound) {
		t.Errorf("error = %v", err)
	}
	l.arrive("k", "0")
	l.arrive("k", "1")
	if task, err := l.ReleaseKey(l.ctx, "default", "a", "k", "tester"); err != nil || task == nil || task.Key.Event != l.keys[0] {
		t.Errorf("a key that does not stand still: %v, %v", task, err)
	}
	l.states(scheduled, waits)
}

// A head that comes back takes its own place; anything else goes to the end.
func TestReplayInOrder(t *testing.T) {
	t.Parallel()
	for _, ordering := range []webhook.Ordering{webhook.OrderingBlock, webhook.OrderingParkKey, webhook.OrderingSkipAfterDead} {
		t.Run(string(ordering), func(t *testing.T) {
			t.Parallel()
			l := newLine(t, ordering, Options{})
			for i := range 3 {
				l.arrive("k", fmt.Sprint(i))
			}
			l.end(0, failing)
			l.clock.move(time.Minute)
			again := event("default", "stripe", "0", "invoice.paid")
			again.ReceivedAt, again.Receipt = l.clock.now(), "the provider's button"
			got := l.ingest(again)[0]
			if got.Reopened != 1 {
				t.Fatalf("re-opened %d", got.Reopened)
			}
			if ordering == webhook.OrderingSkipAfterDead {
				l.states(waits, scheduled, waits)
				l.follower(l.end(1, delivered), 2)
				l.follower(l.end(2, delivered), 0)
				l.follower(l.end(0, delivered), -1)
			} else {
				if len(got.Tasks) != 1 || got.Tasks[0].Key.Generation != 2 {
					t.Errorf("tasks %v", got.Tasks)
				}
				l.follower(l.end(0, delivered), 1)
				l.follower(l.end(1, delivered), 2)
				l.follower(l.end(2, delivered), -1)
			}
			l.states(done, done, done)
		})
	}
}

// Whoever ended the head may stop before the follower's task exists: the head's own
// task runs again and sees to it.
func TestFollowersTaskAfterACrash(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{})
	l.arrive("k", "0")
	l.arrive("k", "1")
	head, _ := l.getDelivery(l.keys[0], "a")
	l.end(0, delivered)
	c, err := l.Claim(l.ctx, head.Key())
	if err != nil || c.Verdict != VerdictStale || c.Current == nil || c.Current.Key.Event != l.keys[1] {
		t.Fatalf("claim of the one that ended: %+v, %v", c, err)
	}
	l.end(1, delivered)
	if c, err = l.Claim(l.ctx, head.Key()); err != nil || c.Verdict != VerdictStale || c.Current != nil {
		t.Errorf("with nobody behind: %+v, %v", c.Current, err)
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{})
	l.arrive("k", "0")
	d, _ := l.getDelivery(l.keys[0], "a")
	claim := func(want Verdict) {
		t.Helper()
		c, err := l.Claim(l.ctx, d.Key())
		if err != nil || c.Verdict != want {
			t.Errorf("verdict %q, %v; want %q", c.Verdict, err, want)
		}
	}
	claim(VerdictRun)
	claim(VerdictLeased)
	if err := l.EndLease(l.ctx, d.Key()); err != nil {
		t.Fatal(err)
	}
	claim(VerdictRun)
	l.clock.move(webhook.DefaultTimeout + leaseSlack - time.Second)
	claim(VerdictLeased)
	l.clock.move(time.Second)
	claim(VerdictRun)
	// What is recorded ends the lease with it.
	r := l.attempt(d, failing)
	r.Ordering = l.ordering
	next := l.record(r)[0].Next
	if c, err := l.Claim(l.ctx, next.Key); err != nil || c.Verdict != VerdictRun {
		t.Errorf("the next attempt: %q, %v", c.Verdict, err)
	}
}

func TestCancelledHeadsMakeWay(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{})
	l.arrive("k", "0")
	l.arrive("k", "1")
	d, _ := l.getDelivery(l.keys[0], "a")
	if _, err := l.Settle(l.ctx, d.Key(), webhook.DeliveryCancelled, webhook.ReasonPayloadGone); err != nil {
		t.Fatal(err)
	}
	task, err := l.HeadTask(l.ctx, &d)
	if err != nil || task == nil || task.Key.Event != l.keys[1] {
		t.Errorf("head %v, %v", task, err)
	}
	l.states(webhook.DeliveryCancelled, scheduled)
	if n, err := l.DeleteEndpoint(l.ctx, "default", "a", "tester"); err != nil || n != 1 {
		t.Errorf("deleting cancels %d, %v", n, err)
	}
	rows := 0
	if err := l.client.Single().Read(l.ctx, "OrderedKeys", spanner.AllKeys(), []string{"Tenant"}).Do(func(*spanner.Row) error { rows++; return nil }); err != nil || rows != 0 {
		t.Errorf("%d ordering keys are left, %v", rows, err)
	}
}

// Several processes store events of one key at once: each event has a place of its
// own, and one goes first.
func TestConcurrentArrivals(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{})
	stores := []*Store{l.Store, l.open(Options{}), l.open(Options{})}
	const n = 24
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			e := event("default", "stripe", fmt.Sprint(i), "invoice.paid")
			e.OrderingKey = "k"
			out, err := stores[i%len(stores)].Ingest(l.ctx, []webhook.Event{e})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			l.keys = append(l.keys, out[0].Key)
		})
	}
	wg.Wait()
	places, heads := map[int64]bool{}, 0
	for _, k := range l.keys {
		d, _ := l.getDelivery(k, "a")
		places[d.OrderPlace] = true
		if d.State == scheduled {
			heads++
		}
	}
	if len(places) != n || heads != 1 {
		t.Errorf("%d places and %d heads for %d events", len(places), heads, n)
	}
	// The whole line goes through, one by one, in the order of the places.
	last, passed := int64(0), 0
	for i := l.scheduledOf("a"); i >= 0; i = l.scheduledOf("a") {
		d, _ := l.getDelivery(l.keys[i], "a")
		if d.OrderSeq <= last {
			t.Fatalf("place %d after %d", d.OrderSeq, last)
		}
		last = d.OrderSeq
		l.end(i, delivered)
		passed++
	}
	if passed != n {
		t.Errorf("%d of %d went through", passed, n)
	}
}

// scheduledOf is the one event whose delivery is scheduled; -1 if there is none.
func (l *line) scheduledOf(endpoint string) int {
	l.t.Helper()
	found := -1
	for i, k := range l.keys {
		if d, _ := l.getDelivery(k, endpoint); d.State == scheduled {
			if found >= 0 {
				l.t.Fatalf("deliveries %d and %d are both scheduled", found, i)
			}
			found = i
		}
	}
	return found
}

// Pub/Sub keeps no order: an event that comes late goes before those that wait, by
// the publisher's time, and equal times go as they came.
func TestPlacesFollowThePublishersTime(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{})
	at := func(id string, second int) {
		t.Helper()
		e := event("default", "stripe", id, "invoice.paid")
		e.OrderingKey, e.OccurredAt = "k", t0.Add(time.Duration(second)*time.Second)
		l.keys = append(l.keys, l.ingest(e)[0].Key)
	}
	at("sent at once", 5)
	at("third", 7)
	at("fourth, of the same second", 7)
	at("too late to be first", 3)
	at("fifth", 8)
	for _, next := range []int{0, 3, 1, 2, 4} {
		if got := l.scheduledOf("a"); got != next {
			t.Fatalf("event %d is sent, want %d", got, next)
		}
		l.end(next, delivered)
	}
}

// A fan-out that takes several commits joins the line of every endpoint.
func TestWideFanoutInOrder(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{FanoutChunk: 2})
	for _, id := range []string{"b", "c", "d", "e"} {
		l.ordered(id, webhook.OrderingBlock)
	}
	for i := range 2 {
		out := l.arrive("k", fmt.Sprint(i))
		tasks := len(out.Tasks)
		for out.More {
			var err error
			if out, err = l.ContinueFanout(l.ctx, "default", l.keys[i]); err != nil {
				t.Fatal(err)
			}
			tasks += len(out.Tasks)
		}
		if want := 5 * (1 - i); tasks != want {
			t.Errorf("event %d has %d tasks, want %d", i, tasks, want)
		}
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		if d, _ := l.getDelivery(l.keys[1], id); d.State != waits {
			t.Errorf("second event at %s is %s", id, d.State)
		}
	}
}

// A group of records that ends a head and a commit that parks many keys stay within
// what one transaction may hold.
func TestManyKeysParkAtOnce(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingParkKey, Options{})
	const keys, behind = 10, 9
	for k := range keys {
		for i := range behind + 1 {
			l.arrive(fmt.Sprint("key ", k), fmt.Sprint(k, "/", i))
		}
	}
	var recs []AttemptRecord
	for k := range keys {
		d, _ := l.getDelivery(l.keys[k*(behind+1)], "a")
		r := l.attempt(d, failing)
		r.Ordering, r.Decision = l.ordering, webhook.Decision{State: webhook.DeliveryDead}
		recs = append(recs, r)
	}
	l.record(recs...)
	parked := 0
	for _, k := range l.keys {
		if d, _ := l.getDelivery(k, "a"); d.State == held {
			parked++
		}
	}
	if parked != parkChunk {
		t.Errorf("%d are held, want %d", parked, parkChunk)
	}
	stopped, err := l.StoppedKeys(l.ctx, "default", "a", 100)
	if err != nil || len(stopped) != keys {
		t.Errorf("%d keys stand still, %v", len(stopped), err)
	}
}

// What a filter could not judge is not sent because its turn in a line has come, nor does
// it hold up what follows. It takes its place in the line when somebody releases it.
func TestUnjudgedHaveNoPlaceInLine(t *testing.T) {
	t.Parallel()
	for _, unjudged := range []int{0, 1} { // first in its line, and behind another
		t.Run(fmt.Sprint(unjudged), func(t *testing.T) {
			t.Parallel()
			l := newLine(t, webhook.OrderingBlock, Options{Filter: func(_ *webhook.Endpoint, e *webhook.Event) (bool, error) {
				if e.PublisherID == fmt.Sprint(unjudged) {
					return false, errors.New("no such key")
				}
				return true, nil
			}})
			if _, err := l.UpdateEndpoint(l.ctx, "default", "a", func(ep *webhook.Endpoint) error { ep.Filter = "x"; return nil }, "tester"); err != nil {
				t.Fatal(err)
			}
			l.arrive("k", "0")
			l.arrive("k", "1")
			l.arrive("k", "2")
			first := 1 - unjudged
			want := []webhook.DeliveryState{scheduled, scheduled, waits}
			want[unjudged] = held
			l.states(want...)
			c, err := l.Release(l.ctx, "default", "a", "ann")
			if err != nil {
				t.Fatal(err)
			}
			if page, err := l.ReleasePage(l.ctx, c.Controls[0]); err != nil || page.Released != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			want[unjudged] = waits
			l.states(want...)
			second, third := 2, unjudged // it goes after the last place given: no event says when it happened
			l.follower(l.end(first, delivered), second)
			l.follower(l.end(second, delivered), third)
			l.follower(l.end(third, delivered), -1)
			l.states(done, done, done)
		})
	}
}

// One that is alone is sent once it is released.
func TestUnjudgedAloneInLine(t *testing.T) {
	t.Parallel()
	l := newLine(t, webhook.OrderingBlock, Options{})
	if _, err := l.UpdateEndpoint(l.ctx, "default", "a", func(ep *webhook.Endpoint) error { ep.Filter = "x"; return nil }, "tester"); err != nil {
		t.Fatal(err)
	}
	l.arrive("k", "0")
	l.states(held)
	c, err := l.Release(l.ctx, "default", "a", "ann")
	if err != nil {
		t.Fatal(err)
	}
	page, err := l.ReleasePage(l.ctx, c.Controls[0])
	if err != nil || page.Released != 1 || len(page.Tasks) != 1 || page.Tasks[0].Key.Attempt != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	l.arrive("k", "1")
	if d, _ := l.getDelivery(l.keys[0], "a"); !d.Ordered() {
		t.Error("it is in no line")
	}
	l.follower(l.end(0, delivered), -1) // the filter judges the second no better
}
