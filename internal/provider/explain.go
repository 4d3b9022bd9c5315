package provider

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Explanation is why one captured request was refused, for people.
type Explanation struct {
	Reason Reason // empty if the request is authentic
	// Summary says what happened, Causes what was found to be behind it: each
	// cause was tested, not guessed. Neither shows a secret.
	Summary string
	Causes  []string
}

// Explain verifies a request once more and, if it is refused, looks for the
// cause: a secret read the wrong way, another endpoint's secret, a body that was
// changed on its way, a signature in another encoding, a header of a weaker
// scheme. It tries a bounded number of hypotheses, each linear in the body; it
// belongs in tools, never in the receiver.
func Explain(s *Scheme, r Request, secrets, others []Secret, now time.Time) Explanation {
	_, err := s.Verify(r, secrets, now)
	if err == nil {
		return Explanation{Summary: "authentic, fresh and unambiguous"}
	}
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return Explanation{Summary: err.Error()}
	}
	x := Explanation{Reason: refusal.Reason, Summary: refusal.Detail}
	switch refusal.Reason {
	case MissingSignature:
		x.Causes = s.explainMissing(r)
	case Malformed:
		x.Causes = s.explainMalformed(r, secrets)
	case Mismatch:
		x.Causes = s.explainMismatch(r, secrets, others)
	case Ambiguous:
		x.Causes = []string{"what is verified and what is used later could differ: a proxy or the sender repeated a header or parameter; find out which and send one"}
	case Stale:
		x.Causes = []string{"the signature itself is good: the request was held back, replayed or captured earlier, or this machine's clock is ahead"}
	case Future:
		x.Causes = []string{"the signature itself is good: this machine's clock is behind the sender's, or the sender writes milliseconds where seconds are due"}
	case NoSecret:
		x.Causes = []string{"correct the source's secret; nothing is accepted without one"}
	}
	return x
}

func (s *Scheme) explainMissing(r Request) []string {
	var causes []string
	own := s.headers
	if len(own) == 0 {
		own = []headers{{}}
	}
	for _, name := range s.legacy {
		if r.Header.Get(name) != "" {
			causes = append(causes, fmt.Sprintf("the weaker header %s is present, and is not enough: have the sender use %s", name, own[0].signature))
		}
	}
	for _, e := range table {
		for _, h := range e.headers {
			if e.name != s.name && !slices.Contains(s.legacy, h.signature) && h.signature != "" && r.Header.Get(h.signature) != "" && canonical(h.signature) != own[0].signature {
				causes = append(causes, fmt.Sprintf("header %s is present: the request looks like scheme %s, but the source is configured as %s", h.signature, e.name, s.name))
			}
		}
	}
	for name, lines := range r.Header {
		if len(lines) == 0 || canonical(name) == name {
			continue
		}
		if want := canonical(name); slices.Contains(s.kept, want) {
			causes = append(causes, fmt.Sprintf("header %s is under the key %q, which is not its canonical form", want, name))
		}
	}
	if len(causes) == 0 {
		causes = append(causes, "no known signature header is present: a proxy may remove it, or the sender has no secret set")
	}
	return causes
}

// explainMalformed says how a signature would be right if it were written right.
func (s *Scheme) explainMalformed(r Request, secrets []Secret) []string {
	if s.claims != nil {
		return nil
	}
	h := s.brand(&message{req: &r})
	value := strings.Trim(r.Header.Get(h.signature), " \t")
	m := message{scheme: s, req: &r, timestamp: strings.Trim(r.Header.Get(h.timestamp), " \t"), id: strings.Trim(r.Header.Get(h.id), " \t")}
	if s.clock != noClock && h.timestamp == "" {
		f, _ := s.syntax.parse(value, s.encoding) // what it found before it gave up
		m.timestamp = f.timestamp
	}
	c := s.signed.fill(&m, r.URL)
	for _, secret := range secrets {
		k, err := s.key(secret.value)
		if err != nil || k.alg.sum == nil {
			continue
		}
		for _, w := range spellings(k.alg.sum(k.bytes, c)) {
			if strings.Contains(value, w.text) {
				return []string{fmt.Sprintf("the right signature in the wrong form: the sender writes %s, scheme %s wants %s as %s", w.name, s.name, s.encoding, s.syntax)}
			}
		}
	}
	return nil
}

// spelling is a signature in an encoding that is not the scheme's.
type spelling struct{ name, text string }

func spellings(mac []byte) []spelling {
	return []spelling{
		{"upper-case hex", strings.ToUpper(hex.EncodeToString(mac))},
		{"lower-case hex", hex.EncodeToString(mac)},
		{"base64", base64.StdEncoding.EncodeToString(mac)},
		{"base64 without padding", base64.RawStdEncoding.EncodeToString(mac)},
		{"base64url", base64.URLEncoding.EncodeToString(mac)},
		{"base64url without padding", base64.RawURLEncoding.EncodeToString(mac)},
	}
}

// explainMismatch tries what is known to go wrong, one thing at a time.
func (s *Scheme) explainMismatch(r Request, secrets, others []Secret) []string {
	m := message{scheme: s, req: &r}
	if s.locate(&m) != nil {
		return nil
	}
	c := m.claims[0].contents[0]
	var causes []string
	try := func(k key, c content) bool { return claim{[]content{c}, m.claims[0].sigs}.matches(k) }
	for _, other := range others {
		if k, err := s.key(other.value); err == nil && try(k, c) {
			causes = append(causes, fmt.Sprintf("signed with the secret %s, which belongs to another endpoint or environment", other))
		}
	}
	for _, secret := range secrets {
		for _, k := range readings(secret.value, m.claims[0].sigs) {
			if try(k.key, c) {
				causes = append(causes, fmt.Sprintf("secret %s: the sender uses %s as the key", secret, k.name))
			}
		}
		k, err := s.key(secret.value)
		if err != nil || s.claims != nil || !s.signed.has["body"] || k.alg == tokenEqual {
			continue
		}
		for _, b := range bodies(r.Body) {
			changed := c
			changed.body = b.body
			if try(k, changed) {
				causes = append(causes, "the body was changed on its way: it matches "+b.name)
			}
		}
		for _, t := range s.contents(&m) {
			if try(k, t.content) {
				causes = append(causes, "the sender signs other content: it matches "+t.name)
			}
		}
	}
	if len(causes) == 0 {
		causes = append(causes, "no known mistake explains it: another secret, other content, or a forgery")
	}
	return causes
}

// reading is a secret taken for a key in another way.
type reading struct {
	name string
	key  key
}

func readings(secret []byte, sigs []candidate) []reading {
	var out []reading
	alg := hmacSHA256
	if len(sigs) > 0 && sigs[0].alg.sum != nil {
		alg = sigs[0].alg
	}
	add := func(name string, b []byte, ok bool) {
		if ok && !blank(b) {
			out = append(out, reading{name, key{alg: alg, bytes: b}})
		}
	}
	text := strings.TrimSpace(string(secret))
	bare := strings.TrimPrefix(text, "whsec_")
	add("the secret's whole text, as it stands,", secret, true)
	add("the secret without the space or line end around it", []byte(text), text != string(secret))
	add("the secret's text without whsec_", []byte(bare), bare != text)
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(bare, "="))
	add("the base64-decoded secret", b, err == nil)
	b, err = hex.DecodeString(text)
	add("the hex-decoded secret", b, err == nil)
	add("the secret with a line end after it", []byte(text+"\n"), true)
	return out
}

// body is what the body may have been before something changed it.
type body struct {
	name string
	body []byte
}

func bodies(b []byte) []body {
	var out []body
	add := func(name string, v []byte) {
		if v != nil && !bytes.Equal(v, b) {
			out = append(out, body{name, v})
		}
	}
	add("it without the line end at its end: something appended one", bytes.TrimRight(b, "\r\n"))
	add("it with a line end at its end: something stripped it", append(bytes.Clone(b), '\n'))
	lf := bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	add("it with LF line ends: something turned LF into CRLF", lf)
	add("it with CRLF line ends: something turned CRLF into LF", bytes.ReplaceAll(lf, []byte("\n"), []byte("\r\n")))
	add("it without a byte order mark: something put one before it", bytes.TrimPrefix(b, []byte("\ufeff")))
	if d, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(b))); err == nil && len(b) > 0 {
		add("it decoded from base64: a gateway passed the body as base64 text", d)
	}
	add("its base64 text: the sender signed the encoded body", []byte(base64.StdEncoding.EncodeToString(b)))
	if form, err := url.ParseQuery(string(b)); err == nil && form.Get("payload") != "" {
		add("the form's payload field: the sender signed the JSON, not the form", []byte(form.Get("payload")))
	}
	if json.Valid(b) {
		for _, v := range rewritten(b) {
			add("the same JSON written anew: something parsed and re-serialised the body (verify the bytes as received)", v)
		}
	}
	add("an empty body: something replaced it", []byte{})
	return out
}

// rewritten are the forms that common serialisers would give the same JSON.
func rewritten(b []byte) [][]byte {
	var out [][]byte
	var compact bytes.Buffer
	if json.Compact(&compact, b) == nil {
		out = append(out, bytes.Clone(compact.Bytes()))
	}
	for _, indent := range []string{"  ", "    ", "\t"} {
		var buf bytes.Buffer
		if json.Indent(&buf, b, "", indent) == nil {
			out = append(out, bytes.Clone(buf.Bytes()), append(bytes.Clone(buf.Bytes()), '\n'))
		}
	}
	spaced := bytes.ReplaceAll(bytes.ReplaceAll(compact.Bytes(), []byte(`":`), []byte(`": `)), []byte(`,"`), []byte(`, "`))
	out = append(out, spaced, bytes.ReplaceAll(compact.Bytes(), []byte("/"), []byte(`\/`)), bytes.ReplaceAll(compact.Bytes(), []byte(`\/`), []byte("/")))
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if d.Decode(&v) == nil {
		if s, err := json.Marshal(v); err == nil {
			out = append(out, s)
		}
	}
	return out
}

// otherContent is what the sender may have signed instead.
type otherContent struct {
	name    string
	content content
}

func (s *Scheme) contents(m *message) []otherContent {
	var out []otherContent
	for _, text := range []string{"{body}", "{timestamp}.{body}", "{timestamp}:{body}", "{timestamp}{body}", "v0:{timestamp}:{body}", "{url}{body}", "{id}.{timestamp}.{body}"} {
		t, err := parseTemplate(text)
		if err != nil || text == s.content || (t.has["id"] && m.id == "") || (t.has["timestamp"] && m.timestamp == "") || (t.has["url"] && m.req.URL == "") {
			continue
		}
		out = append(out, otherContent{text, t.fill(m, m.req.URL)})
	}
	return out
}
