package safedial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"time"
)

// ClientOptions bounds a [Client]. A zero field takes the default named.
type ClientOptions struct {
	// Timeout is the longest a whole exchange may take, from the lookup to the
	// last byte of the body. An earlier deadline of the request's context wins.
	// Default 30 s.
	Timeout time.Duration

	// DialTimeout bounds lookup and connect together, TLSTimeout the handshake.
	// Default 10 s each.
	DialTimeout, TLSTimeout time.Duration

	// IdleTimeout is how long an unused connection is kept: well below the 1,200
	// s after which Cloud NAT forgets an established connection, and below the
	// 350 s of other clouds' gateways. Default 90 s.
	IdleTimeout time.Duration

	// MaxConnsPerHost bounds the connections to one host and port, in use and
	// idle. A request beyond it waits, on its own deadline. Not less than the
	// requests that one process may have under way to one host. Default 60.
	MaxConnsPerHost int

	// MaxConns bounds the connections of the client in total, and with them its
	// file descriptors. At the bound idle connections are closed; with none idle
	// the request fails with KindBusy. Default 1,024.
	MaxConns int

	// MaxHeaderBytes bounds the response headers, informational (1xx) responses
	// included. Default 64 KiB.
	MaxHeaderBytes int64

	// PingAfter is the silence after which an HTTP/2 connection is asked for a
	// sign of life, PingTimeout how long it may take to give one before it is
	// closed. A connection whose NAT mapping is gone is noticed within the sum.
	// Default 5 s each.
	PingAfter, PingTimeout time.Duration

	// RootCAs verify the endpoints' certificates. Nil means the system's.
	RootCAs *x509.CertPool

	// Proxy is an HTTP proxy that every connection is made through, by CONNECT; see
	// [ParseProxy]. Nil means none; proxies of the environment are never used.
	Proxy *Proxy
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (o ClientOptions) withDefaults() ClientOptions {
	orDefault(&o.Timeout, 30*time.Second)
	orDefault(&o.DialTimeout, 10*time.Second)
	orDefault(&o.TLSTimeout, 10*time.Second)
	orDefault(&o.IdleTimeout, 90*time.Second)
	orDefault(&o.MaxConnsPerHost, 60)
	orDefault(&o.MaxConns, 1024)
	orDefault(&o.MaxHeaderBytes, 64<<10)
	orDefault(&o.PingAfter, 5*time.Second)
	orDefault(&o.PingTimeout, 5*time.Second)
	return o
}

// Client sends requests under a [Policy]. Safe for concurrent use. Make one per
// process: its connections are pooled.
type Client struct {
	guard     *guard
	transport *http.Transport
	crowds    *crowds
}

// keepAlive keeps NAT mappings alive, and finds a dead idle connection within 30 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// NewClient returns a client. Redirects are returned, not followed; no proxy of
// the environment is used; no cookies are kept; bodies arrive as sent, without
// decompression; TLS is 1.2 or later; HTTP/2 is used where the endpoint offers
// it.
func NewClient(p Policy, o ClientOptions) *Client {
	o = o.withDefaults()
	g := &guard{policy: p, opts: o, pools: map[*http.Transport]bool{}, tls: &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    o.RootCAs,
		NextProtos: []string{"h2", "http/1.1"},
	}}
	dialer := &net.Dialer{ControlContext: g.recheck, KeepAliveConfig: keepAlive}
	g.dialTCP = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", to.String())
	}
	if o.Proxy != nil {
		g.dialTCP = g.through(o.Proxy)
	}
	return g.client(g.tls)
}

// WithCertificate returns a client that shares c's policy, options and bounds and
// shows a certificate to servers that ask for one. It has connections of its own: one
// that was opened under a certificate never carries a request that should not have
// it. Make one per certificate, and [Client.Discard] it after its last request.
func (c *Client) WithCertificate(cert tls.Certificate) *Client {
	cfg := c.guard.tls.Clone()
	// Not Certificates: with it a certificate that the server's list of authorities
	// does not hold would silently not be sent.
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	return c.guard.client(cfg)
}

// Discard closes the idle connections and forgets the client, whose requests under
// way may end; their connections close after [ClientOptions.IdleTimeout]. Idempotent.
func (c *Client) Discard() {
	c.guard.mu.Lock()
	delete(c.guard.pools, c.transport)
	c.guard.mu.Unlock()
	c.transport.CloseIdleConnections()
}

// client makes a pool of connections under one TLS configuration.
func (g *guard) client(cfg *tls.Config) *Client {
	o := g.opts
	t := &http.Transport{
		DialContext: g.dial,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return g.dialTLS(ctx, cfg, network, address)
		},
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: o.PingAfter, PingTimeout: o.PingTimeout, WriteByteTimeout: o.PingAfter + o.PingTimeout},
		IdleConnTimeout:        o.IdleTimeout,
		MaxConnsPerHost:        o.MaxConnsPerHost,
		MaxIdleConnsPerHost:    o.MaxConnsPerHost,
		MaxResponseHeaderBytes: o.MaxHeaderBytes,
		DisableCompression:     true,
		// MaxIdleConns stays zero: it drops HTTP/2 connections from the pool
		// without closing them. MaxConns bounds both kinds.
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pools[t] = true
	return &Client{guard: g, transport: t, crowds: newCrowds()}
}

// closeIdle closes the connections of all clients that serve no request.
func (g *guard) closeIdle() {
	g.mu.Lock()
	pools := slices.Collect(maps.Keys(g.pools))
	g.mu.Unlock()
	for _, t := range pools {
		t.CloseIdleConnections()
	}
}

// CloseIdleConnections closes the connections that serve no request, those of
// clients made by [Client.WithCertificate] included.
func (c *Client) CloseIdleConnections() { c.guard.closeIdle() }

// OpenConnections returns how many connections are open or being opened, those of
// clients made by [Client.WithCertificate] included.
func (c *Client) OpenConnections() int { return int(c.guard.open.Load()) }

// Reached reports whether any connection has succeeded since the client was
// made. While it is false, a failure to connect may be this instance's own
// network not being up yet.
func (c *Client) Reached() bool { return c.guard.reached.Load() }

// Do sends req once and returns the response, whatever its status; a redirect
// is a response. The deadline of req's context and [ClientOptions.Timeout] hold
// over every phase, the reading of the body included. The caller closes the
// body; see [ReadExcerpt].
//
// The URL is checked first, however it was stored, and sent in the form that
// [Policy.CheckURL] returns; req.Host is ignored. The error is a *BlockedError
// or an *Error, as are the errors of reading the body.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	trace, ok := ctx.Value(traceKey{}).(*Trace)
	if !ok {
		trace = new(Trace)
	}
	out, err := c.prepare(req)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.guard.opts.Timeout)
	deadline, _ := ctx.Deadline()
	ctx = context.WithValue(ctx, exchangeKey{}, exchange{deadline: deadline, trace: trace, crowds: c.crowds})
	ctx = httptrace.WithClientTrace(ctx, trace.hooks())

	leave := c.crowds.enter(address(out.URL))
	resp, err := c.transport.RoundTrip(out.WithContext(ctx))
	if err != nil {
		leave()
		failed := failure(ctx, err, out.URL.Host, trace.Snapshot())
		cancel()
		return nil, failed
	}
	resp.Request = out
	resp.Body = &body{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, leave: leave, host: out.URL.Host}
	return resp, nil
}

// prepare returns a copy of req with the checked URL.
func (c *Client) prepare(req *http.Request) (*http.Request, error) {
	if req.URL == nil {
		return nil, &BlockedError{Reason: InvalidURL}
	}
	u, err := c.guard.policy.CheckURL(req.URL.String())
	if err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	out.URL, out.Host = u, u.Host
	if out.Header == nil {
		out.Header = make(http.Header)
	}
	// A server that never sends 100 Continue would stall the body.
	out.Header.Del("Expect")
	if u.User != nil {
		if out.Header.Get("Authorization") == "" {
			password, _ := u.User.Password()
			out.SetBasicAuth(u.User.Username(), password)
		}
		u.User = nil
	}
	return out, nil
}

// failure turns an error of the transport into one of this package.
func failure(ctx context.Context, err error, host string, s Snapshot) error {
	if b, ok := errors.AsType[*BlockedError](err); ok {
		return b
	}
	if p, ok := errors.AsType[*ProxyError](err); ok && ctx.Err() == nil {
		return p
	}
	e := &Error{Phase: s.phase(), Host: host, Sent: s.Connected && s.WroteRequest, err: err}
	at, dialing := errors.AsType[*phaseError](err)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		e.Kind = KindCanceled
	case dialing && at.kind == KindDNS && !expired(ctx):
		e.Kind = KindDNS
	case isTimeout(err) && e.Phase == PhaseQueue:
		e.Kind = KindBusy
	case isTimeout(err):
		e.Kind = KindTimeout
	case dialing:
		e.Kind = at.kind
	case !s.Connected:
		e.Kind = KindOther
	case isAlert(err):
		// In TLS 1.3 a server judges our certificate after the handshake is over for us.
		e.Kind, e.Phase, e.Sent = KindTLS, PhaseTLS, false
	case !s.GotFirstByte || isReset(err):
		e.Kind = KindReset
	default:
		e.Kind = KindProtocol
	}
	return e
}

// expired is ctx.Err() != nil without its race: the dial has a timer of its own
// for the same deadline, which may fire first.
func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// body ends the exchange's deadline with its last byte, and keeps its errors
// within the package's kinds.
type body struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelFunc
	leave  func() // may be called again
	host   string
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	expired := b.ctx.Err()
	b.cancel()
	b.leave()
	if err == io.EOF {
		return n, io.EOF
	}
	e := &Error{Kind: KindBody, Phase: PhaseBody, Host: b.host, Sent: true, err: err}
	switch {
	case errors.Is(expired, context.Canceled):
		e.Kind = KindCanceled
	case expired != nil || isTimeout(err):
		e.Kind = KindTimeout
	}
	return n, e
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	b.leave()
	return err
}

// drainLimit is how much of a body beyond the excerpt is read to keep its
// connection usable; opening a new one costs about as much.
const drainLimit = 64 << 10

// ReadExcerpt reads at most limit bytes of body into excerpt and says whether
// there was more. It reads on for at most 64 KiB, so that the connection of a
// small answer can be used again; the caller closes the body, which ends the
// connection of a larger one. err is an error within the first limit bytes;
// what was read before it is returned too. An error after them is of no
// interest, since the excerpt is complete.
func ReadExcerpt(body io.Reader, limit int) (excerpt []byte, truncated bool, err error) {
	limit = max(limit, 0)
	excerpt, err = io.ReadAll(io.LimitReader(body, int64(limit)))
	if err != nil || len(excerpt) < limit {
		return excerpt, false, err
	}
	n, _ := io.CopyN(io.Discard, body, drainLimit)
	return excerpt, n > 0, nil
}
