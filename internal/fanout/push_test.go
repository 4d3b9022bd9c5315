package fanout_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/localcloud"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

func wrapped(m bus.Message) string {
	b, _ := json.Marshal(map[string]any{"subscription": m.Subscription, "deliveryAttempt": 1, "message": map[string]any{"messageId": m.ID, "message_id": m.ID, "data": m.Data, "attributes": m.Attributes, "publishTime": m.PublishTime}})
	return string(b)
}

func TestPushAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	closed := b.open(store.Options{})
	closed.Close()
	works, broken := b.ingester(fanout.Options{}).Routes(), b.ingester(fanout.Options{Store: closed}).Routes()
	good := wrapped(message("m1", "a.b", "x"))
	for _, c := range []struct {
		name, method, path, body string
		h                        http.Handler
		code, dead               int
	}{
		{"event", "POST", fanout.EventsPath, good, works, 204, 0},
		{"no attributes, both ids", "POST", fanout.EventsPath, `{"message":{"data":"eyJ0eXBlIjoiYS5iIn0=","messageId":"1","message_id":"1","publishTime":"2021-11-16T19:21:09.107Z"},"subscription":"projects/p/subscriptions/s"}`, works, 204, 0},
		{"no attributes, undecodable", "POST", fanout.EventsPath, `{"message":{"data":"e30=","messageId":"5","message_id":"5","publishTime":"2021-11-16T19:21:09.107Z"},"subscription":"projects/p/subscriptions/s"}`, works, 204, 1},
		{"nothing but an id", "POST", fanout.EventsPath, `{"message":{"messageId":"2"}}`, works, 204, 1},
		{"the same again", "POST", fanout.EventsPath, `{"message":{"messageId":"2"}}`, works, 204, 0},
		{"inbound", "POST", fanout.InboundPath, wrapped(message("m2", "a.b", "x", "ce-source", "stripe")), works, 204, 0},
		{"no envelope", "POST", fanout.EventsPath, `hello`, works, 400, 1},
		{"no envelope, again", "POST", fanout.EventsPath, `hello`, works, 400, 0},
		{"no envelope, other topic", "POST", fanout.InboundPath, `hello`, works, 400, 1},
		{"no message", "POST", fanout.InboundPath, `{"subscription":"s"}`, works, 400, 1},
		{"too large", "POST", fanout.EventsPath, strings.Repeat(" ", bus.MaxPushBytes+1), works, 413, 0},
		{"wrong method", "GET", fanout.EventsPath, "", works, 405, 0},
		{"wrong path", "POST", "/push/other", good, works, 404, 0},
		{"outage", "POST", fanout.EventsPath, good, broken, 503, 0},
		{"outage, undecodable", "POST", fanout.EventsPath, `{"message":{"messageId":"3"}}`, broken, 503, 0},
		{"outage, no envelope", "POST", fanout.EventsPath, `hello`, broken, 503, 0},
	} {
		before := len(b.dead())
		w := httptest.NewRecorder()
		c.h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if w.Code != c.code || w.Body.Len() > 64 || w.Code == 405 && w.Header().Get("Allow") != "POST" {
			t.Errorf("%s: %d %q %v, want %d", c.name, w.Code, w.Body, w.Header(), c.code)
		}
		if n := len(b.dead()) - before; n != c.dead {
			t.Errorf("%s: %d dead messages, want %d", c.name, n, c.dead)
		}
	}
}

// Every byte arrives through both topics and both forms of push.
func TestPushKeepsBytes(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	h := b.ingester(fanout.Options{}).Routes()
	post := func(body io.Reader, path string, header map[string]string) {
		r := httptest.NewRequest("POST", path, body)
		for k, v := range header {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != 204 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	unwrapped := func(id string, kv ...string) map[string]string {
		m := map[string]string{"X-Goog-Pubsub-Message-Id": id, "X-Goog-Pubsub-Publish-Time": "2026-11-01T02:03:04Z", "Ce-Type": "a.b"}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	post(strings.NewReader(wrapped(message("1", "a.b", exact))), fanout.EventsPath, nil)
	post(strings.NewReader(wrapped(message("2", "a.b", exact, "ce-source", "stripe"))), fanout.InboundPath, nil)
	post(strings.NewReader(exact), fanout.EventsPath, unwrapped("3"))
	post(strings.NewReader(exact), fanout.InboundPath, unwrapped("4", "Ce-Source", "stripe"))
	structured := `{"specversion":"1.0","type":"a.b","id":"5","source":"","data_base64":"` + base64.StdEncoding.EncodeToString([]byte(exact)) + `"}`
	post(strings.NewReader(wrapped(message("m", "", structured, "content-type", "application/cloudevents+json"))), fanout.EventsPath, nil)
	for _, k := range []webhook.EventKey{key("app", "default", "1"), key("stripe", "default", "2"), key("app", "default", "3"), key("stripe", "default", "4"), key("app", "default", "5")} {
		body, err := b.store.Payload(t.Context(), "default", k)
		if err != nil || string(body) != exact {
			t.Errorf("%s: %q, %v", k, body, err)
		}
	}
}

// topology is the project's topics and subscriptions on Google's emulator.
func topology(t *testing.T, o localcloud.ApplyOptions) (project string) {
	t.Helper()
	o.Project = localtest.PubSub(t)
	c, err := pubsub.NewClient(t.Context(), o.Project)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	top, err := localcloud.LoadTopology()
	if err != nil {
		t.Fatal(err)
	}
	o.RetryBackoff = 100 * time.Millisecond
	if _, err := top.Apply(t.Context(), c, nil, o); err != nil {
		t.Fatal(err)
	}
	return o.Project
}

func publisher(t *testing.T, project, topic string) *bus.Publisher {
	t.Helper()
	p, err := bus.NewPublisher(t.Context(), project, topic, bus.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

// publishBoth puts n events on each topic and returns their keys.
func publishBoth(t *testing.T, project string, n int) map[webhook.EventKey]bool {
	t.Helper()
	inbound, events := publisher(t, project, "sealpost-inbound"), publisher(t, project, "sealpost-events")
	keys := map[webhook.EventKey]bool{}
	var wg sync.WaitGroup
	for i := range n {
		id := fmt.Sprint(i)
		keys[key("stripe", "default", id)], keys[key("app:/shop", "default", id)] = true, true
		wg.Go(func() {
			ev := webhook.Event{Tenant: "default", Source: "stripe", PublisherID: id, Type: "a.b", Body: []byte(exact), ReceivedAt: time.Now(), Receipt: "r" + id}
			if err := inbound.PublishInbound(t.Context(), ev, "stripe"); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := events.PublishEvent(t.Context(), bus.EventMessage{ID: id, Type: "a.b", Source: "/shop", Data: []byte(exact)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return keys
}

// all waits until every event's message was handled without an error, and checks
// that it is stored byte for byte, with one task.
func (b *bench) all(keys map[webhook.EventKey]bool, handled <-chan string) {
	b.t.Helper()
	deadline := time.After(2 * time.Minute)
	for seen := map[string]bool{}; len(seen) < len(keys); { // one message each
		select {
		case id := <-handled:
			seen[id] = true
		case <-deadline:
			b.t.Fatalf("%d events have not been handled", len(keys)-len(seen))
		}
	}
	for k := range keys {
		body, err := b.store.Payload(context.Background(), "default", k)
		if err != nil || string(body) != exact {
			b.t.Errorf("%s: %q, %v", k, body, err)
		}
	}
	times := map[webhook.EventKey]int{}
	for _, k := range b.tasks() {
		times[k.Event]++
	}
	for k := range keys {
		if times[k] != 1 {
			b.t.Errorf("%s has %d tasks", k, times[k])
		}
	}
}

// The whole way on Google's emulator, by push, with faults on the way: tasks that
// cannot be created at first are, when Pub/Sub delivers again.
func TestEmulatorPush(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	in := b.ingester(fanout.Options{})
	handled := make(chan string, 10_000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := bus.DecodePush(r.Header, body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		rec := httptest.NewRecorder()
		in.Routes().ServeHTTP(rec, r)
		w.WriteHeader(rec.Code)
		if rec.Code == http.StatusNoContent {
			handled <- m.ID
		}
	}))
	t.Cleanup(srv.Close)
	project := topology(t, localcloud.ApplyOptions{Services: map[string]string{"worker": srv.URL}})
	n := 0
	var mu sync.Mutex
	b.failTasks(func() error {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%3 == 0 {
			return errStop
		}
		return nil
	})
	b.all(publishBoth(t, project, 30), handled)
}

// The same by streaming pull.
func TestEmulatorPull(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	in := b.ingester(fanout.Options{})
	handled := make(chan string, 10_000)
	project := topology(t, localcloud.ApplyOptions{Pull: true})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for sub, kind := range map[string]fanout.Kind{"sealpost-inbound-worker": fanout.Inbound, "sealpost-events-worker": fanout.Events} {
		wg.Go(func() {
			_ = bus.Subscribe(ctx, project, sub, bus.SubscribeOptions{}, func(ctx context.Context, m bus.Message) error {
				err := in.Handle(ctx, m, kind)
				if err == nil {
					handled <- m.ID
				}
				return err
			})
		})
	}
	b.all(publishBoth(t, project, 200), handled)
	cancel()
	wg.Wait()
}
