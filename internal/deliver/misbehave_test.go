package deliver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// rude is a server that speaks to each connection as it likes, once the request is
// read; requests and written bytes are counted.
type rude struct {
	url      string
	requests atomic.Int64
	written  atomic.Int64
}

func newRude(t *testing.T, f func(c net.Conn, gone <-chan struct{})) *rude {
	t.Helper()
	return newRuder(t, func(r *rude, c net.Conn, gone <-chan struct{}) {
		req, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		r.requests.Add(1)
		f(counting{c, &r.written}, gone)
	})
}

// newRuder leaves the request unread.
func newRuder(t *testing.T, f func(r *rude, c net.Conn, gone <-chan struct{})) *rude {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	gone := make(chan struct{})
	t.Cleanup(func() { close(gone); _ = l.Close() })
	r := &rude{url: "http://" + l.Addr().String() + "/"}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(r, c, gone)
			}()
		}
	}()
	return r
}

type counting struct {
	net.Conn
	n *atomic.Int64
}

func (c counting) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

func says(text string) func(net.Conn, <-chan struct{}) {
	return func(c net.Conn, _ <-chan struct{}) { _, _ = io.WriteString(c, text) }
}

// forever repeats text until the other side or the test ends.
func forever(first, text string, every time.Duration) func(net.Conn, <-chan struct{}) {
	return func(c net.Conn, gone <-chan struct{}) {
		_, err := io.WriteString(c, first)
		for tick := time.NewTicker(max(every, time.Nanosecond)); err == nil; {
			if every > 0 {
				select {
				case <-tick.C:
				case <-gone:
					return
				}
			}
			_, err = io.WriteString(c, text)
		}
	}
}

func reset(text string) func(net.Conn, <-chan struct{}) {
	return func(c net.Conn, _ <-chan struct{}) {
		_, _ = io.WriteString(c, text)
		_ = c.(counting).Conn.(*net.TCPConn).SetLinger(0)
	}
}

// Every way of misbehaving gives its class, within the deadline, one request, and a
// bounded number of bytes read. Sources: hookdeck/outpost#975 and #845 (answers so
// large that the attempt could not be stored, and the event was sent without end);
// MrZoller/vantage-point#49 and formancehq/ledger#1990 (a redirect to a login page
// that answered 200 counted as delivered).
func TestMisbehaviour(t *testing.T) {
	t.Parallel()
	const flood = 16 << 20 // more than buffers on the way hold
	for _, c := range []struct {
		name      string
		answer    func(net.Conn, <-chan struct{})
		class     webhook.Class
		status    int
		fault     string // part of the error
		excerpt   int    // least size
		truncated bool
		retry     time.Duration
	}{
		{name: "500", answer: says("HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"), class: "status", status: 500, fault: "answered 500", excerpt: 4},
		{name: "404 in the name of success", answer: says("HTTP/1.1 404 OK\r\nContent-Length: 0\r\n\r\n"), class: "status", status: 404, fault: "404 Not Found"},
		{name: "410", answer: says("HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"), class: "status", status: 410, fault: "answered 410"},
		{name: "429 with Retry-After", answer: says("HTTP/1.1 429 Slow\r\nRetry-After: 120\r\nContent-Length: 0\r\n\r\n"), class: "status", status: 429, fault: "429", retry: 2 * time.Minute},
		{name: "a status that is none", answer: says("HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n"), class: "status", status: 999, fault: "answered 999"},
		{name: "204", answer: says("HTTP/1.1 204 No Content\r\n\r\n"), class: "ok", status: 204},
		{name: "redirect to itself", answer: says("HTTP/1.1 307 Again\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"), class: "status", status: 307, fault: "answered 307"},
		{name: "upgrade", answer: says("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), class: "status", status: 101, fault: "answered 101"},
		{name: "hangs", answer: func(_ net.Conn, gone <-chan struct{}) { <-gone }, class: "ambiguous", fault: "timed out while waiting for the response headers"},
		{name: "closes", answer: says(""), class: "ambiguous", fault: "the connection ended"},
		{name: "resets", answer: reset(""), class: "ambiguous", fault: "the connection ended"},
		{name: "garbage", answer: says("\x16\x03\x01\x00\x00 s3cret"), class: "body", fault: "not valid HTTP"},
		{name: "drips headers", answer: forever("HTTP/1.1 200 OK\r\n", "X", 20*time.Millisecond), class: "ambiguous", fault: "timed out"},
		{name: "drips the body", answer: forever("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", "s", 20*time.Millisecond), class: "ok", status: 200, fault: "timed out while reading the response body", excerpt: 5},
		{name: "drips the body of a failure", answer: forever("HTTP/1.1 503 No\r\nContent-Length: 1000000\r\n\r\n", "s", 20*time.Millisecond), class: "status", status: 503, fault: "answered 503", excerpt: 5},
		{name: "resets within the body", answer: reset("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"), class: "ok", status: 200, fault: "broke off"},
		{name: "breaks off within the body of a failure", answer: says("HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nhalf"), class: "status", status: 500, fault: "answered 500", excerpt: 4},
		{name: "body of 100 MB", answer: forever("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n", strings.Repeat("x", 32<<10), 0), class: "ok", status: 200, excerpt: ExcerptLimit, truncated: true},
		{name: "body without end", answer: forever("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "4000\r\n"+strings.Repeat("x", 0x4000)+"\r\n", 0), class: "ok", status: 200, excerpt: ExcerptLimit, truncated: true},
		{name: "one chunk of 8 EB", answer: forever("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n", strings.Repeat("x", 32<<10), 0), class: "ok", status: 200, excerpt: ExcerptLimit, truncated: true},
		{name: "compressed, which is kept as it is", answer: says("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"), class: "ok", status: 200, excerpt: 4},
		{name: "1xx without end", answer: forever("", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 0), class: "body", fault: "too large"},
		{name: "headers without end", answer: forever("HTTP/1.1 200 OK\r\n", "X-A: "+strings.Repeat("x", 1000)+"\r\n", 0), class: "body", fault: "too large"},
		{name: "one header without end", answer: forever("HTTP/1.1 200 OK\r\nX-A: ", strings.Repeat("x", 1000), 0), class: "body", fault: "too large"},
		{name: "headers of 60 KiB", answer: says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-A: " + strings.Repeat("x", 60<<10) + "\r\n\r\n"), class: "ok", status: 200},
		{name: "two lengths", answer: says("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx"), class: "body", fault: "not valid HTTP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRude(t, c.answer)
			w := newWire(t, nil)
			began := time.Now()
			a := w.send(w.claim(r.url+"?token=s3cret", func(c *store.Claim) { c.Endpoint.Timeout = time.Second }))
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			if a.Outcome.Class != c.class || a.Outcome.Status != c.status || a.Outcome.RetryAfter != c.retry {
				t.Errorf("outcome %+v, want %s %d", a.Outcome, c.class, c.status)
			}
			if !strings.Contains(a.Error, c.fault) || (c.fault == "") != (a.Error == "") || strings.Contains(a.Error+a.URL, "s3cret") {
				t.Errorf("error %q, want %q", a.Error, c.fault)
			}
			if len(a.Excerpt) < c.excerpt || len(a.Excerpt) > ExcerptLimit || a.Truncated != c.truncated || !a.WroteRequest {
				t.Errorf("excerpt of %d bytes, truncated %t, written %t", len(a.Excerpt), a.Truncated, a.WroteRequest)
			}
			if n := r.requests.Load(); n != 1 {
				t.Errorf("%d requests", n)
			}
			if n := r.written.Load(); n > flood {
				t.Errorf("the endpoint could write %d bytes", n)
			}
		})
	}
}

// What ends before the request is written in full is no ambiguous failure: the
// endpoint cannot have acted on an event that it has not got.
func TestEndsBeforeTheRequestIsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		f     func(*rude, net.Conn, <-chan struct{})
		class webhook.Class
	}{
		{"resets at the first byte", func(_ *rude, c net.Conn, _ <-chan struct{}) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			_ = c.(*net.TCPConn).SetLinger(0)
		}, "reset"},
		{"resets while the body comes", func(_ *rude, c net.Conn, _ <-chan struct{}) {
			_, _ = io.ReadFull(c, make([]byte, 100_000))
			_ = c.(*net.TCPConn).SetLinger(0)
		}, "reset"},
		{"reads nothing", func(_ *rude, _ net.Conn, gone <-chan struct{}) { <-gone }, "timeout"},
		{"answers before it has read, and closes", func(_ *rude, c net.Conn, _ <-chan struct{}) {
			_, _ = io.ReadFull(c, make([]byte, 1000))
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		}, "status"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRuder(t, c.f)
			w := newWire(t, nil)
			a := w.send(w.claim(r.url, func(c *store.Claim) {
				c.Endpoint.Timeout = time.Second
				c.Event.Body = fmt.Appendf(nil, "%q", strings.Repeat("x", 12<<20))
			}))
			if a.Outcome.Class != c.class || a.Outcome.Class != "status" && a.WroteRequest {
				t.Errorf("%+v, %q, written %t", a.Outcome, a.Error, a.WroteRequest)
			}
		})
	}
}

// netbox-community/netbox#22761: where a redirect points to is never asked, wherever
// that is.
func TestRedirectTargetsAreNotCalled(t *testing.T) {
	t.Parallel()
	target := newInbox(t, false, nil)
	for _, location := range []string{target.URL, "http://169.254.169.254/latest/meta-data/", "http://[::1]:8080/", "//10.0.0.1/", "ftp://x/", "/elsewhere", "https://user:s3cret@a.example/"} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			in := newInbox(t, false, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", location)
				w.WriteHeader(status)
			})
			w := newWire(t, nil)
			a := w.send(w.claim(in.URL))
			if a.Outcome.Class != webhook.ClassStatus || a.Outcome.Status != status || in.count() != 1 || target.count() != 0 {
				t.Errorf("%d to %s: %+v, %d and %d requests", status, location, a, in.count(), target.count())
			}
		}
	}
}

// hookdeck/outpost#1021: a client per destination opened a connection per delivery. At
// 50 at once to one host, 1,000 deliveries open at most 60.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	var opened atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	w := newWire(t, nil)
	work := make(chan *store.Claim)
	done := make(chan error)
	const at, deliveries = 50, 1000
	for range at {
		go func() {
			for c := range work {
				a, err := w.s.send(context.Background(), c)
				if err == nil && a.Outcome.Class != webhook.ClassOK {
					err = fmt.Errorf("%+v", a)
				}
				done <- err
			}
		}()
	}
	go func() {
		for range deliveries {
			work <- w.claim(s.URL)
		}
		close(work)
	}()
	for range deliveries {
		ok(t, <-done)
	}
	if n := opened.Load(); n > 60 {
		t.Errorf("%d connections for %d deliveries, %d at once", n, deliveries, at)
	}
}

// An endpoint that closes a kept connection while it is idle costs no attempt once
// that is known here, and the body is sent whole on the next one. (A request that
// crosses the close on its way is ambiguous: the endpoint might have taken it.)
func TestClosedIdleConnection(t *testing.T) {
	t.Parallel()
	in := newInbox(t, false, nil)
	w := newWire(t, nil)
	for i := range 20 {
		if a := w.send(w.claim(in.URL)); a.Outcome.Class != webhook.ClassOK {
			t.Fatalf("delivery %d: %+v", i, a)
		}
		in.CloseClientConnections()
		for w.s.client.OpenConnections() > 0 {
			runtime.Gosched()
		}
	}
	for i, body := range in.body {
		if !bytes.Contains(body, []byte(`"data":{"amount": 19.90}}`)) {
			t.Errorf("delivery %d: %q", i, body)
		}
	}
}
