package webhook

import "time"

// EndpointState says whether an endpoint is sent anything.
type EndpointState string

// Endpoint states.
const (
	EndpointActive   EndpointState = "active"
	EndpointDisabled EndpointState = "disabled" // deliveries are held
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

// Endpoint is a URL that is sent the events it subscribes to.
type Endpoint struct {
	Tenant      string
	ID          string
	URL         string
	Description string
	EventTypes  []string // patterns, see [MatchType]
	State       EndpointState
	StateReason string
	StateSince  time.Time
	// RatePerSecond and MaxConcurrency are enforced by the endpoint's queue.
	RatePerSecond  float64
	MaxConcurrency int64
	Timeout        time.Duration
	Retry          RetryPolicy
	// Queue is the endpoint's own Cloud Tasks queue (the last part of its name).
	// It carries tasks once QueueReadyAt is set; until then a pool queue does.
	Queue        string
	QueueReadyAt time.Time
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// QueueRef says where an endpoint's tasks go.
type QueueRef struct {
	Tenant   string
	Endpoint string
	Own      string    // the endpoint's own queue
	ReadyAt  time.Time // since when Own has been seen to dispatch; zero = not yet
}

// QueueRef is the endpoint's.
func (e *Endpoint) QueueRef() QueueRef {
	return QueueRef{Tenant: e.Tenant, Endpoint: e.ID, Own: e.Queue, ReadyAt: e.QueueReadyAt}
}

// Subscribes reports whether the endpoint wants the event: same tenant, not
// deleted, and a pattern that matches. A disabled endpoint still subscribes: its
// deliveries are held, not lost.
func (e *Endpoint) Subscribes(ev *Event) bool {
	return e.Tenant == ev.Tenant && e.State != EndpointDeleted && MatchType(e.EventTypes, ev.Type)
}
