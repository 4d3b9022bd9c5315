package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/google/uuid"
	"github.com/sealpost/sealpost/internal/webhook"
	"google.golang.org/api/option"
)

// Default retention of things that no delivery waits for.
const (
	DefaultPayloadRetention = 30 * 24 * time.Hour
	DefaultRowRetention     = 45 * 24 * time.Hour

	// MaxRetention is more than anybody needs and less than overflows.
	MaxRetention = 10 * 365 * 24 * time.Hour

	deadMessageRetention = 90 * 24 * time.Hour
	sourceCountRetention = 90 * 24 * time.Hour
	auditRetention       = 400 * 24 * time.Hour

	// closedGrace is how long a closed event's payload stays at least, however old
	// it is. Its row stays for as long as Pub/Sub may still deliver the message, and
	// a day.
	closedGrace    = 24 * time.Hour
	closedRowGrace = pubsubRetention + closedGrace
)

// What a row must outlive, so that a late repeat is still seen to be one.
const (
	// providerLookBack is the longest time after which a provider still lists or
	// repeats an event: Stripe, 30 days (https://docs.stripe.com/api/events).
	providerLookBack = 30 * 24 * time.Hour
	// pubsubRetention is the longest time for which Pub/Sub keeps a message
	// (https://cloud.google.com/pubsub/docs/subscription-properties).
	pubsubRetention = 31 * 24 * time.Hour
)

// Retention says how long events are kept, counted from their receipt: Payload
// for the bytes, Row for the row, which is the dedupe key. Zero means the
// default (30 and 45 days). Neither runs out while a delivery is open, nor within
// a day of the last one's end.
type Retention struct{ Payload, Row time.Duration }

func (r Retention) withDefaults() Retention {
	if r.Payload == 0 {
		r.Payload = DefaultPayloadRetention
	}
	if r.Row == 0 {
		r.Row = DefaultRowRetention
	}
	return r
}

// Validate reports every fault at once: Row must be longer than any provider's
// look-back and than Pub/Sub keeps messages, Payload positive and at most Row.
func (r Retention) Validate() error {
	r = r.withDefaults()
	var errs []error
	if r.Row <= providerLookBack {
		errs = append(errs, invalid("row retention %s: a provider may repeat an event for %s, which needs a longer one", r.Row, providerLookBack))
	}
	if r.Row <= pubsubRetention {
		errs = append(errs, invalid("row retention %s: Pub/Sub may deliver a message for %s, which needs a longer one", r.Row, pubsubRetention))
	}
	if r.Payload < 0 {
		errs = append(errs, invalid("payload retention %s is negative", r.Payload))
	}
	if r.Payload > r.Row {
		errs = append(errs, invalid("payload retention %s is longer than the row retention %s", r.Payload, r.Row))
	}
	return errors.Join(errs...)
}

// Options configure a [Store]. The zero value is usable.
type Options struct {
	Now       func() time.Time // default time.Now
	Retention Retention
	// Match says whether an endpoint gets an event; nil means
	// (*webhook.Endpoint).Subscribes. It is only asked about endpoints of the
	// event's tenant that are not deleted, and must depend on its arguments alone.
	Match func(*webhook.Endpoint, *webhook.Event) bool
	// Filter says whether an endpoint that matches, and has a filter, gets an event;
	// an error that the filter cannot say. It is asked inside transactions and must
	// depend on its arguments alone. Nil fails every filter.
	Filter func(*webhook.Endpoint, *webhook.Event) (bool, error)
	// FanoutChunk is the most deliveries that one commit may hold; the default and
	// the maximum are what fits Spanner's limit of mutations.
	FanoutChunk int
	// MaxEndpoints bounds a tenant's endpoints, and so the fan-out of an event:
	// Spanner deletes an expired event and its deliveries in one commit. Default
	// and maximum 10,000.
	MaxEndpoints int64
	NewID        func() [16]byte // default UUIDv7
	// ListStaleness is how old what lists show may be; 0 reads strongly. Some 10 s
	// lets any replica answer.
	ListStaleness time.Duration
}

// Store is the state. It is safe for concurrent use.
type Store struct {
	client *spanner.Client
	now    func() time.Time
	newID  func() [16]byte
	match  func(*webhook.Endpoint, *webhook.Event) bool
	filter func(*webhook.Endpoint, *webhook.Event) (bool, error)
	// matchesBody says that match or filter may read the body, which the default does
	// not.
	matchesBody bool
	retention   Retention
	chunk       int
	maxEps      int64
	staleness   time.Duration

	sets    *setCache
	cards   *cardCache
	trouble *troubleList
}

// New makes a Store on a client. It panics if o.Retention is not valid, since a
// program would lose its duplicates' memory silently: check settings with
// [Retention.Validate] first.
func New(client *spanner.Client, o Options) *Store {
	if err := o.Retention.Validate(); err != nil {
		panic("store: " + err.Error())
	}
	s := &Store{
		client:      client,
		now:         o.Now,
		newID:       o.NewID,
		match:       o.Match,
		filter:      o.Filter,
		matchesBody: o.Match != nil || o.Filter != nil,
		retention:   o.Retention.withDefaults(),
		chunk:       o.FanoutChunk,
		maxEps:      o.MaxEndpoints,
		staleness:   o.ListStaleness,
		sets:        newSetCache(),
		cards:       newCardCache(),
		trouble:     &troubleList{},
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.newID == nil {
		s.newID = func() [16]byte { return uuid.Must(uuid.NewV7()) }
	}
	if s.match == nil {
		s.match = (*webhook.Endpoint).Subscribes
	}
	if s.filter == nil {
		s.filter = func(*webhook.Endpoint, *webhook.Event) (bool, error) { return false, errNoFilter }
	}
	if s.chunk <= 0 || s.chunk > maxChunk {
		s.chunk = maxChunk
	}
	if s.maxEps <= 0 || s.maxEps > defaultMaxEndpoints {
		s.maxEps = defaultMaxEndpoints
	}
	return s
}

// Open makes a client of the database ("projects/p/instances/i/databases/d") and
// a Store on it. It waits on nothing: with no Spanner in reach it succeeds, and
// [Store.Ping] and every other call say so. Options that are not valid are an
// error. The Store is to be closed.
func Open(ctx context.Context, database string, o Options, opts ...option.ClientOption) (*Store, error) {
	if err := o.Retention.Validate(); err != nil {
		return nil, fmt.Errorf("open %s: %w", database, err)
	}
	client, err := spanner.NewClientWithConfig(ctx, database, spanner.ClientConfig{
		// Log lines are the metrics; native ones would need one more role.
		DisableNativeMetrics: true,
	}, opts...)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", database, err)
	}
	return New(client, o), nil
}

// Close closes the client. Calls that are under way fail.
func (s *Store) Close() { s.client.Close() }

// Ping reports whether Spanner answers and has the schema.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.client.Single().WithTimestampBound(spanner.MaxStaleness(10*time.Second)).
		ReadRowWithOptions(ctx, "EndpointSets", spanner.Key{""}, []string{"Version"}, tag("ping"))
	if err != nil && !errors.Is(err, spanner.ErrRowNotFound) {
		return wrap(err, "ping")
	}
	return nil
}

var errNoFilter = errors.New("filters are not evaluated here")

// clock is the time as Spanner stores it.
func (s *Store) clock() time.Time { return s.now().UTC().Round(0) }

// write runs one read-write transaction. f runs again when Spanner aborts it, and
// must start from nothing each time.
func (s *Store) write(ctx context.Context, verb string, f func(context.Context, *spanner.ReadWriteTransaction) error) (time.Time, error) {
	resp, err := s.client.ReadWriteTransactionWithOptions(ctx, f, spanner.TransactionOptions{TransactionTag: "sealpost-" + verb})
	return resp.CommitTs, mapped(err)
}

// tag labels a read in Spanner's query statistics.
func tag(verb string) *spanner.ReadOptions {
	return &spanner.ReadOptions{RequestTag: "sealpost-" + verb}
}

func limited(verb string, n int) *spanner.ReadOptions {
	o := tag(verb)
	o.Limit = n
	return o
}

// rowExpiry and payloadExpiry are when what was received at a time and has had no
// open delivery since closed may go.
func (r Retention) rowExpiry(received, closed time.Time) time.Time {
	return later(received.Add(r.Row), closed.Add(closedRowGrace))
}

func (r Retention) payloadExpiry(received, closed time.Time) time.Time {
	return later(received.Add(r.Payload), closed.Add(closedGrace))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
