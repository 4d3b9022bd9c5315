package provider

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
)

// JWT are the settings of the schemes jwt and google-oidc, and of microsoft-graph
// where rich notifications are to be verified: whose tokens are accepted, and for whom.
type JWT struct {
	Header string // holds the token; Authorization, after Bearer, by default
	// Issuer is iss; required for jwt, fixed for google-oidc. For microsoft-graph it is the
	// tenant's id; empty takes every tenant that has the app.
	Issuer   string
	Audience string // aud, or one of several; required. The app's id for microsoft-graph.
	// Email is the service account that google-oidc accepts; required there, since
	// any Google account can have a token made for any audience.
	Email string
	// BodyClaim names a claim that holds the SHA-256 of the body, in hex or base64url.
	// Without it the token says who sends, not what.
	BodyClaim string

	// The event's id and type, as in [HMAC]; for jwt only.
	IDHeader, IDPath     string
	TypeHeader, TypePath string
}

// Google's keys, and how its tokens name their issuer.
// https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions
const googleCerts = "https://www.googleapis.com/oauth2/v3/certs"

var googleIssuers = []string{"https://accounts.google.com", "accounts.google.com"}

// leeway is how far expiry may lie behind our clock, where no tolerance applies.
const leeway = time.Minute

func (j JWT) entry(e entry) (entry, []string) {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf("jwt."+format, args...)) }
	if j.Audience == "" {
		fault("audience: is missing: a token made for someone else would do")
	}
	if e.name == microsoftGraph {
		return j.graph(e, faults)
	}
	switch google := e.name == googleOIDC; {
	case google && j.Email == "":
		fault("email: is missing: any Google account can have a token for this audience")
	case google && (j.Issuer != "" || j.IDHeader+j.IDPath+j.TypeHeader+j.TypePath != ""):
		fault("issuer: this and the places of id and type are fixed for %s", e.name)
	case !google && j.Email != "":
		fault("email: this setting is for %s only", googleOIDC)
	case !google && j.Issuer == "":
		fault("issuer: is missing")
	}
	if j.Header != "" && !token(j.Header) {
		fault("header: %q cannot be a header's name", clip(j.Header))
	}
	if e.name == googleOIDC {
		return e, faults
	}
	h := HMAC{Header: "Authorization", IDHeader: j.IDHeader, IDPath: j.IDPath, TypeHeader: j.TypeHeader, TypePath: j.TypePath}
	g, more := h.entry(e)
	for _, f := range more {
		faults = append(faults, "jwt"+strings.TrimPrefix(f, "hmac"))
	}
	e.id, e.typ = g.id, g.typ
	return e, faults
}

// jwk is a public key of a set and the algorithms that it may be used with.
type jwk struct {
	kid    string
	algs   []string
	public crypto.PublicKey
}

// jwtSignature verifies a JSON web signature (RFC 7515). The token only names a
// key: what algorithm it is for, the key says (RFC 8725, section 3.1).
var jwtSignature = &algorithm{name: "JSON web signature", match: matchJWT}

const (
	maxKeys      = 32
	maxTokenPart = 8 << 10
)

// jwksKey reads a JSON web key set (RFC 7517) of public keys. Symmetric and private
// keys, keys for encryption and two keys of one name are refused: nothing that
// the sender's public side does not need may be in a source's secret.
func jwksKey(secret []byte) (key, error) {
	if blank(secret) {
		return key{}, errBlank
	}
	var doc struct {
		Keys []struct {
			Kty, Use, Kid, Alg, Crv, N, E, X, Y, D, K string
			KeyOps                                    []string `json:"key_ops"`
		}
	}
	if err := json.Unmarshal(secret, &doc); err != nil || len(doc.Keys) == 0 || len(doc.Keys) > maxKeys {
		return key{}, errors.New("secret is no JSON web key set")
	}
	k := key{alg: jwtSignature}
	for _, j := range doc.Keys {
		if j.D != "" || j.K != "" || j.Kty == "oct" {
			return key{}, errors.New("the key set holds a private or symmetric key")
		}
		if (j.Use != "" && j.Use != "sig") || (j.KeyOps != nil && !slices.Contains(j.KeyOps, "verify")) {
			continue // for encryption
		}
		one := jwk{kid: j.Kid}
		var err error
		switch j.Kty {
		case "RSA":
			one.algs = []string{"RS256", "RS384", "RS512"}
			one.public, err = rsaJWK(j.N, j.E)
		case "EC":
			one.algs, one.public, err = ecJWK(j.Crv, j.X, j.Y)
		case "OKP":
			one.algs = []string{"EdDSA", "Ed25519"} // the older and the newer name, RFC 9864
			one.public, err = edJWK(j.Crv, j.X)
		default:
			err = errors.New("unknown type")
		}
		if err != nil {
			return key{}, fmt.Errorf("key set: a key of type %q is unusable: %w", clip(j.Kty), err)
		}
		if j.Alg != "" {
			if !slices.Contains(one.algs, j.Alg) {
				return key{}, fmt.Errorf("key set: algorithm %q does not fit its key", clip(j.Alg))
			}
			one.algs = []string{j.Alg}
		}
		if slices.ContainsFunc(k.set, func(o jwk) bool { return o.kid == one.kid }) {
			return key{}, errors.New("key set: two keys have the same kid")
		}
		k.set = append(k.set, one)
	}
	if len(k.set) == 0 {
		return key{}, errors.New("key set: no key is for signatures")
	}
	return k, nil
}

func rsaJWK(n, e string) (crypto.PublicKey, error) {
	nb, ok1 := jwkBytes(n)
	eb, ok2 := jwkBytes(e)
	if !ok1 || !ok2 || len(eb) > 4 {
		return nil, errors.New("n or e is not base64url")
	}
	exponent := new(big.Int).SetBytes(eb).Int64()
	if exponent > 1<<31-1 {
		return nil, errors.New("e is too large")
	}
	k := &rsa.PublicKey{N: new(big.Int).SetBytes(nb), E: int(exponent)}
	return k, checkRSA(k)
}

func ecJWK(crv, x, y string) ([]string, crypto.PublicKey, error) {
	curve, alg := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[crv],
		map[string]string{"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}[crv]
	if curve == nil {
		return nil, nil, errors.New("unknown curve")
	}
	size := (curve.Params().BitSize + 7) / 8
	xb, ok1 := jwkBytes(x)
	yb, ok2 := jwkBytes(y)
	if !ok1 || !ok2 || len(xb) != size || len(yb) != size {
		return nil, nil, errors.New("x or y has the wrong size")
	}
	k, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, xb, yb))
	return []string{alg}, k, err
}

func edJWK(crv, x string) (crypto.PublicKey, error) {
	b, ok := jwkBytes(x)
	if crv != "Ed25519" || !ok {
		return nil, errors.New("it is not Ed25519")
	}
	return ed25519.PublicKey(b), checkEd25519Key(b)
}

func jwkBytes(text string) ([]byte, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return b, err == nil && len(b) > 0 && !strings.ContainsAny(text, "\r\n")
}

// jwtToken claims the token of the request.
func jwtToken(m *message) *Refusal {
	text, err := m.bearer()
	if err != nil {
		return err
	}
	c, claims, err := jwtClaim(text)
	if err != nil {
		return err
	}
	m.payload = claims
	m.timestamp = scalar(pick(claims, claimPaths...)[0])
	m.claims = []claim{c}
	return nil
}

// jwtClaim reads a token. Its header may name one key and one algorithm, and may
// demand nothing: an extension marked critical is refused (RFC 7515, section
// 4.1.11).
func jwtClaim(text string) (c claim, claims []byte, err *Refusal) {
	parts := strings.Split(text, ".")
	if len(text) > maxTokenPart || len(parts) != 3 {
		return c, nil, refuse(Malformed, "no token of three parts, or one of more than %d bytes", maxTokenPart)
	}
	head, ok1 := jwkBytes(parts[0])
	claims, ok2 := jwkBytes(parts[1])
	sig, ok3 := jwkBytes(parts[2])
	if !ok1 || !ok2 || !ok3 {
		return c, nil, refuse(Malformed, "a part of the token is not base64url")
	}
	values, clean := pickSigned(head, path{"alg"}, path{"kid"}, path{"crit"})
	_, once := pickSigned(claims, claimPaths...)
	switch {
	case !clean || !once:
		return c, nil, refuse(Ambiguous, "a field of the token occurs more than once")
	case values[2] != nil:
		return c, nil, refuse(Malformed, "the token has critical extensions")
	case str(values[0]) == "" || strings.EqualFold(str(values[0]), "none"):
		return c, nil, refuse(Malformed, "the token names no algorithm")
	}
	return claim{[]content{{head: []byte(parts[0] + "." + parts[1])}}, []candidate{{jwtSignature, sig}}}, claims, nil
}

func (m *message) bearer() (string, *Refusal) {
	name := canonical(m.scheme.jwt.Header)
	if name == "" || name == "Authorization" {
		return m.authorization("Bearer")
	}
	return m.required(name)
}

// matchJWT takes the content that jwtToken made.
func matchJWT(k key, c content, sigs [][]byte) bool {
	part, _, _ := strings.Cut(string(c.head), ".")
	head, _ := jwkBytes(part)
	values := pick(head, path{"alg"}, path{"kid"})
	alg, kid := str(values[0]), str(values[1])
	i := slices.IndexFunc(k.set, func(j jwk) bool { return j.kid == kid })
	if kid == "" && len(k.set) > 1 {
		i = -1 // which of them is meant?
	}
	if i < 0 || !slices.Contains(k.set[i].algs, alg) {
		return false
	}
	matched := false
	for _, sig := range sigs {
		matched = k.set[i].verify(alg, c.head, sig) || matched
	}
	return matched
}

var jwtHashes = map[string]crypto.Hash{"256": crypto.SHA256, "384": crypto.SHA384, "512": crypto.SHA512}

// verify is RFC 7518, section 3, and RFC 8037, section 3.1.
func (j jwk) verify(alg string, message, sig []byte) bool {
	if k, ok := j.public.(ed25519.PublicKey); ok {
		return len(sig) == ed25519.SignatureSize && ed25519.Verify(k, message, sig)
	}
	h := jwtHashes[alg[2:]]
	d := h.New()
	d.Write(message)
	sum := d.Sum(nil)
	switch k := j.public.(type) {
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(k, h, sum, sig) == nil
	case *ecdsa.PublicKey:
		size := (k.Params().BitSize + 7) / 8
		if len(sig) != 2*size {
			return false
		}
		return ecdsa.Verify(k, sum, new(big.Int).SetBytes(sig[:size]), new(big.Int).SetBytes(sig[size:]))
	}
	return false
}

var claimPaths = []path{{"iat"}, {"exp"}, {"nbf"}, {"iss"}, {"aud"}, {"email"}, {"email_verified"}, {"tid"}, {"appid"}, {"azp"}}

// jwtClaims holds the claims of an authentic token against the settings. Its age
// has been judged by iat.
func jwtClaims(m *message) *Refusal {
	j := m.scheme.jwt
	if err := m.registered([]string{j.Issuer}, false, 0); err != nil {
		return err
	}
	if j.BodyClaim == "" {
		return nil
	}
	values, clean := pickSigned(m.payload, path{j.BodyClaim})
	got, sum := str(values[0]), sha256.Sum256(m.req.Body)
	same := subtle.ConstantTimeCompare([]byte(got), []byte(lowerHex.encode(sum[:]))) |
		subtle.ConstantTimeCompare([]byte(got), []byte(urlBase64.encode(sum[:])))
	if !clean || same != 1 {
		return refuse(Mismatch, "claim %q is not the hash of the body", clip(j.BodyClaim))
	}
	return nil
}

func googleClaims(m *message) *Refusal {
	if err := m.registered(googleIssuers, true, leeway); err != nil {
		return err
	}
	values := pick(m.payload, claimPaths...)
	if str(values[5]) != m.scheme.jwt.Email || string(values[6]) != "true" {
		return refuse(Mismatch, "the token is not of the configured service account")
	}
	return nil
}

// registered checks exp, nbf, iss and aud (RFC 7519, section 4.1).
func (m *message) registered(issuers []string, mustExpire bool, late time.Duration) *Refusal {
	values := pick(m.payload, claimPaths...)
	iat, exp, nbf := scalar(values[0]), scalar(values[1]), scalar(values[2])
	ahead := m.scheme.tolerance
	if late > 0 {
		ahead = late
	}
	if mustExpire && (exp == "" || iat == "") {
		return refuse(Malformed, "the token has no exp or no iat")
	}
	for _, limit := range []struct {
		name, text string
		raw        []byte
		passes     func(time.Time) bool
		reason     Reason
	}{
		{"exp", exp, values[1], func(t time.Time) bool { return m.now.Before(t.Add(late)) }, Stale},
		{"nbf", nbf, values[2], func(t time.Time) bool { return !t.After(m.now.Add(ahead)) }, Future},
		{"iat", iat, values[0], func(t time.Time) bool { return !t.After(m.now.Add(ahead)) }, Future},
	} {
		if limit.raw == nil {
			continue
		}
		n, ok := canonicalInt(limit.text)
		if !ok || limit.raw[0] == '"' {
			return refuse(Malformed, "%s is no number of seconds", limit.name)
		}
		if !limit.passes(time.Unix(n, 0)) {
			return refuse(limit.reason, "%s is past its limit", limit.name)
		}
	}
	if !slices.Contains(issuers, str(values[3])) {
		return refuse(Mismatch, "the issuer is %q", clip(str(values[3])))
	}
	audiences := []string{str(values[4])}
	if len(values[4]) > 0 && values[4][0] == '[' && json.Unmarshal(values[4], &audiences) != nil {
		return refuse(Malformed, "aud is no text and no list of texts")
	}
	if m.scheme.jwt.Audience == "" || !slices.Contains(audiences, m.scheme.jwt.Audience) {
		return refuse(Mismatch, "the token is for another audience")
	}
	return nil
}

func googleKeys(*message) (string, *Refusal) { return googleCerts, nil }
