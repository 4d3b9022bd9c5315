package signing

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

// newLegacy is for texts that are legal.
func newLegacy(t testing.TB, text string) LegacySecret {
	t.Helper()
	s, err := ParseLegacySecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Signatures in other schemes' forms, made here with the standard library alone, and
// two that the schemes' own documents publish.
func TestTemplateSigns(t *testing.T) {
	t.Parallel()
	ts := time.Unix(1_700_000_000, 123_000_000)
	body := []byte("{\"a\":0.0}\n")
	text := newLegacy(t, "whsec_abcdefgh")
	newer := newLegacy(t, "another-secret")
	standard := mustSecret(t, "whsec_"+base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef")))
	sum := func(key, content string) []byte {
		m := hmac.New(sha256.New, []byte(key))
		m.Write([]byte(content))
		return m.Sum(nil)
	}
	sum1 := func(key, content string) []byte {
		m := hmac.New(sha1.New, []byte(key))
		m.Write([]byte(content))
		return m.Sum(nil)
	}
	signed := "1700000000." + string(body)
	for _, c := range []struct {
		name, template string
		keys           []MACKey
		want           string
	}{
		{"like Stripe", "t={timestamp},v1={hmac_sha256_hex:{timestamp}.{body}}", []MACKey{text}, "t=1700000000,v1=" + hex.EncodeToString(sum("whsec_abcdefgh", signed))},
		{"like Stripe, rotating", "t={timestamp}[,v1={hmac_sha256_hex:{timestamp}.{body}}]", []MACKey{newer, text},
			"t=1700000000,v1=" + hex.EncodeToString(sum("another-secret", signed)) + ",v1=" + hex.EncodeToString(sum("whsec_abcdefgh", signed))},
		{"like GitHub", "sha256={hmac_sha256_hex:{body}}", []MACKey{text}, "sha256=" + hex.EncodeToString(sum("whsec_abcdefgh", string(body)))},
		{"like GitHub, rotating: the old one until it ends", "sha256={hmac_sha256_hex:{body}}", []MACKey{newer, text}, "sha256=" + hex.EncodeToString(sum("whsec_abcdefgh", string(body)))},
		{"like Shopify", "{hmac_sha256_base64:{body}}", []MACKey{text}, base64.StdEncoding.EncodeToString(sum("whsec_abcdefgh", string(body)))},
		{"like Slack", "v0={hmac_sha256_hex:v0:{timestamp}:{body}}", []MACKey{text}, "v0=" + hex.EncodeToString(sum("whsec_abcdefgh", "v0:1700000000:"+string(body)))},
		{"like GitHub of old", "sha1={hmac_sha1_hex:{body}}", []MACKey{text}, "sha1=" + hex.EncodeToString(sum1("whsec_abcdefgh", string(body)))},
		{"base64url", "{hmac_sha256_base64url:{body}}", []MACKey{text}, base64.RawURLEncoding.EncodeToString(sum("whsec_abcdefgh", string(body)))},
		{"milliseconds and id", "{id}/{timestamp_ms}/{hmac_sha256_hex:{id}{timestamp_ms}{body}}", []MACKey{text},
			"evt_1/1700000000123/" + hex.EncodeToString(sum("whsec_abcdefgh", "evt_11700000000123"+string(body)))},
		{"the v1 secret's bytes", "{hmac_sha256_hex:{body}}", []MACKey{standard}, hex.EncodeToString(sum("0123456789abcdef0123456789abcdef", string(body)))},
		{"brackets and braces", "{{[[{hmac_sha256_hex:{{{body}]]}}}]]", []MACKey{text}, "{[" + hex.EncodeToString(sum("whsec_abcdefgh", "{"+string(body)+"]")) + "}]"},
		{"each in a list", "keys[ {hmac_sha256_base64:{body}}]", []MACKey{newer, text},
			"keys " + base64.StdEncoding.EncodeToString(sum("another-secret", string(body))) + " " + base64.StdEncoding.EncodeToString(sum("whsec_abcdefgh", string(body)))},
	} {
		tpl, err := ParseTemplate(c.template)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got, err := tpl.Sign("evt_1", ts, body, c.keys...)
		if err != nil || got != c.want || tpl.String() != c.template {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.name, got, err, c.want)
		}
	}
}

// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries#testing-the-webhook-payload-validation
// and https://docs.slack.dev/authentication/verifying-requests-from-slack.
func TestTemplatePublishedExamples(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		template, secret, body, want string
		ts                           int64
	}{
		{"sha256={hmac_sha256_hex:{body}}", "It's a Secret to Everybody", "Hello, World!",
			"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17", 1},
		{"v0={hmac_sha256_hex:v0:{timestamp}:{body}}", "8f742231b10e8888abcd99yyyzzz85a5",
			"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
			"v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503", 1531420618},
	} {
		tpl, err := ParseTemplate(c.template)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tpl.Sign("evt_1", time.Unix(c.ts, 0), []byte(c.body), newLegacy(t, c.secret))
		if err != nil || got != c.want {
			t.Errorf("%s: %s, %v, want %s", c.template, got, err, c.want)
		}
	}
}

func TestParseTemplate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ template, bad string }{
		{"{hmac_sha256_hex:{body}}", ""},
		{"", "0 bytes"},
		{strings.Repeat("x", 512-24) + "{hmac_sha256_hex:{body}}", ""},
		{strings.Repeat("x", 513-24) + "{hmac_sha256_hex:{body}}", "513 bytes"},
		{" {hmac_sha256_hex:{body}}", "white space"},
		{"a\tb{hmac_sha256_hex:{body}}", "byte 2"},
		{"a\r\nHost: x{hmac_sha256_hex:{body}}", "byte 2"},
		{"é{hmac_sha256_hex:{body}}", "byte 1"},
		{"constant", "holds no signature"},
		{"{timestamp}", "holds no signature"},
		{"{body}", "byte 1: {body} stands only within"},
		{"x{secret}", "byte 2: there is no {secret}"},
		{"{hmac_sha256_hex:{secret}{body}}", "byte 18: there is no {secret}"},
		{"{hmac_md5_hex:{body}}", "there is no {hmac_md5_hex:…}; there are hmac_sha1, hmac_sha256, hmac_sha384, hmac_sha512, each with one of _base64, _base64url, _hex"},
		{"{hmac_sha256:{body}}", "there is no {hmac_sha256:…}"},
		{"{hmac_sha256_HEX:{body}}", "there is no"},
		{"{:{body}}", "there is no {:…}"},
		{"{_hex:{body}}", "there is no"},
		{"{}", "there is no {}"},
		{"{hmac_sha256_hex:{timestamp}}", "byte 1: the signature does not cover the {body}"},
		{"{hmac_sha256_hex:}", "does not cover"},
		{"{hmac_sha256_hex:{body}}{hmac_sha256_hex:{id}}", "byte 25: the signature does not cover"},
		{"{hmac_sha256_hex:{hmac_sha1_hex:{body}}{body}}", "byte 18: a signature within a signature"},
		{"{hmac_sha256_hex:{body}", "byte 24: the text ends where a \"}\" is missing"},
		{"{hmac_sha256_hex", "byte 1: the brace is not closed"},
		{"{hmac{sha256}", "byte 6"},
		{"x}{hmac_sha256_hex:{body}}", "byte 2: \"}\" has no place here; write \"}}\""},
		{"x]{hmac_sha256_hex:{body}}", "byte 2: \"]\" has no place here"},
		{"[{hmac_sha256_hex:{body}}", "a \"]\" is missing"},
		{"[x]{hmac_sha256_hex:{body}}", "byte 1: there is no signature within the brackets"},
		{"[a[{hmac_sha256_hex:{body}}]]", "byte 3: \"[\" has no place here"},
		{"{hmac_sha256_hex:[{body}]}", "byte 18: \"[\" has no place here"},
		{"[{hmac_sha256_hex:{body}}][{hmac_sha1_hex:{body}}]", ""},
	} {
		tpl, err := ParseTemplate(c.template)
		if (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%q: %v, want %q", c.template, err, c.bad)
		}
		if err != nil && len(tpl.parts) != 0 {
			t.Errorf("%q: a template beside an error", c.template)
		}
	}
}

func TestTemplateRefusesToSign(t *testing.T) {
	t.Parallel()
	tpl, err := ParseTemplate("{hmac_sha256_hex:{body}}")
	if err != nil {
		t.Fatal(err)
	}
	good := newLegacy(t, "12345678")
	now := time.Unix(1_700_000_000, 0)
	for name, sign := range map[string]func() (string, error){
		"empty template": func() (string, error) { return Template{}.Sign("evt_1", now, nil, good) },
		"no key":         func() (string, error) { return tpl.Sign("evt_1", now, nil) },
		"zero key":       func() (string, error) { return tpl.Sign("evt_1", now, nil, good, LegacySecret{}) },
		"zero v1 key":    func() (string, error) { return tpl.Sign("evt_1", now, nil, Secret{}) },
		"bad id":         func() (string, error) { return tpl.Sign("evt.1", now, nil, good) },
		"no time":        func() (string, error) { return tpl.Sign("evt_1", time.Time{}, nil, good) },
	} {
		if got, err := sign(); err == nil || got != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	h := http.Header{}
	if err := tpl.SetHeader(h, "X-A", "evt_1", now, nil); err == nil || len(h) != 0 {
		t.Errorf("%v, %v", h, err)
	}
}

func TestParseLegacySecret(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		ok   bool
	}{
		{"12345678", true}, {"1234567", false}, {strings.Repeat("x", 512), true}, {strings.Repeat("x", 513), false},
		{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true}, {"with space", true}, {"1234567 ", false}, {"line\nfeed", false}, {"ümlaut-secret", false}, {"", false},
	} {
		s, err := ParseLegacySecret(c.text)
		if (err == nil) != c.ok || c.ok && s.Reveal() != c.text || !c.ok && !s.IsZero() {
			t.Errorf("%q: %v", c.text, err)
		}
		if err != nil && len(c.text) > 1 && strings.Contains(err.Error(), c.text) {
			t.Errorf("the error repeats the text: %v", err)
		}
	}
	s := newLegacy(t, "s3cret-s3cret")
	marshalled, err := json.Marshal(map[string]any{"k": s})
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q %x %d", s, s, s, s, s, s, s), fmt.Sprintf("%+v", struct{ k LegacySecret }{s}),
		fmt.Sprintf("%v", &s), string(marshalled), slog.AnyValue(s).Resolve().String()} {
		if strings.Contains(shown, "s3cret") || strings.Contains(shown, hex.EncodeToString([]byte("s3cret"))) {
			t.Errorf("shown: %s", shown)
		}
	}
}

func FuzzParseTemplate(f *testing.F) {
	for _, s := range []string{"t={timestamp}[,v1={hmac_sha256_hex:{timestamp}.{body}}]", "{{}}[[]]{hmac_sha1_base64:{body}}", "{[}]", "{hmac_sha256_hex:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tpl, err := ParseTemplate(text)
		if err != nil {
			return
		}
		// What was taken signs, and gives a value that a header may hold.
		v, err := tpl.Sign("evt_1", time.Unix(1_700_000_000, 0), []byte("\r\nbody\x00"), newLegacy(t, "12345678"))
		if err != nil || strings.ContainsAny(v, "\r\n\x00") || v == "" {
			t.Errorf("%q: %q, %v", text, v, err)
		}
	})
}

func ExampleParseTemplate() {
	secret, _ := ParseLegacySecret("an-old-secret")
	for _, text := range []string{"sha256={hmac_sha256_hex:{body}}", "t={timestamp}[,v1={hmac_sha256_hex:{timestamp}.{body}}]", "sha256={hmac_sha256_hex:{timestamp}}"} {
		template, err := ParseTemplate(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		value, _ := template.Sign("evt_1", time.Unix(1_700_000_000, 0), []byte(`{}`), secret)
		fmt.Println(value)
	}
	// Output:
	// sha256=1bf76b50c0b8f93183bcc7852ae6937154e7d45042650d7431288b2cc90200ad
	// t=1700000000,v1=d64b30a6852b964c7d14ec452428b3df15053a0137fece4c68a6749e659b78b3
	// signature template: byte 8: the signature does not cover the {body}
}
