package receive

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Sizes of body buffers. A sender gets more memory only after it has filled what
// it had, so that one that declares much and sends little holds little.
const (
	firstBuffer = 16 << 10
	smallBody   = 64 << 10
)

// budget bounds the bytes that an instance holds for bodies. The last eighth is
// for small bodies only, so that a few large ones cannot shut everyone out.
type budget struct {
	max  int64
	used atomic.Int64
}

// take reserves n more bytes for a body that will then have size bytes, or
// nothing.
func (b *budget) take(n, size int64) bool {
	most := b.max
	if size > smallBody {
		most -= most / 8
	}
	if b.used.Add(n) > most {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// reader reads one request's body.
type reader struct {
	budget *budget
	limit  int64
	buf    []byte
	held   int64
}

// read returns the body, or why it could not be had. The caller returns what
// r.held says to the budget when it is done with the body, in either case.
//
// Content-Length is checked before anything is read; a body without one is
// refused at the first byte beyond the limit. The deadline bounds the whole body:
// a sender that trickles gains nothing.
func (b *reader) read(w http.ResponseWriter, r *http.Request, timeout time.Duration) *refusal {
	if r.ContentLength > b.limit {
		return refused(reasonTooLarge, "declares %d bytes, at most %d are accepted", r.ContentLength, b.limit)
	}
	conn := http.NewResponseController(w)
	// The deadline of a socket is real time, whatever clock decides on freshness.
	// A writer without deadlines (a recorder) has no slow sender either.
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return refused(reasonBodyRead, "set the read deadline: %s", err)
	}
	var err error
	for err == nil {
		if len(b.buf) == cap(b.buf) {
			if refusal, end := b.grow(r); end {
				return b.finish(conn, refusal)
			}
		}
		var n int
		n, err = r.Body.Read(b.buf[len(b.buf):cap(b.buf)])
		b.buf = b.buf[:len(b.buf)+n]
	}
	return b.finish(conn, b.ended(err))
}

// finish takes the deadline off again: it must not end the wait for the publish
// result.
func (b *reader) finish(conn *http.ResponseController, why *refusal) *refusal {
	if why == nil {
		_ = conn.SetReadDeadline(time.Time{})
	}
	return why
}

// ended says what the end of reading means.
func (b *reader) ended(err error) *refusal {
	var timeout net.Error
	switch {
	case err == io.EOF:
		return nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return refused(reasonBodyTimeout, "only %d bytes came in time", len(b.buf))
	}
	return refused(reasonBodyRead, "after %d bytes: %s", len(b.buf), err)
}

// grow makes room for at least one more byte. end is true if there is none to
// come, or none is allowed.
func (b *reader) grow(r *http.Request) (why *refusal, end bool) {
	var next [1]byte
	n, err := 0, error(nil)
	for n == 0 && err == nil {
		n, err = r.Body.Read(next[:])
	}
	switch {
	case n == 0:
		return b.ended(err), true
	case int64(len(b.buf)) == b.limit:
		return refused(reasonTooLarge, "more than %d bytes", b.limit), true
	}
	size := min(max(int64(cap(b.buf))*2, firstBuffer), b.limit)
	if declared := r.ContentLength; declared > 0 {
		size = min(size, declared)
	}
	if !b.budget.take(size-b.held, size) {
		return refused(reasonOverloaded, "%d bytes are in flight", b.budget.used.Load()), true
	}
	b.held = size
	grown := make([]byte, len(b.buf), size)
	copy(grown, b.buf)
	b.buf = append(grown, next[0])
	if err != nil {
		return b.ended(err), true
	}
	return nil, false
}
