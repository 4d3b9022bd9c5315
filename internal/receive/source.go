package receive

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/expr"
	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/schema"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Limits and defaults of a source.
const (
	DefaultBodyLimit = 25 << 20 // what GitHub sends at most
	MaxBodyLimit     = 32 << 20 // what Cloud Run passes on over HTTP/1

	DefaultPublishDeadline = 2 * time.Second
	MinPublishDeadline     = 50 * time.Millisecond
	MaxPublishDeadline     = 30 * time.Second

	// OnReplayFlag has a suspected replay accepted and marked, since some providers
	// do send equal bodies; OnReplayRefuse has it stored as rejected.
	OnReplayFlag   = "flag"
	OnReplayRefuse = "refuse"

	// SchemaReject refuses what breaks its schema; SchemaFlag accepts and marks it.
	SchemaReject = "reject"
	SchemaFlag   = "flag"

	maxSecrets  = 8 // of one source; each is compared with every request
	maxPrefixes = 1000

	celPrefix = "cel:"
)

// Source is one provider's way in: POST /in/{ID}.
type Source struct {
	ID     string
	Scheme string
	Tenant string // webhook.DefaultTenant if empty
	// Secrets are read by explicit version number. Several are a rotation.
	Secrets []SecretRef
	// AllowTypes are patterns ([webhook.MatchType]) of the event types wanted; all
	// if empty. An authentic event of another type is answered 204 and counted.
	AllowTypes []string
	// Tolerance of signed timestamps; nil means [provider.DefaultTolerance].
	Tolerance *time.Duration
	// BodyLimit is the largest body accepted, in bytes; 0 means [DefaultBodyLimit].
	BodyLimit int64
	// PublishDeadline bounds the wait for the publish result; 0 means
	// [DefaultPublishDeadline]. It should lie well inside the provider's timeout.
	PublishDeadline time.Duration
	// PublicURL is where the provider posts to, for schemes that sign it. It is
	// never taken from a request.
	PublicURL string

	// Settings of single schemes, see [provider.Options].
	HMAC           *provider.HMAC
	Token          *provider.Token
	JWT            *provider.JWT
	WebhookID      string
	Topics         []string
	VerifyToken    string
	AsanaHandshake bool
	// OnReplay says what becomes of a body that comes again under an id that nobody
	// signed: [OnReplayFlag] (or empty) or [OnReplayRefuse].
	OnReplay string
	// Dedupe replaces the scheme's identity of events: a header or preset, see
	// [provider.Options], or "cel:" and an expression that gives a string (package
	// expr). An expression sees the scheme's own id as id, and every header but
	// signatures and credentials. It should include the type: order-paid and
	// order-shipped of one order are two events. Source and tenant are always part of
	// the identity.
	//
	// Where an expression fails or gives the empty string, the event is accepted under
	// the scheme's own identity, since to refuse it would lose it; it is counted as
	// accepted_dedupe_fallback, marked [webhook.FlagDedupeFallback], and the log line
	// says why. The same event always fares the same.
	Dedupe string

	// Admission. All of it is judged after the signature, except AllowCIDRs and the
	// client certificate, which are judged before the body is read and refuse as a bad
	// signature does.

	// ContentTypes are the media types wanted: "application/json", "application/*",
	// or "" for requests without one. Parameters and case do not count. Others are
	// answered 415. All if empty.
	ContentTypes []string
	// ContentEncoding says what becomes of a compressed body: [EncodingRefuse] (or
	// empty), [EncodingSigned] or [EncodingDecoded].
	ContentEncoding string
	// Schemas are what the payloads of event types must be; nil checks nothing. Types
	// without one are not checked.
	Schemas *schema.Set
	// SchemaMode is what becomes of a payload that breaks its schema: [SchemaReject]
	// (or empty) answers 400, [SchemaFlag] accepts and marks it.
	SchemaMode string
	// AllowCIDRs are the networks and addresses that may post; all if empty. The
	// client's address is as [Config].TrustedHops says.
	AllowCIDRs []string
	// MTLSSubject is the subject that a client's certificate must have, as RFC 4514
	// writes it, and MTLSSANs are alternative names of which it must have one:
	// "dns:client.example.com", "uri:spiffe://example.com/client". Both if both are
	// given. See [Config].ClientCertHeader.
	MTLSSubject string
	MTLSSANs    []string

	// Keys are the resolved secrets, newest first or not: each is tried.
	Keys []provider.Secret
}

// SecretRef names a secret of Secret Manager and the versions of it in use.
type SecretRef struct {
	Name     string
	Versions []int
}

var secretName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`)

// faults are all that is wrong with a source's settings, each with the setting's
// name. The secrets' values are not looked at.
func (s *Source) faults() []error {
	var out []error
	fault := func(format string, args ...any) { out = append(out, fmt.Errorf(format, args...)) }
	if err := webhook.ValidSource(s.ID); err != nil {
		fault("id: %w", err)
	}
	if s.Tenant != "" {
		if err := webhook.ValidName(s.Tenant); err != nil {
			fault("tenant: %w", err)
		}
	}
	for _, p := range s.AllowTypes {
		if err := webhook.ValidPattern(p); err != nil {
			fault("allow_types: %w", err)
		}
	}
	if s.OnReplay != "" && s.OnReplay != OnReplayFlag && s.OnReplay != OnReplayRefuse {
		fault("on_replay: %q is neither %s nor %s", s.OnReplay, OnReplayFlag, OnReplayRefuse)
	}
	if s.BodyLimit < 0 || s.BodyLimit > MaxBodyLimit {
		fault("body_limit: %d is not between 1 and %d", s.BodyLimit, MaxBodyLimit)
	}
	if d := s.PublishDeadline; d != 0 && (d < MinPublishDeadline || d > MaxPublishDeadline) {
		fault("publish_deadline: %s is not between %s and %s", d, MinPublishDeadline, MaxPublishDeadline)
	}
	if s.PublicURL != "" {
		u, err := url.Parse(s.PublicURL)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.Fragment != "" || u.RawQuery != "" || u.User != nil {
			fault("public_url: is not an absolute http or https URL without query, fragment and credentials")
		}
	}
	v, err := s.verifier()
	switch {
	case err != nil:
		out = append(out, err)
	case v.NeedsURL() && s.PublicURL == "":
		fault("public_url: scheme %s signs the URL, which must be configured", s.Scheme)
	}
	if err == nil && s.ContentEncoding == EncodingSigned && !v.SignsAsSent() {
		fault("content_encoding: scheme %s reads the body to verify it; want %s or %s", s.Scheme, EncodingRefuse, EncodingDecoded)
	}
	out = append(out, s.admissionFaults()...)
	return append(out, s.secretFaults()...)
}

// admissionFaults are what is wrong with the settings that decide about authentic
// events and about senders.
func (s *Source) admissionFaults() []error {
	var out []error
	fault := func(format string, args ...any) { out = append(out, fmt.Errorf(format, args...)) }
	if _, err := s.identifier(); err != nil {
		fault("dedupe: %w", err)
	}
	_, faults := parseTypes(s.ContentTypes)
	out = append(out, faults...)
	_, faults = parsePrefixes(s.AllowCIDRs)
	out = append(out, faults...)
	if len(s.AllowCIDRs) > maxPrefixes {
		fault("allow_cidrs: %d networks, at most %d are compared", len(s.AllowCIDRs), maxPrefixes)
	}
	if e := s.ContentEncoding; e != "" && e != EncodingRefuse && e != EncodingSigned && e != EncodingDecoded {
		fault("content_encoding: %.64q is none of %s, %s and %s", e, EncodingRefuse, EncodingSigned, EncodingDecoded)
	}
	switch m := s.SchemaMode; {
	case m != "" && m != SchemaReject && m != SchemaFlag:
		fault("schema_mode: %.64q is neither %s nor %s", m, SchemaReject, SchemaFlag)
	case m != "" && s.Schemas == nil:
		fault("schema_mode: there are no schemas")
	}
	for _, n := range s.MTLSSANs {
		if err := checkSAN(n); err != nil {
			out = append(out, err)
		}
	}
	return out
}

// identifier is the source's dedupe expression; nil if it has none.
func (s *Source) identifier() (*expr.Program, error) {
	text, ok := strings.CutPrefix(s.Dedupe, celPrefix)
	if !ok {
		return nil, nil
	}
	return expr.Compile(text, expr.String)
}

func (s *Source) secretFaults() []error {
	var out []error
	n := 0
	names := map[string]bool{}
	for _, ref := range s.Secrets {
		if !secretName.MatchString(ref.Name) {
			out = append(out, fmt.Errorf("secrets: name %q is not 1-255 letters, digits, '-' or '_'", ref.Name))
		}
		if names[ref.Name] {
			out = append(out, fmt.Errorf("secrets: %q is listed twice", ref.Name))
		}
		names[ref.Name] = true
		if len(ref.Versions) == 0 {
			out = append(out, fmt.Errorf("secrets: %q lists no version number", ref.Name))
		}
		seen := map[int]bool{}
		for _, v := range ref.Versions {
			if v < 1 || seen[v] {
				out = append(out, fmt.Errorf("secrets: %q: version %d is not a positive number listed once", ref.Name, v))
			}
			seen[v] = true
			n++
		}
	}
	if n > maxSecrets {
		out = append(out, fmt.Errorf("secrets: %d versions, at most %d are tried", n, maxSecrets))
	}
	return out
}

func (s *Source) verifier() (*provider.Scheme, error) {
	dedupe := s.Dedupe
	if strings.HasPrefix(dedupe, celPrefix) {
		dedupe = "" // the scheme's own identity is what the expression sees
	}
	return provider.New(s.Scheme, provider.Options{
		Tolerance: s.Tolerance, HMAC: s.HMAC, Token: s.Token, JWT: s.JWT, WebhookID: s.WebhookID, Topics: s.Topics,
		VerifyToken: s.VerifyToken, AsanaHandshake: s.AsanaHandshake, Dedupe: dedupe,
	})
}

// checkSources reports every fault of every source at once.
func checkSources(sources []Source, more func(*Source) []error) error {
	var all []error
	seen := map[string]bool{}
	for i := range sources {
		s := &sources[i]
		if s.ID != "" && seen[s.ID] {
			all = append(all, fmt.Errorf("source %q: id: is used twice", s.ID))
		}
		seen[s.ID] = true
		for _, err := range append(s.faults(), more(s)...) {
			all = append(all, fmt.Errorf("source %s: %w", label(s.ID, i), err))
		}
	}
	return errors.Join(all...)
}

func label(id string, index int) string {
	if id == "" {
		return fmt.Sprintf("#%d", index+1)
	}
	if len(id) > 64 {
		id = id[:64] + "…"
	}
	return fmt.Sprintf("%q", strings.ToValidUTF8(id, "?"))
}
