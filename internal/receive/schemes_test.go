package receive

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
)

const sampleURL = "https://hooks.example.com/in/src"

// bench is a receiver with one source of a scheme, and the key to sign for it.
type bench struct {
	scheme string
	o      provider.Options
	keys   provider.Keys
	fake   *fake
	rc     *Receiver
}

func newBench(t testing.TB, scheme string, edit func(*Config, *Source)) *bench {
	t.Helper()
	keys, err := provider.SampleKeys(scheme)
	if err != nil {
		t.Fatal(err)
	}
	o := provider.SampleOptions(scheme)
	s := Source{
		ID: "src", Scheme: scheme, PublicURL: sampleURL, Keys: []provider.Secret{provider.NewSecret("s", 1, []byte(keys.Verification))},
		HMAC: o.HMAC, Token: o.Token, JWT: o.JWT, WebhookID: o.WebhookID, Topics: o.Topics, VerifyToken: o.VerifyToken,
	}
	b := &bench{scheme: scheme, o: o, keys: keys, fake: &fake{}}
	c := Config{Publisher: b.fake}
	if edit != nil {
		edit(&c, &s)
	}
	c.Sources = []Source{s}
	b.rc = newReceiver(t, c)
	return b
}

func (b *bench) sign(t testing.TB, sample provider.Sample, now time.Time) provider.Request {
	t.Helper()
	sample.URL = sampleURL
	r, err := provider.Sign(b.scheme, b.o, b.keys.Signing, sample, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (b *bench) send(r provider.Request) *httptest.ResponseRecorder {
	target := strings.TrimPrefix(r.URL, "https://hooks.example.com")
	req := httptest.NewRequest(r.Method, target, bytes.NewReader(r.Body))
	req.Header = r.Header.Clone()
	w := httptest.NewRecorder()
	b.rc.Routes().ServeHTTP(w, req)
	return w
}

// reasons are what was counted so far.
func (b *bench) reasons(t testing.TB) string {
	t.Helper()
	return b.fake.refusals(b.rc, t)
}

// timeless are the schemes whose samples carry no time of the event.
var timeless = map[string]bool{
	"github": true, "gitlab-token": true, "bitbucket": true, "twilio": true, "sendgrid": true, "hubspot-v1": true, "hubspot-v2": true, "hubspot-v3": true, "asana": true,
	"dropbox": true, "meta": true, "x-twitter": true, "microsoft-graph": true, "generic-token": true, "basic": true, "jwt": true,
}

// The four tests of every receiver, for every scheme: wrong signature, stale
// timestamp, duplicate, reversed order.
func TestFourTestsOfEveryScheme(t *testing.T) {
	t.Parallel()
	for _, in := range provider.Schemes() {
		if in.Name == "x-twitter-crc" {
			continue // has no events
		}
		t.Run(in.Name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, in.Name, nil)
			older := b.sign(t, provider.Sample{ID: "e1"}, noon.Add(-10*time.Second))
			newer := b.sign(t, provider.Sample{ID: "e2"}, noon.Add(-5*time.Second))

			t.Log("wrong signature")
			forger := newBench(t, in.Name, nil)
			if w := b.send(forger.sign(t, provider.Sample{ID: "e1"}, noon)); w.Code != http.StatusUnauthorized || len(b.fake.events) != 0 {
				t.Fatalf("forged: %d, %d events", w.Code, len(b.fake.events))
			}
			if got := b.reasons(t); got != "mismatch:1" {
				t.Errorf("counted %s", got)
			}

			t.Log("stale timestamp")
			scheme, err := provider.New(in.Name, b.o)
			if err != nil {
				t.Fatal(err)
			}
			if scheme.SignsTime() {
				w := b.send(b.sign(t, provider.Sample{ID: "e1"}, noon.Add(-301*time.Second)))
				if got := b.reasons(t); w.Code != http.StatusUnauthorized || len(b.fake.events) != 0 || got != "mismatch:1 stale:1" {
					t.Fatalf("stale: %d, counted %s", w.Code, got)
				}
			}

			t.Log("reversed order")
			for _, r := range []provider.Request{newer, older} {
				if w := b.send(r); w.Code != http.StatusOK {
					t.Fatalf("%d, counted %s", w.Code, b.reasons(t))
				}
			}
			first, second := b.fake.events[0], b.fake.events[1]
			if first.Key == second.Key {
				t.Errorf("two events are one: %s", first.PublisherID)
			}
			if !bytes.Equal(first.Body, newer.Body) || !bytes.Equal(second.Body, older.Body) {
				t.Error("bytes changed")
			}
			if timeless[in.Name] != first.OccurredAt.IsZero() || (!timeless[in.Name] && !first.OccurredAt.After(second.OccurredAt)) {
				t.Errorf("the times do not tell the order: %s, then %s", first.OccurredAt, second.OccurredAt)
			}

			t.Log("duplicate")
			w := b.send(newer)
			again := b.fake.events[len(b.fake.events)-1]
			if w.Code != http.StatusOK || again.Key != first.Key || again.Receipt == first.Receipt {
				t.Errorf("%d: %s and %s, receipts %s and %s", w.Code, again.PublisherID, first.PublisherID, again.Receipt, first.Receipt)
			}
		})
	}
}

func TestHandshakesOverHTTP(t *testing.T) {
	t.Parallel()
	cases := []struct {
		scheme, method, query string
		header                []string
		edit                  func(*Source)
		status                int
		kind, body            string
	}{
		{scheme: "dropbox", method: "GET", query: "challenge=abc", status: 200, kind: "text/plain; charset=utf-8", body: "abc"},
		{scheme: "dropbox", method: "GET", query: "challenge=%3Cb%3E", status: 401, kind: "text/plain; charset=utf-8", body: "unauthorized\n"},
		{scheme: "dropbox", method: "HEAD", query: "challenge=abc", status: 405, kind: "text/plain; charset=utf-8"},
		{scheme: "intercom", method: "HEAD", status: 200, kind: "text/plain; charset=utf-8"},
		{scheme: "intercom", method: "GET", status: 405, kind: "text/plain; charset=utf-8", body: "method not allowed\n"},
		{scheme: "meta", method: "GET", query: "hub.mode=subscribe&hub.verify_token=sample-verify-token&hub.challenge=42", status: 200, kind: "text/plain; charset=utf-8", body: "42"},
		{scheme: "meta", method: "GET", query: "hub.mode=subscribe&hub.verify_token=x&hub.challenge=42", status: 401, kind: "text/plain; charset=utf-8", body: "unauthorized\n"},
		{scheme: "x-twitter", method: "GET", query: "crc_token=abc", status: 200, kind: "application/json"},
		{scheme: "microsoft-graph", method: "POST", query: "validationToken=a+b", status: 200, kind: "text/plain; charset=utf-8", body: "a b"},
		{scheme: "asana", method: "POST", header: []string{"X-Hook-Secret", "s"}, status: 401, kind: "text/plain; charset=utf-8", body: "unauthorized\n"},
		{scheme: "asana", method: "POST", header: []string{"X-Hook-Secret", "s"}, edit: func(s *Source) { s.AsanaHandshake = true }, status: 200, kind: "text/plain; charset=utf-8"},
		{scheme: "github", method: "GET", query: "challenge=a", status: 405, kind: "text/plain; charset=utf-8", body: "method not allowed\n"},
	}
	for _, c := range cases {
		t.Run(c.scheme, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, c.scheme, func(_ *Config, s *Source) {
				if c.edit != nil {
					c.edit(s)
				}
			})
			r := provider.Request{Method: c.method, URL: sampleURL + "?" + c.query, Header: http.Header{}}
			for i := 0; i < len(c.header); i += 2 {
				r.Header.Set(c.header[i], c.header[i+1])
			}
			w := b.send(r)
			if w.Code != c.status || w.Header().Get("Content-Type") != c.kind || (c.body != "" && w.Body.String() != c.body) || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
			}
			if c.scheme == "asana" && c.status == 200 && w.Header().Get("X-Hook-Secret") != "s" {
				t.Errorf("no echo: %v", w.Header())
			}
			if len(b.fake.events) != 0 {
				t.Errorf("published %d", len(b.fake.events))
			}
		})
	}
}

func TestDiscordPingsOverHTTP(t *testing.T) {
	t.Parallel()
	b := newBench(t, "discord", nil)
	for body, want := range map[string]string{`{"type":1}`: `200 {"type":1}`, `{"type":0}`: "204 "} {
		w := b.send(b.sign(t, provider.Sample{Body: []byte(body)}, noon))
		if got := fmt.Sprintf("%d %s", w.Code, w.Body); got != want {
			t.Errorf("%s: %s", body, got)
		}
	}
}

// Adyen wants a certain answer, and gets it for events only.
func TestAcknowledgement(t *testing.T) {
	t.Parallel()
	b := newBench(t, "adyen", nil)
	r := b.sign(t, provider.Sample{}, noon)
	if w := b.send(r); w.Code != 200 || w.Body.String() != "[accepted]" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	r.Body = bytes.Replace(r.Body, []byte("4200"), []byte("9200"), 1)
	if w := b.send(r); w.Code != 401 || w.Body.String() != "unauthorized\n" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

func TestSubscriptionIsConfirmed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		confirm bool
		err     error
		forge   bool
		status  int
		visits  int
		reason  string
	}{
		{"confirmed", true, nil, false, 200, 1, ""},
		{"not reached", true, errors.New("blocked"), false, 503, 1, "unconfirmed:1"},
		{"nobody to do it", false, nil, false, 503, 0, "unconfirmed:1"},
		{"forged", true, nil, true, 401, 0, "mismatch:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var visited []string
			b := newBench(t, "aws-sns", func(cfg *Config, s *Source) {
				s.AllowTypes = []string{"Notification"} // a confirmation is no event
				if c.confirm {
					cfg.Confirm = func(ctx context.Context, url string) error {
						if _, ok := ctx.Deadline(); !ok {
							t.Error("no deadline")
						}
						visited = append(visited, url)
						return c.err
					}
				}
			})
			r := b.sign(t, provider.Sample{Type: "SubscriptionConfirmation"}, noon)
			if c.forge {
				r.Body = bytes.Replace(r.Body, []byte("sample-token"), []byte("other-token"), 1)
			}
			w := b.send(r)
			if w.Code != c.status || len(visited) != c.visits || len(b.fake.events) != 0 || b.reasons(t) != c.reason {
				t.Errorf("%d, visited %v, %d events, %s", w.Code, visited, len(b.fake.events), b.reasons(t))
			}
			if c.visits > 0 && !strings.HasPrefix(visited[0], "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&") {
				t.Errorf("visited %v", visited)
			}
		})
	}
}

// fetcher is a fake of the guarded client.
type fetcher struct {
	mu   sync.Mutex
	urls []string
	text []byte
	err  error
	wait chan struct{}
}

func (f *fetcher) fetch(_ context.Context, url string) ([]byte, error) {
	if f.wait != nil {
		<-f.wait
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls = append(f.urls, url)
	return f.text, f.err
}

func TestPublishedKeysAreFetched(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"aws-sns", "paypal", "google-oidc"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			f := &fetcher{}
			now := noon
			b := newBench(t, scheme, func(c *Config, s *Source) {
				f.text = []byte(s.Keys[0].String()) // nothing usable yet
				c.Fetch, c.Now, s.Keys = f.fetch, func() time.Time { return now }, nil
			})
			send := func() int { return b.send(b.sign(t, provider.Sample{}, now)).Code }
			f.err = errors.New("unreachable")
			if a, c := send(), send(); a != 503 || c != 503 || len(f.urls) != 1 {
				t.Errorf("unreachable: %d %d, fetched %d times", a, c, len(f.urls))
			}
			now, f.err = now.Add(31*time.Second), nil
			if code := send(); code != 503 || len(f.urls) != 2 {
				t.Errorf("nothing usable: %d, fetched %d times", code, len(f.urls))
			}
			now, f.text = now.Add(time.Hour), []byte(b.keys.Verification)
			if a, c := send(), send(); a != 200 || c != 200 || len(f.urls) != 3 {
				t.Errorf("%d %d, fetched %d times", a, c, len(f.urls))
			}
			for _, u := range f.urls {
				if !strings.HasPrefix(u, "https://sns.us-east-1.amazonaws.com/") && !strings.HasPrefix(u, "https://api.sandbox.paypal.com/v1/notifications/certs/") && u != "https://www.googleapis.com/oauth2/v3/certs" {
					t.Errorf("fetched %s", u)
				}
			}
			forged := b.sign(t, provider.Sample{}, now)
			forged.Header.Set("PAYPAL-CERT-URL", "https://evil.example/cert")
			forged.Body = bytes.Replace(forged.Body, []byte("https://sns.us-east-1.amazonaws.com/"), []byte("https://evil.example/"), 1)
			if w := b.send(forged); scheme != "google-oidc" && w.Code != 401 || len(f.urls) != 3 {
				t.Errorf("forged: %d, fetched %v", w.Code, f.urls)
			}
		})
	}
}

// A verify_token may be a secret of the source, which is then no key of its events.
func TestVerifyTokenFromASecret(t *testing.T) {
	t.Parallel()
	b := newBench(t, "meta", func(_ *Config, s *Source) {
		s.VerifyToken = "secret:verify"
		s.Keys = append(s.Keys, provider.NewSecret("verify", 1, []byte("from-the-manager")))
	})
	for query, want := range map[string]int{"from-the-manager": 200, "sample-verify-token": 401, b.keys.Verification: 401} {
		r := provider.Request{Method: "GET", URL: sampleURL + "?hub.mode=subscribe&hub.challenge=42&hub.verify_token=" + query, Header: http.Header{}}
		if w := b.send(r); w.Code != want {
			t.Errorf("%s: %d, want %d", query, w.Code, want)
		}
	}
	if w := b.send(b.sign(t, provider.Sample{}, noon)); w.Code != 200 {
		t.Errorf("an event: %d", w.Code)
	}
	forged, err := provider.Sign("meta", b.o, "from-the-manager", provider.Sample{URL: sampleURL}, noon)
	if err != nil {
		t.Fatal(err)
	}
	if w := b.send(forged); w.Code != 401 {
		t.Errorf("an event signed with the verify_token: %d", w.Code)
	}
	for _, keys := range [][]provider.Secret{{provider.NewSecret("verify", 1, []byte("v"))}, {provider.NewSecret("app", 1, []byte("k"))}} {
		_, err := New(Config{Sources: []Source{{ID: "src", Scheme: "meta", VerifyToken: "secret:verify", Keys: keys}}, Publisher: b.fake})
		if err == nil || !strings.Contains(err.Error(), "verify_token") {
			t.Errorf("%v: %v", keys, err)
		}
	}
}

// Keys are fetched beside the source's own secret, for notifications with tokens only.
func TestGraphKeysAreFetched(t *testing.T) {
	t.Parallel()
	f := &fetcher{text: []byte(`{"keys":[{"kty":"RSA","kid":"a","n":"` + strings.Repeat("_", 341) + `w","e":"AQAB"}]}`)}
	b := newBench(t, "microsoft-graph", func(c *Config, s *Source) {
		c.Fetch, s.JWT = f.fetch, &provider.JWT{Audience: "8e460676-ae3f-4b1e-8790-ee0fb5d6148f"}
	})
	post := func(query, tokens string) string {
		r := provider.Request{Method: "POST", URL: sampleURL + query, Header: http.Header{}, Body: []byte(`{"value":[{"clientState":"` + b.keys.Verification + `"}]` + tokens + `}`)}
		w := b.send(r)
		return fmt.Sprint(w.Code, len(f.urls))
	}
	for _, c := range []struct{ query, tokens, want string }{
		{"?validationToken=x", "", "200 0"},
		{"", "", "401 0"},
		{"", `,"validationTokens":["e30.e30.AA"]`, "401 1"},
		{"", `,"validationTokens":["e30.e30.AA"]`, "401 1"},
	} {
		if got := post(c.query, c.tokens); got != c.want {
			t.Errorf("%q %q: %s, want %s", c.query, c.tokens, got, c.want)
		}
	}
	if f.urls[0] != "https://login.microsoftonline.com/common/discovery/v2.0/keys" {
		t.Errorf("fetched %v", f.urls)
	}
	s := Source{ID: "src", Scheme: "microsoft-graph", Keys: []provider.Secret{provider.NewSecret("s", 1, []byte("state"))}, JWT: &provider.JWT{Audience: "a"}}
	if _, err := New(Config{Sources: []Source{s}, Publisher: b.fake}); err == nil || !strings.Contains(err.Error(), "fetch") {
		t.Errorf("a receiver that cannot fetch: %v", err)
	}
}

func certificate(t *testing.T, notAfter time.Time) []byte {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: noon.Add(-time.Hour), NotAfter: notAfter}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestExpiredCertificateIsNotTrusted(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]string{time.Hour: "mismatch:1", -time.Second: "keys_unavailable:1"} {
		f := &fetcher{text: certificate(t, noon.Add(after))}
		b := newBench(t, "aws-sns", func(c *Config, s *Source) { c.Fetch, s.Keys = f.fetch, nil })
		b.send(b.sign(t, provider.Sample{}, noon))
		if got := b.reasons(t); got != want {
			t.Errorf("valid for %s: %s, want %s", after, got, want)
		}
	}
}

func TestFetchingIsBounded(t *testing.T) {
	t.Parallel()
	f := &fetcher{text: []byte("k")}
	k := newKeyring(f.fetch)
	for i := range 100 {
		_, err := k.get(t.Context(), fmt.Sprintf("https://h.example/%d", i), noon)
		if (err == nil) != (i < fetchPerMin) {
			t.Fatalf("fetch %d: %v", i, err)
		}
	}
	for m := 1; m < 10; m++ {
		for i := range fetchPerMin {
			if _, err := k.get(t.Context(), fmt.Sprintf("https://h.example/%d-%d", m, i), noon.Add(time.Duration(m)*time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(k.kept) > keysKept {
		t.Errorf("%d kept", len(k.kept))
	}
	// A forger's failures do not push out what is good.
	k = newKeyring(f.fetch)
	if _, err := k.get(t.Context(), "https://h.example/good", noon); err != nil {
		t.Fatal(err)
	}
	f.err = errors.New("no such certificate")
	for m := range 6 {
		for i := range fetchPerMin {
			_, _ = k.get(t.Context(), fmt.Sprintf("https://h.example/bad-%d-%d", m, i), noon.Add(time.Duration(m)*time.Minute))
		}
	}
	if _, err := k.get(t.Context(), "https://h.example/good", noon.Add(7*time.Minute)); err != nil {
		t.Errorf("the good one was forgotten: %v", err)
	}
}

func TestManyWaitForOneFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fetcher{text: []byte("k"), wait: make(chan struct{})}
		k := newKeyring(f.fetch)
		var done sync.WaitGroup
		for range 50 {
			done.Go(func() {
				if text, err := k.get(t.Context(), "https://h.example/k", noon); err != nil || string(text) != "k" {
					t.Errorf("%q, %v", text, err)
				}
			})
		}
		synctest.Wait()
		close(f.wait)
		done.Wait()
		if len(f.urls) != 1 {
			t.Errorf("fetched %d times", len(f.urls))
		}
	})
}

func TestSourcesOfTheTable(t *testing.T) {
	t.Parallel()
	const secrets = `"secrets":[{"name":"s","versions":[1]}]`
	good := []string{
		`{"id":"a","scheme":"aws-sns","topics":["arn:aws:sns:us-east-1:1:t"]}`,
		`{"id":"a","scheme":"paypal","webhook_id":"W"}`,
		`{"id":"a","scheme":"google-oidc","jwt":{"audience":"x","email":"e@x"}}`,
		`{"id":"a","scheme":"twilio","public_url":"https://h.example/in/a",` + secrets + `}`,
		`{"id":"a","scheme":"meta","verify_token":"v",` + secrets + `}`,
		`{"id":"a","scheme":"asana","asana_handshake":true,` + secrets + `}`,
		`{"id":"a","scheme":"shopify","dedupe":"header:X-Shopify-Event-Id",` + secrets + `}`,
		`{"id":"a","scheme":"generic-token","token":{"header":"X-T","id_path":"id"},` + secrets + `}`,
		`{"id":"a","scheme":"jwt","jwt":{"issuer":"i","audience":"a","body_claim":"b"},` + secrets + `}`,
		`{"id":"a","scheme":"linear","tolerance":"1m",` + secrets + `}`,
	}
	for _, in := range good {
		if _, err := ParseSources([]byte("[" + in + "]")); err != nil {
			t.Errorf("%s: %v", in, err)
		}
	}
	for in, want := range map[string]string{
		`{"id":"a","scheme":"aws-sns"}`: "topics:", `{"id":"a","scheme":"paypal"}`: "webhook_id:", `{"id":"a","scheme":"google-oidc"}`: "jwt:", `{"id":"a","scheme":"github"}`: "secrets: none is listed",
		`{"id":"a","scheme":"twilio",` + secrets + `}`: "public_url: scheme twilio signs the URL", `{"id":"a","scheme":"square",` + secrets + `}`: "public_url:", `{"id":"a","scheme":"hubspot-v3",` + secrets + `}`: "public_url:", `{"id":"a","scheme":"hubspot-v2",` + secrets + `}`: "public_url:",
		`{"id":"a","scheme":"github","dedupe":"x",` + secrets + `}`: "dedupe:", `{"id":"a","scheme":"github","asana_handshake":"yes",` + secrets + `}`: "asana_handshake: wants a bool", `{"id":"a","scheme":"generic-token","token":{"hash":"x"},` + secrets + `}`: `token."hash": is no field`,
		`{"id":"a","scheme":"jwt","jwt":{"audience":"x"},` + secrets + `}`: "jwt.issuer:", `{"id":"a","scheme":"dropbox","tolerance":"5m",` + secrets + `}`: "tolerance:",
	} {
		if _, err := ParseSources([]byte("[" + in + "]")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v does not say %q", in, err, want)
		}
	}
	// Without a client there is nothing to verify with: the start stops.
	_, err := New(Config{Publisher: &fake{}, Sources: []Source{{ID: "a", Scheme: "aws-sns", Topics: []string{"*"}}}})
	if err == nil || !strings.Contains(err.Error(), "cannot fetch") {
		t.Errorf("%v", err)
	}
}

// Samples of every scheme are judged as the receiver judges them.
func TestVerifySamples(t *testing.T) {
	t.Parallel()
	for _, in := range provider.Schemes() {
		b := newBench(t, in.Name, nil)
		r := b.sign(t, provider.Sample{}, noon)
		headers := map[string]any{}
		for name, lines := range r.Header {
			headers[name] = lines
		}
		options := map[string]any{"tolerance_s": 300}
		switch in.Name {
		case "generic-hmac":
			options = map[string]any{"header": "X-Signature", "id_header": "X-Event-Id", "type_path": "type", "timestamp_header": "X-Timestamp", "signed_content": "{id}.{timestamp}.{body}"}
		case "jwt":
			options = map[string]any{"issuer": "https://issuer.example", "audience": "sealpost", "body_claim": "body_sha256"}
		case "google-oidc":
			options = map[string]any{"audience": "sealpost", "email": "sender@project.iam.gserviceaccount.com"}
		case "paypal":
			options["webhook_id"] = b.o.WebhookID
		}
		text, err := json.Marshal(map[string]any{"name": in.Name, "scheme": in.Name, "secret": b.keys.Verification, "headers": headers, "method": r.Method, "url": r.URL,
			"body_base64": r.Body, "now_unix": noon.Unix(), "options": options})
		if err != nil {
			t.Fatal(err)
		}
		var c CapturedRequest
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		if v := VerifyRequests(t.Context(), []CapturedRequest{c})[0]; v.Verdict != Accept {
			t.Errorf("%+v", v)
		}
		c.Secrets = []string{newBench(t, in.Name, nil).keys.Verification}
		if v := VerifyRequests(t.Context(), []CapturedRequest{c})[0]; in.Name != "x-twitter-crc" && (v.Verdict != Reject || v.Reason != "mismatch" || len(v.Explanation) == 0) {
			t.Errorf("%+v", v)
		}
	}
}

func TestVerifyHandshakesOfTheTable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"scheme":"meta","secret":"s","method":"GET","url":"https://h.example/x?hub.mode=subscribe&hub.verify_token=v&hub.challenge=12","options":{"verify_token":"v"},"expected_response":"12"}`:              "ok",
		`{"scheme":"meta","secret":"s","method":"GET","url":"https://h.example/x?hub.mode=subscribe&hub.verify_token=v&hub.challenge=12","options":{"verify_token":"w"},"expected_response":"12"}`:              "mismatch",
		`{"scheme":"dropbox","secret":"s","method":"GET","url":"https://h.example/x?challenge=a","expected_response":"a"}`:                                                                                      "ok",
		`{"scheme":"dropbox","secret":"s","method":"GET","url":"https://h.example/x?challenge=a","expected_response":"b"}`:                                                                                      "wrong_response",
		`{"scheme":"microsoft-graph","secret":"s","url":"https://h.example/x?validationToken=a%20b","expected_response":"a b"}`:                                                                                 "ok",
		`{"scheme":"asana","secret":"s","headers":{"X-Hook-Secret":"t"},"expected_response":{"X-Hook-Secret":"t"}}`:                                                                                             "ok",
		`{"scheme":"intercom","secret":"s","method":"HEAD","expected_response":""}`:                                                                                                                             "ok",
		`{"scheme":"intercom","secret":"s","method":"HEAD"}`:                                                                                                                                                    "ok",
		`{"scheme":"github","secret":"s","method":"HEAD"}`:                                                                                                                                                      "wrong_method",
		`{"scheme":"asana","secret":"s","headers":{"X-Hook-Secret":"t"}}`:                                                                                                                                       "missing_signature",
		`{"scheme":"x-twitter","secret":"Convoy","method":"GET","url":"https://h.example/x?crc_token=uzwcfYtzr9","expected_response":{"response_token":"sha256=HXvxTdsfShG6k2zC9NVANwFquJBdOugRYHax2vNiiOo="}}`: "ok",
	} {
		var c CapturedRequest
		if err := json.Unmarshal([]byte(in), &c); err != nil {
			t.Fatal(err)
		}
		if v := VerifyRequests(t.Context(), []CapturedRequest{c})[0]; v.Reason != want {
			t.Errorf("%s: %+v", in, v)
		}
	}
}
