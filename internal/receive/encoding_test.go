package receive

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/webhook"
)

func gzipped(parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		z := gzip.NewWriter(&b)
		z.Name, z.Comment = "event.json", "as some senders write it"
		_, _ = io.WriteString(z, p) // into memory
		_ = z.Close()
	}
	return b.Bytes()
}

func zlibbed(s string) []byte {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.Bytes()
}

func deflated(s string) []byte {
	var b bytes.Buffer
	z, _ := flate.NewWriter(&b, flate.BestCompression)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.Bytes()
}

// likeZlib is raw deflate that begins as zlib does, 0x78 and a length of which the
// pair is a multiple of 31: a stored block that is not the last (RFC 1951, section
// 3.2.4; the bits after its three may be anything), and an empty last one.
func likeZlib(s string) []byte {
	first := len(s)
	for first > 0 && (0x78<<8|first)%31 != 0 {
		first--
	}
	stored := func(head byte, s string) []byte {
		return append([]byte{head, byte(len(s)), byte(len(s) >> 8), ^byte(len(s)), ^byte(len(s) >> 8)}, s...)
	}
	return append(stored(0x78, s[:first]), stored(1, s[first:])...)
}

const eventJSON = `{"id":"evt_1","type":"invoice.paid","created":1777900000,"n":0.0}`

// Both orders of signing and compressing, and every way of writing a coding. What
// subscribers get is what their Content-Type describes.
func TestContentEncoding(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, mode string
		coding     []string
		wire       []byte
		signed     string // what the provider signed; the wire if empty
		status     int
		reason     string
		forge      bool
	}{
		{name: "plain, refused mode", wire: []byte(eventJSON), status: 200},
		{name: "plain, signed-encoded", mode: EncodingSigned, wire: []byte(eventJSON), status: 200},
		{name: "plain, signed-decoded", mode: EncodingDecoded, wire: []byte(eventJSON), status: 200},
		{name: "identity", coding: []string{"Identity"}, wire: []byte(eventJSON), status: 200},
		{name: "empty", coding: []string{""}, wire: []byte(eventJSON), status: 200},
		{name: "a character set", coding: []string{"UTF-8"}, wire: []byte(eventJSON), status: 200},

		{name: "refused by default", coding: []string{"gzip"}, wire: gzipped(eventJSON), status: 415, reason: "content_encoding"},
		{name: "refused", mode: EncodingRefuse, coding: []string{"deflate"}, wire: zlibbed(eventJSON), status: 415, reason: "content_encoding"},
		{name: "refused and forged", coding: []string{"gzip"}, wire: gzipped(eventJSON), forge: true, status: 401, reason: "mismatch"},
		{name: "refused, signed before", coding: []string{"gzip"}, wire: gzipped(eventJSON), signed: eventJSON, status: 401, reason: "mismatch"},

		{name: "gzip, signed as sent", mode: EncodingSigned, coding: []string{"gzip"}, wire: gzipped(eventJSON), status: 200},
		{name: "x-gzip in capitals", mode: EncodingSigned, coding: []string{" X-GZIP"}, wire: gzipped(eventJSON), status: 200},
		{name: "two members", mode: EncodingSigned, coding: []string{"gzip"}, wire: gzipped(eventJSON[:10], eventJSON[10:]), status: 200},
		{name: "zlib", mode: EncodingSigned, coding: []string{"deflate"}, wire: zlibbed(eventJSON), status: 200},
		{name: "raw deflate", mode: EncodingSigned, coding: []string{"deflate"}, wire: deflated(eventJSON), status: 200},
		{name: "stored deflate", mode: EncodingSigned, coding: []string{"deflate"}, wire: likeZlib(eventJSON), status: 200},
		{name: "signed before, mode says after", mode: EncodingSigned, coding: []string{"gzip"}, wire: gzipped(eventJSON), signed: eventJSON, status: 401, reason: "mismatch"},
		{name: "forged is not decoded", mode: EncodingSigned, coding: []string{"gzip"}, wire: []byte("no gzip"), forge: true, status: 401, reason: "mismatch"},
		{name: "authentic, no gzip", mode: EncodingSigned, coding: []string{"gzip"}, wire: []byte("no gzip"), status: 400, reason: "bad_body"},
		{name: "authentic, cut short", mode: EncodingSigned, coding: []string{"gzip"}, wire: gzipped(eventJSON)[:40], status: 400, reason: "bad_body"},
		{name: "authentic, empty", mode: EncodingSigned, coding: []string{"gzip"}, wire: []byte{}, status: 400, reason: "bad_body"},
		{name: "zeros behind gzip", mode: EncodingSigned, coding: []string{"gzip"}, wire: append(gzipped(eventJSON), 0, 0), status: 400, reason: "bad_body"},
		{name: "text behind gzip", mode: EncodingSigned, coding: []string{"gzip"}, wire: append(gzipped(eventJSON), "x"...), status: 400, reason: "bad_body"},
		{name: "text behind zlib", mode: EncodingSigned, coding: []string{"deflate"}, wire: append(zlibbed(eventJSON), "x"...), status: 400, reason: "bad_body"},
		{name: "text behind deflate", mode: EncodingSigned, coding: []string{"deflate"}, wire: append(deflated(eventJSON), "x"...), status: 400, reason: "bad_body"},
		{name: "bad checksum", mode: EncodingSigned, coding: []string{"gzip"}, wire: flip(gzipped(eventJSON), -6), status: 400, reason: "bad_body"},
		{name: "bad checksum of zlib", mode: EncodingSigned, coding: []string{"deflate"}, wire: flip(zlibbed(eventJSON), -1), status: 400, reason: "bad_body"},
		{name: "brotli", mode: EncodingSigned, coding: []string{"br"}, wire: []byte(eventJSON), status: 415, reason: "content_encoding"},
		{name: "twice gzip", mode: EncodingSigned, coding: []string{"gzip, gzip"}, wire: gzipped(string(gzipped(eventJSON))), status: 415, reason: "content_encoding"},
		{name: "gzip on two lines", mode: EncodingSigned, coding: []string{"gzip", "gzip"}, wire: gzipped(eventJSON), status: 415, reason: "content_encoding"},
		{name: "more members than are read", mode: EncodingSigned, coding: []string{"gzip"}, wire: gzipped(make([]string, maxMembers+1)...), status: 400, reason: "bad_body"},

		{name: "gzip, signed before", mode: EncodingDecoded, coding: []string{"gzip"}, wire: gzipped(eventJSON), signed: eventJSON, status: 200},
		{name: "zlib, signed before", mode: EncodingDecoded, coding: []string{"deflate"}, wire: zlibbed(eventJSON), signed: eventJSON, status: 200},
		{name: "signed after, mode says before", mode: EncodingDecoded, coding: []string{"gzip"}, wire: gzipped(eventJSON), status: 401, reason: "mismatch"},
		{name: "nothing to verify", mode: EncodingDecoded, coding: []string{"gzip"}, wire: []byte("no gzip"), status: 401, reason: "undecodable"},
		{name: "unknown coding, nothing to verify", mode: EncodingDecoded, coding: []string{"br"}, wire: []byte(eventJSON), status: 401, reason: "undecodable"},
		{name: "twice gzip, nothing to verify", mode: EncodingDecoded, coding: []string{"gzip,gzip"}, wire: gzipped(string(gzipped(eventJSON))), signed: eventJSON, status: 401, reason: "undecodable"},
		{name: "text behind, nothing to verify", mode: EncodingDecoded, coding: []string{"gzip"}, wire: append(gzipped(eventJSON), "x"...), signed: eventJSON, status: 401, reason: "undecodable"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "stripe", func(_ *Config, s *Source) { s.ContentEncoding = c.mode })
			signed := c.wire
			if c.signed != "" {
				signed = []byte(c.signed)
			}
			signer := b
			if c.forge {
				signer = newBench(t, "stripe", nil)
			}
			r := signer.sign(t, provider.Sample{Body: signed}, noon)
			r.Body = c.wire
			if c.coding != nil {
				r.Header["Content-Encoding"] = c.coding
			}
			w := b.send(r)
			if got := b.reasons(t); w.Code != c.status || got != strings.TrimSuffix(c.reason+":1", map[bool]string{true: ":1"}[c.reason == ""]) {
				t.Fatalf("%d %q", w.Code, got)
			}
			if b.rc.budget.used.Load() != 0 {
				t.Errorf("%d bytes still held", b.rc.budget.used.Load())
			}
			if c.status != 200 {
				if len(b.fake.events) != 0 {
					t.Error("published")
				}
				return
			}
			ev := b.fake.events[0]
			if string(ev.Body) != eventJSON || ev.PublisherID != "evt_1" || ev.Type != "invoice.paid" {
				t.Errorf("published %q as %s %s", ev.Body, ev.PublisherID, ev.Type)
			}
			if slices.ContainsFunc(ev.Headers, func(h webhook.Header) bool { return h.Name == "Content-Encoding" }) {
				t.Errorf("the published bytes are in no coding: %v", ev.Headers)
			}
		})
	}
}

func flip(b []byte, at int) []byte {
	b[len(b)+at] ^= 1
	return b
}

// Two compressions of one body are one event.
func TestEncodedBodyIsNamedByItsContent(t *testing.T) {
	t.Parallel()
	b := newBench(t, "github", func(_ *Config, s *Source) { s.ContentEncoding = EncodingSigned })
	for _, wire := range [][]byte{gzipped(eventJSON), gzipped(eventJSON[:5], eventJSON[5:]), deflated(eventJSON), []byte(eventJSON)} {
		r := b.sign(t, provider.Sample{Body: wire}, noon)
		r.Header.Del("X-GitHub-Delivery")
		r.Header.Set("Content-Encoding", "gzip")
		switch {
		case bytes.Equal(wire, []byte(eventJSON)):
			r.Header.Del("Content-Encoding")
		case wire[0] != 0x1f:
			r.Header.Set("Content-Encoding", "deflate")
		}
		if w := b.send(r); w.Code != 200 {
			t.Fatal(w.Code, b.reasons(t))
		}
	}
	for _, ev := range b.fake.events {
		if ev.Key != b.fake.events[0].Key {
			t.Errorf("%s is not %s", ev.PublisherID, b.fake.events[0].PublisherID)
		}
	}
}

// A bomb is stopped at the source's limit, to the byte, in either mode, and its
// memory is taken from the instance's budget.
func TestDecompressionBombs(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for _, mode := range []string{EncodingSigned, EncodingDecoded} {
		for _, c := range []struct {
			size   int
			status int
			reason string
		}{{limit - 1, 200, ""}, {limit, 200, ""}, {limit + 1, 413, "too_large:1"}, {1 << 30, 413, "too_large:1"}} {
			wire := gzipped(strings.Repeat("x", min(c.size, limit+1)))
			if c.size > limit+1 { // a thousand members of a megabyte
				wire = bytes.Repeat(gzipped(strings.Repeat("x", limit)), c.size>>20)
			}
			b := newBench(t, "github", func(_ *Config, s *Source) { s.ContentEncoding, s.BodyLimit = mode, limit })
			signed := wire
			if mode == EncodingDecoded && c.size <= limit {
				signed = []byte(strings.Repeat("x", c.size))
			}
			r := b.sign(t, provider.Sample{Body: signed}, noon)
			r.Body = wire
			r.Header.Set("Content-Encoding", "gzip")
			w := b.send(r)
			if w.Code != c.status || b.reasons(t) != c.reason || b.rc.budget.used.Load() != 0 {
				t.Errorf("%s, %d bytes: %d %s, %d bytes held", mode, c.size, w.Code, b.reasons(t), b.rc.budget.used.Load())
			}
		}
	}
	// Without memory for what it becomes, a body is put off, not refused for good.
	d := decoder{budget: &budget{max: 64 << 10}, limit: limit}
	if _, err := d.decode(gzipped(strings.Repeat("x", limit)), "gzip"); err == nil || d.why == nil || d.why.status() != http.StatusServiceUnavailable {
		t.Errorf("%v, %v", err, d.why)
	}
	if d.held > d.budget.max || d.held != d.budget.used.Load() {
		t.Errorf("%d held, %d taken", d.held, d.budget.used.Load())
	}
	// Empty members cost time, not memory: they are counted.
	if _, err := (&decoder{budget: &budget{max: limit}, limit: limit}).decode(gzipped(make([]string, maxMembers)...), "gzip"); err != nil {
		t.Errorf("%d members: %v", maxMembers, err)
	}
}

// The refused sender learns nothing of how a source is set up.
func TestEncodedRefusalsLookAlike(t *testing.T) {
	t.Parallel()
	want := ""
	for _, mode := range []string{EncodingRefuse, EncodingSigned, EncodingDecoded} {
		for _, name := range []string{"", "gzip", "br", "gzip, gzip"} {
			rc := newReceiver(t, Config{Publisher: &fake{}, Sources: []Source{githubSource(func(s *Source) { s.ContentEncoding = mode })}})
			r := httptest.NewRequest(http.MethodPost, "/in/gh", strings.NewReader("{}"))
			r.Header.Set("Content-Encoding", name)
			r.Header.Set("X-Hub-Signature-256", "sha256="+mac("other", "{}"))
			w := httptest.NewRecorder()
			rc.Routes().ServeHTTP(w, r)
			got := fmt.Sprint(w.Code, w.Header(), w.Body)
			if want == "" {
				want = got
			}
			if w.Code != 401 || got != want {
				t.Errorf("%s %q: %s, want %s", mode, name, got, want)
			}
		}
	}
}

func TestVerifyEncodedRequests(t *testing.T) {
	t.Parallel()
	wire := gzipped("command=x")
	for _, c := range []struct {
		mode, signed, want string
	}{
		{"", string(wire), "ok"}, // what a capture does not tell is assumed: the scheme signs what it sends
		{EncodingSigned, string(wire), "ok"},
		{EncodingDecoded, "command=x", "ok"},
		{EncodingDecoded, string(wire), "mismatch"},
		{EncodingSigned, "command=x", "mismatch"},
		{EncodingRefuse, string(wire), "content_encoding"},
		{"both", string(wire), ReasonBadOption},
	} {
		r := slackCapture("key", []byte(c.signed))
		r.Body = wire
		r.Header = append(r.Header, webhook.Header{Name: "Content-Encoding", Value: "gzip"})
		if c.mode != "" {
			r.Options = map[string]json.RawMessage{"content_encoding": json.RawMessage(`"` + c.mode + `"`)}
		}
		if v := VerifyRequests(t.Context(), []CapturedRequest{r})[0]; v.Reason != c.want {
			t.Errorf("%q: %+v, want %s", c.mode, v, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range [][]byte{gzipped("a"), gzipped("", "b"), zlibbed("c"), deflated("d"), likeZlib("e"), nil} {
		f.Add(b, "gzip")
		f.Add(b, "deflate")
	}
	f.Fuzz(func(t *testing.T, b []byte, coding string) {
		d := decoder{budget: &budget{max: 1 << 20}, limit: 64 << 10}
		out, err := d.decode(b, coding)
		if int64(len(out)) > d.limit && err == nil || d.held != d.budget.used.Load() {
			t.Errorf("%d bytes, %d held, %d taken", len(out), d.held, d.budget.used.Load())
		}
	})
}
