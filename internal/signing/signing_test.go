package signing

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// The test secret of the official libraries, and the Svix server's key pair.
const (
	publishedSecret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	publishedPrivate = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
	publishedPublic  = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
)

type vector struct {
	Name      string `json:"name"`
	Key       string `json:"key"`
	ID        string `json:"id"`
	Timestamp int64  `json:"timestamp"`
	Body      []byte `json:"body_base64"`
	Signature string `json:"signature"`
	Valid     bool   `json:"valid"` // for v1a; the v1 vectors are all valid
}

func vectors(t *testing.T) []vector {
	t.Helper()
	raw, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []vector
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func mustSecret(t testing.TB, text string) Secret {
	t.Helper()
	s, err := ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustPrivate(t testing.TB, text string) PrivateKey {
	t.Helper()
	k, err := ParsePrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestPublishedVectors(t *testing.T) {
	t.Parallel()
	private := mustPrivate(t, publishedPrivate)
	seen := map[string]int{}
	for _, v := range vectors(t) {
		at := time.Unix(v.Timestamp, 0)
		version, _, _ := strings.Cut(v.Signature, ",")
		seen[version]++
		if version == "v1" {
			got, err := Sign(v.ID, at, v.Body, mustSecret(t, v.Key))
			if err != nil || got != v.Signature {
				t.Errorf("%s: %s, %v; want %s", v.Name, got, err, v.Signature)
			}
			continue
		}
		public, err := ParsePublicKey(v.Key)
		if err != nil {
			t.Fatal(err)
		}
		if got := public.VerifyEntry(v.Signature, v.ID, at, v.Body); got != v.Valid {
			t.Errorf("%s: verified %t, want %t", v.Name, got, v.Valid)
		}
		// ed25519 is deterministic, so the one valid signature is ours too.
		if got, err := Sign(v.ID, at, v.Body, private); err != nil || (got == v.Signature) != v.Valid {
			t.Errorf("%s: signed %s, %v", v.Name, got, err)
		}
	}
	if seen["v1"] < 4 || seen["v1a"] < 4 {
		t.Errorf("vectors read: %v", seen)
	}
}

// A body of 300 KiB, too large to keep beside the other vectors.
func TestLargeBodyVector(t *testing.T) {
	t.Parallel()
	body := []byte(`{"pad":"` + strings.Repeat("x", 307_200) + `"}`)
	got, err := Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), body, mustSecret(t, publishedSecret))
	if want := "v1,/ursyNJeW/6kOkmvim3PmPqjIFDhjOKEC3d3QejK+SE="; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// RFC 8032 section 7.1, TEST 1 to 3: seed, public key, message, signature.
func TestRFC8032(t *testing.T) {
	t.Parallel()
	tests := []struct{ seed, public, message, signature string }{
		{"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "", "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"},
		{"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72", "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"},
		{"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7", "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82", "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"},
	}
	for _, tt := range tests {
		seed, _ := hex.DecodeString(tt.seed)
		public, _ := hex.DecodeString(tt.public)
		message, _ := hex.DecodeString(tt.message)
		k := mustPrivate(t, "whsk_"+base64.StdEncoding.EncodeToString(seed))
		if got := k.Public().String(); got != "whpk_"+base64.StdEncoding.EncodeToString(public) {
			t.Errorf("public key %s", got)
		}
		if got := hex.EncodeToString(ed25519.Sign(k.key(), message)); got != tt.signature {
			t.Errorf("signature %s", got)
		}
		if got := mustPrivate(t, k.Reveal()); got.Public() != k.Public() {
			t.Error("the 64-byte form is another key")
		}
	}
}

// Receivers verify with the official library: every key valid during a
// rotation must do, whatever else stands in the header.
func TestOfficialLibraryAccepts(t *testing.T) {
	t.Parallel()
	older := mustSecret(t, publishedSecret)
	newer, err := GenerateSecret(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := []Key{newer, mustPrivate(t, publishedPrivate), older}
	bodies := map[string][]byte{
		"empty":      nil,
		"json":       []byte(`{"type":"invoice.paid","n":1152921504606846977,"z":0.0,"e":"\u001B"}` + "\n"),
		"not UTF-8":  {0xff, 0xfe, 0x00, '.', 'x'},
		"with a dot": []byte("a.b.c"),
	}
	for name, body := range bodies {
		h := http.Header{}
		if err := SetHeaders(h, "evt_abc", time.Now(), body, keys...); err != nil {
			t.Fatal(err)
		}
		for which, s := range map[string]Secret{"newer": newer, "older": older} {
			official, err := standardwebhooks.NewWebhook(s.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			if err := official.Verify(body, h); err != nil {
				t.Errorf("%s, %s key: %v", name, which, err)
			}
			if err := official.Verify(append(body[:len(body):len(body)], ' '), h); err == nil {
				t.Errorf("%s, %s key: a changed body verifies", name, which)
			}
		}
	}
}

func TestOrderAndForm(t *testing.T) {
	t.Parallel()
	a, b := mustSecret(t, publishedSecret), mustSecret(t, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")
	at := time.Unix(1614265330, 999_999_999)
	one, _ := Sign("msg_1", at, []byte("x"), a)
	two, _ := Sign("msg_1", at, []byte("x"), b)
	if both, err := Sign("msg_1", at, []byte("x"), b, a); err != nil || both != two+" "+one {
		t.Errorf("%s, %v", both, err)
	}
	h := http.Header{"Webhook-Signature": {"old"}, "X-Other": {"kept"}}
	if err := SetHeaders(h, "msg_1", at, []byte("x"), []Secret{b, a}...); err != nil {
		t.Fatal(err)
	}
	want := http.Header{"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {"1614265330"}, "Webhook-Signature": {two + " " + one}, "X-Other": {"kept"}}
	if fmt.Sprint(h) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", h, want)
	}
}

func TestWhatCannotBeSigned(t *testing.T) {
	t.Parallel()
	s := mustSecret(t, publishedSecret)
	at := time.Unix(1614265330, 0)
	tests := []struct {
		name string
		id   string
		at   time.Time
		keys []Key
		ok   bool
	}{
		{"plain", "msg_1", at, []Key{s}, true},
		{"longest id", strings.Repeat("a", 256), at, []Key{s}, true},
		{"id too long", strings.Repeat("a", 257), at, []Key{s}, false},
		{"no id", "", at, []Key{s}, false},
		{"a dot in the id", "msg_a.1614265330", at, []Key{s}, false},
		{"a space in the id", "msg 1", at, []Key{s}, false},
		{"a line break in the id", "msg\r\nX: y", at, []Key{s}, false},
		{"a control character in the id", "msg\x7f", at, []Key{s}, false},
		{"an id outside ASCII", "msg_é", at, []Key{s}, false},
		{"first second", "msg_1", time.Unix(1, 0), []Key{s}, true},
		{"the epoch", "msg_1", time.Unix(0, 999), []Key{s}, false},
		{"no time", "msg_1", time.Time{}, []Key{s}, false},
		{"no key", "msg_1", at, nil, false},
		{"a zero secret", "msg_1", at, []Key{s, Secret{}}, false},
		{"a zero private key", "msg_1", at, []Key{PrivateKey{}}, false},
	}
	for _, tt := range tests {
		h := http.Header{}
		err := SetHeaders(h, tt.id, tt.at, []byte("x"), tt.keys...)
		if (err == nil) != tt.ok || (len(h) == 3) != tt.ok {
			t.Errorf("%s: %v, %v", tt.name, err, h)
		}
	}
}

func TestParseSecret(t *testing.T) {
	t.Parallel()
	of := func(n int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb}, n)) }
	tests := []struct {
		name, text string
		want       string // the padded text form, or "" if refused
	}{
		{"published", publishedSecret, publishedSecret},
		{"24 bytes", "whsec_" + of(24), "whsec_" + of(24)},
		{"32 bytes", "whsec_" + of(32), "whsec_" + of(32)},
		{"64 bytes", "whsec_" + of(64), "whsec_" + of(64)},
		{"32 bytes without padding", "whsec_" + strings.TrimRight(of(32), "="), "whsec_" + of(32)},
		{"64 bytes without padding", "whsec_" + strings.TrimRight(of(64), "="), "whsec_" + of(64)},
		{"64 bytes with half the padding", "whsec_" + strings.TrimSuffix(of(64), "="), ""},
		{"23 bytes", "whsec_" + of(23), ""},
		{"65 bytes", "whsec_" + of(65), ""},
		{"nothing", "", ""},
		{"only the prefix", "whsec_", ""},
		{"only padding", "whsec_====", ""},
		{"no prefix", of(32), ""},
		{"another prefix", "whsk_" + of(32), ""},
		{"upper-case prefix", "WHSEC_" + of(32), ""},
		{"doubled prefix", "whsec_whsec_" + of(32), ""},
		{"URL-safe alphabet", "whsec_" + base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xfb}, 32)), ""},
		{"a line break within", "whsec_" + of(32)[:20] + "\n" + of(32)[20:], ""},
		{"a line break after", publishedSecret + "\n", ""},
		{"a space before", " " + publishedSecret, ""},
		{"stray bits", "whsec_" + strings.Replace(of(32), "s=", "t=", 1), ""},
		{"hexadecimal", "whsec_" + hex.EncodeToString(bytes.Repeat([]byte{0xfb}, 65)), ""},
		{"no base64", "whsec_!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", ""},
	}
	for _, tt := range tests {
		s, err := ParseSecret(tt.text)
		if s.Reveal() != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, %v; want %q", tt.name, s.Reveal(), err, tt.want)
		}
		if err == nil {
			continue
		}
		for i := 0; i+8 <= len(tt.text); i++ {
			if part := tt.text[i : i+8]; !strings.Contains(part, "_") && strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error repeats %q: %v", tt.name, part, err)
			}
		}
	}
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	other := mustPrivate(t, "whsk_"+base64.StdEncoding.EncodeToString(make([]byte, 32)))
	b, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(publishedPrivate, "whsk_"))
	mixed := append(b[:32:32], other.key()[32:]...)
	tests := []struct {
		name, text string
		ok         bool
	}{
		{"published", publishedPrivate, true},
		{"seed", "whsk_" + base64.StdEncoding.EncodeToString(b[:32]), true},
		{"without padding", strings.TrimRight(publishedPrivate, "="), true},
		{"a foreign public half", "whsk_" + base64.StdEncoding.EncodeToString(mixed), false},
		{"63 bytes", "whsk_" + base64.StdEncoding.EncodeToString(b[:63]), false},
		{"33 bytes", "whsk_" + base64.StdEncoding.EncodeToString(b[:33]), false},
		{"a public key", publishedPublic, false},
		{"a symmetric secret", publishedSecret, false},
	}
	for _, tt := range tests {
		k, err := ParsePrivateKey(tt.text)
		if (err == nil) != tt.ok || k.IsZero() == tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.ok && k.Public().String() != publishedPublic {
			t.Errorf("%s: public key %s", tt.name, k.Public())
		}
	}
	for _, text := range []string{"", "whpk_", "whpk_AAAA", publishedPrivate, publishedPublic + "="} {
		if _, err := ParsePublicKey(text); err == nil {
			t.Errorf("ParsePublicKey(%q) accepted", text)
		}
	}
}

func TestVerifyEntry(t *testing.T) {
	t.Parallel()
	k := mustPrivate(t, publishedPrivate)
	at := time.Unix(1614265330, 0)
	entry, err := Sign("msg_1", at, []byte("x"), k)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, entry, id string
		at              time.Time
		body            string
		want            bool
	}{
		{"as signed", entry, "msg_1", at, "x", true},
		{"another id", entry, "msg_2", at, "x", false},
		{"another second", entry, "msg_1", at.Add(time.Second), "x", false},
		{"another body", entry, "msg_1", at, "x\n", false},
		{"without padding", strings.TrimRight(entry, "="), "msg_1", at, "x", false},
		{"as v1", strings.Replace(entry, "v1a", "v1", 1), "msg_1", at, "x", false},
		{"an id with a dot", entry, "msg_1.1614265330", at, "x", false},
		{"empty", "", "msg_1", at, "x", false},
	}
	for _, tt := range tests {
		if got := k.Public().VerifyEntry(tt.entry, tt.id, tt.at, []byte(tt.body)); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
		if (PublicKey{}).VerifyEntry(tt.entry, tt.id, tt.at, []byte(tt.body)) {
			t.Errorf("%s: verified by the zero key", tt.name)
		}
	}
}

func TestGenerate(t *testing.T) {
	t.Parallel()
	a, errA := GenerateSecret(rand.Reader)
	b, errB := GenerateSecret(nil)
	if errA != nil || errB != nil || a.Equal(b) || len(a.key()) != 32 || !mustSecret(t, a.Reveal()).Equal(a) {
		t.Error("two secrets:", errA, errB)
	}
	k, err := GeneratePrivateKey(nil)
	if err != nil || mustPrivate(t, k.Reveal()).Public() != k.Public() {
		t.Error("private key:", err)
	}
	broken := errors.New("broken")
	for _, random := range []io.Reader{iotest.ErrReader(broken), strings.NewReader("too short")} {
		if s, err := GenerateSecret(random); err == nil || !s.IsZero() {
			t.Errorf("%v, %v", s, err)
		}
		if k, err := GeneratePrivateKey(random); err == nil || !k.IsZero() {
			t.Errorf("%v, %v", k, err)
		}
	}
	if (Secret{}).Equal(Secret{}) || a.Equal(Secret{}) || (Secret{}).Reveal() != "" || (PrivateKey{}).Reveal() != "" || (PrivateKey{}).Public() != (PublicKey{}) {
		t.Error("the zero keys")
	}
}

// No printing, logging or marshalling shows a secret, not even as an unexported
// field of somebody else's struct, where fmt asks no method.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	s, k := mustSecret(t, publishedSecret), mustPrivate(t, publishedPrivate)
	type holder struct {
		Public  Secret
		private Secret
		Key     PrivateKey
		key     PrivateKey
		list    []Secret
		byName  map[string]PrivateKey
		any     any
	}
	h := holder{s, s, k, k, []Secret{s}, map[string]PrivateKey{"a": k}, s}
	var out bytes.Buffer
	for _, v := range []any{s, &s, k, &k, h, &h, []any{s, k}, map[string]any{"a": s, "b": k}, fmt.Errorf("x: %v", s)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%o", "%c", "%U", "%T", "%08.3v"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		fmt.Fprintln(&out, v)
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
		for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
			slog.New(handler).Info("x", "v", v, slog.Any("w", v), slog.Group("g", "v", v))
		}
	}
	text := strings.ToLower(out.String())
	for name, key := range map[string][]byte{"secret": s.key(), "private key": k.key()[:32]} {
		plain := base64.StdEncoding.EncodeToString(key)
		for form, needle := range map[string]string{
			"base64":  plain[:12],
			"hex":     hex.EncodeToString(key[:6]),
			"decimal": strings.Trim(fmt.Sprint(key[:6]), "[]"),
			"Go":      strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", key[:4]), "[]byte{"), "}"),
			"raw":     string(key[:6]),
		} {
			if strings.Contains(text, strings.ToLower(needle)) {
				t.Errorf("the %s shows as %s", name, form)
			}
		}
	}
	if !strings.Contains(text, "whsec_[redacted]") || !strings.Contains(text, "whsk_[redacted]") {
		t.Error("nothing stands for the secrets")
	}
}

func ExampleSign() {
	secret, err := ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		fmt.Println(err)
		return
	}
	header, err := Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), secret)
	fmt.Println(header, err)
	fmt.Println(secret)
	// Output:
	// v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= <nil>
	// whsec_[redacted]
}

// A rotation: for a while both keys sign, newest first.
func ExampleSetHeaders() {
	newer, _ := ParseSecret("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")
	older, _ := ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	h := http.Header{}
	if err := SetHeaders(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), newer, older); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(h.Get(HeaderTimestamp))
	fmt.Println(strings.Fields(h.Get(HeaderSignature))[1])
	// Output:
	// 1614265330
	// v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=
}

func ExamplePublicKey_VerifyEntry() {
	private, _ := ParsePrivateKey("whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==")
	at, body := time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)
	entry, err := Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", at, body, private)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(private.Public())
	fmt.Println(private.Public().VerifyEntry(entry, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, body))
	// Output:
	// whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=
	// true
}

// FuzzParseSecret holds that what is accepted has the right size, prints back
// to an equal secret, and is what the official library reads; and that no error
// repeats the text.
func FuzzParseSecret(f *testing.F) {
	for _, text := range []string{publishedSecret, "whsec_", "", publishedPrivate, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "whsec_" + strings.Repeat("A", 86) + "==", "whsec_" + strings.Repeat("A", 86), "whsec_AAAA\nAAAA", "whsec_-_-_"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		if err != nil {
			if body := strings.TrimPrefix(text, "whsec_"); len(body) > 12 && strings.Contains(err.Error(), body) {
				t.Fatalf("the error repeats the text: %v", err)
			}
			return
		}
		if n := len(s.key()); n < 24 || n > 64 {
			t.Fatalf("%d bytes", n)
		}
		again, err := ParseSecret(s.Reveal())
		if err != nil || !again.Equal(s) {
			t.Fatalf("%q prints as what does not read back: %v", text, err)
		}
		official, err := standardwebhooks.NewWebhook(s.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		at := time.Unix(1614265330, 0)
		want, _ := official.Sign("msg_1", at, []byte("x"))
		if got, err := Sign("msg_1", at, []byte("x"), s); err != nil || got != want {
			t.Fatalf("%s, %v; the official library signs %s", got, err, want)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	s, k := mustSecret(b, publishedSecret), mustPrivate(b, publishedPrivate)
	at := time.Unix(1614265330, 0)
	for _, size := range []int{1 << 10, 1 << 20} {
		body := make([]byte, size)
		for name, keys := range map[string][]Key{"v1": {s}, "v1 twice": {s, s}, "v1a": {k}} {
			b.Run(fmt.Sprintf("%s/%d KiB", name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Sign("evt_abc", at, body, keys...); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
