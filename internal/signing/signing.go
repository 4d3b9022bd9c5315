// Package signing owns outgoing signatures after Standard Webhooks 1.0.0: the
// secrets, the keys and the three headers; and, for receivers that verify another
// scheme still, signature headers by [Template]. It signs the exact bytes of the body
// and nothing else.
//
// It refuses secrets outside the specification's 24 to 64 bytes and message ids
// that would make the signed text ambiguous. Its types show no secret when
// printed, logged or marshalled; only Reveal does. Verifying inbound requests,
// with tolerances and replays, is not its task.
package signing

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of Standard Webhooks. HTTP header names are case-insensitive.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

// maxID bounds a message id, in bytes.
const maxID = 256

// Key is what a message can be signed with: a [Secret] (v1, HMAC-SHA256) or a
// [PrivateKey] (v1a, ed25519).
type Key interface {
	// sign returns one entry of the signature header.
	sign(prefix string, body []byte) (string, error)
}

// Sign returns the value of the signature header: one entry per key, in the
// order given, separated by spaces. Give the newest key first. While two keys
// are valid, sign with both, so that receivers can change over at any moment.
// For keys of both kinds in one header pass a []Key.
//
// id must be 1 to 256 visible ASCII characters without a dot, which separates
// the parts of the signed text. ts is cut to whole seconds and must be after
// 1970. body may be empty. At least one key is needed.
func Sign[K Key](id string, ts time.Time, body []byte, keys ...K) (string, error) {
	prefix, err := signedPrefix(id, ts)
	if err != nil {
		return "", err
	}
	if len(keys) == 0 {
		return "", fmt.Errorf("sign %s: no key", id)
	}
	entries := make([]string, len(keys))
	for i, k := range keys {
		if entries[i], err = k.sign(prefix, body); err != nil {
			return "", fmt.Errorf("sign %s: %w", id, err)
		}
	}
	return strings.Join(entries, " "), nil
}

// SetHeaders signs as [Sign] does and sets the three headers in h. After an
// error h is as it was.
func SetHeaders[K Key](h http.Header, id string, ts time.Time, body []byte, keys ...K) error {
	signature, err := Sign(id, ts, body, keys...)
	if err != nil {
		return err
	}
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, strconv.FormatInt(ts.Unix(), 10))
	h.Set(HeaderSignature, signature)
	return nil
}

// signedPrefix returns what stands before the body in the signed text.
func signedPrefix(id string, ts time.Time) (string, error) {
	if id == "" || len(id) > maxID {
		return "", fmt.Errorf("message id of %d bytes: must have 1 to %d", len(id), maxID)
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == '.' {
			return "", fmt.Errorf("message id %q: must be visible ASCII without a dot", id)
		}
	}
	if ts.Unix() <= 0 {
		return "", fmt.Errorf("sign %s: the timestamp %d is not after 1970", id, ts.Unix())
	}
	return id + "." + strconv.FormatInt(ts.Unix(), 10) + ".", nil
}

var errZeroKey = errors.New("the key is empty")

func (s Secret) sign(prefix string, body []byte) (string, error) {
	if s.IsZero() {
		return "", errZeroKey
	}
	mac := hmac.New(sha256.New, s.key())
	mac.Write([]byte(prefix))
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)), nil
}
