package safedial

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// Proxy is an HTTP proxy through which a [Client] opens its connections. It is the
// operator's: its own address is not judged by the policy.
//
// The client resolves the endpoint's name itself, judges every answer, and asks the
// proxy for one of those addresses, never for the name (CONNECT 203.0.113.10:443), so
// that what was judged is what is dialled, whatever DNS says a moment later. A proxy
// with rules for names sees none: Smokescreen's default rules, which are about
// addresses, work; lists of domains do not. TLS runs from end to end through the
// tunnel, and the certificate is verified for the endpoint's name.
type Proxy struct {
	secure  bool
	address string // host:port
	host    string
	auth    string // of Proxy-Authorization; may be empty
}

// ParseProxy reads http://HOST:PORT or https://HOST:PORT, where user and password may
// stand before the host. Errors do not quote it.
func ParseProxy(text string) (*Proxy, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("a proxy is http://HOST:PORT or https://HOST:PORT")
	case u.Hostname() == "" || u.Port() == "":
		return nil, errors.New("a proxy needs a host and a port")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("a proxy has neither path nor query")
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || n == 0 {
		return nil, errors.New("the proxy's port is not 1 to 65535")
	}
	p := &Proxy{secure: u.Scheme == "https", address: net.JoinHostPort(u.Hostname(), u.Port()), host: u.Hostname()}
	if u.User != nil {
		password, _ := u.User.Password()
		p.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	}
	return p, nil
}

// String is the proxy's address, without user and password.
func (p *Proxy) String() string { return p.address }

// ProxyError says that the operator's own proxy failed, so that nothing was sent to
// the endpoint. It is never the endpoint's doing.
type ProxyError struct {
	Status int // what the proxy answered; 0 if it did not
	err    error
}

// Error returns a sentence that is safe to show and to log.
func (e *ProxyError) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("the proxy on the way out answered %d", e.Status)
	}
	return "the proxy on the way out could not be used" + errnoDetail(e.err)
}

// Unwrap returns the cause.
func (e *ProxyError) Unwrap() error { return e.err }

// maxConnectHeader bounds what a proxy may answer before the tunnel stands.
const maxConnectHeader = 64 << 10

// through returns the way to open a connection to a checked address by p.
func (g *guard) through(p *Proxy) func(context.Context, netip.AddrPort) (net.Conn, error) {
	dialer := &net.Dialer{KeepAliveConfig: keepAlive}
	return func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		// There is no socket of ours to this address at which it could be judged again.
		if err := g.recheck(ctx, "tcp", to.String(), nil); err != nil {
			return nil, err
		}
		conn, err := dialer.DialContext(ctx, "tcp", p.address)
		if err != nil {
			return nil, &ProxyError{err: err}
		}
		if p.secure {
			conn = tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.host, RootCAs: g.opts.RootCAs})
		}
		tunnel, err := p.connect(ctx, conn, to)
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		return tunnel, nil
	}
}

// connect has the proxy open a tunnel (RFC 9110 section 9.3.6).
func (p *Proxy) connect(ctx context.Context, conn net.Conn, to netip.AddrPort) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	head := "CONNECT " + to.String() + " HTTP/1.1\r\nHost: " + to.String() + "\r\nUser-Agent: Sealpost\r\n"
	if p.auth != "" {
		head += "Proxy-Authorization: " + p.auth + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return nil, p.failed(ctx, err)
	}
	limited := &io.LimitedReader{R: conn, N: maxConnectHeader}
	r := bufio.NewReader(limited)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, p.failed(ctx, err)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return nil, refusedByProxy(res)
	}
	if !stop() {
		return nil, p.failed(ctx, ctx.Err())
	}
	limited.N = 1 << 62
	return &tunnel{Conn: conn, r: r, remote: net.TCPAddrFromAddrPort(to)}, nil
}

func (p *Proxy) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err() // the deadline over all: the tunnel may hang at its far end
	}
	return &ProxyError{err: err}
}

var errUnreachable = errors.New("not reachable from the proxy")

// refusedByProxy tells whose fault it is that no tunnel stands: of the address, which
// the proxy's rules refuse (403, or any answer with Smokescreen's error header); of
// the endpoint, which the proxy cannot reach (502, 503, 504); or ours.
func refusedByProxy(res *http.Response) error {
	switch {
	case res.StatusCode == http.StatusForbidden, res.StatusCode == http.StatusProxyAuthRequired && res.Header.Get("X-Smokescreen-Error") != "":
		return &BlockedError{Reason: ByProxy}
	case res.StatusCode == http.StatusBadGateway, res.StatusCode == http.StatusServiceUnavailable, res.StatusCode == http.StatusGatewayTimeout:
		return errUnreachable
	}
	return &ProxyError{Status: res.StatusCode}
}

// tunnel is a connection through a proxy to the address that it names.
type tunnel struct {
	net.Conn
	r      io.Reader // what the proxy sent after its answer, then the connection
	remote net.Addr
}

func (t *tunnel) Read(b []byte) (int, error) { return t.r.Read(b) }

// RemoteAddr is the endpoint's address, not the proxy's.
func (t *tunnel) RemoteAddr() net.Addr { return t.remote }
