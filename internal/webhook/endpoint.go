package webhook

import (
	"errors"
	"fmt"
	"net/mail"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// EndpointState says whether an endpoint is sent anything.
type EndpointState string

// Endpoint states.
const (
	EndpointActive   EndpointState = "active"
	EndpointPaused   EndpointState = "paused"   // by a person; deliveries are held
	EndpointDisabled EndpointState = "disabled" // by a person, by 410, or after days of failures; deliveries are held
	EndpointDeleted  EndpointState = "deleted"  // deliveries are cancelled
)

// The timeout bounds one attempt: connect, TLS, request, headers and body.
const (
	DefaultTimeout = 15 * time.Second
	MinTimeout     = time.Second
	MaxTimeout     = 60 * time.Second
)

// Default limits of an endpoint's queue.
const (
	DefaultRatePerSecond  = 50
	DefaultMaxConcurrency = 20
)

// PayloadMode is what of an event an endpoint is sent as the body.
type PayloadMode string

// Payload modes. PayloadDefault is raw for events of configured inbound sources,
// whose receivers know the provider's format, and wrapped for published ones.
const (
	PayloadDefault     PayloadMode = ""
	PayloadWrapped     PayloadMode = "wrapped"     // {"type","timestamp","data"} around the publisher's bytes
	PayloadRaw         PayloadMode = "raw"         // the publisher's bytes and content type
	PayloadThin        PayloadMode = "thin"        // ids and a URL to fetch the rest from
	PayloadCloudEvents PayloadMode = "cloudevents" // CloudEvents 1.0, structured JSON
)

// Ordering is how an endpoint is sent events that share an ordering key.
type Ordering string

// Orderings. All but OrderingNone have at most one delivery per key under way, the
// next only once the one before has ended, and differ in what a dead one does.
const (
	OrderingNone          Ordering = ""
	OrderingBlock         Ordering = "block"           // the key waits until somebody replays or skips it
	OrderingSkipAfterDead Ordering = "skip-after-dead" // the key goes on
	OrderingParkKey       Ordering = "park-key"        // what follows is held until it is released
)

// Queueing is what kind of queue an endpoint is to have.
type Queueing string

// Kinds of queueing. An own queue enforces the endpoint's limits exactly and delays
// nobody else; there are about 1,000 in a region.
const (
	QueueingAuto Queueing = ""     // its own, while there are enough
	QueueingOwn  Queueing = "own"  // its own, also of those kept in reserve
	QueueingPool Queueing = "pool" // shared ones
)

// AuthKind is how an endpoint wants to be authenticated to, besides signatures.
type AuthKind string

// Kinds of authentication.
const (
	AuthNone   AuthKind = ""
	AuthBasic  AuthKind = "basic"
	AuthBearer AuthKind = "bearer"
	AuthOAuth2 AuthKind = "oauth2" // client credentials, RFC 6749 section 4.4
	AuthMTLS   AuthKind = "mtls"   // a client certificate
)

// EndpointAuth is an endpoint's authentication: what may be shown, and the
// credentials as they are stored, sealed like a signing key.
type EndpointAuth struct {
	Kind AuthKind `json:"kind,omitempty"`
	// Summary is fit to be shown: a user name, a client id and its token URL without
	// query, a certificate's subject and end.
	Summary  string `json:"summary,omitempty"`
	Sealed   []byte `json:"-"`
	SealedBy string `json:"-"`
}

// SignatureTemplate is a further signature header in another scheme's form, for
// receivers that still verify that. See package signing.
type SignatureTemplate struct {
	Header   string `json:"header"`
	Template string `json:"template"`
}

// EndpointSettings are the optional properties of an endpoint. The zero value is
// an endpoint that is sent every event it subscribes to, unordered, signed, in
// the default payload mode.
type EndpointSettings struct {
	// Filter is a CEL expression over the event (package expr) that says whether it
	// is sent; empty means yes. RecordFiltered keeps a delivery, in state filtered,
	// of what it said no to.
	Filter         string      `json:"filter,omitempty"`
	RecordFiltered bool        `json:"record_filtered,omitempty"`
	PayloadMode    PayloadMode `json:"payload_mode,omitempty"`
	Ordering       Ordering    `json:"ordering,omitempty"`
	// Headers are sent with every attempt; none may be one that Sealpost or HTTP
	// gives a meaning.
	Headers []Header            `json:"headers,omitempty"`
	Legacy  []SignatureTemplate `json:"legacy_signatures,omitempty"`
	Auth    EndpointAuth        `json:"auth,omitzero"`
	Health  HealthPolicy        `json:"health,omitzero"`
	// Owner is whom to tell when the endpoint fails: an e-mail address or an https
	// URL.
	Owner    string            `json:"owner,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// APIVersion pins the format of the publisher's payloads for this endpoint; it is
	// sent as X-Sealpost-Api-Version.
	APIVersion string `json:"api_version,omitempty"`
	// Queueing says what kind of queue carries the endpoint's tasks.
	Queueing Queueing `json:"queueing,omitempty"`
	// ManagedBy names who alone changes the endpoint: empty for API and CLI,
	// [ManagedByTerraform] for one that is declared there, its queue included.
	ManagedBy string `json:"managed_by,omitempty"`
}

// ManagedByTerraform marks what is declared in Terraform and read-only elsewhere.
const ManagedByTerraform = "terraform"

// Endpoint is a destination that is sent the events it subscribes to.
type Endpoint struct {
	Tenant string
	ID     string
	// URL is https, or pubsub://TOPIC for a topic of the same project.
	URL         string
	Description string
	EventTypes  []string // patterns, see [MatchType]
	State       EndpointState
	StateReason string
	StateSince  time.Time
	// RatePerSecond and MaxConcurrency are enforced by the endpoint's own queue, or by
	// the dispatcher where a pool serves it.
	RatePerSecond  float64
	MaxConcurrency int64
	Timeout        time.Duration
	Retry          RetryPolicy
	// Queue is the endpoint's own Cloud Tasks queue (the last part of its name).
	// It carries what is planned from QueueReadyAt on and, if that is set, before
	// QueueLeftAt; pool queues carry the rest. Empty: the pools carry everything.
	Queue        string
	QueueReadyAt time.Time
	QueueLeftAt  time.Time
	EndpointSettings
	CreatedAt time.Time
	UpdatedAt time.Time
}

// QueueRef says where an endpoint's tasks go.
type QueueRef struct {
	Tenant   string
	Endpoint string
	Own      string    // the endpoint's own queue
	ReadyAt  time.Time // since when Own has been seen to dispatch; zero = not yet
	LeftAt   time.Time // from when on Own gets no new tasks; zero = no such time
}

// QueueRef is the endpoint's.
func (e *Endpoint) QueueRef() QueueRef {
	return QueueRef{Tenant: e.Tenant, Endpoint: e.ID, Own: e.Queue, ReadyAt: e.QueueReadyAt, LeftAt: e.QueueLeftAt}
}

// ReservedTypes begins the types of Sealpost's own events: tests and notices.
const ReservedTypes = "sealpost."

// TypeTest is the type of a test event.
const TypeTest = ReservedTypes + "test"

// Subscribes reports whether the endpoint wants the event: same tenant, not
// deleted, and a pattern that matches. A paused or disabled endpoint still
// subscribes: its deliveries are held, not lost. The payload filter is not asked.
//
// Sealpost's own events tell of other endpoints: "*" does not select them, only a
// pattern that names them ("sealpost.*").
func (e *Endpoint) Subscribes(ev *Event) bool {
	if e.Tenant != ev.Tenant || e.State == EndpointDeleted {
		return false
	}
	if !strings.HasPrefix(ev.Type, ReservedTypes) {
		return MatchType(e.EventTypes, ev.Type)
	}
	for _, p := range e.EventTypes {
		if strings.HasPrefix(p, ReservedTypes) && MatchType([]string{p}, ev.Type) {
			return true
		}
	}
	return false
}

// Limits of an endpoint's settings, in bytes where not a number of things.
const (
	MaxFilter          = 4 << 10
	MaxLegacyTemplate  = 1 << 10
	MaxOwner           = 320
	MaxMetadata        = 50
	MaxMetadataKey     = 64
	MaxMetadataValue   = 512
	MaxAPIVersion      = 64
	MaxAuthSummary     = 1 << 10
	MaxAuthSealed      = 64 << 10
	maxSealedByVersion = 256
)

// ValidURL reports why u cannot be an endpoint's: it must be http or https with a
// host and without credentials, or [TopicScheme] and the name of a topic. Whether it
// may be dialled is not asked here.
func ValidURL(u string) error {
	if topic, ok := (&Endpoint{URL: u}).Topic(); ok {
		if err := ValidTopic(topic); err != nil {
			return fmt.Errorf("url: %w", err)
		}
		return nil
	}
	p, err := url.Parse(u)
	switch {
	case u == "":
		return errors.New("url is empty")
	case err != nil:
		return errors.New("url cannot be parsed") // its text may hold a secret
	case p.Scheme != "https" && p.Scheme != "http":
		return fmt.Errorf("url: scheme %q is not https, http or pubsub", p.Scheme)
	case p.Host == "" || p.Hostname() == "":
		return errors.New("url has no host")
	case p.User != nil:
		return errors.New("url holds credentials before its host: use the endpoint's authentication")
	}
	return nil
}

// Validate reports every fault of the settings, each with the name of its field.
// Whether a filter compiles and a template can be filled is for those to say who do
// it.
func (s *EndpointSettings) Validate() error {
	errs := []error{
		text("filter", s.Filter, MaxFilter),
		oneOf("payload_mode", s.PayloadMode, PayloadDefault, PayloadWrapped, PayloadRaw, PayloadThin, PayloadCloudEvents),
		oneOf("ordering", s.Ordering, OrderingNone, OrderingBlock, OrderingSkipAfterDead, OrderingParkKey),
		s.ValidHeaders(), s.validLegacy(), s.Auth.validate(), validOwner(s.Owner), validMetadata(s.Metadata),
		text("api_version", s.APIVersion, MaxAPIVersion),
		oneOf("queueing", s.Queueing, QueueingAuto, QueueingOwn, QueueingPool),
		oneOf("managed_by", s.ManagedBy, "", ManagedByTerraform),
	}
	if err := s.Health.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("health: %w", err))
	}
	if err := validHeaderValue(s.APIVersion); err != nil {
		errs = append(errs, fmt.Errorf("api_version: %w", err))
	}
	return errors.Join(errs...)
}

// validLegacy looks at the templates; their headers are looked at with all others.
func (s *EndpointSettings) validLegacy() error {
	for i, l := range s.Legacy {
		if l.Template == "" || len(l.Template) > MaxLegacyTemplate {
			return fmt.Errorf("legacy signature %d: the template has %d bytes, want 1 to %d", i+1, len(l.Template), MaxLegacyTemplate)
		}
	}
	return nil
}

func (a *EndpointAuth) validate() error {
	if err := oneOf("auth.kind", a.Kind, AuthNone, AuthBasic, AuthBearer, AuthOAuth2, AuthMTLS); err != nil {
		return err
	}
	switch {
	case len(a.Sealed) > MaxAuthSealed:
		return fmt.Errorf("auth: the sealed credentials have %d bytes, at most %d are allowed", len(a.Sealed), MaxAuthSealed)
	case a.Kind == AuthNone && (len(a.Sealed) > 0 || a.Summary != "" || a.SealedBy != ""):
		return errors.New("auth: there are credentials, and no kind")
	case a.Kind != AuthNone && (len(a.Sealed) == 0 || a.SealedBy == ""):
		return fmt.Errorf("auth: the credentials of kind %q are missing", a.Kind)
	case len(a.SealedBy) > maxSealedByVersion:
		return fmt.Errorf("auth: the keyset version has %d bytes", len(a.SealedBy))
	}
	return text("auth.summary", a.Summary, MaxAuthSummary)
}

// validOwner takes what can be told: an e-mail address, or an https URL.
func validOwner(o string) error {
	if err := text("owner", o, MaxOwner); err != nil || o == "" {
		return err
	}
	if strings.Contains(o, "://") {
		if u, err := url.Parse(o); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
			return errors.New("owner: not an https URL with a host and without credentials")
		}
		return nil
	}
	if a, err := mail.ParseAddress(o); err != nil || a.Address != o {
		return fmt.Errorf("owner: %q is neither an e-mail address nor an https URL", o)
	}
	return nil
}

func validMetadata(m map[string]string) error {
	if len(m) > MaxMetadata {
		return fmt.Errorf("metadata: there are %d entries, at most %d are allowed", len(m), MaxMetadata)
	}
	for k, v := range m {
		if k == "" {
			return errors.New("metadata: a key is empty")
		}
		if err := text("metadata: key", k, MaxMetadataKey); err != nil {
			return err
		}
		if err := text(fmt.Sprintf("metadata: value of %q", k), v, MaxMetadataValue); err != nil {
			return err
		}
	}
	return nil
}

// text reports why a value of a field cannot be kept: too long, not UTF-8, or with
// control characters other than white space.
func text(field, v string, limit int) error {
	if len(v) > limit {
		return fmt.Errorf("%s has %d bytes, at most %d are allowed", field, len(v), limit)
	}
	if !utf8.ValidString(v) {
		return fmt.Errorf("%s is not valid UTF-8", field)
	}
	if i := strings.IndexFunc(v, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r' }); i >= 0 {
		return fmt.Errorf("%s holds a control character at byte %d", field, i+1)
	}
	return nil
}

func oneOf[T ~string](field string, v T, known ...T) error {
	var names []string
	for _, k := range known {
		if v == k {
			return nil
		}
		if k != "" {
			names = append(names, string(k))
		}
	}
	return fmt.Errorf("%s: %q is not one of %s", field, v, strings.Join(names, ", "))
}
