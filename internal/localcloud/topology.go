package localcloud

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// The project and region that local emulators are used with.
const (
	DefaultProject  = "sealpost-local"
	DefaultLocation = "us-central1"
)

//go:embed topology.json
var topologyJSON []byte

// Topology is the set of topics, subscriptions and queues of a Sealpost project, by
// name, as topology.json has it. Terraform reads the same file with jsondecode.
type Topology struct {
	Topics        map[string]Topic        `json:"topics"`
	Subscriptions map[string]Subscription `json:"subscriptions"`
	Queues        map[string]Queue        `json:"queues"`
}

// Topic is a Pub/Sub topic. It has no settings so far.
type Topic struct{}

// Subscription is a Pub/Sub subscription. None expires when idle, and none is
// ordered: ordering can't be changed later, and our per-key order lives in Spanner.
type Subscription struct {
	Topic string `json:"topic"`
	// Push is where messages go by default; nil: they are pulled.
	Push *Push `json:"push"`
	// AckDeadlineSeconds bounds one push request. It is Pub/Sub's maximum for work that
	// may take long (a wide fan-out): a worker that dies breaks the connection, which
	// redelivers at once, whatever the deadline.
	AckDeadlineSeconds int32 `json:"ack_deadline_seconds"`
	// RetentionSeconds is how long an unacknowledged message is kept (31 days at most).
	RetentionSeconds int64 `json:"retention_seconds"`
	Retry            Retry `json:"retry"`
	// DeadLetter is nil for the subscriptions of dead-letter topics.
	DeadLetter *DeadLetter `json:"dead_letter"`
}

// Push names the service that messages are posted to.
type Push struct {
	Service string `json:"service"` // as in services/
	Path    string `json:"path"`
	// ServiceAccount is the account id whose OIDC token a push carries. An emulator
	// sends none.
	ServiceAccount string `json:"service_account"`
}

// Retry is the exponential backoff between deliveries of one message.
type Retry struct {
	MinimumBackoffSeconds int64 `json:"minimum_backoff_seconds"`
	MaximumBackoffSeconds int64 `json:"maximum_backoff_seconds"`
}

// DeadLetter is where a message goes that could not be handled.
type DeadLetter struct {
	Topic string `json:"topic"`
	// MaxDeliveryAttempts, 5 to 100. With the backoff it decides how long an outage of
	// ours may last before it dead-letters the backlog: 100 attempts at 10 to 600 s are
	// some 15 hours.
	MaxDeliveryAttempts int32 `json:"max_delivery_attempts"`
}

// Queue is a Cloud Tasks queue.
type Queue struct {
	// Role is "control" for the queue of probes and other tasks of our own, "pool" for
	// queues that serve endpoints that have none of their own (yet).
	Role                    string  `json:"role"`
	MaxDispatchesPerSecond  float64 `json:"max_dispatches_per_second"`
	MaxConcurrentDispatches int32   `json:"max_concurrent_dispatches"`
	MaxAttempts             int32   `json:"max_attempts"` // -1: for ever
	MinBackoffSeconds       int64   `json:"min_backoff_seconds"`
	MaxBackoffSeconds       int64   `json:"max_backoff_seconds"`
	MaxDoublings            int32   `json:"max_doublings"`
}

// LoadTopology returns the embedded topology, a fresh copy each time.
func LoadTopology() (Topology, error) {
	t, err := ParseTopology(topologyJSON)
	if err != nil {
		return Topology{}, fmt.Errorf("embedded topology.json: %w", err)
	}
	return t, nil
}

// ParseTopology reads a topology in the form of topology.json and validates it.
// Unknown settings are errors: a misspelt one would be ignored here and in
// Terraform alike.
func ParseTopology(data []byte) (Topology, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var t Topology
	if err := d.Decode(&t); err != nil {
		return Topology{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Topology{}, errors.New("more than one JSON value")
	}
	return t, t.Validate()
}

// PoolQueues are the names of the queues that serve endpoints without a queue of
// their own, sorted.
func (t Topology) PoolQueues() []string { return t.queues("pool") }

// ControlQueue is the name of the queue of our own tasks.
func (t Topology) ControlQueue() string {
	if names := t.queues("control"); len(names) > 0 {
		return names[0]
	}
	return ""
}

func (t Topology) queues(role string) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(t.Queues)) {
		if t.Queues[name].Role == role {
			names = append(names, name)
		}
	}
	return names
}

// SubscriptionsOf are the names of a topic's subscriptions, sorted.
func (t Topology) SubscriptionsOf(topic string) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(t.Subscriptions)) {
		if t.Subscriptions[name].Topic == topic {
			names = append(names, name)
		}
	}
	return names
}

// Validate reports every fault at once, by name: references to topics that are not
// there, a dead letter of a dead letter, figures outside Google's limits.
func (t Topology) Validate() error {
	var errs []error
	fault := func(kind, name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s %s: %s", kind, name, fmt.Sprintf(format, args...)))
	}
	if n := len(t.queues("control")); n != 1 {
		errs = append(errs, fmt.Errorf("queues: %d with role control, want 1", n))
	}
	if len(t.PoolQueues()) == 0 {
		errs = append(errs, errors.New("queues: none with role pool"))
	}
	dead := map[string]bool{}
	for _, s := range t.Subscriptions {
		if s.DeadLetter != nil {
			dead[s.DeadLetter.Topic] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Subscriptions)) {
		t.Subscriptions[name].validate(t.Topics, dead, func(format string, args ...any) {
			fault("subscription", name, format, args...)
		})
	}
	for topic := range dead {
		if len(t.SubscriptionsOf(topic)) == 0 {
			fault("topic", topic, "has no subscription: dead letters would be lost")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.Queues)) {
		t.Queues[name].validate(func(format string, args ...any) { fault("queue", name, format, args...) })
	}
	return errors.Join(errs...)
}

// secondsOf31Days is the longest retention of a subscription, and of a task.
const secondsOf31Days = int64(31 * 24 * time.Hour / time.Second)

func (s Subscription) validate(topics map[string]Topic, dead map[string]bool, fault func(string, ...any)) {
	if _, ok := topics[s.Topic]; !ok {
		fault("topic %q is not in topics", s.Topic)
	}
	if s.AckDeadlineSeconds < 10 || s.AckDeadlineSeconds > 600 {
		fault("ack_deadline_seconds %d, want 10 to 600", s.AckDeadlineSeconds)
	}
	if s.RetentionSeconds < 600 || s.RetentionSeconds > secondsOf31Days {
		fault("retention_seconds %d, want 600 to %d", s.RetentionSeconds, secondsOf31Days)
	}
	if r := s.Retry; r.MinimumBackoffSeconds < 0 || r.MinimumBackoffSeconds > r.MaximumBackoffSeconds || r.MaximumBackoffSeconds > 600 {
		fault("retry %d to %d s, want 0 ≤ minimum ≤ maximum ≤ 600", r.MinimumBackoffSeconds, r.MaximumBackoffSeconds)
	}
	if s.Push != nil && (s.Push.Service == "" || len(s.Push.Path) < 2 || s.Push.Path[0] != '/' || s.Push.ServiceAccount == "") {
		fault("push needs a service, a path and a service_account")
	}
	switch d := s.DeadLetter; {
	case d == nil && !dead[s.Topic]:
		fault("has no dead_letter")
	case d == nil:
	case dead[s.Topic]:
		fault("a dead letter of a dead letter")
	case d.MaxDeliveryAttempts < 5 || d.MaxDeliveryAttempts > 100:
		fault("max_delivery_attempts %d, want 5 to 100", d.MaxDeliveryAttempts)
	default:
		if _, ok := topics[d.Topic]; !ok {
			fault("dead-letter topic %q is not in topics", d.Topic)
		}
	}
}

func (q Queue) validate(fault func(string, ...any)) {
	if q.Role != "control" && q.Role != "pool" {
		fault("role %q, want control or pool", q.Role)
	}
	if q.MaxDispatchesPerSecond <= 0 || q.MaxDispatchesPerSecond > 500 {
		fault("max_dispatches_per_second %g, want more than 0, at most 500", q.MaxDispatchesPerSecond)
	}
	if q.MaxConcurrentDispatches < 1 || q.MaxConcurrentDispatches > 5000 {
		fault("max_concurrent_dispatches %d, want 1 to 5000", q.MaxConcurrentDispatches)
	}
	if q.MaxAttempts != -1 {
		fault("max_attempts %d, want -1: Spanner decides when to give up", q.MaxAttempts)
	}
	if q.MinBackoffSeconds < 1 || q.MinBackoffSeconds > q.MaxBackoffSeconds {
		fault("backoff %d to %d s, want 1 ≤ min ≤ max", q.MinBackoffSeconds, q.MaxBackoffSeconds)
	}
	if q.MaxDoublings < 0 || q.MaxDoublings > 16 {
		fault("max_doublings %d, want 0 to 16", q.MaxDoublings)
	}
}
