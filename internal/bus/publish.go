package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/api/option"

	"github.com/sealpost/sealpost/internal/payload"
	"github.com/sealpost/sealpost/internal/webhook"
)

// PublisherOptions bound what a publisher holds. Zero values mean the defaults.
type PublisherOptions struct {
	// Delay is how long a message waits for company in one request: 1 ms.
	Delay time.Duration
	// Timeout ends the client's own retries of one request, also after its callers
	// have given up: 10 s.
	Timeout time.Duration
	// MaxOutstandingMessages and MaxOutstandingBytes bound what waits for an answer:
	// 1,000 and 100 MB. Beyond them a publish waits, at most as long as its context.
	MaxOutstandingMessages int
	MaxOutstandingBytes    int
	// ClientOptions are passed to the Pub/Sub client.
	ClientOptions []option.ClientOption
}

func (o PublisherOptions) settings() pubsub.PublishSettings {
	s := pubsub.DefaultPublishSettings
	s.DelayThreshold = or(o.Delay, time.Millisecond)
	s.CountThreshold = 100
	s.ByteThreshold = 1 << 20
	s.Timeout = or(o.Timeout, 10*time.Second)
	s.FlowControlSettings = pubsub.FlowControlSettings{
		MaxOutstandingMessages: or(o.MaxOutstandingMessages, 1000),
		MaxOutstandingBytes:    or(o.MaxOutstandingBytes, 100<<20),
		LimitExceededBehavior:  pubsub.FlowControlBlock, // honours the caller's context
	}
	return s
}

func or[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// Publisher publishes to one topic. It is safe for concurrent use.
type Publisher struct {
	client *pubsub.Client
	topic  *pubsub.Publisher
	name   string // full name of the topic
}

// NewPublisher makes a publisher for the topic (its last part) of the project. It
// returns before a connection stands. PUBSUB_EMULATOR_HOST is honoured.
func NewPublisher(ctx context.Context, project, topic string, o PublisherOptions) (*Publisher, error) {
	client, err := pubsub.NewClient(ctx, project, append([]option.ClientOption{reconnecting()}, o.ClientOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("publisher for %s: %w", topic, err)
	}
	p := &Publisher{client: client, topic: client.Publisher(topic)}
	p.name = p.topic.String()
	p.topic.PublishSettings = o.settings()
	return p, nil
}

// PublishInbound publishes a verified event of a provider and returns after
// Pub/Sub's answer: nil means that the event is stored there. It does not change
// ev. A body that would not fit is compressed.
//
// Errors for which [Permanent] is true will not heal; [TooLargeError] is one of
// them. Any other, ctx's included, says nothing about whether the message was
// published: the same event may then arrive twice.
func (p *Publisher) PublishInbound(ctx context.Context, ev webhook.Event, scheme string) error {
	attrs, err := inboundAttributes(&ev, scheme)
	if err == nil {
		_, err = p.send(ctx, attrs, ev.Body)
	}
	if err != nil {
		return fmt.Errorf("publish event %q of source %s: %w", clip(ev.PublisherID), ev.Source, err)
	}
	return nil
}

// PublishEvent publishes an event of the team's own and returns the message's id
// after Pub/Sub's answer. Errors are as for [Publisher.PublishInbound].
func (p *Publisher) PublishEvent(ctx context.Context, e EventMessage) (messageID string, err error) {
	attrs, err := e.attributes()
	if err == nil {
		messageID, err = p.send(ctx, attrs, e.Data)
	}
	if err != nil {
		return "", fmt.Errorf("publish event %q: %w", clip(e.Type), err)
	}
	return messageID, nil
}

// PublishCounts publishes one report, which the worker stores. An empty one is
// not sent.
func (p *Publisher) PublishCounts(ctx context.Context, counts []Count) error {
	if len(counts) == 0 {
		return nil
	}
	err := p.sendCounts(ctx, counts)
	if err != nil {
		return fmt.Errorf("publish %d counts: %w", len(counts), err)
	}
	return nil
}

func (p *Publisher) sendCounts(ctx context.Context, counts []Count) error {
	if len(counts) > maxCounts {
		return &TooLargeError{What: "report of counts", Size: len(counts), Limit: maxCounts}
	}
	for i := range counts {
		if err := counts[i].check(); err != nil {
			return fmt.Errorf("count %d: %w", i, err)
		}
	}
	b, err := json.Marshal(counts)
	if err != nil {
		return err
	}
	_, err = p.send(ctx, map[string]string{attrKind: kindCounts, attrContentType: "application/json"}, b)
	return err
}

// send publishes the body under the attributes and the trace context of ctx.
func (p *Publisher) send(ctx context.Context, attrs map[string]string, body []byte) (string, error) {
	if len(body) > maxBodyBytes {
		return "", &TooLargeError{What: "body", Size: len(body), Limit: maxBodyBytes}
	}
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(attrs))
	m := &pubsub.Message{Data: body, Attributes: attrs}
	if requestSize(p.name, m) > MaxMessageBytes {
		if small := payload.Pack(body); len(small) < len(body) {
			attrs[attrEncoding] = payload.Encoding
			m.Data = small
		}
	}
	if err := fits(p.name, m); err != nil {
		return "", err
	}
	id, err := p.topic.Publish(ctx, m).Get(ctx)
	return id, published(err)
}

// Close sends what is still waiting and ends the connection. It returns at the
// latest when ctx is done. What is unsent then is lost, which is no error: its
// publishers were never told otherwise.
func (p *Publisher) Close(ctx context.Context) error {
	stopped := make(chan struct{})
	go func() {
		p.topic.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
	}
	if err := p.client.Close(); err != nil {
		return fmt.Errorf("close publisher for %s: %w", p.name, err)
	}
	return nil
}
