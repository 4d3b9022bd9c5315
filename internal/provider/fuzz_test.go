package provider

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fuzz runs a scheme over requests whose signature, timestamp, id, further header
// and body the fuzzer chooses. Whatever it finds, nothing panics, everything
// accepted has an identity, and no accepted request is accepted with another body.
func fuzz(f *testing.F, name string) {
	var s *Scheme
	var secrets []Secret
	for _, v := range vectors(f) {
		if v.Scheme != name || len(v.Body) > 4096 {
			continue
		}
		if s == nil && v.Expect == "accept" {
			s, secrets = v.scheme(f), v.secrets()
		}
		r := v.request()
		h := v.scheme(f).headers[0]
		f.Add(strings.Join(r.Header[h.signature], "\n"), r.Header.Get(h.timestamp), r.Header.Get(h.id), "a.b", v.Body, v.Now)
	}
	f.Fuzz(func(t *testing.T, signature, timestamp, id, typ string, body []byte, now int64) {
		r := Request{Method: http.MethodPost, Header: http.Header{}, URL: "https://h.example/", Body: body}
		h := s.headers[0]
		r.Header[h.signature] = strings.Split(signature, "\n")
		for name, value := range map[string]string{h.timestamp: timestamp, h.id: id} {
			if name != "" && value != "" {
				r.Header[name] = []string{value}
			}
		}
		for _, p := range s.typ {
			if p.header != "" {
				r.Header[p.header] = []string{typ}
			}
		}
		got, err := s.Verify(r, secrets, time.Unix(now, 0))
		Explain(s, r, secrets, nil, time.Unix(now, 0))
		if err != nil {
			return
		}
		if got.ID == "" || len(got.ID) > 512 || got.Type == "" || len(got.Type) > 256 {
			t.Errorf("identity %+v", got)
		}
		r.Body = append(bytes.Clone(body), 0)
		if _, err := s.Verify(r, secrets, time.Unix(now, 0)); !isReason(err, Mismatch) {
			t.Errorf("another body: %v", err)
		}
	})
}

func FuzzStandardWebhooks(f *testing.F)    { fuzz(f, "standard-webhooks") }
func FuzzStandardWebhooksV1a(f *testing.F) { fuzz(f, "standard-webhooks-v1a") }
func FuzzSvix(f *testing.F)                { fuzz(f, "svix") }
func FuzzStripe(f *testing.F)              { fuzz(f, "stripe") }
func FuzzGitHub(f *testing.F)              { fuzz(f, "github") }
func FuzzShopify(f *testing.F)             { fuzz(f, "shopify") }
func FuzzSlack(f *testing.F)               { fuzz(f, "slack") }
func FuzzGenericHMAC(f *testing.F)         { fuzz(f, "generic-hmac") }

// FuzzPick holds pick against encoding/json: the same texts are valid, and a
// value found is the one that a full decode gives.
func FuzzPick(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":"x"}`, `{"a":{"b":"y"}}`, `{"\u0061":"x"}`, `{"a":1e5,"a":2}`, `[[],{"a":null}]`, `{"a":"\ud800"}`,
		`{"a":[{"b":"z"}]}`, `{"a":-0.5E+7}`, "{\"a\":\"\xff\"}", `{"a":01}`, `{"a":"x"} x`, "\ufeff{}", `{"a":{"b":1},"a":{}}`, `{"a":tru}`,
		strings.Repeat("[", 1100) + strings.Repeat("]", 1100),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := pick(b, path{"a"}, path{"a", "b"}, path{"0"})
		container := len(bytes.TrimLeft(b, " \t\r\n")) > 0 && strings.ContainsRune("[{", rune(bytes.TrimLeft(b, " \t\r\n")[0]))
		if bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) > maxJSONDepth {
			return
		}
		valid := json.Valid(b) && container
		if p := (&picker{b: b}); valid != wholly(p) && container {
			t.Fatalf("valid %t, but read %t: %q", valid, !valid, b)
		}
		if !valid {
			if got[0] != nil || got[1] != nil || got[2] != nil {
				t.Fatalf("found %q in %q", got, b)
			}
			return
		}
		var m map[string]json.RawMessage
		if json.Unmarshal(b, &m) == nil && got[0] != nil && !bytes.Equal(got[0], m["a"]) {
			t.Errorf("a = %q, want %q", got[0], m["a"])
		}
	})
}

func wholly(p *picker) bool {
	p.space()
	ok := p.value(0, 0, 0)
	p.space()
	return ok && p.i == len(p.b)
}
