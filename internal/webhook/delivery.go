package webhook

import "time"

// DeliveryState is the fate of one event at one endpoint.
type DeliveryState string

// Delivery states. Only scheduled, waiting and held are open: something may still
// be sent without anybody asking for a replay.
const (
	DeliveryScheduled DeliveryState = "scheduled" // waits for its next attempt
	DeliveryWaiting   DeliveryState = "waiting"   // for an earlier delivery of its ordering key to end
	DeliveryDelivered DeliveryState = "delivered" // the endpoint said 2xx
	DeliveryDead      DeliveryState = "dead"      // attempts or age exhausted
	DeliveryHeld      DeliveryState = "held"      // endpoint paused, disabled or its circuit open, or its filter failed: kept until released or replayed
	DeliveryCancelled DeliveryState = "cancelled" // endpoint or payload removed
	DeliveryFiltered  DeliveryState = "filtered"  // the endpoint's payload filter said no
)

// Open reports whether the delivery may still be attempted of its own accord.
func (s DeliveryState) Open() bool {
	return s == DeliveryScheduled || s == DeliveryWaiting || s == DeliveryHeld
}

// Trigger is why an attempt was made.
type Trigger string

// Triggers.
const (
	TriggerAutomatic          Trigger = "automatic"
	TriggerReplay             Trigger = "replay"
	TriggerProbe              Trigger = "probe"
	TriggerProviderRedelivery Trigger = "provider-redelivery"
	TriggerTest               Trigger = "test"
)

// Class is how an attempt ended.
type Class string

// Classes. Ambiguous means that the request was fully written and no answer was
// seen: the endpoint may have acted.
const (
	ClassOK        Class = "ok"
	ClassStatus    Class = "status"
	ClassTimeout   Class = "timeout"
	ClassDNS       Class = "dns"
	ClassConnect   Class = "connect"
	ClassTLS       Class = "tls"
	ClassReset     Class = "reset"
	ClassBody      Class = "body"
	ClassBlocked   Class = "blocked"
	ClassAmbiguous Class = "ambiguous"
)

// Delivery is one event's way to one endpoint. There is one per event and
// endpoint by construction.
type Delivery struct {
	Event      EventKey
	Tenant     string
	Endpoint   string
	EventType  string
	State      DeliveryState
	Reason     string // why it is in that state, for people; may be empty
	Generation int64
	// Attempt is the number of the next attempt while scheduled, else of the last
	// one made (0 if none was).
	Attempt int64
	Task    int64
	Trigger Trigger // of the next attempt
	// NextAttemptAt is set while scheduled.
	NextAttemptAt time.Time
	// StartedAt is when the generation started: what a maximum age counts from.
	StartedAt  time.Time
	LastStatus int
	LastClass  Class
	// OrderKey and OrderSeq are the delivery's number among those of its endpoint and
	// ordering key, and stay what they are; both are zero where there is no order.
	OrderKey OrderKey
	OrderSeq int64
	// OrderPlace is its place in the line of those that are open: OrderSeq, unless it
	// has joined the line again; 0 if it is not in it.
	OrderPlace int64
	CreatedAt  time.Time
	UpdatedAt  time.Time
}

// Ordered reports whether the delivery has its turn and must wait for it.
func (d *Delivery) Ordered() bool { return d.OrderSeq != 0 }

// Key names the delivery's next attempt.
func (d *Delivery) Key() AttemptKey {
	return AttemptKey{Event: d.Event, Tenant: d.Tenant, Endpoint: d.Endpoint, Generation: d.Generation, Attempt: d.Attempt, Task: d.Task}
}

// Attempt is what happened at one try, as it is kept.
type Attempt struct {
	Key       AttemptKey
	Trigger   Trigger
	StartedAt time.Time
	Duration  time.Duration
	Outcome   Outcome
	// Error says in words what went wrong; empty for 2xx. It never holds
	// credentials or query strings.
	Error string
	// URL is the one used, with query values masked.
	URL        string
	RemoteAddr string
	KeyIDs     []string // signing keys used, newest first
	// Excerpt is the start of the answer's body; Truncated says that there was more.
	Excerpt      []byte
	Truncated    bool
	WroteRequest bool // the whole request was written to the connection
	// Exchange is set where a person asked for the attempt; see [Exchange].
	Exchange *Exchange
}

// Task is a Cloud Task that ought to exist.
type Task struct {
	Key   AttemptKey
	At    time.Time // not before; zero = now
	Queue QueueRef
	// Planned is when the delivery came to wait for this attempt.
	Planned time.Time
	// Slot is the time that the endpoint's rate limit has allotted to the attempt, if
	// it has been put back for that; zero if not.
	Slot time.Time
	// Direct keeps the task out of the endpoint's own queue, which may be paused:
	// probes and tests go out all the same.
	Direct bool
}

// Direct reports whether the trigger's attempts are made while the endpoint's own
// queue may be paused.
func (t Trigger) Direct() bool { return t == TriggerProbe || t == TriggerTest }

// InOwnQueue reports whether the task belongs into the endpoint's own queue. It
// depends on when the attempt was planned, not on when it is asked: Cloud Tasks
// knows a task's name within one queue only, so that a task made again must go
// where the first went, or the attempt would be made twice.
func (t *Task) InOwnQueue() bool {
	q := t.Queue
	return !t.Direct && q.Own != "" && !q.ReadyAt.IsZero() && !q.ReadyAt.After(t.Planned) &&
		(q.LeftAt.IsZero() || q.LeftAt.After(t.Planned))
}
