package localcloud

import "sync"

// ring is an io.Writer that keeps the last bytes written to it: what an emulator
// said before it died, bounded however long it talks. Safe for concurrent use.
type ring struct {
	mu    sync.Mutex
	limit int
	buf   []byte
	cut   bool // something older was dropped
}

func newRing(limit int) *ring { return &ring{limit: limit} }

func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(p)
	if over := len(r.buf) + n - r.limit; over > 0 {
		r.cut = true
		if over >= len(r.buf) {
			r.buf = r.buf[:0]
			p = p[max(0, n-r.limit):]
		} else {
			r.buf = append(r.buf[:0], r.buf[over:]...)
		}
	}
	r.buf = append(r.buf, p...)
	return n, nil
}

// String is what was kept, with a mark in front where older text was dropped.
func (r *ring) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut {
		return "[…]" + string(r.buf)
	}
	return string(r.buf)
}
