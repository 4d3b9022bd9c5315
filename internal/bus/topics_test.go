package bus_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"

	"github.com/sealpost/sealpost/internal/bus"
)

// topics publishes to a broker that has the topic billing.
func topics(t *testing.T, o ...pstest.ServerReactorOption) (*bus.Topics, *pstest.Server) {
	t.Helper()
	srv, opts := broker(t, o...)
	if len(o) == 0 {
		createTopic(t, opts, "billing")
	}
	ts, err := bus.NewTopics(t.Context(), "p", bus.PublisherOptions{Timeout: time.Second, ClientOptions: opts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = ts.Close(ctx)
	})
	return ts, srv
}

func createTopic(t *testing.T, opts []option.ClientOption, name string) {
	t.Helper()
	c, err := pubsub.NewClient(t.Context(), "p", opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/p/topics/" + name}); err != nil {
		t.Fatal(err)
	}
}

// A message arrives as it was given, its ordering key included.
func TestPublishTo(t *testing.T) {
	t.Parallel()
	ts, srv := topics(t)
	m := bus.Outgoing{Attributes: map[string]string{"ce-type": "invoice.paid", "ce-id": "1"}, Data: []byte(strings.Repeat("{\"a\": 0.0}\n", 100)), OrderingKey: "cus_1"}
	id, err := ts.PublishTo(t.Context(), "billing", m)
	if err != nil || id == "" {
		t.Fatal(id, err)
	}
	got := srv.Message(id)
	if got == nil || string(got.Data) != string(m.Data) || !maps.Equal(got.Attributes, m.Attributes) || got.OrderingKey != "cus_1" {
		t.Errorf("%+v", got)
	}
	if _, err := ts.PublishTo(t.Context(), "billing", bus.Outgoing{Data: []byte("x")}); err != nil {
		t.Errorf("without attributes: %v", err)
	}
}

// Which failures are the topic's or the message's, and which ours.
func TestDestinationStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   codes.Code
		status int // 0: ours
	}{
		{codes.NotFound, 404}, {codes.PermissionDenied, 403}, {codes.InvalidArgument, 400}, {codes.FailedPrecondition, 400},
		{codes.Unauthenticated, 0}, {codes.ResourceExhausted, 0}, {codes.Unavailable, 0}, {codes.Internal, 0}, {codes.DeadlineExceeded, 0},
	} {
		ts, _ := topics(t, pstest.WithErrorInjection("Publish", c.code, "injected"))
		_, err := ts.PublishTo(t.Context(), "billing", bus.Outgoing{Data: []byte("x"), OrderingKey: "k"})
		status, theirs := bus.DestinationStatus(err)
		if err == nil || status != c.status || theirs != (c.status != 0) {
			t.Errorf("%s: %d, %t (%v), want %d", c.code, status, theirs, err, c.status)
		}
	}
	ts, _ := topics(t)
	for name, m := range map[string]bus.Outgoing{"data": {Data: noise(bus.MaxMessageBytes)}, "an attribute": {Attributes: map[string]string{"a": strings.Repeat("x", 1025)}, Data: []byte("x")}} {
		if _, err := ts.PublishTo(t.Context(), "billing", m); err == nil {
			t.Errorf("too much %s is taken", name)
		} else if status, theirs := bus.DestinationStatus(err); !theirs || status != 413 && status != 400 {
			t.Errorf("too much %s: %d (%v)", name, status, err)
		}
	}
	if _, err := ts.PublishTo(t.Context(), "absent", bus.Outgoing{Data: []byte("x")}); err == nil {
		t.Error("an absent topic takes messages")
	} else if status, theirs := bus.DestinationStatus(err); status != 404 || !theirs {
		t.Errorf("an absent topic: %v", err)
	}
}

// redpanda-data/connect#2935, google-cloud-go#5905: after one failed publish the
// client refuses every later message of its ordering key. Here the key goes on, in
// order.
func TestOrderingKeyGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	ts, err := bus.NewTopics(t.Context(), "p", bus.PublisherOptions{Timeout: time.Second, ClientOptions: opts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ts.Close(context.Background()) })
	publish := func(n int) error {
		_, err := ts.PublishTo(t.Context(), "later", bus.Outgoing{Data: fmt.Append(nil, n), OrderingKey: "k"})
		return err
	}
	if publish(1) == nil {
		t.Fatal("the topic is not there yet")
	}
	createTopic(t, opts, "later")
	for n := range 4 {
		if err := publish(n + 1); err != nil {
			t.Fatalf("message %d: %v", n+1, err)
		}
	}
	var got []string
	for _, m := range srv.Messages() {
		got = append(got, string(m.Data))
	}
	if strings.Join(got, "") != "1234" {
		t.Errorf("got %v", got)
	}
}

func TestTopicsClosed(t *testing.T) {
	t.Parallel()
	ts, _ := topics(t)
	if err := ts.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := ts.PublishTo(t.Context(), "billing", bus.Outgoing{Data: []byte("x")}); err == nil {
		t.Error("published after the end")
	}
}
