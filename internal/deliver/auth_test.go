package deliver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// clientPair is a self-signed client certificate in PEM.
func clientPair(t *testing.T, name string, end time.Time) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: end.AddDate(-1, 0, 0), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	ok(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(k)
	ok(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func TestStaticCredentials(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]secrets.Credentials{
		"Basic YWxpY2U6b3BlbjpzZXNhbWU=": {Kind: "basic", Username: "alice", Password: "open:sesame"},
		"Basic YWxpY2U6":                 {Kind: "basic", Username: "alice"},
		"Bearer abc.def":                 {Kind: "bearer", Token: "abc.def"},
		"ApiKey own":                     {}, // the endpoint's own header, which without authentication is free
	} {
		in := newInbox(t, false, nil)
		w := newWire(t, nil)
		claim := w.claim(in.URL)
		if c.Kind != "" {
			w.authenticated(c)(claim)
		} else {
			claim.Endpoint.Headers = []webhook.Header{{Name: "Authorization", Value: "ApiKey own"}}
		}
		w.send(claim)
		if r, _ := in.only(t); r.Header.Get("Authorization") != want {
			t.Errorf("%q, want %q", r.Header.Get("Authorization"), want)
		}
	}
}

// Each endpoint's certificate has connections of its own: no request travels under
// another's, though all go to one host.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	in := newTLSInbox(t, &tls.Config{ClientAuth: tls.RequireAnyClientCert})
	w := newWire(t, in.roots())
	ends := wireStart.AddDate(0, 1, 0)
	var claims []func() *store.Claim
	for _, name := range []string{"one", "two"} {
		cert, key := clientPair(t, name, ends)
		auth := w.authenticated(secrets.Credentials{Kind: "mtls", Certificate: cert, PrivateKey: key})
		sealed := w.claim(in.URL, auth).Endpoint.Auth
		claims = append(claims, func() *store.Claim {
			return w.claim(in.URL, func(c *store.Claim) { c.Endpoint.Auth = sealed })
		})
	}
	var seen []string
	for _, i := range []int{0, 1, 0, 1, 1, 0} {
		a := w.send(claims[i]())
		if a.Outcome.Class != webhook.ClassOK {
			t.Fatalf("%+v", a)
		}
		in.mu.Lock()
		last := in.got[len(in.got)-1]
		seen = append(seen, last.TLS.PeerCertificates[0].Subject.CommonName)
		in.mu.Unlock()
	}
	if want := []string{"one", "two", "one", "two", "two", "one"}; !slices.Equal(seen, want) {
		t.Errorf("the server saw %v, want %v", seen, want)
	}
	// Here both certificates are one endpoint's: the later replaces the earlier.
	if n := len(w.s.certs.by); n != 1 {
		t.Errorf("%d clients are kept", n)
	}
	// Without one the server ends the session: a failure of TLS, unless the reset
	// overtakes the alert.
	if a := w.send(w.claim(in.URL)); a.Outcome.Class == webhook.ClassOK || a.Outcome.Status != 0 || a.Outcome.Class == webhook.ClassTLS && !strings.Contains(a.Error, "certificate required") {
		t.Errorf("without a certificate: %+v", a)
	}
	if n := in.count(); n != 6 {
		t.Errorf("%d requests", n)
	}
}

// newTLSInbox is an inbox over HTTP/2 with TLS settings of its own.
func newTLSInbox(t *testing.T, cfg *tls.Config) *inbox {
	t.Helper()
	in := &inbox{}
	in.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		in.mu.Lock()
		defer in.mu.Unlock()
		in.got, in.body = append(in.got, r), append(in.body, b)
	}))
	in.Config.ErrorLog = log.New(io.Discard, "", 0)
	in.TLS, in.EnableHTTP2 = cfg, true
	in.StartTLS()
	t.Cleanup(in.Close)
	return in
}

// Only so many certificates are kept; the one used longest ago goes first.
func TestCertificatePoolsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWire(t, nil)
	cert, key := clientPair(t, "x", wireStart.AddDate(0, 1, 0))
	c := secrets.Credentials{Kind: "mtls", Certificate: cert, PrivateKey: key}
	name := func(i int) version { return version{tenant: "acme", endpoint: fmt.Sprint(i)} }
	for i := range maxCertClients + 10 {
		_, err := w.s.certs.get(name(i), c, wireStart)
		ok(t, err)
		_, err = w.s.certs.get(name(0), c, wireStart) // in use all the time
		ok(t, err)
	}
	if n := len(w.s.certs.by); n != maxCertClients || w.s.certs.by[name(0)] == nil || w.s.certs.by[name(1)] != nil {
		t.Errorf("%d kept", n)
	}
}

// issuer is a token endpoint.
type issuer struct {
	*inbox
	tokens atomic.Int64
	answer atomic.Pointer[http.HandlerFunc]
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	is := &issuer{}
	is.inbox = newInbox(t, false, func(w http.ResponseWriter, r *http.Request) {
		if f := is.answer.Load(); f != nil {
			(*f)(w, r)
			return
		}
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, is.tokens.Add(1))
	})
	return is
}

func (is *issuer) says(status int, body string) {
	f := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	is.answer.Store(&f)
}

func (is *issuer) credentials() secrets.Credentials {
	return secrets.Credentials{Kind: "oauth2", TokenURL: is.URL + "/token", ClientID: "id with space", ClientSecret: "s3cret/+&="}
}

func TestOAuth2Request(t *testing.T) {
	t.Parallel()
	for _, style := range []string{"", "basic", "post"} {
		is, in := newIssuer(t), newInbox(t, false, nil)
		w := newWire(t, nil)
		cr := is.credentials()
		cr.Style, cr.Scope, cr.Audience = style, "a b", "https://api.example"
		w.send(w.claim(in.URL, w.authenticated(cr)))
		if r, _ := in.only(t); r.Header.Get("Authorization") != "Bearer token-1" {
			t.Errorf("%q", r.Header.Get("Authorization"))
		}
		r, body := is.only(t)
		form, err := url.ParseQuery(string(body))
		ok(t, err)
		want := url.Values{"grant_type": {"client_credentials"}, "scope": {"a b"}, "audience": {"https://api.example"}}
		user, password, basic := r.BasicAuth()
		if style == "post" {
			want.Set("client_id", cr.ClientID)
			want.Set("client_secret", cr.ClientSecret)
		} else if user != "id+with+space" || password != "s3cret%2F%2B%26%3D" { // RFC 6749 section 2.3.1
			t.Errorf("%q: %q %q", style, user, password)
		}
		if form.Encode() != want.Encode() || basic == (style == "post") || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.Header.Get("User-Agent") != "Sealpost/test" {
			t.Errorf("%q: %v %v", style, form, r.Header)
		}
	}
}

// A token is fetched once for all who wait for it, kept until shortly before its end,
// and apart for each version of the credentials.
func TestOAuth2Cache(t *testing.T) {
	t.Parallel()
	is := newIssuer(t)
	in := newInbox(t, false, nil)
	w := newWire(t, nil)
	auth := w.claim(in.URL, w.authenticated(is.credentials())).Endpoint.Auth
	claim := func() *store.Claim {
		return w.claim(in.URL, func(c *store.Claim) { c.Endpoint.Auth = auth })
	}
	const crowd = 20
	release, inside := make(chan struct{}), make(chan struct{}, crowd)
	slow := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		inside <- struct{}{}
		<-release
		fmt.Fprintf(rw, `{"access_token":"token-%d","expires_in":"3600"}`, is.tokens.Add(1))
	})
	is.answer.Store(&slow)
	var wg sync.WaitGroup
	for range crowd {
		c := claim()
		wg.Go(func() {
			if a, err := w.s.send(t.Context(), c); err != nil || a.Outcome.Class != webhook.ClassOK {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	<-inside
	close(release)
	wg.Wait()
	is.answer.Store(nil)
	if n := is.tokens.Load(); n > 2 { // one that came after the flight had ended finds it in the cache
		t.Errorf("%d tokens for %d at once", n, crowd)
	}
	before := is.tokens.Load()
	w.advance(59*time.Minute - time.Second) // a minute before the end it is not used any more
	w.send(claim())
	if is.tokens.Load() != before {
		t.Error("fetched anew before its time")
	}
	w.advance(time.Second)
	w.send(claim())
	if is.tokens.Load() != before+1 {
		t.Error("used beyond its time")
	}
	w.send(w.claim(in.URL, w.authenticated(is.credentials())))
	if is.tokens.Load() != before+2 {
		t.Error("a token outlives the credentials that it was fetched with")
	}
}

// A 401 has the next attempt fetch one token anew. While that is refused as well, it
// is not fetched again and again.
func TestOAuth2Refused(t *testing.T) {
	t.Parallel()
	is := newIssuer(t)
	var refuse atomic.Bool
	in := newInbox(t, false, func(w http.ResponseWriter, _ *http.Request) {
		if refuse.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	w := newWire(t, nil)
	auth := w.claim(in.URL, w.authenticated(is.credentials())).Endpoint.Auth
	send := func() int {
		a := w.send(w.claim(in.URL, func(c *store.Claim) { c.Endpoint.Auth = auth }))
		return a.Outcome.Status
	}
	steps := []struct {
		refuse bool
		tokens int64
	}{{false, 1}, {false, 1}, {true, 1}, {true, 2}, {true, 2}, {true, 3}, {false, 3}, {true, 3}, {false, 4}}
	for i, s := range steps {
		refuse.Store(s.refuse)
		status := send()
		if is.tokens.Load() != s.tokens || (status == 401) != s.refuse {
			t.Errorf("step %d: %d tokens, want %d; status %d", i+1, is.tokens.Load(), s.tokens, status)
		}
	}
}

// A token endpoint that fails is the endpoint's: an attempt with a clear error and the
// class of what happened, no request to the endpoint itself, and nothing of what was
// sent or answered in the error.
func TestOAuth2Failures(t *testing.T) {
	t.Parallel()
	closed := newInbox(t, false, nil)
	closed.Close()
	for _, c := range []struct {
		name   string
		status int
		body   string
		url    string
		class  webhook.Class
		want   string
	}{
		{name: "refused", status: 401, body: `{"error":"invalid_client","error_description":"s3cret"}`, class: webhook.ClassBlocked, want: "answered 401 (invalid_client)"},
		{name: "refused in its own words", status: 400, body: `{"error":"s3cret"}`, class: webhook.ClassBlocked, want: "answered 400"},
		{name: "gone, which is not the endpoint's 410", status: 410, class: webhook.ClassBlocked, want: "answered 410"},
		{name: "redirect", status: 302, class: webhook.ClassBlocked, want: "answered 302"},
		{name: "broken", status: 500, body: "s3cret", class: webhook.ClassBlocked, want: "answered 500"},
		{name: "no JSON", status: 200, body: "<html>s3cret", class: webhook.ClassBlocked, want: "what is no token"},
		{name: "no token", status: 200, body: `{"token_type":"Bearer"}`, class: webhook.ClassBlocked, want: "without a usable access_token"},
		{name: "token that splits the request", status: 200, body: `{"access_token":"s3cret\r\nHost: x"}`, class: webhook.ClassBlocked, want: "without a usable access_token"},
		{name: "another kind of token", status: 200, body: `{"access_token":"s3cret","token_type":"mac"}`, class: webhook.ClassBlocked, want: "not a bearer token"},
		{name: "endless", status: 200, body: strings.Repeat("s3cret", 20_000), class: webhook.ClassBlocked, want: "answered too much"},
		{name: "away", url: closed.URL, class: webhook.ClassConnect, want: "could not connect"},
		{name: "inside", url: "http://10.0.0.1/token", class: webhook.ClassBlocked, want: "private"},
		{name: "metadata", url: "http://169.254.169.254/token?key=s3cret", class: webhook.ClassBlocked, want: "169.254.169.254"},
		{name: "no TLS there", url: "tls", class: webhook.ClassTLS, want: "no TLS session"},
	} {
		is, in := newIssuer(t), newInbox(t, false, nil)
		is.says(c.status, c.body)
		w := newWire(t, nil)
		cr := is.credentials()
		switch {
		case c.url == "tls":
			cr.TokenURL = strings.Replace(is.URL, "http:", "https:", 1)
		case c.url != "":
			cr.TokenURL = c.url
		}
		a, err := w.s.send(t.Context(), w.claim(in.URL, w.authenticated(cr)))
		if err != nil || a.Outcome.Class != c.class || a.Outcome.Status != 0 || !strings.HasPrefix(a.Error, "no OAuth 2 token: ") || !strings.Contains(a.Error, c.want) || a.WroteRequest {
			t.Errorf("%s: %+v, %v", c.name, a, err)
		}
		if strings.Contains(a.Error, "s3cret") || in.count() != 0 {
			t.Errorf("%s: %d requests, %s", c.name, in.count(), a.Error)
		}
	}
}

// A token endpoint that hangs is cut at the attempt's deadline.
func TestOAuth2Hangs(t *testing.T) {
	t.Parallel()
	is, in := newIssuer(t), newInbox(t, false, nil)
	stop := make(chan struct{})
	defer close(stop)
	hang := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
	is.answer.Store(&hang)
	w := newWire(t, nil)
	began := time.Now()
	a := w.send(w.claim(in.URL, w.authenticated(is.credentials()), func(c *store.Claim) { c.Endpoint.Timeout = time.Second }))
	if took := time.Since(began); a.Outcome.Class != webhook.ClassTimeout || took > 4*time.Second || in.count() != 0 {
		t.Errorf("%+v after %s", a, took)
	}
}
