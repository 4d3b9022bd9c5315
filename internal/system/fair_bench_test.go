package system_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// BenchmarkFairness is what healthy endpoints feel of failing ones: how long after it
// was published an event arrives, 20 endpoints with 5 events a second each, with none
// and with a tenth of them failing (one hangs until its timeout, one says 500). Compare
// the p99 of a tenth with that of none, for shared queues and for own ones.
func BenchmarkFairness(b *testing.B) {
	sys, err := system.Start(b.Context(), system.Options{Pull: true})
	if err != nil {
		b.Fatal(err)
	}
	defer sys.Close()
	runs := 0
	for _, queueing := range []webhook.Queueing{webhook.QueueingPool, webhook.QueueingOwn} {
		for _, failing := range []int{0, 2} {
			b.Run(fmt.Sprintf("%s/failing=%d", queueing, failing), func(b *testing.B) {
				for b.Loop() {
					runs++
					late := fairRun(b, sys, fmt.Sprint("tenant-", runs), queueing, failing)
					for _, p := range []int{50, 99} {
						b.ReportMetric(float64(late[(len(late)-1)*p/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", p))
					}
				}
			})
		}
	}
}

// fairRun plays five seconds and gives the delays of the healthy endpoints, in order.
func fairRun(b *testing.B, sys *system.System, tenant string, queueing webhook.Queueing, failing int) []time.Duration {
	const endpoints, rounds, every = 20, 25, 200 * time.Millisecond
	var mu sync.Mutex
	var late []time.Duration
	done := make(chan struct{})
	over := make(chan struct{}) // lets those go that hang
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil || n < failing {
			if w.WriteHeader(http.StatusInternalServerError); n == 0 {
				select {
				case <-r.Context().Done():
				case <-over:
				}
			}
			return
		}
		var sent struct{ Data struct{ At int64 } }
		if json.Unmarshal(body, &sent) != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if late = append(late, time.Since(time.Unix(0, sent.Data.At))); len(late) == (endpoints-failing)*rounds {
			close(done)
		}
	}))
	defer hook.Close()
	defer close(over)
	var eps []webhook.Endpoint
	for i := range endpoints {
		eps = append(eps, fairEndpoint(b, sys, webhook.Endpoint{Tenant: tenant, ID: fmt.Sprint("ep-", i), URL: hook.URL + "/" + strconv.Itoa(i), EventTypes: []string{fmt.Sprint("to.ep-", i)},
			Timeout: 5 * time.Second, EndpointSettings: webhook.EndpointSettings{Queueing: queueing}}))
	}
	for _, ep := range eps {
		awaitQueue(b, sys, ep)
	}
	tick := time.NewTicker(every / endpoints)
	defer tick.Stop()
	for i := range endpoints * rounds {
		<-tick.C
		now := time.Now()
		ev := webhook.Event{Tenant: tenant, Source: webhook.SourceApp, PublisherID: strconv.Itoa(i), Type: fmt.Sprint("to.ep-", i%endpoints), ContentType: "application/json",
			Body: fmt.Appendf(nil, `{"at":%d}`, now.UnixNano()), OccurredAt: now, ReceivedAt: now, Receipt: strconv.Itoa(i)}
		ev.Seal()
		got, err := sys.Store.Ingest(b.Context(), []webhook.Event{ev})
		if err != nil {
			b.Fatal(err)
		}
		for _, t := range got[0].Tasks {
			if err := sys.Queue.Schedule(b.Context(), t); err != nil {
				b.Fatal(err)
			}
		}
	}
	select {
	case <-done:
	case <-b.Context().Done():
		b.Fatal("not all arrived")
	}
	slices.Sort(late)
	return late
}

func fairEndpoint(b *testing.B, sys *system.System, ep webhook.Endpoint) webhook.Endpoint {
	secret, err := signing.GenerateSecret(nil)
	if err != nil {
		b.Fatal(err)
	}
	sealed, by, err := sys.Sealer.Seal([]byte(secret.Reveal()), ep.Tenant, ep.ID)
	if err != nil {
		b.Fatal(err)
	}
	if ep.Queueing == webhook.QueueingOwn {
		ep.Queue = "ep-" + ep.Tenant + "-" + ep.ID
	}
	key := store.SealedKey{Tenant: ep.Tenant, Endpoint: ep.ID, ID: "key_1", Kind: "v1", Sealed: sealed, SealedBy: by}
	if ep, err = sys.Store.CreateEndpoint(b.Context(), ep, []store.SealedKey{key}, "bench"); err != nil {
		b.Fatal(err)
	}
	if err := sys.Queue.CreateQueue(b.Context(), &ep); err != nil {
		b.Fatal(err)
	}
	return ep
}

// awaitQueue waits until an endpoint's own queue serves, if it has one.
func awaitQueue(b *testing.B, sys *system.System, ep webhook.Endpoint) {
	var err error
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for ep.Queue != "" && (ep.QueueReadyAt.IsZero() || time.Now().Before(ep.QueueReadyAt)) {
		<-poll.C
		if ep, err = sys.Store.Endpoint(b.Context(), ep.Tenant, ep.ID); err != nil {
			b.Fatal(err)
		}
	}
}
