package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/localcloud"
	"github.com/sealpost/sealpost/internal/localcloud/cloudtasks"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// asWorker makes this test binary the worker itself, so that it can be killed.
const asWorker = "TEST_BINARY_IS_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		main()
		return
	}
	localtest.Main(m)
}

// rig is everything around a worker.
type rig struct {
	t       *testing.T
	project string
	db      string
	store   *store.Store
	tasks   string                        // address of Cloud Tasks
	hold    atomic.Pointer[chan struct{}] // CreateTask waits for its end
	reached chan struct{}                 // told when CreateTask waits
	ran     chan webhook.AttemptKey       // tasks that ran
	worker  atomic.Pointer[url.URL]       // where pushes go
	front   *httptest.Server              // where Pub/Sub thinks they go
}

func newRig(t *testing.T, pull bool) *rig {
	t.Helper()
	r := &rig{t: t, project: localtest.PubSub(t), reached: make(chan struct{}, 100), ran: make(chan webhook.AttemptKey, 1000)}
	var ddl []string
	for _, s := range store.Statements() {
		ddl = append(ddl, s.SQL)
	}
	r.db = localtest.Database(t, ddl)
	var err error
	if r.store, err = store.Open(context.Background(), r.db, store.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.store.Close)
	if _, err := r.store.CreateEndpoint(t.Context(), webhook.Endpoint{Tenant: "default", ID: "ep", URL: "https://hooks.example.com/", EventTypes: []string{"*"}},
		[]store.SealedKey{{ID: "key_1", Kind: "v1", Sealed: []byte("x"), SealedBy: "1"}}, "test"); err != nil {
		t.Fatal(err)
	}
	srv := cloudtasks.New(cloudtasks.Options{Fault: r.fault, Transport: cloudtasks.HandlerTransport(http.HandlerFunc(r.attempt))})
	if r.tasks, err = srv.Start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	q, err := tasks.New(t.Context(), tasks.Config{Project: r.project, Location: "us-central1", Dispatcher: "http://d.test", Invoker: "i@p.iam", Pools: []string{"pool"}},
		option.WithEndpoint(r.tasks), option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := q.CreateQueue(t.Context(), &webhook.Endpoint{Tenant: "t", ID: "pool", Queue: "pool", RatePerSecond: 500, MaxConcurrency: 100}); err != nil {
		t.Fatal(err)
	}
	r.front = httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(r.worker.Load()) }, ErrorLog: nil,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }})
	t.Cleanup(r.front.Close)
	nowhere, _ := url.Parse("http://127.0.0.1:9") // nobody listens
	r.worker.Store(nowhere)
	client, err := pubsub.NewClient(t.Context(), r.project)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	top, err := localcloud.LoadTopology()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := top.Apply(t.Context(), client, nil, localcloud.ApplyOptions{Project: r.project, Pull: pull, RetryBackoff: 100 * time.Millisecond,
		Services: map[string]string{"worker": r.front.URL}}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) fault(method string) error {
	if hold := r.hold.Load(); method == "CreateTask" && hold != nil {
		r.reached <- struct{}{}
		<-*hold
		return errors.New("too late")
	}
	return nil
}

func (r *rig) attempt(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	if k, err := webhook.ParseAttemptKey(body); err == nil {
		r.ran <- k
	}
	w.WriteHeader(http.StatusNoContent)
}

func (r *rig) env(mode string) []string {
	return []string{
		"GOOGLE_CLOUD_PROJECT=" + r.project, "SPANNER_DATABASE=" + r.db, "DISPATCHER_URL=http://dispatcher.test", "INVOKER=i@p.iam", "POOL_QUEUES=pool",
		"CLOUD_TASKS_EMULATOR_HOST=" + r.tasks, "PUBSUB_EMULATOR_HOST=" + os.Getenv("PUBSUB_EMULATOR_HOST"), "SPANNER_EMULATOR_HOST=" + os.Getenv("SPANNER_EMULATOR_HOST"),
		"AUTH=none", "HOST=127.0.0.1", "PORT=0", "MODE=" + mode,
	}
}

// process is a worker of its own.
type process struct {
	cmd  *exec.Cmd
	base *url.URL // where it serves
}

// start runs a worker and waits until it serves.
func (r *rig) start(mode string, more ...string) *process {
	r.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(r.env(mode), more...), asWorker+"=1", "PATH="+os.Getenv("PATH"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	p := &process{cmd: cmd}
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var line struct{ Event, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Event == "start" {
			p.base, _ = url.Parse("http://" + line.Address)
			break
		}
	}
	if p.base == nil {
		_ = cmd.Wait()
		r.t.Fatalf("the worker did not start: %s", stderr.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return p
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
}

// publish puts one event on each topic and returns their keys.
func (r *rig) publish() map[webhook.EventKey]bool {
	r.t.Helper()
	for _, topic := range []string{"sealpost-inbound", "sealpost-events"} {
		p, err := bus.NewPublisher(r.t.Context(), r.project, topic, bus.PublisherOptions{})
		if err != nil {
			r.t.Fatal(err)
		}
		if topic == "sealpost-inbound" {
			err = p.PublishInbound(r.t.Context(), webhook.Event{Tenant: "default", Source: "stripe", PublisherID: "1", Type: "a.b", Body: []byte("x"), ReceivedAt: time.Now(), Receipt: "r"}, "stripe")
		} else {
			_, err = p.PublishEvent(r.t.Context(), bus.EventMessage{ID: "1", Type: "a.b", Data: []byte("x")})
		}
		if err = errors.Join(err, p.Close(context.Background())); err != nil {
			r.t.Fatal(err)
		}
	}
	return map[webhook.EventKey]bool{webhook.KeyOf("stripe", "default", "1"): true, webhook.KeyOf("app", "default", "1"): true}
}

// await waits for one task of each event.
func (r *rig) await(keys map[webhook.EventKey]bool) {
	r.t.Helper()
	deadline := time.After(2 * time.Minute)
	for len(keys) > 0 {
		select {
		case k := <-r.ran:
			if !keys[k.Event] {
				r.t.Errorf("a task too many: %s", k)
			}
			delete(keys, k.Event)
		case <-deadline:
			r.t.Fatalf("no task for %d events", len(keys))
		}
	}
}

// SIGKILL between commit and task creation: the next worker that gets the message
// creates the task, and no second one.
func TestKilledBetweenCommitAndTask(t *testing.T) {
	t.Parallel()
	r := newRig(t, false)
	hold := make(chan struct{})
	r.hold.Store(&hold)
	first := r.start("push")
	r.worker.Store(first.base)
	keys := r.publish()
	<-r.reached // committed, and about to create a task
	<-r.reached
	for k := range keys {
		if _, err := r.store.Event(t.Context(), "default", k); err != nil {
			t.Errorf("not committed: %v", err)
		}
	}
	first.kill(t)
	r.hold.Store(nil)
	close(hold)
	second := r.start("push")
	r.worker.Store(second.base)
	r.await(keys)
	if len(r.ran) != 0 {
		t.Errorf("%d tasks too many", len(r.ran))
	}
}

// The worker as it is run: serves health, takes both topics, and stops when told.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"push", "pull"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, mode == "pull")
			p := r.start(mode)
			r.worker.Store(p.base)
			r.await(r.publish())
			for path, want := range map[string]int{"/health/live": 204, "/health/ready": 204, "/push/events": map[string]int{"push": 405, "pull": 404}[mode], "/": 404} {
				res, err := http.Get(p.base.String() + path)
				if err != nil {
					t.Fatal(err)
				}
				if res.Body.Close(); res.StatusCode != want {
					t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
				}
			}
			if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("stopping: %v", err)
			}
		})
	}
}

// A direct source is served in both modes, beside the two topics.
func TestDirectSource(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"push", "pull"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, mode == "pull")
			client, err := pubsub.NewClient(t.Context(), r.project)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			topic, sub := "projects/"+r.project+"/topics/shopify", &pubsubpb.Subscription{Name: "projects/" + r.project + "/subscriptions/shopify-worker"}
			if mode == "push" {
				sub.PushConfig = &pubsubpb.PushConfig{PushEndpoint: r.front.URL + "/push/direct/shop"}
			}
			if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic}); err != nil {
				t.Fatal(err)
			}
			sub.Topic = topic
			if _, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), sub); err != nil {
				t.Fatal(err)
			}
			p := r.start(mode, `DIRECT_SOURCES=[{"id":"shop","format":"shopify","tenant":"default","subscription":"shopify-worker"}]`)
			r.worker.Store(p.base)
			const body = "{\"total\":0.0}\x80\n"
			publisher := client.Publisher("shopify")
			defer publisher.Stop()
			if _, err := publisher.Publish(t.Context(), &pubsub.Message{Data: []byte(body), Attributes: map[string]string{
				"X-Shopify-Topic": "orders/create", "X-Shopify-Webhook-Id": "w1", "X-Shopify-Shop-Domain": "a.myshopify.com"}}).Get(t.Context()); err != nil {
				t.Fatal(err)
			}
			keys := r.publish()
			k := webhook.KeyOf("shop", "default", "w1")
			keys[k] = true
			r.await(keys)
			if got, err := r.store.Payload(t.Context(), "default", k); err != nil || string(got) != body {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// Callers are checked, health is open to all. Cloud Run leaves a token without its
// signature.
func TestRoutesCheckCallers(t *testing.T) {
	t.Parallel()
	cfg, err := load(env())
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	h := Routes(cfg.auth.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), log), nil, log)
	token := func(email string) string {
		claims := fmt.Sprintf(`{"email":%q,"email_verified":true,"aud":"https://worker"}`, email)
		return "Bearer e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".SIGNATURE_REMOVED_BY_GOOGLE"
	}
	for _, c := range []struct {
		method, path, authorization string
		want                        int
	}{
		{"POST", "/push/events", token("push@p.iam"), 204},
		{"POST", "/push/events", "", 401},
		{"POST", "/push/events", token("other@p.iam"), 403},
		{"GET", "/health/live", "", 204},
		{"GET", "/health/ready", "", 204},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%s %q: %d, want %d", c.path, c.authorization, w.Code, c.want)
		}
	}
}
