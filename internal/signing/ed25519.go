package signing

import (
	"crypto/ed25519"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// PrivateKey signs v1a entries with ed25519 (RFC 8032). Its text form is whsk_
// and standard base64 of the 64 bytes of seed and public key. The zero
// PrivateKey signs nothing.
type PrivateKey struct {
	key func() ed25519.PrivateKey // see Secret
}

// PublicKey verifies v1a entries. Its text form, which is no secret, is whpk_
// and standard base64 of 32 bytes.
type PublicKey struct{ key [ed25519.PublicKeySize]byte }

// GeneratePrivateKey returns a new key from random, or from crypto/rand if
// random is nil.
func GeneratePrivateKey(random io.Reader) (PrivateKey, error) {
	seed, err := randomBytes(random, ed25519.SeedSize)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("generate a private key: %w", err)
	}
	return PrivateKey{hidden(ed25519.NewKeyFromSeed(seed))}, nil
}

// ParsePrivateKey reads the text form: 64 bytes, or the 32 of the seed alone. A
// public half that does not belong to the seed is refused. Errors never repeat
// the text.
func ParsePrivateKey(text string) (PrivateKey, error) {
	b, err := decode(text, privatePrefix)
	if err != nil {
		return PrivateKey{}, fmt.Errorf("private key: %w", err)
	}
	if len(b) != ed25519.SeedSize && len(b) != ed25519.PrivateKeySize {
		return PrivateKey{}, fmt.Errorf("private key: %d bytes, must be %d or %d", len(b), ed25519.PrivateKeySize, ed25519.SeedSize)
	}
	key := ed25519.NewKeyFromSeed(b[:ed25519.SeedSize])
	// Signing with a foreign public half gives the seed away.
	if len(b) == ed25519.PrivateKeySize && subtle.ConstantTimeCompare(key, b) != 1 {
		return PrivateKey{}, fmt.Errorf("private key: its public half does not belong to it")
	}
	return PrivateKey{hidden(key)}, nil
}

// Public returns the key to give to receivers; the zero PublicKey of the zero
// PrivateKey.
func (k PrivateKey) Public() PublicKey {
	var public PublicKey
	if !k.IsZero() {
		copy(public.key[:], k.key()[ed25519.SeedSize:])
	}
	return public
}

// Reveal returns the text form. Everything else hides it.
func (k PrivateKey) Reveal() string {
	if k.IsZero() {
		return ""
	}
	return privatePrefix + base64.StdEncoding.EncodeToString(k.key())
}

// IsZero reports whether k is the zero PrivateKey.
func (k PrivateKey) IsZero() bool { return k.key == nil }

// String returns a fixed text without the key.
func (k PrivateKey) String() string { return privatePrefix + redacted }

// Format prints what String returns, whatever the verb.
func (k PrivateKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// MarshalText returns what String returns; it cannot be read back.
func (k PrivateKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// LogValue returns what String returns.
func (k PrivateKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

func (k PrivateKey) sign(prefix string, body []byte) (string, error) {
	if k.IsZero() {
		return "", errZeroKey
	}
	signature := ed25519.Sign(k.key(), append([]byte(prefix), body...))
	return "v1a," + base64.StdEncoding.EncodeToString(signature), nil
}

// ParsePublicKey reads the text form.
func ParsePublicKey(text string) (PublicKey, error) {
	b, err := decode(text, publicPrefix)
	if err != nil {
		return PublicKey{}, fmt.Errorf("public key: %w", err)
	}
	if len(b) != ed25519.PublicKeySize {
		return PublicKey{}, fmt.Errorf("public key: %d bytes, must be %d", len(b), ed25519.PublicKeySize)
	}
	return PublicKey{[ed25519.PublicKeySize]byte(b)}, nil
}

// String returns the text form.
func (k PublicKey) String() string {
	return publicPrefix + base64.StdEncoding.EncodeToString(k.key[:])
}

// MarshalText returns the text form.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// VerifyEntry reports whether entry, one "v1a,..." of a signature header, is
// the signature of the message. It judges no timestamp: whoever receives
// requests must also refuse old ones.
func (k PublicKey) VerifyEntry(entry, id string, ts time.Time, body []byte) bool {
	prefix, err := signedPrefix(id, ts)
	if err != nil || k == (PublicKey{}) {
		return false
	}
	signature, err := decode(entry, "v1a,")
	if err != nil || entry != "v1a,"+base64.StdEncoding.EncodeToString(signature) {
		return false // an unusual spelling of the right bytes is refused too
	}
	return ed25519.Verify(k.key[:], append([]byte(prefix), body...), signature)
}
