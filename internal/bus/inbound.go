package bus

import (
	"slices"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// inboundAttributes is everything of ev but its body. It refuses what
// [DecodeInbound] would refuse.
func inboundAttributes(ev *webhook.Event, scheme string) (map[string]string, error) {
	if err := webhook.ValidSource(ev.Source); err != nil {
		return nil, invalid("source: %v", err)
	}
	if err := webhook.ValidName(ev.Tenant); err != nil {
		return nil, invalid("tenant: %v", err)
	}
	if err := webhook.ValidType(ev.Type); err != nil {
		return nil, invalid("%v", err)
	}
	if ev.PublisherID == "" {
		return nil, invalid("event has no id")
	}
	attrs := map[string]string{
		attrSpecVersion: "1.0",
		attrID:          webhook.CanonicalID(ev.PublisherID),
		attrType:        ev.Type,
		attrSource:      ev.Source,
		attrTenant:      ev.Tenant,
	}
	put(attrs, attrScheme, scheme)
	put(attrs, attrReceipt, ev.Receipt)
	put(attrs, attrSubject, ev.Subject)
	put(attrs, attrOrdering, ev.OrderingKey)
	// A provider's media type is passed on, never a reason to lose its event.
	if plain(ev.ContentType, MaxAttributeValue) == nil {
		put(attrs, attrContentType, ev.ContentType)
	}
	putTime(attrs, attrTime, ev.OccurredAt)
	putTime(attrs, attrReceived, ev.ReceivedAt)
	if ev.UnsignedID {
		attrs[attrUnsigned] = unsignedYes
		if ev.RefuseReplay {
			attrs[attrOnReplay] = onReplayRefuse
		}
	}
	put(attrs, attrFlags, strings.Join(ev.Flags, ","))
	return attrs, putHeaders(attrs, ev.Headers)
}

// knownFlags are those of a list that this version knows. A newer receiver's mark
// is not worth losing an event.
func knownFlags(list string) []string {
	var out []string
	for f := range strings.SplitSeq(list, ",") {
		if (f == webhook.FlagInvalidSchema || f == webhook.FlagDedupeFallback) && !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

func put(attrs map[string]string, key, value string) {
	if value != "" {
		attrs[key] = value
	}
}

func putTime(attrs map[string]string, key string, t time.Time) {
	if !t.IsZero() && storable(t) {
		attrs[key] = t.UTC().Format(time.RFC3339Nano)
	}
}

// DecodeInbound makes a message of the inbound topic the event that the receiver
// published: every field that [Publisher.PublishInbound] was given, and the body
// byte for byte. The event is sealed.
//
// A time that cannot be read counts as not given; the message's publish time then
// stands for the time of receipt. Everything else that cannot be read is a
// [DecodeError].
func DecodeInbound(m Message) (webhook.Event, error) {
	a := m.Attributes
	if len(m.Data) == 0 && a[attrType] == "" {
		return webhook.Event{}, refuse(CodeEmpty, "message has neither data nor a type")
	}
	headers, err := takeHeaders(a)
	if err != nil {
		return webhook.Event{}, err
	}
	body, err := m.body()
	if err != nil {
		return webhook.Event{}, err
	}
	ev := webhook.Event{
		Tenant:      a[attrTenant],
		Source:      a[attrSource],
		PublisherID: a[attrID],
		Type:        a[attrType],
		Subject:     a[attrSubject],
		OrderingKey: a[attrOrdering],
		ContentType: a[attrContentType],
		Headers:     headers,
		Body:        body,
		OccurredAt:  parseTime(a[attrTime]),
		ReceivedAt:  firstTime(parseTime(a[attrReceived]), m.PublishTime),
		Receipt:     a[attrReceipt],
		UnsignedID:  a[attrUnsigned] == unsignedYes,
	}
	ev.RefuseReplay = ev.UnsignedID && a[attrOnReplay] == onReplayRefuse
	ev.Flags = knownFlags(a[attrFlags])
	if ev.Source == "" {
		return webhook.Event{}, refuse(CodeBadSource, "message names no source")
	}
	if err := webhook.ValidSource(ev.Source); err != nil {
		return webhook.Event{}, refuse(CodeBadSource, "%v", err)
	}
	return finish(m, ev)
}

// finish checks what inbound and published events share, fills in what the
// message stands for, and seals the event.
func finish(m Message, ev webhook.Event) (webhook.Event, error) {
	if ev.Type == "" {
		return webhook.Event{}, refuse(CodeNoType, "event has no type")
	}
	if err := webhook.ValidType(ev.Type); err != nil {
		return webhook.Event{}, refuse(CodeBadType, "%v", err)
	}
	if ev.Tenant == "" {
		ev.Tenant = webhook.DefaultTenant
	}
	if err := webhook.ValidName(ev.Tenant); err != nil {
		return webhook.Event{}, refuse(CodeBadTenant, "%v", err)
	}
	if ev.PublisherID == "" {
		ev.PublisherID = m.ID
	}
	if ev.PublisherID == "" {
		return webhook.Event{}, refuse(CodeNoID, "neither the event nor the message has an id")
	}
	ev.PublisherID = webhook.CanonicalID(ev.PublisherID)
	if ev.OrderingKey == "" {
		ev.OrderingKey = m.OrderingKey
	}
	for name, v := range map[string]string{"subject": ev.Subject, "ordering key": ev.OrderingKey, "content type": ev.ContentType} {
		if err := plain(v, maxPlainFieldBytes); err != nil {
			return webhook.Event{}, refuse(CodeBadField, "%s %v", name, err)
		}
	}
	if ev.Receipt == "" {
		ev.Receipt = m.ID
	}
	ev.Seal()
	return ev, nil
}
