package safedial

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// connectProxy is an HTTP proxy that opens tunnels, or answers as it is told.
type connectProxy struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []string // targets of CONNECT
	auth   []string
	answer func(w http.ResponseWriter) bool // true: answered
}

func newConnectProxy(t *testing.T, secure bool, answer func(http.ResponseWriter) bool) *connectProxy {
	t.Helper()
	p := &connectProxy{answer: answer}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		p.StartTLS()
	} else {
		p.Start()
	}
	t.Cleanup(p.Close)
	return p
}

func (p *connectProxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked, p.auth = append(p.asked, r.Method+" "+r.RequestURI), append(p.auth, r.Header.Get("Proxy-Authorization"))
	p.mu.Unlock()
	if p.answer != nil && p.answer(w) {
		return
	}
	out, err := net.Dial("tcp", r.RequestURI)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer out.Close()
	in, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	_, _ = io.WriteString(in, "HTTP/1.1 200 Connection established\r\nX-Proxy: 1\r\n\r\n")
	go func() { _, _ = io.Copy(out, buf); _ = out.(*net.TCPConn).CloseWrite() }()
	_, _ = io.Copy(in, out)
}

func (p *connectProxy) targets() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

func parsedProxy(t *testing.T, rawURL string) *Proxy {
	t.Helper()
	p, err := ParseProxy(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The proxy is asked for the address that was judged, never for a name: DNS that
// answers otherwise a moment later changes nothing. The certificate is verified for
// the endpoint's name, and the proxy's own address is not judged.
func TestThroughProxy(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		s, l := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.TLS.ServerName+" "+r.Proto)
		})
		roots := x509.NewCertPool()
		roots.AddCert(s.Certificate())
		px := newConnectProxy(t, secure, nil)
		where := strings.Replace(px.URL, "://", "://user:s3cret@", 1)
		if secure {
			roots.AddCert(px.Certificate())
		}
		policy := Dev()
		policy.Resolver = always("hooks.example.com", "127.0.0.1")
		c := client(t, policy, ClientOptions{RootCAs: roots, Proxy: parsedProxy(t, where)})
		ctx, trace := WithTrace(t.Context())
		_, got, err := post(ctx, c, fmt.Sprintf("https://hooks.example.com:%d/", portOf(t, l)), "x")
		if err != nil || got != "hooks.example.com HTTP/2.0" {
			t.Fatalf("%q, %v", got, err)
		}
		if want := fmt.Sprintf("CONNECT 127.0.0.1:%d", portOf(t, l)); len(px.targets()) != 1 || px.targets()[0] != want {
			t.Errorf("asked for %q, want %q", px.targets(), want)
		}
		if px.auth[0] != "Basic dXNlcjpzM2NyZXQ=" {
			t.Errorf("authorization %q", px.auth[0])
		}
		if remote := trace.Snapshot().RemoteAddr; remote.String() != l.Addr().String() {
			t.Errorf("remote address %s is not the endpoint's", remote)
		}
		if _, got, err := post(t.Context(), client(t, Dev(), ClientOptions{Proxy: parsedProxy(t, px.URL), RootCAs: roots}), "http://"+listenPlain(t)+"/", "x"); err != nil || got != "plain" {
			t.Errorf("http through the tunnel: %q, %v", got, err)
		}
	}
}

func listenPlain(t *testing.T) string {
	t.Helper()
	s, _ := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "plain") })
	return s.Listener.Addr().String()
}

// With a proxy the target is what the policy judges, by name and by every address.
func TestProxyIsNotAskedForWhatIsRefused(t *testing.T) {
	t.Parallel()
	px := newConnectProxy(t, false, nil)
	policy := Policy{Ports: []int{AnyPort}, Schemes: []string{"http", "https"}, Resolver: &answers{byHost: map[string][][]string{
		"inside.example": {{"10.0.0.5"}}, "mixed.example": {{"203.0.113.10", "10.0.0.5"}}, "rebound.example": {{"169.254.169.254"}}}}}
	c := client(t, policy, ClientOptions{Proxy: parsedProxy(t, px.URL)})
	for _, u := range []string{"http://10.0.0.1/", "http://169.254.169.254/", "https://inside.example/", "https://mixed.example/", "https://rebound.example/", "http://localhost/", "http://[::ffff:7f00:1]/", "https://metadata.google.internal/"} {
		if _, _, err := post(t.Context(), c, u, "x"); Classify(err) != KindBlocked {
			t.Errorf("%s: %v", u, err)
		}
	}
	if _, err := c.guard.dialTCP(t.Context(), netip.MustParseAddrPort("10.0.0.1:443")); Classify(err) != KindBlocked {
		t.Errorf("asked past the client's checks: %v", err)
	}
	if len(px.targets()) != 0 {
		t.Errorf("the proxy was asked for %q", px.targets())
	}
}

// Whose fault it is when there is no tunnel.
func TestProxyFailures(t *testing.T) {
	t.Parallel()
	status := func(code int, header ...string) func(http.ResponseWriter) bool {
		return func(w http.ResponseWriter) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "s3cret details of the proxy")
			return true
		}
	}
	raw := func(text string) func(http.ResponseWriter) bool {
		return func(w http.ResponseWriter) bool {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, text)
				_ = c.Close()
			}
			return true
		}
	}
	for _, c := range []struct {
		name   string
		answer func(http.ResponseWriter) bool
		kind   Kind
	}{
		{"refuses the address", status(403), KindBlocked},
		{"Smokescreen refuses the address", status(407, "X-Smokescreen-Error", "denied"), KindBlocked},
		{"wants another password", status(407), KindProxy},
		{"cannot reach the endpoint", status(502), KindConnect},
		{"waits for the endpoint in vain", status(504), KindConnect},
		{"is no proxy", status(404), KindProxy},
		{"redirects", status(302, "Location", "http://elsewhere/"), KindProxy},
		{"speaks something else", raw("SSH-2.0-x\r\n\r\n"), KindProxy},
		{"says nothing", raw(""), KindProxy},
		{"answers without end", raw("HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 20_000)), KindProxy},
	} {
		px := newConnectProxy(t, false, c.answer)
		_, _, err := post(t.Context(), client(t, Dev(), ClientOptions{Proxy: parsedProxy(t, px.URL)}), "http://127.0.0.1:9/?s3cret", "x")
		if Classify(err) != c.kind || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), px.Listener.Addr().String()) {
			t.Errorf("%s: %s (%v), want %s", c.name, Classify(err), err, c.kind)
		}
	}
	hang := newConnectProxy(t, false, nil)
	stop := make(chan struct{})
	hang.answer = func(http.ResponseWriter) bool { <-stop; return true }
	defer close(stop)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := post(ctx, client(t, Dev(), ClientOptions{Proxy: parsedProxy(t, hang.URL)}), "http://127.0.0.1:9/", "x"); Classify(err) != KindTimeout {
		t.Errorf("hangs: %v", err)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	if _, _, err := post(t.Context(), client(t, Dev(), ClientOptions{Proxy: parsedProxy(t, gone.URL)}), "http://127.0.0.1:9/", "x"); Classify(err) != KindProxy {
		t.Errorf("away: %v", err)
	}
}

func TestParseProxy(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://10.0.0.5:4750": "10.0.0.5:4750", "https://proxy.internal:443/": "proxy.internal:443", "http://u:s3cret@[::1]:8080": "[::1]:8080",
		"": "", "proxy:3128": "", "http://proxy": "", "socks5://proxy:1080": "", "http://:3128": "", "http://proxy:0": "", "http://proxy:65536": "",
		"http://u:s3cret@proxy:1/path": "", "http://proxy:1?q": "", "http://u:s3cret@pro xy:1": "",
	} {
		p, err := ParseProxy(text)
		if (err == nil) != (want != "") || err == nil && p.String() != want || err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, %v", text, p, err)
		}
	}
}

// pairFor is a self-signed client certificate.
func pairFor(t *testing.T, name string) tls.Certificate {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}
}

// Clients with certificates share the bounds and close their connections when told,
// and a server that wants none is served as by any other.
func TestWithCertificate(t *testing.T) {
	t.Parallel()
	names := make(chan string, 8)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		name := "(none)"
		if len(r.TLS.PeerCertificates) > 0 {
			name = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		names <- name
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	plain := client(t, Dev(), ClientOptions{RootCAs: roots})
	one, two := plain.WithCertificate(pairFor(t, "one")), plain.WithCertificate(pairFor(t, "two"))
	for _, c := range []struct {
		client *Client
		want   string
	}{{plain, "(none)"}, {one, "one"}, {two, "two"}, {plain, "(none)"}, {one, "one"}} {
		if _, _, err := post(t.Context(), c.client, s.URL, "x"); err != nil {
			t.Fatal(err)
		}
		if got := <-names; got != c.want {
			t.Errorf("the server saw %s, want %s", got, c.want)
		}
	}
	if n := plain.OpenConnections(); n != 3 {
		t.Fatalf("%d connections", n)
	}
	// A connection is idle only a moment after its answer was read.
	for plain.OpenConnections() != 2 {
		one.Discard()
		runtime.Gosched()
	}
	for plain.OpenConnections() != 0 {
		plain.CloseIdleConnections()
		runtime.Gosched()
	}
	wanted, _ := serve(t, true, func(http.ResponseWriter, *http.Request) {})
	roots.AddCert(wanted.Certificate())
	if _, _, err := post(t.Context(), two, wanted.URL, "x"); err != nil {
		t.Errorf("a server that asks for none: %v", err)
	}
}

// A server that refuses our certificate says so by an alert after the handshake, in
// TLS 1.3; that is a failure of TLS, and the request was not acted on.
func TestCertificateRefused(t *testing.T) {
	t.Parallel()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
		s.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(), MaxVersion: version}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.EnableHTTP2 = true
		s.StartTLS()
		t.Cleanup(s.Close)
		roots := x509.NewCertPool()
		roots.AddCert(s.Certificate())
		c := client(t, Dev(), ClientOptions{RootCAs: roots})
		for name, c := range map[string]*Client{"none": c, "another's": c.WithCertificate(pairFor(t, "x"))} {
			_, _, err := post(t.Context(), c, s.URL, "x")
			e, ok := errors.AsType[*Error](err)
			// In TLS 1.3 the server's reset may overtake its alert.
			overtaken := ok && version == tls.VersionTLS13 && e.Kind == KindReset
			if !overtaken && (!ok || e.Kind != KindTLS || e.Sent || !strings.Contains(err.Error(), "remote error: tls")) {
				t.Errorf("%s, %s: %v", tls.VersionName(version), name, err)
			}
		}
	}
}

// goAway is an HTTP/2 server, written frame by frame (RFC 9113), that answers the
// first connection's request with GOAWAY for no stream at all and every later one
// properly. It hands on the bodies that it got.
func goAway(t *testing.T) (url string, roots *x509.CertPool, bodies <-chan string) {
	t.Helper()
	s, _ := serve(t, true, nil)
	roots = x509.NewCertPool()
	roots.AddCert(s.Certificate())
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: s.TLS.Certificates, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan string, 4)
	var conns atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serveFrames(c, conns.Add(1) == 1, got)
			}()
		}
	}()
	return "https://" + l.Addr().String() + "/", roots, got
}

// HTTP/2 frame types and flags.
const (
	frameData, frameHeaders, frameSettings, frameGoAway = 0x0, 0x1, 0x4, 0x7
	flagEndStream, flagAck, flagEndHeaders              = 0x1, 0x1, 0x4
)

func writeFrame(w io.Writer, kind, flags byte, stream uint32, payload []byte) {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[5:], stream)
	_, _ = w.Write(append(head, payload...))
}

func serveFrames(c net.Conn, refuse bool, got chan<- string) {
	r := bufio.NewReader(c)
	if _, err := io.ReadFull(r, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	writeFrame(c, frameSettings, 0, 0, nil)
	body := map[uint32][]byte{}
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(r, head); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(r, payload); err != nil {
			return
		}
		stream := binary.BigEndian.Uint32(head[5:]) & 0x7fffffff
		switch kind, flags := head[3], head[4]; {
		case kind == frameSettings && flags&flagAck == 0:
			writeFrame(c, frameSettings, flagAck, 0, nil)
		case kind == frameData:
			body[stream] = append(body[stream], payload...)
			if flags&flagEndStream == 0 {
				continue
			}
			got <- string(body[stream])
			if refuse {
				// Last stream 0, NO_ERROR: this request was not acted on.
				writeFrame(c, frameGoAway, 0, 0, make([]byte, 8))
				_, _ = io.Copy(io.Discard, r)
				return
			}
			writeFrame(c, frameHeaders, flagEndStream|flagEndHeaders, stream, []byte{0x88}) // :status 200
		}
	}
}

// A server that goes away after it was sent a request, and says that it did not act
// on it, gets the whole request again on another connection, not an empty one.
func TestGoAwaySendsTheBodyAgain(t *testing.T) {
	t.Parallel()
	rawURL, roots, bodies := goAway(t)
	c := client(t, Dev(), ClientOptions{RootCAs: roots})
	body := strings.Repeat("0123456789", 100)
	ctx, trace := WithTrace(t.Context())
	status, _, err := post(ctx, c, rawURL, body)
	if err != nil || status != http.StatusOK {
		t.Fatalf("%d, %v", status, err)
	}
	for i := range 2 {
		if got := <-bodies; got != body {
			t.Errorf("request %d had %d bytes, want %d", i+1, len(got), len(body))
		}
	}
	if s := trace.Snapshot(); !s.WroteRequest || !s.HTTP2 || s.At.Wrote <= 0 || s.TLSVersion != tls.VersionTLS13 {
		t.Errorf("trace %+v", s)
	}
}

// A dial waits a little where connections outnumber requests, gives up when the
// request has one, and goes on all the same where none becomes free.
func TestDialsWaitForSurplus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cs := newCrowds()
		await := func(ctx context.Context, trace *Trace) (func(), time.Duration, error) {
			began := time.Now()
			leave, err := cs.await(ctx, "a:1", trace)
			return leave, time.Since(began), err
		}
		leave := cs.enter("a:1")
		drop1, took, err := await(t.Context(), new(Trace))
		if err != nil || took != 0 {
			t.Fatalf("the first: %v after %s", err, took)
		}
		drop2, took, err := await(t.Context(), new(Trace)) // as after a close that is not noticed yet
		if err != nil || took < surplusWait || took > surplusWait+surplusPoll {
			t.Errorf("a surplus: %v after %s", err, took)
		}
		served := &Trace{conns: 3}
		time.AfterFunc(surplusPoll*3/2, func() { served.set(func(*Snapshot) { served.conns++ }) })
		if _, took, err := await(t.Context(), served); !errors.Is(err, context.Canceled) || took != 2*surplusPoll {
			t.Errorf("served meanwhile: %v after %s", err, took)
		}
		time.AfterFunc(surplusPoll*3/2, func() { drop1(); drop2(); drop2() })
		drop3, took, err := await(t.Context(), new(Trace))
		if err != nil || took != 2*surplusPoll {
			t.Errorf("closed meanwhile: %v after %s", err, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := await(ctx, new(Trace)); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		leave()
		leave()
		drop3()
		if len(cs.by) != 0 {
			t.Errorf("left: %+v", cs.by)
		}
	})
	var none *crowds
	if leave, err := none.await(t.Context(), "a:1", nil); err != nil || leave == nil {
		t.Error(err)
	}
}
