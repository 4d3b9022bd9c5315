package provider

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sealpost/sealpost/internal/webhook"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func mustNew(t testing.TB, name string, o Options) *Scheme {
	t.Helper()
	s, err := New(name, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func macHex(key, content string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(content))
	return hex.EncodeToString(h.Sum(nil))
}

func macBase64(key, content string) string {
	b, _ := hex.DecodeString(macHex(key, content))
	return base64.StdEncoding.EncodeToString(b)
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func one(value string) []Secret { return []Secret{NewSecret("s", 1, []byte(value))} }

// stripe, github, shopify and slack sign a body as the providers do.
func stripe(at time.Time, body string) Request {
	ts := strconv.FormatInt(at.Unix(), 10)
	return Request{Method: "POST", Header: header("Stripe-Signature", "t="+ts+",v1="+macHex("key", ts+"."+body)), Body: []byte(body)}
}

func github(body string, more ...string) Request {
	return Request{Method: "POST", Header: header(append(more, "X-Hub-Signature-256", "sha256="+macHex("key", body))...), Body: []byte(body)}
}

func shopify(body string, more ...string) Request {
	return Request{Method: "POST", Header: header(append(more, "X-Shopify-Hmac-Sha256", macBase64("key", body))...), Body: []byte(body)}
}

func slack(at time.Time, body string) Request {
	ts := strconv.FormatInt(at.Unix(), 10)
	return Request{Method: "POST", Header: header("X-Slack-Request-Timestamp", ts, "X-Slack-Signature", "v0="+macHex("key", "v0:"+ts+":"+body)), Body: []byte(body)}
}

const whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func standard(t testing.TB, id string, at time.Time, body string) Request {
	t.Helper()
	wh, err := standardwebhooks.NewWebhook(whsec)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := wh.Sign(id, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return Request{Method: "POST", Body: []byte(body), Header: header(
		"webhook-id", id, "webhook-timestamp", strconv.FormatInt(at.Unix(), 10), "webhook-signature", sig)}
}

func hashOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	created := time.Unix(1700000000, 0).UTC()
	ts := strconv.FormatInt(noon.Unix(), 10)
	slackEvent := `{"type":"event_callback","event_id":"Ev1","event_time":1700000000,"event":{"type":"app_mention","ts":"1.5"}}`
	cases := []struct {
		name, scheme, secret string
		r                    Request
		id, typ              string
		at                   time.Time
	}{
		{"stripe", "stripe", "key", stripe(noon, `{"id":"evt_1","type":"invoice.paid","created":1700000000}`), "evt_1", "invoice.paid", created},
		{"stripe, nested id is no id", "stripe", "key", stripe(noon, `{"data":{"id":"evt_1","type":"x"}}`), hashOf(ts + `.{"data":{"id":"evt_1","type":"x"}}`), "stripe.unknown", time.Time{}},
		{"stripe, no JSON", "stripe", "key", stripe(noon, "\xff\x00"), hashOf(ts + ".\xff\x00"), "stripe.unknown", time.Time{}},
		{"stripe, cut JSON", "stripe", "key", stripe(noon, `{"id":"evt_1"`), hashOf(ts + `.{"id":"evt_1"`), "stripe.unknown", time.Time{}},
		{"stripe, id twice", "stripe", "key", stripe(noon, `{"id":"a","id":"b","type":"t"}`), hashOf(ts + `.{"id":"a","id":"b","type":"t"}`), "t", time.Time{}},
		{"stripe, numeric id keeps its digits", "stripe", "key", stripe(noon, `{"id":1152921506151679042}`), "1152921506151679042", "stripe.unknown", time.Time{}},
		{"github", "github", "key", github(`{}`, "X-GitHub-Delivery", "d-1", "X-GitHub-Event", "push"), "d-1", "push", time.Time{}},
		{"github, no headers", "github", "key", github(`{}`), hashOf(`{}`), "github.unknown", time.Time{}},
		{"github, unfit type", "github", "key", github(`{}`, "X-GitHub-Event", "a *b\u00e9"), hashOf(`{}`), "a__b\u00e9", time.Time{}},
		{"github, long type", "github", "key", github(`{}`, "X-GitHub-Event", strings.Repeat("é", 200)), hashOf(`{}`), strings.Repeat("é", 128), time.Time{}},
		{"github, long id", "github", "key", github(`{}`, "X-GitHub-Delivery", strings.Repeat("d", 600)), hashOf(strings.Repeat("d", 600)), "github.unknown", time.Time{}},
		{"shopify", "shopify", "key", shopify(`{"id":1}`, "X-Shopify-Webhook-Id", "w-1", "X-Shopify-Topic", "orders/create", "X-Shopify-Triggered-At", "2023-11-14T22:13:20.000Z"), "w-1", "orders/create", created},
		{"shopify, bad time", "shopify", "key", shopify(`{"id":1}`, "X-Shopify-Triggered-At", "yesterday"), hashOf(`{"id":1}`), "shopify.unknown", time.Time{}},
		{"slack event", "slack", "key", slack(noon, slackEvent), "Ev1", "app_mention", created},
		{"slack other JSON", "slack", "key", slack(noon, `{"type":"app_rate_limited"}`), hashOf("v0:" + ts + `:{"type":"app_rate_limited"}`), "app_rate_limited", noon},
		{"slack interaction", "slack", "key", slack(noon, "payload=%7B%22type%22%3A%22block_actions%22%7D"), hashOf("v0:" + ts + ":payload=%7B%22type%22%3A%22block_actions%22%7D"), "block_actions", noon},
		{"slack command", "slack", "key", slack(noon, "token=x&command=%2Fdeploy&text=a"), hashOf("v0:" + ts + ":token=x&command=%2Fdeploy&text=a"), "slash_command", noon},
		{"slack payload twice", "slack", "key", slack(noon, "payload=%7B%7D&payload=%7B%7D"), hashOf("v0:" + ts + ":payload=%7B%7D&payload=%7B%7D"), "slack.unknown", noon},
		{"standard", "standard-webhooks", whsec, standard(t, "msg_1", noon, `{"type":"a.b","timestamp":"2023-11-14T22:13:20Z"}`), "msg_1", "a.b", created},
		{"standard, no type", "standard-webhooks", whsec, standard(t, "msg_1", noon, `[1]`), "msg_1", "standard-webhooks.unknown", noon},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			id, err := mustNew(t, c.scheme, Options{}).Verify(c.r, one(c.secret), noon)
			if err != nil {
				t.Fatal(err)
			}
			if id.ID != c.id || id.Type != c.typ || !id.OccurredAt.Equal(c.at) || id.Response != nil {
				t.Errorf("got %q %q %s, want %q %q %s", id.ID, id.Type, id.OccurredAt, c.id, c.typ, c.at)
			}
			if err := webhook.ValidType(id.Type); err != nil {
				t.Error(err)
			}
		})
	}
}

// Two equal bodies at other times are two events where the time is signed.
func TestFallbackIdentityHoldsTheSignedTime(t *testing.T) {
	t.Parallel()
	s := mustNew(t, "slack", Options{})
	a, err1 := s.Verify(slack(noon, "command=x"), one("key"), noon)
	b, err2 := s.Verify(slack(noon.Add(time.Second), "command=x"), one("key"), noon)
	if err := errors.Join(err1, err2); err != nil || a.ID == b.ID {
		t.Errorf("%v; ids %s and %s", err, a.ID, b.ID)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	with := func(r Request, edit func(http.Header)) Request {
		r.Header = r.Header.Clone()
		edit(r.Header)
		return r
	}
	set := func(r Request, name, value string) Request {
		return with(r, func(h http.Header) { h.Set(name, value) })
	}
	add := func(r Request, name, value string) Request {
		return with(r, func(h http.Header) { h.Add(name, value) })
	}
	std := standard(t, "msg_1", noon, "{}")
	stamp := strconv.FormatInt(noon.Unix(), 10)
	zeros := strings.Repeat("0", 64)
	good := macHex("key", stamp+".{}")
	many := func(n int, sep, item, last string) string { return strings.Repeat(item+sep, n-1) + last }
	cases := []struct {
		name, scheme, secret string
		r                    Request
		want                 Reason
	}{
		{"stripe good", "stripe", "key", stripe(noon, "{}"), ""},
		{"stripe age 300 s", "stripe", "key", stripe(noon.Add(-300*time.Second), "{}"), ""},
		{"stripe age 301 s", "stripe", "key", stripe(noon.Add(-301*time.Second), "{}"), Stale},
		{"stripe ahead 300 s", "stripe", "key", stripe(noon.Add(300*time.Second), "{}"), ""},
		{"stripe ahead 301 s", "stripe", "key", stripe(noon.Add(301*time.Second), "{}"), Future},
		{"stripe forged and old is a mismatch", "stripe", "other", stripe(noon.Add(-time.Hour), "{}"), Mismatch},
		{"stripe no header", "stripe", "key", Request{Header: header()}, MissingSignature},
		{"stripe empty header", "stripe", "key", Request{Header: header("Stripe-Signature", " ")}, MissingSignature},
		{"stripe two lines", "stripe", "key", add(stripe(noon, "{}"), "Stripe-Signature", "x"), Ambiguous},
		{"stripe two times", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "t="+stamp+",t="+stamp+",v1="+good), Ambiguous},
		{"stripe only v0", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "t="+stamp+",v0="+good), Malformed},
		{"stripe rotation", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "t="+stamp+",v1="+zeros+",v1="+good), ""},
		{"stripe 16 parts", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "t="+stamp+","+many(15, ",", "v1="+zeros, "v1="+good)), ""},
		{"stripe 17 parts", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "t="+stamp+","+many(16, ",", "v1="+zeros, "v1="+good)), Malformed},
		{"stripe name in capitals", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "T="+stamp+",v1="+good), Malformed},
		{"stripe negative time", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "t=-1,v1="+good), Malformed},
		{"stripe time of a lone zero", "stripe", "key", stripe(time.Unix(0, 0), "{}"), Stale},
		{"stripe 16-digit time", "stripe", "key", set(stripe(noon, "{}"), "Stripe-Signature", "t=1000000000000000,v1="+good), Malformed},
		{"stripe secret of zero bytes", "stripe", "\x00\x00", stripe(noon, "{}"), NoSecret},
		{"stripe secret whsec_ alone", "stripe", "whsec_", stripe(noon, "{}"), NoSecret},
		{"stripe secret of spaces", "stripe", " \u00a0\n", stripe(noon, "{}"), NoSecret},
		{"github delivery twice", "github", "key", github("{}", "X-GitHub-Delivery", "a", "X-GitHub-Delivery", "a"), Ambiguous},
		{"github event twice", "github", "key", github("{}", "X-GitHub-Event", "a", "X-GitHub-Event", "b"), Ambiguous},
		{"github prefix in capitals", "github", "key", set(github("{}"), "X-Hub-Signature-256", "SHA256="+macHex("key", "{}")), Malformed},
		{"github empty signature", "github", "key", set(github("{}"), "X-Hub-Signature-256", "sha256="), Malformed},
		{"github prefix of the signature", "github", "key", set(github("{}"), "X-Hub-Signature-256", "sha256="+macHex("key", "{}")[:62]), Mismatch},
		{"shopify empty body", "shopify", "key", shopify(""), BadBody},
		{"shopify empty body, forged", "shopify", "other", shopify(""), Mismatch},
		{"shopify newline in base64", "shopify", "key", with(shopify("{}"), func(h http.Header) {
			v := h.Get("X-Shopify-Hmac-Sha256")
			h["X-Shopify-Hmac-Sha256"] = []string{v[:8] + "\n" + v[8:]}
		}), Malformed},
		{"slack no time", "slack", "key", with(slack(noon, ""), func(h http.Header) { h.Del("X-Slack-Request-Timestamp") }), MissingSignature},
		{"slack two times", "slack", "key", add(slack(noon, ""), "X-Slack-Request-Timestamp", stamp), Ambiguous},
		{"slack challenge missing", "slack", "key", slack(noon, `{"type":"url_verification"}`), BadBody},
		{"slack challenge no text", "slack", "key", slack(noon, `{"type":"url_verification","challenge":5}`), BadBody},
		{"standard good", "standard-webhooks", whsec, std, ""},
		{"standard no id", "standard-webhooks", whsec, with(std, func(h http.Header) { h.Del("webhook-id") }), MissingSignature},
		{"standard dot in id", "standard-webhooks", whsec, standard(t, "a.b", noon, "{}"), Ambiguous},
		{"standard public key only", "standard-webhooks", pubKey, std, Mismatch},
		{"standard private key", "standard-webhooks", "whsk_" + strings.TrimPrefix(whsec, "whsec_"), std, NoSecret},
		{"standard secret no base64", "standard-webhooks", "whsec_!!", std, NoSecret},
		{"standard secret decodes to zeros", "standard-webhooks", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", std, NoSecret},
		{"v1a takes no shared secret", "standard-webhooks-v1a", whsec, std, NoSecret},
		{"v1a short key", "standard-webhooks-v1a", "whpk_AAAA", std, NoSecret},
		{"svix mixes no brands", "svix", whsec, add(std, "svix-id", "msg_1"), MissingSignature},
		{"no Standard Webhooks from svix headers", "standard-webhooks", whsec, Request{Header: header("svix-id", "a", "svix-timestamp", stamp, "svix-signature", "v1,x")}, MissingSignature},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := mustNew(t, c.scheme, Options{}).Verify(c.r, one(c.secret), noon)
			if c.want == "" && err != nil || c.want != "" && !isReason(err, c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := mustNew(t, "github", Options{}).Verify(github("{}"), nil, noon); !isReason(err, NoSecret) {
		t.Errorf("without secrets: %v", err)
	}
}

const pubKey = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="

func TestSecretThatMatched(t *testing.T) {
	t.Parallel()
	secrets := []Secret{NewSecret("s", 7, []byte("new")), NewSecret("s", 6, []byte("key")), NewSecret("s", 5, []byte("key"))}
	id, err := mustNew(t, "github", Options{}).Verify(github("{}"), secrets, noon)
	if err != nil || secrets[id.Secret].Version() != 6 {
		t.Errorf("matched %v, %v", id.Secret, err)
	}
}

func TestSlackURLVerification(t *testing.T) {
	t.Parallel()
	s := mustNew(t, "slack", Options{})
	body := `{"token":"t","challenge":"3eZb\u0041","type":"url_verification"}`
	id, err := s.Verify(slack(noon, body), one("key"), noon)
	if err != nil {
		t.Fatal(err)
	}
	if r := id.Response; r == nil || r.Status != 200 || r.ContentType != "text/plain; charset=utf-8" || string(r.Body) != "3eZbA" {
		t.Errorf("response %+v", r)
	}
	if id, err = s.Verify(slack(noon, body), one("other"), noon); !isReason(err, Mismatch) || id.Response != nil {
		t.Errorf("forged: %v %v", id, err)
	}
}

func TestKeptHeaders(t *testing.T) {
	t.Parallel()
	r := github("{}", "X-GitHub-Event", "push", "X-GitHub-Hook-ID", "7", "Content-Encoding", "gzip", "Cookie", "c", "Authorization", "b", "X-GitHub-Huge", strings.Repeat("x", 5000))
	id, err := mustNew(t, "github", Options{}).Verify(r, one("key"), noon)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range id.Headers {
		names = append(names, h.Name)
	}
	if want := []string{"X-Github-Event", "X-Github-Hook-Id", "X-Hub-Signature-256"}; !slices.Equal(names, want) {
		t.Errorf("kept %v, want %v", names, want)
	}
}

// A signature over encoded bytes: everything but the signature is read from what
// they stand for, and nothing is decoded that is not authentic.
func TestSignedAsSent(t *testing.T) {
	t.Parallel()
	decode := func(calls *int) func([]byte) ([]byte, error) {
		return func(b []byte) ([]byte, error) {
			*calls++
			text, ok := strings.CutPrefix(string(b), "coded:")
			if !ok {
				return nil, errors.New("not coded")
			}
			return []byte(text), nil
		}
	}
	stripe := func(key, body string) Request {
		stamp := strconv.FormatInt(noon.Unix(), 10)
		return Request{Method: "POST", Body: []byte(body), Header: header("Stripe-Signature", "t="+stamp+",v1="+macHex(key, stamp+"."+body))}
	}
	linear := func(body string) Request {
		return Request{Method: "POST", Body: []byte(body), Header: header("Linear-Signature", macHex("key", body))}
	}
	fresh := fmt.Sprintf(`{"type":"Issue","action":"create","webhookTimestamp":%d}`, noon.UnixMilli())
	for _, c := range []struct {
		name, scheme string
		r            Request
		want         Reason
		calls        int
		id, typ      string
	}{
		{"id and type from the decoded", "stripe", stripe("key", `coded:{"id":"evt_1","type":"a.b"}`), "", 1, "evt_1", "a.b"},
		{"named by the decoded", "github", github("coded:{}"), "", 1, hashOf("{}"), "github.unknown"},
		{"forged", "stripe", stripe("other", "coded:{}"), Mismatch, 0, "", ""},
		{"not decodable", "stripe", stripe("key", "{}"), BadBody, 1, "", ""},
		{"timestamp in the decoded", "linear", linear("coded:" + fresh), "", 1, hashOf(fresh), "Issue.create"},
		{"stale in the decoded", "linear", linear(`coded:{"webhookTimestamp":1}`), Stale, 1, "", ""},
		{"empty, decoded", "shopify", Request{Method: "POST", Body: []byte("coded:"), Header: header("X-Shopify-Hmac-Sha256", macBase64("key", "coded:"))}, BadBody, 1, "", ""},
		{"signature that stands in the body", "mailgun", Request{Method: "POST", Body: []byte("coded:{}")}, MissingSignature, 0, "", ""},
		{"body whose form is signed", "square", Request{Method: "POST", URL: "https://h.example/", Body: []byte("{}"), Header: header("X-Square-Hmacsha256-Signature", macBase64("key", "https://h.example/{}"))}, BadBody, 0, "", ""},
	} {
		calls := 0
		c.r.Decode = decode(&calls)
		id, err := mustNew(t, c.scheme, Options{}).Verify(c.r, one("key"), noon)
		if c.want == "" && err != nil || c.want != "" && !isReason(err, c.want) || calls != c.calls || id.ID != c.id || id.Type != c.typ {
			t.Errorf("%s: %v, decoded %d times, %q %q", c.name, err, calls, id.ID, id.Type)
		}
	}
}

func TestGeneric(t *testing.T) {
	t.Parallel()
	body := `{"data":{"id":"x1"},"items":[{"kind":"k"}],"a/b":{"m~n":9007199254740993}}`
	stamp := strconv.FormatInt(noon.UnixMilli(), 10)
	cases := []struct {
		name    string
		h       HMAC
		headers http.Header
		id, typ string
	}{
		{"hex by default", HMAC{Header: "X-Sig"}, header("X-Sig", macHex("key", body)), hashOf(body), "generic-hmac.unknown"},
		{"prefix, paths", HMAC{Header: "X-Sig", Prefix: "v=", IDPath: "data.id", TypePath: "/items/0/kind"}, header("X-Sig", "v="+macHex("key", body)), "x1", "k"},
		{"escaped pointer", HMAC{Header: "X-Sig", IDPath: "/a~1b/m~0n"}, header("X-Sig", macHex("key", body)), "9007199254740993", "generic-hmac.unknown"},
		{"headers", HMAC{Header: "x-sig", Encoding: "base64", IDHeader: "x-id", TypeHeader: "x-type"}, header("X-Sig", macBase64("key", body), "X-Id", "i", "X-Type", "t"), "i", "t"},
		{"time in milliseconds, id signed", HMAC{Header: "X-Sig", IDHeader: "X-Id", TimestampHeader: "X-Ts", TimestampFormat: "unix-ms", SignedContent: "{id}|{timestamp}|{body}"},
			header("X-Sig", macHex("key", "i|"+stamp+"|"+body), "X-Id", "i", "X-Ts", stamp), "i", "generic-hmac.unknown"},
		{"method and URL", HMAC{Header: "X-Sig", SignedContent: "{method}{url}{body}"}, header("X-Sig", macHex("key", "POSThttps://h.example/x"+body)), hashOf("POSThttps://h.example/x" + body), "generic-hmac.unknown"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := mustNew(t, "generic-hmac", Options{HMAC: &c.h})
			id, err := s.Verify(Request{Method: "POST", URL: "https://h.example/x", Header: c.headers, Body: []byte(body)}, one("key"), noon)
			if err != nil || id.ID != c.id || id.Type != c.typ {
				t.Errorf("%q %q, %v", id.ID, id.Type, err)
			}
		})
	}
}

func TestGenericHashes(t *testing.T) {
	t.Parallel()
	for name, alg := range hashes {
		for _, enc := range []string{"hex", "base64", "base64url"} {
			s := mustNew(t, "generic-hmac", Options{HMAC: &HMAC{Header: "S", Hash: name, Encoding: enc}})
			mac := alg.sum([]byte("key"), content{body: []byte("b")})
			texts := map[string][]string{
				"hex":       {hex.EncodeToString(mac)},
				"base64":    {base64.StdEncoding.EncodeToString(mac)},
				"base64url": {base64.URLEncoding.EncodeToString(mac), base64.RawURLEncoding.EncodeToString(mac)},
			}
			for _, text := range texts[enc] {
				if _, err := s.Verify(Request{Header: header("S", text), Body: []byte("b")}, one("key"), noon); err != nil {
					t.Errorf("%s %s: %v", name, enc, err)
				}
			}
		}
	}
}

func TestOptionsAreRefusedByName(t *testing.T) {
	t.Parallel()
	d := func(d time.Duration) *time.Duration { return &d }
	g := func(h HMAC) Options { return Options{HMAC: &h} }
	cases := []struct {
		scheme string
		o      Options
		want   []string
	}{
		{"nope", Options{}, []string{"scheme", "stripe"}},
		{"", Options{}, []string{"scheme"}},
		{"stripe", Options{Tolerance: d(0)}, []string{"tolerance"}},
		{"stripe", Options{Tolerance: d(-time.Second)}, []string{"tolerance"}},
		{"stripe", Options{Tolerance: d(25 * time.Hour)}, []string{"tolerance"}},
		{"github", Options{Tolerance: d(time.Minute)}, []string{"tolerance", "signs no timestamp"}},
		{"stripe", g(HMAC{Header: "X"}), []string{"hmac", "generic-hmac only"}},
		{"generic-hmac", Options{}, []string{"hmac"}},
		{"generic-hmac", g(HMAC{Hash: "md5", Encoding: "hec"}), []string{"hmac.header", "hmac.hash", "hmac.encoding"}},
		{"generic-hmac", g(HMAC{Header: "a b"}), []string{"hmac.header"}},
		{"generic-hmac", g(HMAC{Header: "X", IDHeader: "I", IDPath: "p"}), []string{"hmac.id_path"}},
		{"generic-hmac", g(HMAC{Header: "X", TypePath: "a..b"}), []string{"hmac.type_path"}},
		{"generic-hmac", g(HMAC{Header: "X", IDPath: "/a~2"}), []string{"hmac.id_path"}},
		{"generic-hmac", g(HMAC{Header: "X", TimestampHeader: "T"}), []string{"hmac.timestamp_header"}},
		{"generic-hmac", g(HMAC{Header: "X", SignedContent: "{timestamp}.{body}"}), []string{"hmac.signed_content"}},
		{"generic-hmac", g(HMAC{Header: "X", SignedContent: "{id}"}), []string{"hmac.signed_content"}},
		{"generic-hmac", g(HMAC{Header: "X", SignedContent: "{body}{body}"}), []string{"hmac.signed_content"}},
		{"generic-hmac", g(HMAC{Header: "X", SignedContent: "{host}{body}"}), []string{"hmac.signed_content"}},
		{"generic-hmac", g(HMAC{Header: "X", SignedContent: "{body"}), []string{"hmac.signed_content"}},
		{"generic-hmac", g(HMAC{Header: "X", TimestampFormat: "unix"}), []string{"hmac.timestamp_format"}},
		{"generic-hmac", g(HMAC{Header: "X", TimestampHeader: "T", TimestampFormat: "epoch", SignedContent: "{timestamp}{body}"}), []string{"hmac.timestamp_format"}},
		{"generic-hmac", Options{HMAC: &HMAC{Header: "X"}, Tolerance: d(time.Minute)}, []string{"tolerance"}},
	}
	for _, c := range cases {
		_, err := New(c.scheme, c.o)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %+v: %v does not name %q", c.scheme, c.o.HMAC, err, want)
			}
		}
	}
}

func TestSecretsRedactThemselves(t *testing.T) {
	t.Parallel()
	s := NewSecret("source-stripe", 3, []byte("hunter2"))
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s)
	j, err := json.Marshal([]Secret{s})
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%v %+v %#v %s %q %x %d %v %+v", s, s, s, s, s, s, s, &s, []Secret{s}) + log.String() + string(j)
	if strings.Contains(all, "hunter2") || strings.Contains(all, hex.EncodeToString([]byte("hunter2"))) || strings.Contains(all, "104 117 110") {
		t.Errorf("shown: %s", all)
	}
	if !strings.Contains(all, "source-stripe/3") {
		t.Errorf("no label: %s", all)
	}
}

// Every small-order point has a y coordinate of the list, and the listed ones
// are small: eight times the point is the identity.
func TestSmallOrderKeys(t *testing.T) {
	t.Parallel()
	for _, text := range smallOrder {
		b, _ := hex.DecodeString(text)
		for _, sign := range []byte{0, 0x80} {
			k := slices.Clone(b)
			k[31] |= sign
			if err := checkEd25519Key(k); err == nil {
				t.Errorf("%x is accepted", k)
			}
		}
		if !smallOrderY(b) {
			t.Errorf("%x is not of small order", b)
		}
	}
	for _, text := range []string{"ed" + strings.Repeat("ff", 30) + "7f", "ee" + strings.Repeat("ff", 30) + "7f", strings.Repeat("ff", 32)} {
		b, _ := hex.DecodeString(text)
		if err := checkEd25519Key(b); err == nil {
			t.Errorf("%x is accepted", b)
		}
	}
	pub, _, err := ed25519.GenerateKey(bytes.NewReader(make([]byte, 64)))
	if err != nil || checkEd25519Key(pub) != nil {
		t.Errorf("good key refused: %v", err)
	}
}

// smallOrderY doubles y three times on the curve -x²+y² = 1+dx²y², whose
// doubling needs x² only: x² = (y²-1)/(dy²+1), y' = (y²+x²)/(2+x²-y²).
func smallOrderY(le []byte) bool {
	b := slices.Clone(le)
	slices.Reverse(b)
	p := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	mod := func(x *big.Int) *big.Int { return x.Mod(x, p) }
	div := func(a, b *big.Int) *big.Int { return mod(a.Mul(a, new(big.Int).ModInverse(mod(b), p))) }
	d := div(big.NewInt(-121665), big.NewInt(121666))
	one := big.NewInt(1)
	y := new(big.Int).SetBytes(b)
	for range 3 {
		y2 := mod(new(big.Int).Mul(y, y))
		x2 := div(new(big.Int).Sub(y2, one), mod(new(big.Int).Add(new(big.Int).Mul(d, y2), one)))
		y = div(new(big.Int).Add(y2, x2), new(big.Int).Sub(new(big.Int).Add(big.NewInt(2), x2), y2))
	}
	return y.Cmp(one) == 0
}

func TestGatewayBody(t *testing.T) {
	t.Parallel()
	raw := []byte(`{"a":1}`)
	text := []byte(base64.StdEncoding.EncodeToString(raw))
	twice := []byte(base64.StdEncoding.EncodeToString(text))
	cases := []struct {
		name    string
		in      []byte
		encoded bool
		want    []byte
		bad     bool
	}{
		{"flagged", text, true, raw, false},
		{"not flagged", text, false, text, false},
		{"once only", twice, true, text, false},
		{"flagged, not base64", raw, true, nil, true},
		{"flagged, empty", nil, true, []byte{}, false},
	}
	for _, c := range cases {
		got, err := GatewayBody(c.in, c.encoded)
		if (err != nil) != c.bad || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}
