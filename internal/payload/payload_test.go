package payload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func noise(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func TestCompressOnlyWhereItHelps(t *testing.T) {
	t.Parallel()
	// mixed is n bytes of which the first noisy ones do not compress.
	mixed := func(n, noisy int) []byte { return append(noise(noisy), make([]byte, n-noisy)...) }
	for _, c := range []struct {
		name string
		in   []byte
		ok   bool
	}{
		{"nothing", nil, false},
		{"one byte short of a KiB", bytes.Repeat([]byte("a"), 1023), false},
		{"a KiB", bytes.Repeat([]byte("a"), 1024), true},
		{"noise", noise(100_000), false},
		{"saves less than a tenth", mixed(100_000, 92_000), false},
		{"saves more than a tenth", mixed(100_000, 88_000), true},
		{"25 MB of text", bytes.Repeat([]byte("the quick brown fox "), 25<<20/20), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			before := bytes.Clone(c.in)
			out, ok := Compress(c.in)
			if ok != c.ok {
				t.Fatalf("ok = %v (%d bytes from %d), want %v", ok, len(out), len(c.in), c.ok)
			}
			if !bytes.Equal(before, c.in) {
				t.Fatal("the input was changed")
			}
			if !ok {
				return
			}
			back, err := Decompress(out, int64(len(c.in)))
			if err != nil || !bytes.Equal(back, c.in) {
				t.Fatalf("back: %d bytes, %v; want the %d that went in", len(back), err, len(c.in))
			}
		})
	}
}

func TestDecompressIsBounded(t *testing.T) {
	t.Parallel()
	kib, _ := Compress(make([]byte, 1024))
	bomb, _ := Compress(make([]byte, 64<<20))
	streamed := stream(t, make([]byte, 8<<20), window) // no content size in its header
	liar := bytes.Clone(bomb)                          // claims 2 GiB: refused, or not reserved
	var h zstd.Header
	if err := h.Decode(liar); err != nil || !h.HasFCS {
		t.Fatalf("header: %+v, %v", h, err)
	}
	binary.LittleEndian.PutUint32(liar[h.HeaderSize-4:], 1<<31)

	for _, c := range []struct {
		name  string
		in    []byte
		limit int64
		want  error
	}{
		{"exactly the limit", kib, 1024, nil},
		{"one byte over", kib, 1023, ErrTooLarge},
		{"limit 0", kib, 0, ErrTooLarge},
		{"negative limit", kib, -1, ErrTooLarge},
		{"bomb", bomb, 25 << 20, ErrTooLarge},
		{"bomb without a size", streamed, 1 << 20, ErrTooLarge},
		{"without a size, within the limit", streamed, 8 << 20, nil},
		{"two frames beyond the limit", append(bytes.Clone(kib), kib...), 2047, ErrTooLarge},
		{"two frames within it", append(bytes.Clone(kib), kib...), 2048, nil},
		{"size claimed is wrong", liar, 1 << 40, ErrCorrupt},
		{"window larger than ours", stream(t, make([]byte, 40<<20), 32<<20), 64 << 20, ErrCorrupt},
		{"nothing", nil, 1024, ErrCorrupt},
		{"text", []byte(strings.Repeat("plain", 100)), 1024, ErrCorrupt},
		{"cut short", kib[:len(kib)-3], 1024, ErrCorrupt},
		{"garbage behind", append(bytes.Clone(kib), "garbage"...), 1024, ErrCorrupt},
		{"wrong checksum", flip(kib), 1024, ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if _, err := Decompress(c.in, c.limit); !errors.Is(err, c.want) {
				t.Fatalf("error = %v, want %v", err, c.want)
			}
		})
	}
}

func flip(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)-1] ^= 1
	return b
}

func stream(t *testing.T, b []byte, win int) []byte {
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(win), zstd.WithSingleSegment(false))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestConcurrentUseAndReuseAfterFailure(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			in := bytes.Repeat([]byte(fmt.Sprintf("event %d ", i)), 1000+i)
			for range 20 {
				out, ok := Compress(in)
				if !ok {
					t.Error("not compressed")
					return
				}
				if _, err := Decompress(out[:len(out)/2], 1<<20); !errors.Is(err, ErrCorrupt) {
					t.Errorf("half a frame: %v", err)
				}
				if back, err := Decompress(out, 1<<20); err != nil || !bytes.Equal(back, in) {
					t.Errorf("goroutine %d: %d bytes, %v", i, len(back), err)
				}
			}
		})
	}
	wg.Wait()
}

func FuzzDecompress(f *testing.F) {
	out, _ := Compress(make([]byte, 4096))
	f.Add(out)
	f.Add([]byte("not a frame"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if back, err := Decompress(b, 1<<16); err == nil && len(back) > 1<<16 {
			t.Fatalf("%d bytes, more than allowed", len(back))
		}
	})
}

func Example() {
	body := []byte(strings.Repeat(`{"type":"invoice.paid"}`, 100))
	small, ok := Compress(body)
	back, err := Decompress(small, 1<<20)
	fmt.Println(ok, len(small) < 100, bytes.Equal(back, body), err)
	// Output: true true true <nil>
}
