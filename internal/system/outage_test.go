package system_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// link is a way to a server that can be cut, or freeze.
type link struct {
	addr string
	to   string

	mu      sync.Mutex
	thawed  sync.Cond
	state   string // "", cut or frozen
	conns   []net.Conn
	refused int // connections since it was cut
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l := &link{addr: listener.Addr().String(), to: to}
	l.thawed.L = &l.mu
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { l.carry(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.set("cut")
		wg.Wait()
	})
	return l
}

// set changes the state: cut closes every connection and all new ones, frozen lets
// nothing through and closes nothing.
func (l *link) set(state string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.refused = state, 0
	if state == "cut" {
		for _, c := range l.conns {
			_ = c.Close()
		}
		l.conns = nil
	}
	l.thawed.Broadcast()
}

func (l *link) refusals() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// admit notes connections, unless the link is cut.
func (l *link) admit(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == "cut" {
		l.refused++
		return false
	}
	l.conns = append(l.conns, conns...)
	return true
}

func (l *link) carry(from net.Conn) {
	defer from.Close()
	if !l.admit(from) {
		return
	}
	to, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !l.admit(to) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.copy(to, from) })
	wg.Go(func() { l.copy(from, to) })
	wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = slices.DeleteFunc(l.conns, func(c net.Conn) bool { return c == from || c == to })
}

func (l *link) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		for l.state == "frozen" {
			l.thawed.Wait()
		}
		l.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// While Pub/Sub cannot be reached the provider is asked to come again, in time, and
// nothing is remembered of the event: its retry is taken and makes one event.
func TestPubSubUnreachable(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"cut", "frozen"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			r := start(t, system.Options{})
			hook := newCustomer(t, nil)
			secret := r.endpoint("ep", hook.url, nil)
			way := newLink(t, r.Env()["PUBSUB_EMULATOR_HOST"])
			src := r.source("github")
			env := r.receiverWith(map[string]any{"publish_deadline": "1s"}, src)
			env["PUBSUB_EMULATOR_HOST"] = way.addr
			receiver := r.serve(system.Receiver, env)
			event := func(n string) call {
				c := signed(t, src, n)
				c.url = receiver.url + "/in/" + src.Name
				return c
			}
			before, during := event("before"), event("during")
			r.accepted(before)

			way.set(state)
			began := time.Now()
			code, header, err := post(t.Context(), during.url, during.header, during.body)
			if took := time.Since(began); err != nil || code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || took > 4*time.Second {
				t.Errorf("answered %d after %s, Retry-After %q, %v", code, took, header.Get("Retry-After"), err)
			}
			if _, err := r.Store.Event(t.Context(), webhook.DefaultTenant, during.key); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the event is known already: %v", err)
			}
			way.set("")
			eventually(t, func() error { // the provider's retries
				code, _, err := post(t.Context(), during.url, during.header, during.body)
				if err == nil && code/100 != 2 {
					err = fmt.Errorf("a retry is answered %d", code)
				}
				return err
			})
			r.arrived(hook, secret, []sent{{before.key, before.body}, {during.key, during.body}}, 1, 1)
			receiver.stop(terminate, 10*time.Second)
		})
	}
}

// While Spanner cannot be reached providers are served all the same, and nothing is
// given up: no message is dead, and no attempt of the endpoint's is spent.
func TestSpannerUnreachable(t *testing.T) {
	t.Parallel()
	w, d := newFront(t), newFront(t)
	r := start(t, system.Options{Elsewhere: map[string]string{system.Worker: w.url, system.Dispatcher: d.url}})
	hook := newCustomer(t, nil)
	secret := r.endpoint("ep", hook.url, nil)
	way := newLink(t, r.Env()["SPANNER_EMULATOR_HOST"])
	spanner := map[string]string{"SPANNER_EMULATOR_HOST": way.addr}
	w.lead(t, r.serve(system.Worker, merged(spanner, workerEnv)).url)
	dispatcher := r.serve(system.Dispatcher, merged(spanner, dispatcherEnv(d.url)))
	d.lead(t, dispatcher.url)

	way.set("cut")
	events := r.both()
	eventually(t, func() error {
		if n := way.refusals(); n < 3 {
			return fmt.Errorf("Spanner was tried %d times", n)
		}
		return nil
	})
	if res, err := http.Get(dispatcher.url + "/health/ready"); err != nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the dispatcher says that it is ready: %v, %v", res, err)
	} else {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	way.set("")
	r.arrived(hook, secret, events, 1, 1)
	if dead := r.deadMessages(); len(dead) > 0 {
		t.Errorf("dead messages: %+v", dead)
	}
}
