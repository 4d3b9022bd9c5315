package bus_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// emulated is a project on Google's emulator with a topic and a subscription.
func emulated(t *testing.T, push *pubsubpb.PushConfig) (project string) {
	t.Helper()
	project = localtest.PubSub(t)
	c, err := pubsub.NewClient(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	name := "projects/" + project
	if _, err := c.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: name + "/topics/events"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: name + "/subscriptions/worker", Topic: name + "/topics/events", PushConfig: push}); err != nil {
		t.Fatal(err)
	}
	return project
}

// exact are bodies that something on the way could be tempted to mend.
var exact = []string{
	"\x80\xff\x00\x1b{\"esc\":\"\\u001B\",\"f\":0.0,\"n\":1152921504606846977}\r\n\n",
	`{"esc":"\u001B","f":0.0,"n":1152921504606846977}` + "\n",
	" ", "null", "",
}

// text are those of exact that are UTF-8: the emulator reads the data of unwrapped
// messages as text, which Pub/Sub does not.
var text = exact[1:]

func publishAll(t *testing.T, project string, bodies []string) {
	t.Helper()
	p, err := bus.NewPublisher(t.Context(), project, "events", bus.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	for _, b := range bodies {
		ev := inbound()
		ev.PublisherID, ev.Body = "b."+base64.StdEncoding.EncodeToString([]byte(b[:min(len(b), 64)])), []byte(b)
		if err := p.PublishInbound(t.Context(), ev, "stripe"); err != nil {
			t.Fatal(err)
		}
	}
}

// collect checks each message that comes against what was published.
func collect(t *testing.T, bodies []string, got <-chan bus.Message) {
	t.Helper()
	left := map[string]bool{}
	for _, b := range bodies {
		left[b] = true
	}
	deadline := time.After(time.Minute)
	for len(left) > 0 {
		select {
		case m := <-got:
			ev, err := bus.DecodeInbound(m)
			if err != nil {
				t.Fatal(err)
			}
			want := inbound()
			want.PublisherID = ev.PublisherID
			b, _ := base64.StdEncoding.DecodeString(ev.PublisherID[2:])
			want.Body = b
			want.Seal()
			sameEvent(t, ev, want)
			if m.ID == "" || m.PublishTime.IsZero() {
				t.Errorf("message %q of %s", m.ID, m.PublishTime)
			}
			delete(left, string(ev.Body))
		case <-deadline:
			t.Fatalf("%d messages are missing", len(left))
		}
	}
}

func pushServer(t *testing.T) (url string, got <-chan bus.Message) {
	t.Helper()
	out := make(chan bus.Message, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, err := bus.ReadPush(w, r)
		if err != nil {
			t.Error(err)
		}
		out <- m
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, out
}

func TestEmulatorWrappedPush(t *testing.T) {
	t.Parallel()
	url, got := pushServer(t)
	project := emulated(t, &pubsubpb.PushConfig{PushEndpoint: url})
	publishAll(t, project, exact)
	collect(t, exact, got)
}

func TestEmulatorUnwrappedPush(t *testing.T) {
	t.Parallel()
	url, got := pushServer(t)
	project := emulated(t, &pubsubpb.PushConfig{PushEndpoint: url, Wrapper: &pubsubpb.PushConfig_NoWrapper_{NoWrapper: &pubsubpb.PushConfig_NoWrapper{WriteMetadata: true}}})
	p, err := bus.NewPublisher(t.Context(), project, "events", bus.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	for _, b := range text {
		ev := inbound()
		ev.Body = []byte(b)
		if err := p.PublishInbound(t.Context(), ev, "stripe"); err != nil {
			t.Fatal(err)
		}
		got, err := bus.DecodeInbound(<-got)
		if err != nil {
			t.Fatal(err)
		}
		ev.Seal()
		sameEvent(t, got, ev)
	}
}

func TestEmulatorPull(t *testing.T) {
	t.Parallel()
	project := emulated(t, nil)
	got := make(chan bus.Message, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- bus.Subscribe(ctx, project, "worker", bus.SubscribeOptions{}, func(_ context.Context, m bus.Message) error { got <- m; return nil })
	}()
	bodies := append([]string{string(noise(bus.MaxMessageBytes - 16<<10)), string(bytes.Repeat([]byte("0.0\n"), 6<<20))}, exact...)
	publishAll(t, project, bodies)
	left := map[string]bool{}
	for _, b := range bodies {
		left[b] = true
	}
	for len(left) > 0 {
		ev, err := bus.DecodeInbound(<-got)
		if err != nil {
			t.Fatal(err)
		}
		if !left[string(ev.Body)] {
			t.Fatalf("unknown body of %d bytes", len(ev.Body))
		}
		delete(left, string(ev.Body))
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
