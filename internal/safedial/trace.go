package safedial

import (
	"context"
	"crypto/tls"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Trace records what happened to one request. Make one with [WithTrace] for
// each request; read it with [Trace.Snapshot] at any time, from any goroutine.
type Trace struct {
	start time.Time
	mu    sync.Mutex
	s     Snapshot
	conns int // how many the request has had
}

// had is how many connections the request has had so far.
func (t *Trace) had() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conns
}

// since is how long ago the trace was made.
func (t *Trace) since() time.Duration {
	if t.start.IsZero() {
		return 0
	}
	return time.Since(t.start)
}

// Snapshot is the state of a request at one moment.
type Snapshot struct {
	Dialed       bool           // a new connection was begun for the request
	Addrs        []netip.Addr   // the checked answers of DNS, nil with a pooled connection
	DNSDone      bool           // the name was resolved and every answer permitted
	TCPDone      bool           // a TCP connection was opened for the request
	TLSDone      bool           // its TLS handshake succeeded
	Connected    bool           // the request has a connection, new or pooled
	Reused       bool           // which had served a request before
	HTTP2        bool           // and speaks HTTP/2
	RemoteAddr   netip.AddrPort // the address connected to; before that, the one last tried
	WroteRequest bool           // headers and body were handed to the kernel in full
	GotFirstByte bool           // the response has begun

	TLSVersion uint16 // such as tls.VersionTLS13; 0 without TLS
	At         Times
}

// Times are when the steps were done, since [WithTrace]; 0 for those that were not
// needed or not reached.
type Times struct{ DNS, TCP, TLS, Wrote, FirstByte time.Duration }

type traceKey struct{}

// WithTrace returns a context whose next request through a [Client] is
// recorded in the returned Trace.
func WithTrace(ctx context.Context) (context.Context, *Trace) {
	t := &Trace{start: time.Now()}
	return context.WithValue(ctx, traceKey{}, t), t
}

// Snapshot returns a copy of what is known so far.
func (t *Trace) Snapshot() Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.s
	s.Addrs = slices.Clone(s.Addrs)
	return s
}

func (t *Trace) set(f func(*Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.s)
}

// phase says how far the request came.
func (s Snapshot) phase() Phase {
	switch {
	case s.Connected && s.WroteRequest:
		return PhaseHeaders
	case s.Connected:
		return PhaseSend
	case !s.Dialed:
		return PhaseQueue
	case !s.DNSDone:
		return PhaseDNS
	case !s.TCPDone:
		return PhaseConnect
	}
	return PhaseTLS
}

// hooks never sets Got1xxResponse: without it net/http counts the informational
// responses against MaxResponseHeaderBytes, which bounds a flood of them.
func (t *Trace) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			remote, _ := netip.ParseAddrPort(info.Conn.RemoteAddr().String())
			conn, isTLS := info.Conn.(*tls.Conn)
			t.set(func(s *Snapshot) {
				t.conns++
				// The transport may move a request that it could not write to
				// another connection.
				s.WroteRequest, s.GotFirstByte = false, false
				s.Connected, s.Reused = true, info.Reused
				if isTLS {
					state := conn.ConnectionState()
					s.HTTP2, s.TLSVersion = state.NegotiatedProtocol == "h2", state.Version
				}
				s.RemoteAddr = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
			})
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			t.set(func(s *Snapshot) { s.WroteRequest = info.Err == nil; s.At.Wrote = t.since() })
		},
		GotFirstResponseByte: func() {
			t.set(func(s *Snapshot) { s.GotFirstByte = true; s.At.FirstByte = t.since() })
		},
	}
}
