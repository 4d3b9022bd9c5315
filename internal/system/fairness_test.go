package system_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// misbehaving is an endpoint that fails in a way of its own.
type misbehaving struct {
	name    string
	serve   func(c net.Conn, r *bufio.Reader) // one connection, whose request is not read yet
	url     func(addr string) string
	timeout time.Duration
	state   webhook.DeliveryState // in which its deliveries end
	class   webhook.Class         // of the last attempt; empty: of any
}

// crowd is many endpoints, a tenth of which misbehave.
type crowd struct {
	*rig
	mu       sync.Mutex
	got      map[string]bool // what healthy endpoints have been sent, by path and event
	want     int
	served   chan struct{} // closed when they have everything
	answered chan struct{} // closed then
	hanging  atomic.Int64  // requests that endpoints have kept waiting
	sent     atomic.Int64  // bytes of endless answers
}

// plainly reads a request and then does what it does.
func plainly(do func(c net.Conn)) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err == nil {
			_, err = io.Copy(io.Discard, req.Body)
		}
		if err == nil {
			do(c)
		}
	}
}

func says(text string) func(net.Conn, *bufio.Reader) {
	return plainly(func(c net.Conn) { _, _ = io.WriteString(c, text) })
}

// endlessly writes a part again and again until the other side has had enough.
func (w *crowd) endlessly(head, part string, every time.Duration) func(net.Conn, *bufio.Reader) {
	return plainly(func(c net.Conn) {
		_, err := io.WriteString(c, head)
		for err == nil && w.t.Context().Err() == nil {
			var n int
			n, err = io.WriteString(c, part)
			w.sent.Add(int64(n))
			if every > 0 {
				select {
				case <-time.After(every):
				case <-w.t.Context().Done():
				}
			}
		}
	})
}

// hang answers once every healthy endpoint has been served, however long that is.
func (w *crowd) hang() func(net.Conn, *bufio.Reader) {
	return plainly(func(c net.Conn) {
		w.hanging.Add(1)
		select {
		case <-w.answered:
		case <-w.t.Context().Done():
		}
		_, _ = io.WriteString(c, "HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
}

func (w *crowd) kinds() []misbehaving {
	plain := func(addr string) string { return "http://" + addr + "/hook" }
	big := "HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n"
	return []misbehaving{
		{"500", says("HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), plain, 0, webhook.DeliveryDead, webhook.ClassStatus},
		{"hang", w.hang(), plain, webhook.MaxTimeout, webhook.DeliveryDead, ""},
		{"timeout", plainly(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), plain, time.Second, webhook.DeliveryDead, webhook.ClassAmbiguous},
		{"reset", plainly(func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }), plain, 0, webhook.DeliveryDead, webhook.ClassAmbiguous},
		{"reset-mid-body", plainly(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nhalf")
			_ = c.(*net.TCPConn).SetLinger(0)
		}), plain, 0, webhook.DeliveryDead, ""},
		{"redirect", says("HTTP/1.1 302 Found\r\nLocation: /hook\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), plain, 0, webhook.DeliveryDead, webhook.ClassStatus},
		{"tls-garbage", func(c net.Conn, r *bufio.Reader) {
			_, _ = r.Peek(1)
			_, _ = io.WriteString(c, "not TLS at all\r\n\r\n")
		},
			func(addr string) string { return "https://" + addr + "/hook" }, 0, webhook.DeliveryDead, webhook.ClassTLS},
		{"410", says("HTTP/1.1 410 Gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), plain, 0, webhook.DeliveryHeld, ""},
		{"429", says("HTTP/1.1 429 Slow\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), plain, 0, webhook.DeliveryDead, webhook.ClassStatus},
		{"drip", w.endlessly("HTTP/1.1 200 OK\r\n", "X", 20*time.Millisecond), plain, time.Second, webhook.DeliveryDead, ""},
		{"100mb", w.endlessly(big, string(make([]byte, 64<<10)), 0), plain, 0, webhook.DeliveryDelivered, webhook.ClassOK},
		{"1xx-flood", w.endlessly("", "HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n", 0), plain, 5 * time.Second, webhook.DeliveryDead, ""},
	}
}

// listen serves a misbehaving endpoint, connection by connection.
func (w *crowd) listen(m misbehaving) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(w.t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := make(chan struct{})
			wg.Go(func() { // the end of the test ends every connection
				select {
				case <-w.t.Context().Done():
				case <-stop:
				}
				_ = c.Close()
			})
			wg.Go(func() {
				defer close(stop)
				m.serve(c, bufio.NewReader(c))
			})
		}
	})
	w.t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return m.url(l.Addr().String())
}

// arrived notes what a healthy endpoint was sent, be it for the second time.
func (w *crowd) arrived(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.got[what] {
		if w.got[what] = true; len(w.got) == w.want {
			close(w.served)
		}
	}
}

// good serves every healthy endpoint.
func (w *crowd) good() string {
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			rw.WriteHeader(http.StatusNoContent)
			w.arrived(r.URL.Path + " " + r.Header.Get("Webhook-Id"))
		}
	}))
	w.t.Cleanup(srv.Close)
	return srv.URL
}

// Two hundred endpoints, of which two dozen fail in a dozen ways, each event going to
// all: the healthy ones get all of theirs while others still keep their requests
// waiting, every delivery ends in the state that it should, and no endless answer is
// read to its end.
func TestFailingEndpointsAmongHealthyOnes(t *testing.T) {
	t.Parallel()
	const endpoints, events = 200, 2
	w := &crowd{rig: start(t, system.Options{Pull: true}), answered: make(chan struct{}), served: make(chan struct{}), got: map[string]bool{}}
	kinds := w.kinds()
	w.want = (endpoints - 2*len(kinds)) * events
	states := map[string]misbehaving{}
	for _, m := range kinds {
		for i := range 2 {
			id := fmt.Sprintf("bad-%s-%d", m.name, i)
			states[id] = m
			w.endpoint(id, w.listen(m), func(ep *webhook.Endpoint) {
				ep.Retry.Delays = []time.Duration{0, 50 * time.Millisecond}
				ep.Timeout, ep.Health.FailuresToOpen = m.timeout, -1
			})
		}
	}
	url := w.good()
	for i := range endpoints - 2*len(kinds) {
		w.endpoint(fmt.Sprint("good-", i), fmt.Sprintf("%s/hook/%d", url, i), nil)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range events {
		w.publish(map[string]string{"ce-type": "a.b", "ce-id": fmt.Sprint(i), "content-type": "application/json"}, []byte(`{"n":1}`))
	}
	select {
	case <-w.served:
	case <-time.After(4 * patience): // a slow machine is no fault: the others are kept waiting meanwhile
		t.Fatal("healthy endpoints wait behind failing ones")
	}
	eventually(t, func() error { // nobody of these was answered until now
		if w.hanging.Load() == 0 {
			return errors.New("no request is kept waiting")
		}
		return nil
	})
	close(w.answered)
	for i := range events {
		for id, m := range states {
			d, attempts := w.inState(app(fmt.Sprint(i)), id, m.state)
			if m.class != "" && d.LastClass != m.class || len(attempts) > 2 {
				t.Errorf("%s: class %q after %d attempts, want %q", id, d.LastClass, len(attempts), m.class)
			}
		}
		for n := range endpoints - 2*len(kinds) {
			w.inState(app(fmt.Sprint(i)), fmt.Sprint("good-", n), webhook.DeliveryDelivered)
		}
	}
	w.drained()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 200<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
	// Of a hundred megabytes an endpoint can send what is read and what lies in buffers.
	if n := w.sent.Load(); n > 12*events*20<<20 {
		t.Errorf("endless answers were taken for %d MiB", n>>20)
	}
}
