package system_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sealpost/sealpost/internal/localcloud"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(asRole); role != "" {
		os.Exit(play(role))
	}
	code := m.Run()
	if err := removeBinaries(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) // the emulators go with this process
}

// patience bounds every wait: far more than anything takes, since other packages'
// tests may have the machine to themselves for a while.
const patience = 90 * time.Second

// eventually waits until check has nothing to object, and fails with its last word.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(15*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %v", patience, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a whole system, with what tests look at it through. All systems share the
// emulators of the test binary; each has a project, and so everything, of its own.
type rig struct {
	*system.System
	t      *testing.T
	logs   *logs
	queues []string
	pubsub *pubsub.Client
}

func start(t *testing.T, o system.Options) *rig {
	t.Helper()
	localtest.Spanner(t)
	localtest.PubSub(t)
	localtest.CloudTasks(t)
	localtest.SecretManager(t)
	r := &rig{t: t, logs: &logs{}}
	o.Cloud.Project = localtest.Project()
	o.Log = slog.New(slog.NewJSONHandler(r.logs, nil))
	o.Retry = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	r.System, err = system.Start(ctx, o)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what went wrong in the system:\n%s", r.logs.faults())
		}
		if err := r.Close(); err != nil {
			t.Errorf("close the system: %v", err)
		}
	})
	r.pubsub, err = pubsub.NewClient(ctx, r.Cloud.Project())
	must(t, err)
	t.Cleanup(r.quiet)
	return r
}

// quiet takes away what would go on calling ports that belong to others then.
func (r *rig) quiet() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	topology, err := localcloud.LoadTopology()
	if err != nil {
		r.t.Error(err)
	}
	for name := range topology.Subscriptions {
		err := r.pubsub.SubscriptionAdminClient.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: r.path("subscriptions", name)})
		if err != nil && status.Code(err) != codes.NotFound {
			r.t.Error(err)
		}
	}
	for _, name := range append(r.queues, topology.PoolQueues()...) {
		if err := r.Queue.DeleteQueue(ctx, name); err != nil {
			r.t.Error(err)
		}
	}
	if err := r.pubsub.Close(); err != nil {
		r.t.Error(err)
	}
}

// path is the full name of a topic or subscription.
func (r *rig) path(kind, name string) string {
	return "projects/" + r.Cloud.Project() + "/" + kind + "/" + name
}

func (r *rig) source(name string) system.Source {
	r.t.Helper()
	i := slices.IndexFunc(r.Sources, func(s system.Source) bool { return s.Name == name })
	if i < 0 {
		r.t.Fatalf("there is no source %s", name)
	}
	return r.Sources[i]
}

// endpoint adds an endpoint, as the command line does, and returns its secret.
func (r *rig) endpoint(id, url string, adjust func(*webhook.Endpoint)) signing.Secret {
	r.t.Helper()
	secret, err := signing.GenerateSecret(rand.Reader)
	must(r.t, err)
	ep := webhook.Endpoint{Tenant: webhook.DefaultTenant, ID: id, URL: url, EventTypes: []string{"*"},
		RatePerSecond: 500, MaxConcurrency: 100, Queue: tasks.NewQueueName(random())}
	// Five quick attempts, then one that no test waits for.
	ep.Retry.Delays = []time.Duration{0, 50 * time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond, time.Hour}
	if adjust != nil {
		adjust(&ep)
	}
	sealed, by, err := r.Sealer.Seal([]byte(secret.Reveal()), ep.Tenant, ep.ID)
	must(r.t, err)
	key := store.SealedKey{Tenant: ep.Tenant, Endpoint: ep.ID, ID: webhook.KeyID(random()), Kind: "v1", Sealed: sealed, SealedBy: by}
	ep, err = r.Store.CreateEndpoint(r.t.Context(), ep, []store.SealedKey{key}, "test")
	must(r.t, err)
	r.queues = append(r.queues, ep.Queue)
	must(r.t, r.Queue.CreateQueue(r.t.Context(), &ep))
	return secret
}

func random() (b [16]byte) {
	_, _ = rand.Read(b[:]) // never fails
	return b
}

// publish puts a message on the topic of published events.
func (r *rig) publish(attributes map[string]string, data []byte) (messageID string) {
	r.t.Helper()
	p := r.pubsub.Publisher(system.EventsTopic)
	defer p.Stop()
	id, err := p.Publish(r.t.Context(), &pubsub.Message{Data: data, Attributes: attributes}).Get(r.t.Context())
	must(r.t, err)
	return id
}

// app is the key of a published event.
func app(id string) webhook.EventKey {
	return webhook.KeyOf(webhook.SourceApp, webhook.DefaultTenant, id)
}

// inState waits until the delivery is in the state and returns it with its attempts.
func (r *rig) inState(k webhook.EventKey, endpoint string, want webhook.DeliveryState) (webhook.Delivery, []webhook.Attempt) {
	r.t.Helper()
	var d webhook.Delivery
	var attempts []webhook.Attempt
	eventually(r.t, func() (err error) {
		d, attempts, err = r.Store.Delivery(r.t.Context(), webhook.DefaultTenant, k, endpoint)
		if err == nil && d.State != want {
			err = fmt.Errorf("delivery of %s to %s is %s (%s) after %d attempts, want %s", k, endpoint, d.State, d.Reason, len(attempts), want)
		}
		return err
	})
	return d, attempts
}

func (r *rig) event(k webhook.EventKey) store.EventRow {
	r.t.Helper()
	row, err := r.Store.Event(r.t.Context(), webhook.DefaultTenant, k)
	must(r.t, err)
	return row
}

// events are all of the tenant's, whatever their number.
func (r *rig) events() []store.EventRow {
	r.t.Helper()
	return all(r.t, func(p store.Page) ([]store.EventRow, string, error) {
		return r.Store.ListEvents(r.t.Context(), store.EventFilter{Tenant: webhook.DefaultTenant}, p)
	})
}

func (r *rig) deliveries() []webhook.Delivery {
	r.t.Helper()
	return all(r.t, func(p store.Page) ([]webhook.Delivery, string, error) {
		return r.Store.ListDeliveries(r.t.Context(), store.DeliveryFilter{Tenant: webhook.DefaultTenant}, p)
	})
}

func all[T any](t testing.TB, list func(store.Page) ([]T, string, error)) []T {
	t.Helper()
	var rows []T
	for page := (store.Page{Size: 500}); ; {
		part, next, err := list(page)
		must(t, err)
		rows = append(rows, part...)
		if page.Token = next; next == "" {
			return rows
		}
	}
}

// consistent holds what is stored against itself: every event that is accepted
// has its deliveries, nothing waits that is due, and the attempts of each delivery
// count from 1 without a gap up to what the delivery says, the last one with the
// outcome that the delivery's state stands for.
func (r *rig) consistent(endpoints ...string) {
	r.t.Helper()
	due, err := r.Store.Overdue(r.t.Context(), time.Now(), 10)
	must(r.t, err)
	if len(due) > 0 {
		r.t.Errorf("%d deliveries are past due: %v", len(due), due)
	}
	for _, ev := range r.events() {
		if ev.State != webhook.EventAccepted || ev.FanoutPending {
			r.t.Errorf("event %s is %s, fan-out pending: %v", ev.Key, ev.State, ev.FanoutPending)
		}
		for _, endpoint := range endpoints {
			d, attempts, err := r.Store.Delivery(r.t.Context(), webhook.DefaultTenant, ev.Key, endpoint)
			must(r.t, err)
			r.history(d, attempts)
		}
	}
}

func (r *rig) history(d webhook.Delivery, attempts []webhook.Attempt) {
	r.t.Helper()
	for i, a := range attempts {
		if a.Key.Event != d.Event || a.Key.Endpoint != d.Endpoint || a.Key.Generation != 1 || a.Key.Attempt != int64(i+1) || a.Trigger != webhook.TriggerAutomatic {
			r.t.Errorf("attempt %d of %s is recorded as %+v", i+1, d.Event, a.Key)
		}
		if last := i == len(attempts)-1; a.Outcome.OK() != (last && d.State == webhook.DeliveryDelivered) {
			r.t.Errorf("attempt %d of %d came to %+v, and the delivery is %s", i+1, len(attempts), a.Outcome, d.State)
		}
	}
	if d.State == webhook.DeliveryDelivered && (d.Attempt != int64(len(attempts)) || !d.NextAttemptAt.IsZero()) {
		r.t.Errorf("delivered at attempt %d with %d attempts, next at %s", d.Attempt, len(attempts), d.NextAttemptAt)
	}
}

// customer is an endpoint that notes every request to its path.
type customer struct {
	*httptest.Server
	url string

	mu   sync.Mutex
	got  []request
	next func(n int) int
}

type request struct {
	header http.Header
	body   []byte
}

// newCustomer answers the nth request with one webhook-id with the status next(n);
// nil means 200.
func newCustomer(t *testing.T, next func(n int) int) *customer {
	t.Helper()
	c := &customer{next: next}
	path := "/hook/" + fmt.Sprintf("%x", random())
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != path || r.Method != http.MethodPost {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		c.got = append(c.got, request{r.Header.Clone(), body})
		n := 0
		for _, q := range c.got {
			if q.header.Get("Webhook-Id") == r.Header.Get("Webhook-Id") {
				n++
			}
		}
		c.mu.Unlock()
		if c.next != nil {
			w.WriteHeader(c.next(n))
		}
	}))
	t.Cleanup(c.Close)
	c.url = c.Server.URL + path
	return c
}

// failing answers the first n requests with one webhook-id with 500.
func failing(n int) func(int) int {
	return func(i int) int {
		if i <= n {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	}
}

// requests are those with the webhook-id, or all if it is zero.
func (c *customer) requests(k webhook.EventKey) []request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var some []request
	for _, r := range c.got {
		if k == (webhook.EventKey{}) || r.header.Get("Webhook-Id") == k.ID() {
			some = append(some, r)
		}
	}
	return some
}

// verified holds every request of the event against the bytes that were posted and
// the official library.
func (c *customer) verified(t testing.TB, k webhook.EventKey, secret signing.Secret, body []byte) []request {
	t.Helper()
	official, err := standardwebhooks.NewWebhook(secret.Reveal())
	must(t, err)
	got := c.requests(k)
	if len(got) == 0 {
		t.Errorf("the endpoint never saw %s", k)
	}
	for _, r := range got {
		if payload, _ := opened(t, k, r); !bytes.Equal(payload, body) {
			t.Errorf("the endpoint saw %.200q, posted was %.200q", r.body, body)
		}
		if err := official.Verify(r.body, r.header); err != nil {
			t.Errorf("the official library refuses our signature: %v", err)
		}
	}
	return got
}

// envelope is the body in which an application's event is sent by default.
var envelope = regexp.MustCompile(`(?s)^\{"type":"[^"]*","timestamp":"[^"]*","id":"(evt_[a-z2-7]{26})"(?:,"content_type":"([^"]*)")?,"(data|data_base64)":(.*)\}$`)

// opened is the payload that a request holds, byte for byte, and its content type: an
// application's event comes in an envelope, a provider's as it was posted.
func opened(t testing.TB, k webhook.EventKey, r request) (payload []byte, contentType string) {
	t.Helper()
	m := envelope.FindSubmatch(r.body)
	switch {
	case m == nil || string(m[1]) != k.ID():
		return r.body, r.header.Get("Content-Type")
	case r.header.Get("Content-Type") != "application/json" || !json.Valid(r.body):
		t.Errorf("an envelope of type %q: %.200q", r.header.Get("Content-Type"), r.body)
	}
	payload = m[4]
	if string(m[3]) == "data_base64" || len(m[2]) > 0 {
		var text string
		must(t, json.Unmarshal(m[4], &text))
		payload = []byte(text)
		if string(m[3]) == "data_base64" {
			var err error
			payload, err = base64.StdEncoding.DecodeString(text)
			must(t, err)
		}
	} else if string(payload) == "null" {
		payload = []byte{}
	}
	return payload, string(m[2])
}

// post sends a request to the receiver and returns its answer, or 0 and what went
// wrong.
func post(ctx context.Context, url string, header http.Header, body []byte) (int, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = header.Clone()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0, nil, err
	}
	return res.StatusCode, res.Header, nil
}

func (r *rig) accepted(c call) {
	r.t.Helper()
	code, _, err := post(r.t.Context(), c.url, c.header, c.body)
	if err != nil || code/100 != 2 {
		r.t.Fatalf("%s: the receiver answered %d, %v", c.url, code, err)
	}
}

// logs keeps a log's lines.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(b))
	return len(b), nil
}

// faults are the last lines that are more than information.
func (l *logs) faults() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool { return strings.Contains(line, `"level":"INFO"`) })
	return strings.Join(lines[max(0, len(lines)-20):], "")
}

// count is the number of lines whose fields have these values.
func (l *logs) count(fields map[string]string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		var have map[string]any
		if json.Unmarshal([]byte(line), &have) != nil {
			continue
		}
		matches := true
		for k, v := range fields {
			matches = matches && fmt.Sprint(have[k]) == v
		}
		if matches {
			n++
		}
	}
	return n
}

var errNotYet = errors.New("not yet")
