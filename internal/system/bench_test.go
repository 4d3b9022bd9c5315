package system_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// BenchmarkPath is the whole way of an inbound event, from the post to the
// endpoint's answer, 32 posts at a time. The floor to compare with is the same
// post straight to the endpoint. BENCH_MODE=push has Pub/Sub push, two at a time as
// its emulator does.
func BenchmarkPath(b *testing.B) {
	var arrived atomic.Int64
	var want atomic.Int64
	done := make(chan struct{}, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if arrived.Add(1) == want.Load() {
			done <- struct{}{}
		}
	}))
	defer hook.Close()
	post := func(b *testing.B, url, secret string) {
		arrived.Store(0)
		want.Store(int64(b.N))
		var next atomic.Int64
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for {
					i := next.Add(1)
					if i > int64(b.N) {
						return
					}
					body := fmt.Appendf(nil, `{"n":%d,"pad":%q}`, i, bytes.Repeat([]byte("x"), 1000))
					mac := hmac.New(sha256.New, []byte(secret))
					mac.Write(body)
					req, _ := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
					req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
					req.Header.Set("X-GitHub-Event", "push")
					req.Header.Set("X-GitHub-Delivery", fmt.Sprintf("%s-%d-%d", b.Name(), b.N, i))
					res, err := http.DefaultClient.Do(req)
					if err != nil || res.StatusCode != http.StatusOK {
						b.Errorf("post: %v, %v", res, err)
						return
					}
					res.Body.Close()
				}
			})
		}
		wg.Wait()
		<-done
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	}
	b.Run("floor", func(b *testing.B) { post(b, hook.URL, "s") })

	sys, err := system.Start(b.Context(), system.Options{Pull: os.Getenv("BENCH_MODE") != "push"})
	if err != nil {
		b.Fatal(err)
	}
	defer sys.Close()
	ep := webhook.Endpoint{Tenant: webhook.DefaultTenant, ID: "bench", URL: hook.URL, EventTypes: []string{"*"}, Queue: "ep-bench", RatePerSecond: 500, MaxConcurrency: 100}
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
	for _, src := range sys.Sources {
		if src.Scheme == "github" {
			b.Run("whole", func(b *testing.B) { post(b, src.URL, src.Secret) })
		}
	}
}
