package safedial

import (
	"context"
	"net"
	"net/url"
	"sync"
	"time"
)

// crowds keeps a client from opening connections that nobody needs. net/http dials
// for every request that finds no idle connection at that instant, although one may
// be given back a moment later, so that under load twice as many are opened as there
// are requests at once. Where a host has as many connections as requests, one of
// them is about to become idle: the dial waits for that a little.
type crowds struct {
	mu sync.Mutex
	by map[string]*crowd // by host:port
}

type crowd struct{ requests, conns int }

// surplusWait bounds how long a dial waits for a connection that is about to become
// idle. It is lost where none does: the peer is closing one.
const (
	surplusWait = 50 * time.Millisecond
	surplusPoll = 2 * time.Millisecond
)

func newCrowds() *crowds { return &crowds{by: map[string]*crowd{}} }

// address is what the transport will dial for u.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
		if u.Scheme == "http" {
			port = "80"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (cs *crowds) change(address string, requests, conns int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.by[address]
	if c == nil {
		c = &crowd{}
		cs.by[address] = c
	}
	c.requests, c.conns = c.requests+requests, c.conns+conns
	if *c == (crowd{}) {
		delete(cs.by, address)
	}
}

// enter counts a request; leave may be called more than once.
func (cs *crowds) enter(address string) (leave func()) {
	cs.change(address, 1, 0)
	return sync.OnceFunc(func() { cs.change(address, -1, 0) })
}

// take counts a connection to be opened, unless there is one for every request.
func (cs *crowds) take(address string, always bool) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.by[address]
	if c == nil {
		c = &crowd{}
		cs.by[address] = c
	}
	if c.conns >= c.requests && !always {
		return false
	}
	c.conns++
	return true
}

// await counts a connection that is to be opened to the address, once there is need
// of it; leave, which may be called more than once, uncounts it. An error means that
// the request has a connection by now, so that nobody waits for this one. A nil
// receiver counts and awaits nothing.
func (cs *crowds) await(ctx context.Context, address string, trace *Trace) (leave func(), err error) {
	if cs == nil {
		return func() {}, nil
	}
	if err := cs.need(ctx, address, trace); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { cs.change(address, 0, -1) }), nil
}

func (cs *crowds) need(ctx context.Context, address string, trace *Trace) error {
	if cs.take(address, false) {
		return nil
	}
	had := trace.had() // one that it lost does not count
	poll := time.NewTicker(surplusPoll)
	defer poll.Stop()
	for end := time.Now().Add(surplusWait); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
		if trace.had() > had {
			return context.Canceled
		}
		if cs.take(address, false) {
			return nil
		}
	}
	cs.take(address, true)
	return nil
}
