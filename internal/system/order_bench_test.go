package system_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// BenchmarkOrder is what an endpoint's order costs: how many stored events a second
// reach an endpoint that answers at once, without order, and in the order of one key, of
// 8 and of 64. Compare with none. Spanner's emulator runs one transaction at a time, so
// that many keys gain less here than they do on Spanner; one key gains nothing anywhere
// but from shorter commits.
func BenchmarkOrder(b *testing.B) {
	sys, err := system.Start(b.Context(), system.Options{Pull: true})
	if err != nil {
		b.Fatal(err)
	}
	defer sys.Close()
	runs := 0
	for _, c := range []struct {
		name     string
		ordering webhook.Ordering
		keys     int
	}{{"none", webhook.OrderingNone, 1}, {"keys=1", webhook.OrderingBlock, 1}, {"keys=8", webhook.OrderingBlock, 8}, {"keys=64", webhook.OrderingBlock, 64}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				runs++
				b.ReportMetric(orderRun(b, sys, fmt.Sprint("order-", runs), c.ordering, c.keys), "deliveries/s")
			}
		})
	}
}

// orderRun stores events for one endpoint, then lets them go, and gives how many a second
// arrived.
func orderRun(b *testing.B, sys *system.System, tenant string, ordering webhook.Ordering, keys int) float64 {
	const events, group = 512, 64
	var arrived atomic.Int64
	done := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if arrived.Add(1) == events {
			close(done)
		}
	}))
	defer hook.Close()
	ep := fairEndpoint(b, sys, webhook.Endpoint{Tenant: tenant, ID: "ep", URL: hook.URL, EventTypes: []string{"*"}, RatePerSecond: 500, MaxConcurrency: 100,
		EndpointSettings: webhook.EndpointSettings{Queueing: webhook.QueueingOwn, Ordering: ordering}})
	awaitQueue(b, sys, ep)
	var tasks []webhook.Task
	now := time.Now()
	for from := 0; from < events; from += group {
		var evs []webhook.Event
		for i := from; i < from+group; i++ {
			ev := webhook.Event{Tenant: tenant, Source: webhook.SourceApp, PublisherID: strconv.Itoa(i), Type: "order.changed", ContentType: "application/json",
				OrderingKey: fmt.Sprint("key-", i%keys), Body: fmt.Appendf(nil, `{"n":%d}`, i), OccurredAt: now.Add(time.Duration(i) * time.Millisecond), ReceivedAt: now, Receipt: strconv.Itoa(i)}
			ev.Seal()
			evs = append(evs, ev)
		}
		got, err := sys.Store.Ingest(b.Context(), evs)
		if err != nil {
			b.Fatal(err)
		}
		for _, g := range got {
			tasks = append(tasks, g.Tasks...)
		}
	}
	start := time.Now()
	for _, t := range tasks {
		if err := sys.Queue.Schedule(b.Context(), t); err != nil {
			b.Fatal(err)
		}
	}
	select {
	case <-done:
	case <-b.Context().Done():
		b.Fatalf("%d of %d arrived", arrived.Load(), events)
	}
	return events / time.Since(start).Seconds()
}
