package provider

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	_ "crypto/sha512" // SHA-384, to sign with
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// near is one request near a good one.
type near struct {
	name string
	r    Request
	want Reason // empty: accepted
}

func judgeAll(t *testing.T, s *Scheme, secret string, cases []near) {
	t.Helper()
	for _, c := range cases {
		_, err := s.Verify(c.r, one(secret), noon)
		if c.want == "" && err != nil || c.want != "" && !isReason(err, c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func hmacOf(alg *algorithm, key, text string) []byte {
	return alg.sum([]byte(key), content{head: []byte(text)})
}

func TestTwilio(t *testing.T) {
	t.Parallel()
	const base = "https://h.example/in/t"
	post := func(u, kind, body, signed string) Request {
		return Request{Method: "POST", URL: u, Body: []byte(body), Header: header("Content-Type", kind,
			"X-Twilio-Signature", base64.StdEncoding.EncodeToString(hmacOf(hmacSHA1, "key", signed)))}
	}
	const form, js = "application/x-www-form-urlencoded", "application/json"
	hash := func(b string) string { h := sha256.Sum256([]byte(b)); return hex.EncodeToString(h[:]) }
	withHash := base + "?bodySHA256=" + hash("{}")
	twice := post(base, form, "a=1", base+"a1")
	twice.Header.Add("Content-Type", js)
	get := post(base+"?From=%2B1&SmsStatus=received", "", "", base+"?From=%2B1&SmsStatus=received")
	get.Method = "GET"
	judgeAll(t, mustNew(t, "twilio", Options{}), "key", []near{
		{"sorted", post(base, form, "b=2&a=1", base+"a1b2"), ""},
		{"case-sensitive order", post(base, form, "b=2&A=1&a=3", base+"A1a3b2"), ""},
		{"plus and percent", post(base, form, "a=x+y%26", base+"ax y&"), ""},
		{"equal pairs count once", post(base, form, "a=1&a=1", base+"a1"), ""},
		{"equal pairs counted twice", post(base, form, "a=1&a=1", base+"a1a1"), Mismatch},
		{"values sorted", post(base, form, "a=2&a=1", base+"a1a2"), ""},
		{"empty value", post(base, form, "a=&b", base+"ab"), ""},
		{"charset in type", post(base, form+"; charset=utf-8", "a=1", base+"a1"), ""},
		{"bad escape", post(base, form, "a=%zz", base+"a%zz"), Malformed},
		{"too many", post(base, form, strings.Repeat("a=1&", 1001), base), Malformed},
		{"too large", post(base, form, "a="+strings.Repeat("1", 1<<20), base), Malformed},
		{"type twice", twice, Ambiguous},
		{"no body", post(base, "", "", base), ""},
		{"GET", get, ""},
		{"port added", post(base, form, "a=1", "https://h.example:443/in/ta1"), ""},
		{"wrong port added", post(base, form, "a=1", "https://h.example:444/in/ta1"), Mismatch},
		{"port 80 on https", post(base, form, "a=1", "https://h.example:80/in/ta1"), Mismatch},
		{"port removed", post("https://h.example:8443/in/t", form, "a=1", base+"a1"), ""},
		{"http port", post("http://h.example/in/t", form, "a=1", "http://h.example:80/in/ta1"), ""},
		{"http for https", post(base, form, "a=1", "http://h.example/in/ta1"), Mismatch},
		{"JSON with hash", post(withHash, js, "{}", withHash), ""},
		{"JSON with another hash", post(withHash, js, "{ }", withHash), Mismatch},
		{"JSON with hash in capitals", post(strings.ToUpper(withHash[len(base):]), js, "{}", strings.ToUpper(withHash[len(base):])), MissingSignature},
		{"JSON without hash", post(base, js, "{}", base), MissingSignature},
		{"JSON called a form", post(base, form, "{}", base), Mismatch},
		{"empty form around a hash", post(withHash, form, "&&", withHash), Mismatch},
		{"two hashes", post(withHash+"&bodySHA256=0", js, "{}", withHash+"&bodySHA256=0"), Ambiguous},
		{"text without hash", post(base, "text/plain", "a=1", base), MissingSignature},
		{"no type", post(base, "", "a=1", base+"a1"), Mismatch},
		{"SHA-256", Request{Method: "POST", URL: base, Header: header("X-Twilio-Signature", macBase64("key", base))}, Mismatch},
		{"hex", Request{Method: "POST", URL: base, Header: header("X-Twilio-Signature", hex.EncodeToString(hmacOf(hmacSHA1, "key", base))+"=")}, Malformed},
	})
	id, err := mustNew(t, "twilio", Options{}).Verify(get, one("key"), noon)
	if err != nil || id.Type != "message.received" || id.Headers[len(id.Headers)-1].Name != QueryHeader || id.Headers[len(id.Headers)-1].Value != "From=%2B1&SmsStatus=received" {
		t.Errorf("%+v, %v", id, err)
	}
}

func TestHubSpot(t *testing.T) {
	t.Parallel()
	const u, body = "https://h.example/in/h", `[{"subscriptionType":"deal.creation","attemptNumber":0}]`
	plainHash := func(text string) string { h := sha256.Sum256([]byte("key" + text)); return hex.EncodeToString(h[:]) }
	req := func(method, u, body string, pairs ...string) Request {
		return Request{Method: method, URL: u, Body: []byte(body), Header: header(pairs...)}
	}
	v := func(version, sig string) []string {
		return []string{"X-HubSpot-Signature", sig, "X-HubSpot-Signature-Version", version}
	}
	judgeAll(t, mustNew(t, "hubspot-v1", Options{}), "key", []near{
		{"v1", req("POST", u, body, v("v1", plainHash(body))...), ""},
		{"v1 named v2", req("POST", u, body, v("v2", plainHash(body))...), Malformed},
		{"v1 named twice", req("POST", u, body, append(v("v1", plainHash(body)), "X-HubSpot-Signature-Version", "v1")...), Ambiguous},
		{"v1 of other bytes than JSON", req("POST", u, body+"\x80\x00", v("v1", plainHash(body+"\x80\x00"))...), BadBody},
		{"v1 in capitals", req("POST", u, body, v("v1", strings.ToUpper(plainHash(body)))...), Malformed},
		{"v2 hash", req("POST", u, body, v("v1", plainHash("POST"+u+body))...), Mismatch},
	})
	// HubSpot's own example of a GET.
	get := req("GET", "https://www.example.com/webhook_uri", "", v("v2", "eee2dddcc73c94d699f5e395f4b9d454a069a6855fbfa152e91e88823087200e")...)
	if _, err := mustNew(t, "hubspot-v2", Options{}).Verify(get, one("yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy"), noon); err != nil {
		t.Errorf("published GET: %v", err)
	}
	judgeAll(t, mustNew(t, "hubspot-v2", Options{}), "key", []near{
		{"v2", req("POST", u, body, v("v2", plainHash("POST"+u+body))...), ""},
		{"v2 by another method", req("PUT", u, body, v("v2", plainHash("POST"+u+body))...), Mismatch},
		{"v2 boundary moved", req("POST", u, "?a=1", v("v2", plainHash("POST"+u+"?a=1"))...), BadBody},
		{"v2 named v1", req("POST", u, body, v("v1", plainHash("POST"+u+body))...), Malformed},
	})
	ts := strconv.FormatInt(noon.UnixMilli(), 10)
	v3 := func(text, ts string) []string {
		return []string{"X-HubSpot-Signature-v3", macBase64("key", text+ts), "X-HubSpot-Request-Timestamp", ts, "X-HubSpot-Signature", plainHash(body), "X-HubSpot-Signature-Version", "v1"}
	}
	seconds := strconv.FormatInt(noon.Unix(), 10)
	judgeAll(t, mustNew(t, "hubspot-v3", Options{}), "key", []near{
		{"v3", req("POST", u, body, v3("POST"+u+body, ts)...), ""},
		{"v3 decodes", req("GET", u+"?a=%3A%2F%20", "", v3("GET"+u+"?a=:/%20", ts)...), ""},
		{"v3 as sent", req("GET", u+"?a=%3A%2F%20", "", v3("GET"+u+"?a=%3A%2F%20", ts)...), ""},
		{"v3 decodes too much", req("GET", u+"?a=%3A%2F%20", "", v3("GET"+u+"?a=:/ ", ts)...), Mismatch},
		{"v3 in seconds", req("POST", u, body, v3("POST"+u+body, seconds)...), Stale},
		{"v3 digit moved", req("POST", u, body+ts[:1], v3("POST"+u+body+ts[:1], ts[1:])...), Stale},
		{"v3 no time", req("POST", u, body, "X-HubSpot-Signature-v3", macBase64("key", "POST"+u+body)), MissingSignature},
		{"v3 of no JSON", req("POST", u, "a=1", v3("POST"+u+"a=1", ts)...), BadBody},
		{"v1 only", req("POST", u, body, v("v1", plainHash(body))...), MissingSignature},
	})
	s := mustNew(t, "hubspot-v1", Options{})
	retry := strings.Replace(body, `"attemptNumber":0`, `"attemptNumber":3`, 1)
	a, err1 := s.Verify(req("POST", u, body, v("v1", plainHash(body))...), one("key"), noon)
	b, err2 := s.Verify(req("POST", u, retry, v("v1", plainHash(retry))...), one("key"), noon)
	if err1 != nil || err2 != nil || a.ID != b.ID || a.Type != "deal.creation" {
		t.Errorf("a retry is another event: %+v %+v", a, b)
	}
	mixed := `[{"subscriptionType":"deal.creation"},{"subscriptionType":"contact.creation"}]`
	if id, err := s.Verify(req("POST", u, mixed, v("v1", plainHash(mixed))...), one("key"), noon); err != nil || id.Type != "hubspot-v1.batch" {
		t.Errorf("%q, %v", id.Type, err)
	}
}

func TestSquare(t *testing.T) {
	t.Parallel()
	req := func(u, body, signed string) Request {
		return Request{Method: "POST", URL: u, Body: []byte(body), Header: header("x-square-hmacsha256-signature", macBase64("key", signed))}
	}
	old := req("https://h.example/s", "{}", "x")
	old.Header = header("X-Square-Signature", "x")
	judgeAll(t, mustNew(t, "square", Options{}), "key", []near{
		{"good", req("https://h.example/s", "{}", "https://h.example/s{}"), ""},
		{"query moved into the body", req("https://h.example/s", "?a=1{}", "https://h.example/s?a=1{}"), BadBody},
		{"body moved into the query", req("https://h.example/s?{", "}", "https://h.example/s?{}"), BadBody},
		{"empty", req("https://h.example/s", "", "https://h.example/s"), BadBody},
		{"body alone", req("https://h.example/s", "{}", "{}"), Mismatch},
		{"old header", old, MissingSignature},
	})
}

func TestAdyen(t *testing.T) {
	t.Parallel()
	const key = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
	raw, _ := hex.DecodeString(key)
	item := func(ref, extra, text string) string {
		return fmt.Sprintf(`{"NotificationRequestItem":{"pspReference":"P1","merchantAccountCode":"M","merchantReference":%q,"amount":{"value":10,"currency":"EUR"},"eventCode":"CAPTURE","success":"true"%s,"additionalData":{"hmacSignature":%q}}}`,
			ref, extra, base64.StdEncoding.EncodeToString(hmacOf(hmacSHA256, string(raw), text)))
	}
	batch := func(items ...string) Request {
		return Request{Method: "POST", Header: header(), Body: []byte(`{"live":"false","notificationItems":[` + strings.Join(items, ",") + `]}`)}
	}
	good := item("R", "", "P1::M:R:10:EUR:CAPTURE:true")
	bad := item("R", "", "x")
	replace := func(old, with string) Request { return batch(strings.Replace(good, old, with, 1)) }
	judgeAll(t, mustNew(t, "adyen", Options{}), key, []near{
		{"one", batch(good), ""},
		{"two", batch(good, good), ""},
		{"second forged", batch(good, bad), Mismatch},
		{"first forged", batch(bad, good), Mismatch},
		{"none", batch(), MissingSignature},
		{"colon in the reference, as it is", batch(item("a:b", "", "P1::M:a:b:10:EUR:CAPTURE:true")), ""},
		{"boundary moved into the account", replace(`"M"`, `"M:R"`), Malformed},
		{"original reference", batch(item("R", `,"originalReference":"O"`, "P1:O:M:R:10:EUR:CAPTURE:true")), ""},
		{"original reference not signed", batch(item("R", `,"originalReference":"O"`, "P1::M:R:10:EUR:CAPTURE:true")), Mismatch},
		{"original reference twice", batch(item("R", `,"originalReference":"O","originalReference":"O"`, "P1::M:R:10:EUR:CAPTURE:true")), Ambiguous},
		{"original reference in capitals", batch(item("R", `,"OriginalReference":"O"`, "P1::M:R:10:EUR:CAPTURE:true")), Ambiguous},
		{"original reference null", batch(item("R", `,"originalReference":null`, "P1::M:R:10:EUR:CAPTURE:true")), ""},
		{"amount an object", replace(`"value":10`, `"value":{"a":10}`), Malformed},
		{"amount another spelling", replace(`"value":10`, `"value":1e1`), Mismatch},
		{"success a boolean", replace(`"success":"true"`, `"success":true`), ""},
		{"success false", replace(`"success":"true"`, `"success":"false"`), Mismatch},
		{"no signature", replace(`hmacSignature`, `hmac`), MissingSignature},
		{"signature in hex", replace(`="`, `"`), Malformed},
		{"items twice", Request{Body: []byte(`{"notificationItems":[` + good + `],"notificationItems":[` + bad + `]}`)}, Ambiguous},
		{"items no list", Request{Body: []byte(`{"notificationItems":{}}`)}, MissingSignature},
		{"no JSON", Request{Body: []byte(`live=false`)}, MissingSignature},
		{"cut", Request{Body: []byte(`{"notificationItems":[` + good)}, MissingSignature},
		{"too many", batch(strings.Split(strings.Repeat(good+"\n", maxItems+1), "\n")[:maxItems+1]...), MissingSignature},
	})
	for _, k := range []string{key[1:], "zz", "00000000", base64.StdEncoding.EncodeToString(raw)} {
		if err := mustNew(t, "adyen", Options{}).CheckSecret(NewSecret("s", 1, []byte(k))); err == nil {
			t.Errorf("key %q is taken", k)
		}
	}
}

func TestMailgun(t *testing.T) {
	t.Parallel()
	ts := strconv.FormatInt(noon.Unix(), 10)
	req := func(ts, token, signed string) Request {
		return Request{Body: []byte(fmt.Sprintf(`{"signature":{"timestamp":%s,"token":%q,"signature":%q},"event-data":{"event":"opened"}}`, ts, token, macHex("key", signed)))}
	}
	judgeAll(t, mustNew(t, "mailgun", Options{}), "key", []near{
		{"good", req(`"`+ts+`"`, "t0", ts+"t0"), ""},
		{"number", req(ts, "t0", ts+"t0"), ""},
		{"digit moved to the token", req(`"`+ts[:9]+`"`, ts[9:]+"t0", ts+"t0"), Stale},
		{"digit moved to the timestamp", req(`"`+ts+`5"`, "t0", ts+"5t0"), Future},
		{"separator", req(`"`+ts+`"`, "t0", ts+"."+"t0"), Mismatch},
		{"odd token", req(`"`+ts+`"`, "t 0", ts+"t 0"), Malformed},
		{"long token", req(`"`+ts+`"`, strings.Repeat("t", 129), ts+strings.Repeat("t", 129)), Malformed},
		{"no token", req(`"`+ts+`"`, "", ts), MissingSignature},
		{"timestamp no number", req(`"0x5"`, "t", "0x5t"), Malformed},
		{"timestamp with a zero before", req(`"0`+ts+`"`, "t", "0"+ts+"t"), Malformed},
		{"token twice", Request{Body: []byte(`{"signature":{"timestamp":1,"token":"a","token":"b","signature":"00"}}`)}, Ambiguous},
		{"in capitals", Request{Body: bytes.Replace(req(`"`+ts+`"`, "t0", ts+"t0").Body, []byte(macHex("key", ts+"t0")), []byte(strings.ToUpper(macHex("key", ts+"t0"))), 1)}, Malformed},
		{"form", Request{Body: []byte("timestamp=1&token=a&signature=00")}, MissingSignature},
	})
}

// Webhooks of old and forwarded messages are forms.
func TestMailgunForms(t *testing.T) {
	t.Parallel()
	ts := strconv.FormatInt(noon.Unix(), 10)
	sig := macHex("key", ts+"t0")
	const form, multi = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b1"
	req := func(kind, body string) Request {
		return Request{Method: "POST", Header: header("Content-Type", kind), Body: []byte(body)}
	}
	part := func(name, value string) string {
		return "--b1\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	good := "event=delivered&timestamp=" + ts + "&token=t0&signature=" + sig
	parts := part("event", "opened") + part("timestamp", ts) + part("token", "t0") + part("signature", sig)
	const end = "--b1--\r\n"
	file := "--b1\r\nContent-Disposition: form-data; name=\"token\"; filename=\"a\"\r\n\r\nt0\r\n"
	judgeAll(t, mustNew(t, "mailgun", Options{}), "key", []near{
		{"urlencoded", req(form, good), ""},
		{"charset", req(form+"; charset=utf-8", good), ""},
		{"other order, odd fields", req(form, "&body-plain=a%26b&signature="+sig+"&token=t0&x&timestamp="+ts+"&"), ""},
		{"names escaped", req(form, strings.Replace(good, "token", "%74oken", 1)), ""},
		{"token twice", req(form, good+"&token=t1"), Ambiguous},
		{"token twice, once escaped", req(form, good+"&%74oken=t1"), Ambiguous},
		{"event twice", req(form, good+"&event=failed"), Ambiguous},
		{"no token", req(form, strings.Replace(good, "token", "tokem", 1)), MissingSignature},
		{"bad escape of a name", req(form, good+"&%zz=1"), Malformed},
		{"bad escape of a value", req(form, strings.Replace(good, "t0", "%zz", 1)), Malformed},
		{"bad escape of another's value", req(form, good+"&subject=100%"), ""},
		{"long token", req(form, strings.Replace(good, "t0", strings.Repeat("t", 1025), 1)), Malformed},
		{"long name", req(form, good+"&"+strings.Repeat("t", 1025)+"=1"), ""},
		{"many fields", req(form, good+strings.Repeat("&a=1", maxFields-4)), ""},
		{"too many fields", req(form, good+strings.Repeat("&a=1", maxFields-3)), Malformed},
		{"another token", req(form, strings.Replace(good, "t0", "t1", 1)), Mismatch},
		{"in capitals", req(form, strings.Replace(good, sig, strings.ToUpper(sig), 1)), Malformed},
		{"old", req(form, "timestamp=1&token=t0&signature="+macHex("key", "1t0")), Stale},
		{"a form called JSON", req("application/json", good), MissingSignature},
		{"JSON called a form", req(form, `{"signature":{"timestamp":"`+ts+`","token":"t0","signature":"`+sig+`"}}`), MissingSignature},
		{"multipart", req(multi, parts+part("attachment-1", "\x00\xff")+end), ""},
		{"multipart, token a file", req(multi, part("timestamp", ts)+file+part("signature", sig)+end), Malformed},
		{"multipart, token a file as well", req(multi, parts+file+end), Ambiguous},
		{"multipart, token twice", req(multi, parts+part("token", "t1")+end), Ambiguous},
		{"multipart cut off", req(multi, parts), Malformed},
		{"multipart, no boundary", req("multipart/form-data", parts+end), Malformed},
		{"multipart, other boundary", req("multipart/form-data; boundary=b2", parts+end), Malformed},
		{"multipart, long boundary", req("multipart/form-data; boundary="+strings.Repeat("b", 71), parts+end), Malformed},
		{"multipart, empty", req(multi, end), MissingSignature},
		{"multipart, another token", req(multi, strings.Replace(parts, "t0", "t1", 1)+end), Mismatch},
		{"multipart, encoded", req(multi, strings.Replace(parts, "\"token\"\r\n", "\"token\"\r\nContent-Transfer-Encoding: quoted-printable\r\n", 1)+end), Malformed},
		{"multipart, said not to be encoded", req(multi, strings.Replace(parts, "\"token\"\r\n", "\"token\"\r\nContent-Transfer-Encoding: 8BIT\r\n", 1)+end), ""},
		{"multipart/mixed", req("multipart/mixed; boundary=b1", parts+end), MissingSignature},
	})
	for kind, body := range map[string]string{form: good, multi: strings.Replace(parts, "opened", "delivered", 1) + end} {
		id, err := mustNew(t, "mailgun", Options{}).Verify(req(kind, body), one("key"), noon)
		if err != nil || id.ID != "t0" || id.Type != "delivered" || !id.OccurredAt.Equal(noon) {
			t.Errorf("%+v, %v", id, err)
		}
	}
}

func TestDuplicateTokensAndStates(t *testing.T) {
	t.Parallel()
	judgeAll(t, mustNew(t, "gitlab-token", Options{}), "key", []near{
		{"good", Request{Header: header("X-Gitlab-Token", "key")}, ""},
		{"twice", Request{Header: header("X-Gitlab-Token", "key", "X-Gitlab-Token", "key")}, Ambiguous},
		{"longer", Request{Header: header("X-Gitlab-Token", "key2")}, Mismatch},
		{"empty", Request{Header: header("X-Gitlab-Token", "")}, MissingSignature},
		{"in the query", Request{Header: header(), URL: "?X-Gitlab-Token=key&token=key"}, MissingSignature},
	})
	state := func(list string) Request { return Request{Method: "POST", Body: []byte(`{"value":[` + list + `]}`)} }
	good := `{"clientState":"key","changeType":"updated"}`
	judgeAll(t, mustNew(t, "microsoft-graph", Options{}), "key", []near{
		{"good", state(good), ""},
		{"two", state(good + "," + good), ""},
		{"second without", state(good + `,{"changeType":"updated"}`), MissingSignature},
		{"second wrong", state(good + `,{"clientState":"kez"}`), Mismatch},
		{"null", state(`{"clientState":null}`), MissingSignature},
		{"twice", state(`{"clientState":"x","clientState":"key"}`), Ambiguous},
		{"other case", state(`{"clientState":"key","ClientState":"x"}`), Ambiguous},
		{"none", state(``), MissingSignature},
		{"empty", Request{Method: "POST"}, MissingSignature},
	})
	basic := func(text string) Request { return Request{Header: header("Authorization", text)} }
	judgeAll(t, mustNew(t, "basic", Options{}), "u:p:q", []near{
		{"good", basic("Basic " + base64.StdEncoding.EncodeToString([]byte("u:p:q"))), ""},
		{"scheme in lower case", basic("basic " + base64.StdEncoding.EncodeToString([]byte("u:p:q"))), ""},
		{"unpadded", basic("Basic dTpwOnE"), Malformed}, {"unpadded bits", basic("Basic dTpwOnF="), Malformed},
		{"other", basic("Basic " + base64.StdEncoding.EncodeToString([]byte("u:p"))), Mismatch},
		{"bearer", basic("Bearer u:p:q"), Malformed},
		{"no base64", basic("Basic u:p:q"), Malformed},
		{"nothing", basic("Basic"), Malformed},
		{"absent", Request{Header: header()}, MissingSignature},
	})
	for _, secret := range []string{"u", "u:", ":p", "u: "} {
		if err := mustNew(t, "basic", Options{}).CheckSecret(NewSecret("s", 1, []byte(secret))); err == nil {
			t.Errorf("secret %q is taken", secret)
		}
	}
	judgeAll(t, mustNew(t, "generic-token", Options{Token: &Token{Header: "X-Key", Prefix: "k="}}), "key", []near{
		{"good", Request{Header: header("X-Key", "k=key")}, ""},
		{"without prefix", Request{Header: header("X-Key", "key")}, Malformed},
		{"bearer", Request{Header: header("Authorization", "Bearer key")}, MissingSignature},
	})
}

func TestLists(t *testing.T) {
	t.Parallel()
	zeros, good := strings.Repeat("0", 64), macHex("key", "{}")
	pd := func(v string) Request { return Request{Header: header("X-PagerDuty-Signature", v), Body: []byte("{}")} }
	judgeAll(t, mustNew(t, "pagerduty", Options{}), "key", []near{
		{"second", pd("v1=" + zeros + ",v1=" + good), ""},
		{"unknown beside", pd("v2=" + zeros + ",v1=" + good), ""},
		{"in capitals", pd("v1=" + strings.ToUpper(good)), Malformed},
		{"as v2", pd("v2=" + good), Malformed},
		{"too many", pd(strings.Repeat("v1="+zeros+",", 16) + "v1=" + good), Malformed},
		{"base64", pd("v1=" + macBase64("key", "{}")), Malformed},
	})
	ds := func(pairs ...string) Request { return Request{Header: header(pairs...), Body: []byte("{}")} }
	sig := macBase64("key", "{}")
	judgeAll(t, mustNew(t, "docusign", Options{}), "key", []near{
		{"first", ds("X-DocuSign-Signature-1", sig), ""},
		{"second", ds("X-DocuSign-Signature-1", macBase64("other", "{}"), "X-DocuSign-Signature-2", sig), ""},
		{"first no base64", ds("X-DocuSign-Signature-1", "!", "X-DocuSign-Signature-2", sig), ""},
		{"one line twice", ds("X-DocuSign-Signature-1", sig, "X-DocuSign-Signature-1", sig), Ambiguous},
		{"hundredth", ds("X-DocuSign-Signature-1", macBase64("other", "{}"), "X-DocuSign-Signature-100", sig), ""},
		{"one too far", ds("X-DocuSign-Signature-101", sig), MissingSignature},
		{"number with a zero before", ds("X-DocuSign-Signature-01", sig), MissingSignature},
		{"zeroth", ds("X-DocuSign-Signature-0", sig), MissingSignature},
		{"hex", ds("X-DocuSign-Signature-1", good+"!"), Malformed},
	})
	pa := func(v string) Request { return Request{Header: header("Paddle-Signature", v), Body: []byte("{}")} }
	ts := strconv.FormatInt(noon.Unix(), 10)
	h1 := macHex("key", ts+":{}")
	judgeAll(t, mustNew(t, "paddle", Options{}), "key", []near{
		{"rotation", pa("ts=" + ts + ";h1=" + zeros + ";h1=" + h1), ""},
		{"two times", pa("ts=" + ts + ";ts=" + ts + ";h1=" + h1), Ambiguous},
		{"comma", pa("ts=" + ts + ",h1=" + h1), Malformed},
		{"as h2", pa("ts=" + ts + ";h2=" + h1), Malformed},
	})
}

func TestSendGridAndDiscord(t *testing.T) {
	t.Parallel()
	k := kitOf(t, "sendgrid")
	r := k.sign(t, Sample{}, noon)
	sig, _ := base64.StdEncoding.DecodeString(r.Header.Get("X-Twilio-Email-Event-Webhook-Signature"))
	with := func(b []byte) Request {
		c := r
		c.Header = r.Header.Clone()
		c.Header.Set("X-Twilio-Email-Event-Webhook-Signature", base64.StdEncoding.EncodeToString(b))
		return c
	}
	long := append([]byte{0x30, 0x81, sig[1]}, sig[2:]...) // the same numbers, length in the long form
	judgeAll(t, k.scheme, k.keys.Verification, []near{
		{"good", r, ""},
		{"byte after", with(append(bytes.Clone(sig), 0)), Mismatch},
		{"long form", with(long), Mismatch},
		{"zeros", with([]byte{0x30, 6, 2, 1, 0, 2, 1, 0}), Mismatch},
		{"raw numbers", with(make([]byte, 64)), Mismatch},
	})
	if err := k.scheme.CheckSecret(NewSecret("s", 1, []byte(kitOf(t, "paypal").keys.Verification))); err == nil {
		t.Error("an RSA key is taken for P-256")
	}
	d := mustNew(t, "discord", Options{})
	for _, text := range smallOrder {
		if err := d.CheckSecret(NewSecret("s", 1, []byte(text))); err == nil {
			t.Errorf("key %s of small order is taken", text)
		}
	}
	seed := sha256.Sum256([]byte("discord"))
	private := ed25519.NewKeyFromSeed(seed[:])
	public := hex.EncodeToString(private.Public().(ed25519.PublicKey))
	ts := strconv.FormatInt(noon.Unix(), 10)
	req := func(ts, body string) Request {
		return Request{Method: "POST", Body: []byte(body), Header: header("X-Signature-Timestamp", ts, "X-Signature-Ed25519", hex.EncodeToString(ed25519.Sign(private, []byte(ts+body))))}
	}
	moved := req(ts, "5{}")
	moved.Header.Set("X-Signature-Timestamp", ts+"5")
	moved.Body = []byte("{}")
	upper := req(ts, "{}")
	upper.Header.Set("X-Signature-Ed25519", strings.ToUpper(upper.Header.Get("X-Signature-Ed25519")))
	judgeAll(t, d, public, []near{{"good", req(ts, "{}"), ""}, {"digit moved", moved, Future}, {"in capitals", upper, Malformed}})
	for body, want := range map[string]string{
		`{"type":1}`: `200 application/json {"type":1}`, `{"type":0,"version":1}`: "204  ", `{"type":1,"event":{"type":"E"}}`: "event E", `{"type":2,"id":"i"}`: "event interaction.2",
		`{"type":"1"}`: "event interaction.1", `{"type":1,"type":1}`: "event discord.unknown",
	} {
		id, err := d.Verify(req(ts, body), one(public), noon)
		got := "event " + id.Type
		if r := id.Response; r != nil {
			got = fmt.Sprintf("%d %s %s", r.Status, r.ContentType, r.Body)
		}
		if err != nil || got != want {
			t.Errorf("%s: %s, want %s, %v", body, got, want, err)
		}
	}
}

func TestLinearAndZendeskAndIntercom(t *testing.T) {
	t.Parallel()
	lin := func(body string) Request {
		return Request{Header: header("Linear-Signature", macHex("key", body)), Body: []byte(body)}
	}
	at := func(ms int64) string { return fmt.Sprintf(`{"webhookTimestamp":%d}`, ms) }
	ms := noon.UnixMilli()
	judgeAll(t, mustNew(t, "linear", Options{}), "key", []near{
		{"limit", lin(at(ms - 300_000)), ""}, {"beyond", lin(at(ms - 300_001)), Stale}, {"limit ahead", lin(at(ms + 300_000)), ""}, {"beyond ahead", lin(at(ms + 300_001)), Future},
		{"seconds", lin(at(noon.Unix())), Stale}, {"twice", lin(fmt.Sprintf(`{"webhookTimestamp":%d,"webhookTimestamp":%d}`, ms, ms)), Malformed},
		{"fraction", lin(fmt.Sprintf(`{"webhookTimestamp":%d.5}`, ms)), Malformed}, {"null", lin(`{"webhookTimestamp":null}`), Malformed}, {"nested", lin(`{"a":` + at(ms) + `}`), Malformed},
		{"exponent", lin(`{"webhookTimestamp":1.7e12}`), Malformed}, {"no JSON", lin(`x`), Malformed},
	})
	zd := func(ts, body string) Request {
		return Request{Body: []byte(body), Header: header("X-Zendesk-Webhook-Signature", macBase64("key", ts+body), "X-Zendesk-Webhook-Signature-Timestamp", ts)}
	}
	text := func(d time.Duration) string { return noon.Add(d).Format(time.RFC3339) }
	judgeAll(t, mustNew(t, "zendesk", Options{}), "key", []near{
		{"limit", zd(text(-300*time.Second), ""), ""}, {"beyond", zd(text(-301*time.Second), ""), Stale}, {"beyond ahead", zd(text(301*time.Second), ""), Future},
		{"unix", zd(strconv.FormatInt(noon.Unix(), 10), ""), Malformed}, {"no zone", zd(noon.Format("2006-01-02T15:04:05"), ""), Malformed},
		{"another zone, the same time", zd(noon.In(time.FixedZone("", 7200)).Format(time.RFC3339), ""), ""},
	})
	ids := map[string]string{`{"id":"z1","zendesk_event_version":"2022"}`: "z1", `{"id":"1042","status":"open"}`: "i1"}
	for body, want := range ids {
		r := zd(text(0), body)
		r.Header.Set("X-Zendesk-Webhook-Invocation-Id", "i1")
		if id, err := mustNew(t, "zendesk", Options{}).Verify(r, one("key"), noon); err != nil || id.ID != want {
			t.Errorf("%s: %q, %v", body, id.ID, err)
		}
	}
	hub := func(name, v string) Request { return Request{Header: header(name, v), Body: []byte("{}")} }
	sha1hex := hex.EncodeToString(hmacOf(hmacSHA1, "key", "{}"))
	judgeAll(t, mustNew(t, "intercom", Options{}), "key", []near{
		{"sha1", hub("X-Hub-Signature", "sha1="+sha1hex), ""}, {"sha256", hub("X-Hub-Signature", "sha256="+macHex("key", "{}")), Malformed},
		{"sha256 called sha1", hub("X-Hub-Signature", "sha1="+macHex("key", "{}")), Mismatch}, {"other header", hub("X-Hub-Signature-256", "sha256="+macHex("key", "{}")), MissingSignature},
	})
	judgeAll(t, mustNew(t, "bitbucket", Options{}), "key", []near{
		{"sha256", hub("X-Hub-Signature", "sha256="+macHex("key", "{}")), ""}, {"sha1", hub("X-Hub-Signature", "sha1="+sha1hex), Malformed},
	})
	judgeAll(t, mustNew(t, "meta", Options{}), "key", []near{
		{"sha256", hub("X-Hub-Signature-256", "sha256="+macHex("key", "{}")), ""}, {"sha1", hub("X-Hub-Signature", "sha1="+sha1hex), MissingSignature},
		{"sha1 in the stronger header", hub("X-Hub-Signature-256", "sha1="+sha1hex), Malformed},
	})
}

func TestPayPal(t *testing.T) {
	t.Parallel()
	k := kitOf(t, "paypal")
	with := func(name, value string) Request {
		c := k.sign(t, Sample{}, noon)
		c.Header.Set(name, value)
		return c
	}
	cert := func(u string) Request { return with("PAYPAL-CERT-URL", u) }
	cases := []near{
		{"live", cert("https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594"), ""},
		{"algorithm in lower case", with("PAYPAL-AUTH-ALGO", "sha256withrsa"), Malformed},
		{"SHA-1", with("PAYPAL-AUTH-ALGO", "SHA1withRSA"), Malformed},
		{"no algorithm", with("PAYPAL-AUTH-ALGO", ""), MissingSignature},
		{"bar in the id", with("PAYPAL-TRANSMISSION-ID", "a|b"), Ambiguous},
		{"another id", with("PAYPAL-TRANSMISSION-ID", "b"), Mismatch},
		{"time respelled", with("PAYPAL-TRANSMISSION-TIME", noon.Format("2006-01-02T15:04:05.000Z07:00")), Mismatch},
	}
	for _, u := range []string{
		"http://api.paypal.com/v1/notifications/certs/CERT-a", "https://api.paypal.com.evil.example/v1/notifications/certs/CERT-a", "https://evil.example/v1/notifications/certs/CERT-a",
		"https://api.paypal.com@evil.example/v1/notifications/certs/CERT-a", "https://api.paypal.com:8443/v1/notifications/certs/CERT-a", "https://api.paypal.com/v1/notifications/certs/../../x",
		"https://api.paypal.com/v1/notifications/certs/CERT-a?x=https://evil.example", "https://API.PAYPAL.COM/v1/notifications/certs/CERT-a", "https://api.paypal.com/v1/notifications/certs/a\n", "//api.paypal.com/v1/notifications/certs/CERT-a",
	} {
		cases = append(cases, near{u, cert(u), Malformed})
	}
	judgeAll(t, k.scheme, k.keys.Verification, cases)
	if u, err := k.scheme.Fetch(cert("https://evil.example/x")); err == nil || u != "" {
		t.Errorf("would fetch %q", u)
	}
	if u, err := k.scheme.Fetch(k.sign(t, Sample{}, noon)); err != nil || !strings.HasPrefix(u, "https://api.sandbox.paypal.com/") {
		t.Errorf("%q, %v", u, err)
	}
}

// sns signs a message as SNS does.
func sns(t *testing.T, edit func(map[string]any), h crypto.Hash) Request {
	t.Helper()
	k := kitOf(t, "aws-sns")
	r := k.sign(t, Sample{ID: "m1"}, noon)
	var body map[string]any
	if err := json.Unmarshal(r.Body, &body); err != nil {
		t.Fatal(err)
	}
	edit(body)
	private, err := privatePEM([]byte(k.keys.Signing))
	if err != nil {
		t.Fatal(err)
	}
	sig, err := private.Sign(rand.Reader, snsDigest(body, h), h)
	if err != nil {
		t.Fatal(err)
	}
	body["Signature"] = base64.StdEncoding.EncodeToString(sig)
	r.Body, _ = json.Marshal(body)
	if kind, ok := body["Type"].(string); ok {
		r.Header.Set("X-Amz-Sns-Message-Type", kind)
	}
	return r
}

func TestSNS(t *testing.T) {
	t.Parallel()
	k := kitOf(t, "aws-sns")
	set := func(name string, v any) func(map[string]any) { return func(b map[string]any) { b[name] = v } }
	del := func(name string) func(map[string]any) { return func(b map[string]any) { delete(b, name) } }
	v := func(version string, h crypto.Hash) Request { return sns(t, set("SignatureVersion", version), h) }
	raw := func(old, with string) Request {
		r := sns(t, del(""), crypto.SHA256)
		r.Body = bytes.Replace(r.Body, []byte(old), []byte(with), 1)
		return r
	}
	confirm := func(edit func(map[string]any)) Request {
		return sns(t, func(b map[string]any) {
			delete(b, "Subject")
			b["Type"], b["Token"], b["SubscribeURL"] = "SubscriptionConfirmation", "t", "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=t"
			edit(b)
		}, crypto.SHA256)
	}
	header := sns(t, del(""), crypto.SHA256)
	header.Header.Set("X-Amz-Sns-Message-Type", "SubscriptionConfirmation")
	cases := []near{
		{"v2", v("2", crypto.SHA256), ""}, {"v1", v("1", crypto.SHA1), ""},
		{"v2 with SHA-1", v("2", crypto.SHA1), Mismatch}, {"v1 with SHA-256", v("1", crypto.SHA256), Mismatch}, {"v3", v("3", crypto.SHA256), Malformed},
		{"version a number", sns(t, set("SignatureVersion", 2), crypto.SHA256), Malformed}, {"no version", sns(t, del("SignatureVersion"), crypto.SHA256), Malformed},
		{"no subject", sns(t, del("Subject"), crypto.SHA256), ""}, {"subject null", sns(t, set("Subject", nil), crypto.SHA256), ""},
		{"subject added", func() Request {
			r := sns(t, del("Subject"), crypto.SHA256)
			r.Body = bytes.Replace(r.Body, []byte(`{`), []byte(`{"Subject":"x",`), 1)
			return r
		}(), Mismatch},
		{"subject added twice", func() Request {
			r := sns(t, del("Subject"), crypto.SHA256)
			r.Body = bytes.Replace(r.Body, []byte(`{`), []byte(`{"Subject":"x","Subject":"x",`), 1)
			return r
		}(), Ambiguous},
		{"message in other case", raw(`{`, `{"message":"x",`), Ambiguous}, {"subject removed", raw(`"Subject":"Order",`, ``), Mismatch},
		{"subject of two lines", sns(t, set("Subject", "a\nTimestamp"), crypto.SHA256), Malformed}, {"message of two lines", sns(t, set("Message", "a\nMessageId\nb"), crypto.SHA256), ""},
		{"message a number", sns(t, set("Message", 5), crypto.SHA256), Malformed}, {"no message", sns(t, del("Message"), crypto.SHA256), MissingSignature}, {"no topic", sns(t, del("TopicArn"), crypto.SHA256), MissingSignature},
		{"another topic", sns(t, set("TopicArn", "arn:aws:sns:us-east-1:666666666666:orders"), crypto.SHA256), Mismatch}, {"topic changed", raw(sampleTopic, sampleTopic+"2"), Mismatch},
		{"unknown type", sns(t, set("Type", "Other"), crypto.SHA256), Malformed}, {"header says otherwise", header, Ambiguous},
		{"old", sns(t, set("Timestamp", noon.Add(-301*time.Second).Format(time.RFC3339)), crypto.SHA256), Stale}, {"time no RFC 3339", sns(t, set("Timestamp", "now"), crypto.SHA256), Malformed},
		{"confirmation", confirm(del("")), ""}, {"no token", confirm(del("Token")), MissingSignature}, {"no URL", confirm(del("SubscribeURL")), MissingSignature},
		{"raw delivery", Request{Header: http.Header{"X-Amz-Sns-Rawdelivery": {"true"}}, Body: []byte("hello")}, MissingSignature},
	}
	for _, u := range []string{
		"http://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=t", "https://sns.us-east-1.amazonaws.com.evil.example/?Action=ConfirmSubscription&Token=t",
		"https://evil.example/?Action=ConfirmSubscription&Token=t", "https://sns.us-east-1.amazonaws.com@evil.example/?Action=ConfirmSubscription&Token=t",
		"https://sns.us-east-1.amazonaws.com:22/?Action=ConfirmSubscription&Token=t", "https://sns.us-east-1.amazonaws.com/?Action=DeleteTopic&Token=t", "https://s3.amazonaws.com/?Action=ConfirmSubscription&Token=t",
		"https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=t#x",
	} {
		cases = append(cases, near{u, confirm(set("SubscribeURL", u)), Malformed})
	}
	for u, want := range map[string]Reason{
		"https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-a.pem": "", "https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-a.pem": "",
		"https://sns.us-east-1.amazonaws.com.evil.example/a.pem": Malformed, "https://sns.us-east-1.amazonaws.com.cn.evil.example/a.pem": Malformed, "https://sns.us-east-1.amazonaws.com/a.pem?x": Malformed,
		"https://sns.us-east-1.amazonaws.com/../a.pem": Malformed, "https://sns.us-east-1.amazonaws.com:443/a.pem": Malformed, "https://SNS.us-east-1.amazonaws.com/a.pem": Malformed, "https://sns..amazonaws.com/a.pem": Malformed,
		"https://sns.a.b.amazonaws.com/a.pem": Malformed, "https://xsns.us-east-1.amazonaws.com/a.pem": Malformed, "https://sns.us-east-1.amazonaws.com/a.pem\n": Malformed, "HTTPS://sns.us-east-1.amazonaws.com/a.pem": Malformed,
		"https://sns.us-east-1.amazonaws.com\\@evil.example/a.pem": Malformed, "https://evil.example/https://sns.us-east-1.amazonaws.com/a.pem": Malformed, "https://sns.us-east-1.amazonaws.com/a.PEM": Malformed, "": MissingSignature,
	} {
		cases = append(cases, near{"certificate " + u, sns(t, set("SigningCertURL", u), crypto.SHA256), want})
	}
	judgeAll(t, k.scheme, k.keys.Verification, cases)
	if id, err := k.verify(confirm(del("")), noon); err != nil || id.Confirm == "" || id.Type != "SubscriptionConfirmation" {
		t.Errorf("%+v, %v", id, err)
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	if checkRSA(&small.PublicKey) == nil {
		t.Error("1024 bits are taken")
	}
}

func TestHandshakesBeforeAnythingIsSigned(t *testing.T) {
	t.Parallel()
	get := func(query string) Request {
		return Request{Method: "GET", URL: "https://h.example/in/x?" + query, Header: http.Header{}}
	}
	post := func(query string) Request { r := get(query); r.Method = "POST"; return r }
	hook := func(pairs ...string) Request {
		return Request{Method: "POST", Header: header(pairs...), Body: []byte("{}")}
	}
	const meta = "hub.mode=subscribe&hub.verify_token=vt&hub.challenge="
	html := "%3Cscript%3Ealert(1)%3C%2Fscript%3E"
	cases := []struct {
		name, scheme string
		o            Options
		r            Request
		want         string // status, type and body, or the reason
	}{
		{"dropbox", "dropbox", Options{}, get("challenge=abc123"), "200 text/plain; charset=utf-8 abc123"},
		{"dropbox HTML", "dropbox", Options{}, get("challenge=" + html), "malformed"},
		{"dropbox twice", "dropbox", Options{}, get("challenge=a&challenge=b"), "ambiguous"},
		{"dropbox empty", "dropbox", Options{}, get("challenge="), "malformed"},
		{"dropbox nothing", "dropbox", Options{}, get(""), "missing_signature"},
		{"dropbox line end", "dropbox", Options{}, get("challenge=a%0d%0aX:y"), "malformed"},
		{"dropbox long", "dropbox", Options{}, get("challenge=" + strings.Repeat("a", 1025)), "malformed"},
		{"dropbox by POST", "dropbox", Options{}, post("challenge=a"), "missing_signature"},
		{"intercom", "intercom", Options{}, Request{Method: "HEAD", Header: http.Header{}}, "200 text/plain; charset=utf-8 "},
		{"intercom by GET", "intercom", Options{}, get(""), "missing_signature"},
		{"intercom unsigned", "intercom", Options{}, post(""), "missing_signature"},
		{"meta", "meta", Options{VerifyToken: "vt"}, get(meta + "1158201444"), "200 text/plain; charset=utf-8 1158201444"},
		{"meta other token", "meta", Options{VerifyToken: "vu"}, get(meta + "1"), "mismatch"},
		{"meta no token configured", "meta", Options{}, get(meta + "1"), "mismatch"},
		{"meta empty token", "meta", Options{}, get("hub.mode=subscribe&hub.verify_token=&hub.challenge=1"), "mismatch"},
		{"meta two tokens", "meta", Options{VerifyToken: "vt"}, get(meta + "1&hub.verify_token=vt"), "ambiguous"},
		{"meta unsubscribe", "meta", Options{VerifyToken: "vt"}, get(strings.Replace(meta, "subscribe", "unsubscribe", 1) + "1"), "mismatch"},
		{"meta HTML", "meta", Options{VerifyToken: "vt"}, get(meta + html), "malformed"},
		{"meta no challenge", "meta", Options{VerifyToken: "vt"}, get("hub.mode=subscribe&hub.verify_token=vt"), "missing_signature"},
		{"x", "x-twitter", Options{}, get("crc_token=abc"), `200 application/json {"response_token":"sha256=` + macBase64("key", "abc") + `"}`},
		{"x nonce", "x-twitter", Options{}, get("crc_token=abc&nonce=n"), `200 application/json {"response_token":"sha256=` + macBase64("key", "abc") + `"}`},
		{"x is no oracle for bodies", "x-twitter", Options{}, get("crc_token=%7B%22for_user_id%22%3A%221%22%7D"), "malformed"},
		{"x is no oracle for texts", "x-twitter", Options{}, get("crc_token=a%20b"), "malformed"},
		{"x two tokens", "x-twitter", Options{}, get("crc_token=a&crc_token=b"), "ambiguous"},
		{"x long", "x-twitter", Options{}, get("crc_token=" + strings.Repeat("a", 257)), "malformed"},
		{"x no token", "x-twitter", Options{}, get(""), "missing_signature"},
		{"crc alone by POST", "x-twitter-crc", Options{}, post("crc_token=abc"), "missing_signature"},
		{"graph", "microsoft-graph", Options{}, post("validationToken=Validation%3A+Testing+a%2Fb-1"), "200 text/plain; charset=utf-8 Validation: Testing a/b-1"},
		{"graph HTML", "microsoft-graph", Options{}, post("validationToken=" + html), "malformed"},
		{"graph twice", "microsoft-graph", Options{}, post("validationToken=a&validationToken=b"), "ambiguous"},
		{"asana", "asana", Options{AsanaHandshake: true}, hook("X-Hook-Secret", "s3cret"), "200 text/plain; charset=utf-8  X-Hook-Secret=s3cret"},
		{"asana not expected", "asana", Options{}, hook("X-Hook-Secret", "s3cret"), "missing_signature"},
		{"asana signed with the key", "asana", Options{AsanaHandshake: true}, hook("X-Hook-Secret", "s", "X-Hook-Signature", macHex("key", "{}")), "ambiguous"},
		{"asana signed with its own", "asana", Options{AsanaHandshake: true}, hook("X-Hook-Secret", "s", "X-Hook-Signature", macHex("s", "{}")), "ambiguous"},
		{"asana twice", "asana", Options{AsanaHandshake: true}, hook("X-Hook-Secret", "s", "X-Hook-Secret", "s"), "ambiguous"},
		{"asana empty", "asana", Options{AsanaHandshake: true}, hook("X-Hook-Secret", ""), "malformed"},
		{"asana event while it is on", "asana", Options{AsanaHandshake: true}, hook("X-Hook-Signature", macHex("key", "{}")), "event"},
	}
	for _, c := range cases {
		id, err := mustNew(t, c.scheme, c.o).Verify(c.r, one("key"), noon)
		got := "event"
		if err != nil {
			got, _, _ = strings.Cut(err.Error(), ":")
		} else if r := id.Response; r != nil {
			got = fmt.Sprintf("%d %s %s", r.Status, r.ContentType, r.Body)
			for _, h := range r.Header {
				got += " " + h.Name + "=" + h.Value
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if _, err := mustNew(t, c.scheme, c.o).Verify(c.r, one(" "), noon); !isReason(err, NoSecret) {
			t.Errorf("%s with a blank secret: %v", c.name, err)
		}
	}
	// What the handshake signs is no event.
	token := Request{Method: "POST", Body: []byte("abc"), Header: header("X-Twitter-Webhooks-Signature", "sha256="+macBase64("key", "abc"))}
	if _, err := mustNew(t, "x-twitter", Options{}).Verify(token, one("key"), noon); !isReason(err, Ambiguous) {
		t.Errorf("a signed crc_token is an event: %v", err)
	}
	for _, scheme := range []string{"dropbox", "meta", "x-twitter", "intercom"} {
		r := kitOf(t, scheme).sign(t, Sample{}, noon)
		r.Method = "GET"
		if _, err := kitOf(t, scheme).verify(r, noon); err == nil {
			t.Errorf("%s: an event by GET", scheme)
		}
	}
}

// A verify_token that is a secret is no key of signatures, nor a key a verify_token.
func TestVerifyTokenIsASecret(t *testing.T) {
	t.Parallel()
	s := mustNew(t, "meta", Options{VerifyToken: "secret:verify"})
	app, token, old := NewSecret("app", 1, []byte("key")), NewSecret("verify", 2, []byte("vt2")), NewSecret("verify", 1, []byte("vt1"))
	get := func(token string) Request {
		return Request{Method: "GET", URL: "https://h.example/in/x?hub.mode=subscribe&hub.challenge=1&hub.verify_token=" + token, Header: http.Header{}}
	}
	post := func(key string) Request {
		return Request{Method: "POST", Header: header("X-Hub-Signature-256", "sha256="+macHex(key, "{}")), Body: []byte("{}")}
	}
	for _, c := range []struct {
		name    string
		secrets []Secret
		r       Request
		want    Reason
	}{
		{"newest", []Secret{token, old, app}, get("vt2"), ""}, {"older", []Secret{token, old, app}, get("vt1"), ""}, {"retired", []Secret{token, app}, get("vt1"), Mismatch},
		{"the app's secret", []Secret{token, app}, get("key"), Mismatch}, {"its own name", []Secret{token, app}, get("secret:verify"), Mismatch}, {"empty", []Secret{token, app}, get(""), Mismatch},
		{"an event", []Secret{token, app}, post("key"), ""}, {"an event by the token", []Secret{token, app}, post("vt2"), Mismatch},
		{"no such secret", []Secret{app}, get("key"), Mismatch}, {"no other secret", []Secret{token}, post("vt2"), NoSecret}, {"no other secret, handshake", []Secret{token}, get("vt2"), NoSecret},
		{"blank", []Secret{NewSecret("verify", 1, []byte(" ")), app}, get("+"), NoSecret},
	} {
		id, err := s.Verify(c.r, c.secrets, noon)
		if c.want == "" && err != nil || c.want != "" && !isReason(err, c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if c.name == "an event" && id.Secret != 1 {
			t.Errorf("secret %d", id.Secret)
		}
	}
	for _, secrets := range [][]Secret{{app}, {token}, {token, NewSecret("app", 1, nil)}} {
		if s.CheckSecrets(secrets) == nil {
			t.Errorf("%v are taken", secrets)
		}
	}
	if err := s.CheckSecrets([]Secret{token, app}); err != nil {
		t.Error(err)
	}
	if _, err := New("meta", Options{VerifyToken: "secret:"}); err == nil {
		t.Error("no name is taken")
	}
}

func TestZoomValidation(t *testing.T) {
	t.Parallel()
	ts := strconv.FormatInt(noon.Unix(), 10)
	req := func(body string) Request {
		return Request{Method: "POST", Body: []byte(body), Header: header("x-zm-request-timestamp", ts, "x-zm-signature", "v0="+macHex("key", "v0:"+ts+":"+body))}
	}
	s := mustNew(t, "zoom", Options{})
	secrets := []Secret{NewSecret("s", 2, []byte("new")), NewSecret("s", 1, []byte("key"))}
	id, err := s.Verify(req(`{"event":"endpoint.url_validation","payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"},"event_ts":1654503849680}`), secrets, noon)
	if want := `{"encryptedToken":"` + macHex("key", "qgg8vlvZRS6UYooatFL8Aw") + `","plainToken":"qgg8vlvZRS6UYooatFL8Aw"}`; err != nil || string(id.Response.Body) != want || id.Response.ContentType != "application/json" {
		t.Errorf("%+v, %v", id.Response, err)
	}
	for _, body := range []string{`{"event":"endpoint.url_validation"}`, `{"event":"endpoint.url_validation","payload":{"plainToken":"<b>"}}`} {
		if _, err := s.Verify(req(body), secrets, noon); !isReason(err, BadBody) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestDedupe(t *testing.T) {
	t.Parallel()
	r := shopify(`{"id":1}`, "X-Shopify-Webhook-Id", "w", "X-Shopify-Event-Id", "e")
	object := stripe(noon, `{"id":"evt_1","type":"invoice.paid","data":{"object":{"id":"in_1"}}}`)
	for _, c := range []struct {
		scheme, dedupe string
		r              Request
		want           string
	}{
		{"shopify", "", r, "w"}, {"shopify", "header:X-Shopify-Event-Id", r, "e"}, {"shopify", "header:x-shopify-event-id", r, "e"}, {"shopify", "header:X-None", r, "w"},
		{"stripe", "", object, "evt_1"}, {"stripe", "stripe-object", object, "in_1:invoice.paid"}, {"stripe", "stripe-object", stripe(noon, `{"id":"evt_1","type":"x"}`), "evt_1"},
	} {
		id, err := mustNew(t, c.scheme, Options{Dedupe: c.dedupe}).Verify(c.r, one("key"), noon)
		if err != nil || id.ID != c.want {
			t.Errorf("%s %q: %q, %v", c.scheme, c.dedupe, id.ID, err)
		}
	}
	r.Header.Add("X-Shopify-Event-Id", "f")
	if _, err := mustNew(t, "shopify", Options{Dedupe: "header:X-Shopify-Event-Id"}).Verify(r, one("key"), noon); !isReason(err, Ambiguous) {
		t.Errorf("two ids: %v", err)
	}
}

func TestSettingsOfSingleSchemes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scheme string
		o      Options
		want   string
	}{
		{"paypal", Options{}, "webhook_id"}, {"paypal", Options{WebhookID: "a|b"}, "webhook_id"}, {"stripe", Options{WebhookID: "a"}, "webhook_id"}, {"aws-sns", Options{}, "topics"},
		{"aws-sns", Options{Topics: []string{"orders"}}, "topics"}, {"github", Options{Topics: []string{"*"}}, "topics"}, {"github", Options{VerifyToken: "v"}, "verify_token"},
		{"github", Options{AsanaHandshake: true}, "asana_handshake"}, {"github", Options{Token: &Token{}}, "token"}, {"generic-token", Options{Token: &Token{Header: "a b"}}, "token.header"},
		{"generic-token", Options{Token: &Token{IDPath: "a..b"}}, "token.id_path"}, {"jwt", Options{}, "jwt"}, {"jwt", Options{JWT: &JWT{Audience: "a"}}, "jwt.issuer"}, {"jwt", Options{JWT: &JWT{Issuer: "a"}}, "jwt.audience"},
		{"jwt", Options{JWT: &JWT{Issuer: "a", Audience: "a", Email: "e"}}, "jwt.email"}, {"jwt", Options{JWT: &JWT{Issuer: "a", Audience: "a", Header: "a b"}}, "jwt.header"}, {"jwt", Options{JWT: &JWT{Issuer: "a", Audience: "a", IDPath: "a..b"}}, "jwt.id_path"},
		{"microsoft-graph", Options{JWT: &JWT{}}, "jwt.audience"}, {"microsoft-graph", Options{JWT: &JWT{Audience: "a", Issuer: "contoso"}}, "jwt.issuer"}, {"microsoft-graph", Options{JWT: &JWT{Audience: "a", Email: "e"}}, "jwt"},
		{"google-oidc", Options{JWT: &JWT{Audience: "a"}}, "jwt.email"}, {"google-oidc", Options{JWT: &JWT{Audience: "a", Email: "e", Issuer: "x"}}, "jwt.issuer"}, {"github", Options{Dedupe: "stripe-object"}, "dedupe"},
		{"github", Options{Dedupe: "header:"}, "dedupe"}, {"github", Options{Dedupe: "X-Id"}, "dedupe"}, {"dropbox", Options{Tolerance: new(time.Duration)}, "tolerance"},
	} {
		if _, err := New(c.scheme, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: %v does not name %q", c.scheme, c.o, err, c.want)
		}
	}
	needed := map[string]bool{"aws-sns": true, "paypal": true, googleOIDC: true}
	for _, name := range names() {
		if k := kitOf(t, name); k.scheme.NeedsSecret() == needed[name] {
			t.Errorf("%s: needs a secret: %t", name, k.scheme.NeedsSecret())
		}
	}
}

// RFC 7515, appendix A.3, and RFC 8037, appendix A.4.
func TestPublishedSignaturesOfTokens(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ alg, set, token string }{
		{"ES256", `{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}`,
			"eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"},
		{"EdDSA", `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`,
			"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"},
	} {
		k, err := jwksKey([]byte(c.set))
		if err != nil {
			t.Fatal(err)
		}
		i := strings.LastIndex(c.token, ".")
		sig, _ := jwkBytes(c.token[i+1:])
		if c.alg == "EdDSA" && !slices.Contains(k.set[0].algs, "Ed25519") {
			t.Error("Ed25519 is not another name of EdDSA")
		}
		if !matchJWT(k, content{head: []byte(c.token[:i])}, [][]byte{sig}) {
			t.Errorf("%s: does not match", c.alg)
		}
		sig[0] ^= 1
		if matchJWT(k, content{head: []byte(c.token[:i])}, [][]byte{sig}) {
			t.Errorf("%s: another signature matches", c.alg)
		}
	}
}

func TestJWT(t *testing.T) {
	t.Parallel()
	k := kitOf(t, jwtScheme)
	private, err := privatePEM([]byte(k.keys.Signing))
	if err != nil {
		t.Fatal(err)
	}
	now := noon.Unix()
	body := []byte(`{"id":"j1","type":"t"}`)
	sum := sha256.Sum256(body)
	good := fmt.Sprintf(`"iss":"https://issuer.example","aud":"sealpost","iat":%d,"exp":%d,"body_sha256":"%x"`, now, now+60, sum)
	const head = `{"alg":"RS256","kid":"sample"}`
	enc := base64.RawURLEncoding.EncodeToString
	rs := func(h crypto.Hash, input string) []byte {
		d := h.New()
		d.Write([]byte(input))
		sig, err := private.Sign(rand.Reader, d.Sum(nil), h)
		if err != nil {
			t.Fatal(err)
		}
		return sig
	}
	token := func(head, claims string, sign func(string) []byte) Request {
		input := enc([]byte(head)) + "." + enc([]byte(claims))
		return Request{Method: "POST", Body: body, Header: header("Authorization", "Bearer "+input+"."+enc(sign(input)))}
	}
	with256 := func(s string) []byte { return rs(crypto.SHA256, s) }
	claims := func(s string) Request { return token(head, "{"+s+"}", with256) }
	swap := func(old, with string) Request { return claims(strings.Replace(good, old, with, 1)) }
	jwks := []byte(k.keys.Verification)
	hs := func(s string) []byte { m := hmac.New(sha256.New, jwks); m.Write([]byte(s)); return m.Sum(nil) }
	fine := claims(good)
	edit := func(f func(string) string) Request {
		return Request{Method: "POST", Body: body, Header: header("Authorization", f(fine.Header.Get("Authorization")))}
	}
	twice := edit(func(s string) string { return s })
	twice.Header.Add("Authorization", twice.Header.Get("Authorization"))
	iat := func(d int64) Request { return swap(fmt.Sprintf(`"iat":%d`, now), fmt.Sprintf(`"iat":%d`, now+d)) }
	exp := func(d int64) Request { return swap(fmt.Sprintf(`"exp":%d`, now+60), fmt.Sprintf(`"exp":%d`, now+d)) }
	judgeAll(t, k.scheme, k.keys.Verification, []near{
		{"good", fine, ""},
		{"alg none", token(`{"alg":"none","kid":"sample"}`, "{"+good+"}", func(string) []byte { return []byte{0} }), Malformed},
		{"alg nOnE", token(`{"alg":"nOnE","kid":"sample"}`, "{"+good+"}", func(string) []byte { return []byte{0} }), Malformed},
		{"no signature", edit(func(s string) string { return s[:strings.LastIndex(s, ".")+1] }), Malformed},
		{"two parts", edit(func(s string) string { return s[:strings.LastIndex(s, ".")] }), Malformed},
		{"four parts", edit(func(s string) string { return s + ".a" }), Malformed},
		{"HS256 with the public key", token(`{"alg":"HS256","kid":"sample"}`, "{"+good+"}", hs), Mismatch},
		{"HS256 called RS256", token(head, "{"+good+"}", hs), Mismatch},
		{"RS384 by a key for RS256", token(`{"alg":"RS384","kid":"sample"}`, "{"+good+"}", func(s string) []byte { return rs(crypto.SHA384, s) }), Mismatch},
		{"PS256", token(`{"alg":"PS256","kid":"sample"}`, "{"+good+"}", with256), Mismatch},
		{"ES256 by an RSA key", token(`{"alg":"ES256","kid":"sample"}`, "{"+good+"}", with256), Mismatch},
		{"no alg", token(`{"kid":"sample"}`, "{"+good+"}", with256), Malformed},
		{"two algs", token(`{"alg":"RS256","alg":"RS256","kid":"sample"}`, "{"+good+"}", with256), Ambiguous},
		{"Alg as well", token(`{"alg":"RS256","Alg":"none","kid":"sample"}`, "{"+good+"}", with256), Ambiguous},
		{"no kid", token(`{"alg":"RS256"}`, "{"+good+"}", with256), Mismatch},
		{"another kid", token(`{"alg":"RS256","kid":"x"}`, "{"+good+"}", with256), Mismatch},
		{"two kids", token(`{"alg":"RS256","kid":"sample","kid":"x"}`, "{"+good+"}", with256), Ambiguous},
		{"crit", token(`{"alg":"RS256","kid":"sample","crit":["b64"],"b64":false}`, "{"+good+"}", with256), Malformed},
		{"crit empty", token(`{"alg":"RS256","kid":"sample","crit":[]}`, "{"+good+"}", with256), Malformed},
		{"its own key", token(`{"alg":"RS256","kid":"sample","jwk":{"kty":"oct","k":"AA"},"jku":"https://evil.example"}`, "{"+good+"}", hs), Mismatch},
		{"padded", edit(func(s string) string { return s + "=" }), Malformed},
		{"line end", edit(func(s string) string { return s[:20] + "\n" + s[20:] }), Malformed},
		{"claims changed", edit(func(s string) string { return strings.Replace(s, ".e", ".f", 1) }), Malformed},
		{"two tokens", twice, Ambiguous},
		{"in the query", Request{Method: "POST", URL: "?access_token=" + fine.Header.Get("Authorization")[7:], Header: http.Header{}}, MissingSignature},
		{"basic", edit(func(s string) string { return "Basic" + s[6:] }), Malformed},
		{"iat at the limit", iat(-300), ""}, {"iat beyond", iat(-301), Stale}, {"iat ahead", iat(300), ""}, {"iat too far ahead", iat(301), Future},
		{"no iat", swap(`"iat"`, `"iax"`), Malformed}, {"iat a text", swap(fmt.Sprintf(`"iat":%d`, now), fmt.Sprintf(`"iat":"%d"`, now)), Malformed}, {"two iats", claims(good + fmt.Sprintf(`,"iat":%d`, now)), Ambiguous},
		{"exp now", exp(0), Stale}, {"exp in a second", exp(1), ""}, {"exp absent", swap(`"exp"`, `"exq"`), ""}, {"exp a text", swap(fmt.Sprintf(`"exp":%d`, now+60), `"exp":"9"`), Malformed}, {"exp null", swap(fmt.Sprintf(`"exp":%d`, now+60), `"exp":null`), Malformed},
		{"nbf ahead", claims(good + fmt.Sprintf(`,"nbf":%d`, now+301)), Future}, {"nbf", claims(good + fmt.Sprintf(`,"nbf":%d`, now)), ""},
		{"another issuer", swap("issuer.example", "issuer.example.evil"), Mismatch}, {"no issuer", swap(`"iss"`, `"isx"`), Mismatch},
		{"another audience", swap(`"sealpost"`, `"sealpost2"`), Mismatch}, {"audiences", swap(`"aud":"sealpost"`, `"aud":["x","sealpost"]`), ""}, {"other audiences", swap(`"aud":"sealpost"`, `"aud":["x"]`), Mismatch},
		{"audience an object", swap(`"aud":"sealpost"`, `"aud":{"sealpost":1}`), Mismatch}, {"audiences of numbers", swap(`"aud":"sealpost"`, `"aud":[1]`), Malformed},
		{"body hash absent", swap(`"body_sha256"`, `"x"`), Mismatch}, {"body hash of another", swap(`"body_sha256":"`, `"body_sha256":"0`), Mismatch},
		{"body hash in base64url", claims(strings.Replace(good, hex.EncodeToString(sum[:]), enc(sum[:]), 1)), ""},
		{"claims no JSON", token(head, "x", with256), Malformed},
		{"huge", edit(func(s string) string { return s + strings.Repeat("a", 8<<10) }), Malformed},
	})
}

func TestKeySets(t *testing.T) {
	t.Parallel()
	k := kitOf(t, jwtScheme)
	rsaKey := k.keys.Verification[len(`{"keys":[`) : len(k.keys.Verification)-2]
	const ec = `{"kty":"EC","crv":"P-256","kid":"e","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}`
	for name, c := range map[string]struct {
		keys string
		ok   bool
	}{
		"two": {rsaKey + "," + ec, true}, "same kid": {rsaKey + "," + rsaKey, false}, "none": {"", false}, "symmetric": {`{"kty":"oct","k":"AAAA"}`, false},
		"symmetric beside": {rsaKey + `,{"kty":"oct","kid":"o","k":"AAAA"}`, false}, "private": {strings.Replace(ec, `"x"`, `"d":"AA","x"`, 1), false}, "for encryption": {strings.Replace(ec, `"x"`, `"use":"enc","x"`, 1), false},
		"encryption beside": {rsaKey + "," + strings.Replace(ec, `"x"`, `"use":"enc","x"`, 1), true}, "alg of another key": {strings.Replace(ec, `"x"`, `"alg":"RS256","x"`, 1), false},
		"off the curve": {strings.Replace(ec, "f83O", "f83P", 1), false}, "unknown curve": {strings.Replace(ec, "P-256", "P-224", 1), false}, "another curve": {strings.Replace(ec, "P-256", "P-384", 1), false}, "unknown type": {`{"kty":"X"}`, false},
		"small order": {`{"kty":"OKP","crv":"Ed25519","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`, false}, "X25519": {`{"kty":"OKP","crv":"X25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`, false},
		"even exponent": {strings.Replace(rsaKey, "AQAB", "AQAA", 1), false}, "exponent one": {strings.Replace(rsaKey, "AQAB", "AQ", 1), false}, "short modulus": {`{"kty":"RSA","n":"AQAB","e":"AQAB"}`, false},
	} {
		if err := k.scheme.CheckSecret(NewSecret("s", 1, []byte(`{"keys":[`+c.keys+`]}`))); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"x", "{}", `{"keys":{}}`, "[]"} {
		if err := k.scheme.CheckSecret(NewSecret("s", 1, []byte(text))); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// graphTenant and graphApp are those of Microsoft's example of a token.
const (
	graphTenant = "84bd8158-6d4d-4958-8b9f-9d6445542f95"
	graphApp    = "8e460676-ae3f-4b1e-8790-ee0fb5d6148f"
)

// rs256 signs a token as the sample's key does.
func rs256(t testing.TB, private crypto.Signer, head, claims string) string {
	t.Helper()
	input := base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	sum := sha256.Sum256([]byte(input))
	sig, err := private.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func TestGraphTokens(t *testing.T) {
	t.Parallel()
	k := kitOf(t, jwtScheme) // whose key set Entra ID is to publish
	private, err := privatePEM([]byte(k.keys.Signing))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := privatePEM([]byte(k.other.Signing))
	if err != nil {
		t.Fatal(err)
	}
	s := mustNew(t, microsoftGraph, Options{JWT: &JWT{Audience: graphApp, Issuer: graphTenant}})
	secrets := []Secret{NewSecret("s", 1, []byte("state")), NewSecret("published", 0, []byte(k.keys.Verification))}
	now := noon.Unix()
	claims := fmt.Sprintf(`{"aud":"%s","iss":"https://sts.windows.net/%s/","iat":%d,"nbf":%d,"exp":%d,"appid":"%s","tid":"%s","ver":"1.0"}`,
		graphApp, graphTenant, now, now, now+3600, graphPublisher, graphTenant)
	const head = `{"typ":"JWT","alg":"RS256","kid":"sample"}`
	good := rs256(t, private, head, claims)
	swap := func(old, with string) string { return rs256(t, private, head, strings.Replace(claims, old, with, 1)) }
	v2 := strings.NewReplacer("https://sts.windows.net/"+graphTenant+"/", "https://login.microsoftonline.com/"+graphTenant+"/v2.0", "appid", "azp").Replace(claims)
	const other = "00000000-0000-4000-8000-000000000000"
	req := func(state string, tokens ...string) Request {
		list, _ := json.Marshal(tokens)
		return Request{Method: "POST", Header: http.Header{}, Body: []byte(fmt.Sprintf(`{"value":[{"id":"n1","changeType":"created","clientState":%q}],"validationTokens":%s}`, state, list))}
	}
	with := func(old, with string) Request {
		r := req("state", good)
		r.Body = []byte(strings.Replace(string(r.Body), old, with, 1))
		return r
	}
	cases := []near{
		{"good", req("state", good), ""},
		{"version 2", req("state", rs256(t, private, head, v2)), ""},
		{"two", req("state", good, good), ""},
		{"wrong clientState", req("statf", good), Mismatch},
		{"the key set as clientState", req(k.keys.Verification, good), Mismatch},
		{"no tokens", req("state"), MissingSignature},
		{"tokens null", with(`["`+good+`"]`, "null"), MissingSignature},
		{"tokens a text", with(`["`+good+`"]`, `"`+good+`"`), MissingSignature},
		{"tokens absent", with(`validationTokens`, "x"), MissingSignature},
		{"tokens twice", with(`{"value"`, `{"validationTokens":[],"value"`), Ambiguous},
		{"tokens in capitals as well", with(`{"value"`, `{"ValidationTokens":[],"value"`), Ambiguous},
		{"too many tokens", req("state", strings.Split(strings.Repeat(good+" ", maxTokens+1), " ")[:maxTokens+1]...), MissingSignature},
		{"token a number", with(`"`+good+`"`, "5"), Malformed},
		{"second no token", req("state", good, "x"), Malformed},
		{"second forged", req("state", good, rs256(t, stranger, head, claims)), Mismatch},
		{"first forged", req("state", rs256(t, stranger, head, claims), good), Mismatch},
		{"alg none", req("state", strings.Replace(good, base64.RawURLEncoding.EncodeToString([]byte(head)), base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"sample"}`)), 1)), Malformed},
		{"another kid", req("state", rs256(t, private, `{"alg":"RS256","kid":"x"}`, claims)), Mismatch},
		{"another app", req("state", swap(graphApp, other)), Mismatch},
		{"another tenant", req("state", good, rs256(t, private, head, strings.ReplaceAll(claims, graphTenant, other))), Mismatch},
		{"issuer of another tenant", req("state", swap("net/"+graphTenant, "net/"+other)), Mismatch},
		{"issuer of nobody's", req("state", swap("https://sts.windows.net/", "https://evil.example/")), Mismatch},
		{"no tenant", req("state", swap(`"tid"`, `"tix"`)), Mismatch},
		{"another publisher", req("state", swap(graphPublisher, other)), Mismatch},
		{"no publisher", req("state", swap(`"appid"`, `"apqid"`)), Mismatch},
		{"two publishers", req("state", swap(`"tid"`, `"azp":"`+other+`","tid"`)), Mismatch},
		{"publisher twice", req("state", swap(`"tid"`, `"appid":"`+other+`","tid"`)), Ambiguous},
		{"expired", req("state", swap(fmt.Sprint(now+3600), fmt.Sprint(now-60))), Stale},
		{"within the leeway", req("state", swap(fmt.Sprint(now+3600), fmt.Sprint(now-59))), ""},
		{"no exp", req("state", swap(`"exp"`, `"exq"`)), Malformed},
		{"not yet", req("state", swap(fmt.Sprintf(`"nbf":%d`, now), fmt.Sprintf(`"nbf":%d`, now+61))), Future},
		{"second expired", req("state", good, swap(fmt.Sprint(now+3600), fmt.Sprint(now-60))), Stale},
	}
	for _, c := range cases {
		_, err := s.Verify(c.r, secrets, noon)
		if c.want == "" && err != nil || c.want != "" && !isReason(err, c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if id, err := s.Verify(req("state", good), secrets, noon); err != nil || id.Secret != 0 || id.ID != "n1" || id.Type != "created" {
		t.Errorf("%+v, %v", id, err)
	}
	if _, err := s.Verify(req("state", good), secrets[:1], noon); !isReason(err, Mismatch) {
		t.Errorf("without keys: %v", err)
	}
	any := mustNew(t, microsoftGraph, Options{JWT: &JWT{Audience: graphApp}})
	if _, err := any.Verify(req("state", rs256(t, private, head, strings.ReplaceAll(claims, graphTenant, other))), secrets, noon); err != nil {
		t.Errorf("any tenant: %v", err)
	}
	if _, err := any.Verify(req("state", swap(`"tid":"`+graphTenant, `"tid":"`+other)), secrets, noon); !isReason(err, Mismatch) {
		t.Errorf("any tenant, issuer of another: %v", err)
	}
	if _, err := mustNew(t, microsoftGraph, Options{}).Verify(req("state", "x"), one("state"), noon); err != nil {
		t.Errorf("tokens that the source does not ask for: %v", err)
	}
}

// Keys are fetched beside the source's secret, and only for a request with tokens.
func TestGraphFetches(t *testing.T) {
	t.Parallel()
	set := NewSecret("published", 1, []byte(kitOf(t, jwtScheme).keys.Verification))
	state := one("state")
	for _, c := range []struct {
		name    string
		o       Options
		secrets []Secret
		r       Request
		fetches bool
		want    string
	}{
		{"no jwt", Options{}, state, Request{Body: []byte(`{"validationTokens":["x"]}`)}, false, ""},
		{"tenant", Options{JWT: &JWT{Audience: "a", Issuer: graphTenant}}, state, Request{Body: []byte(`{"validationTokens":["x"]}`)}, true, "https://login.microsoftonline.com/" + graphTenant + "/discovery/v2.0/keys"},
		{"any tenant", Options{JWT: &JWT{Audience: "a"}}, state, Request{Body: []byte(`{"validationTokens":["x"]}`)}, true, "https://login.microsoftonline.com/common/discovery/v2.0/keys"},
		{"no tokens", Options{JWT: &JWT{Audience: "a"}}, state, Request{Body: []byte(`{"value":[]}`)}, true, ""},
		{"handshake", Options{JWT: &JWT{Audience: "a"}}, state, Request{URL: "https://h.example/?validationToken=x", Body: []byte(`{"validationTokens":["x"]}`)}, true, ""},
		{"keys configured", Options{JWT: &JWT{Audience: "a"}}, append(state, set), Request{}, false, ""},
	} {
		s := mustNew(t, microsoftGraph, c.o)
		if u, err := s.Fetch(c.r); err != nil || s.Fetches(c.secrets) != c.fetches || u != c.want {
			t.Errorf("%s: %t, %q, %v", c.name, s.Fetches(c.secrets), u, err)
		}
	}
	s := mustNew(t, microsoftGraph, Options{JWT: &JWT{Audience: "a"}})
	for _, text := range []string{"state", "{}", `{"keys":[]}`, `{"keys":[{"kty":"oct","k":"AA"}]}`} {
		if _, err := s.Fetched("https://login.microsoftonline.com/common/discovery/v2.0/keys", []byte(text), noon); err == nil {
			t.Errorf("%s is taken for a key set", text)
		}
	}
}

func TestGoogleOIDC(t *testing.T) {
	t.Parallel()
	k := kitOf(t, googleOIDC)
	r := k.sign(t, Sample{ID: "m1", Type: "order.paid"}, noon)
	for _, c := range []struct {
		after time.Duration
		want  Reason
	}{{0, ""}, {30 * time.Minute, ""}, {time.Hour + 59*time.Second, ""}, {time.Hour + time.Minute, Stale}, {-time.Minute, ""}, {-61 * time.Second, Future}} {
		if _, err := k.verify(r, noon.Add(c.after)); c.want == "" && err != nil || c.want != "" && !isReason(err, c.want) {
			t.Errorf("%s later: %v", c.after, err)
		}
	}
	for name, o := range map[string]Options{
		"another account": {JWT: &JWT{Audience: "sealpost", Email: "other@project.iam.gserviceaccount.com"}}, "another audience": {JWT: &JWT{Audience: "x", Email: k.o.JWT.Email}},
	} {
		if _, err := mustNew(t, googleOIDC, o).Verify(r, one(k.keys.Verification), noon); !isReason(err, Mismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if u, err := k.scheme.Fetch(r); err != nil || u != "https://www.googleapis.com/oauth2/v3/certs" {
		t.Errorf("%q, %v", u, err)
	}
}
