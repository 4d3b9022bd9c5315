package safedial

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// answers is a resolver whose answer may differ at each lookup; the last one
// stays.
type answers struct {
	mu      sync.Mutex
	byHost  map[string][][]string
	lookups int
}

func (r *answers) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookups++
	list := r.byHost[host]
	if len(list) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(list) > 1 {
		r.byHost[host] = list[1:]
	}
	var addrs []netip.Addr
	for _, a := range list[0] {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs, nil
}

func always(host string, addrs ...string) *answers {
	return &answers{byHost: map[string][][]string{host: {addrs}}}
}

// counted is a listener that counts what reaches it.
type counted struct {
	net.Listener
	accepted atomic.Int64
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

func listen(t *testing.T) *counted {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &counted{Listener: l}
}

// serve starts a test server on a counted listener; the scheme is https with
// HTTP/2 if secure.
func serve(t *testing.T, secure bool, h http.HandlerFunc) (*httptest.Server, *counted) {
	t.Helper()
	l := listen(t)
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, l
}

// untilGone waits for the client to go away, which a server notices only after
// it has read the body.
func untilGone(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func portOf(t *testing.T, l net.Listener) uint16 {
	t.Helper()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

func client(t *testing.T, p Policy, o ClientOptions) *Client {
	t.Helper()
	c := NewClient(p, o)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// post sends a body and reads the answer.
func post(ctx context.Context, c *Client, rawURL, body string) (status int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, rawURL, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	excerpt, _, err := ReadExcerpt(resp.Body, 1<<20)
	return resp.StatusCode, string(excerpt), err
}

// netbox-community/netbox#22761, MrZoller/vantage-point#49, formancehq/ledger#1990: a
// destination that was allowed sent the caller on, to an internal address or to a login
// page that answered 200.
func TestRedirectsAreNeverFollowed(t *testing.T) {
	t.Parallel()
	target, hits := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	locations := []string{target.URL, "http://169.254.169.254/latest/meta-data/", "http://[::1]:8080/", "//10.0.0.1/", "ftp://x/"}
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, location := range locations {
			t.Run(fmt.Sprint(status, location), func(t *testing.T) {
				t.Parallel()
				var requests atomic.Int64
				s, _ := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
					requests.Add(1)
					w.Header().Set("Location", location)
					w.WriteHeader(status)
				})
				c := client(t, Dev(), ClientOptions{})
				var dials atomic.Int64
				inner := c.guard.dialTCP
				c.guard.dialTCP = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
					dials.Add(1)
					return inner(ctx, to)
				}
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("x"))
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != status || resp.Header.Get("Location") != location {
					t.Errorf("got %s to %s", resp.Status, resp.Header.Get("Location"))
				}
				if requests.Load() != 1 || dials.Load() != 1 || hits.accepted.Load() != 0 {
					t.Errorf("%d requests, %d dials, %d at the target", requests.Load(), dials.Load(), hits.accepted.Load())
				}
			})
		}
	}
}

// MakazhanAlpamys/Soup#604, silverbucket/webfinger.js#160, documenso/documenso#2901:
// other spellings of private addresses pass a check of the text and are then resolved.
// The URL is stored past the save-time check; still nothing may be sent.
func TestForcedSendOpensNoConnection(t *testing.T) {
	t.Parallel()
	l := listen(t)
	port := portOf(t, l)
	// As lax as an operator can be about everything but the address.
	lax := Policy{Schemes: []string{"http", "https"}, Ports: []int{AnyPort}, AllowHosts: []string{"localhost", "*.localhost"}}
	for _, resolver := range []struct {
		name string
		r    Resolver
	}{
		{"pure Go", nil},
		{"system", &net.Resolver{}},
		{"a C library's", libc{}},
	} {
		p := lax
		p.Resolver = resolver.r
		c := client(t, p, ClientOptions{})
		for _, host := range []string{
			"127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "169.254.169.254.", "0.0.0.0", "0",
			"127.0.0.1", "127.0.0.2", "100.64.0.1", "198.18.0.1", "192.0.0.192", "255.255.255.255", "localhost", "LOCALHOST.", "a.localhost",
			"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[fe80::1%25eth0]", "[::]", "[::1]",
			"[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]",
		} {
			for _, scheme := range []string{"http", "https"} {
				raw := fmt.Sprintf("%s://%s:%d/", scheme, host, port)
				if _, _, err := post(t.Context(), c, raw, "x"); Classify(err) != KindBlocked && !(resolver.name == "system" && Classify(err) == KindDNS) {
					t.Errorf("%s resolver: %s: %v", resolver.name, raw, err)
				}
			}
		}
		if c.Reached() || c.OpenConnections() != 0 {
			t.Errorf("%s resolver: a connection was opened", resolver.name)
		}
	}
	// A connection made would be waiting: one of our own must be the first.
	probe, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if first.RemoteAddr().String() != probe.LocalAddr().String() {
		t.Errorf("a connection from %s came first", first.RemoteAddr())
	}
}

// libc resolves every host to loopback, as a lenient resolver might.
type libc struct{}

func (libc) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// The same hosts as handed to the dialler itself, past the client's check.
func TestDialerChecksByItself(t *testing.T) {
	t.Parallel()
	c := client(t, Policy{Ports: []int{AnyPort}, Resolver: libc{}}, ClientOptions{})
	c.guard.dialTCP = func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
		t.Errorf("dialled %s", to)
		return nil, errors.New("no")
	}
	for _, address := range []string{
		"127.1:443", "0x7f000001:443", "127.0.0.1:443", "[::1]:443", "[::ffff:127.0.0.1]:443", "[fe80::1%eth0]:443",
		"good.example:443", "localhost:443", "metadata.google.internal:80", "x.run.app:443", "good.example:0", "good.example:65536", "good.example", "bücher.example:443", "[::1", ":443",
	} {
		for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){"tcp": c.guard.dial, "tls": func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.guard.dialTLS(ctx, c.guard.tls, network, address)
		}} {
			if _, err := dial(t.Context(), "tcp", address); Classify(err) != KindBlocked {
				t.Errorf("%s %s: %v", name, address, err)
			}
		}
	}
}

func TestSocketIsCheckedAgain(t *testing.T) {
	t.Parallel()
	l := listen(t)
	for _, p := range []Policy{{Ports: []int{AnyPort}}, {AllowPrefixes: Dev().AllowPrefixes}} {
		c := client(t, p, ClientOptions{})
		if _, err := c.guard.dialTCP(t.Context(), netip.MustParseAddrPort(l.Addr().String())); Classify(err) != KindBlocked {
			t.Errorf("connected to %s: %v", l.Addr(), err)
		}
	}
}

// dergigi/ants#182, oblien/openship#209: resolved once for the check and again to connect.
// DNS that answers first with a public, then with a private address; or with
// both at once. 203.0.113.0/24 stands for public addresses here.
func TestRebinding(t *testing.T) {
	t.Parallel()
	public := netip.MustParsePrefix("203.0.113.0/24")
	tests := []struct {
		name    string
		answers [][]string
		want    []Kind // of each of the first requests; the last stays
		reason  Reason
	}{
		{"public then loopback", [][]string{{"203.0.113.10"}, {"127.0.0.1"}}, []Kind{KindConnect, KindBlocked}, Loopback},
		{"mixed", [][]string{{"203.0.113.10", "10.0.0.5"}}, []Kind{KindBlocked}, Private},
		{"mixed, private first", [][]string{{"10.0.0.5", "203.0.113.10"}}, []Kind{KindBlocked}, Private},
		{"public A, loopback AAAA", [][]string{{"203.0.113.10", "::1"}}, []Kind{KindBlocked}, Loopback},
		{"mapped loopback", [][]string{{"::ffff:127.0.0.1"}}, []Kind{KindBlocked}, Loopback},
		{"metadata", [][]string{{"169.254.169.254"}}, []Kind{KindBlocked}, Metadata},
		{"a zone", [][]string{{"fe80::1%lo"}}, []Kind{KindBlocked}, Zone},
		{"translated", [][]string{{"64:ff9b::7f00:1"}}, []Kind{KindBlocked}, Special},
		{"back to public", [][]string{{"127.0.0.1"}, {"203.0.113.10"}}, []Kind{KindBlocked, KindConnect}, Loopback},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			resolver := &answers{byHost: map[string][][]string{"good.example": tt.answers}}
			c := client(t, Policy{AllowPrefixes: []netip.Prefix{public}, Resolver: resolver}, ClientOptions{})
			c.guard.dialTCP = func(_ context.Context, to netip.AddrPort) (net.Conn, error) {
				if !public.Contains(to.Addr()) || to.Port() != 443 {
					t.Errorf("dialled %s", to)
				}
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			for i := range 200 {
				_, _, err := post(t.Context(), c, "https://good.example/", "x")
				want := tt.want[min(i, len(tt.want)-1)]
				if got := Classify(err); got != want {
					t.Fatalf("request %d: %s (%v), want %s", i, got, err, want)
				}
				if want == KindBlocked && reasonOf(err) != tt.reason {
					t.Fatalf("request %d: %v, want %s", i, err, tt.reason)
				}
			}
			if resolver.lookups != 200 {
				t.Errorf("%d lookups for 200 connections", resolver.lookups)
			}
		})
	}
}

// The certificate must be valid for the name in the URL, whatever address it
// resolved to, and the server must see that name.
func TestCertificateIsVerifiedForTheName(t *testing.T) {
	t.Parallel()
	s, l := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.ServerName+" "+r.Host+" "+r.Proto)
	})
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate()) // for example.com, *.example.com, 127.0.0.1, ::1
	p := Dev()
	p.Resolver = &answers{byHost: map[string][][]string{"hooks.example.com": {{"127.0.0.1"}}, "other.example": {{"127.0.0.1"}}}}
	port := portOf(t, l)
	tests := []struct {
		name, url string
		roots     *x509.CertPool
		want      string
		kind      Kind
	}{
		{"name", fmt.Sprintf("https://Hooks.Example.com.:%d/", port), roots, fmt.Sprintf("hooks.example.com hooks.example.com:%d HTTP/2.0", port), KindNone},
		{"address", fmt.Sprintf("https://127.0.0.1:%d/", port), roots, fmt.Sprintf(" 127.0.0.1:%d HTTP/2.0", port), KindNone},
		{"another name", fmt.Sprintf("https://other.example:%d/", port), roots, "", KindTLS},
		{"unknown authority", fmt.Sprintf("https://hooks.example.com:%d/", port), nil, "", KindTLS},
		{"plain http to a TLS port", fmt.Sprintf("http://127.0.0.1:%d/", port), roots, "Client sent an HTTP request to an HTTPS server.\n", KindNone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, got, err := post(t.Context(), client(t, p, ClientOptions{RootCAs: tt.roots}), tt.url, "x")
			if Classify(err) != tt.kind || got != tt.want {
				t.Errorf("%q, %s (%v); want %q, %s", got, Classify(err), err, tt.want, tt.kind)
			}
		})
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	if _, _, err := post(t.Context(), client(t, Dev(), ClientOptions{RootCAs: roots}), s.URL, "x"); Classify(err) != KindTLS {
		t.Errorf("TLS 1.1: %v", err)
	}
}

// hookdeck/outpost#1021: two idle connections per host meant nearly one new connection
// per delivery.
func TestFewConnectionsUnderLoad(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		s, l := serve(t, secure, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
		})
		var roots *x509.CertPool
		if secure {
			roots = x509.NewCertPool()
			roots.AddCert(s.Certificate())
		}
		c := client(t, Dev(), ClientOptions{RootCAs: roots})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 20 {
					if status, body, err := post(t.Context(), c, s.URL, "ping"); err != nil || status != 200 || body != "ping" {
						t.Errorf("%d %q %v", status, body, err)
					}
				}
			})
		}
		wg.Wait()
		if n := l.accepted.Load(); n > 60 {
			t.Errorf("secure=%t: %d connections for 1,000 requests", secure, n)
		}
		if n := c.OpenConnections(); n > 60 {
			t.Errorf("secure=%t: %d connections open", secure, n)
		}
	}
}

// More hosts than MaxConns: idle connections make room, of either protocol.
func TestTotalConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		s, l := serve(t, secure, func(http.ResponseWriter, *http.Request) {})
		p := Dev()
		p.Resolver = libc{}
		roots := x509.NewCertPool()
		if secure {
			roots.AddCert(s.Certificate())
		}
		c := client(t, p, ClientOptions{MaxConns: 20, RootCAs: roots})
		scheme := strings.SplitN(s.URL, ":", 2)[0]
		for i := range 200 {
			if _, _, err := post(t.Context(), c, fmt.Sprintf("%s://h%d.example.com:%d/", scheme, i, portOf(t, l)), "x"); err != nil {
				if secure && Classify(err) == KindTLS {
					t.Fatal("the test certificate no longer covers *.example.com:", err)
				}
				t.Fatalf("host %d: %v", i, err)
			}
			if n := c.OpenConnections(); n > 20 {
				t.Fatalf("secure=%t: %d connections after %d hosts", secure, n, i+1)
			}
		}
	}
}

func TestBusyWhenNothingIsIdle(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	started := make(chan struct{}, 1)
	s, l := serve(t, false, func(http.ResponseWriter, *http.Request) { started <- struct{}{}; <-release })
	c := client(t, Dev(), ClientOptions{MaxConns: 1})
	done := make(chan error, 1)
	go func() { _, _, err := post(t.Context(), c, s.URL, "x"); done <- err }()
	<-started
	_, _, err := post(t.Context(), c, fmt.Sprintf("http://localhost:%d/", portOf(t, l)), "x")
	if Classify(err) != KindBusy {
		t.Errorf("beyond MaxConns: %v", err)
	}
	// Waiting for one of the host's own connections is this process's limit too.
	one := client(t, Dev(), ClientOptions{MaxConnsPerHost: 1})
	second := make(chan error, 1)
	go func() { _, _, err := post(t.Context(), one, s.URL, "x"); second <- err }()
	<-started
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, _, err = post(ctx, one, s.URL, "x")
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != KindBusy || e.Phase != PhaseQueue || e.Sent {
		t.Errorf("beyond MaxConnsPerHost: %v", err)
	}
	close(release)
	if err := errors.Join(<-done, <-second); err != nil {
		t.Error(err)
	}
}

// blackhole forwards TCP until it is told to drop what its present connections
// carry, as a NAT that has lost their mapping does.
type blackhole struct {
	l    net.Listener
	to   string
	mu   sync.Mutex
	dead map[*atomic.Bool]bool
}

func newBlackhole(t *testing.T, to string) *blackhole {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &blackhole{l: l, to: to, dead: map[*atomic.Bool]bool{}}
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			drop := new(atomic.Bool)
			b.mu.Lock()
			b.dead[drop] = true
			conns = append(conns, in, out)
			b.mu.Unlock()
			wg.Go(func() { forward(out, in, drop) })
			wg.Go(func() { forward(in, out, drop) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		b.mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		b.mu.Unlock()
		wg.Wait()
	})
	return b
}

func forward(to, from net.Conn, drop *atomic.Bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			if !drop.Load() {
				_ = to.Close()
			}
			return
		}
		if !drop.Load() {
			_, _ = to.Write(buf[:n])
		}
	}
}

func (b *blackhole) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for d := range b.dead {
		d.Store(true)
	}
}

// golang/go#30702: a NAT forgot the connection, and requests were written to it for long.
// A dead HTTP/2 connection is found by ping, long before the deadline of the
// requests on it, and the next request uses a new one.
func TestDeadHTTP2ConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, true, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	hole := newBlackhole(t, s.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	c := client(t, Dev(), ClientOptions{RootCAs: roots, PingAfter: 500 * time.Millisecond, PingTimeout: 500 * time.Millisecond})
	rawURL := "https://" + hole.l.Addr().String() + "/"
	if _, proto, err := post(t.Context(), c, rawURL, "1"); err != nil || proto != "HTTP/2.0" {
		t.Fatal(proto, err)
	}
	hole.drop()
	ctx, trace := WithTrace(t.Context())
	_, _, err := post(ctx, c, rawURL, "2")
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != KindReset || !e.Sent {
		t.Errorf("on the dead connection: %v", err)
	}
	if snap := trace.Snapshot(); !snap.Reused || !snap.HTTP2 || !snap.WroteRequest || snap.GotFirstByte {
		t.Errorf("trace: %+v", snap)
	}
	if _, _, err := post(t.Context(), c, rawURL, "3"); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// Connections that an endpoint closes, one after the other, give their places
// back: a host that restarts often is not locked out.
func TestClosedConnectionsGiveTheirPlacesBack(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		s, l := serve(t, secure, func(http.ResponseWriter, *http.Request) {})
		roots := x509.NewCertPool()
		if secure {
			roots.AddCert(s.Certificate())
		}
		c := client(t, Dev(), ClientOptions{RootCAs: roots, MaxConnsPerHost: 2, Timeout: 10 * time.Second})
		ok := 0
		for i := range 50 {
			_, _, err := post(t.Context(), c, s.URL, "x")
			// The close may cross with the request.
			if k := Classify(err); k != KindNone && k != KindReset {
				t.Fatalf("secure=%t, after %d connections closed: %v", secure, i, err)
			} else if k == KindNone {
				ok++
			}
			s.CloseClientConnections()
		}
		if ok == 0 || l.accepted.Load() < 20 {
			t.Errorf("secure=%t: %d answers over %d connections", secure, ok, l.accepted.Load())
		}
	}
}

// One deadline holds over every phase, and the error says which it was.
func TestDeadlineInEveryPhase(t *testing.T) {
	t.Parallel()
	silent := listen(t) // accepted by the kernel, never answered
	stalled, _ := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			_, _ = io.WriteString(w, "partial")
			_ = http.NewResponseController(w).Flush()
		}
		untilGone(r)
	})
	forever := func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	huge := strings.Repeat("x", 64<<20) // more than socket buffers hold
	tests := []struct {
		name  string
		url   string
		body  string
		dns   Resolver
		dial  func(context.Context, netip.AddrPort) (net.Conn, error)
		phase Phase
		sent  bool
	}{
		{"lookup", "http://good.example/", "x", never{}, nil, PhaseDNS, false},
		{"connect", "http://good.example/", "x", libc{}, forever, PhaseConnect, false},
		{"handshake", "https://" + silent.Addr().String(), "x", nil, nil, PhaseTLS, false},
		{"write", "http://" + silent.Addr().String(), huge, nil, nil, PhaseSend, false},
		{"headers", stalled.URL, "x", nil, nil, PhaseHeaders, true},
		{"body", stalled.URL + "/body", "x", nil, nil, PhaseBody, true},
	}
	for _, tt := range tests {
		for _, by := range []string{"context", "client"} {
			t.Run(tt.name+" by "+by, func(t *testing.T) {
				t.Parallel()
				p := Dev()
				p.Resolver = tt.dns
				const limit = 400 * time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				o := ClientOptions{Timeout: limit}
				if by == "context" {
					cancel()
					o.Timeout = time.Minute
					ctx, cancel = context.WithTimeout(t.Context(), limit)
				}
				defer cancel()
				c := client(t, p, o)
				if tt.dial != nil {
					c.guard.dialTCP = tt.dial
				}
				_, _, err := post(ctx, c, tt.url, tt.body)
				e, ok := errors.AsType[*Error](err)
				if !ok || e.Kind != KindTimeout || e.Phase != tt.phase || e.Sent != tt.sent || !e.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%#v, want a timeout in %s", err, tt.phase)
				}
			})
		}
	}
}

type never struct{}

func (never) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Each address gets its share of the time; the first that answers is used.
func TestAddressesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tried []string
		g := &guard{policy: Policy{Resolver: always("good.example", "93.184.216.1", "93.184.216.2", "93.184.216.3")}}
		g.opts = ClientOptions{}.withDefaults()
		g.dialTCP = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			tried = append(tried, to.String())
			if to.Addr().String() == "93.184.216.3" {
				a, b := net.Pipe()
				_ = b.Close()
				return a, nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		began := time.Now()
		conn, err := g.dial(context.Background(), "tcp", "good.example:443")
		if err != nil {
			t.Fatal(err)
		}
		// A third of ten seconds, then half of what is left.
		if took := time.Since(began).Round(time.Millisecond); took != 6667*time.Millisecond {
			t.Errorf("the third address was reached after %s", took)
		}
		if got := strings.Join(tried, " "); got != "93.184.216.1:443 93.184.216.2:443 93.184.216.3:443" {
			t.Errorf("tried %s", got)
		}
		if g.open.Load() != 1 {
			t.Errorf("%d open", g.open.Load())
		}
		_, _ = conn.Close(), conn.Close()
		if g.open.Load() != 0 {
			t.Errorf("%d open after closing twice", g.open.Load())
		}
	})
}

func TestShare(t *testing.T) {
	t.Parallel()
	tests := []struct {
		remaining time.Duration
		left      int
		want      time.Duration
	}{
		{10 * time.Second, 1, 10 * time.Second},
		{10 * time.Second, 5, 2 * time.Second},
		{10 * time.Second, 6, 2 * time.Second},
		{time.Second, 4, time.Second},
		{-time.Second, 2, -time.Second},
	}
	for _, tt := range tests {
		if got := share(tt.remaining, tt.left); got != tt.want {
			t.Errorf("share(%s, %d) = %s, want %s", tt.remaining, tt.left, got, tt.want)
		}
	}
}

// raw answers every connection with fixed bytes once the request's headers are
// in, then closes it, with a reset if abrupt.
func raw(t *testing.T, answer string, abrupt bool) string {
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return
				}
				_, _ = io.Copy(c, io.LimitReader(strings.NewReader(answer), 64<<20))
				if abrupt {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
			}()
		}
	}()
	return "http://" + l.Addr().String() + "/?token=s3cret"
}

func TestFailures(t *testing.T) {
	t.Parallel()
	closed := listen(t)
	_ = closed.Close()
	info := "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
	tests := []struct {
		name, url string
		kind      Kind
		phase     Phase
		sent      bool
	}{
		{"refused", "http://" + closed.Addr().String() + "/?token=s3cret", KindConnect, PhaseConnect, false},
		{"no such host", "http://nowhere.example/?token=s3cret", KindDNS, PhaseDNS, false},
		{"closed without an answer", raw(t, "", false), KindReset, PhaseHeaders, true},
		{"reset without an answer", raw(t, "", true), KindReset, PhaseHeaders, true},
		{"headers cut off", raw(t, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n", false), KindReset, PhaseHeaders, true},
		{"not HTTP", raw(t, "220 s3cret ESMTP ready\r\n", false), KindProtocol, PhaseHeaders, true},
		{"headers of 70 KiB", raw(t, "HTTP/1.1 200 OK\r\nX-S3cret: "+strings.Repeat("s3cret", 12_000)+"\r\n\r\n", false), KindProtocol, PhaseHeaders, true},
		{"endless 1xx", raw(t, strings.Repeat(info, 100_000), false), KindProtocol, PhaseHeaders, true},
		{"TLS to a port that speaks HTTP", strings.Replace(raw(t, "HTTP/1.1 400 Bad Request\r\n\r\n", false), "http:", "https:", 1), KindTLS, PhaseTLS, false},
		{"body shorter than promised", raw(t, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\ns3cr", false), KindBody, PhaseBody, true},
		{"bad chunk", raw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ns3cret\r\n", false), KindBody, PhaseBody, true},
		{"body reset", raw(t, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\ns3cr", true), KindBody, PhaseBody, true},
		{"a few 1xx are fine", raw(t, strings.Repeat(info, 4)+"HTTP/1.1 204 No Content\r\n\r\n", false), KindNone, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := Dev()
			p.Resolver = always("good.example", "127.0.0.1")
			_, _, err := post(t.Context(), client(t, p, ClientOptions{}), tt.url, "x")
			if Classify(err) != tt.kind {
				t.Fatalf("%s (%v), want %s", Classify(err), err, tt.kind)
			}
			if err == nil {
				return
			}
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Phase != tt.phase || e.Sent != tt.sent {
				t.Errorf("%+v, want phase %s, sent %t", e, tt.phase, tt.sent)
			}
			if text := err.Error(); strings.Contains(strings.ToLower(text), "s3cr") || strings.Contains(text, "token") {
				t.Errorf("leaks: %s", text)
			}
		})
	}
}

func TestCancelledByTheCaller(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s, _ := serve(t, false, func(_ http.ResponseWriter, r *http.Request) { cancel(); untilGone(r) })
	if _, _, err := post(ctx, client(t, Dev(), ClientOptions{}), s.URL, "x"); Classify(err) != KindCanceled {
		t.Error(err)
	}
}

func TestUnsendableRequest(t *testing.T) {
	t.Parallel()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:9/", strings.NewReader("x"))
	req.Header.Set("X-Bad", "s3cret\n")
	_, err := client(t, Dev(), ClientOptions{}).Do(req)
	if Classify(err) != KindOther || strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
}

// What the endpoint gets: the exact bytes, no Expect, the canonical host, basic
// authentication only where the operator permits it.
func TestRequestAsSent(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	sent := []byte("\xff\x00{\"n\": 1152921504606846977, \"z\": 0.0}\n")
	s, l := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !bytes.Equal(body, sent) {
			t.Errorf("body %q", body)
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write([]byte("as it is"))
		got <- r
	})
	_ = s
	p := Dev()
	p.AllowUserinfo = true
	c := client(t, p, ClientOptions{})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("http://u:p4ss@LOCALHOST.:%d/a%%2Fb?x=%%20", portOf(t, l)), bytes.NewReader(sent))
	req.Host = "other.example"
	req.Header.Set("Expect", "100-continue")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	excerpt, _, _ := ReadExcerpt(resp.Body, 100)
	r := <-got
	user, password, _ := r.BasicAuth()
	if string(excerpt) != "as it is" || r.RequestURI != "/a%2Fb?x=%20" || r.Host != fmt.Sprintf("localhost:%d", portOf(t, l)) ||
		r.Header.Get("Expect") != "" || r.Header.Get("Accept-Encoding") != "" || user != "u" || password != "p4ss" {
		t.Errorf("%q %s %s %v", excerpt, r.RequestURI, r.Host, r.Header)
	}
	if req.Header.Get("Expect") == "" || req.URL.User == nil {
		t.Error("the caller's request was modified")
	}
}

func TestProxyOfTheEnvironmentIsIgnored(t *testing.T) {
	proxy, hits := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	p := Dev()
	p.Resolver = always("good.example", "127.0.0.1")
	closed := listen(t)
	_ = closed.Close()
	_, _, err := post(t.Context(), client(t, p, ClientOptions{}), fmt.Sprintf("http://good.example:%d/", portOf(t, closed)), "x")
	if Classify(err) != KindConnect || hits.accepted.Load() != 0 {
		t.Errorf("%v, %d connections to the proxy", err, hits.accepted.Load())
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	s, l := serve(t, false, func(http.ResponseWriter, *http.Request) {})
	_ = s
	p := Dev()
	p.Resolver = always("good.example", "::ffff:127.0.0.1")
	c := client(t, p, ClientOptions{})
	rawURL := fmt.Sprintf("http://good.example:%d/", portOf(t, l))
	if c.Reached() {
		t.Error("reached before any request")
	}
	for i := range 2 {
		ctx, trace := WithTrace(t.Context())
		if _, _, err := post(ctx, c, rawURL, "x"); err != nil {
			t.Fatal(err)
		}
		got := trace.Snapshot()
		if !got.Connected || !got.WroteRequest || !got.GotFirstByte || got.RemoteAddr.String() != l.Addr().String() || got.HTTP2 || got.TLSDone {
			t.Errorf("request %d: %+v", i, got)
		}
		if first := i == 0; got.Dialed != first || got.DNSDone != first || got.TCPDone != first || got.Reused == first || (len(got.Addrs) == 1) != first {
			t.Errorf("request %d: %+v", i, got)
		}
	}
	if !c.Reached() {
		t.Error("not reached after two requests")
	}
}

// Many requests give up while their dials and writes go on: nothing may race.
func TestTraceUnderConcurrency(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, false, func(_ http.ResponseWriter, r *http.Request) { untilGone(r) })
	c := client(t, Dev(), ClientOptions{})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
			defer cancel()
			ctx, trace := WithTrace(ctx)
			_, _, err := post(ctx, c, s.URL, strings.Repeat("x", 1<<20))
			if k := Classify(err); k != KindTimeout && k != KindBusy {
				t.Errorf("%s: %v, %+v", k, err, trace.Snapshot())
			}
		})
	}
	wg.Wait()
}

func TestReadExcerpt(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tests := []struct {
		name      string
		body      io.Reader
		limit     int
		want      string
		truncated bool
		err       error
	}{
		{"empty", strings.NewReader(""), 4, "", false, nil},
		{"shorter", strings.NewReader("abc"), 4, "abc", false, nil},
		{"exact", strings.NewReader("abcd"), 4, "abcd", false, nil},
		{"longer", strings.NewReader("abcde"), 4, "abcd", true, nil},
		{"no limit to read", strings.NewReader("abc"), 0, "", true, nil},
		{"negative limit", strings.NewReader(""), -1, "", false, nil},
		{"broken within", io.MultiReader(strings.NewReader("ab"), failing{broken}), 4, "ab", false, broken},
		{"broken after", io.MultiReader(strings.NewReader("abcde"), failing{broken}), 4, "abcd", true, nil},
	}
	for _, tt := range tests {
		got, truncated, err := ReadExcerpt(tt.body, tt.limit)
		if string(got) != tt.want || truncated != tt.truncated || !errors.Is(err, tt.err) {
			t.Errorf("%s: %q, %t, %v", tt.name, got, truncated, err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A small answer leaves its connection usable; one without end is cut.
func TestReadExcerptAndTheConnection(t *testing.T) {
	t.Parallel()
	var written atomic.Int64
	stopped := make(chan struct{}, 1)
	s, l := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/endless" {
			_, _ = w.Write(make([]byte, 40<<10))
			return
		}
		for chunk := make([]byte, 64<<10); ; {
			n, err := w.Write(chunk)
			if written.Add(int64(n)); err != nil {
				stopped <- struct{}{}
				return
			}
		}
	})
	c := client(t, Dev(), ClientOptions{})
	get := func(path string) (string, bool) {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, nil)
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		excerpt, truncated, err := ReadExcerpt(resp.Body, 16<<10)
		if err != nil {
			t.Fatal(err)
		}
		return string(excerpt), truncated
	}
	for range 5 {
		if excerpt, truncated := get("/"); len(excerpt) != 16<<10 || !truncated {
			t.Errorf("%d bytes, truncated %t", len(excerpt), truncated)
		}
	}
	if n := l.accepted.Load(); n != 1 {
		t.Errorf("%d connections for 5 small answers", n)
	}
	if excerpt, truncated := get("/endless"); len(excerpt) != 16<<10 || !truncated {
		t.Errorf("%d bytes, truncated %t", len(excerpt), truncated)
	}
	<-stopped
	if n := written.Load(); n > 64<<20 {
		t.Errorf("the endless answer got %d bytes through", n)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	resolver := &answers{byHost: map[string][][]string{
		"good.example":  {{"::ffff:93.184.216.34", "2606:4700::1111"}},
		"mixed.example": {{"93.184.216.34", "10.0.0.5"}},
		"empty.example": {{}},
	}}
	tests := []struct {
		raw   string
		want  string
		kind  Kind
		error string
	}{
		{"https://Good.Example./hook?token=s3cret", "[93.184.216.34 2606:4700::1111]", KindNone, ""},
		{"https://93.184.216.34/", "[93.184.216.34]", KindNone, ""},
		{"https://[::ffff:93.184.216.34]/", "[93.184.216.34]", KindNone, ""},
		{"https://mixed.example/", "[]", KindBlocked, "blocked mixed.example: 10.0.0.5 is in 10.0.0.0/8 (private use, RFC 1918)"},
		{"https://empty.example/", "[]", KindDNS, "empty.example: the name could not be resolved: no such host"},
		{"https://nowhere.example/?token=s3cret", "[]", KindDNS, "nowhere.example: the name could not be resolved: no such host"},
		{"https://localhost/", "[]", KindBlocked, "blocked localhost: the name is reserved for local use"},
		{"https://good.example:22/", "[]", KindBlocked, "blocked good.example: the port is not permitted: use 443 or 8443"},
		{"http://good.example/", "[]", KindBlocked, "blocked: the scheme is not permitted: use https"},
	}
	for _, tt := range tests {
		addrs, err := Policy{Resolver: resolver}.Resolve(t.Context(), tt.raw)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if fmt.Sprint(addrs) != tt.want || Classify(err) != tt.kind || text != tt.error {
			t.Errorf("Resolve(%s) = %v, %v", tt.raw, addrs, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := (Policy{Resolver: never{}}).Resolve(ctx, "https://good.example/"); Classify(err) != KindTimeout {
		t.Error(err)
	}
	// localhost needs no name server and no hosts file.
	for _, raw := range []string{"http://localhost:8080/", "http://LocalHost./", "http://a.localhost/"} {
		if addrs, err := Dev().Resolve(t.Context(), raw); fmt.Sprint(addrs) != "[127.0.0.1 ::1]" {
			t.Errorf("%s: %v, %v", raw, addrs, err)
		}
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return fmt.Errorf("post: %w", &net.OpError{Op: "dial", Err: err}) }
	tests := []struct {
		err  error
		want Kind
	}{
		{nil, KindNone},
		{&Error{Kind: KindTLS}, KindTLS},
		{fmt.Errorf("x: %w", &Error{Kind: KindBody}), KindBody},
		{dial(&BlockedError{Reason: Loopback}), KindBlocked},
		{&net.DNSError{Err: "x", IsTimeout: true}, KindDNS},
		{dial(&net.DNSError{Err: "x"}), KindDNS},
		{context.DeadlineExceeded, KindTimeout},
		{dial(syscall.ETIMEDOUT), KindTimeout},
		{context.Canceled, KindCanceled},
		{dial(syscall.ECONNREFUSED), KindConnect},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, KindTLS},
		{tls.RecordHeaderError{}, KindTLS},
		{&net.OpError{Op: "remote error", Err: tls.AlertError(40)}, KindTLS},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, KindReset},
		{io.ErrUnexpectedEOF, KindReset},
		{errors.New("x"), KindOther},
	}
	for _, tt := range tests {
		if got := Classify(tt.err); got != tt.want {
			t.Errorf("Classify(%v) = %s, want %s", tt.err, got, tt.want)
		}
	}
}

func ExampleClient() {
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "http://169.254.169.254/")
		w.WriteHeader(http.StatusFound)
	}))
	defer endpoint.Close()

	c := NewClient(Dev(), ClientOptions{})
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	ctx, trace := WithTrace(ctx)
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, endpoint.URL, strings.NewReader("{}"))
	resp, err := c.Do(req)
	if err != nil {
		fmt.Println(Classify(err), err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, resp.Header.Get("Location"), trace.Snapshot().WroteRequest)

	req, _ = http.NewRequestWithContext(ctx, http.MethodGet, resp.Header.Get("Location"), nil)
	_, err = c.Do(req)
	fmt.Println(Classify(err))
	// Output:
	// 302 http://169.254.169.254/ true
	// blocked
}
