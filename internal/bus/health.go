package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
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

// interceptor watches the streams of one client. A stream that cannot be opened
// calls lost.
func (h *Health) interceptor(lost context.CancelCauseFunc) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		if err != nil {
			lost(fmt.Errorf("open pull stream: %w", err))
			return nil, err
		}
		w := &watched{ClientStream: s, health: h}
		h.opened(w)
		return w, nil
	}
}

// watched is a pull stream that tells its health how it fares.
type watched struct {
	grpc.ClientStream
	health *Health
}

func (w *watched) RecvMsg(m any) error {
	err := w.ClientStream.RecvMsg(m)
	if err != nil {
		w.health.ended(w, err)
		return err
	}
	w.health.proven(w)
	return nil
}
