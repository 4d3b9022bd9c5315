package provider

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// DefaultTolerance is how far a signed timestamp may lie from our clock, both
// ways, the limit included.
const DefaultTolerance = 5 * time.Minute

// Bounds of a configured tolerance. Zero is refused rather than read as "off".
const (
	MinTolerance = time.Second
	MaxTolerance = 24 * time.Hour
)

// Request is what arrived. Header keys are in the canonical form that net/http
// gives them; a header under another key is not seen, which refuses.
type Request struct {
	Method string
	Header http.Header
	// URL is the source's configured public URL with the query as received. It is
	// never taken from the request's Host or forwarding headers.
	URL   string
	Body  []byte // exactly as received
	Query url.Values
	// Decode, if set, says that the signature is over Body as it is, in a content
	// coding such as gzip, and that everything else is to be read from what Decode makes
	// of it. It is called once, and only for a body whose signature matched. An error
	// refuses with [BadBody]. Only for schemes of which [Scheme.SignsAsSent] is true.
	Decode func(body []byte) ([]byte, error)
}

// Identity is what an authentic request is.
type Identity struct {
	// ID is the provider's id of the event in its storable form
	// ([webhook.CanonicalID]). A request without one gets "sha256:" and the hash of
	// what was signed; where a timestamp is signed, equal bodies at different
	// times are thereby different events.
	ID string
	// UnsignedID says that the signature covers the body but neither the id, which
	// stands in a header, nor a time: who has seen one request could post its body
	// again under another id.
	UnsignedID bool
	// Type always passes [webhook.ValidType]: characters that cannot be in a type
	// become '_', an overlong type is cut, and a request that names no type gets
	// the scheme's name and ".unknown". An authentic event is never lost for it.
	Type string
	// OccurredAt is the provider's time of the event, zero if it gives none.
	OccurredAt time.Time
	// Secret is the index of the secret that matched; the first if several did; -1 if
	// none was compared, for a handshake that nobody signs.
	Secret int
	// Response, if set, is a handshake's exact answer: it is sent, and nothing is
	// published.
	Response *Response
	// Confirm, if set, is a URL to visit before the request is answered with 2xx:
	// the subscription of an SNS topic, signed, on an SNS host. Nothing is published.
	Confirm string
	// Headers are the provider's own headers, kept with the event. Credentials are
	// never among them.
	Headers []webhook.Header
}

// Response is the answer that a handshake wants.
type Response struct {
	Status      int
	ContentType string
	Header      []webhook.Header // beside Content-Type
	Body        []byte
}

// Verifier decides whether a request is authentic, fresh and unambiguous, and
// what it is. Errors are of type [*Refusal].
type Verifier interface {
	Verify(r Request, secrets []Secret, now time.Time) (Identity, error)
}

// Options adjust a scheme for one source.
type Options struct {
	// Tolerance replaces [DefaultTolerance]; nil keeps it. It must be between
	// [MinTolerance] and [MaxTolerance], and the scheme must sign a timestamp.
	Tolerance *time.Duration
	// HMAC describes the scheme generic-hmac and is refused with any other.
	HMAC *HMAC
	// Token describes the scheme generic-token; nil takes its defaults.
	Token *Token
	// JWT says whose tokens jwt and google-oidc accept; both need it. With it,
	// microsoft-graph accepts rich notifications with valid tokens only.
	JWT *JWT
	// WebhookID is what PayPal calls the subscription; paypal signs and needs it.
	WebhookID string
	// Topics are the ARNs of the topics that aws-sns accepts; it needs them, since
	// any AWS account can have SNS sign for a topic of its own. "*" accepts any.
	Topics []string
	// VerifyToken is what Meta's hub.verify_token must equal; without one, meta
	// answers no hub.challenge. "secret:" and a name stands for every version of that one
	// of the source's secrets, which then verifies no signature.
	VerifyToken string
	// AsanaHandshake has asana answer the handshake of a webhook being created.
	// Asana's API hands the secret to whoever creates the webhook, in the response to
	// that call; it is neither stored nor logged here. Switch it off again afterwards.
	AsanaHandshake bool
	// Dedupe replaces the scheme's identity: "header:" and a header's name, or the
	// preset "stripe-object" (the object's id and the event's type). An event that
	// lacks it has the scheme's own identity.
	Dedupe string
}

// secretPrefix is before a secret's name where a setting may be one.
const secretPrefix = "secret:"

// Scheme is one entry of the table, ready for use by any number of goroutines.
type Scheme struct {
	entry
	signed    template
	tolerance time.Duration
	webhookID string
	topics    []string
	verify    string // hub.verify_token, or
	setAside  string // the name of the secret that is
	greets    bool   // answers Asana's handshake
	jwt       JWT
	kept      []string // canonical names; a trailing '*' stands for any rest
	paths     []path   // every value that the body is read for, in the order of id, typ, at
}

var _ Verifier = (*Scheme)(nil)

// New makes a verifier. Unknown schemes and unusable or contradictory options
// are errors that name the setting, all at once.
func New(name string, o Options) (*Scheme, error) {
	e, ok := lookup(name)
	if !ok {
		return nil, fmt.Errorf("scheme: %q is unknown; known are %s", clip(name), strings.Join(names(), ", "))
	}
	e, faults := o.complete(e)
	s := &Scheme{entry: e, tolerance: DefaultTolerance, webhookID: o.WebhookID, topics: slices.Clone(o.Topics), verify: o.VerifyToken, greets: o.AsanaHandshake}
	if o.JWT != nil {
		s.jwt = *o.JWT
	}
	if name, isSecret := strings.CutPrefix(o.VerifyToken, secretPrefix); isSecret {
		s.verify, s.setAside = "", name
		if name == "" {
			faults = append(faults, "verify_token: names no secret after "+secretPrefix)
		}
	}
	if t := o.Tolerance; t != nil {
		s.tolerance = *t
		switch {
		case *t < MinTolerance || *t > MaxTolerance:
			faults = append(faults, fmt.Sprintf("tolerance: %s is not between %s and %s (it cannot be switched off)", *t, MinTolerance, MaxTolerance))
		case len(faults) == 0 && e.clock == noClock:
			faults = append(faults, fmt.Sprintf("tolerance: scheme %s signs no timestamp, so there is no age to limit", name))
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(faults, "; "))
	}
	if e.claims == nil {
		var err error
		if s.signed, err = parseFields(e.content, append(settable, "params", "webhook_id", "crc32")...); err != nil {
			return nil, fmt.Errorf("signed_content: %w", err)
		}
	}
	s.compile()
	return s, nil
}

// complete checks the options against the scheme that they are for, each with the
// names of the schemes that take it, and completes the entry of a generic one.
func (o Options) complete(e entry) (entry, []string) {
	var faults []string
	for _, s := range []struct {
		setting string
		given   bool
		schemes []string
		needed  string // why, if the schemes cannot do without
	}{
		{"hmac", o.HMAC != nil, []string{genericHMAC}, "needs these settings"},
		{"token", o.Token != nil, []string{genericToken}, ""},
		{"jwt", o.JWT != nil, []string{jwtScheme, googleOIDC, microsoftGraph}, jwtNeeded(e.name)},
		{"webhook_id", o.WebhookID != "", []string{"paypal"}, "signs it"},
		{"topics", len(o.Topics) > 0, []string{"aws-sns"}, "needs the ARNs to accept: any AWS account can have SNS sign for a topic of its own"},
		{"verify_token", o.VerifyToken != "", []string{"meta"}, ""},
		{"asana_handshake", o.AsanaHandshake, []string{"asana"}, ""},
	} {
		switch has := slices.Contains(s.schemes, e.name); {
		case s.given && !has:
			faults = append(faults, fmt.Sprintf("%s: this setting is for scheme %s only, not %s", s.setting, strings.Join(s.schemes, " and "), e.name))
		case !s.given && has && s.needed != "":
			faults = append(faults, fmt.Sprintf("%s: scheme %s %s", s.setting, e.name, s.needed))
		}
	}
	if len(faults) > 0 {
		return e, faults
	}
	switch e.name {
	case genericHMAC:
		e, faults = o.HMAC.entry(e)
	case genericToken:
		t := Token{}
		if o.Token != nil {
			t = *o.Token
		}
		e, faults = t.entry(e)
	case jwtScheme, googleOIDC, microsoftGraph:
		if o.JWT != nil {
			e, faults = o.JWT.entry(e)
		}
	}
	switch name, isHeader := strings.CutPrefix(o.Dedupe, "header:"); {
	case o.Dedupe == "":
	case isHeader && token(name):
		e.id = append([]place{inHeader(name)}, e.id...)
	case o.Dedupe == "stripe-object" && e.name == "stripe":
		e.identify = stripeObject
	default:
		faults = append(faults, fmt.Sprintf("dedupe: %q is neither header:<name> nor a preset of scheme %s", clip(o.Dedupe), e.name))
	}
	for _, t := range o.Topics {
		if t != "*" && !strings.HasPrefix(t, "arn:") {
			faults = append(faults, fmt.Sprintf("topics: %q is no ARN", clip(t)))
		}
	}
	if strings.Contains(o.WebhookID, "|") {
		faults = append(faults, "webhook_id: holds '|', which separates it from what follows")
	}
	return e, faults
}

func jwtNeeded(scheme string) string {
	if scheme == microsoftGraph {
		return ""
	}
	return "needs these settings: whose tokens, and for whom"
}

// compile brings header names into the form in which requests hold them.
func (s *Scheme) compile() {
	s.headers = slices.Clone(s.headers)
	for i, h := range s.headers {
		s.headers[i] = headers{canonical(h.signature), canonical(h.timestamp), canonical(h.id)}
		for _, name := range []string{h.signature, h.timestamp, h.id} {
			if name != "" && (!s.credential || name != h.signature) {
				s.kept = append(s.kept, canonical(name))
			}
		}
	}
	for _, places := range []*[]place{&s.id, &s.typ, &s.at} {
		*places = slices.Clone(*places)
		for i := range *places {
			(*places)[i].header = canonical((*places)[i].header)
			if h := (*places)[i].header; h != "" {
				s.kept = append(s.kept, h)
			}
			if p := (*places)[i].body; p != nil {
				s.paths = append(s.paths, p)
			}
		}
	}
	for _, name := range s.keep {
		s.kept = append(s.kept, canonical(name))
	}
}

func canonical(name string) string { return http.CanonicalHeaderKey(name) }

// Name is the scheme's name in the table.
func (s *Scheme) Name() string { return s.name }

// SignsTime reports whether the scheme signs a timestamp, so that a tolerance
// applies.
func (s *Scheme) SignsTime() bool { return s.clock != noClock }

// Methods are the HTTP methods that the provider uses.
func (s *Scheme) Methods() []string {
	if len(s.methods) == 0 {
		return []string{http.MethodPost}
	}
	return s.methods
}

// SignsBodyOnly reports whether the scheme's signature covers neither a time nor an
// id beside the body: an id or a type that stands in a header is then not signed.
// False too where nothing is signed.
func (s *Scheme) SignsBodyOnly() bool {
	return s.clock == noClock && !s.credential && !strings.Contains(s.content, "{id}")
}

// SignatureHeaders are the headers that hold signatures or credentials, in canonical
// form.
func (s *Scheme) SignatureHeaders() []string {
	var names []string
	for _, h := range s.headers {
		if h.signature != "" {
			names = append(names, h.signature)
		}
	}
	if s.jwt.Header != "" {
		names = append(names, canonical(s.jwt.Header))
	}
	return names
}

// asParsed are the schemes that find their signature in the body, or sign parts of
// it, or rely on its form to tell where it begins.
var asParsed = []string{"twilio", "square", "adyen", "mailgun", "hubspot-v1", "hubspot-v2", "hubspot-v3", "aws-sns", "microsoft-graph"}

// SignsAsSent reports whether the scheme's signature can be over an encoded body:
// see [Request].Decode.
func (s *Scheme) SignsAsSent() bool { return !slices.Contains(asParsed, s.name) }

// NeedsURL reports whether the source's public URL is part of what is signed.
func (s *Scheme) NeedsURL() bool { return s.signed.has["url"] }

// NeedsSecret reports whether a source must have a secret of its own. Where it
// need not, the provider publishes its keys: see [Scheme.Fetch].
func (s *Scheme) NeedsSecret() bool { return s.fetch == nil || s.published != nil }

// Fetches reports whether the scheme wants what the provider publishes, beside the
// secrets that a source has. A source that holds the published keys itself has no
// need to fetch: they are the trust anchor.
func (s *Scheme) Fetches(secrets []Secret) bool {
	if s.published != nil {
		return !slices.ContainsFunc(secrets, func(k Secret) bool { return isKeySet(k.value) })
	}
	return s.fetch != nil && len(secrets) == 0
}

// Fetch gives the URL of the certificate or key set that the request says it was
// signed with, or "" if the scheme has none or this request needs none. The host is
// pinned: any other is refused. Who fetches it passes the bytes to [Scheme.Verify] as a
// secret, after the source's own.
func (s *Scheme) Fetch(r Request) (string, error) {
	if s.fetch == nil {
		return "", nil
	}
	u, err := s.fetch(&message{scheme: s, req: &r})
	if err != nil {
		return "", err
	}
	return u, nil
}

// Fetched makes what was fetched from a URL of [Scheme.Fetch] a secret, or says why
// it cannot be one: a certificate must be valid at now.
func (s *Scheme) Fetched(from string, b []byte, now time.Time) (Secret, error) {
	host := from
	if u, err := url.Parse(from); err == nil {
		host = u.Host
	}
	secret := NewSecret(host, 0, b)
	if s.published != nil && !isKeySet(b) {
		return secret, errors.New("what was fetched is no key set")
	}
	if err := s.CheckSecret(secret); err != nil {
		return secret, err
	}
	return secret, checkDates(b, now)
}

// Ack is the body of the answer to an accepted event, where the provider wants a
// certain one; else it is empty.
func (s *Scheme) Ack() string { return s.ack }

// CheckSecret reports why a secret cannot be used with the scheme. The error
// does not show the secret.
func (s *Scheme) CheckSecret(secret Secret) error {
	if _, err := s.keyOf(secret); err != nil {
		return fmt.Errorf("secret %s: %w", secret, err)
	}
	return nil
}

// CheckSecrets reports why a source's secrets cannot be used: each that is unusable,
// and what is missing among them. The errors do not show secrets.
func (s *Scheme) CheckSecrets(secrets []Secret) []error {
	var faults []error
	aside := 0
	for _, secret := range secrets {
		if err := s.CheckSecret(secret); err != nil {
			faults = append(faults, err)
		}
		if s.isAside(secret) {
			aside++
		}
	}
	switch {
	case s.setAside != "" && aside == 0:
		faults = append(faults, fmt.Errorf("verify_token: no secret is called %q", clip(s.setAside)))
	case aside > 0 && aside == len(secrets):
		faults = append(faults, errors.New("all are for verify_token, so no signature could be verified"))
	}
	return faults
}

// Info describes a scheme for documentation.
type Info struct {
	Name           string
	Docs           string // the page that the entry was written from
	CheckedAgainst string // published vector, official SDK, API document, or docs only
	Signature      string // header and form
	Algorithm      string
	Encoding       string
	SignedContent  string
	Freshness      string
	ID, Type       string
	Handshake      string // empty if there is none
	Settings       string // beside the secret; empty if there are none
	Secret         string // what the secret is
	Note           string // what the scheme does not prove; empty if there is nothing to say
}

// Schemes describes every scheme, in the order of the table.
func Schemes() []Info {
	infos := make([]Info, len(table))
	for i, e := range table {
		infos[i] = e.info()
	}
	return infos
}

func (e entry) info() Info {
	in := Info{
		Name: e.name, Docs: e.docs, CheckedAgainst: e.checked, Algorithm: e.algorithm, Encoding: string(e.encoding),
		SignedContent: e.content, Handshake: e.handshake, Settings: e.settings, Secret: e.secret, Note: e.note,
		ID: describe(e.id, "hash of the signed content"), Type: describe(e.typ, e.name+".unknown"),
		Freshness: "none signed; the durable id alone",
	}
	if in.Secret == "" {
		in.Secret = "text, used as it stands"
	}
	if e.about.id != "" {
		in.ID = e.about.id
	}
	if e.about.typ != "" {
		in.Type = e.about.typ
	}
	in.Signature = e.about.signature
	if in.Signature == "" && len(e.headers) > 0 {
		in.Signature = e.headers[0].signature + ": " + e.syntax.String()
	}
	if e.clock != noClock {
		in.Freshness = fmt.Sprintf("signed timestamp (%s), %s", e.clock, DefaultTolerance)
	}
	if e.about.fresh != "" {
		in.Freshness = e.about.fresh
	}
	return in
}

func describe(places []place, otherwise string) string {
	var words []string
	for _, p := range places {
		words = append(words, p.String())
		if p.bodyHash || p.arrival {
			return strings.Join(words, ", else ") // always found
		}
	}
	return strings.Join(append(words, otherwise), ", else ")
}
