package secrets

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Kinds of [Credentials].
const (
	KindBasic  = "basic"
	KindBearer = "bearer"
	KindOAuth2 = "oauth2"
	KindMTLS   = "mtls"
)

// Ways in which an OAuth 2 client gives its secret to the token endpoint (RFC 6749
// section 2.3.1).
const (
	OAuth2Basic = "basic" // in the Authorization header; the default
	OAuth2Post  = "post"  // as form fields
)

// Credentials are what an endpoint is authenticated to with, besides signatures.
// Printed, logged or marshalled they show their kind alone; only the methods of
// [Sealer] write them out.
type Credentials struct {
	// Kind says which of the other fields count; all others must be empty.
	Kind string `json:"kind"`

	// Basic authentication, RFC 7617.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`

	// A bearer token, RFC 6750.
	Token string `json:"token,omitempty"`

	// OAuth 2 client credentials, RFC 6749 section 4.4. Scope and Audience may be
	// empty, and Style means [OAuth2Basic] then.
	TokenURL     string `json:"token_url,omitempty"`
	ClientID     string `json:"client_id,omitempty"`
	ClientSecret string `json:"client_secret,omitempty"`
	Scope        string `json:"scope,omitempty"`
	Audience     string `json:"audience,omitempty"`
	Style        string `json:"style,omitempty"`

	// A client certificate with its chain, and its key, in PEM.
	Certificate string `json:"certificate,omitempty"`
	PrivateKey  string `json:"private_key,omitempty"`
}

const (
	maxCredential = 4 << 10 // bytes of one value
	maxPEM        = 16 << 10
)

// Validate reports every fault, none of which quotes a value. now judges a
// certificate: one that has ended is refused. Whether a token URL may be dialled is
// the egress policy's to say.
func (c Credentials) Validate(now time.Time) error {
	own, known := ownFields[c.Kind]
	if !known {
		return fmt.Errorf("authentication of kind %q: must be basic, bearer, oauth2 or mtls", c.Kind)
	}
	var errs []error
	for _, f := range c.fields() {
		switch mine := slices.Contains(own, f.name); {
		case !mine && f.value != "":
			errs = append(errs, fmt.Errorf("%s is not for %s", f.name, c.Kind))
		case mine && f.needed && f.value == "":
			errs = append(errs, fmt.Errorf("%s is empty", f.name))
		case len(f.value) > f.limit:
			errs = append(errs, fmt.Errorf("%s has %d bytes, at most %d are allowed", f.name, len(f.value), f.limit))
		case mine && f.value != "":
			if err := f.check(f.value); err != nil {
				errs = append(errs, fmt.Errorf("%s %w", f.name, err))
			}
		}
	}
	if c.Kind == KindMTLS && len(errs) == 0 {
		if _, err := c.KeyPair(now); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("authentication (%s): %w", c.Kind, errors.Join(errs...))
	}
	return nil
}

var ownFields = map[string][]string{
	KindBasic:  {"username", "password"},
	KindBearer: {"token"},
	KindOAuth2: {"token_url", "client_id", "client_secret", "scope", "audience", "style"},
	KindMTLS:   {"certificate", "private_key"},
}

type field struct {
	name, value string
	needed      bool
	limit       int
	check       func(string) error
}

func (c Credentials) fields() []field {
	return []field{
		{"username", c.Username, true, maxCredential, userID},
		{"password", c.Password, false, maxCredential, printable},
		{"token", c.Token, true, maxCredential, visible},
		{"token_url", c.TokenURL, true, 2048, tokenURL},
		{"client_id", c.ClientID, true, maxCredential, printable},
		{"client_secret", c.ClientSecret, true, maxCredential, printable},
		{"scope", c.Scope, false, maxCredential, scope},
		{"audience", c.Audience, false, maxCredential, printable},
		{"style", c.Style, false, 16, style},
		{"certificate", c.Certificate, true, maxPEM, printableLines},
		{"private_key", c.PrivateKey, true, maxPEM, printableLines},
	}
}

// userID is RFC 7617 section 2: a colon would end it.
func userID(s string) error {
	if strings.Contains(s, ":") {
		return errors.New("holds a colon")
	}
	return printable(s)
}

func printable(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("is not valid UTF-8")
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return errors.New("holds a control character")
		}
	}
	return nil
}

func printableLines(s string) error {
	return printable(strings.NewReplacer("\r", "", "\n", "").Replace(s))
}

// visible is wider than RFC 6750's b64token: what people use as tokens is.
func visible(s string) error {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return fmt.Errorf("must be visible ASCII without spaces: byte %d", i+1)
		}
	}
	return nil
}

// scope is RFC 6749 section 3.3.
func scope(s string) error {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return fmt.Errorf("must be visible ASCII and spaces, without quotes and backslashes: byte %d", i+1)
		}
	}
	return nil
}

func style(s string) error {
	if s != OAuth2Basic && s != OAuth2Post {
		return errors.New("must be basic or post")
	}
	return nil
}

func tokenURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http": // http: the egress policy's to refuse
		return errors.New("is not an https URL")
	case u.User != nil:
		return errors.New("holds a user name or password")
	case u.Fragment != "":
		return errors.New("holds a fragment") // RFC 6749 section 3.2
	}
	return printable(s)
}

// KeyPair is the client certificate, which must belong to its key, be in time at now,
// and be for clients where it says what it is for. Errors quote no value.
func (c Credentials) KeyPair(now time.Time) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(c.Certificate), []byte(c.PrivateKey))
	if err != nil {
		return tls.Certificate{}, errors.New("certificate and private_key are not a pair in PEM") // the cause may quote
	}
	leaf := pair.Leaf
	if leaf == nil {
		if leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return tls.Certificate{}, errors.New("certificate cannot be read")
		}
		pair.Leaf = leaf
	}
	usages := leaf.ExtKeyUsage
	switch {
	case now.After(leaf.NotAfter):
		return tls.Certificate{}, fmt.Errorf("certificate ended on %s", leaf.NotAfter.UTC().Format(time.DateOnly))
	case len(usages) > 0 && !slices.Contains(usages, x509.ExtKeyUsageClientAuth) && !slices.Contains(usages, x509.ExtKeyUsageAny):
		return tls.Certificate{}, errors.New("certificate is not for clients (its extended key usage lacks clientAuth)")
	}
	switch key := pair.PrivateKey.(type) {
	case *rsa.PrivateKey:
		if key.N.BitLen() < 2048 {
			return tls.Certificate{}, fmt.Errorf("private_key has %d bits, must have 2048 or more", key.N.BitLen())
		}
	case *ecdsa.PrivateKey, ed25519.PrivateKey:
	default:
		return tls.Certificate{}, errors.New("private_key is of a kind that TLS does not know")
	}
	return pair, nil
}

// Summary is what may be shown of valid credentials: a user name, a client id and its
// token URL without query, a certificate's subject and end. Never a secret.
func (c Credentials) Summary() string {
	switch c.Kind {
	case KindBasic:
		return fmt.Sprintf("user %q", c.Username)
	case KindBearer:
		return "bearer token"
	case KindOAuth2:
		where := "?"
		if u, err := url.Parse(c.TokenURL); err == nil {
			where = (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
		}
		return fmt.Sprintf("client %q at %s", c.ClientID, where)
	case KindMTLS:
		if pair, err := tls.X509KeyPair([]byte(c.Certificate), []byte(c.PrivateKey)); err == nil && pair.Leaf != nil {
			return fmt.Sprintf("certificate %q until %s", pair.Leaf.Subject.String(), pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
		return "certificate"
	}
	return ""
}

// String returns the kind.
func (c Credentials) String() string { return c.Kind + " [redacted]" }

// Format prints what String returns, whatever the verb.
func (c Credentials) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.String())) }

// MarshalJSON gives the kind alone.
func (c Credentials) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"kind": c.Kind})
}

// LogValue returns what String returns.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// plainCredentials are marshalled in full.
type plainCredentials Credentials

// SealAuth validates credentials and encrypts them for one endpoint, as
// [Sealer.Seal] does a key; neither opens in the other's place.
func (s *Sealer) SealAuth(c Credentials, tenant, endpoint string, now time.Time) (sealed []byte, by string, err error) {
	if err := c.Validate(now); err != nil {
		return nil, "", err
	}
	b, err := json.Marshal(plainCredentials(c))
	if err != nil {
		return nil, "", errors.New("credentials cannot be written") // strings only: cannot fail
	}
	sealed, err = s.byVersion[s.newest].Encrypt(b, associatedAuth(tenant, endpoint))
	if err != nil {
		return nil, "", fmt.Errorf("seal the credentials of %s/%s: %w", tenant, endpoint, err)
	}
	return sealed, s.newest, nil
}

// OpenAuth decrypts what SealAuth gave. It does not validate again: what was good
// then may have ended since, which is the endpoint's fault and no reason not to open.
func (s *Sealer) OpenAuth(sealed []byte, by, tenant, endpoint string) (Credentials, error) {
	a, ok := s.byVersion[by]
	if !ok {
		return Credentials{}, fmt.Errorf("open the credentials of %s/%s: keyset version %q is not loaded", tenant, endpoint, by)
	}
	b, err := a.Decrypt(sealed, associatedAuth(tenant, endpoint))
	if err != nil {
		return Credentials{}, fmt.Errorf("open the credentials of %s/%s: %w", tenant, endpoint, err)
	}
	var c plainCredentials
	if err := json.Unmarshal(b, &c); err != nil {
		return Credentials{}, fmt.Errorf("open the credentials of %s/%s: they are not in their form", tenant, endpoint)
	}
	return Credentials(c), nil
}

func associatedAuth(tenant, endpoint string) []byte {
	return append(associated(tenant, endpoint), "\x00auth"...)
}
