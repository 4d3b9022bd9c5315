package provider

import "slices"

// genericHMAC is the one entry that a source's settings complete.
const genericHMAC = "generic-hmac"

// entry describes one scheme. What two schemes differ in is a field; what only
// one of them does is a function in its entry.
type entry struct {
	name    string
	docs    string // the provider's page
	checked string // published vector, official SDK, API document, or docs only

	methods   []string  // POST if empty
	headers   []headers // the first set of which any header is present is the one used
	syntax    syntax    // of the signature header
	algorithm string    // for documentation
	encoding  encoding
	key       keyRule
	content   string // what is signed, see template
	clock     clock  // how the signed timestamp is written

	id, typ, at []place                                // where identity, type and time are found, best first
	identify    func(m *message, id *Identity)         // for what places cannot say
	handshake   string                                 // for documentation
	reply       func(m *message) (*Response, *Refusal) // answer instead of an event; nil, nil: an event
	needBody    bool                                   // the provider never sends an empty body
	legacy      []string                               // weaker headers, never read, which explain a missing one
	keep        []string                               // further headers kept; a trailing '*' stands for any rest
	credential  bool                                   // the signature header is itself a secret: not kept
}

// headers name where the parts of a signature stand; empty if the scheme has no
// such part or it stands in the signature header.
type headers struct{ signature, timestamp, id string }

var table = []entry{
	{
		name:      "standard-webhooks",
		docs:      "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
		checked:   "published vectors, official libraries",
		headers:   []headers{{"webhook-signature", "webhook-timestamp", "webhook-id"}},
		syntax:    list{" ", []tag{{"v1,", hmacSHA256}, {"v1a,", ed25519Verify}}},
		algorithm: "HMAC-SHA256 (v1), ed25519 (v1a)",
		encoding:  stdBase64,
		key:       standardKey,
		content:   "{id}.{timestamp}.{body}",
		clock:     unixSeconds,
		id:        []place{{signedID: true}},
		typ:       []place{inBody("type")},
		at:        []place{inBody("timestamp"), {signedTime: true}},
	},
	{
		name:      "standard-webhooks-v1a",
		docs:      "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
		checked:   "published vectors",
		headers:   []headers{{"webhook-signature", "webhook-timestamp", "webhook-id"}},
		syntax:    list{" ", []tag{{"v1a,", ed25519Verify}}},
		algorithm: "ed25519; secrets other than public keys are refused",
		encoding:  stdBase64,
		key:       publicKey,
		content:   "{id}.{timestamp}.{body}",
		clock:     unixSeconds,
		id:        []place{{signedID: true}},
		typ:       []place{inBody("type")},
		at:        []place{inBody("timestamp"), {signedTime: true}},
	},
	{
		name:    "svix",
		docs:    "https://docs.svix.com/receiving/verifying-payloads/how-manual",
		checked: "published vectors",
		// Svix sends either brand of header; they are equally strong.
		headers: []headers{
			{"svix-signature", "svix-timestamp", "svix-id"},
			{"webhook-signature", "webhook-timestamp", "webhook-id"},
		},
		syntax:    list{" ", []tag{{"v1,", hmacSHA256}, {"v1a,", ed25519Verify}}},
		algorithm: "HMAC-SHA256 (v1), ed25519 (v1a)",
		encoding:  stdBase64,
		key:       standardKey,
		content:   "{id}.{timestamp}.{body}",
		clock:     unixSeconds,
		id:        []place{{signedID: true}},
		typ:       []place{inBody("type"), inBody("event_type")},
		at:        []place{inBody("timestamp"), {signedTime: true}},
	},
	{
		name:      "stripe",
		docs:      "https://docs.stripe.com/webhooks/signature",
		checked:   "published vectors, official SDKs",
		headers:   []headers{{signature: "Stripe-Signature"}},
		syntax:    params{",", "t", []tag{{"v1", hmacSHA256}}}, // v0 is for test mode and never read
		algorithm: "HMAC-SHA256",
		encoding:  lowerHex,
		key:       textKey(hmacSHA256), // whsec_… is the key as it stands
		content:   "{timestamp}.{body}",
		clock:     unixSeconds,
		id:        []place{inBody("id")},
		typ:       []place{inBody("type")},
		at:        []place{inBody("created")},
	},
	{
		name:      "github",
		docs:      "https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries",
		checked:   "published vectors",
		headers:   []headers{{signature: "X-Hub-Signature-256"}},
		syntax:    whole{"sha256=", hmacSHA256},
		algorithm: "HMAC-SHA256",
		encoding:  lowerHex,
		key:       textKey(hmacSHA256),
		content:   "{body}",
		id:        []place{inHeader("X-GitHub-Delivery")}, // kept when GitHub redelivers
		typ:       []place{inHeader("X-GitHub-Event")},
		legacy:    []string{"X-Hub-Signature"},
		keep:      []string{"X-GitHub-*"},
	},
	{
		name:      "shopify",
		docs:      "https://shopify.dev/docs/apps/build/webhooks/subscribe/https",
		checked:   "official libraries",
		headers:   []headers{{signature: "X-Shopify-Hmac-SHA256"}},
		syntax:    whole{"", hmacSHA256},
		algorithm: "HMAC-SHA256",
		encoding:  stdBase64,
		key:       textKey(hmacSHA256),
		content:   "{body}",
		id:        []place{inHeader("X-Shopify-Webhook-Id")},
		typ:       []place{inHeader("X-Shopify-Topic")},
		at:        []place{inHeader("X-Shopify-Triggered-At")},
		needBody:  true,
		keep:      []string{"X-Shopify-*"},
	},
	{
		name:      "slack",
		docs:      "https://docs.slack.dev/authentication/verifying-requests-from-slack",
		checked:   "published vector",
		headers:   []headers{{signature: "X-Slack-Signature", timestamp: "X-Slack-Request-Timestamp"}},
		syntax:    whole{"v0=", hmacSHA256},
		algorithm: "HMAC-SHA256",
		encoding:  lowerHex,
		key:       textKey(hmacSHA256),
		content:   "v0:{timestamp}:{body}",
		clock:     unixSeconds,
		id:        []place{inBody("event_id")},
		typ:       nil, // see slackType
		at:        []place{inBody("event_time"), {signedTime: true}},
		identify:  slackType,
		handshake: "url_verification: 200, text/plain, the challenge",
		reply:     slackChallenge,
		keep:      []string{"X-Slack-*"},
	},
	{
		name:      genericHMAC,
		docs:      "the source's own settings",
		checked:   "vectors of other gateways",
		algorithm: "HMAC-SHA256, -SHA1, -SHA384 or -SHA512",
	},
}

func lookup(name string) (entry, bool) {
	i := slices.IndexFunc(table, func(e entry) bool { return e.name == name })
	if i < 0 {
		return entry{}, false
	}
	return table[i], true
}

func names() []string {
	var list []string
	for _, e := range table {
		list = append(list, e.name)
	}
	return list
}
