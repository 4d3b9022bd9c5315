package safedial

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// Reason is a stable machine code for why a URL or address is refused.
type Reason string

// The reasons. Those up to GoogleHost come from the URL alone, the rest from an
// address, written in the URL or found by DNS.
const (
	InvalidURL  Reason = "invalid_url"      // does not parse, has spaces, control characters or backslashes, is opaque or too long
	Scheme      Reason = "scheme"           // not a permitted scheme
	Userinfo    Reason = "userinfo"         // user:password@
	Fragment    Reason = "fragment"         // #..., which is never sent
	EmptyHost   Reason = "empty_host"       // no host
	InvalidHost Reason = "invalid_host"     // not a DNS name nor an address
	NonASCII    Reason = "non_ascii_host"   // not written in punycode
	NumericHost Reason = "numeric_host"     // 127.1, 0x7f000001, 2130706433: numbers that are no canonical dotted quad
	Zone        Reason = "zone"             // an address with an interface, fe80::1%eth0
	Port        Reason = "port"             // not a permitted port
	Unqualified Reason = "unqualified_host" // a name without a dot
	LocalName   Reason = "local_name"       // localhost, *.localhost, *.local
	GoogleHost  Reason = "google_host"      // a name that Google serves, where Cloud NAT's fixed addresses do not apply
	Loopback    Reason = "loopback"         // this machine
	Private     Reason = "private"          // RFC 1918, shared address space, unique local, site-local
	LinkLocal   Reason = "link_local"       // this link
	Metadata    Reason = "metadata"         // a cloud's metadata service
	Multicast   Reason = "multicast"        // many machines
	Unspecified Reason = "unspecified"      // 0.0.0.0/8 and ::, which Linux takes for this machine
	Special     Reason = "special"          // any other row of the special-purpose registries
	ByProxy     Reason = "proxy"            // the operator's proxy refuses it
)

// BlockedError says that the policy refuses a URL or an address. Nothing was
// sent. Its text is one sentence for a person, without userinfo, path or query.
type BlockedError struct {
	Reason  Reason
	Host    string     // the host once it is known to be well formed, else empty
	Addr    netip.Addr // the address refused, if it is one
	Network Network    // the row of the table that refuses Addr
	detail  string     // what is permitted instead, never taken from the input
}

var sentences = map[Reason]string{
	InvalidURL:  "not a valid URL",
	Scheme:      "the scheme is not permitted",
	Userinfo:    "a user name or password in the URL is not permitted",
	Fragment:    "a fragment (#...) is never sent to a server; leave it out",
	EmptyHost:   "the URL has no host",
	InvalidHost: "the host is neither a DNS name nor an IP address",
	NonASCII:    "the host has characters outside ASCII; write it in punycode (xn--...)",
	NumericHost: "the host is a number but not an IPv4 address in its usual form (four decimal numbers, no leading zeros)",
	Zone:        "an IPv6 address with a zone is not permitted",
	Port:        "the port is not permitted",
	Unqualified: "the host has no domain; write the full name",
	LocalName:   "the name is reserved for local use",
	ByProxy:     "the proxy that stands on the way out refuses the address",
	GoogleHost:  "the host is served by Google, where the fixed sender addresses do not apply; the operator can list it",
}

// Error returns a sentence that is safe to show and to log.
func (e *BlockedError) Error() string {
	var b strings.Builder
	b.WriteString("blocked")
	if e.Host != "" {
		b.WriteString(" " + e.Host)
	}
	switch s, ok := sentences[e.Reason]; {
	case e.Addr.IsValid():
		fmt.Fprintf(&b, ": %s is in %s (%s, %s)", e.Addr, e.Network.Prefix, e.Network.Name, e.Network.RFC)
	case ok:
		b.WriteString(": " + s)
	default:
		b.WriteString(": " + string(e.Reason))
	}
	if e.detail != "" {
		b.WriteString(": " + e.detail)
	}
	return b.String()
}

// Kind is what went wrong with a request, as one word.
type Kind string

// The kinds. Blocked, Busy, Canceled, Proxy and Other are never the endpoint's doing.
const (
	KindNone     Kind = ""         // no error
	KindBlocked  Kind = "blocked"  // refused by the policy; nothing was sent
	KindDNS      Kind = "dns"      // the name was not resolved
	KindConnect  Kind = "connect"  // no TCP connection
	KindTLS      Kind = "tls"      // no TLS session, or a certificate that does not verify
	KindTimeout  Kind = "timeout"  // the deadline passed; Error.Phase says where
	KindReset    Kind = "reset"    // the connection ended before the response headers
	KindProtocol Kind = "protocol" // the answer is not HTTP, or its headers are too large
	KindBody     Kind = "body"     // the connection ended within the response body
	KindCanceled Kind = "canceled" // the caller gave up
	KindBusy     Kind = "busy"     // no connection was free: this process's own limits
	KindProxy    Kind = "proxy"    // the operator's proxy cannot be reached, or refuses us
	KindOther    Kind = "other"    // anything else, such as a request header that cannot be sent
)

// Phase is how far a request came.
type Phase string

// The phases, in order.
const (
	PhaseQueue   Phase = "queue"   // waiting for one of the host's connections
	PhaseDNS     Phase = "dns"     // resolving the name
	PhaseConnect Phase = "connect" // opening the connection
	PhaseTLS     Phase = "tls"     // negotiating TLS
	PhaseSend    Phase = "send"    // writing the request
	PhaseHeaders Phase = "headers" // waiting for the response headers
	PhaseBody    Phase = "body"    // reading the response body
)

// Error is a failed exchange that the policy permitted. Its text never holds
// the URL's path, query or userinfo, nor anything the endpoint sent.
type Error struct {
	Kind  Kind
	Phase Phase
	Host  string // host:port
	Sent  bool   // the whole request had been written, so the endpoint may have acted on it
	err   error
}

// Error returns a sentence that is safe to show and to log.
func (e *Error) Error() string {
	s := e.Host + ": " + e.sentence()
	return strings.TrimPrefix(s, ": ")
}

// Unwrap returns the cause, for errors.Is and errors.As. Its text may quote
// what the endpoint sent; do not show it.
func (e *Error) Unwrap() error { return e.err }

// Timeout reports whether the deadline passed, as in net.Error.
func (e *Error) Timeout() bool { return e.Kind == KindTimeout }

var during = map[Phase]string{
	PhaseQueue:   "waiting for a free connection",
	PhaseDNS:     "resolving the name",
	PhaseConnect: "connecting",
	PhaseTLS:     "negotiating TLS",
	PhaseSend:    "sending the request",
	PhaseHeaders: "waiting for the response headers",
	PhaseBody:    "reading the response body",
}

func (e *Error) sentence() string {
	switch e.Kind {
	case KindDNS:
		return "the name could not be resolved" + dnsDetail(e.err)
	case KindConnect:
		return "could not connect" + errnoDetail(e.err)
	case KindTLS:
		return "no TLS session: " + shorten(e.err)
	case KindTimeout:
		return "timed out while " + during[e.Phase]
	case KindReset:
		return "the connection ended while " + during[e.Phase] + errnoDetail(e.err)
	case KindProtocol:
		return "the answer is not valid HTTP or its headers are too large"
	case KindBody:
		return "the response body broke off" + errnoDetail(e.err)
	case KindCanceled:
		return "canceled while " + during[e.Phase]
	case KindBusy:
		return "no connection was free"
	}
	return "the request could not be sent"
}

func dnsDetail(err error) string {
	var d *net.DNSError
	switch {
	case !errors.As(err, &d):
		return ""
	case d.IsNotFound:
		return ": no such host"
	case d.IsTimeout:
		return ": the name servers did not answer"
	}
	return ": the name servers failed"
}

func errnoDetail(err error) string {
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		return ": " + no.Error()
	}
	return ""
}

// shorten is for TLS errors only: they arise before the request is written, so
// they cannot quote it, but they may quote the peer's certificate at length.
func shorten(err error) string {
	const limit = 200
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, err.Error())
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}

// Classify reduces any error of this package, or of an ordinary net or net/http
// call, to its Kind. KindNone for nil.
func Classify(err error) Kind {
	if err == nil {
		return KindNone
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	if _, ok := errors.AsType[*BlockedError](err); ok {
		return KindBlocked
	}
	if _, ok := errors.AsType[*ProxyError](err); ok {
		return KindProxy
	}
	if errors.Is(err, context.Canceled) {
		return KindCanceled
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return KindDNS
	}
	if isTimeout(err) {
		return KindTimeout
	}
	if isTLS(err) {
		return KindTLS
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return KindConnect
	}
	if isReset(err) {
		return KindReset
	}
	return KindOther
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.AlertError](err)
	return ok
}

// isAlert reports whether the peer ended the connection with a TLS alert.
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

func isReset(err error) bool {
	for _, target := range []error{syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
