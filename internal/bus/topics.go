package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outgoing is a message for a topic that is somebody's destination: not one of
// Sealpost's own, so that nothing in it is compressed or split.
type Outgoing struct {
	Attributes map[string]string
	Data       []byte
	// OrderingKey becomes the message's own, besides what attributes say: here, unlike
	// on Sealpost's topics, subscriptions with ordering are of use.
	OrderingKey string
}

// Topics publishes to many topics of one project over one client. It is safe for
// concurrent use.
type Topics struct {
	client *pubsub.Client
	o      PublisherOptions

	mu     sync.Mutex
	topics map[string]*pubsub.Publisher
	closed bool
}

// maxTopics bounds the publishers that are kept: each has goroutines of its own.
const maxTopics = 1000

// NewTopics returns before a connection stands. PUBSUB_EMULATOR_HOST is honoured.
func NewTopics(ctx context.Context, project string, o PublisherOptions) (*Topics, error) {
	client, err := pubsub.NewClient(ctx, project, append([]option.ClientOption{reconnecting()}, o.ClientOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("publisher for destinations: %w", err)
	}
	return &Topics{client: client, o: o, topics: map[string]*pubsub.Publisher{}}, nil
}

var errClosed = errors.New("closed")

func (t *Topics) topic(name string) (*pubsub.Publisher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	p := t.topics[name]
	if p == nil {
		if len(t.topics) >= maxTopics {
			t.drop()
		}
		p = t.client.Publisher(name)
		p.PublishSettings = t.o.settings()
		p.EnableMessageOrdering = true
		t.topics[name] = p
	}
	return p, nil
}

// drop forgets one publisher, whichever; it ends when it has sent what it holds.
func (t *Topics) drop() {
	for name, p := range t.topics {
		delete(t.topics, name)
		go p.Stop()
		return
	}
}

// PublishTo publishes to the topic (its last part) and returns the message's id after
// Pub/Sub's answer. Errors that [DestinationStatus] knows are the topic's or the
// message's; any other says nothing about whether the message was published.
//
// A failure holds nothing back: the client, which refuses what follows a failed
// message under its ordering key, is told each time to go on. Whoever wants order
// publishes one after the other.
func (t *Topics) PublishTo(ctx context.Context, topic string, m Outgoing) (messageID string, err error) {
	p, err := t.topic(topic)
	if err != nil {
		return "", fmt.Errorf("publish to %s: %w", topic, err)
	}
	msg := &pubsub.Message{Data: m.Data, Attributes: maps.Clone(m.Attributes), OrderingKey: m.OrderingKey}
	if msg.Attributes == nil {
		msg.Attributes = map[string]string{}
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(msg.Attributes))
	if err := fits(p.String(), msg); err != nil {
		return "", fmt.Errorf("publish to %s: %w", topic, err)
	}
	messageID, err = p.Publish(ctx, msg).Get(ctx)
	if err != nil {
		if m.OrderingKey != "" {
			p.ResumePublish(m.OrderingKey)
		}
		return "", fmt.Errorf("publish to %s: %w", topic, published(err))
	}
	return messageID, nil
}

// DestinationStatus is the HTTP status that stands for an error of
// [Topics.PublishTo] which is the topic's or the message's: 404, 403, 413, or 400 for
// what the topic does not take. ok is false for all others, such as that Pub/Sub is
// away or the project's quota used up.
func DestinationStatus(err error) (httpStatus int, ok bool) {
	if errors.Is(err, ErrTooLarge) {
		return http.StatusRequestEntityTooLarge, true
	}
	if _, is := errors.AsType[*InvalidError](err); is {
		return http.StatusBadRequest, true
	}
	switch status.Code(err) {
	case codes.NotFound:
		return http.StatusNotFound, true
	case codes.PermissionDenied:
		return http.StatusForbidden, true
	case codes.InvalidArgument, codes.FailedPrecondition:
		return http.StatusBadRequest, true
	}
	return 0, false
}

// Close sends what is still waiting, at the longest until ctx is done, and ends the
// connection.
func (t *Topics) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	topics := t.topics
	t.topics = nil
	t.mu.Unlock()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for _, p := range topics {
			p.Stop()
		}
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
	}
	if err := t.client.Close(); err != nil {
		return fmt.Errorf("close publisher for destinations: %w", err)
	}
	return nil
}
