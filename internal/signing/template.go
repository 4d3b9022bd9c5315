package signing

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Template is the value of a signature header in another scheme's form, for
// receivers that verify that one still. Its text holds, besides itself:
//
//	{id}            the webhook-id
//	{timestamp}     seconds since 1970, the same as in webhook-timestamp
//	{timestamp_ms}  milliseconds since 1970
//	{HASH_FORM:…}   the HMAC of what follows the colon, in which {body} stands for the
//	                exact bytes of the body and the three above may stand as well.
//	                HASH is hmac_sha256, hmac_sha1, hmac_sha384 or hmac_sha512; FORM
//	                is hex (lower case), base64 or base64url (without padding)
//	[…]             what is inside, once for every valid secret, newest first
//	{{ }} [[ ]]     these characters themselves; within a signature } always ends it,
//	                and within brackets ] always ends them
//
// Outside of brackets a signature is made with the oldest secret that is valid, so
// that after a rotation receivers have all of the overlap to change over before a
// header with one signature in it changes; inside of brackets, with each. Every
// signature must cover the body, and there must be one.
//
// The zero Template is none. Templates are parsed when they are saved; what
// [ParseTemplate] took cannot fail later.
type Template struct {
	text  string
	parts []part
}

// part is a piece of a template.
type part struct {
	literal string
	field   string // id, timestamp, timestamp_ms or body
	mac     *macPart
	repeat  []part // of […]
}

type macPart struct {
	hash    func() hash.Hash
	encode  func([]byte) string
	content []part
}

const maxTemplate = 512

// The hashes and forms of a template's signatures. SHA-1 is not broken as the hash of
// an HMAC (RFC 6194), and old schemes use it.
var (
	templateHashes = map[string]func() hash.Hash{"hmac_sha256": sha256.New, "hmac_sha1": sha1.New, "hmac_sha384": sha512.New384, "hmac_sha512": sha512.New}
	templateForms  = map[string]func([]byte) string{
		"hex": hex.EncodeToString, "base64": base64.StdEncoding.EncodeToString, "base64url": base64.RawURLEncoding.EncodeToString,
	}
)

// ParseTemplate reads a template's text, 1 to 512 bytes of visible ASCII and single
// spaces. Its errors say at which byte, counted from 1, what is wrong.
func ParseTemplate(text string) (Template, error) {
	if text == "" || len(text) > maxTemplate {
		return Template{}, fmt.Errorf("signature template of %d bytes: must have 1 to %d", len(text), maxTemplate)
	}
	if strings.TrimSpace(text) != text {
		return Template{}, errors.New("signature template: has white space around it")
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' {
			return Template{}, fmt.Errorf("signature template: byte %d is not visible ASCII or a space", i+1)
		}
	}
	p := &templateParser{text: text}
	parts, err := p.parse("")
	if err == nil && p.signatures == 0 {
		err = errors.New("holds no signature, such as {hmac_sha256_hex:{body}}")
	}
	if err != nil {
		return Template{}, fmt.Errorf("signature template: %w", err)
	}
	return Template{text, parts}, nil
}

// String is the template's text.
func (t Template) String() string { return t.text }

type templateParser struct {
	text       string
	at         int
	signatures int
	covers     bool // the signature being read covers the body
	inMAC      bool
	inRepeat   bool
}

// parse reads up to the closing bracket or brace, which it consumes; "" is the end of
// the text.
func (p *templateParser) parse(closing string) ([]part, error) {
	var parts []part
	for p.at < len(p.text) {
		rest := p.text[p.at:]
		if closing != "" && rest[:1] == closing {
			p.at++
			return parts, nil
		}
		switch {
		case strings.IndexByte("{}[]", rest[0]) < 0:
			parts = literal(parts, rest[:1])
			p.at++
		case len(rest) > 1 && rest[1] == rest[0]:
			parts = literal(parts, rest[:1])
			p.at += 2
		case rest[0] == '{':
			one, err := p.braces()
			if err != nil {
				return nil, err
			}
			parts = append(parts, one)
		case rest[0] == '[' && !p.inRepeat && !p.inMAC:
			one, err := p.brackets()
			if err != nil {
				return nil, err
			}
			parts = append(parts, one)
		default:
			return nil, fmt.Errorf("byte %d: %q has no place here; write %q for the character itself", p.at+1, rest[:1], rest[:1]+rest[:1])
		}
	}
	if closing != "" {
		return nil, fmt.Errorf("byte %d: the text ends where a %q is missing", len(p.text)+1, closing)
	}
	return parts, nil
}

// literal adds a character to the end of parts.
func literal(parts []part, c string) []part {
	if n := len(parts); n > 0 && parts[n-1].literal != "" {
		parts[n-1].literal += c
		return parts
	}
	return append(parts, part{literal: c})
}

func (p *templateParser) brackets() (part, error) {
	start, before := p.at, p.signatures
	p.at++
	p.inRepeat = true
	parts, err := p.parse("]")
	p.inRepeat = false
	if err == nil && p.signatures == before {
		err = fmt.Errorf("byte %d: there is no signature within the brackets", start+1)
	}
	return part{repeat: parts}, err
}

// braces reads a field or a signature.
func (p *templateParser) braces() (part, error) {
	start := p.at
	p.at++
	end := strings.IndexAny(p.text[p.at:], ":{}[]")
	if end < 0 {
		return part{}, fmt.Errorf("byte %d: the brace is not closed", start+1)
	}
	name := p.text[p.at : p.at+end]
	p.at += end
	switch p.text[p.at] {
	case '}':
		p.at++
		return p.field(name, start)
	case ':':
		p.at++
		return p.mac(name, start)
	}
	return part{}, fmt.Errorf("byte %d: %q has no place in a name", p.at+1, p.text[p.at:p.at+1])
}

func (p *templateParser) field(name string, start int) (part, error) {
	switch {
	case name == "body" && !p.inMAC:
		return part{}, fmt.Errorf("byte %d: {body} stands only within a signature, such as {hmac_sha256_hex:{body}}", start+1)
	case name == "body":
		p.covers = true
	case name != "id" && name != "timestamp" && name != "timestamp_ms":
		return part{}, fmt.Errorf("byte %d: there is no {%s}; there are id, timestamp, timestamp_ms and, within a signature, body", start+1, name)
	}
	return part{field: name}, nil
}

func (p *templateParser) mac(name string, start int) (part, error) {
	cut := strings.LastIndexByte(name, '_')
	var m macPart
	if cut > 0 {
		m.hash, m.encode = templateHashes[name[:cut]], templateForms[name[cut+1:]]
	}
	if m.hash == nil || m.encode == nil {
		return part{}, fmt.Errorf("byte %d: there is no {%s:…}; there are %s, each with one of %s", start+1, name,
			strings.Join(sorted(templateHashes), ", "), "_"+strings.Join(sorted(templateForms), ", _"))
	}
	if p.inMAC {
		return part{}, fmt.Errorf("byte %d: a signature within a signature", start+1)
	}
	p.inMAC, p.covers = true, false
	content, err := p.parse("}")
	p.inMAC = false
	if err == nil && !p.covers {
		err = fmt.Errorf("byte %d: the signature does not cover the {body}", start+1)
	}
	m.content = content
	p.signatures++
	return part{mac: &m}, err
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// LegacySecret is a secret of another scheme: the bytes of a text as it is, whatever
// it looks like. Templates sign with it. The zero LegacySecret signs nothing.
type LegacySecret struct {
	text func() string // see Secret
}

const (
	minLegacy = 8
	maxLegacy = 512
)

// ParseLegacySecret takes 8 to 512 bytes of visible ASCII, with spaces inside, as they
// are. A text like "whsec_…" is taken whole, as Stripe's libraries do. Errors never
// repeat the text.
func ParseLegacySecret(text string) (LegacySecret, error) {
	if len(text) < minLegacy || len(text) > maxLegacy {
		return LegacySecret{}, fmt.Errorf("legacy secret: %d bytes, must be %d to %d", len(text), minLegacy, maxLegacy)
	}
	if strings.TrimSpace(text) != text {
		return LegacySecret{}, errors.New("legacy secret: has white space around it")
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return LegacySecret{}, fmt.Errorf("legacy secret: byte %d is not visible ASCII or a space", i+1)
		}
	}
	return LegacySecret{hidden(text)}, nil
}

// Reveal returns the text. Everything else hides it.
func (s LegacySecret) Reveal() string {
	if s.IsZero() {
		return ""
	}
	return s.text()
}

// IsZero reports whether s is the zero LegacySecret.
func (s LegacySecret) IsZero() bool { return s.text == nil }

// String returns a fixed text without the secret.
func (s LegacySecret) String() string { return redacted }

// Format prints what String returns, whatever the verb.
func (s LegacySecret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText returns what String returns; it cannot be read back.
func (s LegacySecret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue returns what String returns.
func (s LegacySecret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MACKey is what a template can sign with: a [LegacySecret], whose key is its text,
// or a [Secret], whose key is the bytes that its base64 stands for.
type MACKey interface {
	macKey() []byte
}

func (s LegacySecret) macKey() []byte { return []byte(s.Reveal()) }

func (s Secret) macKey() []byte {
	if s.IsZero() {
		return nil
	}
	return s.key()
}

// Sign returns the header's value for a message. keys are those that are valid,
// newest first; none, an empty one, or an id that [Sign] would refuse is an error.
func (t Template) Sign(id string, ts time.Time, body []byte, keys ...MACKey) (string, error) {
	if len(t.parts) == 0 {
		return "", errors.New("sign with a template: it is empty")
	}
	if _, err := signedPrefix(id, ts); err != nil {
		return "", err
	}
	if len(keys) == 0 || slices.ContainsFunc(keys, func(k MACKey) bool { return len(k.macKey()) == 0 }) {
		return "", fmt.Errorf("sign %s with a template: no key", id)
	}
	m := message{id, ts, body}
	var b strings.Builder
	for _, p := range t.parts {
		if p.repeat == nil {
			m.write(&b, p, keys[len(keys)-1])
			continue
		}
		for _, k := range keys {
			for _, inner := range p.repeat {
				m.write(&b, inner, k)
			}
		}
	}
	return b.String(), nil
}

// SetHeader signs as [Template.Sign] does and sets the named header in h. After an
// error h is as it was.
func (t Template) SetHeader(h http.Header, name, id string, ts time.Time, body []byte, keys ...MACKey) error {
	v, err := t.Sign(id, ts, body, keys...)
	if err == nil {
		h.Set(name, v)
	}
	return err
}

type message struct {
	id   string
	ts   time.Time
	body []byte
}

func (m message) write(b *strings.Builder, p part, k MACKey) {
	if p.mac == nil {
		b.WriteString(p.literal)
		b.Write(m.field(p.field))
		return
	}
	mac := hmac.New(p.mac.hash, k.macKey())
	for _, c := range p.mac.content {
		mac.Write([]byte(c.literal))
		mac.Write(m.field(c.field))
	}
	b.WriteString(p.mac.encode(mac.Sum(nil)))
}

func (m message) field(name string) []byte {
	switch name {
	case "id":
		return []byte(m.id)
	case "timestamp":
		return strconv.AppendInt(nil, m.ts.Unix(), 10)
	case "timestamp_ms":
		return strconv.AppendInt(nil, m.ts.UnixMilli(), 10)
	case "body":
		return m.body
	}
	return nil
}
