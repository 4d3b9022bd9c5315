package webhook

import "time"

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
	// sent as X-Sealpost-Api-Version and may be used in filters.
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

// Subscribes reports whether the endpoint wants the event: same tenant, not
// deleted, and a pattern that matches. A paused or disabled endpoint still
// subscribes: its deliveries are held, not lost. The payload filter is not asked.
func (e *Endpoint) Subscribes(ev *Event) bool {
	return e.Tenant == ev.Tenant && e.State != EndpointDeleted && MatchType(e.EventTypes, ev.Type)
}
