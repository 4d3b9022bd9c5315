package deliver_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Every policy's whole schedule against an endpoint that never says yes, in virtual
// time: as many attempts as it says, each within its bounds after the one before it,
// with and without a Retry-After; then nothing more, for a day. An endpoint that asks for
// fewer requests is left alone as a whole, for as long as it says and a day at most.
func TestPoliciesRunTheirCourse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy    string
		answer    func(w http.ResponseWriter, now time.Time)
		raised    time.Duration // by Retry-After
		throttles bool          // the whole endpoint is left alone meanwhile
		attempts  int
		reason    string
	}{
		{"default", plain(500), 0, false, 10, webhook.ReasonAttemptsExhausted},
		{"41h", plain(403), 0, false, 8, webhook.ReasonAttemptsExhausted},
		{"41h;max-age=24h", plain(403), 0, false, 7, webhook.ReasonAgeExhausted},
		{"0s,1s,1s", plain(403), 0, false, 3, webhook.ReasonAttemptsExhausted},
		{"exponential;base=1m;attempts=6;jitter=full", plain(500), 0, false, 6, webhook.ReasonAttemptsExhausted},
		{"exponential;base=1m;attempts=6;jitter=equal", plain(500), 0, false, 6, webhook.ReasonAttemptsExhausted},
		{"exponential;base=1m;factor=10;cap=168h;attempts=6;jitter=none", plain(500), 0, false, 6, webhook.ReasonAttemptsExhausted},
		{"0s,10s,10s;permanent=400-499", plain(404), 0, false, 1, webhook.ReasonPermanent + "status 404"},
		{"0s,10s,10s;permanent=400-499", plain(429), 0, true, 3, webhook.ReasonAttemptsExhausted},
		{"0s,30s,30s", func(w http.ResponseWriter, _ time.Time) { w.Header().Set("Retry-After", "120"); w.WriteHeader(503) }, 2 * time.Minute, true, 3, webhook.ReasonAttemptsExhausted},
		{"0s,30s,30s", func(w http.ResponseWriter, now time.Time) {
			w.Header().Set("Retry-After", now.Add(10*time.Minute).UTC().Format(http.TimeFormat))
			w.WriteHeader(429)
		}, 10*time.Minute - time.Second, true, 3, webhook.ReasonAttemptsExhausted},
		{"0s,30s,30s", func(w http.ResponseWriter, _ time.Time) {
			w.Header().Set("Retry-After", "99999999999999999999999")
			w.WriteHeader(503)
		}, webhook.MaxThrottle, true, 3, webhook.ReasonAttemptsExhausted},
		{"0s,30s,30s", func(w http.ResponseWriter, _ time.Time) { w.Header().Set("Retry-After", "1"); w.WriteHeader(503) }, 0, true, 3, webhook.ReasonAttemptsExhausted},
		{"0s,30s,30s", func(w http.ResponseWriter, _ time.Time) { w.Header().Set("Retry-After", "120"); w.WriteHeader(500) }, 0, false, 3, webhook.ReasonAttemptsExhausted},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			var times []time.Time
			rc := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				times = append(times, b.clock.Now())
				tt.answer(w, b.clock.Now())
			})
			policy, err := webhook.ParseRetryPolicy(tt.policy)
			must(t, err)
			// The breaker would hold what fails for long.
			b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) {
				ep.Retry, ep.Health.FailuresToOpen, ep.Health.DisableAfter = policy, -1, -1
			})
			k := b.publish("1", awkward)
			for range 15 {
				b.clock.Advance(24 * time.Hour)
			}
			if len(times) != tt.attempts {
				t.Fatalf("%d attempts, want %d", len(times), tt.attempts)
			}
			for i := 1; i < len(times); i++ {
				shortest, longest := policy.Bounds(int64(i + 1))
				shortest, longest = max(shortest, tt.raised), max(longest, tt.raised)+time.Second
				if tt.throttles {
					longest += time.Minute // not all come back at once
				}
				if gap := times[i].Sub(times[i-1]); gap < shortest || gap > longest {
					t.Errorf("attempt %d came after %s, want %s to %s", i+1, gap, shortest, longest)
				}
			}
			d, attempts := b.delivery(k, "ep-1")
			if d.State != webhook.DeliveryDead || d.Reason != tt.reason || len(attempts) != tt.attempts {
				t.Errorf("%+v with %d attempts", d, len(attempts))
			}
		})
	}
}

func plain(status int) func(http.ResponseWriter, time.Time) {
	return func(w http.ResponseWriter, _ time.Time) { w.WriteHeader(status) }
}

// What Cloud Tasks counts is not what we count: attempts come from the store, whatever
// the headers of its requests say (H37). A fault of ours is no attempt either.
func TestAttemptsAreCountedByTheStore(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, status(http.StatusServiceUnavailable))
	b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) {
		ep.Retry.Delays = make([]time.Duration, 4)
		ep.Health.FailuresToOpen = -1
	})
	b.headers = func(h http.Header) {
		h.Set("X-CloudTasks-TaskExecutionCount", "0")
		h.Set("X-CloudTasks-TaskRetryCount", "99")
		h.Set("X-CloudTasks-TaskRetryReason", "")
	}
	b.stopOnce("claimed") // a fault of ours before the first
	k := b.publish("1", awkward)
	b.clock.Advance(24 * time.Hour)
	b.clock.Advance(24 * time.Hour)
	d, attempts := b.delivery(k, "ep-1")
	if len(rc.requests()) != 4 || len(attempts) != 4 || d.State != webhook.DeliveryDead {
		t.Errorf("%d requests, %d attempts, %s", len(rc.requests()), len(attempts), d.State)
	}
	for i, a := range attempts {
		if a.Key.Attempt != int64(i+1) {
			t.Errorf("attempt %d is recorded as %d", i+1, a.Key.Attempt)
		}
	}
}
