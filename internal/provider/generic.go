package provider

import (
	"fmt"
	"strings"
)

// HMAC are the settings of the scheme generic-hmac, for senders that the table
// does not know.
type HMAC struct {
	Header   string // holds the signature; required
	Hash     string // sha256 (default), sha1, sha384, sha512
	Encoding string // hex (default), base64, base64url
	Prefix   string // text before the signature, such as "sha256="

	// The event's id is in a header or in the JSON body, at a JSON Pointer or a
	// dotted path. Without either it is the hash of what was signed.
	IDHeader string
	IDPath   string
	// The event's type likewise; without either it is "generic-hmac.unknown".
	TypeHeader string
	TypePath   string

	// TimestampHeader holds a signed timestamp, written as TimestampFormat says:
	// unix (seconds, default), unix-ms or rfc3339. SignedContent must then hold
	// {timestamp}: an unsigned time proves nothing.
	TimestampHeader string
	TimestampFormat string
	// SignedContent is what the sender signs, "{body}" by default: text and the
	// fields {id}, {timestamp}, {method}, {url} and {body}.
	SignedContent string
}

var hashes = map[string]*algorithm{"": hmacSHA256, "sha256": hmacSHA256, "sha1": hmacSHA1, "sha384": hmacSHA384, "sha512": hmacSHA512}

// entry completes the table's entry, or names every setting that is wrong.
func (h HMAC) entry(e entry) (entry, []string) {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf("hmac."+format, args...)) }

	alg, ok := hashes[h.Hash]
	if !ok {
		fault("hash: %q is not sha256, sha1, sha384 or sha512", clip(h.Hash))
		alg = hmacSHA256
	}
	e.encoding = encoding(first(h.Encoding, string(lowerHex)))
	if e.encoding != lowerHex && e.encoding != stdBase64 && e.encoding != urlBase64 {
		fault("encoding: %q is not hex, base64 or base64url", clip(h.Encoding))
	}
	if h.Header == "" {
		fault("header: is missing")
	}
	for _, setting := range []struct{ name, value string }{
		{"header", h.Header}, {"id_header", h.IDHeader}, {"type_header", h.TypeHeader}, {"timestamp_header", h.TimestampHeader},
	} {
		if setting.value != "" && !token(setting.value) {
			fault("%s: %q cannot be a header's name", setting.name, clip(setting.value))
		}
	}
	if strings.TrimSpace(h.Prefix) != h.Prefix {
		fault("prefix: must not start or end with space")
	}
	e.algorithm, e.syntax, e.key = alg.name, whole{h.Prefix, alg}, textKey(alg)
	e.headers = []headers{{signature: h.Header, timestamp: h.TimestampHeader}}
	e.content = first(h.SignedContent, "{body}")
	e.clock = noClock
	if h.TimestampHeader != "" {
		e.clock = clock(first(h.TimestampFormat, string(unixSeconds)))
		e.at = []place{{signedTime: true}}
	}
	h.signing(&e, fault)
	e.id = h.place("id", h.IDHeader, h.IDPath, fault)
	e.typ = h.place("type", h.TypeHeader, h.TypePath, fault)
	return e, faults
}

// signing checks what is signed against where its parts come from.
func (h HMAC) signing(e *entry, fault func(string, ...any)) {
	t, err := parseTemplate(e.content)
	switch {
	case err != nil:
		fault("signed_content: %s", err)
		return
	case !t.has["body"]:
		fault("signed_content: does not hold {body}")
	case t.has["timestamp"] && h.TimestampHeader == "":
		fault("signed_content: holds {timestamp}, but timestamp_header is not set")
	case !t.has["timestamp"] && h.TimestampHeader != "":
		fault("timestamp_header: is set, but signed_content does not hold {timestamp}")
	case t.has["id"] && h.IDHeader == "":
		fault("signed_content: holds {id}, but id_header is not set")
	}
	if t.has["id"] {
		e.headers[0].id = h.IDHeader
	}
	switch clock(h.TimestampFormat) {
	case noClock, unixSeconds, unixMillis, rfc3339:
		if h.TimestampFormat != "" && h.TimestampHeader == "" {
			fault("timestamp_format: is set, but timestamp_header is not")
		}
	default:
		fault("timestamp_format: %q is not unix, unix-ms or rfc3339", clip(h.TimestampFormat))
	}
}

// place is where the source says that id or type are.
func (h HMAC) place(what, header, at string, fault func(string, ...any)) []place {
	switch {
	case header != "" && at != "":
		fault("%s_path: contradicts %s_header", what, what)
	case header != "":
		return []place{inHeader(header)}
	case at != "":
		p, err := parsePath(at)
		if err != nil {
			fault("%s_path: %s", what, err)
			return nil
		}
		return []place{{body: p}}
	}
	return nil
}

// token reports whether s can name a header (RFC 9110, section 5.6.2).
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}
