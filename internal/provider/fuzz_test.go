package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// fuzz runs a scheme over requests whose headers, query and body the fuzzer
// chooses, beginning with the vectors and a sample, and over bodies that are signed
// for it, since it will find no signature. Whatever it finds, nothing panics,
// everything accepted has an identity, and no accepted request is accepted with
// another secret or, where the body is signed, with another body.
func fuzz(f *testing.F, name string) {
	k := kitOf(f, name)
	s, secrets, others := k.scheme, one(k.keys.Verification), one(k.other.Verification)
	add := func(r Request, now int64) {
		h := headers{}
		if len(s.headers) > 0 {
			h = s.headers[0]
		}
		signature := first(strings.Join(r.Header[h.signature], "\n"), r.Header.Get("Authorization"))
		f.Add(signature, r.Header.Get(h.timestamp), r.Header.Get(h.id), "a.b", r.URL, r.Header.Get("Content-Type"), r.Body, now, false)
		f.Add("", "", "e1", "a.b", "https://h.example/", r.Header.Get("Content-Type"), r.Body, now, true)
	}
	add(k.sign(f, Sample{}, noon), noon.Unix())
	if name == "mailgun" {
		add(Request{URL: "https://h.example/", Header: header("Content-Type", "application/x-www-form-urlencoded"), Body: []byte("timestamp=1&token=a&signature=00")}, 1)
		add(Request{URL: "https://h.example/", Header: header("Content-Type", "multipart/form-data; boundary=b"), Body: []byte("--b\r\nContent-Disposition: form-data; name=\"token\"\r\n\r\na\r\n--b--\r\n")}, 1)
	}
	for _, v := range vectors(f) {
		if v.Scheme != name || len(v.Body) > 4096 {
			continue
		}
		if v.Expect == "accept" && len(v.secrets()) > 0 && k.scheme == s {
			s, secrets = v.scheme(f), v.secrets()
		}
		add(v.request(), v.Now)
	}
	f.Fuzz(func(t *testing.T, signature, timestamp, id, typ, url, contentType string, body []byte, now int64, signed bool) {
		s, secrets := s, secrets
		r := Request{Method: http.MethodPost, Header: http.Header{"Content-Type": {contentType}}, URL: url, Body: body}
		for _, h := range append(s.headers, headers{signature: "Authorization"}) {
			r.Header[h.signature] = strings.Split(signature, "\n")
			for name, value := range map[string]string{h.timestamp: timestamp, h.id: id} {
				if name != "" && value != "" {
					r.Header[name] = []string{value}
				}
			}
		}
		for _, p := range append(s.typ, s.id...) {
			if p.header != "" {
				r.Header[p.header] = []string{typ}
			}
		}
		if signed {
			good, err := Sign(name, k.o, k.keys.Signing, Sample{ID: first(id, "e1"), Body: bytes.Clone(body)}, time.Unix(now, 0))
			if err != nil {
				return // a body that the scheme cannot sign, or a time that cannot be written
			}
			r, s, secrets = good, k.scheme, one(k.keys.Verification)
		}
		for _, method := range s.Methods() {
			r.Method = method
			_, _ = s.Fetch(r)
			Explain(s, r, secrets, others, time.Unix(now, 0))
			got, err := s.Verify(r, secrets, time.Unix(now, 0))
			if err != nil {
				continue
			}
			if got.ID == "" || len(got.ID) > 512 || got.Type == "" || len(got.Type) > 256 {
				t.Errorf("identity %+v", got)
			}
			if got.Response != nil {
				continue
			}
			if _, err := s.Verify(r, others, time.Unix(now, 0)); err == nil {
				t.Error("accepted with another secret")
			}
			if slices.Contains(unsigned, name) || s.claims != nil {
				continue
			}
			c := r
			c.Body = append(bytes.Clone(r.Body), 0)
			if _, err := s.Verify(c, secrets, time.Unix(now, 0)); err == nil {
				t.Error("accepted with another body")
			}
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
func FuzzGitLabToken(f *testing.F)         { fuzz(f, "gitlab-token") }
func FuzzGitLabSigningToken(f *testing.F)  { fuzz(f, "gitlab-signing-token") }
func FuzzBitbucket(f *testing.F)           { fuzz(f, "bitbucket") }
func FuzzTwilio(f *testing.F)              { fuzz(f, "twilio") }
func FuzzSendGrid(f *testing.F)            { fuzz(f, "sendgrid") }
func FuzzSquare(f *testing.F)              { fuzz(f, "square") }
func FuzzPayPal(f *testing.F)              { fuzz(f, "paypal") }
func FuzzAdyen(f *testing.F)               { fuzz(f, "adyen") }
func FuzzPaddle(f *testing.F)              { fuzz(f, "paddle") }
func FuzzMailgun(f *testing.F)             { fuzz(f, "mailgun") }
func FuzzZendesk(f *testing.F)             { fuzz(f, "zendesk") }
func FuzzIntercom(f *testing.F)            { fuzz(f, "intercom") }
func FuzzHubSpotV1(f *testing.F)           { fuzz(f, "hubspot-v1") }
func FuzzHubSpotV2(f *testing.F)           { fuzz(f, "hubspot-v2") }
func FuzzHubSpotV3(f *testing.F)           { fuzz(f, "hubspot-v3") }
func FuzzLinear(f *testing.F)              { fuzz(f, "linear") }
func FuzzAsana(f *testing.F)               { fuzz(f, "asana") }
func FuzzDropbox(f *testing.F)             { fuzz(f, "dropbox") }
func FuzzPagerDuty(f *testing.F)           { fuzz(f, "pagerduty") }
func FuzzZoom(f *testing.F)                { fuzz(f, "zoom") }
func FuzzDiscord(f *testing.F)             { fuzz(f, "discord") }
func FuzzMeta(f *testing.F)                { fuzz(f, "meta") }
func FuzzXTwitter(f *testing.F)            { fuzz(f, "x-twitter") }
func FuzzXTwitterCRC(f *testing.F)         { fuzz(f, "x-twitter-crc") }
func FuzzTypeform(f *testing.F)            { fuzz(f, "typeform") }
func FuzzDocuSign(f *testing.F)            { fuzz(f, "docusign") }
func FuzzAWSSNS(f *testing.F)              { fuzz(f, "aws-sns") }
func FuzzMicrosoftGraph(f *testing.F)      { fuzz(f, "microsoft-graph") }
func FuzzGenericHMAC(f *testing.F)         { fuzz(f, "generic-hmac") }
func FuzzGenericToken(f *testing.F)        { fuzz(f, "generic-token") }
func FuzzBasic(f *testing.F)               { fuzz(f, "basic") }
func FuzzJWT(f *testing.F)                 { fuzz(f, "jwt") }
func FuzzGoogleOIDC(f *testing.F)          { fuzz(f, "google-oidc") }

// FuzzGraphTokens runs microsoft-graph where it demands tokens: none that the key
// does not sign is accepted.
func FuzzGraphTokens(f *testing.F) {
	s := mustNew(f, microsoftGraph, Options{JWT: &JWT{Audience: graphApp}})
	k := kitOf(f, jwtScheme)
	private, err := privatePEM([]byte(k.keys.Signing))
	if err != nil {
		f.Fatal(err)
	}
	claims := fmt.Sprintf(`{"aud":"%s","iss":"https://sts.windows.net/%s/","iat":%d,"exp":%d,"appid":"%s","tid":"%s"}`,
		graphApp, graphTenant, noon.Unix(), noon.Unix()+3600, graphPublisher, graphTenant)
	good := rs256(f, private, `{"alg":"RS256","kid":"sample"}`, claims)
	other := rs256(f, private, `{"alg":"RS256","kid":"sample"}`, strings.Replace(claims, graphPublisher, graphApp, 1))
	secrets := []Secret{NewSecret("s", 1, []byte("state")), NewSecret("published", 0, []byte(k.keys.Verification))}
	for _, tokens := range []string{`[]`, `["` + good + `"]`, `["` + good + `","` + other + `"]`, `"` + good + `"`, `["a.b.c"]`, `null`} {
		f.Add(`{"value":[{"clientState":"state"}],"validationTokens":` + tokens + `}`)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r := Request{Method: http.MethodPost, Header: http.Header{}, Body: []byte(body)}
		if u, err := s.Fetch(r); err == nil && u != "" && u != "https://login.microsoftonline.com/common/discovery/v2.0/keys" {
			t.Errorf("would fetch %q", u)
		}
		_, err := s.Verify(r, secrets, noon)
		if err != nil {
			return
		}
		if !strings.Contains(body, good[strings.LastIndexByte(good, '.'):]) && !strings.Contains(body, `\u`) {
			t.Errorf("accepted %q", body)
		}
		if _, err := s.Verify(r, []Secret{secrets[0], NewSecret("published", 0, []byte(k.other.Verification))}, noon); err == nil {
			t.Error("accepted with another key")
		}
	})
}

// Every scheme of the table has its target above.
func TestEverySchemeIsFuzzed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("fuzz_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names() {
		if !strings.Contains(string(text), `fuzz(f, "`+name+`")`) {
			t.Errorf("%s has no target", name)
		}
	}
}

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
