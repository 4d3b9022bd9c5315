package provider

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Secret is one version of what a source shares with its provider: a text, an
// encoded key or a public key, whichever the scheme wants. Several secrets of
// one source are a rotation; each is tried.
//
// It prints as its label, whatever the verb, and marshals as its label.
type Secret struct {
	name    string
	version int
	value   []byte
}

// NewSecret names a secret's version. The value is taken as it is: whether a
// trailing newline belongs to it is not for us to guess ([Explain] notices one).
func NewSecret(name string, version int, value []byte) Secret {
	return Secret{name: name, version: version, value: value}
}

// Name is the name by which the secret was read.
func (s Secret) Name() string { return s.name }

// Version is the number by which the secret was read.
func (s Secret) Version() int { return s.version }

// String is the secret's name and version, never its value.
func (s Secret) String() string { return fmt.Sprintf("%s/%d", s.name, s.version) }

// Format implements [fmt.Formatter]: no verb shows the value.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps the value out of JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// key is a secret made ready for one algorithm.
type key struct {
	alg    *algorithm
	bytes  []byte
	public crypto.PublicKey // of RSA and ECDSA
	set    []jwk            // of JSON web tokens
}

var errBlank = errors.New("secret is blank")

// keyRule makes a secret's text a key, or says why it cannot be one. The errors
// never quote the secret.
type keyRule func(secret []byte) (key, error)

// textKey uses the text itself, to the byte: Stripe's whsec_… included.
func textKey(alg *algorithm) keyRule {
	return func(secret []byte) (key, error) {
		if blank(secret) {
			return key{}, errBlank
		}
		return key{alg: alg, bytes: secret}, nil
	}
}

// standardKey reads the secrets of Standard Webhooks: whsec_ (or no prefix) and
// base64 of an HMAC key, whpk_ and base64 of an ed25519 public key. Padding may
// be missing and surrounding space is ignored: neither changes the key.
func standardKey(secret []byte) (key, error) {
	text := strings.TrimSpace(string(secret))
	switch {
	case blank(secret):
		return key{}, errBlank
	case strings.HasPrefix(text, "whpk_"):
		return publicKey(secret)
	case strings.HasPrefix(text, "whsk_"):
		return key{}, errors.New("secret is a private signing key (whsk_); verification needs the public one (whpk_)")
	}
	b, err := decodeKey(strings.TrimPrefix(text, "whsec_"))
	if err != nil {
		return key{}, err
	}
	if blank(b) {
		return key{}, errBlank
	}
	return key{alg: hmacSHA256, bytes: b}, nil
}

// publicKey reads whpk_ (or no prefix) and base64 of an ed25519 public key.
// Keys of small order are refused: some signature verifies under them for every
// message.
func publicKey(secret []byte) (key, error) {
	text := strings.TrimSpace(string(secret))
	switch {
	case blank(secret):
		return key{}, errBlank
	case strings.HasPrefix(text, "whsec_"), strings.HasPrefix(text, "whsk_"):
		return key{}, errors.New("secret is not a public key (whpk_)")
	}
	b, err := decodeKey(strings.TrimPrefix(text, "whpk_"))
	if err != nil {
		return key{}, err
	}
	if err := checkEd25519Key(b); err != nil {
		return key{}, err
	}
	return key{alg: ed25519Verify, bytes: b}, nil
}

func decodeKey(text string) ([]byte, error) {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		return nil, errors.New("secret is not base64 after its prefix")
	}
	return b, nil
}

// blank reports whether a secret is no secret. HMAC pads keys with zero bytes,
// so that a key of zeros is the empty key; prefixes alone hold no key.
func blank(b []byte) bool {
	t := bytes.Trim(bytes.TrimSpace(b), "\x00 \t\r\n")
	switch string(t) {
	case "", "whsec_", "whpk_", "whsk_":
		return true
	}
	return false
}
