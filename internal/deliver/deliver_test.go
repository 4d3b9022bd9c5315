package deliver_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/localcloud/cloudtasks"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// bench is everything behind a dispatcher: Google's Spanner emulator, Cloud Tasks
// in virtual time, and the dispatcher called in process.
type bench struct {
	t      *testing.T
	clock  *cloudtasks.VirtualClock
	store  *store.Store
	queue  *tasks.Queue
	tasks  *cloudtasks.Server
	sealer *secrets.Sealer
	d      *deliver.Dispatcher

	database string
	policy   safedial.Policy

	mu       sync.Mutex
	step     func(string) error
	statuses []int             // what the dispatcher answered Cloud Tasks
	headers  func(http.Header) // when not nil, changes what Cloud Tasks says of a task
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newBench(t *testing.T, adjust func(*deliver.Options)) *bench {
	t.Helper()
	b := &bench{t: t, clock: cloudtasks.NewVirtualClock(start)}
	var ddl []string
	for _, s := range store.Statements() {
		ddl = append(ddl, s.SQL)
	}
	var err error
	b.database, b.policy = localtest.Database(t, ddl), safedial.Dev()
	b.store, err = store.Open(t.Context(), b.database, store.Options{Now: b.clock.Now})
	must(t, err)
	t.Cleanup(b.store.Close)
	ks, err := secrets.NewKeyset()
	must(t, err)
	b.sealer, err = secrets.NewSealer(map[int][]byte{1: ks})
	must(t, err)

	b.tasks = cloudtasks.New(cloudtasks.Options{Clock: b.clock, Sequential: true,
		Transport: cloudtasks.HandlerTransport(http.HandlerFunc(b.serve))})
	addr, err := b.tasks.Start("127.0.0.1:0")
	must(t, err)
	t.Cleanup(b.tasks.Close)
	b.queue, err = tasks.New(t.Context(), tasks.Config{Project: "p", Location: "l", Dispatcher: "http://dispatcher.test",
		Invoker: "d@p.iam.gserviceaccount.com", Pools: []string{"pool-0"}, Now: b.clock.Now},
		option.WithEndpoint(addr), option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	must(t, err)
	t.Cleanup(func() { b.queue.Close() })

	o := deliver.Options{Store: b.store, Queue: b.queue, Sealer: b.sealer, Policy: b.policy, Version: "test", Now: b.clock.Now,
		Step: func(_ context.Context, s string) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.step == nil {
				return nil
			}
			return b.step(s)
		}}
	if adjust != nil {
		adjust(&o)
	}
	b.d = deliver.New(o)
	t.Cleanup(b.d.Close)
	must(t, b.queue.CreateQueue(t.Context(), &webhook.Endpoint{Tenant: "pool", ID: "pool-0", Queue: "pool-0", RatePerSecond: 500, MaxConcurrency: 100}))
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bench) serve(w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	if b.headers != nil {
		b.headers(r.Header)
	}
	b.d.Routes().ServeHTTP(rec, r)
	b.mu.Lock()
	b.statuses = append(b.statuses, rec.Code)
	b.mu.Unlock()
	w.WriteHeader(rec.Code)
}

// stopOnce makes the next attempt stop at the step, as a crash there would.
func (b *bench) stopOnce(at string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.step = func(s string) error {
		if s != at {
			return nil
		}
		b.step = nil
		return errors.New("stopped at " + at)
	}
}

// endpoint adds an endpoint with a fresh key and gives it back with its secret.
func (b *bench) endpoint(id, url string, adjust func(*webhook.Endpoint)) (webhook.Endpoint, signing.Secret) {
	b.t.Helper()
	secret, err := signing.GenerateSecret(rand.Reader)
	must(b.t, err)
	ep := webhook.Endpoint{Tenant: "default", ID: id, URL: url, EventTypes: []string{"*"}, Queue: "ep-" + id}
	if adjust != nil {
		adjust(&ep)
	}
	ep, err = b.store.CreateEndpoint(b.t.Context(), ep, []store.SealedKey{b.seal(id, secret)}, "test")
	must(b.t, err)
	must(b.t, b.queue.CreateQueue(b.t.Context(), &ep))
	b.clock.Advance(time.Minute)
	return ep, secret
}

// sealFor is a fresh key of any tenant's endpoint.
func (b *bench) sealFor(tenant, endpoint string) store.SealedKey {
	b.t.Helper()
	secret, err := signing.GenerateSecret(rand.Reader)
	must(b.t, err)
	sealed, by, err := b.sealer.Seal([]byte(secret.Reveal()), tenant, endpoint)
	must(b.t, err)
	return store.SealedKey{ID: "key-1", Kind: "v1", Sealed: sealed, SealedBy: by, NotBefore: b.clock.Now().Add(-time.Minute)}
}

func (b *bench) seal(endpoint string, s signing.Secret) store.SealedKey {
	b.t.Helper()
	sealed, by, err := b.sealer.Seal([]byte(s.Reveal()), "default", endpoint)
	must(b.t, err)
	return store.SealedKey{Tenant: "default", Endpoint: endpoint, ID: "key-" + endpoint + fmt.Sprint(len(sealed), s.Reveal()[6:10]), Kind: "v1", Sealed: sealed, SealedBy: by, NotBefore: b.clock.Now().Add(-time.Minute)}
}

// publish ingests an event and schedules its tasks, as the worker does.
func (b *bench) publish(id string, body []byte) webhook.EventKey {
	b.t.Helper()
	ev := webhook.Event{Tenant: "default", Source: "app", PublisherID: id, Type: "invoice.paid", ContentType: "application/json; charset=utf-8",
		Body: body, ReceivedAt: b.clock.Now(), Receipt: id}
	ev.Seal()
	got, err := b.store.Ingest(b.t.Context(), []webhook.Event{ev})
	must(b.t, err)
	for _, task := range got[0].Tasks {
		must(b.t, b.queue.Schedule(b.t.Context(), task))
	}
	return ev.Key
}

func (b *bench) delivery(k webhook.EventKey, endpoint string) (webhook.Delivery, []webhook.Attempt) {
	b.t.Helper()
	d, attempts, err := b.store.Delivery(b.t.Context(), "default", k, endpoint)
	must(b.t, err)
	return d, attempts
}

// receiver is a customer's endpoint that notes every request.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	got  []received
	next func(w http.ResponseWriter, r *http.Request, n int)
}

type received struct {
	header http.Header
	body   []byte
}

func newReceiver(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, n int)) *receiver {
	t.Helper()
	rc := &receiver{next: answer}
	rc.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		rc.mu.Lock()
		rc.got = append(rc.got, received{r.Header.Clone(), body})
		n := len(rc.got)
		rc.mu.Unlock()
		if rc.next != nil {
			rc.next(w, r, n)
		}
	}))
	t.Cleanup(rc.Close)
	return rc
}

func (rc *receiver) requests() []received {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return append([]received(nil), rc.got...)
}

func status(code int) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(code) }
}

// The bytes that no JSON library would give back.
var awkward = []byte("{\"a\":\"\\u001B\",\"b\":0.0,\"n\":1152921504606846977,\"a\":\"\\/\"}\n")

// wrapped is what an endpoint is sent by default of an event that was published at
// the time.
func wrapped(k webhook.EventKey, at time.Time, data []byte) []byte {
	return fmt.Appendf(nil, `{"type":"invoice.paid","timestamp":%q,"id":%q,"data":%s}`, at.Format(time.RFC3339Nano), k.ID(), data)
}

func TestDelivered(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, nil)
	_, secret := b.endpoint("ep-1", rc.URL+"/hook?token=s3cret", nil)
	k := b.publish("1", awkward)
	b.clock.Advance(time.Second)

	got := rc.requests()
	sent := wrapped(k, b.clock.Now().Add(-time.Second), awkward)
	if len(got) != 1 || !bytes.Equal(got[0].body, sent) {
		t.Fatalf("the endpoint saw %d requests: %q", len(got), got)
	}
	h := got[0].header
	for name, want := range map[string]string{
		"Webhook-Id": k.ID(), "Webhook-Timestamp": fmt.Sprint(b.clock.Now().Add(-time.Second).Unix()), "Content-Type": "application/json",
		"User-Agent": "Sealpost/test", "X-Sealpost-Attempt": "1", "X-Sealpost-Event-Type": "invoice.paid",
	} {
		if h.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, h.Get(name), want)
		}
	}
	// The official library judges by the wall clock; it offers a check without one.
	official, err := standardwebhooks.NewWebhook(secret.Reveal())
	must(t, err)
	if err := official.VerifyIgnoringTimestamp(sent, h); err != nil {
		t.Errorf("the official library refuses our signature: %v", err)
	}
	d, attempts := b.delivery(k, "ep-1")
	if d.State != webhook.DeliveryDelivered || len(attempts) != 1 {
		t.Fatalf("%+v with %d attempts", d, len(attempts))
	}
	a := attempts[0]
	if a.Outcome.Status != 200 || a.Outcome.Class != webhook.ClassOK || len(a.KeyIDs) != 1 || a.RemoteAddr == "" || !a.WroteRequest || strings.Contains(a.URL, "s3cret") {
		t.Errorf("attempt %+v", a)
	}
	row, err := b.store.Event(t.Context(), "default", k)
	must(t, err)
	if row.ExpireAt.IsZero() {
		t.Error("nothing is open any more and the event does not expire")
	}
}

// An endpoint that never says yes gets the whole schedule, at the times it says,
// with one id and a fresh timestamp and signature each time; then nothing more.
func TestWholeScheduleThenDead(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	var times []time.Time
	rc := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		times = append(times, b.clock.Now())
		w.WriteHeader(http.StatusForbidden)
	})
	_, secret := b.endpoint("ep-1", rc.URL, nil)
	official, err := standardwebhooks.NewWebhook(secret.Reveal())
	must(t, err)
	sent := b.clock.Now()
	k := b.publish("1", awkward)
	b.clock.Advance(100 * time.Hour)
	b.clock.Advance(24 * time.Hour)

	got := rc.requests()
	if len(got) != len(webhook.DefaultDelays) {
		t.Fatalf("%d attempts, want %d", len(got), len(webhook.DefaultDelays))
	}
	stamps := map[string]bool{}
	for i, r := range got {
		if r.header.Get("Webhook-Id") != k.ID() || r.header.Get("X-Sealpost-Attempt") != fmt.Sprint(i+1) || !bytes.Equal(r.body, wrapped(k, sent, awkward)) {
			t.Errorf("attempt %d: %v %q", i+1, r.header, r.body)
		}
		if err := official.VerifyIgnoringTimestamp(r.body, r.header); err != nil {
			t.Errorf("attempt %d: %v", i+1, err)
		}
		stamps[r.header.Get("Webhook-Timestamp")] = true
		if i == 0 {
			continue
		}
		want, gap := webhook.DefaultDelays[i], times[i].Sub(times[i-1])
		if gap < want || gap > want+want/5+time.Second {
			t.Errorf("attempt %d came after %s, want %s to 20%% more", i+1, gap, want)
		}
	}
	if len(stamps) != len(got) {
		t.Errorf("%d different timestamps for %d attempts", len(stamps), len(got))
	}
	d, attempts := b.delivery(k, "ep-1")
	if d.State != webhook.DeliveryDead || d.Reason != webhook.ReasonAttemptsExhausted || len(attempts) != 10 || d.LastStatus != 403 {
		t.Errorf("%+v with %d attempts", d, len(attempts))
	}
}

// A stop at any step loses nothing and keeps the webhook-id; what was recorded is
// not sent again.
func TestStopAtEachStep(t *testing.T) {
	t.Parallel()
	for _, answers := range []struct {
		name  string
		first int
		// sent is how often the endpoint is called in all, by the step of the stop.
		sent map[string]int
	}{
		{"the endpoint says yes", 200, map[string]int{deliver.StepClaimed: 1, deliver.StepSent: 2, deliver.StepRecorded: 1, deliver.StepScheduled: 1}},
		{"the endpoint first says no", 500, map[string]int{deliver.StepClaimed: 2, deliver.StepSent: 2, deliver.StepRecorded: 2, deliver.StepScheduled: 2}},
	} {
		for step, want := range answers.sent {
			t.Run(answers.name+", stop when "+step, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, nil)
				rc := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, n int) {
					if n == 1 {
						w.WriteHeader(answers.first)
					}
				})
				b.endpoint("ep-1", rc.URL, nil)
				b.stopOnce(step)
				k := b.publish("1", awkward)
				b.clock.Advance(time.Hour)
				got := rc.requests()
				if len(got) != want {
					t.Errorf("the endpoint was called %d times, want %d", len(got), want)
				}
				for _, r := range got {
					if r.header.Get("Webhook-Id") != k.ID() {
						t.Errorf("webhook-id %s, want %s", r.header.Get("Webhook-Id"), k.ID())
					}
				}
				if d, _ := b.delivery(k, "ep-1"); d.State != webhook.DeliveryDelivered {
					t.Errorf("delivery is %+v", d)
				}
			})
		}
	}
}

// MrZoller/vantage-point#49: a redirect to a login page that answered 200 was recorded
// as delivered. A redirect is a failed attempt and never followed.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	target := newReceiver(t, nil)
	codes := []int{301, 302, 303, 307, 308}
	rc := newReceiver(t, func(w http.ResponseWriter, r *http.Request, n int) {
		http.Redirect(w, r, target.URL, codes[n-1])
	})
	b.endpoint("ep-1", rc.URL, func(ep *webhook.Endpoint) { ep.Retry.Delays = make([]time.Duration, len(codes)) })
	k := b.publish("1", []byte(`{}`))
	b.clock.Advance(time.Minute)
	d, attempts := b.delivery(k, "ep-1")
	if len(rc.requests()) != len(codes) || len(target.requests()) != 0 || d.State != webhook.DeliveryDead {
		t.Errorf("%d requests, %d to the target, %+v", len(rc.requests()), len(target.requests()), d)
	}
	for i, a := range attempts {
		if a.Outcome.Class != webhook.ClassStatus || a.Outcome.Status != codes[i] {
			t.Errorf("attempt %d: %+v", i+1, a.Outcome)
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	var times []time.Time
	rc := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		times = append(times, b.clock.Now())
		if n == 1 {
			w.Header().Set("Retry-After", "1200")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	b.endpoint("ep-1", rc.URL, nil)
	k := b.publish("1", []byte(`{}`))
	b.clock.Advance(time.Hour)
	if len(times) != 2 || times[1].Sub(times[0]) < 1200*time.Second || times[1].Sub(times[0]) > 1201*time.Second {
		t.Errorf("attempts at %v", times)
	}
	if _, attempts := b.delivery(k, "ep-1"); attempts[0].Outcome.RetryAfter != 1200*time.Second {
		t.Errorf("attempt %+v", attempts[0])
	}
}

// 410 disables the endpoint and holds what it would have been sent.
func TestGoneDisables(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, status(http.StatusGone))
	b.endpoint("ep-1", rc.URL, nil)
	first := b.publish("1", []byte(`{}`))
	b.clock.Advance(time.Minute)
	second := b.publish("2", []byte(`{}`))
	b.clock.Advance(100 * time.Hour)
	ep, err := b.store.Endpoint(t.Context(), "default", "ep-1")
	must(t, err)
	if ep.State != webhook.EndpointDisabled || ep.StateReason != webhook.ReasonGone {
		t.Errorf("endpoint %+v", ep)
	}
	for _, k := range []webhook.EventKey{first, second} {
		if d, _ := b.delivery(k, "ep-1"); d.State != webhook.DeliveryHeld {
			t.Errorf("%+v", d)
		}
	}
	if n := len(rc.requests()); n != 1 {
		t.Errorf("%d requests, want the one that was answered 410", n)
	}
}

// go-gitea/gitea#19234: what was queued for a hook went out after it was switched off.
// What waits for an endpoint that is removed ends as cancelled, without a request
// and without a failing task.
func TestRemovedEndpointIsNotCalled(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, nil)
	b.endpoint("ep-1", rc.URL, nil)
	var keys []webhook.EventKey
	for i := range 20 {
		keys = append(keys, b.publish(fmt.Sprint(i), []byte(`{}`)))
	}
	if n, err := b.store.DeleteEndpoint(t.Context(), "default", "ep-1", "test"); err != nil || n != len(keys) {
		t.Fatalf("cancelled %d, %v", n, err)
	}
	b.clock.Advance(time.Hour)
	if n := len(rc.requests()); n != 0 {
		t.Errorf("%d requests after removal", n)
	}
	for _, k := range keys {
		if d, _ := b.delivery(k, "ep-1"); d.State != webhook.DeliveryCancelled {
			t.Errorf("%+v", d)
		}
	}
	for _, s := range b.statuses {
		if s != http.StatusNoContent {
			t.Errorf("the dispatcher answered Cloud Tasks %d", s)
		}
	}
}

// A fault of ours is no attempt: the task runs again and the customer's budget is
// untouched.
func TestOurFaultIsNoAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, nil)
	other, err := secrets.NewKeyset()
	must(t, err)
	_, _ = b.endpoint("ep-1", rc.URL, nil)
	foreign, err := secrets.NewSealer(map[int][]byte{1: other})
	must(t, err)
	broken := deliver.New(deliver.Options{Store: b.store, Queue: b.queue, Sealer: foreign, Policy: safedial.Dev(), Now: b.clock.Now})
	t.Cleanup(broken.Close)
	working := b.d
	b.d = broken
	k := b.publish("1", []byte(`{}`))
	b.clock.Advance(time.Minute)
	if d, attempts := b.delivery(k, "ep-1"); d.State != webhook.DeliveryScheduled || d.Attempt != 1 || len(attempts) != 0 {
		t.Errorf("%+v with %d attempts", d, len(attempts))
	}
	b.mu.Lock()
	for _, s := range b.statuses[len(b.statuses)-2:] {
		if s != http.StatusInternalServerError {
			t.Errorf("the dispatcher answered Cloud Tasks %d, want 500 for the fault of one task", s)
		}
	}
	b.mu.Unlock()
	b.d = working
	b.clock.Advance(10 * time.Minute)
	if d, attempts := b.delivery(k, "ep-1"); d.State != webhook.DeliveryDelivered || len(attempts) != 1 {
		t.Errorf("once mended: %+v with %d attempts", d, len(attempts))
	}
}

// Before an instance has reached anything, failing to connect is its own fault.
func TestNoEgressIsNoAttempt(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed := "http://" + l.Addr().String()
	l.Close()
	b := newBench(t, func(o *deliver.Options) { o.ProbeURL = closed })
	rc := newReceiver(t, nil)
	b.endpoint("ep-1", closed, func(ep *webhook.Endpoint) { ep.EventTypes = []string{"invoice.*"} })
	k := b.publish("1", []byte(`{}`))
	b.clock.Advance(time.Minute)
	if err := b.d.Ready(t.Context()); err == nil {
		t.Error("ready without a way out")
	}
	if d, attempts := b.delivery(k, "ep-1"); len(attempts) != 0 || d.Attempt != 1 {
		t.Errorf("%+v with %d attempts", d, len(attempts))
	}
	// Another endpoint answers: now the failures are the first one's.
	b.endpoint("ep-2", rc.URL, nil)
	b.publish("2", []byte(`{}`))
	b.clock.Advance(10 * time.Minute)
	if _, attempts := b.delivery(k, "ep-1"); len(attempts) == 0 || attempts[0].Outcome.Class != webhook.ClassConnect {
		t.Errorf("attempts %+v", attempts)
	}
	if err := b.d.Ready(t.Context()); err != nil {
		t.Errorf("after an endpoint was reached: %v", err)
	}
}

// Every way of failing has its class, and no packet goes to a refused address.
func TestClasses(t *testing.T) {
	t.Parallel()
	drop := func(w http.ResponseWriter, _ *http.Request, _ int) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Close()
		}
	}
	garbage := func(w http.ResponseWriter, _ *http.Request, _ int) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_, _ = conn.Write([]byte("SSH-2.0-x\r\n\r\n"))
			conn.Close()
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed := "http://" + l.Addr().String()
	l.Close()
	plain := newReceiver(t, nil)
	for _, tt := range []struct {
		name, url string
		answer    func(http.ResponseWriter, *http.Request, int)
		class     webhook.Class
		status    int
	}{
		{name: "no answer in time", answer: func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }, class: webhook.ClassAmbiguous},
		{name: "connection dropped after the request", answer: drop, class: webhook.ClassAmbiguous},
		{name: "not HTTP", answer: garbage, class: webhook.ClassBody},
		{name: "nobody listens", url: closed, class: webhook.ClassConnect},
		{name: "no TLS there", url: "https" + strings.TrimPrefix(plain.URL, "http"), class: webhook.ClassTLS},
		{name: "no such name", url: "http://nowhere.test/", class: webhook.ClassDNS},
		{name: "private address", url: "http://10.0.0.1/", class: webhook.ClassBlocked},
		{name: "name with a private address", url: "http://inside.test/", class: webhook.ClassBlocked},
		{name: "metadata", url: "http://169.254.169.254/", class: webhook.ClassBlocked},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(o *deliver.Options) { o.Policy.Resolver = names{"inside.test": "10.0.0.1"} })
			url := tt.url
			if url == "" {
				url = newReceiver(t, tt.answer).URL
			}
			b.endpoint("ep-1", url, func(ep *webhook.Endpoint) { ep.Timeout = time.Second })
			k := b.publish("1", []byte(`{}`))
			b.clock.Advance(time.Second)
			d, attempts := b.delivery(k, "ep-1")
			if len(attempts) != 1 || attempts[0].Outcome.Class != tt.class || attempts[0].Outcome.Status != tt.status || attempts[0].Error == "" {
				t.Fatalf("%+v: attempts %+v", d, attempts)
			}
			if d.State != webhook.DeliveryScheduled || d.Attempt != 2 || d.LastClass != tt.class {
				t.Errorf("%+v", d)
			}
		})
	}
}

// An endpoint that says 2xx has taken the event, also if its answer then breaks off.
func TestAnswerBreaksOff(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"))
			conn.Close()
		}
	})
	b.endpoint("ep-1", rc.URL, nil)
	k := b.publish("1", []byte(`{}`))
	b.clock.Advance(time.Hour)
	d, attempts := b.delivery(k, "ep-1")
	if d.State != webhook.DeliveryDelivered || len(attempts) != 1 || attempts[0].Outcome.Class != webhook.ClassOK || string(attempts[0].Excerpt) != "half" || attempts[0].Error == "" {
		t.Errorf("%+v: %+v", d, attempts)
	}
}

// A crowd at one slow host spends nobody's attempts: none waits for another's
// connection on its own deadline.
func TestCrowdAtOneHost(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	var inside atomic.Int64
	const crowd = 100
	all := make(chan struct{})
	rc := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		if inside.Add(1) == crowd {
			close(all)
		}
		select { // nobody is answered before all are there
		case <-all:
		case <-r.Context().Done():
		}
	})
	ep, _ := b.endpoint("ep-1", rc.URL, nil)
	var wg sync.WaitGroup
	for i := range crowd {
		ev := webhook.Event{Tenant: "default", Source: "app", PublisherID: fmt.Sprint(i), Type: "x", Body: []byte("{}"), ReceivedAt: b.clock.Now(), Receipt: "r"}
		ev.Seal()
		got, err := b.store.Ingest(t.Context(), []webhook.Event{ev})
		must(t, err)
		wg.Go(func() {
			if err := b.d.Attempt(t.Context(), got[0].Tasks[0].Key); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ds, _, err := b.store.ListDeliveries(t.Context(), store.DeliveryFilter{Tenant: "default", Endpoint: ep.ID, State: webhook.DeliveryDelivered}, store.Page{Size: 200})
	if err != nil || len(ds) != crowd {
		t.Errorf("%d of %d delivered, %v", len(ds), crowd, err)
	}
}

// names resolves what it lists and nothing else.
type names map[string]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a, ok := n[host]; ok {
		return []netip.Addr{netip.MustParseAddr(a)}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// hookdeck/outpost#975 and #845: an answer too large to be stored had the event sent
// again without end. A huge answer is cut, the attempt is recorded, and a 200 is delivered once.
func TestHugeAnswers(t *testing.T) {
	t.Parallel()
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	for name, tt := range map[string]struct {
		answer    func(http.ResponseWriter, *http.Request, int)
		truncated bool
	}{
		"1 MiB": {func(w http.ResponseWriter, _ *http.Request, _ int) {
			for range 16 {
				_, _ = w.Write(chunk)
			}
		}, true},
		"without end": {func(w http.ResponseWriter, r *http.Request, _ int) {
			for r.Context().Err() == nil {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, true},
		"60 KiB of headers": {func(w http.ResponseWriter, _ *http.Request, _ int) {
			for i := range 15 {
				w.Header().Set(fmt.Sprintf("X-Filler-%d", i), string(chunk[:4000]))
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			rc := newReceiver(t, tt.answer)
			b.endpoint("ep-1", rc.URL, nil)
			k := b.publish("1", []byte(`{}`))
			b.clock.Advance(time.Hour)
			d, attempts := b.delivery(k, "ep-1")
			if d.State != webhook.DeliveryDelivered || len(attempts) != 1 || len(rc.requests()) != 1 {
				t.Fatalf("%+v, %d attempts, %d requests", d, len(attempts), len(rc.requests()))
			}
			if a := attempts[0]; a.Truncated != tt.truncated || len(a.Excerpt) > deliver.ExcerptLimit {
				t.Errorf("excerpt of %d bytes, truncated: %v", len(a.Excerpt), a.Truncated)
			}
		})
	}
}

// While a rotation overlaps, both keys sign, the new one first.
func TestRotationSignsWithBoth(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, nil)
	_, old := b.endpoint("ep-1", rc.URL, nil)
	fresh, err := signing.GenerateSecret(rand.Reader)
	must(t, err)
	must(t, b.store.RotateKey(t.Context(), "default", "ep-1", b.seal("ep-1", fresh), 24*time.Hour, "test"))
	b.clock.Advance(time.Minute)
	b.publish("1", []byte(`{}`))
	b.clock.Advance(25 * time.Hour)
	b.publish("2", []byte(`{}`))
	b.clock.Advance(time.Minute)
	got := rc.requests()
	if len(got) != 2 {
		t.Fatalf("%d requests", len(got))
	}
	verifies := func(s signing.Secret, r received) bool {
		official, err := standardwebhooks.NewWebhook(s.Reveal())
		must(t, err)
		return official.VerifyIgnoringTimestamp(r.body, r.header) == nil
	}
	if !verifies(old, got[0]) || !verifies(fresh, got[0]) {
		t.Error("during the overlap one of the secrets does not verify")
	}
	if verifies(old, got[1]) || !verifies(fresh, got[1]) {
		t.Error("after the overlap only the new secret may verify")
	}
}

func TestBadTasksAreDropped(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", tasks.AttemptPath, `{}`, 204},
		{"POST", tasks.AttemptPath, `nonsense`, 204},
		{"POST", tasks.QueueReadyPath, `nonsense`, 204},
		{"POST", tasks.QueueReadyPath, `{"tenant":"default","endpoint":"none","queue":"q"}`, 204},
		{"POST", tasks.AttemptPath, strings.Repeat("x", 20<<10), 400},
		{"GET", tasks.AttemptPath, ``, 405},
		{"POST", "/", ``, 404},
	} {
		rec := httptest.NewRecorder()
		b.d.Routes().ServeHTTP(rec, httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body)))
		if rec.Code != tt.want {
			t.Errorf("%s %s %.20q: %d, want %d", tt.method, tt.path, tt.body, rec.Code, tt.want)
		}
	}
}

// While Spanner is away tasks get 503, so that their queues slow down.
func TestOutageAnswers503(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, nil)
	b.endpoint("ep-1", rc.URL, nil)
	k := b.publish("1", []byte(`{}`))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rec := httptest.NewRecorder()
	body := fmt.Sprintf(`{"event":%q,"tenant":"default","endpoint":"ep-1","generation":1,"attempt":1,"task":1}`, k.ID())
	b.d.Routes().ServeHTTP(rec, httptest.NewRequest("POST", tasks.AttemptPath, strings.NewReader(body)).WithContext(ctx))
	if rec.Code != http.StatusServiceUnavailable || rec.Body.Len() != 0 {
		t.Errorf("%d %q", rec.Code, rec.Body)
	}
	if len(rc.requests()) != 0 {
		t.Error("sent all the same")
	}
}
