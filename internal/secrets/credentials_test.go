package secrets

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pairOf is a self-signed certificate that ends at the given time, in PEM.
func pairOf(t testing.TB, key crypto.Signer, end time.Time, usage ...x509.ExtKeyUsage) (cert, private string) {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sealpost at acme"}, NotBefore: end.AddDate(-1, 0, 0), NotAfter: end, ExtKeyUsage: usage}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}))
}

func ecKey(t testing.TB) crypto.Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestCredentialsValidate(t *testing.T) {
	t.Parallel()
	k := ecKey(t)
	cert, key := pairOf(t, k, noon.AddDate(0, 1, 0), x509.ExtKeyUsageClientAuth)
	ended, endedKey := pairOf(t, k, noon.Add(-time.Second))
	serverOnly, serverKey := pairOf(t, k, noon.AddDate(0, 1, 0), x509.ExtKeyUsageServerAuth)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	weakCert, weakKey := pairOf(t, weak, noon.AddDate(0, 1, 0))
	oauth := func(change func(*Credentials)) Credentials {
		c := Credentials{Kind: "oauth2", TokenURL: "https://auth.example/token", ClientID: "id", ClientSecret: "s3cret"}
		change(&c)
		return c
	}
	for _, c := range []struct {
		name string
		c    Credentials
		bad  string
	}{
		{"none", Credentials{}, `kind ""`},
		{"unknown", Credentials{Kind: "digest"}, `kind "digest"`},
		{"basic", Credentials{Kind: "basic", Username: "alice", Password: "pass:wörd"}, ""},
		{"basic without password", Credentials{Kind: "basic", Username: "alice"}, ""},
		{"basic without user", Credentials{Kind: "basic", Password: "s3cret"}, "username is empty"},
		{"basic with a colon", Credentials{Kind: "basic", Username: "a:b"}, "username holds a colon"},
		{"basic with a line feed", Credentials{Kind: "basic", Username: "a", Password: "s3cret\n"}, "password holds a control"},
		{"basic and a token", Credentials{Kind: "basic", Username: "a", Token: "s3cret"}, "token is not for basic"},
		{"password of 4096", Credentials{Kind: "basic", Username: "a", Password: strings.Repeat("x", 4096)}, ""},
		{"password of 4097", Credentials{Kind: "basic", Username: "a", Password: strings.Repeat("x", 4097)}, "4097 bytes"},
		{"bearer", Credentials{Kind: "bearer", Token: "abc.DEF_~+/-=|{}"}, ""},
		{"bearer with a space", Credentials{Kind: "bearer", Token: "s3cret x"}, "byte 7"},
		{"bearer with more headers", Credentials{Kind: "bearer", Token: "s3cret\r\nHost:"}, "byte 7"},
		{"bearer without", Credentials{Kind: "bearer"}, "token is empty"},
		{"oauth2", oauth(func(*Credentials) {}), ""},
		{"oauth2 with all", oauth(func(c *Credentials) { c.Scope, c.Audience, c.Style = "a b:c", "https://api", "post" }), ""},
		{"oauth2 no URL", oauth(func(c *Credentials) { c.TokenURL = "auth.example/token" }), "token_url is not an https URL"},
		{"oauth2 userinfo", oauth(func(c *Credentials) { c.TokenURL = "https://u:s3cret@auth.example/" }), "token_url holds a user name"},
		{"oauth2 fragment", oauth(func(c *Credentials) { c.TokenURL = "https://auth.example/#s3cret" }), "token_url holds a fragment"},
		{"oauth2 file", oauth(func(c *Credentials) { c.TokenURL = "file:///s3cret" }), "token_url is not"},
		{"oauth2 scope", oauth(func(c *Credentials) { c.Scope = `a"b` }), "scope must be"},
		{"oauth2 style", oauth(func(c *Credentials) { c.Style = "jwt" }), "style must be basic or post"},
		{"oauth2 nothing", Credentials{Kind: "oauth2"}, "client_secret is empty"},
		{"mtls", Credentials{Kind: "mtls", Certificate: cert, PrivateKey: key}, ""},
		{"mtls of another key", Credentials{Kind: "mtls", Certificate: cert, PrivateKey: weakKey}, "are not a pair"},
		{"mtls nonsense", Credentials{Kind: "mtls", Certificate: "s3cret", PrivateKey: key}, "are not a pair"},
		{"mtls ended", Credentials{Kind: "mtls", Certificate: ended, PrivateKey: endedKey}, "certificate ended on 2026-03-01"},
		{"mtls for servers", Credentials{Kind: "mtls", Certificate: serverOnly, PrivateKey: serverKey}, "not for clients"},
		{"mtls short key", Credentials{Kind: "mtls", Certificate: weakCert, PrivateKey: weakKey}, "1024 bits"},
		{"mtls without key", Credentials{Kind: "mtls", Certificate: cert}, "private_key is empty"},
	} {
		err := c.c.Validate(noon)
		if (err == nil) != (c.bad == "") || err != nil && (!strings.Contains(err.Error(), c.bad) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%s: %v, want %q", c.name, err, c.bad)
		}
	}
}

func TestSealAuth(t *testing.T) {
	t.Parallel()
	s := sealer(t, map[int][]byte{3: freshKeyset(t)})
	cert, key := pairOf(t, ecKey(t), noon.AddDate(0, 1, 0))
	for _, c := range []Credentials{
		{Kind: "basic", Username: "alice", Password: "s3cret"},
		{Kind: "bearer", Token: "s3cret"},
		{Kind: "oauth2", TokenURL: "https://a.example/t", ClientID: "i", ClientSecret: "s3cret", Scope: "a b", Audience: "x", Style: "post"},
		{Kind: "mtls", Certificate: cert, PrivateKey: key},
	} {
		sealed, by, err := s.SealAuth(c, "t", "e", noon)
		if err != nil || by != "3" || bytes.Contains(sealed, []byte("s3cret")) {
			t.Fatalf("%s: %v by %q", c.Kind, err, by)
		}
		got, err := s.OpenAuth(sealed, by, "t", "e")
		if err != nil || got != c {
			t.Errorf("%s: %v", c.Kind, err)
		}
		for name, open := range map[string]func() error{
			"another endpoint": func() error { _, err := s.OpenAuth(sealed, by, "t", "f"); return err },
			"another tenant":   func() error { _, err := s.OpenAuth(sealed, by, "u", "e"); return err },
			"another keyset":   func() error { _, err := s.OpenAuth(sealed, "4", "t", "e"); return err },
			"as a signing key": func() error { _, err := s.Open(sealed, by, "t", "e"); return err },
			"nothing":          func() error { _, err := s.OpenAuth(nil, by, "t", "e"); return err },
		} {
			if open() == nil {
				t.Errorf("%s opens for %s", c.Kind, name)
			}
		}
	}
	if _, _, err := s.SealAuth(Credentials{Kind: "bearer"}, "t", "e", noon); err == nil {
		t.Error("invalid credentials are sealed")
	}
	signingKey, by, err := s.Seal([]byte(`{"kind":"bearer","token":"x"}`), "t", "e")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenAuth(signingKey, by, "t", "e"); err == nil {
		t.Error("a signing key opens as credentials")
	}
}

func TestCredentialsShowNothing(t *testing.T) {
	t.Parallel()
	cert, key := pairOf(t, ecKey(t), noon.AddDate(0, 1, 0))
	for _, c := range []struct {
		c       Credentials
		summary string
	}{
		{Credentials{Kind: "basic", Username: "alice", Password: "s3cret"}, `user "alice"`},
		{Credentials{Kind: "bearer", Token: "s3cret"}, "bearer token"},
		{Credentials{Kind: "oauth2", TokenURL: "https://a.example/t?key=s3cret", ClientID: "i", ClientSecret: "s3cret"}, `client "i" at https://a.example/t`},
		{Credentials{Kind: "mtls", Certificate: cert, PrivateKey: key}, `certificate "CN=sealpost at acme" until 2026-04-01T12:00:00Z`},
	} {
		marshalled, err := json.Marshal(map[string]any{"auth": c.c})
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "auth", c.c, "p", &c.c)
		for _, shown := range []string{fmt.Sprint(c.c), fmt.Sprintf("%v %+v %#v %s %q %x", c.c, c.c, c.c, c.c, c.c, c.c), fmt.Sprintf("%v", &c.c), string(marshalled), log.String(), c.c.Summary()} {
			if strings.Contains(shown, "s3cret") || strings.Contains(shown, "733363726574") || strings.Contains(shown, "PRIVATE") {
				t.Errorf("shown: %s", shown)
			}
		}
		if got := c.c.Summary(); got != c.summary {
			t.Errorf("summary %s, want %s", got, c.summary)
		}
	}
}

func ExampleSealer_SealAuth() {
	ks, _ := NewKeyset()
	s, _ := NewSealer(map[int][]byte{1: ks})
	c := Credentials{Kind: KindBasic, Username: "sealpost", Password: "…"}
	sealed, by, _ := s.SealAuth(c, "acme", "billing", time.Now())
	opened, _ := s.OpenAuth(sealed, by, "acme", "billing")
	fmt.Println(opened, "for", opened.Summary())
	// Output: basic [redacted] for user "sealpost"
}
