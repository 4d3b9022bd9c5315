package bus

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/proto"

	"github.com/sealpost/sealpost/internal/payload"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Pub/Sub's limits (https://cloud.google.com/pubsub/quotas#resource_limits). The
// emulator enforces none of them.
const (
	// MaxMessageBytes bounds a whole publish request, so also a single message with
	// its attributes.
	MaxMessageBytes     = 10_000_000
	MaxAttributes       = 100
	MaxAttributeKey     = 256  // bytes
	MaxAttributeValue   = 1024 // bytes
	reservedKeyPrefix   = "goog"
	maxBodyBytes        = 32 << 20 // before compression: what Cloud Run lets in at all
	maxPlainFieldBytes  = 1024     // subject, ordering key, content type, CloudEvents source
	maxHeaderAttributes = 80       // leaves room for everything else
)

// Attribute names.
const (
	attrSpecVersion = "ce-specversion"
	attrID          = "ce-id"
	attrType        = "ce-type"
	attrSource      = "ce-source"
	attrTime        = "ce-time"
	attrSubject     = "ce-subject"
	attrDataType    = "ce-datacontenttype"
	attrContentType = "content-type"
	attrTenant      = "tenant"
	attrCETenant    = "ce-tenant"
	attrOrdering    = "ordering_key"
	attrCEOrdering  = "ce-orderingkey"

	attrKind     = "sealpost-kind"
	attrEncoding = "sealpost-encoding"
	attrScheme   = "sealpost-scheme"
	attrReceived = "sealpost-received"
	attrReceipt  = "sealpost-receipt"
	attrHeaders  = "sealpost-headers-" // followed by 0, 1, …
	attrUnsigned = "sealpost-unsigned-id"
	attrOnReplay = "sealpost-on-replay"
	attrFlags    = "sealpost-flags"

	kindCounts     = "counts"
	unsignedYes    = "1"
	onReplayRefuse = "refuse"
)

// Message is one message as a subscription delivers it.
type Message struct {
	ID           string // Pub/Sub's; the same on every redelivery
	Subscription string // full name, or empty where the transport does not say
	Attributes   map[string]string
	Data         []byte
	PublishTime  time.Time
	OrderingKey  string
	// DeliveryAttempt counts from 1 where the subscription has a dead-letter policy
	// and the transport says; else 0.
	DeliveryAttempt int
}

// Scheme is the verification scheme that an inbound message passed; empty for
// others.
func (m Message) Scheme() string { return m.Attributes[attrScheme] }

// IsCounts reports whether the message is a report for [DecodeCounts].
func (m Message) IsCounts() bool { return m.Attributes[attrKind] == kindCounts }

// Context is ctx with the trace context that the message's publisher was in
// (https://www.w3.org/TR/trace-context/), or ctx itself.
func (m Message) Context(ctx context.Context) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(m.Attributes))
}

// body is the payload: the data, decompressed where an attribute says so.
func (m Message) body() ([]byte, error) {
	switch enc := m.Attributes[attrEncoding]; enc {
	case "":
		return m.Data, nil
	case payload.Encoding:
		b, err := payload.Decompress(m.Data, maxBodyBytes)
		if err != nil {
			return nil, refuse(CodeBadEncoding, "%v", err)
		}
		return b, nil
	default:
		return nil, refuse(CodeBadEncoding, "unknown %s %q", attrEncoding, clip(enc))
	}
}

// Tenant is the tenant that the message's attributes name; the default one if they
// name none, or none that could be.
func (m Message) Tenant() string {
	if t := m.attribute(attrTenant); webhook.ValidName(t) == nil {
		return t
	}
	return webhook.DefaultTenant
}

// UnpackedSize is how many bytes the message's data takes besides itself once it
// is decoded: 0 where it travels as it is, else what its frame claims, and the
// most that is accepted where it claims nothing.
func (m Message) UnpackedSize() int64 {
	if m.Attributes[attrEncoding] != payload.Encoding {
		return 0
	}
	if n, ok := payload.Size(m.Data); ok && n < maxBodyBytes {
		return n
	}
	return maxBodyBytes
}

// attribute is the value of the attribute, whatever the case of its name.
func (m Message) attribute(name string) string {
	if v, ok := m.Attributes[name]; ok {
		return v
	}
	for k, v := range m.Attributes {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

// contentType is the media type of the data.
func (m Message) contentType() string {
	if v := m.attribute(attrContentType); v != "" {
		return v
	}
	return m.attribute(attrDataType)
}

// fits reports which of Pub/Sub's limits the message breaks.
func fits(topic string, m *pubsub.Message) error {
	if len(m.Attributes) > MaxAttributes {
		return &TooLargeError{What: "number of attributes", Size: len(m.Attributes), Limit: MaxAttributes}
	}
	for k, v := range m.Attributes {
		switch {
		case k == "" || strings.HasPrefix(k, reservedKeyPrefix):
			return invalid("attribute name %q is not allowed", clip(k))
		case !utf8.ValidString(k) || !utf8.ValidString(v):
			return invalid("attribute %q is not valid UTF-8", clip(k))
		case len(k) > MaxAttributeKey:
			return &TooLargeError{What: "attribute name " + clip(k), Size: len(k), Limit: MaxAttributeKey}
		case len(v) > MaxAttributeValue:
			return &TooLargeError{What: "attribute " + k, Size: len(v), Limit: MaxAttributeValue}
		}
	}
	if len(m.Data) == 0 && len(m.Attributes) == 0 {
		return invalid("message has neither data nor attributes")
	}
	if n := requestSize(topic, m); n > MaxMessageBytes {
		return &TooLargeError{What: "message", Size: n, Limit: MaxMessageBytes}
	}
	return nil
}

// requestSize is the size in bytes of a publish request with m alone.
func requestSize(topic string, m *pubsub.Message) int {
	return proto.Size(&pubsubpb.PublishRequest{
		Topic:    topic,
		Messages: []*pubsubpb.PubsubMessage{{Data: m.Data, Attributes: m.Attributes}},
	})
}

// plain reports why s cannot be kept as a line of text: control characters,
// invalid UTF-8, too long. Empty is fine.
func plain(s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(s), limit)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("is not valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("holds the control character %q", r)
		}
	}
	return nil
}

// clip shortens what is quoted in an error.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// storable reports whether Spanner can hold the time, and a retention after it.
func storable(t time.Time) bool {
	t = t.UTC()
	return t.Year() >= 1 && t.Year() <= 9900
}

// parseTime reads RFC 3339. What cannot be read counts as not given: a bad time
// is not worth losing an event.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || !storable(t) {
		return time.Time{}
	}
	return t.UTC()
}

func firstTime(times ...time.Time) time.Time {
	for _, t := range times {
		if !t.IsZero() {
			return t
		}
	}
	return time.Time{}
}
