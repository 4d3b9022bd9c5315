package deliver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Publisher publishes to topics of the dispatcher's own project. [bus.Topics] is one.
type Publisher interface {
	// PublishTo returns after Pub/Sub's answer. Of its errors those that
	// [bus.DestinationStatus] knows are the topic's.
	PublishTo(ctx context.Context, topic string, m bus.Outgoing) (messageID string, err error)
}

// errBusAway: Pub/Sub did not take the event for a reason that is not the topic's;
// nor would it take another.
var errBusAway = errors.New("not published")

// publish is send for an endpoint that is a topic. There is nothing to sign: Pub/Sub
// tells who may publish.
//
// What is wrong with the topic (it does not exist, this service may not publish
// there, it does not take the message) is a failed attempt with the HTTP status that
// stands for it. Pub/Sub being away, slow or out of quota is ours, as Spanner's being
// away is: no attempt, and the task runs again.
func (s *sender) publish(ctx context.Context, c *store.Claim, topic string) (webhook.Attempt, error) {
	a := s.begin(c)
	if err := s.permitted(topic); err != nil {
		return s.notSent(a, &settingError{err})
	}
	mode := c.Endpoint.PayloadMode
	if mode == webhook.PayloadDefault {
		mode = webhook.PayloadRaw // the attributes are the envelope
	}
	body, err := MakeBody(mode, &c.Event, s.o.ConsoleURL)
	if err != nil {
		return s.notSent(a, &settingError{err})
	}
	m := bus.Outgoing{Attributes: attributes(c, body.ContentType), Data: body.Bytes, OrderingKey: c.Event.OrderingKey}
	ctx, cancel := context.WithTimeout(ctx, timeout(&c.Endpoint))
	defer cancel()
	id, err := s.o.Publisher.PublishTo(ctx, topic, m)
	a.Duration = s.o.Now().Sub(a.StartedAt)
	a.Outcome = webhook.Outcome{Class: webhook.ClassOK, Status: http.StatusOK}
	a.WroteRequest = err == nil
	if err != nil {
		status, theirs := bus.DestinationStatus(err)
		if !theirs {
			return a, fmt.Errorf("%w: %w", errBusAway, err)
		}
		a.Outcome = webhook.Outcome{Class: webhook.ClassStatus, Status: status}
		a.Error = "topic " + topic + ": " + topicFault(status)
	}
	if a.Trigger == webhook.TriggerTest {
		a.Exchange = publication(&a, m, id)
	}
	return a, nil
}

// permitted reports why a topic may not be published to.
func (s *sender) permitted(topic string) error {
	if err := webhook.ValidTopic(topic); err != nil {
		return err
	}
	if s.o.Publisher != nil && slices.ContainsFunc(s.o.Topics, func(allowed string) bool {
		prefix, wild := strings.CutSuffix(allowed, "*")
		return topic == allowed || wild && strings.HasPrefix(topic, prefix)
	}) {
		return nil
	}
	return fmt.Errorf("topic %s is not among those that endpoints may name (DESTINATION_TOPICS)", topic)
}

func topicFault(status int) string {
	switch status {
	case http.StatusNotFound:
		return "it does not exist"
	case http.StatusForbidden:
		return "the dispatcher's service account may not publish there (roles/pubsub.publisher)"
	case http.StatusRequestEntityTooLarge:
		return "the event is larger than a message may be (10 MB)"
	}
	return "it does not take the message (schema, encryption key or attributes)"
}

// attributes are the event in the CloudEvents binding for Pub/Sub, as
// [bus.DecodeEvent] reads it. The tenant is there for the team's own services, which
// such endpoints are.
func attributes(c *store.Claim, contentType string) map[string]string {
	ev := &c.Event
	attrs := map[string]string{
		"ce-specversion": "1.0",
		"ce-id":          printable(ev.PublisherID),
		"ce-source":      ceSource(ev),
		"ce-type":        printable(ev.Type),
		"ce-time":        occurred(ev),
		"ce-tenant":      ev.Tenant,
		"content-type":   sendable(contentType),
		// As to an https endpoint.
		"webhook-id":       ev.Key.ID(),
		"sealpost-attempt": strconv.FormatInt(c.Delivery.Attempt, 10),
	}
	if ev.Subject != "" {
		attrs["ce-subject"] = printable(ev.Subject)
	}
	for _, x := range extensions(ev) {
		attrs["ce-"+x.Name] = x.Value
	}
	if v := c.Endpoint.APIVersion; v != "" {
		attrs["sealpost-api-version"] = v
	}
	for _, h := range c.Endpoint.Headers {
		if name := strings.ToLower(h.Name); attrs[name] == "" {
			attrs[name] = h.Value
		}
	}
	return attrs
}

// publication writes down what was published.
func publication(a *webhook.Attempt, m bus.Outgoing, id string) *webhook.Exchange {
	x := &webhook.Exchange{Error: a.Error, Protocol: "Pub/Sub", Timings: webhook.ExchangeTimings{Done: ms(a.Duration)},
		Request: webhook.ExchangeRequest{Method: "PUBLISH", URL: a.URL, BodySize: int64(len(m.Data))}}
	h := http.Header{}
	for k, v := range m.Attributes {
		if credential(k) {
			v = webhook.Masked
		}
		h[k] = []string{v}
	}
	x.Request.Headers = lines(h, nil)
	x.Request.Body, x.Request.Truncated = start(m.Data)
	x.Response = &webhook.ExchangeResponse{Status: a.Outcome.Status, Headers: []webhook.Header{}}
	if id != "" {
		x.Response.Headers = append(x.Response.Headers, webhook.Header{Name: "message-id", Value: id})
	}
	return x
}
