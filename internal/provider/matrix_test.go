package provider

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// anyBodies are what a body may be, JSON or not.
var anyBodies = []struct {
	name, text string
	json       bool
}{
	{"emoji", `{"text":"🎉 naïve – 中文"}`, true},
	{"escaped emoji", `{"text":"\ud83c\udf89"}`, true},
	{"lone surrogate", `{"text":"\ud83c"}`, true},
	{"big number", `{"n":12345678901234567890123}`, true},
	{"float", `{"n":1.0}`, true},
	{"escaped slash", `{"u":"https:\/\/h.example\/"}`, true},
	{"line ends", "{\r\n\t\"a\": 1\r\n}\r\n", true},
	{"key twice", `{"a":1,"a":2}`, true},
	{"NUL escaped", `{"a":"\u0000"}`, true},
	{"empty list", `[]`, true},
	{"number", `5`, true},
	{"BOM", "\ufeff{}", false},
	{"empty", "", false},
	{"form", "a=1&b=%F0%9F%8E%89&a=2", false},
	{"not UTF-8", "\xff\xfe\x00", false},
	{"every byte", everyByte(), false},
	{"cut off", `{"a":`, false},
	{"braces", "{id}.{timestamp}.{body}", false},
}

func everyByte() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

// jsonOnly are the schemes whose events are JSON or nothing, since it is by JSON's form
// that they tell the body from what is signed beside it; the first three take an empty
// body.
var jsonOnly = []string{"hubspot-v1", "hubspot-v2", "hubspot-v3", "square"}

// inTheBody are the schemes that sign fields of their own body, so that it is theirs.
var inTheBody = []string{"adyen", "mailgun", "aws-sns", microsoftGraph, "linear", "x-twitter-crc"}

// Every scheme that signs bytes takes any bytes, as they are.
func TestEverySchemeTakesAnyBody(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		if slices.Contains(inTheBody, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kitOf(t, name)
			for _, b := range anyBodies {
				sample := Sample{ID: "e1", Body: []byte(b.text)}
				hashed := name == "twilio" && b.name != "form" // bodies other than forms are signed by their hash
				if hashed {
					sample = Sample{ID: "e1"}
				}
				r := k.sign(t, sample, noon)
				if hashed {
					r.URL, r.Body = r.URL+"?bodySHA256="+strings.TrimPrefix(hashOf(b.text), "sha256:"), []byte(b.text)
					r.Header.Set("Content-Type", "application/json")
					r.Header.Set("X-Twilio-Signature", base64.StdEncoding.EncodeToString(hmacOf(hmacSHA1, k.keys.Signing, r.URL)))
				}
				want := Reason("")
				switch {
				case slices.Contains(jsonOnly, name) && !b.json && (b.text != "" || name == "square"), name == "shopify" && b.text == "":
					want = BadBody
				case name == "x-twitter" && crcToken(b.text):
					want = Ambiguous
				}
				id, err := k.verify(r, noon)
				if want == "" && err != nil || want != "" && !isReason(err, want) {
					t.Errorf("%s: %v, want %q", b.name, err, want)
				}
				if err == nil && (id.ID == "" || id.Type == "") {
					t.Errorf("%s: %+v", b.name, id)
				}
				if err != nil || slices.Contains(unsigned, name) {
					continue
				}
				for what, other := range map[string]string{"byte appended": b.text + "\n", "byte before": "\ufeff" + b.text, "escapes in capitals": strings.ReplaceAll(b.text, `\ud`, `\uD`)} {
					c := r
					if c.Body = []byte(other); other == b.text {
						continue
					}
					if _, err := k.verify(c, noon); err == nil {
						t.Errorf("%s, %s: accepted", b.name, what)
					}
				}
			}
		})
	}
}

// respell changes the signature part of a header's value, wherever it stands.
func respell(value string, e encoding, with func([]byte) string) string {
	i := strings.LastIndexAny(strings.TrimRight(value, "="), "=, ;") + 1
	b, ok := e.decode(value[i:])
	if !ok {
		return ""
	}
	return value[:i] + with(b)
}

// Signatures are taken in one spelling only, with or without optional space around
// the header's value.
func TestEverySchemeTakesOneSpelling(t *testing.T) {
	t.Parallel()
	upper := func(b []byte) string { return strings.ToUpper(hex.EncodeToString(b)) }
	spellings := map[encoding]map[string]func([]byte) string{
		lowerHex: {
			"upper-case hex": upper, "one letter in upper case": func(b []byte) string {
				s := hex.EncodeToString(b)
				i := strings.IndexAny(s, "abcdef")
				return s[:i] + upper(b)[i:i+1] + s[i+1:]
			},
			"base64": base64.StdEncoding.EncodeToString, "0x before": func(b []byte) string { return "0x" + hex.EncodeToString(b) }, "odd length": func(b []byte) string { return hex.EncodeToString(b)[1:] },
			"byte after": func(b []byte) string { return hex.EncodeToString(b) + "00" }, "cut": func(b []byte) string { return hex.EncodeToString(b[:len(b)-1]) }, "colons": func(b []byte) string { return hex.EncodeToString(b[:1]) + ":" + hex.EncodeToString(b[1:]) },
			"NUL after": func(b []byte) string { return hex.EncodeToString(b) + "\x00" }, "quoted": func(b []byte) string { return `"` + hex.EncodeToString(b) + `"` }, "twice": func(b []byte) string { return hex.EncodeToString(b) + hex.EncodeToString(b) },
			"two joined by a comma": func(b []byte) string { return hex.EncodeToString(b) + "," + hex.EncodeToString(b) },
		},
		stdBase64: {
			"hex": hex.EncodeToString, "URL alphabet": func(b []byte) string {
				return strings.NewReplacer("+", "-", "/", "_").Replace(base64.StdEncoding.EncodeToString(b))
			}, "no padding": base64.RawStdEncoding.EncodeToString, "more padding": func(b []byte) string { return base64.StdEncoding.EncodeToString(b) + "=" },
			"byte after": func(b []byte) string { return base64.StdEncoding.EncodeToString(append(bytes.Clone(b), 0)) }, "cut": func(b []byte) string { return base64.StdEncoding.EncodeToString(b[:len(b)-1]) },
			"line end within": func(b []byte) string { s := base64.StdEncoding.EncodeToString(b); return s[:8] + "\n" + s[8:] }, "space within": func(b []byte) string { s := base64.StdEncoding.EncodeToString(b); return s[:8] + " " + s[8:] },
			"lower case": func(b []byte) string { return strings.ToLower(base64.StdEncoding.EncodeToString(b)) }, "quoted": func(b []byte) string { return `"` + base64.StdEncoding.EncodeToString(b) + `"` },
			"bits after": bitsAfter, "base64 of hex": func(b []byte) string { return base64.StdEncoding.EncodeToString([]byte(hex.EncodeToString(b))) },
		},
	}
	for _, name := range names() {
		k := kitOf(t, name)
		s := k.scheme
		if len(s.headers) == 0 || s.credential || spellings[s.encoding] == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := s.headers[0].signature
			// A signature with a '+' or '/' and, in hex, with letters.
			var r Request
			for i := 0; ; i++ {
				r = k.sign(t, Sample{ID: "e" + strings.Repeat("1", i+1)}, noon)
				if s.encoding == lowerHex || strings.ContainsAny(r.Header.Get(h), "+/") {
					break
				}
			}
			value := r.Header.Get(h)
			put := func(v string) Request {
				c := r
				c.Header = r.Header.Clone()
				c.Header[h] = []string{v}
				return c
			}
			for what, with := range spellings[s.encoding] {
				changed := respell(value, s.encoding, with)
				if changed == "" {
					t.Fatalf("%s: cannot respell %q", what, value)
				}
				if _, isList := s.syntax.(list); changed == value || (isList && what == "two joined by a comma") {
					continue // no padding to take away, or a second item of a list
				}
				if _, err := k.verify(put(changed), noon); !isReason(err, Malformed) && !isReason(err, Mismatch) {
					t.Errorf("%s: %v", what, err)
				}
			}
			for _, v := range []string{" " + value, value + "  ", "\t" + value + "\t"} {
				if _, err := k.verify(put(v), noon); err != nil {
					t.Errorf("%q: %v", v, err)
				}
			}
			for _, v := range []string{"\u00a0" + value, value + "\u2003", "\v" + value, value + "\x00", "\ufeff" + value} {
				if _, err := k.verify(put(v), noon); err == nil {
					t.Errorf("%q: accepted", v)
				}
			}
			c := put(value)
			delete(c.Header, h)
			c.Header[strings.ToLower(h)] = []string{value}
			if _, err := k.verify(c, noon); !isReason(err, MissingSignature) {
				t.Errorf("under a key that net/http does not make: %v", err)
			}
		})
	}
}

// bitsAfter sets bits that base64 ignores.
func bitsAfter(b []byte) string {
	s := base64.StdEncoding.EncodeToString(b)
	n := len(strings.TrimRight(s, "="))
	if n == len(s) {
		return s
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	return s[:n-1] + alphabet[strings.IndexByte(alphabet, s[n-1])|1:][:1] + s[n:]
}

// A signed timestamp is taken as the provider writes it, and in no other way that a
// lenient reader would understand: the request is signed over the odd text.
func TestEverySchemeTakesOneTimestamp(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		k := kitOf(t, name)
		s := k.scheme
		if s.clock == noClock || len(s.headers) == 0 || s.stamp != nil || s.name == "paypal" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := s.clock.write(noon)
			odd := []string{"+" + good, "-" + good, good + ".0", good + "e0", "0x" + good, good + "a", "NaN", "1 2", "\u0661" + good[1:], good[:1] + "_" + good[1:], "99999999999999999999999", "-0", "''"}
			if s.clock == rfc3339 {
				odd = append(odd, noon.Format(time.RFC1123), noon.Format(time.DateTime), noon.Format("2006-01-02T15:04:05"), noon.Format("2006-01-02"), "2026-05-04T12:00:00+0000", "2026-05-04T24:00:00Z", "2026-02-30T12:00:00Z")
			} else {
				odd = append(odd, "0"+good, good+" ", noon.Format(time.RFC3339))
			}
			for _, text := range odd {
				r := k.signAt(t, text)
				want := Malformed
				if strings.TrimSpace(text) == good {
					want = "" // optional space around a header's value is not part of it
				}
				_, err := k.verify(r, noon)
				if want == "" && s.headers[0].timestamp == "" {
					continue // space within a header is
				}
				if want == "" && err != nil || want != "" && !isReason(err, want) {
					t.Errorf("%q: %v, want %q", text, err, want)
				}
			}
			if s.clock == rfc3339 {
				return
			}
			// Seconds where milliseconds are due, and the other way round.
			other := map[clock]clock{unixSeconds: unixMillis, unixMillis: unixSeconds}[s.clock]
			if _, err := k.verify(k.signAt(t, other.write(noon)), noon); !isReason(err, Future) && !isReason(err, Stale) {
				t.Errorf("in another unit: %v", err)
			}
		})
	}
}

// signAt signs a sample over any text as its timestamp.
func (k kit) signAt(t *testing.T, text string) Request {
	t.Helper()
	s := k.scheme
	r := k.sign(t, Sample{ID: "e1"}, noon)
	trimmed := strings.TrimSpace(text)
	m := message{scheme: s, req: &r, timestamp: trimmed, id: "e1"}
	b := signing{scheme: s, secret: k.keys.Signing, now: noon, request: &r}
	sig, err := b.signature(s.fill(&m)[0])
	if err != nil {
		t.Fatal(err)
	}
	h := s.headers[0]
	r.Header[canonical(h.signature)] = []string{s.syntax.form(text, s.encoding.encode(sig))}
	if h.timestamp != "" {
		r.Header[canonical(h.timestamp)] = []string{text}
	}
	return r
}

// Header names are told apart as net/http does, whatever their case on the wire.
func TestHeaderNamesAreCanonical(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		for _, h := range kitOf(t, name).scheme.headers {
			for _, n := range []string{h.signature, h.timestamp, h.id} {
				if n != http.CanonicalHeaderKey(n) {
					t.Errorf("%s: %s", name, n)
				}
			}
		}
	}
}
