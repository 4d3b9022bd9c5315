package deliver

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Body is what an endpoint is sent of an event.
type Body struct {
	Bytes       []byte
	ContentType string
}

// Media types of the bodies that Sealpost makes.
const (
	typeJSON       = "application/json"
	typeCloudEvent = "application/cloudevents+json; charset=utf-8"
)

// MakeBody makes the body of an event in a payload mode; [webhook.PayloadDefault] is
// raw for events of configured inbound sources and wrapped for published ones. It
// depends on nothing but its arguments, so that every attempt and every replay sends
// the same bytes. An error is an unknown mode.
//
// The publisher's bytes are never re-encoded: where the payload is JSON (declared or
// undeclared, one value of RFC 8259, in UTF-8) they are embedded as they are, white
// space, order and spelling included. Text in UTF-8 becomes a JSON string, anything
// else base64 in data_base64, as in CloudEvents' JSON format
// (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md).
//
//   - wrapped: {"type","timestamp","id","sequence","content_type","data" or
//     "data_base64"}. timestamp is the publisher's time, or else that of receipt;
//     sequence is there with an ordering key, content_type where data is not JSON. An
//     event without payload has data null.
//   - raw: the publisher's bytes and content type.
//   - thin: {"type","timestamp","id","sequence","data":{"id","url"}}. The URL gives the
//     exact bytes to whoever may read the tenant's events; it is left out without a base.
//   - cloudevents: a structured CloudEvent 1.0 under the publisher's own id and source.
//
// base is the console's base URL without a slash at its end; it may be empty. ev is
// not changed, and Bytes is ev.Body itself in mode raw.
func MakeBody(mode webhook.PayloadMode, ev *webhook.Event, base string) (Body, error) {
	switch effective(mode, ev) {
	case webhook.PayloadRaw:
		return Body{ev.Body, or(ev.ContentType, typeJSON)}, nil
	case webhook.PayloadWrapped:
		return Body{wrapped(ev), typeJSON}, nil
	case webhook.PayloadThin:
		return Body{thin(ev, base), typeJSON}, nil
	case webhook.PayloadCloudEvents:
		return Body{cloudEvent(ev), typeCloudEvent}, nil
	}
	return Body{}, fmt.Errorf("payload mode %q is none of wrapped, raw, thin and cloudevents", mode)
}

func effective(mode webhook.PayloadMode, ev *webhook.Event) webhook.PayloadMode {
	switch {
	case mode != webhook.PayloadDefault:
		return mode
	case webhook.ProviderSource(ev.Source):
		return webhook.PayloadRaw
	}
	return webhook.PayloadWrapped
}

// footprint is the most memory that an attempt needs for its body, in bytes: the
// payload, and what is made of it.
func footprint(mode webhook.PayloadMode, ev *webhook.Event, size int64) int64 {
	switch effective(mode, ev) {
	case webhook.PayloadWrapped, webhook.PayloadCloudEvents:
		if media, _ := mediaOf(ev.ContentType); isText(media) {
			return size + size*longestEscape + envelopeRoom
		}
		return size + size/3*4 + envelopeRoom
	}
	return size
}

// longestEscape is how many bytes of a JSON string one byte of text may need.
const longestEscape = 6 // \u0001

// envelopeRoom is more than all of an envelope but its data.
const envelopeRoom = 16 << 10

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// occurred is the event's time in an envelope.
func occurred(ev *webhook.Event) string {
	at := ev.OccurredAt
	if at.IsZero() {
		at = ev.ReceivedAt
	}
	return at.UTC().Format(time.RFC3339Nano)
}

// envelope writes a JSON object member by member, around bytes that it does not
// touch.
type envelope struct{ b []byte }

func newEnvelope(size int) *envelope { return &envelope{append(make([]byte, 0, size), '{')} }

func (e *envelope) name(name string) {
	if len(e.b) > 1 {
		e.b = append(e.b, ',')
	}
	e.b = append(append(append(e.b, '"'), name...), '"', ':')
}

func (e *envelope) raw(name string, value []byte) {
	e.name(name)
	e.b = append(e.b, value...)
}

func (e *envelope) text(name, value string) {
	e.name(name)
	e.b = appendText(e.b, value)
}

// optional leaves an empty value out.
func (e *envelope) optional(name, value string) {
	if value != "" {
		e.text(name, value)
	}
}

func (e *envelope) end() []byte { return append(e.b, '}') }

// appendText appends s as a JSON string that holds all of s, which is UTF-8; only
// what JSON wants escaped is.
func appendText[T string | []byte](b []byte, s T) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(b, s[start:]...), '"')
}

// form is how a payload stands in an envelope.
type form int

const (
	formNone   form = iota // there is none
	formJSON               // as it is
	formText               // as a JSON string
	formBinary             // as base64
)

func formOf(ev *webhook.Event) form {
	media, charset := mediaOf(ev.ContentType)
	switch {
	case len(ev.Body) == 0:
		return formNone
	case !utf8.Valid(ev.Body):
		return formBinary
	case isJSON(media):
		// A media type that lies is no reason to send a broken envelope.
		if json.Valid(ev.Body) {
			return formJSON
		}
	case isText(media) && (charset == "" || charset == "utf-8" || charset == "us-ascii"):
		return formText
	}
	return formBinary
}

// mediaOf is a content type's media type and charset in lower case. What is not given
// is JSON, as CloudEvents has it.
func mediaOf(contentType string) (media, charset string) {
	if strings.TrimSpace(contentType) == "" {
		return typeJSON, ""
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		media, _, _ = strings.Cut(contentType, ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	return media, strings.ToLower(params["charset"])
}

func isJSON(media string) bool {
	_, sub, _ := strings.Cut(media, "/")
	return sub == "json" || strings.HasSuffix(sub, "+json")
}

func isText(media string) bool {
	return strings.HasPrefix(media, "text/") || media == "application/xml" || strings.HasSuffix(media, "+xml") ||
		media == "application/x-www-form-urlencoded"
}

// data adds the payload; without one, nothing.
func (e *envelope) data(ev *webhook.Event) {
	switch formOf(ev) {
	case formJSON:
		e.raw("data", ev.Body)
	case formText:
		e.name("data")
		e.b = appendText(e.b, ev.Body)
	case formBinary:
		e.name("data_base64")
		e.b = append(base64.StdEncoding.AppendEncode(append(e.b, '"'), ev.Body), '"')
	}
}

// standard begins an envelope with what Standard Webhooks has in every payload, and
// what repeats and reversed order are told by.
func standard(ev *webhook.Event, size int) *envelope {
	e := newEnvelope(size)
	e.text("type", ev.Type)
	e.text("timestamp", occurred(ev))
	e.text("id", ev.Key.ID())
	if ev.OrderingKey != "" && ev.Sequence > 0 {
		e.raw("sequence", strconv.AppendInt(nil, ev.Sequence, 10))
	}
	return e
}

func wrapped(ev *webhook.Event) []byte {
	f := formOf(ev)
	e := standard(ev, room(ev, f))
	switch f {
	case formText, formBinary:
		e.optional("content_type", printable(ev.ContentType))
	case formNone:
		e.raw("data", []byte("null"))
		return e.end()
	}
	e.data(ev)
	return e.end()
}

// room is the size of an envelope around the payload: growing it would take twice the
// memory.
func room(ev *webhook.Event, f form) int {
	frame := 1024 + 3*(len(ev.PublisherID)+len(ev.Source)+len(ev.Type)+len(ev.Subject)+len(ev.ContentType)+len(ev.OrderingKey))
	switch f {
	case formBinary:
		return base64.StdEncoding.EncodedLen(len(ev.Body)) + frame
	case formText:
		n := len(ev.Body)
		for _, c := range ev.Body {
			n += escape(c)
		}
		return n + frame
	}
	return len(ev.Body) + frame
}

// escape is how many bytes more than one a byte of text needs in a JSON string.
func escape(c byte) int {
	switch {
	case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
		return 1
	case c < ' ':
		return longestEscape - 1
	}
	return 0
}

func thin(ev *webhook.Event, base string) []byte {
	data := newEnvelope(256)
	data.text("id", ev.Key.ID())
	if base != "" {
		data.text("url", base+"/v1/events/"+ev.Key.ID()+"/payload")
	}
	e := standard(ev, 512)
	e.raw("data", data.end())
	return e.end()
}

// Sources of events that carry no CloudEvents source of their own: URIs that no
// publisher writes by chance, since id and source together must be unique.
const (
	sourceApp     = "urn:sealpost:app"
	sourceInbound = "urn:sealpost:in:" // and the name of the configured source
)

// ceSource is the event's CloudEvents source, a URI reference.
func ceSource(ev *webhook.Event) string {
	if webhook.ProviderSource(ev.Source) {
		return sourceInbound + ev.Source
	}
	own, ok := strings.CutPrefix(ev.Source, webhook.SourceApp+":")
	if !ok || own == "" {
		return sourceApp
	}
	if _, err := url.Parse(own); err != nil || strings.ContainsAny(own, " <>\"{}|\\^`") || !ascii(own) {
		return escapeURI(own)
	}
	return own
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// escapeURI percent-encodes every byte that no URI holds (RFC 3986 section 2) and a
// percent sign that begins no escape; a colon too, where it would end something that
// is no scheme.
func escapeURI(s string) string {
	const legal = "-._~:/?#[]@!$&'()*+,;=%"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(legal, c) >= 0
		if plain && c != '%' && c != ':' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// cloudEvent is the event in CloudEvents' JSON format. The extension attributes are
// sealpostid (the webhook-id), orderingkey and sequence (digits, so many that they
// sort as text does, as the sequence extension wants).
func cloudEvent(ev *webhook.Event) []byte {
	e := newEnvelope(room(ev, formOf(ev)))
	e.text("specversion", "1.0")
	e.text("id", printable(ev.PublisherID))
	e.text("source", ceSource(ev))
	e.text("type", printable(ev.Type))
	e.text("time", occurred(ev))
	e.optional("subject", printable(ev.Subject))
	// Without one JSON is meant, which these bytes are not.
	media := printable(ev.ContentType)
	if media == "" && formOf(ev) == formBinary {
		media = "application/octet-stream"
	}
	e.optional("datacontenttype", media)
	for _, x := range extensions(ev) {
		e.text(x.Name, x.Value)
	}
	e.data(ev)
	return e.end()
}

// extensions are an event's CloudEvents extension attributes: names of lower-case
// letters and digits, at most 20.
func extensions(ev *webhook.Event) []webhook.Header {
	out := []webhook.Header{{Name: "sealpostid", Value: ev.Key.ID()}}
	if ev.OrderingKey != "" {
		out = append(out, webhook.Header{Name: "orderingkey", Value: printable(ev.OrderingKey)})
		if ev.Sequence > 0 {
			out = append(out, webhook.Header{Name: "sequence", Value: fmt.Sprintf("%020d", ev.Sequence)})
		}
	}
	return out
}

// printable makes what a provider sent a legal CloudEvents string: without control
// characters, surrogates and noncharacters (spec section 3.1). What the bus takes is
// legal already but for rare noncharacters.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r <= 0x9f || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
