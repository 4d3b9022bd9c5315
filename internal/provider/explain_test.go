package provider

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	set := func(r Request, name, value string) Request { r.Header.Set(name, value); return r }
	sent := func(r Request, body string) Request { r.Body = []byte(body); return r }
	upper := strings.ToUpper(macHex("key", "{}"))
	b64, _ := hex.DecodeString(macHex("key", "{}"))
	stamp := strconv.FormatInt(noon.Unix(), 10)
	whole := standard(t, "msg_1", noon, "{}")
	whole.Header.Set("webhook-signature", "v1,"+macBase64(whsec, "msg_1."+stamp+".{}"))
	cases := []struct {
		name, scheme, secret string
		r                    Request
		reason               Reason
		want                 string // in summary or causes
	}{
		{"authentic", "github", "key", github("{}"), "", "authentic"},
		{"legacy header", "github", "key", Request{Header: header("X-Hub-Signature", "sha1=x")}, MissingSignature, "X-Hub-Signature is present, and is not enough"},
		{"other scheme", "github", "key", stripe(noon, "{}"), MissingSignature, "looks like scheme stripe"},
		{"nothing", "github", "key", Request{Header: header()}, MissingSignature, "no known signature header"},
		{"upper-case hex", "github", "key", set(github("{}"), "X-Hub-Signature-256", "sha256="+upper), Malformed, "upper-case hex"},
		{"base64 for hex", "github", "key", set(github("{}"), "X-Hub-Signature-256", "sha256="+base64.StdEncoding.EncodeToString(b64)), Malformed, "writes base64"},
		{"hex for base64", "shopify", "key", set(shopify("{}"), "X-Shopify-Hmac-Sha256", macHex("key", "{}")+"!"), Malformed, "lower-case hex"},
		{"upper-case hex in stripe", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "t="+stamp+",v1="+strings.ToUpper(macHex("key", stamp+".{}"))), Malformed, "upper-case hex"},
		{"whole text as key", "standard-webhooks", whsec, whole, Mismatch, "the secret's whole text"},
		{"secret with line end", "github", "key\n", github("{}"), Mismatch, "without the space or line end"},
		{"other secret", "github", "wrong", github("{}"), Mismatch, "belongs to another endpoint"},
		{"line end appended", "github", "key", sent(github("{}"), "{}\n"), Mismatch, "something appended one"},
		{"line end stripped", "github", "key", sent(github("{}\n"), "{}"), Mismatch, "something stripped it"},
		{"CRLF", "stripe", "key", sent(stripe(noon, "{\n}"), "{\r\n}"), Mismatch, "LF into CRLF"},
		{"BOM", "github", "key", sent(github("{}"), "\ufeff{}"), Mismatch, "byte order mark"},
		{"gateway", "github", "key", sent(github("{}"), base64.StdEncoding.EncodeToString([]byte("{}"))), Mismatch, "gateway"},
		{"form", "github", "key", set(sent(github("{}"), "payload=%7B%7D"), "X", ""), Mismatch, "form"},
		{"re-serialised", "github", "key", sent(github(`{"b":1,"a":2}`), `{ "b": 1, "a": 2 }`), Mismatch, "re-serialised"},
		{"sorted", "github", "key", sent(github(`{"a":2,"b":1}`), `{"b":1,"a":2}`), Mismatch, "re-serialised"},
		{"body only", "slack", "key", set(slack(noon, "{}"), "X-Slack-Signature", "v0="+macHex("key", "{}")), Mismatch, "it matches {body}"},
		{"3 h stale", "slack", "key", slack(noon.Add(-3*time.Hour), "{}"), Stale, "signed 3h0m0s ago"},
		{"future", "slack", "key", slack(noon.Add(time.Hour), "{}"), Future, "clock is behind"},
		{"milliseconds", "stripe", "key", stripe(time.Unix(noon.UnixMilli(), 0), "{}"), Future, "milliseconds"},
		{"blank", "slack", " ", slack(noon, "{}"), NoSecret, "blank"},
		{"repeated", "github", "key", github("{}", "X-Hub-Signature-256", "x"), Ambiguous, "repeated"},
	}
	others := []Secret{NewSecret("source-staging", 2, []byte("key"))}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := Explain(mustNew(t, c.scheme, Options{}), c.r, one(c.secret), others, noon)
			all := x.Summary + "\n" + strings.Join(x.Causes, "\n")
			if x.Reason != c.reason || !strings.Contains(all, c.want) {
				t.Errorf("%s: %s", x.Reason, all)
			}
			if len(strings.TrimSpace(c.secret)) > 3 && strings.Contains(all, c.secret) {
				t.Errorf("shows the secret: %s", all)
			}
		})
	}
}
