package provider

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
)

// algorithm compares all candidate signatures with one key, in time that depends
// on their number and on the content's length only.
type algorithm struct {
	name string
	// family is set if keys of another algorithm of the same family fit as well.
	family string
	// sum is the signature itself, where the key can make one; else nil.
	sum   func(key []byte, c content) []byte
	match func(k key, c content, sigs [][]byte) bool
}

// takes reports whether a key made for alg fits.
func (a *algorithm) takes(alg *algorithm) bool {
	return a == alg || (a.family != "" && a.family == alg.family)
}

// candidate is one decoded signature of a request and the algorithm it is for.
type candidate struct {
	alg *algorithm
	sig []byte
}

// content is what was signed, in up to three pieces so that a large body is
// never copied for an HMAC.
type content struct{ head, body, tail []byte }

func (c content) size() int { return len(c.head) + len(c.body) + len(c.tail) }

func (c content) bytes() []byte {
	work(c.size())
	b := make([]byte, 0, c.size())
	return append(append(append(b, c.head...), c.body...), c.tail...)
}

// sum names the content: the fallback identity of events without an id.
func (c content) sum() string {
	work(c.size())
	h := sha256.New()
	h.Write(c.head)
	h.Write(c.body)
	h.Write(c.tail)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

var (
	hmacSHA1      = newHMAC("HMAC-SHA1", sha1.New)
	hmacSHA256    = newHMAC("HMAC-SHA256", sha256.New)
	hmacSHA384    = newHMAC("HMAC-SHA384", sha512.New384)
	hmacSHA512    = newHMAC("HMAC-SHA512", sha512.New)
	ed25519Verify = &algorithm{name: "ed25519", match: matchEd25519}
	ecdsaSHA256   = &algorithm{name: "ECDSA P-256 with SHA-256", match: matchECDSA}
	rsaSHA1       = newRSA("RSA with SHA-1", crypto.SHA1)
	rsaSHA256     = newRSA("RSA with SHA-256", crypto.SHA256)
	// secretHash is SHA-256 over secret and content: no HMAC, so that content can be
	// appended by whoever has one signature. What may follow must be checked.
	secretHash = newKeyed("SHA-256 of secret and content", func(key []byte) hash.Hash {
		h := sha256.New()
		h.Write(key)
		return h
	})
	// tokenEqual proves that the sender knows the secret, and nothing else.
	tokenEqual = &algorithm{name: "comparison", match: matchToken}
	// noSignature is of keys that verify none: no candidate is for it.
	noSignature = &algorithm{name: "none", match: func(key, content, [][]byte) bool { return false }}
)

func newHMAC(name string, newHash func() hash.Hash) *algorithm {
	return newKeyed(name, func(key []byte) hash.Hash { return hmac.New(newHash, key) })
}

func newKeyed(name string, start func(key []byte) hash.Hash) *algorithm {
	sum := func(key []byte, c content) []byte {
		work(len(key) + 2*sha256.BlockSize + c.size())
		h := start(key)
		h.Write(c.head)
		h.Write(c.body)
		h.Write(c.tail)
		return h.Sum(nil)
	}
	match := func(k key, c content, sigs [][]byte) bool {
		mac := sum(k.bytes, c)
		matched := 0
		for _, sig := range sigs {
			matched |= subtle.ConstantTimeCompare(mac, sig)
		}
		return matched == 1
	}
	return &algorithm{name: name, sum: sum, match: match}
}

// matchEd25519 relies on crypto/ed25519 for canonical S (RFC 8032, section
// 5.1.7) and on checkEd25519Key for the key.
func matchEd25519(k key, c content, sigs [][]byte) bool {
	message := c.bytes()
	matched := false
	for _, sig := range sigs {
		matched = len(sig) == ed25519.SignatureSize && ed25519.Verify(k.bytes, message, sig) || matched
	}
	return matched
}

// matchECDSA takes strict DER (SEC 1, section C.5).
func matchECDSA(k key, c content, sigs [][]byte) bool {
	public, ok := k.public.(*ecdsa.PublicKey)
	sum := sha256.Sum256(c.bytes())
	matched := false
	for _, sig := range sigs {
		matched = ok && ecdsa.VerifyASN1(public, sum[:], sig) || matched
	}
	return matched
}

// newRSA is RSASSA-PKCS1-v1_5 (RFC 8017, section 8.2).
func newRSA(name string, h crypto.Hash) *algorithm {
	return &algorithm{name: name, family: "RSA", match: func(k key, c content, sigs [][]byte) bool {
		public, ok := k.public.(*rsa.PublicKey)
		d := h.New()
		d.Write(c.bytes())
		sum := d.Sum(nil)
		matched := false
		for _, sig := range sigs {
			matched = ok && rsa.VerifyPKCS1v15(public, h, sum, sig) == nil || matched
		}
		return matched
	}}
}

// matchToken compares hashes, so that not even the secret's length shows in time.
func matchToken(k key, _ content, sigs [][]byte) bool {
	work(len(k.bytes))
	want := sha256.Sum256(k.bytes)
	matched := 0
	for _, sig := range sigs {
		got := sha256.Sum256(sig)
		matched |= subtle.ConstantTimeCompare(want[:], got[:])
	}
	return matched == 1
}

// smallOrder are the y coordinates of the eight points of order 1, 2, 4 and 8,
// little-endian, without the sign of x.
var smallOrder = []string{
	"0000000000000000000000000000000000000000000000000000000000000000",
	"0100000000000000000000000000000000000000000000000000000000000000",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
}

// checkEd25519Key refuses what is no usable public key: a wrong length, a y
// coordinate that is not reduced modulo 2^255-19, and points of small order.
func checkEd25519Key(b []byte) error {
	if len(b) != ed25519.PublicKeySize {
		return fmt.Errorf("public key has %d bytes, want %d", len(b), ed25519.PublicKeySize)
	}
	y := append([]byte(nil), b...)
	y[31] &= 0x7f
	reduced := y[0] < 0xed || y[31] != 0x7f
	for _, c := range y[1:31] {
		reduced = reduced || c != 0xff
	}
	if !reduced {
		return errors.New("public key is not in canonical form")
	}
	text := hex.EncodeToString(y)
	for _, s := range smallOrder {
		if text == s {
			return errors.New("public key has small order")
		}
	}
	return nil
}
