package provider

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxCandidates bounds the signatures in one header: rotations need two or three.
const maxCandidates = 16

// maxHeaderBytes bounds a signature header as a whole.
const maxHeaderBytes = 8 << 10

// found is what the signature header said.
type found struct {
	sigs      []candidate
	timestamp string
}

// tag says which algorithm the signatures so marked are for.
type tag struct {
	text string
	alg  *algorithm
}

// syntax reads a signature header. Candidates that cannot be decoded are left
// out, since a list may hold signatures of versions to come; if none is left the
// header is malformed.
type syntax interface {
	parse(value string, enc encoding) (found, *Refusal)
	// form writes a header with one signature of the first kind.
	form(timestamp, signature string) string
	String() string
}

// whole is a header that is one signature after a fixed prefix.
type whole struct {
	prefix string
	alg    *algorithm
}

func (w whole) String() string {
	if w.alg == tokenEqual {
		return w.prefix + "<token>"
	}
	return w.prefix + "<signature>"
}

func (w whole) form(_, signature string) string { return w.prefix + signature }

func (w whole) parse(value string, enc encoding) (found, *Refusal) {
	text, ok := strings.CutPrefix(value, w.prefix)
	if !ok {
		return found{}, refuse(Malformed, "signature does not start with %q", w.prefix)
	}
	sig, ok := enc.decode(text)
	if !ok {
		return found{}, refuse(Malformed, "signature is not %s", enc)
	}
	return found{sigs: []candidate{{w.alg, sig}}}, nil
}

// list is a header of tagged signatures with a separator, such as Standard
// Webhooks' "v1,<sig> v1a,<sig>". Unknown tags are skipped, empty items too.
type list struct {
	separator string
	tags      []tag // the text includes what stands between tag and signature
}

func (l list) String() string {
	items := make([]string, len(l.tags))
	for i, t := range l.tags {
		items[i] = t.text + "<signature>"
	}
	return strings.Join(items, l.separator)
}

func (l list) form(_, signature string) string { return l.tags[0].text + signature }

func (l list) parse(value string, enc encoding) (found, *Refusal) {
	var f found
	n := 0
	for item := range strings.SplitSeq(value, l.separator) {
		item = strings.Trim(item, " \t")
		if item == "" {
			continue
		}
		if n++; n > maxCandidates {
			return f, refuse(Malformed, "more than %d signatures", maxCandidates)
		}
		for _, t := range l.tags {
			text, ok := strings.CutPrefix(item, t.text)
			if !ok {
				continue
			}
			if sig, ok := enc.decode(text); ok {
				f.sigs = append(f.sigs, candidate{t.alg, sig})
			}
			break
		}
	}
	if len(f.sigs) == 0 {
		return f, refuse(Malformed, "no signature of the form %s in %s", l, enc)
	}
	return f, nil
}

// params is a header of name=value pairs that holds the timestamp as well, such
// as Stripe's "t=…,v1=…". Unknown names are skipped; a second timestamp is
// ambiguous.
type params struct {
	separator string
	timestamp string
	tags      []tag
}

func (p params) String() string {
	items := []string{p.timestamp + "=<timestamp>"}
	for _, t := range p.tags {
		items = append(items, t.text+"=<signature>")
	}
	return strings.Join(items, p.separator)
}

func (p params) form(timestamp, signature string) string {
	return p.timestamp + "=" + timestamp + p.separator + p.tags[0].text + "=" + signature
}

func (p params) parse(value string, enc encoding) (found, *Refusal) {
	var f found
	n, stamps := 0, 0
	for item := range strings.SplitSeq(value, p.separator) {
		if n++; n > maxCandidates {
			return f, refuse(Malformed, "more than %d parameters", maxCandidates)
		}
		name, text, ok := strings.Cut(strings.Trim(item, " \t"), "=")
		if !ok {
			return f, refuse(Malformed, "%q is not of the form name=value", clip(item))
		}
		if name == p.timestamp {
			f.timestamp = text
			stamps++
		}
		for _, t := range p.tags {
			if name != t.text {
				continue
			}
			if sig, ok := enc.decode(text); ok {
				f.sigs = append(f.sigs, candidate{t.alg, sig})
			}
		}
	}
	switch {
	case stamps > 1:
		return f, refuse(Ambiguous, "parameter %q occurs %d times", p.timestamp, stamps)
	case stamps == 0:
		return f, refuse(Malformed, "parameter %q is missing", p.timestamp)
	case len(f.sigs) == 0:
		return f, refuse(Malformed, "no signature of the form %s in %s", p, enc)
	}
	return f, nil
}

// encoding is how a signature's bytes are written. Each takes one spelling of a
// value only, so that what is compared is what was sent.
type encoding string

const (
	lowerHex  encoding = "hex"       // lower case, even length
	stdBase64 encoding = "base64"    // standard alphabet, padded
	urlBase64 encoding = "base64url" // URL alphabet, padded or not at all
	plainText encoding = "text"      // the value itself
)

// encode is the inverse of decode.
func (e encoding) encode(b []byte) string {
	switch e {
	case lowerHex:
		return hex.EncodeToString(b)
	case stdBase64:
		return base64.StdEncoding.EncodeToString(b)
	case urlBase64:
		return base64.RawURLEncoding.EncodeToString(b)
	}
	return string(b)
}

func (e encoding) String() string {
	if e == lowerHex {
		return "lower-case hex"
	}
	return string(e)
}

// decode is strict; it skips nothing and takes no trailing bits. An empty text
// is no signature.
func (e encoding) decode(text string) ([]byte, bool) {
	if text == "" || strings.ContainsAny(text, "\r\n") { // base64 of the standard library skips line ends
		return nil, false
	}
	var b []byte
	var err error
	switch e {
	case plainText:
		b = []byte(text)
	case lowerHex:
		if strings.ContainsAny(text, "ABCDEF") {
			return nil, false
		}
		b, err = hex.DecodeString(text)
	case stdBase64:
		b, err = base64.StdEncoding.Strict().DecodeString(text)
	case urlBase64:
		if strings.HasSuffix(text, "=") {
			b, err = base64.URLEncoding.Strict().DecodeString(text)
		} else {
			b, err = base64.RawURLEncoding.Strict().DecodeString(text)
		}
	}
	return b, err == nil && len(b) > 0
}

// clock is how a signed timestamp is written; noClock means that the scheme
// signs none, so that freshness rests on the event's durable id alone.
type clock string

const (
	noClock     clock = ""
	unixSeconds clock = "unix"
	unixMillis  clock = "unix-ms"
	rfc3339     clock = "rfc3339"
)

// write is the inverse of parse.
func (c clock) write(t time.Time) string {
	switch c {
	case unixMillis:
		return strconv.FormatInt(t.UnixMilli(), 10)
	case rfc3339:
		return t.UTC().Format(time.RFC3339)
	}
	return strconv.FormatInt(t.Unix(), 10)
}

// unit is the resolution at which ages are compared: a sender that writes whole
// seconds is not made older by our fraction of one.
func (c clock) unit() time.Duration {
	switch c {
	case unixSeconds:
		return time.Second
	case unixMillis:
		return time.Millisecond
	}
	return time.Nanosecond
}

// parse takes canonical text only: decimal digits without sign, leading zero or
// fraction, or RFC 3339.
func (c clock) parse(text string) (time.Time, error) {
	if c == rfc3339 {
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return time.Time{}, fmt.Errorf("timestamp %q is not RFC 3339", clip(text))
		}
		return t, nil
	}
	n, ok := canonicalInt(text)
	if !ok {
		return time.Time{}, fmt.Errorf("timestamp %q is not a plain decimal number", clip(text))
	}
	if c == unixMillis {
		return time.UnixMilli(n), nil
	}
	return time.Unix(n, 0), nil
}

// canonicalInt reads 0 or digits that do not start with 0, at most 10^15: the
// year 31 million in seconds, 33658 in milliseconds. Nothing overflows later on.
func canonicalInt(text string) (int64, bool) {
	if text == "" || len(text) > 15 || (text[0] == '0' && len(text) > 1) {
		return 0, false
	}
	var n int64
	for i := range len(text) {
		d := text[i] - '0'
		if d > 9 {
			return 0, false
		}
		n = n*10 + int64(d)
	}
	return n, true
}

// fresh reports whether at lies within tolerance of now, the limit included.
func (c clock) fresh(at, now time.Time, tolerance time.Duration) *Refusal {
	now = now.Truncate(c.unit())
	switch {
	case at.Before(now.Add(-tolerance)):
		return refuse(Stale, "signed %s ago, %s is allowed", span(at, now), tolerance)
	case at.After(now.Add(tolerance)):
		return refuse(Future, "signed %s ahead of our clock, %s is allowed", span(now, at), tolerance)
	}
	return nil
}

// span is the time between two instants for people; a Duration holds 292 years.
func span(from, to time.Time) string {
	s := to.Unix() - from.Unix()
	if s > 10*365*24*3600 {
		return fmt.Sprintf("about %d years", s/(365*24*3600))
	}
	return to.Sub(from).Round(time.Second).String()
}
