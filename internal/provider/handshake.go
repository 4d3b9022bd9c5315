package provider

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Handshakes, in the order of the table. Those that nobody signs are answered
// without revealing anything: they echo what was sent, as plain text and only if no
// browser could read it as anything else, or, for X, sign what no event can be.

const plain = "text/plain; charset=utf-8"

// echoable reports whether a challenge can be sent back to whoever sent it:
// printable ASCII without what HTML and scripts are made of.
func echoable(s string, most int) bool {
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' || r > '~' || strings.ContainsRune("<>&\"'`\\", r)
	})
}

// challenge is the one value of a query parameter that is fit to be echoed.
func (m *message) challenge(name string) (string, *Refusal) {
	v, n := m.param(name)
	switch {
	case n == 0:
		return "", refuse(MissingSignature, "neither an event nor a handshake: %s is missing", name)
	case n > 1:
		return "", refuse(Ambiguous, "%s occurs %d times", name, n)
	case !echoable(v, 1<<10):
		return "", refuse(Malformed, "%s cannot be echoed", name)
	}
	return v, nil
}

// slackChallenge answers url_verification with the challenge as plain text.
// https://docs.slack.dev/reference/events/url_verification
func slackChallenge(m *message) (*Response, *Refusal) {
	values := pick(m.req.Body, path{"type"}, path{"challenge"})
	if str(values[0]) != "url_verification" {
		return nil, nil
	}
	challenge := str(values[1])
	if challenge == "" || len(challenge) > 4<<10 {
		return nil, refuse(BadBody, "url_verification without a usable challenge")
	}
	return &Response{Status: http.StatusOK, ContentType: plain, Body: []byte(challenge)}, nil
}

// asanaHandshake echoes X-Hook-Secret, if the source expects a webhook to be
// created now. Whoever creates it has the same value in the API's response; a
// secret that came this way is never used, so that a second handshake changes
// nothing. A request with a signature is no handshake.
// https://developers.asana.com/reference/createwebhook
func asanaHandshake(m *message) (*Response, *Refusal) {
	const name = "X-Hook-Secret"
	if len(m.req.Header[name]) == 0 {
		return nil, nil
	}
	v, err := m.header(name)
	switch {
	case err != nil:
		return nil, err
	case len(m.req.Header["X-Hook-Signature"]) > 0:
		return nil, refuse(Ambiguous, "a signed request must not carry %s", name)
	case !m.scheme.greets:
		return nil, refuse(MissingSignature, "a handshake, and asana_handshake is not set")
	case !echoable(v, 256):
		return nil, refuse(Malformed, "%s cannot be echoed", name)
	}
	return &Response{Status: http.StatusOK, ContentType: plain, Header: []webhook.Header{{Name: name, Value: v}}}, nil
}

// headProbe answers the HEAD by which Intercom sees whether a URL is there when it is
// entered. Nothing is said but that.
// https://developers.intercom.com/docs/webhooks/setting-up-webhooks
func headProbe(m *message) (*Response, *Refusal) {
	if m.req.Method != http.MethodHead {
		return nil, nil
	}
	return &Response{Status: http.StatusOK, ContentType: plain}, nil
}

// dropboxChallenge: https://www.dropbox.com/developers/reference/webhooks
func dropboxChallenge(m *message) (*Response, *Refusal) {
	if m.req.Method != http.MethodGet {
		return nil, nil
	}
	v, err := m.challenge("challenge")
	if err != nil {
		return nil, err
	}
	return &Response{Status: http.StatusOK, ContentType: plain, Body: []byte(v)}, nil
}

// zoomValidation: https://developers.zoom.us/docs/api/webhooks/#validate-your-webhook-endpoint
func zoomValidation(m *message) (*Response, *Refusal) {
	values := pick(m.req.Body, path{"event"}, path{"payload", "plainToken"})
	if str(values[0]) != "endpoint.url_validation" {
		return nil, nil
	}
	token := str(values[1])
	if !echoable(token, 256) {
		return nil, refuse(BadBody, "url_validation without a usable plainToken")
	}
	return asJSON("plainToken", token, "encryptedToken", lowerHex.encode(hmacSHA256.sum(m.key.bytes, content{body: []byte(token)})))
}

// discordPing: interactions number their PING 1 and webhook events 0; 1 is then an
// event, with its details beside it.
// https://docs.discord.com/developers/interactions/overview#setting-up-an-endpoint
// and https://docs.discord.com/developers/events/webhook-events
func discordPing(m *message) (*Response, *Refusal) {
	values := pick(m.req.Body, path{"type"}, path{"event"})
	switch kind := string(values[0]); {
	case kind == "0":
		return &Response{Status: http.StatusNoContent}, nil
	case kind == "1" && values[1] == nil:
		return &Response{Status: http.StatusOK, ContentType: "application/json", Body: []byte(`{"type":1}`)}, nil
	}
	return nil, nil
}

// metaChallenge: https://developers.facebook.com/docs/graph-api/webhooks/getting-started
func metaChallenge(m *message) (*Response, *Refusal) {
	if m.req.Method != http.MethodGet {
		return nil, nil
	}
	mode, n1 := m.param("hub.mode")
	token, n2 := m.param("hub.verify_token")
	if n1 > 1 || n2 > 1 {
		return nil, refuse(Ambiguous, "hub.mode or hub.verify_token occurs more than once")
	}
	if mode != "subscribe" || token == "" || !m.verifies(token) {
		return nil, refuse(Mismatch, "no hub.mode=subscribe with the configured verify_token")
	}
	v, err := m.challenge("hub.challenge")
	if err != nil {
		return nil, err
	}
	return &Response{Status: http.StatusOK, ContentType: plain, Body: []byte(v)}, nil
}

// verifies reports whether a text is the configured verify_token, or a version of
// the secret that it names.
func (m *message) verifies(token string) bool {
	got, same := [][]byte{[]byte(token)}, false
	for _, k := range m.keys {
		same = k.alg == noSignature && matchToken(k, content{}, got) || same
	}
	return m.scheme.verify != "" && matchToken(key{bytes: []byte(m.scheme.verify)}, content{}, got) || same
}

// crcToken reports whether a text can be one of X's: short, and of characters of
// which no JSON object consists.
func crcToken(s string) bool {
	return s != "" && len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("-._~+/=", r)
	})
}

// xChallenge signs crc_token with the first secret, as it signs events. Nothing
// shows that X asks, so that only texts that are no event's body are signed, and
// noChallengeBody accepts no event of this form.
// https://docs.x.com/x-api/webhooks/quickstart
func xChallenge(m *message) (*Response, *Refusal) {
	if m.req.Method != http.MethodGet {
		return nil, nil
	}
	v, err := m.challenge("crc_token")
	if err != nil {
		return nil, err
	}
	if !crcToken(v) {
		return nil, refuse(Malformed, "crc_token is none")
	}
	return asJSON("response_token", "sha256="+stdBase64.encode(hmacSHA256.sum(m.keys[0].bytes, content{body: []byte(v)})))
}

// graphValidation: https://learn.microsoft.com/en-us/graph/change-notifications-delivery-webhooks#notificationurl-validation
func graphValidation(m *message) (*Response, *Refusal) {
	if _, n := m.param("validationToken"); n == 0 {
		return nil, nil
	}
	v, err := m.challenge("validationToken")
	if err != nil {
		return nil, err
	}
	return &Response{Status: http.StatusOK, ContentType: plain, Body: []byte(v)}, nil
}

func asJSON(pairs ...string) (*Response, *Refusal) {
	object := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		object[pairs[i]] = pairs[i+1]
	}
	b, err := json.Marshal(object)
	if err != nil { // not reached: texts always marshal
		return nil, refuse(BadBody, "the answer cannot be written")
	}
	return &Response{Status: http.StatusOK, ContentType: "application/json", Body: b}, nil
}
