package bus

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sealpost/sealpost/internal/webhook"
)

// EventMessage is an event that one of the team's own systems publishes.
type EventMessage struct {
	Tenant string // empty: [webhook.DefaultTenant]
	// ID makes a repeat a repeat. Empty: the id that Pub/Sub gives the message.
	ID          string
	Type        string
	Source      string // CloudEvents source; may be empty
	Subject     string
	OrderingKey string
	ContentType string
	Time        time.Time // zero: not given
	Data        []byte    // delivered byte for byte
}

// EventSource is the source of an event whose publisher named the given
// CloudEvents source, if any.
func EventSource(ce string) string {
	if ce == "" {
		return webhook.SourceApp
	}
	return webhook.SourceApp + ":" + ce
}

// attributes is everything of e but its data. It refuses what [DecodeEvent] would
// refuse.
func (e *EventMessage) attributes() (map[string]string, error) {
	if err := webhook.ValidType(e.Type); err != nil {
		return nil, invalid("%v", err)
	}
	tenant := e.Tenant
	if tenant == "" {
		tenant = webhook.DefaultTenant
	}
	if err := webhook.ValidName(tenant); err != nil {
		return nil, invalid("tenant: %v", err)
	}
	for name, v := range map[string]string{"source": e.Source, "subject": e.Subject, "ordering key": e.OrderingKey, "content type": e.ContentType} {
		if err := plain(v, maxPlainFieldBytes); err != nil {
			return nil, invalid("%s %v", name, err)
		}
	}
	if isCloudEvents(e.ContentType) {
		return nil, invalid("content type %q would make the data an event of its own", clip(e.ContentType))
	}
	attrs := map[string]string{attrSpecVersion: "1.0", attrType: e.Type, attrTenant: tenant}
	if e.ID != "" {
		attrs[attrID] = webhook.CanonicalID(e.ID)
	}
	put(attrs, attrSource, e.Source)
	put(attrs, attrSubject, e.Subject)
	put(attrs, attrOrdering, e.OrderingKey)
	put(attrs, attrContentType, e.ContentType)
	putTime(attrs, attrTime, e.Time)
	return attrs, nil
}

// fields are what the ways of saying an event have in common.
type fields struct {
	id, typ, source, tenant, subject, ordering, contentType, time string

	data []byte
}

// DecodeEvent makes a message of the topic of published events an event:
//
//   - with a content-type attribute of application/cloudevents+json: a structured
//     CloudEvent (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md);
//   - with a ce-type attribute: binary mode, the payload is the message's data;
//   - else: a JSON object {"type", "id", "tenant", "source", "time" or "timestamp",
//     "subject", "ordering_key", "datacontenttype", "data" or "data_base64"}, of
//     which only type is needed.
//
// The payload of both JSON forms is the exact bytes of data's value, white space
// inside it and the spelling of numbers and strings included; an object without
// data has an empty payload. Only with a datacontenttype that is not JSON is a
// string its characters instead. Names are matched exactly and unknown ones
// ignored; one of the names above given twice makes the object ambiguous, and it
// is refused.
//
// Tenant and ordering key may also be attributes (tenant or ce-tenant,
// ordering_key or ce-orderingkey; the message's own ordering key comes last).
// Two tenants that differ are refused: one of them would get the other's event.
// Without an id the message's serves. The source becomes "app", or "app:" and the
// CloudEvents source. A time that cannot be read counts as not given: it is not
// worth losing an event. Everything else that cannot be read is a [DecodeError].
func DecodeEvent(m Message) (webhook.Event, error) {
	f, err := decodeFields(m)
	if err != nil {
		return webhook.Event{}, err
	}
	if err := f.fill(m.Attributes); err != nil {
		return webhook.Event{}, err
	}
	if err := plain(f.source, maxPlainFieldBytes); err != nil {
		return webhook.Event{}, refuse(CodeBadSource, "source %v", err)
	}
	return finish(m, webhook.Event{
		Tenant:      f.tenant,
		Source:      EventSource(f.source),
		PublisherID: f.id,
		Type:        f.typ,
		Subject:     f.subject,
		OrderingKey: f.ordering,
		ContentType: f.contentType,
		Body:        f.data,
		OccurredAt:  parseTime(f.time),
		ReceivedAt:  m.PublishTime,
		Receipt:     m.ID,
	})
}

func decodeFields(m Message) (fields, error) {
	data, err := m.body()
	if err != nil {
		return fields{}, err
	}
	ct, binary := m.contentType(), m.Attributes[attrType] != ""
	switch {
	case isCloudEvents(ct) && mediaType(ct) == "application/cloudevents+json":
		return structured(data)
	case binary:
		return fromAttributes(m, data)
	case isCloudEvents(ct):
		return fields{}, refuse(CodeBadEncoding, "event format %q is not known", clip(ct))
	case len(bytes.TrimSpace(data)) == 0:
		return fields{}, refuse(CodeEmpty, "message has neither data nor a %s attribute", attrType)
	default:
		return structured(data)
	}
}

func mediaType(ct string) string {
	mt, _, err := mime.ParseMediaType(ct)
	if err != nil {
		mt, _, _ = strings.Cut(strings.ToLower(ct), ";")
	}
	return strings.TrimSpace(mt)
}

func isCloudEvents(ct string) bool {
	return strings.HasPrefix(mediaType(ct), "application/cloudevents")
}

// fromAttributes reads binary mode.
func fromAttributes(m Message, data []byte) (fields, error) {
	a := m.Attributes
	if err := checkSpecVersion(a[attrSpecVersion]); err != nil {
		return fields{}, err
	}
	return fields{
		id: a[attrID], typ: a[attrType], source: a[attrSource], subject: a[attrSubject],
		contentType: m.contentType(), time: a[attrTime], data: data,
	}, nil
}

func checkSpecVersion(v string) error {
	if v == "" || v == "1" || strings.HasPrefix(v, "1.") {
		return nil
	}
	return refuse(CodeBadSpecVersion, "CloudEvents version %q is not 1.x", clip(v))
}

// fill takes tenant and ordering key from the attributes where the event itself
// does not say.
func (f *fields) fill(a map[string]string) error {
	for _, name := range []string{attrTenant, attrCETenant} {
		t := a[name]
		if t != "" && f.tenant != "" && t != f.tenant {
			return refuse(CodeBadTenant, "event says tenant %q, attribute %s says %q", clip(f.tenant), name, clip(t))
		}
		if f.tenant == "" {
			f.tenant = t
		}
	}
	for _, name := range []string{attrOrdering, attrCEOrdering} {
		if f.ordering == "" {
			f.ordering = a[name]
		}
	}
	return nil
}

// structured reads a JSON object: a structured CloudEvent or the plain envelope,
// which differ in nothing but specversion.
func structured(doc []byte) (fields, error) {
	members, err := object(doc)
	if err != nil {
		return fields{}, err
	}
	var f fields
	var version, timestamp, ordering string
	for _, s := range []struct {
		name string
		into *string
		code Code
	}{
		{"specversion", &version, CodeBadSpecVersion},
		{"type", &f.typ, CodeBadType},
		{"id", &f.id, CodeBadID},
		{"tenant", &f.tenant, CodeBadTenant},
		{"source", &f.source, CodeBadSource},
		{"subject", &f.subject, CodeBadField},
		{"ordering_key", &f.ordering, CodeBadField},
		{"orderingkey", &ordering, CodeBadField},
		{"datacontenttype", &f.contentType, CodeBadField},
	} {
		if *s.into, err = text(members[s.name], s.name, s.code); err != nil {
			return fields{}, err
		}
	}
	if err := checkSpecVersion(version); err != nil {
		return fields{}, err
	}
	if f.ordering == "" {
		f.ordering = ordering
	}
	// Times are read leniently: whatever is no string is no time.
	f.time, _ = text(members["time"], "time", CodeBadField)
	if timestamp, _ = text(members["timestamp"], "timestamp", CodeBadField); f.time == "" {
		f.time = timestamp
	}
	return f, f.payload(members)
}

// payload takes the event's payload and media type from the members of a
// structured event.
func (f *fields) payload(members map[string]json.RawMessage) error {
	data, plainData := members["data"]
	encoded, base64Data := members["data_base64"]
	switch {
	case plainData && base64Data:
		return refuse(CodeBadJSON, "both data and data_base64 are given")
	case base64Data:
		s, err := text(encoded, "data_base64", CodeBadEncoding)
		if err != nil {
			return err
		}
		if f.data, err = base64.StdEncoding.DecodeString(s); err != nil {
			return refuse(CodeBadEncoding, "data_base64: %v", err)
		}
		return nil
	case !plainData:
		return nil
	}
	if f.contentType == "" {
		f.contentType = "application/json"
	}
	f.data = data
	if data[0] != '"' || isJSON(f.contentType) {
		return nil
	}
	s, err := text(data, "data", CodeBadEncoding)
	f.data = []byte(s)
	return err
}

// isJSON reports whether the media type declares JSON.
func isJSON(ct string) bool {
	mt := mediaType(ct)
	_, sub, _ := strings.Cut(mt, "/")
	return sub == "json" || strings.HasSuffix(sub, "+json")
}

// known are the members that may stand in an object only once.
var known = map[string]bool{
	"specversion": true, "type": true, "id": true, "tenant": true, "source": true, "subject": true,
	"ordering_key": true, "orderingkey": true, "datacontenttype": true, "time": true, "timestamp": true,
	"data": true, "data_base64": true,
}

// object reads one JSON object into the exact bytes of its known members. Names
// are matched exactly, unlike encoding/json does with structs.
func object(doc []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, refuse(CodeBadJSON, "data is not a JSON object")
	}
	members := make(map[string]json.RawMessage, len(known))
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, refuse(CodeBadJSON, "%v", jsonFault(err))
		}
		name := t.(string) // within an object the decoder yields nothing else here
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, refuse(CodeBadJSON, "%v", jsonFault(err))
		}
		if !known[name] {
			continue
		}
		if _, twice := members[name]; twice {
			return nil, refuse(CodeBadJSON, "member %q is given twice", name)
		}
		members[name] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, refuse(CodeBadJSON, "%v", jsonFault(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, refuse(CodeBadJSON, "something follows the JSON object")
	}
	return members, nil
}

func jsonFault(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// text reads a JSON string; an absent member and null give "". A string that
// encoding/json would have to repair is refused.
func text(raw json.RawMessage, name string, code Code) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	if raw[0] != '"' {
		return "", refuse(code, "%s is not a string", name)
	}
	if !utf8.Valid(raw) {
		return "", refuse(CodeBadEncoding, "%s is not valid UTF-8", name)
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", refuse(code, "%s: %v", name, err)
	}
	if strings.ContainsRune(s, utf8.RuneError) && !bytes.Contains(raw, []byte(string(utf8.RuneError))) &&
		!bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`)) {
		return "", refuse(CodeBadEncoding, "%s holds half a surrogate pair", name)
	}
	return s, nil
}
