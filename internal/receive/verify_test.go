package receive

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/webhook"
)

const vectorFile = "../provider/testdata/vectors.json"

type expectation struct{ Name, Expect, Reason string }

func readVectors(t testing.TB) ([]CapturedRequest, []expectation) {
	t.Helper()
	b, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var captured []CapturedRequest
	if err := json.Unmarshal(b, &captured); err != nil {
		t.Fatal(err)
	}
	var want []expectation
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	return captured, want
}

// Every vector passes over the wire, through the receiver's own routes.
func TestVerifyVectors(t *testing.T) {
	t.Parallel()
	captured, want := readVectors(t)
	for i, v := range VerifyRequests(t.Context(), captured) {
		if v.Name != want[i].Name || v.Verdict != want[i].Expect {
			t.Errorf("%s: %s %s (%s), want %s (%s)", v.Name, v.Verdict, v.Reason, v.Detail, want[i].Expect, want[i].Reason)
		}
		if v.Reason == "" || (v.Verdict == Reject && v.Detail == "") {
			t.Errorf("%s: no reason: %+v", v.Name, v)
		}
		switch v.Reason {
		case ReasonBadOption, ReasonBadRequest, ReasonWrongResponse:
			t.Errorf("%s: not judged: %s", v.Name, v.Detail)
		}
	}
}

// Without its signature, wherever it is, no accepted vector is accepted: code that
// found no header skipped the check (PipedreamHQ/pipedream#1951).
func TestNoVectorPassesWithoutSignature(t *testing.T) {
	t.Parallel()
	captured, want := readVectors(t)
	for i, c := range captured {
		if want[i].Expect != "accept" {
			continue
		}
		c.Header = slices.DeleteFunc(slices.Clone(c.Header), func(h webhook.Header) bool {
			name := strings.ToLower(h.Name)
			return strings.Contains(name, "signature") || strings.Contains(name, "hmac") || strings.HasSuffix(name, "-sig") || name == "x-gitlab-token"
		})
		c.Body = bytes.ReplaceAll(c.Body, []byte(`ignature"`), []byte(`ignatur"`))
		c.URL = strings.ReplaceAll(c.URL, "crc_token=", "crc_toke=")
		if v := VerifyRequests(t.Context(), []CapturedRequest{c})[0]; v.Verdict != Reject || v.Reason != string(provider.MissingSignature) {
			t.Errorf("%s: %+v", v.Name, v)
		}
	}
}

func TestVerifyUnusableRequests(t *testing.T) {
	t.Parallel()
	good := `"headers":{"X-Hub-Signature-256":"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},"body_base64":"SGVsbG8sIFdvcmxkIQ=="`
	secret := `"secret":"It's a Secret to Everybody"`
	cases := []struct{ name, in, reason string }{
		{"good", `{"scheme":"github",` + secret + `,` + good + `}`, "ok"},
		{"good, fields to ignore", `{"expect":"reject","policy":1,"x":[{}],"scheme":"github","now_unix":1.5,"options":{"tolerance_s":300},"expected_response":null,` + secret + `,` + good + `}`, "ok"},
		{"good, list of secrets", `{"scheme":"github","secret":["other","It's a Secret to Everybody"],` + good + `}`, "ok"},
		{"framing headers are ours", `{"scheme":"github",` + secret + `,"headers":{"Content-Length":"3","transfer-encoding":"chunked","Host":"h","X-Hub-Signature-256":"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},"body_base64":"SGVsbG8sIFdvcmxkIQ=="}`, "ok"},
		{"two spellings are two lines", `{"scheme":"github",` + secret + `,"headers":{"x-hub-signature-256":"a","X-Hub-Signature-256":"b"}}`, "ambiguous"},
		{"same key twice", `{"scheme":"github",` + secret + `,"headers":{"X-Hub-Signature-256":"a","X-Hub-Signature-256":"b"}}`, "ambiguous"},
		{"a number", `5`, ReasonBadRequest},
		{"null", `null`, ReasonBadRequest},
		{"empty object", `{}`, ReasonBadOption},
		{"unknown scheme", `{"scheme":"nope",` + secret + `}`, ReasonBadOption},
		{"scheme no text", `{"scheme":5}`, ReasonBadRequest},
		{"no secret", `{"scheme":"github",` + good + `}`, "no_secret"},
		{"blank secret", `{"scheme":"github","secret":"\n",` + good + `}`, "no_secret"},
		{"one of two blank", `{"scheme":"github","secret":["","It's a Secret to Everybody"],` + good + `}`, "no_secret"},
		{"empty list", `{"scheme":"github","secret":[],` + good + `}`, "no_secret"},
		{"secret a number", `{"scheme":"github","secret":5}`, ReasonBadRequest},
		{"secret list of null", `{"scheme":"github","secret":[null]}`, ReasonBadRequest},
		{"zero tolerance", `{"scheme":"stripe","secret":"x","options":{"tolerance_s":0}}`, ReasonBadOption},
		{"negative tolerance", `{"scheme":"github",` + secret + `,"options":{"tolerance_s":-1}}`, ReasonBadOption},
		{"tolerance null", `{"scheme":"stripe","secret":"x","options":{"tolerance_s":null}}`, ReasonBadOption},
		{"huge tolerance", `{"scheme":"stripe","secret":"x","options":{"tolerance_s":1e300}}`, ReasonBadOption},
		{"unknown option", `{"scheme":"github",` + secret + `,"options":{"skip":true}}`, ReasonBadOption},
		{"unknown hash", `{"scheme":"generic-hmac","secret":"x","options":{"hash":"md5","header":"S"}}`, ReasonBadOption},
		{"no header", `{"scheme":"generic-hmac","secret":"x","options":{"hash":"sha1"}}`, ReasonBadOption},
		{"body no base64", `{"scheme":"github",` + secret + `,"body_base64":"!"}`, ReasonBadRequest},
		{"header value a number", `{"scheme":"github",` + secret + `,"headers":{"X":1}}`, ReasonBadRequest},
		{"header with line end", `{"scheme":"github",` + secret + `,"headers":{"X":"a\r\nX-Hub-Signature-256: b"}}`, ReasonBadRequest},
		{"header name with space", `{"scheme":"github",` + secret + `,"headers":{"a b":"c"}}`, ReasonBadRequest},
		{"header name with colon", `{"scheme":"github",` + secret + `,"headers":{"a:b":"c"}}`, ReasonBadRequest},
		{"empty header name", `{"scheme":"github",` + secret + `,"headers":{"":"c"}}`, ReasonBadRequest},
		{"method with space", `{"scheme":"github",` + secret + `,"method":"POST /x HTTP/1.1\r\n"}`, ReasonBadRequest},
		{"other method", `{"scheme":"github",` + secret + `,"method":"GET"}`, "wrong_method"},
		{"odd method", `{"scheme":"github",` + secret + `,"method":"(x)"}`, ReasonBadRequest},
		{"odd url", `{"scheme":"github",` + secret + `,"url":"http://a b/?c d"}`, ReasonBadRequest},
		{"time no number", `{"scheme":"github",` + secret + `,"now_unix":"x"}`, ReasonBadRequest},
		{"endless time", `{"scheme":"github",` + secret + `,"now_unix":1e400}`, ReasonBadRequest},
		{"expected another answer", `{"scheme":"github","expected_response":{"a":1},` + secret + `,` + good + `}`, ReasonWrongResponse},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var captured []CapturedRequest
			if err := json.Unmarshal([]byte("["+c.in+"]"), &captured); err != nil {
				t.Fatal(err)
			}
			v := VerifyRequests(t.Context(), captured)[0]
			if v.Reason != c.reason || (v.Verdict == Accept) != (c.reason == "ok") {
				t.Errorf("%+v, want %s", v, c.reason)
			}
		})
	}
}

func TestVerifyHandshake(t *testing.T) {
	t.Parallel()
	body := []byte(`{"token":"t","challenge":"abc","type":"url_verification"}`)
	for expected, reason := range map[string]string{
		"": "ok", `"abc"`: "ok", `{"challenge":"abc"}`: "ok", `"abd"`: ReasonWrongResponse, `{"challenge":"abd"}`: ReasonWrongResponse, `{"x":"abc"}`: ReasonWrongResponse,
	} {
		c := slackCapture("key", body)
		if expected != "" {
			c.ExpectedResponse = json.RawMessage(expected)
		}
		if v := VerifyRequests(t.Context(), []CapturedRequest{c})[0]; v.Reason != reason {
			t.Errorf("%s: %+v, want %s", expected, v, reason)
		}
	}
}

func TestVerifyExplainsOneRequest(t *testing.T) {
	t.Parallel()
	changed := slackCapture("key", []byte("command=x"))
	changed.Body = append(changed.Body, '\n')
	swapped := slackCapture("key", []byte("command=x"))
	swapped.Secrets = []string{"mine"}
	swapped.Others = map[string]string{"staging": "key", "test": "x"}
	for want, c := range map[string]CapturedRequest{"appended one": changed, "secret staging/1": swapped} {
		v := VerifyRequests(t.Context(), []CapturedRequest{c})[0]
		if v.Reason != "mismatch" || !strings.Contains(fmt.Sprint(v.Explanation), want) {
			t.Errorf("%+v does not say %q", v, want)
		}
		for _, v := range VerifyRequests(t.Context(), []CapturedRequest{c, c}) {
			if v.Explanation != nil {
				t.Errorf("explained among others: %+v", v)
			}
		}
	}
	if v := VerifyRequests(t.Context(), []CapturedRequest{slackCapture("key", []byte("command=x"))})[0]; v.Verdict != Accept || v.Explanation != nil {
		t.Errorf("%+v", v)
	}
	var c CapturedRequest
	for in, want := range map[string]string{`["a","b"]`: "map[other-1:a other-2:b]", `{"x":"y"}`: "map[x:y]", `"a"`: "map[other-1:a]"} {
		if err := json.Unmarshal([]byte(`{"other_secrets":`+in+`}`), &c); err != nil || fmt.Sprint(c.Others) != want {
			t.Errorf("%s: %v %v", in, c.Others, err)
		}
	}
}

// FuzzVerifyRequests: whatever is captured, there is a verdict.
func FuzzVerifyRequests(f *testing.F) {
	captured, _ := readVectors(f)
	b, err := os.ReadFile(vectorFile)
	if err != nil {
		f.Fatal(err)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		f.Fatal(err)
	}
	for i := range captured {
		if len(list[i]) < 4096 {
			f.Add([]byte(list[i]))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		captured := make([]CapturedRequest, 1)
		if json.Unmarshal(b, &captured[0]) != nil {
			return
		}
		for _, v := range VerifyRequests(t.Context(), captured) {
			if v.Verdict != Accept && v.Verdict != Reject || v.Reason == "" || bytes.ContainsAny([]byte(v.Reason), " \n") {
				t.Errorf("%+v", v)
			}
		}
	})
}
