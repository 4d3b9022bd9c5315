package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// settle is how long a stream must have been open, unless it has brought a
// message, before it counts: one that is refused is open for a moment, too.
const settle = time.Second

// Health says whether a subscription can be consumed. It is safe for concurrent
// use.
type Health struct {
	now func() time.Time

	mu      sync.Mutex
	streams map[*watched]time.Time // when each was opened; zero: proven
	last    error
}

// NewHealth makes the health of a subscription that is not consumed yet. A nil
// clock means time.Now.
func NewHealth(now func() time.Time) *Health {
	if now == nil {
		now = time.Now
	}
	return &Health{now: now, streams: map[*watched]time.Time{}, last: errors.New("not connected yet")}
}

// Ready is nil while at least one pull stream is open, and says what is wrong
// otherwise.
func (h *Health) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, since := range h.streams {
		if since.IsZero() || h.now().Sub(since) >= settle {
			return nil
		}
	}
	if h.last == nil {
		return errors.New("pull streams are being opened")
	}
	return fmt.Errorf("no pull stream is open: %w", h.last)
}

// lost forgets all streams.
func (h *Health) lost(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.streams)
	if err == nil {
		err = errors.New("pull ended")
	}
	h.last = err
}

func (h *Health) opened(w *watched) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams[w] = h.now()
}

func (h *Health) proven(w *watched) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.streams[w]; ok {
		h.streams[w] = time.Time{}
		h.last = nil
	}
}

func (h *Health) ended(w *watched, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, w)
	if len(h.streams) == 0 {
		h.last = err
	}
}

// watcher is the interceptor of one client's pull streams.
type watcher struct {
	health *Health
	ctx    context.Context // of the client; once it is done, no stream is opened
	lost   context.CancelCauseFunc

	mu      sync.Mutex
	tried   bool          // there is a first stream
	settled chan struct{} // closed once it has been of use
	isOpen  bool          // settled is closed
}

func (h *Health) watcher(ctx context.Context, lost context.CancelCauseFunc) *watcher {
	return &watcher{health: h, ctx: ctx, lost: lost, settled: make(chan struct{})}
}

// intercept opens a stream that reports how it fares. Until the first stream has
// been of use, all others wait: messages that a stream is sent while its client
// ends, for want of a subscription, say, would wait for their lease to expire. A
// stream that cannot be opened, and a first one that fails, call lost.
func (w *watcher) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	first := w.first()
	if !first {
		select {
		case <-w.settled:
		case <-ctx.Done():
		case <-w.ctx.Done():
		}
	}
	if w.ctx.Err() != nil {
		return nil, status.Error(codes.Canceled, "the client is ending")
	}
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		w.lost(fmt.Errorf("open pull stream: %w", err))
		return nil, err
	}
	st := &watched{ClientStream: s, watcher: w, first: first}
	w.health.opened(st)
	if first {
		st.timer = time.AfterFunc(settle, w.settle)
	}
	return st, nil
}

// first reports whether the caller is to try for all.
func (w *watcher) first() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.tried
	w.tried = true
	return first
}

func (w *watcher) settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isOpen {
		w.isOpen = true
		close(w.settled)
	}
}

// unsettled reports whether no stream has been of use yet.
func (w *watcher) unsettled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.isOpen
}

// watched is a pull stream that tells how it fares.
type watched struct {
	grpc.ClientStream
	watcher *watcher
	first   bool
	timer   *time.Timer // of the first
}

func (s *watched) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.watcher.health.ended(s, err)
		if s.first && s.timer.Stop() && s.watcher.unsettled() {
			s.watcher.lost(fmt.Errorf("first pull stream: %w", err))
		}
		return err
	}
	s.watcher.settle()
	s.watcher.health.proven(s)
	return nil
}
