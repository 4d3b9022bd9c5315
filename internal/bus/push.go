package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// MaxPushBytes bounds the body of a push request: 10 MB in base64, 100 attributes
// with every character escaped, and the envelope.
const MaxPushBytes = 16 << 20

// EnvelopeError says that a request is no push request of Pub/Sub's.
type EnvelopeError struct {
	Detail string
	Body   []byte // as received; nil where it was too large to be read
	large  bool
}

func (e *EnvelopeError) Error() string { return "push request: " + e.Detail }

// TooLarge reports whether the request was refused for its size.
func (e *EnvelopeError) TooLarge() bool { return e.large }

// Permanent is true: trying again changes nothing.
func (e *EnvelopeError) Permanent() bool { return true }

// ReadPush reads and decodes a push request of at most [MaxPushBytes]. An
// [EnvelopeError] says that it is none; any other error that it could not be read.
func ReadPush(w http.ResponseWriter, r *http.Request) (Message, error) {
	tooLarge := &EnvelopeError{Detail: fmt.Sprintf("body exceeds %d bytes", MaxPushBytes), large: true}
	if r.ContentLength > MaxPushBytes {
		return Message{}, tooLarge
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, MaxPushBytes), r.ContentLength)
	if mbe := (*http.MaxBytesError)(nil); errors.As(err, &mbe) {
		return Message{}, tooLarge
	}
	if err != nil {
		return Message{}, fmt.Errorf("read push request: %w", err)
	}
	return DecodePush(r.Header, body)
}

// readAll reads r into a buffer of the size that was announced, if one was.
func readAll(r io.Reader, announced int64) ([]byte, error) {
	if announced <= 0 {
		return io.ReadAll(r)
	}
	body := make([]byte, announced)
	n, err := io.ReadFull(r, body)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.ErrUnexpectedEOF
	}
	return body[:n], err
}

// Headers of an unwrapped push request with metadata
// (https://cloud.google.com/pubsub/docs/payload-unwrapping). The emulator spells
// the ordering key's its own way.
const (
	headerMessageID       = "X-Goog-Pubsub-Message-Id"
	headerSubscription    = "X-Goog-Pubsub-Subscription-Name"
	headerPublishTime     = "X-Goog-Pubsub-Publish-Time"
	headerOrderingKey     = "X-Goog-Pubsub-Ordering-Key"
	headerOrderingKeyEmu  = "X-Goog-Ordering-Key"
	headerDeliveryAttempt = "X-Goog-Pubsub-Delivery-Attempt"
)

// envelope is the body of a wrapped push request
// (https://cloud.google.com/pubsub/docs/push#receive_push). Pub/Sub sends some
// fields under two names, omits empty ones, and adds new ones.
type envelope struct {
	Message *struct {
		Data            []byte            `json:"data"`
		Attributes      map[string]string `json:"attributes"`
		MessageID       string            `json:"messageId"`
		MessageID2      string            `json:"message_id"`
		PublishTime     string            `json:"publishTime"`
		PublishTime2    string            `json:"publish_time"`
		OrderingKey     string            `json:"orderingKey"`
		DeliveryAttempt int               `json:"deliveryAttempt"`
	} `json:"message"`
	Subscription    string `json:"subscription"`
	DeliveryAttempt int    `json:"deliveryAttempt"`
}

// DecodePush makes a push request a message. With a message id among the headers
// it is an unwrapped one: the body is the data, and the attributes are those of
// the request's headers that Sealpost knows (ce-*, sealpost-*, x-shopify-*,
// shopify-*, content-type, tenant, ordering_key and trace context; Pub/Sub mixes attributes with the
// transport's own headers). Otherwise it is a wrapped one. Anything else is an
// [EnvelopeError]; so is a wrapped message with neither id, data nor attributes.
// An unreadable publish time counts as not given.
//
// An unwrapped subscription must write metadata: without, nothing tells a body
// from an envelope.
func DecodePush(h http.Header, body []byte) (Message, error) {
	if h.Get(headerMessageID) != "" {
		return unwrapped(h, body), nil
	}
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		return Message{}, &EnvelopeError{Detail: err.Error(), Body: body}
	}
	if e.Message == nil {
		return Message{}, &EnvelopeError{Detail: "there is no message", Body: body}
	}
	m := Message{
		ID:              first(e.Message.MessageID, e.Message.MessageID2),
		Subscription:    e.Subscription,
		Attributes:      e.Message.Attributes,
		Data:            e.Message.Data,
		PublishTime:     parseTime(first(e.Message.PublishTime, e.Message.PublishTime2)),
		OrderingKey:     e.Message.OrderingKey,
		DeliveryAttempt: max(e.DeliveryAttempt, e.Message.DeliveryAttempt),
	}
	if m.ID == "" && len(m.Data) == 0 && len(m.Attributes) == 0 {
		return Message{}, &EnvelopeError{Detail: "the message is empty", Body: body}
	}
	return m, nil
}

func unwrapped(h http.Header, body []byte) Message {
	m := Message{
		ID:           h.Get(headerMessageID),
		Subscription: h.Get(headerSubscription),
		Attributes:   map[string]string{},
		Data:         body,
		PublishTime:  parseTime(h.Get(headerPublishTime)),
		OrderingKey:  first(h.Get(headerOrderingKey), h.Get(headerOrderingKeyEmu)),
	}
	m.DeliveryAttempt, _ = strconv.Atoi(h.Get(headerDeliveryAttempt))
	for name, values := range h {
		if key := strings.ToLower(name); len(values) > 0 && isOurs(key) {
			m.Attributes[key] = values[0]
		}
	}
	return m
}

func isOurs(key string) bool {
	switch key {
	case attrContentType, attrTenant, attrOrdering, "traceparent", "tracestate":
		return true
	}
	for _, prefix := range []string{"ce-", "sealpost-", "x-shopify-", "shopify-"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
