package deliver_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// An endpoint in the shared queues is called at its rate: what comes too early is put
// back, is no attempt, and is sent once. What is put back for long is told to the store,
// so that nobody takes it for lost.
func TestPooledEndpointIsCalledAtItsRate(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	var times []time.Time
	rc := newReceiver(t, func(http.ResponseWriter, *http.Request, int) { times = append(times, b.clock.Now()) })
	b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) { ep.Queue, ep.RatePerSecond = "", 0.1 })
	var keys []webhook.EventKey
	for i := range 12 {
		keys = append(keys, b.publish(string(rune('a'+i)), awkward))
	}
	b.clock.Advance(time.Second)
	if len(times) != 1 {
		t.Fatalf("%d at once", len(times))
	}
	now := b.clock.Now()
	overdue, err := b.store.Overdue(t.Context(), now.Add(-time.Minute), 100)
	must(t, err)
	later := 0
	for _, k := range keys {
		d, attempts := b.delivery(k, "ep-1")
		if d.State == webhook.DeliveryScheduled && (d.Attempt != 1 || len(attempts) != 0) {
			t.Errorf("put back as an attempt: %+v", d)
		}
		if d.NextAttemptAt.Sub(now) > 50*time.Second {
			later++
		}
	}
	if len(overdue) != 0 || later != 6 {
		t.Errorf("%d overdue, %d known to come later", len(overdue), later)
	}
	for range 20 { // a minute hence those of the first minute are not overdue either
		b.clock.Advance(10 * time.Second)
		overdue, err := b.store.Overdue(t.Context(), b.clock.Now().Add(-2*time.Minute), 100)
		must(t, err)
		if len(overdue) != 0 {
			t.Errorf("overdue: %+v", overdue)
		}
	}
	if len(times) != 12 {
		t.Fatalf("%d requests", len(times))
	}
	for i := 1; i < len(times); i++ {
		if gap := times[i].Sub(times[i-1]); gap < 10*time.Second-200*time.Millisecond || gap > 11*time.Second {
			t.Errorf("request %d came %s after the one before", i+1, gap)
		}
	}
	for _, k := range keys {
		if d, attempts := b.delivery(k, "ep-1"); d.State != webhook.DeliveryDelivered || len(attempts) != 1 || attempts[0].Key.Attempt != 1 {
			t.Errorf("%+v with %d attempts", d, len(attempts))
		}
	}
	for _, code := range b.statuses {
		if code != http.StatusNoContent {
			t.Errorf("Cloud Tasks was told %d", code)
		}
	}
}

// An ordered endpoint in the shared queues is called at its rate and in order: what is
// put back does not keep its key for itself.
func TestPooledEndpointKeepsOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	var got []string
	rc := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) { got = append(got, r.Header.Get("Webhook-Id")) })
	b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) {
		ep.Queue, ep.RatePerSecond, ep.Ordering = "", 0.1, webhook.OrderingBlock
	})
	var want []string
	for i := range 5 {
		ev := webhook.Event{Tenant: "default", Source: "app", PublisherID: string(rune('a' + i)), Type: "invoice.paid", OrderingKey: "k", Body: awkward,
			ReceivedAt: b.clock.Now(), Receipt: string(rune('a' + i))}
		ev.Seal()
		in, err := b.store.Ingest(t.Context(), []webhook.Event{ev})
		must(t, err)
		for _, task := range in[0].Tasks {
			must(t, b.queue.Schedule(t.Context(), task))
		}
		want = append(want, ev.Key.ID())
	}
	for range 12 {
		b.clock.Advance(5 * time.Second)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, code := range b.statuses {
		if code != http.StatusNoContent {
			t.Errorf("Cloud Tasks was told %d", code)
		}
	}
}
