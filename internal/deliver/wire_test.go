package deliver

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// wire is a sender without anything around it: claims are made by the test.
type wire struct {
	t      *testing.T
	sealer *secrets.Sealer
	s      *sender

	mu  sync.Mutex
	now time.Time
}

var wireStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newWire trusts the authorities given besides the system's.
func newWire(t *testing.T, roots *x509.CertPool, adjust ...func(*Options)) *wire {
	t.Helper()
	w := &wire{t: t, now: wireStart}
	ks, err := secrets.NewKeyset()
	ok(t, err)
	w.sealer, err = secrets.NewSealer(map[int][]byte{1: ks})
	ok(t, err)
	o := Options{Sealer: w.sealer, Policy: safedial.Dev(), Version: "test", Now: w.clock}
	for _, f := range adjust {
		f(&o)
	}
	co := clientOptions(o)
	co.RootCAs = roots
	w.s = newSenderOver(o, safedial.NewClient(o.Policy, co))
	t.Cleanup(w.s.client.CloseIdleConnections)
	return w
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *wire) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *wire) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

const wireSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="

// key is a sealed signing key of the claim's endpoint.
func (w *wire) key(id, kind, text string) store.SealedKey {
	w.t.Helper()
	sealed, by, err := w.sealer.Seal([]byte(text), "acme", "ep")
	ok(w.t, err)
	return store.SealedKey{Tenant: "acme", Endpoint: "ep", ID: id, Kind: kind, Sealed: sealed, SealedBy: by}
}

// claim is one attempt to be made, of an event that an application published.
func (w *wire) claim(url string, adjust ...func(*store.Claim)) *store.Claim {
	w.t.Helper()
	ev := sampleEvent(`{"amount": 19.90}`)
	c := &store.Claim{Verdict: store.VerdictRun, Event: *ev, Keys: []store.SealedKey{w.key("key_v1", "v1", wireSecret)},
		Endpoint: webhook.Endpoint{Tenant: "acme", ID: "ep", URL: url, State: webhook.EndpointActive, Timeout: 5 * time.Second},
		Delivery: webhook.Delivery{Event: ev.Key, Tenant: "acme", Endpoint: "ep", EventType: ev.Type, State: webhook.DeliveryScheduled, Generation: 1, Attempt: 3, Task: 1, Trigger: webhook.TriggerAutomatic}}
	for _, f := range adjust {
		f(c)
	}
	return c
}

// authenticated seals credentials into the claim's endpoint.
func (w *wire) authenticated(cr secrets.Credentials) func(*store.Claim) {
	return func(c *store.Claim) {
		sealed, by, err := w.sealer.SealAuth(cr, "acme", "ep", w.clock())
		ok(w.t, err)
		c.Endpoint.Auth = webhook.EndpointAuth{Kind: webhook.AuthKind(cr.Kind), Summary: cr.Summary(), Sealed: sealed, SealedBy: by}
	}
}

func (w *wire) send(c *store.Claim) webhook.Attempt {
	w.t.Helper()
	a, err := w.s.send(w.t.Context(), c)
	ok(w.t, err)
	return a
}

// inbox is an endpoint that keeps what it got, byte for byte.
type inbox struct {
	*httptest.Server
	mu   sync.Mutex
	got  []*http.Request
	body [][]byte
}

func newInbox(t *testing.T, secure bool, answer http.HandlerFunc) *inbox {
	t.Helper()
	in := &inbox{}
	in.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		in.mu.Lock()
		in.got, in.body = append(in.got, r.Clone(context.WithoutCancel(r.Context()))), append(in.body, b)
		in.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	in.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		in.EnableHTTP2 = true
		in.StartTLS()
	} else {
		in.Start()
	}
	t.Cleanup(in.Close)
	return in
}

func (in *inbox) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(in.Certificate())
	return pool
}

// only is the one request that came.
func (in *inbox) only(t *testing.T) (*http.Request, []byte) {
	t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.got) != 1 {
		t.Fatalf("%d requests", len(in.got))
	}
	return in.got[0], in.body[0]
}

func (in *inbox) count() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.got)
}

// An endpoint receives these headers and no others: nothing tells of tenants, queues,
// tasks, traces or where the request came from.
func TestWhatAnEndpointReceives(t *testing.T) {
	t.Parallel()
	always := []string{"Content-Length", "Content-Type", "User-Agent", "Webhook-Id", "Webhook-Signature", "Webhook-Timestamp", "X-Sealpost-Attempt", "X-Sealpost-Event-Type"}
	for _, secure := range []bool{false, true} {
		for _, c := range []struct {
			name   string
			adjust func(*store.Claim)
			more   map[string]string
		}{
			{"as little as possible", func(*store.Claim) {}, nil},
			{"as much as possible", func(c *store.Claim) {
				c.Endpoint.APIVersion = "2026-01-01"
				c.Endpoint.Headers = []webhook.Header{{Name: "X-Region", Value: "eu"}, {Name: "Accept", Value: "*/*"}}
				c.Endpoint.Legacy = []webhook.SignatureTemplate{{Header: "X-Hub-Signature-256", Template: "sha256={hmac_sha256_hex:{body}}"}}
				c.Event.OrderingKey, c.Event.Subject = "cus_1", "invoices/1"
				c.Event.Headers = []webhook.Header{{Name: "X-Internal", Value: "1"}}
			}, map[string]string{"X-Sealpost-Api-Version": "2026-01-01", "X-Region": "eu", "Accept": "*/*", "X-Hub-Signature-256": ""}},
		} {
			in := newInbox(t, secure, nil)
			var roots *x509.CertPool
			if secure {
				roots = in.roots()
			}
			w := newWire(t, roots)
			claim := w.claim(in.URL+"/hook?a=b", c.adjust, w.authenticated(secrets.Credentials{Kind: "bearer", Token: "t0ken"}))
			if a := w.send(claim); a.Outcome.Class != webhook.ClassOK {
				t.Fatalf("%s: %+v", c.name, a)
			}
			r, body := in.only(t)
			var names []string
			for name := range r.Header {
				names = append(names, name)
			}
			slices.Sort(names)
			want := slices.Concat(always, []string{"Authorization"})
			for name, v := range c.more {
				want = append(want, name)
				if v != "" && r.Header.Get(name) != v {
					t.Errorf("%s: %s is %q", c.name, name, r.Header.Get(name))
				}
			}
			slices.Sort(want)
			if !slices.Equal(names, want) {
				t.Errorf("%s: headers\n%v, want\n%v", c.name, names, want)
			}
			for name, v := range map[string]string{"Content-Type": "application/json", "User-Agent": "Sealpost/test", "Webhook-Id": claim.Event.Key.ID(), "Webhook-Timestamp": fmt.Sprint(wireStart.Unix()),
				"X-Sealpost-Attempt": "3", "X-Sealpost-Event-Type": "invoice.paid", "Authorization": "Bearer t0ken", "Content-Length": fmt.Sprint(len(body))} {
				if r.Header.Get(name) != v || len(r.Header[name]) != 1 {
					t.Errorf("%s: %s is %q, want %q", c.name, name, r.Header[name], v)
				}
			}
			if r.Method != "POST" || r.RequestURI != "/hook?a=b" || r.Host != strings.TrimPrefix(strings.TrimPrefix(in.URL, "https://"), "http://") {
				t.Errorf("%s: %s %s %s", c.name, r.Method, r.RequestURI, r.Host)
			}
			if secure != (r.ProtoMajor == 2) {
				t.Errorf("%s: %s", c.name, r.Proto)
			}
		}
	}
}

// A content type or event type that HTTP cannot carry does not make an event
// undeliverable.
func TestOddNamesAreSendable(t *testing.T) {
	t.Parallel()
	in := newInbox(t, false, nil)
	w := newWire(t, nil)
	a := w.send(w.claim(in.URL, func(c *store.Claim) {
		c.Event.Source, c.Event.ContentType, c.Event.Type = "stripe", " text/plain; x=\"\xff\n\" ", "größe.geändert"
	}))
	r, _ := in.only(t)
	if a.Outcome.Class != webhook.ClassOK || r.Header.Get("Content-Type") != `text/plain; x="??"` || r.Header.Get("X-Sealpost-Event-Type") != "gr????e.ge??ndert" {
		t.Errorf("%+v, %v", a, r.Header)
	}
}

// Every valid key of both kinds signs, newest first, over the exact body; the
// official library takes the v1 entries, and the public keys the v1a ones.
func TestEveryKindOfKeySigns(t *testing.T) {
	t.Parallel()
	in := newInbox(t, false, nil)
	w := newWire(t, nil)
	older, newer := mustPrivateKey(t), mustPrivateKey(t)
	second, err := signing.GenerateSecret(nil)
	ok(t, err)
	a := w.send(w.claim(in.URL, func(c *store.Claim) {
		c.Keys = []store.SealedKey{w.key("k4", "v1a", newer.Reveal()), w.key("k3", "v1", second.Reveal()), w.key("k2", "legacy", "an-old-text-secret"), w.key("k1", "v1a", older.Reveal()), w.key("k0", "v1", wireSecret)}
	}))
	if !slices.Equal(a.KeyIDs, []string{"k4", "k3", "k2", "k1", "k0"}) {
		t.Errorf("keys %v", a.KeyIDs)
	}
	r, body := in.only(t)
	entries := strings.Fields(r.Header.Get("Webhook-Signature"))
	if len(entries) != 4 {
		t.Fatalf("entries %q", entries)
	}
	id := r.Header.Get("Webhook-Id")
	if !newer.Public().VerifyEntry(entries[0], id, wireStart, body) || !older.Public().VerifyEntry(entries[2], id, wireStart, body) {
		t.Error("an ed25519 entry does not verify")
	}
	for _, secret := range []string{wireSecret, second.Reveal()} {
		official, err := standardwebhooks.NewWebhook(secret)
		ok(t, err)
		ok(t, official.VerifyIgnoringTimestamp(body, r.Header))
	}
}

func mustPrivateKey(t *testing.T) signing.PrivateKey {
	t.Helper()
	k, err := signing.GeneratePrivateKey(nil)
	ok(t, err)
	return k
}

// Without a key for the standard headers nothing is sent, and it is our fault.
func TestWithoutKeysNothingIsSent(t *testing.T) {
	t.Parallel()
	in := newInbox(t, false, nil)
	w := newWire(t, nil)
	for name, keys := range map[string][]store.SealedKey{
		"none": nil, "legacy only": {w.key("k", "legacy", "an-old-text-secret")}, "unknown kind": {w.key("k", "v2", wireSecret)}, "of the other kind": {w.key("k", "v1a", wireSecret)},
		"of another endpoint": {func() store.SealedKey { k := w.key("k", "v1", wireSecret); k.Endpoint = "other"; return k }()},
	} {
		_, err := w.s.send(t.Context(), w.claim(in.URL, func(c *store.Claim) { c.Keys = keys }))
		if err == nil || strings.Contains(err.Error(), "whsec_") || strings.Contains(err.Error(), "text-secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if in.count() != 0 {
		t.Error("sent all the same")
	}
}

// Teams that come from another scheme keep their receivers: what those verify is
// held here against our own inbound verifiers, which the providers' vectors hold.
func TestLegacySignaturesVerify(t *testing.T) {
	t.Parallel()
	const text = "whsec_stripe_like_text_secret"
	for _, c := range []struct{ scheme, header, template string }{
		{"stripe", "Stripe-Signature", "t={timestamp}[,v1={hmac_sha256_hex:{timestamp}.{body}}]"},
		{"github", "X-Hub-Signature-256", "sha256={hmac_sha256_hex:{body}}"},
		{"shopify", "X-Shopify-Hmac-SHA256", "{hmac_sha256_base64:{body}}"},
	} {
		in := newInbox(t, false, nil)
		w := newWire(t, nil)
		a := w.send(w.claim(in.URL, func(c2 *store.Claim) {
			c2.Keys = append(c2.Keys, w.key("new", "legacy", "the-newer-text-secret"), w.key("old", "legacy", text))
			c2.Endpoint.Legacy = []webhook.SignatureTemplate{{Header: c.header, Template: c.template}}
			c2.Endpoint.PayloadMode = webhook.PayloadRaw
			if c.scheme == "github" {
				c2.Endpoint.Headers = []webhook.Header{{Name: "X-GitHub-Event", Value: "push"}, {Name: "X-GitHub-Delivery", Value: "1"}}
			}
			if c.scheme == "shopify" {
				c2.Endpoint.Headers = []webhook.Header{{Name: "X-Shopify-Topic", Value: "orders/create"}, {Name: "X-Shopify-Webhook-Id", Value: "1"}}
			}
		}))
		if a.Outcome.Class != webhook.ClassOK {
			t.Fatalf("%s: %+v", c.scheme, a)
		}
		r, body := in.only(t)
		v, err := provider.New(c.scheme, provider.Options{})
		ok(t, err)
		_, err = v.Verify(provider.Request{Method: "POST", Header: r.Header, Body: body}, []provider.Secret{provider.NewSecret("s", 1, []byte(text))}, wireStart)
		if err != nil {
			t.Errorf("%s: %v in %v", c.scheme, err, r.Header)
		}
	}
}

// hookdeck/outpost#957, #828: faults of a customer's own settings were taken for the
// system's: they went to the operator's dead letters and were invisible to the
// customer. They are attempts of the endpoint, and nothing is sent.
func TestFaultySettingsAreTheEndpoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		adjust func(*wire, *store.Claim)
		want   string
	}{
		{"template that is none", func(_ *wire, c *store.Claim) {
			c.Endpoint.Legacy = []webhook.SignatureTemplate{{Header: "X-Sig", Template: "{hmac_md5_hex:{body}}"}}
		}, "X-Sig"},
		{"template without a key for it", func(w *wire, c *store.Claim) {
			c.Keys = []store.SealedKey{w.key("k", "v1a", mustPrivateKey(w.t).Reveal())}
			c.Endpoint.Legacy = []webhook.SignatureTemplate{{Header: "X-Sig", Template: "{hmac_sha256_hex:{body}}"}}
		}, "no valid key"},
		{"template for a header of ours", func(_ *wire, c *store.Claim) {
			c.Endpoint.Legacy = []webhook.SignatureTemplate{{Header: "Webhook-Id", Template: "{hmac_sha256_hex:{body}}"}}
		}, "reserved"},
		{"header that splits the request", func(_ *wire, c *store.Claim) {
			c.Endpoint.Headers = []webhook.Header{{Name: "X-A", Value: "s3cret\r\nHost: evil"}}
		}, "X-A"},
		{"header of HTTP's", func(_ *wire, c *store.Claim) {
			c.Endpoint.Headers = []webhook.Header{{Name: "Transfer-Encoding", Value: "s3cret"}}
		}, "reserved"},
		{"mode that is none", func(_ *wire, c *store.Claim) { c.Endpoint.PayloadMode = "fat" }, "payload mode"},
		{"URL that is none", func(_ *wire, c *store.Claim) { c.Endpoint.URL = "https://exa mple/?s3cret" }, "not a valid URL"},
		{"URL with a password", func(_ *wire, c *store.Claim) {
			c.Endpoint.URL = strings.Replace(c.Endpoint.URL, "http://", "http://u:s3cret@", 1)
		}, "user name or password"},
		{"certificate that ended", func(w *wire, c *store.Claim) {
			cert, key := clientPair(w.t, "acme", wireStart.Add(time.Hour))
			w.authenticated(secrets.Credentials{Kind: "mtls", Certificate: cert, PrivateKey: key})(c)
			w.advance(2 * time.Hour)
		}, "certificate ended on 2026-03-01"},
		{"topic, without any permitted", func(_ *wire, c *store.Claim) { c.Endpoint.URL = "pubsub://billing" }, "DESTINATION_TOPICS"},
		{"topic of ours", func(_ *wire, c *store.Claim) { c.Endpoint.URL = "pubsub://sealpost-inbound" }, "taken"},
	} {
		in := newInbox(t, false, nil)
		w := newWire(t, nil)
		claim := w.claim(in.URL)
		c.adjust(w, claim)
		a, err := w.s.send(t.Context(), claim)
		if err != nil || a.Outcome.Class != webhook.ClassBlocked || a.Outcome.Status != 0 || !strings.Contains(a.Error, c.want) || a.WroteRequest {
			t.Errorf("%s: %+v, %v", c.name, a, err)
		}
		if strings.Contains(a.Error+a.URL, "s3cret") {
			t.Errorf("%s: shows a secret: %+v", c.name, a)
		}
		if n := in.count(); n != 0 {
			t.Errorf("%s: %d requests", c.name, n)
		}
	}
}

// Credentials that cannot be opened are our fault: a keyset is missing, or a row was
// moved.
func TestUnreadableCredentialsAreOurs(t *testing.T) {
	t.Parallel()
	in := newInbox(t, false, nil)
	w := newWire(t, nil)
	c := w.claim(in.URL, w.authenticated(secrets.Credentials{Kind: "bearer", Token: "s3cret"}))
	c.Endpoint.Auth.SealedBy = "2"
	if _, err := w.s.send(t.Context(), c); err == nil || strings.Contains(err.Error(), "s3cret") || in.count() != 0 {
		t.Errorf("%v, %d requests", err, in.count())
	}
}

// An endpoint that sends back what it got must not put our credentials into the
// attempts that people look at.
func TestEchoedCredentialsAreMasked(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-t0ken-of-some-length"
	for name, cr := range map[string]secrets.Credentials{
		"basic":  {Kind: "basic", Username: "alice", Password: secret},
		"bearer": {Kind: "bearer", Token: secret},
	} {
		for _, pad := range []int{0, ExcerptLimit - 10, ExcerptLimit - len(secret) + 1} {
			in := newInbox(t, false, func(w http.ResponseWriter, r *http.Request) {
				auth := r.Header.Get("Authorization")
				w.Header().Set("X-Echo", auth)
				w.WriteHeader(http.StatusTeapot)
				_, _ = io.WriteString(w, strings.Repeat(".", pad)+secret+" "+auth+"\n"+strings.Repeat("more", 50))
			})
			w := newWire(t, nil)
			c := w.claim(in.URL, w.authenticated(cr))
			c.Delivery.Trigger = webhook.TriggerTest
			a := w.send(c)
			r, _ := in.only(t)
			_, plain, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			kept, err := json.Marshal(a)
			ok(t, err)
			for _, s := range []string{secret[:9], plain[:12]} {
				if bytes.Contains(kept, []byte(s)) || bytes.Contains(a.Excerpt, []byte(s)) {
					t.Errorf("%s, %d: %q is kept: %s", name, pad, s, a.Excerpt[max(0, len(a.Excerpt)-200):])
				}
			}
			if len(a.Excerpt) > ExcerptLimit || !bytes.HasPrefix(a.Excerpt, []byte(strings.Repeat(".", min(pad, 10)))) {
				t.Errorf("excerpt of %d bytes", len(a.Excerpt))
			}
		}
	}
}

// So with the secrets in an endpoint's own headers and URL, in either spelling.
func TestEchoedSettingsAreMasked(t *testing.T) {
	t.Parallel()
	in := newInbox(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.Header.Get("X-Api-Key"))
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintf(w, "no %s for %q, %s, %s, region %s", r.RequestURI, r.URL.Query().Get("token"), r.Header.Get("X-Api-Key"), r.Header.Get("X-Auth")[6:], r.Header.Get("X-Region"))
	})
	w := newWire(t, nil)
	c := w.claim(in.URL + "/hook?v=true&token=t0ken%2Fof%2Fsome")
	c.Endpoint.Headers = []webhook.Header{{Name: "X-Api-Key", Value: "k3y-of-some-length"}, {Name: "X-Auth", Value: "Plain p4ssword"}, {Name: "X-Region", Value: "eu-west"}}
	c.Delivery.Trigger = webhook.TriggerTest
	a := w.send(c)
	if got := string(a.Excerpt); got != `no /hook?*** for "***", ***, ***, region eu-west` {
		t.Errorf("%s", got)
	}
	kept, err := json.Marshal(a.Exchange)
	ok(t, err)
	for _, s := range []string{"k3y-of", "t0ken", "p4ssword"} {
		if bytes.Contains(kept, []byte(s)) {
			t.Errorf("%q is kept: %s", s, kept)
		}
	}
}

// A test event shows the whole exchange, credentials masked; other attempts keep none.
func TestExchangeOfATestEvent(t *testing.T) {
	t.Parallel()
	in := newInbox(t, true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "session=s3cret")
		w.Header().Set("Location", "https://a.example/x?token=s3cret")
		w.Header().Set("X-Long", strings.Repeat("x", 3000))
		w.WriteHeader(http.StatusFound)
		_, _ = io.WriteString(w, "go there")
	})
	w := newWire(t, in.roots())
	adjust := func(c *store.Claim) {
		c.Endpoint.URL += "/hook?token=s3cret"
		c.Endpoint.Headers = []webhook.Header{{Name: "X-Api-Key", Value: "s3cret"}, {Name: "X-Region", Value: "eu"}}
	}
	if a := w.send(w.claim(in.URL, adjust)); a.Exchange != nil {
		t.Errorf("an automatic attempt keeps %+v", a.Exchange)
	}
	c := w.claim(in.URL, adjust, w.authenticated(secrets.Credentials{Kind: "bearer", Token: "s3cret-token"}))
	c.Delivery.Trigger = webhook.TriggerTest
	a := w.send(c)
	x := a.Exchange
	if x == nil || x.Response == nil {
		t.Fatalf("%+v", a)
	}
	text, err := json.Marshal(x)
	ok(t, err)
	if strings.Contains(string(text), "s3cret") || len(text) > 64<<10 {
		t.Errorf("%d bytes: %s", len(text), text)
	}
	header := func(hs []webhook.Header, name string) string {
		for _, h := range hs {
			if h.Name == name {
				return h.Value
			}
		}
		return "(absent)"
	}
	for name, want := range map[string]string{"Authorization": "Bearer ***", "X-Api-Key": "***", "X-Region": "eu", "Content-Type": "application/json", "Webhook-Id": c.Event.Key.ID(),
		"Host": strings.TrimPrefix(in.URL, "https://"), "Content-Length": fmt.Sprint(x.Request.BodySize)} {
		if got := header(x.Request.Headers, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if x.Request.Method != "POST" || !strings.HasSuffix(x.Request.URL, "/hook?token=***") || !bytes.Contains(x.Request.Body, []byte(`{"amount": 19.90}`)) || x.Request.Truncated {
		t.Errorf("request %+v", x.Request)
	}
	if x.Response.Status != 302 || header(x.Response.Headers, "Location") != "https://a.example/x?***" || header(x.Response.Headers, "Set-Cookie") != "***" || string(x.Response.Body) != "go there" || len(header(x.Response.Headers, "X-Long")) > 1100 {
		t.Errorf("response %+v", x.Response)
	}
	if x.Protocol != "HTTP/2.0" || x.TLS != "TLS 1.3" || x.RemoteAddr == "" || !x.Reused || x.Timings.FirstByte <= 0 || x.Timings.Sent <= 0 {
		t.Errorf("exchange %+v", x)
	}
	// A fresh connection has all its times, and a failure has no response.
	fresh := newWire(t, nil)
	c = fresh.claim(in.URL)
	c.Delivery.Trigger = webhook.TriggerTest
	if a := fresh.send(c); a.Exchange == nil || a.Exchange.Response != nil || a.Exchange.Error == "" || a.Outcome.Class != webhook.ClassTLS || a.Exchange.Timings.Connected <= 0 || a.Exchange.Timings.TLS != 0 {
		t.Errorf("%+v %+v", a, a.Exchange)
	}
}

// A dispatcher whose own proxy is away has no way out: no attempt is spent.
func TestProxyAwayIsOurs(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	p, err := safedial.ParseProxy(gone.URL)
	ok(t, err)
	in := newInbox(t, false, nil)
	w := newWire(t, nil, func(o *Options) { o.Proxy = p })
	if _, err := w.s.send(t.Context(), w.claim(in.URL)); !errors.Is(err, errNoEgress) || !outage(err) || in.count() != 0 {
		t.Errorf("%v, %d requests", err, in.count())
	}
}
