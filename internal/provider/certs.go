package provider

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	errNotHex    = errors.New("secret is not hex")
	errNotShared = errors.New("secret is not a shared one (whsec_)")
	errNotBasic  = errors.New("secret is not user:password")
	errNotPublic = errors.New("secret is neither a public key nor a certificate in PEM")
	errPrivate   = errors.New("secret is a private key; verification needs the public one")
)

// minRSA is the smallest modulus accepted, in bits; the largest bounds the cost.
const (
	minRSA = 2048
	maxRSA = 8192
)

// publicPEM reads a public key or the first certificate of a chain. A certificate
// stands for its key: who configured or fetched it vouches for it.
func publicPEM(text []byte) (crypto.PublicKey, error) {
	block, rest := pem.Decode(text)
	if block == nil {
		return nil, errNotPublic
	}
	for len(rest) > 0 {
		var next *pem.Block
		if next, rest = pem.Decode(rest); next == nil && len(strings.TrimSpace(string(rest))) > 0 {
			return nil, errors.New("something that is no PEM follows the key")
		} else if next != nil && (next.Type != "CERTIFICATE" || block.Type != "CERTIFICATE") {
			return nil, errors.New("secret holds more than one key: make each a version of its own")
		} else if next == nil {
			break
		}
	}
	switch {
	case block.Type == "CERTIFICATE":
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errNotPublic
		}
		return c.PublicKey, nil
	case block.Type == "PUBLIC KEY":
		k, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, errNotPublic
		}
		return k, nil
	case strings.HasSuffix(block.Type, "PRIVATE KEY"):
		return nil, errPrivate
	}
	return nil, errNotPublic
}

// checkDates refuses a certificate before its time and after it. What is no
// certificate has no dates.
func checkDates(text []byte, now time.Time) error {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return errNotPublic
	}
	if now.Before(c.NotBefore) || now.After(c.NotAfter) {
		return errors.New("the certificate is not valid now")
	}
	return nil
}

// rsaKey reads an RSA public key or certificate in PEM.
func rsaKey(secret []byte) (key, error) {
	if blank(secret) {
		return key{}, errBlank
	}
	k, err := publicPEM(secret)
	if err != nil {
		return key{}, err
	}
	public, ok := k.(*rsa.PublicKey)
	if !ok {
		return key{}, errors.New("secret is no RSA key")
	}
	if err := checkRSA(public); err != nil {
		return key{}, err
	}
	return key{alg: rsaSHA256, public: public}, nil
}

func checkRSA(k *rsa.PublicKey) error {
	if n := k.N.BitLen(); n < minRSA || n > maxRSA {
		return errors.New("RSA key is not of 2048 to 8192 bits")
	}
	if k.E < 3 || k.E%2 == 0 {
		return errors.New("RSA key has an unusable exponent")
	}
	return nil
}

// p256Key reads a P-256 public key, as base64 of DER (so SendGrid shows it) or PEM.
func p256Key(secret []byte) (key, error) {
	if blank(secret) {
		return key{}, errBlank
	}
	var k any
	var err error
	text := strings.TrimSpace(string(secret))
	if der, ok := base64DER(text); ok {
		k, err = x509.ParsePKIXPublicKey(der)
	} else {
		k, err = publicPEM(secret)
	}
	if err != nil {
		return key{}, errNotPublic
	}
	public, ok := k.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return key{}, errors.New("secret is no P-256 key")
	}
	return key{alg: ecdsaSHA256, public: public}, nil
}

// paypalCert are the URLs of PayPal's certificates, live and sandbox.
var paypalCert = regexp.MustCompile(`^https://api(\.sandbox)?\.paypal\.com/v1/notifications/certs/[A-Za-z0-9_-]{1,128}$`)

func paypalCertificate(m *message) (string, *Refusal) {
	u, err := m.required("Paypal-Cert-Url")
	if err != nil {
		return "", err
	}
	if !paypalCert.MatchString(u) {
		return "", refuse(Malformed, "the certificate's URL is not one of PayPal's")
	}
	return u, nil
}

// paypalPins refuses to be told the algorithm or another source of certificates.
func paypalPins(m *message) *Refusal {
	algo, err := m.required("Paypal-Auth-Algo")
	if err != nil {
		return err
	}
	if algo != "SHA256withRSA" {
		return refuse(Malformed, "the algorithm is %q, not SHA256withRSA", clip(algo))
	}
	_, err = paypalCertificate(m)
	return err
}

// Where SNS keeps its certificates, and where it is told to start sending: no
// other host, port, user or scheme, and nothing that a parser could read as one.
// AWS's validator takes the same hosts.
var (
	snsCert    = regexp.MustCompile(`^https://sns\.[a-z0-9-]{3,32}\.amazonaws\.com(\.cn)?/[A-Za-z0-9_-]{1,128}\.pem$`)
	snsConfirm = regexp.MustCompile(`^https://sns\.[a-z0-9-]{3,32}\.amazonaws\.com(\.cn)?/\?Action=ConfirmSubscription(&[A-Za-z0-9._~%:+=-]+)*$`)
)

// snsFields are the signed fields by message type, in the order of signing.
// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html
var snsFields = map[string][]string{
	"Notification":             {"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"},
	"SubscriptionConfirmation": {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
	"UnsubscribeConfirmation":  {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
}

var snsAlgorithms = map[string]*algorithm{"1": rsaSHA1, "2": rsaSHA256}

func snsCertificate(m *message) (string, *Refusal) {
	values, clean := pickSigned(m.req.Body, path{"SigningCertURL"})
	u := str(values[0])
	switch {
	case !clean:
		return "", refuse(Ambiguous, "SigningCertURL occurs more than once")
	case u == "":
		return "", refuse(MissingSignature, "the body has no SigningCertURL")
	case !snsCert.MatchString(u):
		return "", refuse(Malformed, "the certificate's URL is not one of SNS")
	}
	return u, nil
}

// snsMessage claims the canonical text of a message. The algorithm is the one that
// SignatureVersion names, and no other; another's signature does not match it.
func snsMessage(m *message) *Refusal {
	if _, err := snsCertificate(m); err != nil {
		return err
	}
	names := []string{"Type", "SignatureVersion", "Signature", "Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn"}
	paths := make([]path, len(names))
	for i, name := range names {
		paths[i] = path{name}
	}
	values, clean := pickSigned(m.req.Body, paths...)
	if !clean {
		return refuse(Ambiguous, "a signed field occurs more than once")
	}
	get := func(name string) (text string, present, ok bool) {
		raw := values[slices.Index(names, name)]
		if len(raw) == 0 || string(raw) == "null" {
			return "", false, true
		}
		return str(raw), true, raw[0] == '"'
	}
	kind, _, _ := get("Type")
	fields, known := snsFields[kind]
	header, err := m.header("X-Amz-Sns-Message-Type")
	switch {
	case err != nil:
		return err
	case !known:
		return refuse(Malformed, "Type is %q", clip(kind))
	case header != "" && header != kind:
		return refuse(Ambiguous, "the header says %q, the body %q", clip(header), kind)
	}
	var head strings.Builder
	for _, name := range fields {
		text, present, ok := get(name)
		switch {
		case !present && name == "Subject":
			continue
		case !present:
			return refuse(MissingSignature, "the body has no %s", name)
		case !ok || (name != "Message" && strings.ContainsAny(text, "\r\n")):
			return refuse(Malformed, "%s is no text of one line", name)
		}
		head.WriteString(name + "\n" + text + "\n")
	}
	version, _, _ := get("SignatureVersion")
	signature, _, _ := get("Signature")
	if signature == "" {
		return refuse(MissingSignature, "the body has no Signature")
	}
	sig, ok := stdBase64.decode(signature)
	alg := snsAlgorithms[version]
	if alg == nil || !ok {
		return refuse(Malformed, "SignatureVersion is not 1 or 2, or Signature not %s", stdBase64)
	}
	m.id, _, _ = get("MessageId")
	m.timestamp, _, _ = get("Timestamp")
	m.claims = []claim{{[]content{{head: []byte(head.String())}}, []candidate{{alg, sig}}}}
	return nil
}

// snsTopic accepts the source's topics only, since SNS signs for whoever has an
// AWS account, and finds the URL that confirms a subscription.
func snsTopic(m *message) *Refusal {
	values := pick(m.req.Body, path{"TopicArn"}, path{"Type"}, path{"SubscribeURL"})
	topic, kind, u := str(values[0]), str(values[1]), str(values[2])
	if !slices.Contains(m.scheme.topics, topic) && !slices.Contains(m.scheme.topics, "*") {
		return refuse(Mismatch, "topic %q is not among the source's topics", clip(topic))
	}
	if kind != "SubscriptionConfirmation" {
		return nil
	}
	if len(u) > 2048 || !snsConfirm.MatchString(u) {
		return refuse(Malformed, "SubscribeURL is not one of SNS")
	}
	m.confirm = u
	return nil
}
