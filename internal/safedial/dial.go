package safedial

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// guard opens connections for a transport: one lookup, a verdict on every
// answer, and a connection to one of exactly those addresses.
type guard struct {
	policy  Policy
	opts    ClientOptions
	tls     *tls.Config
	dialTCP func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

	open    atomic.Int64 // connections now open
	reached atomic.Bool  // a connection succeeded once

	mu    sync.Mutex
	pools map[*http.Transport]bool
}

// phaseError marks where a dial failed, so that nobody needs to read its text.
type phaseError struct {
	kind Kind
	err  error
}

func (e *phaseError) Error() string { return string(e.kind) + ": " + e.err.Error() }
func (e *phaseError) Unwrap() error { return e.err }

var errTooManyConns = errors.New("too many open connections")

// exchange is what a request tells its dial: net/http detaches the dial from
// the request's context and keeps only its values.
type exchange struct {
	deadline time.Time
	trace    *Trace
	crowds   *crowds // nil where a test dials by itself
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) exchange {
	if x, ok := ctx.Value(exchangeKey{}).(exchange); ok {
		return x
	}
	return exchange{trace: new(Trace)}
}

// within bounds ctx by d and by the deadline of the request.
func (x exchange) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	deadline := time.Now().Add(d)
	if !x.deadline.IsZero() && x.deadline.Before(deadline) {
		deadline = x.deadline
	}
	return context.WithDeadline(ctx, deadline)
}

// dial opens a TCP connection for a transport. address is host:port.
func (g *guard) dial(ctx context.Context, _, address string) (net.Conn, error) {
	x := exchangeOf(ctx)
	leave, err := x.crowds.await(ctx, address, x.trace)
	if err != nil {
		return nil, err
	}
	conn, err := g.connect(ctx, x, address)
	if err != nil {
		leave()
		return nil, err
	}
	conn.leave = leave
	return conn, nil
}

// connect opens a connection without regard to how many there are to the address.
func (g *guard) connect(ctx context.Context, x exchange, address string) (*trackedConn, error) {
	x.trace.set(func(s *Snapshot) { s.Dialed = true })
	ctx, cancel := x.within(ctx, g.opts.DialTimeout)
	defer cancel()

	host, port, err := g.splitAddress(address)
	if err != nil {
		return nil, err
	}
	addrs, err := g.policy.lookup(ctx, host)
	if err != nil {
		if _, blocked := errors.AsType[*BlockedError](err); blocked {
			return nil, err
		}
		return nil, &phaseError{KindDNS, err}
	}
	x.trace.set(func(s *Snapshot) { s.DNSDone, s.Addrs = true, addrs; s.At.DNS = x.trace.since() })

	release, err := g.acquire()
	if err != nil {
		return nil, err
	}
	conn, err := g.dialAny(ctx, x, addrs, port)
	if err != nil {
		release()
		return nil, err
	}
	g.reached.Store(true)
	x.trace.set(func(s *Snapshot) { s.TCPDone = true; s.At.TCP = x.trace.since() })
	return &trackedConn{Conn: conn, release: release}, nil
}

// splitAddress checks the host and port that the transport asks for, although
// the client has checked the URL: this is the last place that sees the name.
func (g *guard) splitAddress(address string) (host string, port uint16, err error) {
	h, portText, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, &BlockedError{Reason: InvalidURL}
	}
	if host, err = parseHost(h); err != nil {
		return "", 0, err
	}
	if err = g.policy.checkHost(host); err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || !g.policy.allowsPort(uint16(n)) {
		return "", 0, g.policy.blockedPort(host)
	}
	return host, uint16(n), nil
}

// acquire counts a connection against MaxConns. At the limit it first closes
// the idle ones. release may be called once.
func (g *guard) acquire() (release func(), err error) {
	release = func() { g.open.Add(-1) }
	if g.open.Add(1) <= int64(g.opts.MaxConns) {
		return release, nil
	}
	g.closeIdle()
	if g.open.Load() <= int64(g.opts.MaxConns) {
		return release, nil
	}
	release()
	return nil, &phaseError{KindBusy, errTooManyConns}
}

// dialAny tries the addresses in order, each with its share of the time left.
// It returns the first error if none answers.
func (g *guard) dialAny(ctx context.Context, x exchange, addrs []netip.Addr, port uint16) (net.Conn, error) {
	var first error
	for i, a := range addrs {
		to := netip.AddrPortFrom(a, port)
		x.trace.set(func(s *Snapshot) {
			if !s.Connected {
				s.RemoteAddr = to
			}
		})
		conn, err := g.dialOne(ctx, to, len(addrs)-i)
		if err == nil {
			return conn, nil
		}
		if b, ok := errors.AsType[*BlockedError](err); ok {
			return nil, b
		}
		if p, ok := errors.AsType[*ProxyError](err); ok && ctx.Err() == nil {
			return nil, p
		}
		if first == nil {
			first = &phaseError{KindConnect, err}
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

func (g *guard) dialOne(ctx context.Context, to netip.AddrPort, left int) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, share(time.Until(deadline), left))
		defer cancel()
	}
	return g.dialTCP(ctx, to)
}

// share divides the time left evenly over the addresses left, but gives none
// less than two seconds while there are two seconds left.
func share(remaining time.Duration, left int) time.Duration {
	const least = 2 * time.Second
	return min(remaining, max(least, remaining/time.Duration(left)))
}

// recheck is the second net: it judges the address of the socket itself, just
// before connect.
func (g *guard) recheck(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return &BlockedError{Reason: InvalidHost}
	}
	if !g.policy.allowsPort(to.Port()) {
		return g.policy.blockedPort("")
	}
	return g.policy.CheckAddr(to.Addr())
}

// dialTLS opens a TLS session whose certificate must be valid for the host of
// the URL, whichever of its addresses was dialled.
func (g *guard) dialTLS(ctx context.Context, cfg *tls.Config, network, address string) (net.Conn, error) {
	raw, err := g.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	x := exchangeOf(ctx)
	ctx, cancel := x.within(ctx, g.opts.TLSTimeout)
	defer cancel()
	cfg = cfg.Clone()
	cfg.ServerName, _, _ = net.SplitHostPort(address)
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, &phaseError{KindTLS, err}
	}
	x.trace.set(func(s *Snapshot) { s.TLSDone = true; s.At.TLS = x.trace.since() })
	return conn, nil
}

// trackedConn gives its place back when it is closed.
type trackedConn struct {
	net.Conn
	release func()
	leave   func()
	once    sync.Once
}

func (c *trackedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.release(); c.leave() })
	return err
}
