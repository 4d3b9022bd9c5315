package signing

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// The text forms' prefixes, and the sizes of a symmetric secret in bytes.
const (
	secretPrefix  = "whsec_"
	privatePrefix = "whsk_"
	publicPrefix  = "whpk_"

	minSecret      = 24
	maxSecret      = 64
	generatedBytes = 32
)

// Secret is a symmetric signing secret of 24 to 64 bytes. Its text form is
// whsec_ and standard base64. The zero Secret signs nothing.
type Secret struct {
	// A function, because fmt prints what an unexported field of somebody else's
	// struct holds or points to without asking the type how (for a pointer: with
	// %s and other verbs that do not fit one). Of a function it prints the address.
	key func() []byte
}

func hidden[T any](v T) func() T { return func() T { return v } }

// GenerateSecret returns a new secret of 32 bytes from random, or from
// crypto/rand if random is nil.
func GenerateSecret(random io.Reader) (Secret, error) {
	key, err := randomBytes(random, generatedBytes)
	if err != nil {
		return Secret{}, fmt.Errorf("generate a signing secret: %w", err)
	}
	return Secret{hidden(key)}, nil
}

func randomBytes(random io.Reader, n int) ([]byte, error) {
	if random == nil {
		random = rand.Reader
	}
	b := make([]byte, n)
	_, err := io.ReadFull(random, b)
	return b, err
}

// ParseSecret reads the text form. The base64 must be of the standard alphabet,
// without line breaks or stray bits; its padding may be missing. Errors say
// what is wrong and never repeat the text.
func ParseSecret(text string) (Secret, error) {
	key, err := decode(text, secretPrefix)
	if err != nil {
		return Secret{}, fmt.Errorf("signing secret: %w", err)
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return Secret{}, fmt.Errorf("signing secret: %d bytes, must be %d to %d", len(key), minSecret, maxSecret)
	}
	return Secret{hidden(key)}, nil
}

// decode reads prefix and base64. Its errors hold nothing of text.
func decode(text, prefix string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, prefix)
	switch {
	case !ok && strings.TrimSpace(text) != text:
		return nil, errors.New("has white space around it")
	case !ok:
		return nil, fmt.Errorf("must begin with %s", prefix)
	case encoded == "":
		return nil, fmt.Errorf("nothing follows %s", prefix)
	// The decoder would skip line breaks, and say nothing.
	case strings.ContainsAny(encoded, " \t\r\n"):
		return nil, errors.New("has white space in it")
	case strings.ContainsAny(encoded, "-_"):
		return nil, errors.New("is in the URL-safe base64 alphabet, must be in the standard one (+ and /)")
	}
	encoding := base64.StdEncoding
	if !strings.HasSuffix(encoded, "=") {
		encoding = base64.RawStdEncoding
	}
	key, err := encoding.Strict().DecodeString(encoded)
	if err != nil {
		return nil, fmt.Errorf("what follows %s is not base64", prefix)
	}
	return key, nil
}

// Reveal returns the text form, padded. Everything else hides it.
func (s Secret) Reveal() string {
	if s.IsZero() {
		return ""
	}
	return secretPrefix + base64.StdEncoding.EncodeToString(s.key())
}

// IsZero reports whether s is the zero Secret.
func (s Secret) IsZero() bool { return s.key == nil }

// Equal compares in constant time. A zero Secret equals nothing.
func (s Secret) Equal(other Secret) bool {
	return !s.IsZero() && !other.IsZero() && subtle.ConstantTimeCompare(s.key(), other.key()) == 1
}

const redacted = "[redacted]"

// String returns a fixed text without the secret.
func (s Secret) String() string { return secretPrefix + redacted }

// Format prints what String returns, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText returns what String returns; it stands for the secret in logs and
// JSON and cannot be read back.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
