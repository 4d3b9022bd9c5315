package receive

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/schema"
	"github.com/sealpost/sealpost/internal/webhook"
)

func TestContentTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list   []string
		header []string // lines
		want   int
	}{
		{nil, []string{"anything at all"}, 200},
		{[]string{"application/json"}, []string{"application/json"}, 200},
		{[]string{"application/json"}, []string{"Application/JSON; charset=\"utf-8\""}, 200},
		{[]string{"application/json"}, []string{"application/json;charset=utf-8;charset=x"}, 200},
		{[]string{"application/json"}, []string{"application/json ; x"}, 200},
		{[]string{"Application/JSON"}, []string{"application/json"}, 200},
		{[]string{"application/json"}, []string{"application/jsonx"}, 415},
		{[]string{"application/json"}, []string{"text/json"}, 415},
		{[]string{"application/json"}, []string{"text/plain, application/json"}, 415},
		{[]string{"application/json"}, []string{"text/plain; application/json"}, 415},
		{[]string{"application/json"}, []string{"application/json", "application/json"}, 415},
		{[]string{"application/json"}, nil, 415},
		{[]string{"application/json"}, []string{""}, 415},
		{[]string{"application/json", ""}, nil, 200},
		{[]string{"application/json", ""}, []string{""}, 200},
		{[]string{""}, []string{"application/json"}, 415},
		{[]string{"application/*"}, []string{"application/vnd.x+json"}, 200},
		{[]string{"application/*"}, []string{"applications/json"}, 415},
		{[]string{"text/plain", "application/x-www-form-urlencoded"}, []string{"application/x-www-form-urlencoded"}, 200},
	} {
		f := &fake{}
		rc := newReceiver(t, Config{Publisher: f, Sources: []Source{githubSource(func(s *Source) { s.ContentTypes = c.list })}})
		send := func(signature string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/in/gh", strings.NewReader("{}"))
			r.Header.Set("X-Hub-Signature-256", signature)
			if c.header != nil {
				r.Header["Content-Type"] = c.header
			}
			w := httptest.NewRecorder()
			rc.Routes().ServeHTTP(w, r)
			return w
		}
		w := send("sha256=" + mac("key", "{}"))
		if w.Code != c.want || w.Code == 415 && w.Body.String() != "unsupported media type\n" {
			t.Errorf("%q, sent %q: %d %q", c.list, c.header, w.Code, w.Body)
		}
		if forged := send("sha256=" + mac("other", "{}")); forged.Code != 401 {
			t.Errorf("%q, sent %q, forged: %d", c.list, c.header, forged.Code)
		}
		want := "mismatch:1"
		if c.want != 200 {
			want = "content_type:1 " + want
		}
		if got := f.refusals(rc, t); got != want {
			t.Errorf("%q, sent %q: counted %s", c.list, c.header, got)
		}
	}
}

// A source that takes JSON only still answers its provider's handshakes.
func TestHandshakesAreNotAdmitted(t *testing.T) {
	t.Parallel()
	schemas, err := schema.Parse([]byte(`[{"type":"microsoft-graph.handshake","schema":false}]`))
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, "microsoft-graph", func(_ *Config, s *Source) {
		s.ContentTypes, s.AllowTypes, s.Schemas = []string{"application/json"}, []string{"x"}, schemas
	})
	r := provider.Request{Method: "POST", URL: sampleURL + "?validationToken=abc", Header: http.Header{"Content-Type": {"text/plain"}}}
	if w := b.send(r); w.Code != 200 || w.Body.String() != "abc" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	if got := b.fake.counted(b.rc, t); got["src handshake"] != 1 || len(got) != 1 {
		t.Errorf("counted %v", got)
	}
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	schemas, err := schema.Parse([]byte(`[{"type":"invoice.paid","schema":{"type":"object","required":["total"]}}]`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode, event, body string
		status            int
		counted           string
		flags             []string
	}{
		{"", "invoice.paid", `{"total":1}`, 200, "accepted", nil},
		{"", "invoice.paid", `{}`, 400, "invalid_schema", nil},
		{"", "invoice.paid", `total=1`, 400, "invalid_schema", nil},
		{"", "invoice.sent", `total=1`, 200, "accepted", nil},
		{SchemaReject, "invoice.paid", `[]`, 400, "invalid_schema", nil},
		{SchemaFlag, "invoice.paid", `{"total":1}`, 200, "accepted", nil},
		{SchemaFlag, "invoice.paid", `{}`, 200, "accepted_invalid_schema", []string{webhook.FlagInvalidSchema}},
		{SchemaFlag, "invoice.paid", "\x00", 200, "accepted_invalid_schema", []string{webhook.FlagInvalidSchema}},
	} {
		f := &fake{}
		rc := newReceiver(t, Config{Publisher: f, Sources: []Source{githubSource(func(s *Source) { s.Schemas, s.SchemaMode = schemas, c.mode })}})
		w := post(rc, "/in/gh", c.body, "X-GitHub-Event", c.event)
		if w.Code != c.status || c.status == 400 && w.Body.String() != "bad request\n" || f.counted(rc, t)["gh "+c.counted] != 1 {
			t.Errorf("%+v: %d %q, counted %v", c, w.Code, w.Body, f.counted(rc, t))
		}
		if c.status == 200 && (len(f.events) != 1 || !slices.Equal(f.events[0].Flags, c.flags) || string(f.events[0].Body) != c.body) {
			t.Errorf("%+v: published %+v", c, f.events)
		}
		// Whether a payload is what the source wants is told to its provider only.
		if w := post(rc, "/in/gh", c.body, "X-GitHub-Event", c.event, "X-Hub-Signature-256", "sha256="+mac("other", c.body)); w.Code != 401 {
			t.Errorf("%+v, forged: %d", c, w.Code)
		}
	}
}

func hops(n int) *int { return &n }

// The client's address is what the outermost trusted hop wrote, whatever the client
// wrote before it.
func TestAllowCIDRs(t *testing.T) {
	t.Parallel()
	list := []string{"192.0.2.0/24", "198.51.100.7", "2001:db8::/32", "::ffff:203.0.113.0/120"}
	for _, c := range []struct {
		hops int
		peer string
		xff  []string
		want int
	}{
		{0, "192.0.2.9:5000", nil, 200},
		{0, "192.0.3.9:5000", nil, 401},
		{0, "192.0.3.9:5000", []string{"192.0.2.9"}, 401},
		{0, "[::ffff:192.0.2.9]:5000", nil, 200},
		{0, "[2001:db8::1]:5000", nil, 200},
		{0, "[2001:db9::1]:5000", nil, 401},
		{0, "198.51.100.7:1", nil, 200},
		{0, "198.51.100.8:1", nil, 401},
		{0, "203.0.113.255:1", nil, 200},
		{0, "203.0.114.0:1", nil, 401},
		{0, "@", nil, 401},

		{1, "169.254.1.1:1", []string{"192.0.2.9"}, 200},
		{1, "192.0.2.9:1", nil, 401},
		{1, "192.0.2.9:1", []string{""}, 401},
		{1, "169.254.1.1:1", []string{"203.0.114.5, 192.0.2.9"}, 200},
		{1, "169.254.1.1:1", []string{"192.0.2.9, 203.0.114.5"}, 401},
		{1, "169.254.1.1:1", []string{"192.0.2.9,203.0.114.5,"}, 401},
		{1, "169.254.1.1:1", []string{"192.0.2.9", "203.0.114.5"}, 401},
		{1, "169.254.1.1:1", []string{"203.0.114.5", "192.0.2.9"}, 200},
		{1, "169.254.1.1:1", []string{"203.0.114.5, \t192.0.2.9 "}, 200},
		{1, "169.254.1.1:1", []string{"::ffff:192.0.2.9"}, 200},
		{1, "169.254.1.1:1", []string{"2001:db8::1"}, 200},
		{1, "169.254.1.1:1", []string{"2001:db8::1%eth0"}, 401},
		{1, "169.254.1.1:1", []string{"192.0.2.9:4711"}, 200},
		{1, "169.254.1.1:1", []string{"[2001:db8::1]:4711"}, 200},
		{1, "169.254.1.1:1", []string{"unknown"}, 401},
		{1, "169.254.1.1:1", []string{"0300.0.2.9"}, 401},

		{2, "169.254.1.1:1", []string{"192.0.2.9, 203.0.114.5"}, 200},
		{2, "169.254.1.1:1", []string{"203.0.114.5, 192.0.2.9"}, 401},
		{2, "169.254.1.1:1", []string{"192.0.2.9, 203.0.114.5, 203.0.114.6"}, 401},
		{2, "169.254.1.1:1", []string{"192.0.2.9", "203.0.114.5"}, 200},
		{2, "169.254.1.1:1", []string{"192.0.2.9"}, 401},
	} {
		f := &fake{}
		rc := newReceiver(t, Config{Publisher: f, TrustedHops: hops(c.hops), Sources: []Source{githubSource(func(s *Source) { s.AllowCIDRs = list })}})
		r := httptest.NewRequest(http.MethodPost, "/in/gh", strings.NewReader("{}"))
		r.RemoteAddr = c.peer
		r.Header.Set("X-Hub-Signature-256", "sha256="+mac("key", "{}"))
		if c.xff != nil {
			r.Header["X-Forwarded-For"] = c.xff
		}
		w := httptest.NewRecorder()
		rc.Routes().ServeHTTP(w, r)
		if w.Code != c.want || (c.want == 200) != (f.refusals(rc, t) == "") || c.want == 401 && (f.refusals(rc, t) != "address:1" || w.Body.String() != "unauthorized\n") {
			t.Errorf("%d hops, peer %s, %q: %d, counted %s", c.hops, c.peer, c.xff, w.Code, f.refusals(rc, t))
		}
	}
}

// Whoever may not post takes no memory.
func TestStrangersAreNotRead(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, Config{Publisher: &fake{}, TrustedHops: hops(0), Sources: []Source{githubSource(func(s *Source) { s.AllowCIDRs = []string{"192.0.2.0/31"} })}})
	r := httptest.NewRequest(http.MethodPost, "/in/gh", iotestFail{t})
	r.ContentLength = 1 << 20
	r.RemoteAddr = "203.0.113.1:1"
	w := httptest.NewRecorder()
	if rc.Routes().ServeHTTP(w, r); w.Code != 401 || w.Header().Get("Connection") != "close" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

// leaf is a client certificate in the form of RFC 9440.
func leaf(t *testing.T, template x509.Certificate) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	template.NotBefore, template.NotAfter = noon, noon.Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return ":" + base64.StdEncoding.EncodeToString(der) + ":"
}

func TestClientCertificates(t *testing.T) {
	t.Parallel()
	spiffe := &url.URL{Scheme: "spiffe", Host: "example.com", Path: "/client"}
	good := leaf(t, x509.Certificate{Subject: pkix.Name{CommonName: "client", Organization: []string{"Example, Inc."}, Country: []string{"DE"}},
		DNSNames: []string{"client.example.com"}, URIs: []*url.URL{spiffe}})
	other := leaf(t, x509.Certificate{Subject: pkix.Name{CommonName: "client", Organization: []string{"Example"}}, DNSNames: []string{"x.client.example.com"}})
	const dn = `CN=client,O=Example\, Inc.,C=DE`
	for _, c := range []struct {
		name    string
		subject string
		sans    []string
		lines   []string
		want    int
	}{
		{"subject", dn, nil, []string{good}, 200},
		{"other subject", dn, nil, []string{other}, 401},
		{"part of the subject", "CN=client", nil, []string{good}, 401},
		{"DNS name", "", []string{"dns:CLIENT.example.com"}, []string{good}, 200},
		{"subdomain", "", []string{"dns:client.example.com"}, []string{other}, 401},
		{"URI", "", []string{"dns:nope", "uri:spiffe://example.com/client"}, []string{good}, 200},
		{"DNS name as URI", "", []string{"uri:client.example.com"}, []string{good}, 401},
		{"both", dn, []string{"dns:client.example.com"}, []string{good}, 200},
		{"one of both", dn, []string{"dns:other.example.com"}, []string{good}, 401},
		{"no header", dn, nil, nil, 401},
		{"empty header", dn, nil, []string{""}, 401},
		{"two headers", dn, nil, []string{good, good}, 401},
		{"two in one", dn, nil, []string{good + ", " + good}, 401},
		{"no colons", dn, nil, []string{strings.Trim(good, ":")}, 401},
		{"one colon", dn, nil, []string{":"}, 401},
		{"no base64", dn, nil, []string{":!:"}, 401},
		{"no certificate", dn, nil, []string{":AAAA:"}, 401},
		{"cut", dn, nil, []string{good[:len(good)-5] + ":"}, 401},
	} {
		f := &fake{}
		rc := newReceiver(t, Config{Publisher: f, ClientCertHeader: "x-client-cert-leaf", Sources: []Source{githubSource(func(s *Source) { s.MTLSSubject, s.MTLSSANs = c.subject, c.sans })}})
		r := httptest.NewRequest(http.MethodPost, "/in/gh", strings.NewReader("{}"))
		r.Header.Set("X-Hub-Signature-256", "sha256="+mac("key", "{}"))
		if c.lines != nil {
			r.Header["X-Client-Cert-Leaf"] = c.lines
		}
		w := httptest.NewRecorder()
		rc.Routes().ServeHTTP(w, r)
		want := ""
		if c.want != 200 {
			want = "client_cert:1"
		}
		if got := f.refusals(rc, t); w.Code != c.want || got != want {
			t.Errorf("%s: %d, counted %q", c.name, w.Code, got)
		}
		r.Header.Set("X-Hub-Signature-256", "sha256="+mac("other", "{}"))
		r.Body = http.NoBody
		if w := httptest.NewRecorder(); true {
			if rc.Routes().ServeHTTP(w, r); w.Code != 401 { // a certificate is no signature
				t.Errorf("%s, forged: %d", c.name, w.Code)
			}
		}
	}
}

func TestAdmissionSettings(t *testing.T) {
	t.Parallel()
	const secrets = `"secrets":[{"name":"s","versions":[1]}]`
	got, err := ParseSources([]byte(`[{"id":"a","scheme":"github",` + secrets + `,"content_types":["application/json",""],"content_encoding":"signed-encoded",
		"schemas":[{"type":"push","schema":{"type":"object"}}],"schema_mode":"flag","allow_cidrs":["192.0.2.0/24"],"mtls_subject":"CN=a","mtls_san":["dns:a.example"],
		"dedupe":"cel:type + '/' + string(body.id)"}]`))
	if err != nil {
		t.Fatal(err)
	}
	if s := got[0]; fmt.Sprintf("%q", []any{s.ContentTypes, s.ContentEncoding, s.SchemaMode, s.AllowCIDRs, s.MTLSSubject, s.MTLSSANs}) != `[["application/json" ""] "signed-encoded" "flag" ["192.0.2.0/24"] "CN=a" ["dns:a.example"]]` ||
		s.Schemas.Check("push", []byte("1")) == "" || s.Dedupe != "cel:type + '/' + string(body.id)" {
		t.Errorf("%+v", s)
	}
	for setting, want := range map[string]string{
		`"content_types":[]`:                                               "content_types: is empty",
		`"content_types":["json"]`:                                         "content_types: \"json\"",
		`"content_types":["*/*"]`:                                          "content_types",
		`"content_types":["application/json; charset=utf-8"]`:              "without parameters",
		`"content_types":"application/json"`:                               "content_types: wants an array",
		`"content_encoding":"gzip"`:                                        "content_encoding: \"gzip\" is none of",
		`"schemas":{}`:                                                     "schemas: ",
		`"schemas":[{"type":"a","schema":{"$ref":"https://x.example/s"}}]`: "only references within",
		`"schemas":[{"type":"a","schema":{"type":"thing"}}]`:               "schemas: ",
		`"schema_mode":"flag"`:                                             "schema_mode: there are no schemas",
		`"schemas":[{"type":"a","schema":true}],"schema_mode":"drop"`:      "schema_mode: \"drop\" is neither",
		`"allow_cidrs":[]`:                                                 "allow_cidrs: is empty",
		`"allow_cidrs":["192.0.2.7/24"]`:                                   "has host bits; write 192.0.2.0/24",
		`"allow_cidrs":["192.0.2.0/33"]`:                                   "allow_cidrs: \"192.0.2.0/33\"",
		`"allow_cidrs":["example.com"]`:                                    "allow_cidrs: \"example.com\"",
		`"allow_cidrs":["fe80::1%eth0"]`:                                   "allow_cidrs",
		`"allow_cidrs":["::ffff:0:0/90"]`:                                  "write those as IPv4",
		`"mtls_san":[]`:                                                    "mtls_san: is empty",
		`"mtls_san":["a.example"]`:                                         "begins with neither dns: nor uri:",
		`"mtls_san":["dns:*.example"]`:                                     "there are no patterns",
		`"dedupe":"cel:"`:                                                  "dedupe: expression is empty",
		`"dedupe":"cel:bdy.id"`:                                            "dedupe: line 1, column 1: undeclared reference to 'bdy'",
		`"dedupe":"cel:size(id)"`:                                          "dedupe: line 1, column 1: the expression gives a int",
		`"dedupe":"CEL:id"`:                                                "dedupe: \"CEL:id\" is neither",
	} {
		_, err := ParseSources([]byte(`[{"id":"a","scheme":"github",` + secrets + `,` + setting + `}]`))
		if err == nil || !strings.Contains(err.Error(), `source "a": `) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", setting, err)
		}
	}
	if _, err := ParseSources([]byte(`[{"id":"a","scheme":"mailgun",` + secrets + `,"content_encoding":"signed-encoded"}]`)); err == nil || !strings.Contains(err.Error(), "content_encoding: scheme mailgun reads the body") {
		t.Errorf("%v", err)
	}
	// All at once, each with its source and field.
	_, err = ParseSources([]byte(`[{"id":"a","scheme":"github",` + secrets + `,"content_types":["x"],"allow_cidrs":["x"],"mtls_san":["x"],"dedupe":"cel:x","schema_mode":"x","content_encoding":"x"},{"id":"b","scheme":"x",` + secrets + `}]`))
	for _, want := range []string{"content_types", "allow_cidrs", "mtls_san", "dedupe", "schema_mode", "content_encoding", `source "b": scheme`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	for want, s := range map[string]Source{
		"allow_cidrs: the receiver is not told":            githubSource(func(s *Source) { s.AllowCIDRs = []string{"192.0.2.1"} }),
		"mtls_subject, mtls_san: the receiver is not told": githubSource(func(s *Source) { s.MTLSSubject = "CN=a" }),
	} {
		if _, err := New(Config{Publisher: &fake{}, Sources: []Source{s}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}
