package system_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/pubsub/v2"

	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// BenchmarkOrder is what it costs that an endpoint gets the events of an ordering key
// one at a time: deliveries per second of events that are published all at once, in
// no order, in one line, and in sixteen.
func BenchmarkOrder(b *testing.B) {
	var arrived, want atomic.Int64
	done := make(chan struct{}, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if arrived.Add(1) == want.Load() {
			done <- struct{}{}
		}
	}))
	defer hook.Close()
	sys, err := system.Start(b.Context(), system.Options{Pull: true})
	if err != nil {
		b.Fatal(err)
	}
	defer sys.Close()
	client, err := pubsub.NewClient(b.Context(), sys.Cloud.Project())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	topic := client.Publisher(system.EventsTopic)
	defer topic.Stop()
	for _, c := range []struct {
		name     string
		ordering webhook.Ordering
		keys     int
	}{{"none", webhook.OrderingNone, 1}, {"one-key", webhook.OrderingBlock, 1}, {"sixteen-keys", webhook.OrderingBlock, 16}} {
		benchEndpoint(b, sys, webhook.Endpoint{Tenant: webhook.DefaultTenant, ID: "bench-" + c.name, URL: hook.URL, EventTypes: []string{c.name + ".*"},
			Queue: "ep-bench-" + c.name, RatePerSecond: 500, MaxConcurrency: 100, EndpointSettings: webhook.EndpointSettings{Ordering: c.ordering}})
		b.Run(c.name, func(b *testing.B) {
			arrived.Store(0)
			want.Store(int64(b.N))
			for i := range b.N {
				topic.Publish(b.Context(), &pubsub.Message{Data: []byte(`{"n":1}`), Attributes: map[string]string{"ce-type": c.name + ".x",
					"ce-id": fmt.Sprint(b.N, "/", i), "ordering_key": fmt.Sprint(i % c.keys)}})
			}
			<-done
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
		})
	}
}

// benchEndpoint makes an endpoint with a queue of its own.
func benchEndpoint(b *testing.B, sys *system.System, ep webhook.Endpoint) {
	b.Helper()
	secret, err := signing.GenerateSecret(nil)
	if err != nil {
		b.Fatal(err)
	}
	sealed, by, err := sys.Sealer.Seal([]byte(secret.Reveal()), ep.Tenant, ep.ID)
	if err != nil {
		b.Fatal(err)
	}
	key := store.SealedKey{Tenant: ep.Tenant, Endpoint: ep.ID, ID: "key_bench", Kind: "v1", Sealed: sealed, SealedBy: by}
	if ep, err = sys.Store.CreateEndpoint(b.Context(), ep, []store.SealedKey{key}, "bench"); err != nil {
		b.Fatal(err)
	}
	if err := sys.Queue.CreateQueue(b.Context(), &ep); err != nil {
		b.Fatal(err)
	}
}
