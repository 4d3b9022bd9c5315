package provider

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// vector is one request with the right verdict; see testdata/README.md.
type vector struct {
	Name    string
	Scheme  string
	Secret  any // a text or a list of texts
	Headers map[string]any
	Method  string
	URL     string
	Body    []byte `json:"body_base64"`
	Now     int64  `json:"now_unix"`
	Options struct {
		Tolerance              *int64 `json:"tolerance_s"`
		Hash, Encoding, Header string
		WebhookID              string `json:"webhook_id"`
	}
	Expect string
	Reason string
}

func vectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []vector
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func (v *vector) scheme(t testing.TB) *Scheme {
	t.Helper()
	o := Options{WebhookID: v.Options.WebhookID}
	switch v.Scheme {
	case genericHMAC:
		o.HMAC = &HMAC{Header: v.Options.Header, Hash: v.Options.Hash, Encoding: v.Options.Encoding}
	case "aws-sns":
		o.Topics = []string{"*"}
	}
	if s := v.Options.Tolerance; s != nil && v.Scheme != genericHMAC {
		d := time.Duration(*s) * time.Second
		o.Tolerance = &d
	}
	s, err := New(v.Scheme, o)
	if err != nil {
		t.Fatalf("%s: %v", v.Name, err)
	}
	return s
}

func (v *vector) secrets() []Secret {
	var out []Secret
	for i, text := range texts(v.Secret) {
		out = append(out, NewSecret("test", i+1, []byte(text)))
	}
	return out
}

func (v *vector) request() Request {
	h := http.Header{}
	for name, values := range v.Headers {
		for _, value := range texts(values) {
			h.Add(name, value)
		}
	}
	method := v.Method
	if method == "" {
		method = http.MethodPost
	}
	return Request{Method: method, Header: h, URL: v.URL, Body: v.Body}
}

func texts(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, e := range v {
			out = append(out, e.(string))
		}
		return out
	}
	return nil
}

func TestVectors(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			s := v.scheme(t)
			id, err := s.Verify(v.request(), v.secrets(), time.Unix(v.Now, 0))
			if (err == nil) != (v.Expect == "accept") {
				t.Fatalf("want %s (%s), got %v", v.Expect, v.Reason, err)
			}
			var refusal *Refusal
			if err != nil && !errors.As(err, &refusal) {
				t.Fatalf("%T is no refusal", err)
			}
			if err != nil {
				return
			}
			if id.ID == "" || id.Type == "" {
				t.Errorf("accepted without identity: %+v", id)
			}
			// No code path accepts without the signature: each of its headers is needed.
			for _, h := range s.headers {
				for _, name := range []string{h.signature, h.timestamp, h.id} {
					r := v.request()
					if r.Header.Get(name) == "" {
						continue
					}
					r.Header.Del(name)
					if _, err := s.Verify(r, v.secrets(), time.Unix(v.Now, 0)); !isReason(err, MissingSignature) {
						t.Errorf("without %s: %v", name, err)
					}
				}
			}
			if id.Response != nil || s.key == nil || s.note != "" && strings.HasPrefix(s.note, "nothing is signed") {
				return
			}
			r := v.request()
			r.Body = append([]byte("x"), r.Body...)
			if _, err := s.Verify(r, v.secrets(), time.Unix(v.Now, 0)); err == nil || s.claims == nil && !isReason(err, Mismatch) && !isReason(err, MissingSignature) {
				t.Errorf("with another body: %v", err)
			}
		})
	}
}

func isReason(err error, want Reason) bool {
	var r *Refusal
	return errors.As(err, &r) && r.Reason == want
}

func BenchmarkVerify(b *testing.B) {
	done := map[string]bool{}
	for _, v := range vectors(b) {
		if v.Expect != "accept" || done[v.Scheme] || len(v.Body) > 4096 {
			continue
		}
		done[v.Scheme] = true
		s, r, secrets, now := v.scheme(b), v.request(), v.secrets(), time.Unix(v.Now, 0)
		b.Run(v.Scheme, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Verify(r, secrets, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
