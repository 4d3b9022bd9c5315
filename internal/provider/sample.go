package provider

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Sample is what a signed sample request is to say.
type Sample struct {
	ID   string // the event's id; sample-1 if empty
	Type string // the event's type; the scheme's own if empty
	At   time.Time
	// Body replaces the sample body, where the scheme leaves the choice of it.
	Body []byte
	// URL is the source's public URL, for schemes that sign it.
	URL string
}

// Keys are the two halves of a sample's secret: equal, where the secret is shared.
type Keys struct {
	Signing      string // what [Sign] takes
	Verification string // what the source's secret must hold
}

// SampleOptions are options under which the scheme accepts what [Sign] signs,
// beside a tolerance and places of id and type.
func SampleOptions(scheme string) Options {
	switch scheme {
	case genericHMAC:
		return Options{HMAC: &HMAC{Header: "X-Signature", IDHeader: "X-Event-Id", TypePath: "type", TimestampHeader: "X-Timestamp", SignedContent: "{id}.{timestamp}.{body}"}}
	case genericToken:
		return Options{Token: &Token{IDPath: "id", TypePath: "type"}}
	case jwtScheme:
		return Options{JWT: &JWT{Issuer: "https://issuer.example", Audience: "sealpost", BodyClaim: "body_sha256", IDPath: "id", TypePath: "type"}}
	case googleOIDC:
		return Options{JWT: &JWT{Audience: "sealpost", Email: "sender@project.iam.gserviceaccount.com"}}
	case "paypal":
		return Options{WebhookID: "0AB12345CD678901E"}
	case "aws-sns":
		return Options{Topics: []string{sampleTopic}}
	case "meta":
		return Options{VerifyToken: "sample-verify-token"}
	}
	return Options{}
}

const sampleTopic = "arn:aws:sns:us-east-1:123456789012:orders"

// SampleKeys makes a secret of the form that the scheme wants.
func SampleKeys(scheme string) (Keys, error) {
	shared := func(s string) (Keys, error) { return Keys{s, s}, nil }
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	switch scheme {
	case "standard-webhooks", "svix", "gitlab-signing-token":
		return shared("whsec_" + base64.StdEncoding.EncodeToString(b))
	case "standard-webhooks-v1a":
		k := ed25519.NewKeyFromSeed(b)
		return Keys{hex.EncodeToString(b), "whpk_" + base64.StdEncoding.EncodeToString(k.Public().(ed25519.PublicKey))}, nil
	case "discord":
		k := ed25519.NewKeyFromSeed(b)
		return Keys{hex.EncodeToString(b), hex.EncodeToString(k.Public().(ed25519.PublicKey))}, nil
	case jwtScheme, googleOIDC:
		return sampleRSA(func(k *rsa.PublicKey) (string, error) {
			return fmt.Sprintf(`{"keys":[{"kty":"RSA","use":"sig","alg":"RS256","kid":"sample","n":"%s","e":"AQAB"}]}`, urlBase64.encode(k.N.Bytes())), nil
		})
	case "paypal", "aws-sns":
		return sampleRSA(func(k *rsa.PublicKey) (string, error) {
			der, err := x509.MarshalPKIXPublicKey(k)
			return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), err
		})
	case "sendgrid":
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return Keys{}, err
		}
		private, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			return Keys{}, err
		}
		public, err := x509.MarshalPKIXPublicKey(k.Public())
		return Keys{string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})), base64.StdEncoding.EncodeToString(public)}, err
	case "basic":
		return shared("sealpost:" + hex.EncodeToString(b))
	}
	return shared(hex.EncodeToString(b))
}

func sampleRSA(public func(*rsa.PublicKey) (string, error)) (Keys, error) {
	k, err := rsa.GenerateKey(rand.Reader, minRSA)
	if err != nil {
		return Keys{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return Keys{}, err
	}
	text, err := public(&k.PublicKey)
	return Keys{string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})), text}, err
}

// Sign makes the request that a provider would send at now: a sample body with
// the sample's id, type and time, signed with the signing half of a secret. It is
// for tests and demonstrations; the receiver never signs.
//
// x-twitter-crc, which has no events, gives the handshake's GET.
func Sign(scheme string, o Options, secret string, sample Sample, now time.Time) (Request, error) {
	s, err := New(scheme, o)
	if err != nil {
		return Request{}, err
	}
	if sample.At.IsZero() {
		sample.At = now
	}
	sample.ID = first(sample.ID, "sample-1")
	sample.URL = first(sample.URL, "https://hooks.example.com/in/sample")
	r := Request{Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json"}}, URL: sample.URL}
	b := signing{scheme: s, secret: secret, sample: sample, now: now, request: &r}
	if err := b.fillIn(); err != nil {
		return Request{}, fmt.Errorf("sample body of %s: %w", scheme, err)
	}
	if sample.Body != nil {
		r.Body = sample.Body
	}
	if err := b.sign(); err != nil {
		return Request{}, fmt.Errorf("sign a sample of %s: %w", scheme, err)
	}
	if _, query, ok := strings.Cut(r.URL, "?"); ok {
		r.Query, _ = url.ParseQuery(query)
	}
	return r, nil
}

// signing is a sample on its way to being a request.
type signing struct {
	scheme  *Scheme
	secret  string
	sample  Sample
	now     time.Time
	request *Request
}

func (b *signing) set(name, value string) { b.request.Header.Set(name, value) }

// sign adds the signature: by the entry's own fields where a template says what is
// signed, else as the scheme does it.
func (b *signing) sign() error {
	s, r := b.scheme, b.request
	switch s.name {
	case "adyen", "mailgun", "microsoft-graph", "x-twitter-crc", "aws-sns":
		return nil // signed with the body
	case "basic":
		b.set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(b.secret)))
		return nil
	case "docusign":
		b.set("X-DocuSign-Signature-1", stdBase64.encode(hmacSHA256.sum([]byte(b.secret), content{body: r.Body})))
		return nil
	case jwtScheme, googleOIDC:
		return b.token()
	}
	m := message{scheme: s, req: r, now: b.now, timestamp: s.clock.write(b.now), id: b.sample.ID}
	if s.prepare != nil {
		if err := s.prepare(&m); err != nil {
			return err
		}
	}
	sig, err := b.signature(s.fill(&m)[0])
	if err != nil {
		return err
	}
	h := s.headers[0]
	b.set(h.signature, s.syntax.form(m.timestamp, s.encoding.encode(sig)))
	if h.timestamp != "" {
		b.set(h.timestamp, m.timestamp)
	}
	if h.id != "" {
		b.set(h.id, b.sample.ID)
	}
	return nil
}

// signature uses the entry's algorithm: the key's, where the secret is shared.
func (b *signing) signature(c content) ([]byte, error) {
	secret := []byte(b.secret)
	if k, err := b.scheme.key(secret); err == nil && k.alg.sum != nil {
		return k.alg.sum(k.bytes, c), nil
	} else if err == nil && k.alg == tokenEqual {
		return secret, nil
	}
	if seed, err := hex.DecodeString(b.secret); err == nil && len(seed) == ed25519.SeedSize {
		return ed25519.Sign(ed25519.NewKeyFromSeed(seed), c.bytes()), nil
	}
	k, err := privatePEM(secret)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(c.bytes())
	return k.Sign(rand.Reader, sum[:], crypto.SHA256)
}

func privatePEM(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("the signing key is no private key in PEM")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the signing key is not PKCS #8")
	}
	signer, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the signing key signs nothing")
	}
	return signer, nil
}

// token makes a JSON web token with RS256 and the key sample.
func (b *signing) token() error {
	k, err := privatePEM([]byte(b.secret))
	if err != nil {
		return err
	}
	j := b.scheme.jwt
	claims := map[string]any{"iss": first(j.Issuer, googleIssuers[0]), "aud": j.Audience, "iat": b.now.Unix(), "exp": b.now.Add(time.Hour).Unix()}
	if j.Email != "" {
		claims["email"], claims["email_verified"] = j.Email, true
	}
	if j.BodyClaim != "" {
		sum := sha256.Sum256(b.request.Body)
		claims[j.BodyClaim] = hex.EncodeToString(sum[:])
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return err
	}
	input := urlBase64.encode([]byte(`{"alg":"RS256","kid":"sample","typ":"JWT"}`)) + "." + urlBase64.encode(payload)
	sum := sha256.Sum256([]byte(input))
	sig, err := k.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return err
	}
	text := input + "." + urlBase64.encode(sig)
	if h := canonical(j.Header); h != "" && h != "Authorization" {
		b.set(h, text)
	} else {
		b.set("Authorization", "Bearer "+text)
	}
	return nil
}

// snsSample signs a notification with SignatureVersion 2.
func (b *signing) snsSample() (map[string]any, error) {
	body := map[string]any{
		"Type": "Notification", "MessageId": b.sample.ID, "TopicArn": b.scheme.topics[0], "Subject": "Order",
		"Message": `{"order":1042,"state":"paid"}`, "Timestamp": b.now.UTC().Format("2006-01-02T15:04:05.000Z"), "SignatureVersion": "2",
		"SigningCertURL": "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-00000000000000000000000000000000.pem",
	}
	if b.scheme.topics[0] == "*" {
		body["TopicArn"] = sampleTopic
	}
	if b.sample.Type == "SubscriptionConfirmation" {
		delete(body, "Subject")
		body["Type"], body["Token"] = b.sample.Type, "sample-token"
		body["SubscribeURL"] = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=" + sampleTopic + "&Token=sample-token"
	}
	k, err := privatePEM([]byte(b.secret))
	if err != nil {
		return nil, err
	}
	sig, err := k.Sign(rand.Reader, snsDigest(body, crypto.SHA256), crypto.SHA256)
	body["Signature"] = stdBase64.encode(sig)
	return body, err
}

func snsDigest(body map[string]any, h crypto.Hash) []byte {
	var text strings.Builder
	kind, _ := body["Type"].(string)
	for _, name := range snsFields[kind] {
		if v, ok := body[name].(string); ok {
			text.WriteString(name + "\n" + v + "\n")
		}
	}
	if h == crypto.SHA1 {
		sum := sha1.Sum([]byte(text.String()))
		return sum[:]
	}
	sum := sha256.Sum256([]byte(text.String()))
	return sum[:]
}

// SampleTypes names event types that a sample of the scheme can have; the first is
// the default. Any other may be given as well where the provider has free types.
func SampleTypes(scheme string) []string { return slices.Clone(sampleTypes[scheme]) }
