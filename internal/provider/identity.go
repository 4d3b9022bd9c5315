package provider

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sealpost/sealpost/internal/webhook"
)

// place is where something about an event is found: a header, a value of a JSON
// body, or a part of the signature.
type place struct {
	header     string
	body       path
	signedID   bool
	signedTime bool
	bodyHash   bool // the body alone, for providers that date each retry anew
	arrival    bool // our own time and the body: equal bodies are different events
}

func inHeader(name string) place { return place{header: name} }

// inBody names a value of a JSON body by its object keys.
func inBody(keys ...string) place { return place{body: keys} }

func (p place) String() string {
	switch {
	case p.header != "":
		return "header " + p.header
	case p.signedID:
		return "signed id"
	case p.signedTime:
		return "signed timestamp"
	case p.bodyHash:
		return "hash of the body"
	case p.arrival:
		return "each request its own"
	}
	return "body " + strings.Join(p.body, ".")
}

// Kept headers: one value and all of them together, in bytes. Longer ones are
// dropped, since they are no headers that a provider sends.
const (
	maxKeptHeader  = 4 << 10
	maxKeptHeaders = 16 << 10
)

// identity reads who the event is from an authentic request.
func (s *Scheme) identity(m *message, c content) (Identity, *Refusal) {
	var values picked
	if len(s.paths) > 0 {
		values = pick(m.req.Body, s.paths...)
	}
	raw := values[:]
	next := func(p place) []byte {
		if p.body == nil {
			return nil
		}
		v := raw[0]
		raw = raw[1:]
		return v
	}
	var id Identity
	for _, p := range s.id {
		value := next(p)
		if id.ID != "" && p.header == "" {
			continue
		}
		text, err := m.read(p, scalar(value)) // a header read in vain is still checked for being one
		if err != nil {
			return id, err
		}
		if id.ID == "" && text != "" {
			id.UnsignedID = p.header != "" && s.SignsBodyOnly()
		}
		id.ID = first(id.ID, text)
	}
	for _, p := range s.typ {
		text, err := m.read(p, str(next(p)))
		if err != nil {
			return id, err
		}
		id.Type = first(id.Type, text)
	}
	for _, p := range s.at {
		text, err := m.read(p, scalar(next(p)))
		if err != nil {
			return id, err
		}
		if id.OccurredAt.IsZero() {
			id.OccurredAt = m.time(p, text)
		}
	}
	if s.identify != nil {
		s.identify(m, &id)
	}
	id.Confirm = m.confirm
	if id.ID == "" {
		id.ID = c.sum()
	}
	id.ID = webhook.CanonicalID(id.ID)
	id.Type = cleanType(first(id.Type, s.name+".unknown"))
	id.Headers = m.keep(s.kept)
	if _, query, ok := strings.Cut(m.req.URL, "?"); ok && m.req.Method == http.MethodGet && s.NeedsURL() {
		// All that such an event says stands in the query, which is signed.
		if len(query) > maxKeptHeader {
			return id, refuse(BadBody, "the query has %d bytes, at most %d can be kept", len(query), maxKeptHeader)
		}
		id.Headers = append(id.Headers, webhook.Header{Name: QueryHeader, Value: query})
	}
	return id, nil
}

// QueryHeader is the name under which the query of an authentic GET is kept, where
// the provider signs the URL and may send an event so.
const QueryHeader = "Sealpost-Query"

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// read gives a place's text: that of the body is passed in.
func (m *message) read(p place, body string) (string, *Refusal) {
	switch {
	case p.signedID:
		return m.id, nil
	case p.header != "":
		return m.header(p.header)
	case p.bodyHash:
		return content{body: m.req.Body}.sum(), nil
	case p.arrival:
		return m.now.UTC().Format(time.RFC3339Nano) + "/" + content{body: m.req.Body}.sum()[len("sha256:"):][:32], nil
	}
	return body, nil
}

// time reads a provider's time: Unix seconds, with a fraction or not, Unix
// milliseconds (beyond the year 10680, read as seconds) or RFC 3339. Anything else
// is none; an event is not refused for it.
func (m *message) time(p place, text string) time.Time {
	if p.signedTime {
		return m.at
	}
	whole, _, _ := strings.Cut(text, ".")
	if n, ok := canonicalInt(whole); ok && n > 0 {
		if n < 1<<38 {
			return time.Unix(n, 0).UTC()
		}
		return time.UnixMilli(n).UTC()
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// keep copies the wanted headers, in the order of their names.
func (m *message) keep(names []string) []webhook.Header {
	var kept []webhook.Header
	total := 0
	for name, values := range m.req.Header {
		if !slices.ContainsFunc(names, func(want string) bool {
			prefix, wild := strings.CutSuffix(want, "*")
			return name == want || (wild && strings.HasPrefix(name, prefix))
		}) {
			continue
		}
		for _, v := range values {
			if len(v) <= maxKeptHeader {
				kept = append(kept, webhook.Header{Name: name, Value: v})
			}
		}
	}
	slices.SortStableFunc(kept, func(a, b webhook.Header) int { return strings.Compare(a.Name, b.Name) })
	for i, h := range kept {
		if total += len(h.Name) + len(h.Value); total > maxKeptHeaders {
			return kept[:i]
		}
	}
	return kept
}

// cleanType makes a text a valid event type.
func cleanType(s string) string {
	if webhook.ValidType(s) == nil {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if r == '*' || r == utf8.RuneError || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, s)
	if len(s) <= webhook.MaxTypeBytes {
		return s
	}
	cut := webhook.MaxTypeBytes
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}

// slackType names Slack's requests. Events are called by the inner event's type;
// interactions by the type in their payload; slash commands "slash_command".
// https://docs.slack.dev/apis/events-api/ and
// https://docs.slack.dev/interactivity/handling-user-interaction
func slackType(m *message, id *Identity) {
	values := pick(m.req.Body, path{"type"}, path{"event", "type"})
	switch kind := str(values[0]); {
	case kind == "event_callback":
		id.Type = first(str(values[1]), kind)
	case kind != "":
		id.Type = kind
	default:
		if payload := formValue(m.req.Body, "payload"); payload != "" {
			id.Type = str(pick([]byte(payload), path{"type"})[0])
		} else if formValue(m.req.Body, "command") != "" {
			id.Type = "slash_command"
		}
	}
}

// formValue reads one field of a form body without parsing the others. A field
// that occurs twice counts as absent.
func formValue(body []byte, name string) string {
	work(len(body))
	found, value := 0, ""
	for pair := range strings.SplitSeq(string(body), "&") {
		if text, ok := strings.CutPrefix(pair, name); ok && strings.HasPrefix(text, "=") {
			found++
			value = text[1:]
		}
	}
	if found != 1 {
		return ""
	}
	text, err := url.QueryUnescape(value)
	if err != nil {
		return ""
	}
	return text
}
