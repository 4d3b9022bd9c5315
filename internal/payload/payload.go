// Package payload owns the compressed form of event bodies, which the store's
// rows and oversized Pub/Sub messages share: zstd (RFC 8878), used only where it
// saves space.
//
// It refuses to look inside a body and to produce more bytes than its caller
// allows: what comes from a message or a row may be hostile.
package payload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Encoding names the compressed form in attributes and columns. The empty string
// stands for bytes as they are.
const Encoding = "zstd"

const (
	// minBytes is the size below which compressing is not tried.
	minBytes = 1 << 10
	// window bounds what one encoder or decoder keeps. Frames that ask for more
	// were not written here and are refused.
	window = 4 << 20
	// growth is how much output is reserved ahead for each byte of input: a frame
	// header may claim any size, so it is not believed at once.
	growth = 64
)

// Errors that [Decompress] returns, wrapped.
var (
	ErrTooLarge = errors.New("decompressed payload is too large")
	ErrCorrupt  = errors.New("compressed payload is corrupt")
)

// encoder is safe for concurrent use; its concurrency bounds how many encoder
// states exist at once, and callers beyond that wait.
var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderConcurrency(min(runtime.GOMAXPROCS(0), 4)),
		zstd.WithWindowSize(window),
		zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic("payload: encoder options: " + err.Error()) // constants only
	}
	return e
})

// decoders holds idle *zstd.Decoder. With a concurrency of one a decoder works
// in its caller's goroutine and the collector may take it when idle.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(window))
	if err != nil {
		panic("payload: decoder options: " + err.Error()) // constants only
	}
	return d
}}

// Compress returns the compressed form of b and true if b has at least 1 KiB and
// the result is at least a tenth smaller; else nil and false, and b is to be kept
// as it is. It never changes or keeps b and is safe for concurrent use.
func Compress(b []byte) (out []byte, ok bool) {
	if len(b) < minBytes {
		return nil, false
	}
	out = Pack(b)
	if len(out) > len(b)-len(b)/10 {
		return nil, false
	}
	return out, true
}

// Pack returns the compressed form of b, whatever it saves: for where only its
// size against a limit counts.
func Pack(b []byte) []byte { return encoder().EncodeAll(b, make([]byte, 0, len(b)/2)) }

// Size is the size that b, a result of [Compress], claims to have unpacked; false
// if it claims none or is no such frame. It decodes only the frame's header.
func Size(b []byte) (n int64, ok bool) {
	var h zstd.Header
	if h.Decode(b) != nil || !h.HasFCS || h.FrameContentSize > math.MaxInt64 {
		return 0, false
	}
	return int64(h.FrameContentSize), true
}

// Decompress returns the bytes that [Compress] was given. It fails with
// [ErrTooLarge] as soon as they would be more than limit, and with [ErrCorrupt]
// for anything that is not an intact frame (frames carry a checksum). Its memory
// follows the bytes really decoded, not what a frame's header claims. It is safe
// for concurrent use.
func Decompress(b []byte, limit int64) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if h.HasFCS && (limit < 0 || h.FrameContentSize > uint64(limit)) {
		return nil, fmt.Errorf("%w: frame holds %d bytes, at most %d are allowed", ErrTooLarge, h.FrameContentSize, limit)
	}
	d := decoders.Get().(*zstd.Decoder)
	defer func() {
		_ = d.Reset(nil) // lets go of b; never fails for nil
		decoders.Put(d)
	}()
	if err := d.Reset(bytes.NewReader(b)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	var out bytes.Buffer
	if h.HasFCS {
		out.Grow(int(min(h.FrameContentSize, uint64(len(b))*growth)) + bytes.MinRead)
	}
	switch n, err := io.Copy(&out, io.LimitReader(d, max(limit, 0)+1)); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	case n > limit:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return out.Bytes(), nil
}
