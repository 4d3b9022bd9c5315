package provider

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// What schemes sign that a template cannot say, in the order of the table.

// maxItems bounds the signed items of one request: each costs a comparison.
const maxItems = 1000

// maxForm bounds a form whose parameters are sorted before anything is verified:
// that needs a copy of it.
const maxForm = 1 << 20

// param is the one value of a query parameter; n is how often it occurs.
func (m *message) param(name string) (value string, n int) {
	work(len(m.req.URL))
	_, query, _ := strings.Cut(m.req.URL, "?")
	for pair := range strings.SplitSeq(query, "&") {
		k, v, _ := strings.Cut(pair, "=")
		if k, err := url.QueryUnescape(k); err != nil || k != name {
			continue
		}
		n++
		value, _ = url.QueryUnescape(v) // badly escaped: empty
	}
	return value, n
}

// postOnly refuses an event by GET, where GET is for the handshake only.
func postOnly(m *message) *Refusal {
	if m.req.Method != "" && m.req.Method != http.MethodPost {
		return refuse(Malformed, "an event by %s", clip(m.req.Method))
	}
	return nil
}

// jsonBody refuses bodies that are no JSON. Where nothing separates the body from
// what is signed before or after it, this is what keeps the boundary in place: no
// part of a URL or a timestamp can be moved into a JSON text, nor out of it.
func jsonBody(m *message) *Refusal {
	if !json.Valid(m.req.Body) {
		return refuse(BadBody, "the body is no JSON, which is all that the provider sends")
	}
	return nil
}

func jsonOrEmpty(m *message) *Refusal {
	if len(m.req.Body) == 0 {
		return nil
	}
	return jsonBody(m)
}

// form reports whether the body is a form by its Content-Type.
func (m *message) form() (bool, *Refusal) {
	v, err := m.header("Content-Type")
	if err != nil {
		return false, err
	}
	kind, _, bad := mime.ParseMediaType(v)
	return bad == nil && kind == "application/x-www-form-urlencoded", nil
}

// twilioParams makes {params}: every parameter of a form, sorted by name, each
// name followed by each of its different values, sorted.
// https://www.twilio.com/docs/usage/security#validating-requests
func twilioParams(m *message) *Refusal {
	form, err := m.form()
	if err != nil || !form {
		return err
	}
	if len(m.req.Body) > maxForm {
		return refuse(Malformed, "a form of %d bytes", len(m.req.Body))
	}
	work(len(m.req.Body))
	var pairs [][2]string
	for item := range strings.SplitSeq(string(m.req.Body), "&") {
		if item == "" {
			continue
		}
		if len(pairs) == maxItems {
			return refuse(Malformed, "more than %d parameters", maxItems)
		}
		name, value, _ := strings.Cut(item, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil {
			return refuse(Malformed, "the form is badly escaped")
		}
		pairs = append(pairs, [2]string{name, value})
	}
	slices.SortFunc(pairs, func(a, b [2]string) int {
		if c := strings.Compare(a[0], b[0]); c != 0 {
			return c
		}
		return strings.Compare(a[1], b[1])
	})
	var b strings.Builder
	for _, p := range slices.Compact(pairs) {
		b.WriteString(p[0] + p[1])
	}
	m.params = b.String()
	return nil
}

// twilioBody holds a body that is no form against its hash, which is in the signed
// URL. Without the hash the signature says nothing about the body. The hash counts
// for forms too: Content-Type is not signed.
func twilioBody(m *message) *Refusal {
	form, err := m.form()
	if err != nil {
		return err
	}
	want, n := m.param("bodySHA256")
	sum := sha256.Sum256(m.req.Body)
	switch {
	case n > 1:
		return refuse(Ambiguous, "bodySHA256 occurs %d times", n)
	case n == 0 && (form || len(m.req.Body) == 0):
		return nil
	case n == 0:
		return refuse(MissingSignature, "the body is no form, and bodySHA256 is not in the URL: nothing signs the body")
	case subtle.ConstantTimeCompare([]byte(want), []byte(hex.EncodeToString(sum[:]))) != 1:
		return refuse(Mismatch, "the body does not have the hash bodySHA256")
	}
	return nil
}

// withAndWithoutPort: Twilio signs some URLs with the port and some without,
// whatever was configured there, and so do its libraries try both.
func withAndWithoutPort(text string) []string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return []string{text}
	}
	start := strings.Index(text, "://") + len("://")
	end := start + strings.Index(text[start:], u.Host) // after credentials, if there are any
	before, after := text[:end], text[end+len(u.Host):]
	if port := u.Port(); port != "" {
		return []string{text, before + strings.TrimSuffix(u.Host, ":"+port) + after}
	}
	port := ":443"
	if u.Scheme == "http" {
		port = ":80"
	}
	return []string{text, before + u.Host + port + after}
}

// adyenItems claims every notification item of the batch. Eight fields are joined
// with ':' and not escaped (so Adyen's libraries). Only merchantReference may hold
// a ':' itself; the others are refused with one, so that no boundary can move.
func adyenItems(m *message) *Refusal {
	values, clean := pickSigned(m.req.Body, path{"notificationItems"})
	items, ok := elements(values[0], maxItems)
	switch {
	case !clean:
		return refuse(Ambiguous, "notificationItems occurs more than once")
	case !ok || len(items) == 0:
		return refuse(MissingSignature, "the body has no notificationItems, or more than %d", maxItems)
	}
	for _, item := range items {
		c, err := adyenItem(item)
		if err != nil {
			return err
		}
		m.claims = append(m.claims, c)
	}
	return nil
}

func adyenItem(item []byte) (claim, *Refusal) {
	const outer = "NotificationRequestItem"
	values, clean := pickSigned(item, path{outer, "pspReference"}, path{outer, "originalReference"}, path{outer, "merchantAccountCode"},
		path{outer, "merchantReference"}, path{outer, "amount", "value"}, path{outer, "amount", "currency"}, path{outer, "eventCode"},
		path{outer, "success"}, path{outer, "additionalData", "hmacSignature"})
	if !clean {
		return claim{}, refuse(Ambiguous, "a signed field of an item occurs more than once")
	}
	const reference, signature = 3, 8
	var texts [9]string
	for i := range texts {
		text, ok := field(values[i])
		if !ok || (i != reference && strings.Contains(text, ":")) {
			return claim{}, refuse(Malformed, "a signed field of an item is no plain value")
		}
		texts[i] = text
	}
	if texts[signature] == "" {
		return claim{}, refuse(MissingSignature, "an item has no hmacSignature")
	}
	sig, ok := stdBase64.decode(texts[signature])
	if !ok {
		return claim{}, refuse(Malformed, "hmacSignature is not %s", stdBase64)
	}
	return claim{[]content{{head: []byte(strings.Join(texts[:signature], ":"))}}, []candidate{{hmacSHA256, sig}}}, nil
}

// mailgunSignature claims timestamp and token, which is all that Mailgun signs.
// Nothing separates the two; a digit moved from one to the other makes the
// timestamp stale or future by decades. Webhooks of today are JSON; those of old and
// the messages that routes forward are forms.
// https://documentation.mailgun.com/docs/mailgun/user-manual/receive-forward-store/receive-http
func mailgunSignature(m *message) *Refusal {
	form, isForm, err := m.formFields("timestamp", "token", "signature", "event")
	if err != nil {
		return err
	}
	text := form["signature"]
	m.timestamp, m.id, m.event = form["timestamp"], form["token"], form["event"]
	if !isForm {
		values, clean := pickSigned(m.req.Body, path{"signature", "timestamp"}, path{"signature", "token"}, path{"signature", "signature"})
		if !clean {
			return refuse(Ambiguous, "a field of signature occurs more than once")
		}
		m.timestamp, m.id, text = scalar(values[0]), str(values[1]), str(values[2])
	}
	if m.timestamp == "" || m.id == "" || text == "" {
		return refuse(MissingSignature, "the body has no signature with timestamp, token and signature")
	}
	if len(m.id) > 128 || strings.ContainsFunc(m.id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_'
	}) {
		return refuse(Malformed, "the token is not of letters and digits")
	}
	sig, ok := lowerHex.decode(text)
	if !ok {
		return refuse(Malformed, "signature is not %s", lowerHex)
	}
	m.claims = []claim{{[]content{{head: []byte(m.timestamp + m.id)}}, []candidate{{hmacSHA256, sig}}}}
	return nil
}

// hubspotVersion pins the version that HubSpot names beside its older signatures,
// and refuses bodies that a plain hash could have been extended with.
func hubspotVersion(version string) func(*message) *Refusal {
	return func(m *message) *Refusal {
		v, err := m.header("X-Hubspot-Signature-Version")
		if err != nil {
			return err
		}
		if v != "" && v != version {
			return refuse(Malformed, "the signature's version is %q, not %s", clip(v), version)
		}
		return jsonOrEmpty(m)
	}
}

var hubspotDecoded = strings.NewReplacer("%3A", ":", "%2F", "/", "%3F", "?", "%40", "@", "%21", "!", "%24", "$",
	"%27", "'", "%28", "(", "%29", ")", "%2A", "*", "%2C", ",", "%3B", ";")

// hubspotURLs: HubSpot decodes twelve characters of the URL before it signs it.
// Its own library does not, so that the URL as sent is taken too.
func hubspotURLs(u string) []string {
	if decoded := hubspotDecoded.Replace(u); decoded != u {
		return []string{decoded, u}
	}
	return []string{u}
}

// noChallengeBody refuses bodies that could be a crc_token: the handshake, which
// nobody signs, would have signed them for anyone.
func noChallengeBody(m *message) *Refusal {
	if err := postOnly(m); err != nil {
		return err
	}
	if crcToken(string(m.req.Body)) {
		return refuse(Ambiguous, "the body could be a crc_token, which is signed for whoever asks")
	}
	return nil
}

// nothing is what a scheme claims that has a handshake only.
func nothing(*message) *Refusal {
	return refuse(MissingSignature, "no handshake, and the scheme has no events")
}

// maxDocusign bounds the keys of an account whose signatures are looked for.
const maxDocusign = 100

// docusignHeaders takes one signature for each of the account's keys, in headers
// numbered from 1.
func docusignHeaders(m *message) *Refusal {
	var sigs []candidate
	present := 0
	for n := 1; n <= maxDocusign; n++ {
		name := "X-Docusign-Signature-" + strconv.Itoa(n)
		v, err := m.header(name)
		if err != nil {
			return err
		}
		if v == "" {
			continue
		}
		present++
		if len(v) > maxHeaderBytes {
			return refuse(Malformed, "header %s has %d bytes, at most %d are read", name, len(v), maxHeaderBytes)
		}
		if sig, ok := stdBase64.decode(v); ok {
			sigs = append(sigs, candidate{hmacSHA256, sig})
		}
	}
	switch {
	case present == 0:
		return refuse(MissingSignature, "header X-DocuSign-Signature-1 is missing")
	case len(sigs) == 0:
		return refuse(Malformed, "no signature is %s", stdBase64)
	}
	m.claims = []claim{{[]content{{body: m.req.Body}}, sigs}}
	return nil
}

// authorization is what follows the scheme's name in the header (RFC 9110,
// section 11.6.2).
func (m *message) authorization(scheme string) (string, *Refusal) {
	v, err := m.required("Authorization")
	if err != nil {
		return "", err
	}
	name, rest, ok := strings.Cut(v, " ")
	if !ok || !strings.EqualFold(name, scheme) {
		return "", refuse(Malformed, "Authorization is not %s", scheme)
	}
	return strings.TrimLeft(rest, " "), nil
}

func basicCredentials(m *message) *Refusal {
	text, err := m.authorization("Basic")
	if err != nil {
		return err
	}
	b, ok := stdBase64.decode(text)
	if !ok || len(text) > maxHeaderBytes {
		return refuse(Malformed, "the credentials are not base64")
	}
	m.claims = []claim{{[]content{{}}, []candidate{{tokenEqual, b}}}}
	return nil
}

// Token are the settings of the scheme generic-token, for senders that show a
// secret and sign nothing.
type Token struct {
	Header string // holds the token; Authorization by default
	Prefix string // text before the token; "Bearer " by default with Authorization

	// The event's id and type, as in [HMAC].
	IDHeader, IDPath     string
	TypeHeader, TypePath string
}

// entry completes the table's entry, or names every setting that is wrong.
func (t Token) entry(e entry) (entry, []string) {
	prefix := t.Prefix
	if t.Header == "" || canonical(t.Header) == "Authorization" {
		prefix = first(prefix, "Bearer ")
	}
	h := HMAC{Header: first(t.Header, "Authorization"), IDHeader: t.IDHeader, IDPath: t.IDPath, TypeHeader: t.TypeHeader, TypePath: t.TypePath}
	g, faults := h.entry(e)
	for i := range faults {
		faults[i] = "token" + strings.TrimPrefix(faults[i], "hmac")
	}
	e.headers, e.id, e.typ = g.headers, g.id, g.typ
	e.syntax = whole{prefix, tokenEqual}
	return e, faults
}

// hexKey reads the key of an HMAC in hex, of either case.
func hexKey(secret []byte) (key, error) {
	b, err := hex.DecodeString(strings.TrimSpace(string(secret)))
	switch {
	case blank(secret) || (err == nil && blank(b)):
		return key{}, errBlank
	case err != nil:
		return key{}, errNotHex
	}
	return key{alg: hmacSHA256, bytes: b}, nil
}

// hexPublicKey reads an ed25519 public key in hex.
func hexPublicKey(secret []byte) (key, error) {
	if blank(secret) {
		return key{}, errBlank
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(secret)))
	if err != nil {
		return key{}, errNotHex
	}
	if err := checkEd25519Key(b); err != nil {
		return key{}, err
	}
	return key{alg: ed25519Verify, bytes: b}, nil
}

// sharedKey is [standardKey] without public keys.
func sharedKey(secret []byte) (key, error) {
	k, err := standardKey(secret)
	if err == nil && k.alg != hmacSHA256 {
		return key{}, errNotShared
	}
	return k, err
}

// basicKey wants a user and a password.
func basicKey(secret []byte) (key, error) {
	user, password, ok := bytes.Cut(secret, []byte(":"))
	switch {
	case blank(secret):
		return key{}, errBlank
	case !ok || len(user) == 0 || blank(password):
		return key{}, errNotBasic
	}
	return key{alg: tokenEqual, bytes: secret}, nil
}

// base64DER takes base64 with or without padding for PEM.
func base64DER(text string) ([]byte, bool) {
	b, err := base64.StdEncoding.DecodeString(text)
	return b, err == nil
}
