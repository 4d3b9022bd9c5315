package provider

import (
	"regexp"
	"strings"
)

// Rich notifications of Microsoft Graph, which carry the resource's data, come with
// tokens that Entra ID has signed for the subscribed app.
// https://learn.microsoft.com/en-us/graph/change-notifications-with-resource-data
const (
	// graphPublisher is the app as which Graph sends: appid, or azp in tokens of version 2.
	graphPublisher = "0bf30f3b-4a52-48df-9a82-234910c4a086"
	maxTokens      = 32 // of one request: one for each pair of app and tenant
)

var guid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// graph completes the entry of a source that demands tokens.
func (j JWT) graph(e entry, faults []string) (entry, []string) {
	if j.Header+j.Email+j.BodyClaim+j.IDHeader+j.IDPath+j.TypeHeader+j.TypePath != "" {
		faults = append(faults, "jwt: microsoft-graph takes audience (the app's id) and issuer (the tenant's id) only")
	}
	if j.Issuer != "" && !guid.MatchString(j.Issuer) {
		faults = append(faults, "jwt.issuer: is not the id of a tenant in lower case")
	}
	e.fetch, e.published, e.check = graphKeys, jwksKey, graphTokens
	return e, faults
}

// graphKeys are those of the tenant, or of all. A handshake and a request without
// tokens need none.
func graphKeys(m *message) (string, *Refusal) {
	if _, n := m.param("validationToken"); n > 0 || pick(m.req.Body, path{"validationTokens"})[0] == nil {
		return "", nil
	}
	return "https://login.microsoftonline.com/" + first(m.scheme.jwt.Issuer, "common") + "/discovery/v2.0/keys", nil
}

// graphStates claims the clientState of every notification and, where the source
// demands tokens, every token. It demands at least one: whoever knows clientState
// could leave them out.
// https://learn.microsoft.com/en-us/graph/change-notifications-delivery-webhooks
func graphStates(m *message) *Refusal {
	values, clean := pickSigned(m.req.Body, path{"value"}, path{"validationTokens"})
	items, ok := elements(values[0], maxItems)
	switch {
	case !clean:
		return refuse(Ambiguous, "value or validationTokens occurs more than once")
	case !ok || len(items) == 0:
		return refuse(MissingSignature, "the body has no notifications, or more than %d", maxItems)
	}
	for _, item := range items {
		values, clean := pickSigned(item, path{"clientState"})
		state := str(values[0])
		switch {
		case !clean:
			return refuse(Ambiguous, "clientState occurs more than once")
		case state == "":
			return refuse(MissingSignature, "a notification has no clientState")
		}
		m.claims = append(m.claims, claim{[]content{{}}, []candidate{{tokenEqual, []byte(state)}}})
	}
	if m.scheme.published == nil {
		return nil
	}
	tokens, ok := elements(values[1], maxTokens)
	if !ok || len(tokens) == 0 {
		return refuse(MissingSignature, "the body has no validationTokens, or more than %d", maxTokens)
	}
	for _, raw := range tokens {
		c, payload, err := jwtClaim(str(raw))
		if err != nil {
			return err
		}
		m.claims = append(m.claims, c)
		m.payloads = append(m.payloads, payload)
	}
	return nil
}

// graphTokens holds the claims of every authentic token against the settings.
func graphTokens(m *message) *Refusal {
	for _, payload := range m.payloads {
		values := pick(payload, claimPaths...)
		tenant, v1, v2 := str(values[7]), str(values[8]), str(values[9])
		switch want := m.scheme.jwt.Issuer; {
		case !guid.MatchString(tenant) || (want != "" && tenant != want):
			return refuse(Mismatch, "a token is of tenant %q", clip(tenant))
		case first(v1, v2) != graphPublisher || (v2 != "" && v2 != graphPublisher):
			return refuse(Mismatch, "a token was not made for Microsoft Graph")
		}
		m.payload = payload
		if err := m.registered([]string{"https://sts.windows.net/" + tenant + "/", "https://login.microsoftonline.com/" + tenant + "/v2.0"}, true, leeway); err != nil {
			return err
		}
	}
	return nil
}

// isKeySet tells a key set among the secrets of a source from a clientState.
func isKeySet(secret []byte) bool {
	return strings.HasPrefix(strings.TrimSpace(string(secret)), "{") && pick(secret, path{"keys"})[0] != nil
}
