package bus

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/sealpost/sealpost/internal/webhook"
)

// DirectFormat is how a provider that publishes to Pub/Sub itself writes its
// messages.
type DirectFormat string

// Formats.
const (
	// DirectShopify: the body is the message's data, and what are headers over HTTP
	// are attributes, X-Shopify-Topic, X-Shopify-Webhook-Id and so on. Shopify says
	// that names are to be read in any case, and is moving to names without the X-
	// (https://shopify.dev/docs/apps/build/webhooks/delivery-structure,
	// https://github.com/Shopify/shopify-api-ruby/pull/1437).
	DirectShopify DirectFormat = "shopify"
	// DirectCloudEvents: the Pub/Sub binding for CloudEvents, in binary mode (ce-id,
	// ce-type, … are attributes) or structured mode (content-type is
	// application/cloudevents+json), as Eventarc sends it
	// (https://cloud.google.com/eventarc/docs/event-format).
	DirectCloudEvents DirectFormat = "cloudevents"
)

// DirectSource is an inbound source whose provider publishes to a topic of the
// project itself, past the receiver.
//
// Nothing about such a message is verified here, and there is no signature that
// could be: its authenticity is Pub/Sub's IAM. Whoever has the publisher's role on
// the topic can send anything in this source's name, so that role is for the
// provider's service account alone, and the topic for this source alone.
type DirectSource struct {
	ID     string       `json:"id"`     // as of a source of the receiver, and maybe the same one
	Format DirectFormat `json:"format"` // see there
	// Tenant of all its events, whatever a message says; empty:
	// [webhook.DefaultTenant].
	Tenant string `json:"tenant"`
	// Subscription to pull from, the last part of its name. Not needed for push.
	Subscription string `json:"subscription"`
	// Dedupe replaces the provider's id: "header:" and the name of an attribute. What
	// lacks it has the format's own identity. To be set as for the receiver, if both
	// ways are used.
	Dedupe string `json:"dedupe"`
}

// ParseDirectSources reads
//
//	[{"id": "shop", "format": "shopify", "tenant": "default",
//	  "subscription": "shopify-worker", "dedupe": "header:X-Shopify-Event-Id"}]
//
// of which id and format are needed. Every fault is reported, with its source.
// Empty input has none.
func ParseDirectSources(config []byte) ([]DirectSource, error) {
	if len(bytes.TrimSpace(config)) == 0 {
		return nil, nil
	}
	var list []DirectSource
	dec := json.NewDecoder(bytes.NewReader(config))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&list); err != nil {
		return nil, fmt.Errorf("direct sources: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("direct sources: something follows the list")
	}
	var errs []error
	ids, subscriptions := map[string]bool{}, map[string]bool{}
	for i := range list {
		s := &list[i]
		if s.Tenant == "" {
			s.Tenant = webhook.DefaultTenant
		}
		for _, err := range s.faults() {
			errs = append(errs, fmt.Errorf("direct source %d (%q): %w", i+1, clip(s.ID), err))
		}
		if ids[s.ID] {
			errs = append(errs, fmt.Errorf("direct source %d (%q): id is given twice", i+1, clip(s.ID)))
		}
		if s.Subscription != "" && subscriptions[s.Subscription] {
			errs = append(errs, fmt.Errorf("direct source %d (%q): subscription %q is another source's", i+1, clip(s.ID), clip(s.Subscription)))
		}
		ids[s.ID], subscriptions[s.Subscription] = true, true
	}
	return list, errors.Join(errs...)
}

func (s *DirectSource) faults() []error {
	var errs []error
	if err := webhook.ValidSource(s.ID); err != nil {
		errs = append(errs, fmt.Errorf("id: %w", err))
	}
	if err := webhook.ValidName(s.Tenant); err != nil {
		errs = append(errs, fmt.Errorf("tenant: %w", err))
	}
	if s.Format != DirectShopify && s.Format != DirectCloudEvents {
		errs = append(errs, fmt.Errorf("format is %q, want %s or %s", clip(string(s.Format)), DirectShopify, DirectCloudEvents))
	}
	if strings.Contains(s.Subscription, "/") {
		errs = append(errs, fmt.Errorf("subscription %q is not the last part of a name", clip(s.Subscription)))
	}
	if name, ok := strings.CutPrefix(s.Dedupe, "header:"); s.Dedupe != "" && (!ok || name == "") {
		errs = append(errs, fmt.Errorf("dedupe is %q, want header:<name>", clip(s.Dedupe)))
	}
	return errs
}

// DecodeDirect makes a message of a direct source an event. The body is the exact
// data of the message, or in structured mode the exact value of its data. The
// event has the id that the receiver would give it, so that a source may use both
// ways, and either is a repeat of the other:
//
//   - Shopify: X-Shopify-Webhook-Id, or else the hash of the body. Its type is
//     X-Shopify-Topic, its time X-Shopify-Triggered-At. X-Shopify-Hmac-SHA256 is
//     kept with the others, not looked at.
//   - CloudEvents: ce-id, or else the message's own. CloudEvents promise that an id
//     is unique within its ce-source; producers that do not share a namespace of
//     ids need a direct source each.
//
// Attributes that start so are kept as headers. The receipt is the message's id,
// the time of receipt its publish time. Everything that cannot be read is a
// [DecodeError], but a time counts as not given. Names are read in any case; two
// that differ in nothing else are refused.
func DecodeDirect(m Message, s DirectSource) (webhook.Event, error) {
	attrs, err := folded(m.Attributes)
	if err != nil {
		return webhook.Event{}, err
	}
	ev := webhook.Event{Tenant: s.Tenant, Source: s.ID, ReceivedAt: m.PublishTime, Receipt: m.ID}
	switch s.Format {
	case DirectShopify:
		err = fromShopify(&ev, m, attrs)
	case DirectCloudEvents:
		err = fromCloudEvent(&ev, m, attrs)
	default:
		return webhook.Event{}, fmt.Errorf("direct source %s: unknown format %q", s.ID, s.Format)
	}
	if err != nil {
		return webhook.Event{}, err
	}
	if name, ok := strings.CutPrefix(s.Dedupe, "header:"); ok {
		ev.PublisherID = first(strings.Trim(attrs[strings.ToLower(name)], " \t"), ev.PublisherID)
	}
	return finish(m, ev)
}

// folded has the names in lower case.
func folded(attributes map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(attributes))
	for name, v := range attributes {
		key := strings.ToLower(name)
		if other, twice := out[key]; twice && other != v {
			return nil, refuse(CodeBadHeaders, "attribute %q is given twice", clip(key))
		}
		out[key] = v
	}
	return out, nil
}

func fromShopify(ev *webhook.Event, m Message, attrs map[string]string) error {
	get := func(name string) string {
		return strings.Trim(first(attrs["x-shopify-"+name], attrs["shopify-"+name]), " \t")
	}
	if len(m.Data) == 0 {
		return refuse(CodeEmpty, "message has no data")
	}
	sum := sha256.Sum256(m.Data)
	ev.PublisherID = first(get("webhook-id"), "sha256:"+hex.EncodeToString(sum[:]))
	ev.Type = get("topic")
	ev.OccurredAt = parseTime(get("triggered-at"))
	ev.ContentType = attrs[attrContentType]
	ev.Headers = headersOf(attrs, "x-shopify-", "shopify-")
	ev.Body = m.Data
	return nil
}

func fromCloudEvent(ev *webhook.Event, m Message, attrs map[string]string) error {
	f := fields{
		id: attrs[attrID], typ: attrs[attrType], source: attrs[attrSource], subject: attrs[attrSubject],
		contentType: first(attrs[attrContentType], attrs[attrDataType]), time: attrs[attrTime], data: m.Data,
	}
	err := checkSpecVersion(attrs[attrSpecVersion])
	ev.Headers = headersOf(attrs, "ce-")
	switch ct := f.contentType; {
	case mediaType(ct) == "application/cloudevents+json":
		if f, err = structured(m.Data); f.source != "" {
			ev.Headers = []webhook.Header{{Name: "Ce-Source", Value: f.source}}
		}
	case isCloudEvents(ct) && f.typ == "":
		return refuse(CodeBadEncoding, "event format %q is not known", clip(ct))
	}
	ev.PublisherID, ev.Type, ev.Subject = f.id, f.typ, f.subject
	ev.ContentType, ev.OccurredAt, ev.Body = f.contentType, parseTime(f.time), f.data
	return err
}

// headersOf are the attributes with one of the prefixes, by name, as HTTP spells it.
func headersOf(attrs map[string]string, prefixes ...string) []webhook.Header {
	var out []webhook.Header
	for name, v := range attrs {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			out = append(out, webhook.Header{Name: http.CanonicalHeaderKey(name), Value: v})
		}
	}
	slices.SortFunc(out, func(a, b webhook.Header) int { return strings.Compare(a.Name, b.Name) })
	return out
}
