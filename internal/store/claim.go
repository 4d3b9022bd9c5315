package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
	"golang.org/x/sync/errgroup"
)

// Verdict is what a task is to do.
type Verdict string

// Verdicts.
const (
	VerdictRun       Verdict = "run"       // make the attempt
	VerdictStale     Verdict = "stale"     // the delivery has moved on: do nothing but see to Claim.Current
	VerdictProbe     Verdict = "probe"     // the breaker's cool-down is over: begin a probe with it
	VerdictHeld      Verdict = "held"      // the endpoint is paused, disabled or its breaker open: settle as held
	VerdictLater     Verdict = "later"     // the endpoint asked for fewer requests: postpone to Claim.At
	VerdictCancelled Verdict = "cancelled" // the endpoint or the payload is gone: settle as cancelled
	VerdictGone      Verdict = "gone"      // there is no such delivery
	VerdictLeased    Verdict = "leased"    // another run is at it: run the task again later
)

// Claim is what the dispatcher needs to know for one attempt.
type Claim struct {
	Verdict Verdict
	Reason  string // for held and cancelled; one of webhook's reasons
	// Delivery is set unless gone; Event (see Unpack for its Body), Endpoint and
	// Keys if the verdict is run.
	Delivery webhook.Delivery
	Event    webhook.Event
	Endpoint webhook.Endpoint
	Keys     []SealedKey // valid now, newest first
	// Current is set for stale: the task that ought to exist instead, if the delivery
	// is still scheduled, or if it was the head of an ordering key whose next one is.
	Current *webhook.Task
	// At is when a throttle lets the attempt be made, for later.
	At time.Time
	// Controls are those that the endpoint's state calls for. They exist, unless
	// whoever made the change stopped before it made them; making one again is
	// harmless.
	Controls []webhook.Control

	// Size is the body's, in bytes.
	Size int64

	packed *packed
}

// clockSkew is how far two machines' clocks may be apart without harm.
const clockSkew = 10 * time.Minute

// Unpack sets Event.Body. It is a step of its own because a body may be many times
// larger than what is stored: callers can first make sure of the memory,
// Size bytes.
func (c *Claim) Unpack() error {
	if c.packed == nil {
		return nil
	}
	body, err := unpack(*c.packed)
	if err != nil {
		return fmt.Errorf("payload of %s: %w", c.Event.Key, err)
	}
	c.Event.Body, c.packed = body, nil
	return nil
}

// recent lets the nearest replica answer with the newest it has. An event and its
// payload never change, but for the payload's removal, which such a read can miss
// for this long.
var recent = spanner.MaxStaleness(2 * time.Second)

// Claim says whether the attempt k is to be made now. It writes nothing: two
// claims of one attempt may both say run, and [Store.Record] keeps one; only
// deliveries in an order are leased to one run at a time. The delivery is read
// strongly; endpoint, health and keys are at most two seconds old, for every kind of
// queue: that a queue is paused only saves work.
//
// An attempt runs if its delivery is scheduled at this generation and attempt,
// the task is not older than the row's, and [webhook.Admit] lets it.
func (s *Store) Claim(ctx context.Context, k webhook.AttemptKey) (*Claim, error) {
	var (
		row  *deliveryRow
		ev   *storedEvent
		card *card
	)
	var err error
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		row, err = s.delivery(gctx, k.Tenant, k.Event, k.Endpoint, "claim")
		return err
	})
	g.Go(func() (err error) {
		ev, err = s.storedEvent(gctx, k.Tenant, k.Event, recent, spanner.StrongRead())
		return err
	})
	g.Go(func() (err error) {
		card, err = s.card(gctx, k.Tenant, k.Endpoint)
		return err
	})
	if err = g.Wait(); err != nil {
		return nil, wrap(err, "claim %s", k)
	}
	if row == nil || ev == nil {
		return &Claim{Verdict: VerdictGone}, nil
	}
	c := &Claim{Delivery: row.delivery()}
	d := &c.Delivery
	if d.State != webhook.DeliveryScheduled || d.Generation != k.Generation || d.Attempt != k.Attempt || k.Task < d.Task {
		c.Verdict = VerdictStale
		if d.State == webhook.DeliveryScheduled {
			c.Current = taskOf(d, card.queue())
		}
		if d.Ordered() && !d.State.Open() {
			if c.Current, err = s.headTask(ctx, d); err != nil {
				return nil, wrap(err, "claim %s", k)
			}
		}
		return c, nil
	}
	if !s.admit(c, card, ev.body != nil) {
		return c, nil
	}
	if d.Ordered() {
		if ok, err := s.lease(ctx, k, card.endpoint.Timeout); err != nil || !ok {
			c.Verdict = VerdictLeased
			return c, wrap(err, "claim %s", k)
		}
	}
	c.Verdict, c.Event, c.Endpoint, c.packed, c.Size = VerdictRun, ev.event, card.endpoint, ev.body, ev.size
	if d.Ordered() {
		c.Event.Sequence = d.OrderSeq
	}
	// Whoever made the endpoint's first key may have a clock that is ahead.
	for _, at := range []time.Time{s.clock(), s.clock().Add(clockSkew)} {
		for i := range card.keys {
			if card.keys[i].ValidAt(at) {
				c.Keys = append(c.Keys, card.keys[i])
			}
		}
		if len(c.Keys) > 0 {
			break
		}
	}
	return c, nil
}

// admit sets the verdict on an attempt that is not to be made, or reports that it
// may be.
func (s *Store) admit(c *Claim, card *card, stored bool) bool {
	if !card.exists {
		c.Verdict, c.Reason = VerdictCancelled, webhook.ReasonEndpointDeleted
		return false
	}
	now := s.clock()
	c.Controls = webhook.Outstanding(&card.endpoint, &card.health)
	a, reason := webhook.Admit(&card.endpoint, &card.health, c.Delivery.Trigger, now)
	c.Reason = reason
	switch {
	case a == webhook.AdmitCancel:
		c.Verdict = VerdictCancelled
	case !stored:
		c.Verdict, c.Reason = VerdictCancelled, webhook.ReasonPayloadGone
	case a == webhook.AdmitHeld:
		c.Verdict = VerdictHeld
	case a == webhook.AdmitProbe:
		c.Verdict = VerdictProbe
	case a == webhook.AdmitLater:
		c.Verdict, c.At = VerdictLater, card.health.AfterThrottle(c.Delivery.Key(), now)
	default:
		return true
	}
	return false
}

// delivery reads one row strongly; nil if the tenant has none.
func (s *Store) delivery(ctx context.Context, tenant string, k webhook.EventKey, endpoint, verb string) (*deliveryRow, error) {
	return readDelivery(ctx, s.client.Single(), tenant, k, endpoint, verb)
}

func readDelivery(ctx context.Context, from rowReader, tenant string, k webhook.EventKey, endpoint, verb string) (*deliveryRow, error) {
	r, err := from.ReadRowWithOptions(ctx, "Deliveries", spanner.Key{k[:], endpoint}, deliveryColumns, tag(verb))
	if errors.Is(err, spanner.ErrRowNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var row deliveryRow
	if err := r.ToStruct(&row); err != nil || row.Tenant != tenant {
		return nil, err
	}
	return &row, nil
}

// storedEvent is an event with its payload, nil where that is gone.
type storedEvent struct {
	event webhook.Event
	size  int64 // of the body as it came
	body  *packed
}

// storedEvent reads both in parallel, each at the first of bounds that has it. Nil
// if the tenant has no such event.
func (s *Store) storedEvent(ctx context.Context, tenant string, k webhook.EventKey, bounds ...spanner.TimestampBound) (*storedEvent, error) {
	var row *eventRow
	var body *payloadRow
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		row, err = readFirst[eventRow](gctx, s.client, bounds, "Events", k, eventColumns)
		return err
	})
	g.Go(func() (err error) {
		body, err = readFirst[payloadRow](gctx, s.client, bounds, "Payloads", k, payloadColumns)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if row == nil || row.Tenant != tenant || s.expired(row.ExpireAt) {
		return nil, nil
	}
	e, err := row.event()
	if err != nil {
		return nil, err
	}
	if e.OrderingKey != "" {
		e.Sequence = row.CommittedAt.UnixMicro()
	}
	out := &storedEvent{event: e, size: row.BodySize}
	if body != nil && !s.expired(body.ExpireAt) {
		out.body = &packed{body.Body, body.Encoding}
	}
	return out, nil
}

// readFirst reads an event's row of a table at the first bound that has it.
func readFirst[T any](ctx context.Context, c *spanner.Client, bounds []spanner.TimestampBound, table string, k webhook.EventKey, columns []string) (*T, error) {
	for _, b := range bounds {
		r, err := c.Single().WithTimestampBound(b).ReadRowWithOptions(ctx, table, spanner.Key{k[:]}, columns, tag("claim-event"))
		if errors.Is(err, spanner.ErrRowNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var v T
		if err := r.ToStruct(&v); err != nil {
			return nil, err
		}
		return &v, nil
	}
	return nil, nil
}

// expired reports whether a row is past its end: Spanner deletes it within 72 hours.
func (s *Store) expired(at spanner.NullTime) bool { return at.Valid && !at.Time.After(s.clock()) }
