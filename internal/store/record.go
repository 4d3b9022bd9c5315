package store

import (
	"context"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// AttemptRecord is one attempt that was made, and what was decided from it.
type AttemptRecord struct {
	Attempt  webhook.Attempt
	Decision webhook.Decision
	Queue    webhook.QueueRef // of the endpoint, for the next task
}

// Recorded is what became of an AttemptRecord.
type Recorded struct {
	// Applied says that the attempt is in the history, by this call or an earlier
	// one with the same record.
	Applied bool
	// Delivery is the row as it is now; its zero value if there is none.
	Delivery webhook.Delivery
	// Next is the task that ought to exist now, if the delivery is scheduled.
	Next *webhook.Task
}

// Record writes what attempts came to, in one transaction per group.
//
// A record applies if its delivery is still scheduled at its generation and
// attempt. If the delivery has moved on within the generation and is still open,
// a success turns it delivered all the same (recorded as the attempt that the
// delivery stands at, since the endpoint will see no other), while a failure is
// dropped. An attempt that was under way when its delivery was cancelled or held is
// added to the history and changes nothing else. Everything else that comes late
// is dropped. Repeating a call is harmless:
// what an earlier one has applied comes back as applied.
//
// The last open delivery of an event starts the event's retention. A decision to
// disable also disables the endpoint.
func (s *Store) Record(ctx context.Context, recs []AttemptRecord) ([]Recorded, error) {
	for i := range recs {
		if err := checkRecord(&recs[i]); err != nil {
			return nil, wrap(err, "record %s", recs[i].Attempt.Key)
		}
	}
	out := make([]Recorded, 0, len(recs))
	for len(recs) > 0 {
		n := min(len(recs), maxGroup)
		part, err := s.recordGroup(ctx, recs[:n])
		if err != nil {
			return nil, wrap(err, "record %d attempts from %s", len(recs), recs[0].Attempt.Key)
		}
		out = append(out, part...)
		recs = recs[n:]
	}
	return out, nil
}

func checkRecord(r *AttemptRecord) error {
	k, d := r.Attempt.Key, r.Decision
	switch {
	case k.Event == webhook.EventKey{} || k.Tenant == "" || k.Endpoint == "" || k.Generation < 1 || k.Attempt < 1:
		return invalid("attempt key is incomplete")
	case r.Attempt.StartedAt.IsZero():
		return invalid("attempt has no start")
	}
	switch d.State {
	case webhook.DeliveryScheduled:
		if d.NextAttempt != k.Attempt+1 || d.NextAttemptAt.IsZero() {
			return invalid("decision schedules attempt %d at %v after attempt %d", d.NextAttempt, d.NextAttemptAt, k.Attempt)
		}
	case webhook.DeliveryDelivered, webhook.DeliveryDead, webhook.DeliveryHeld, webhook.DeliveryCancelled:
	default:
		return invalid("decision to make the delivery %q", d.State)
	}
	return nil
}

func (s *Store) recordGroup(ctx context.Context, recs []AttemptRecord) ([]Recorded, error) {
	var tx *recording
	_, err := s.write(ctx, "record", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		tx = &recording{now: s.clock(), rows: map[deliveryID]*webhook.Delivery{}, dirty: map[deliveryID]bool{},
			closed: closings{}, history: map[attemptID]time.Time{}, disable: map[endpointID]string{}}
		if err := tx.read(ctx, txn, recs); err != nil {
			return err
		}
		out := make([]Recorded, len(recs))
		for i := range recs {
			out[i].Applied = tx.apply(&recs[i])
		}
		tx.out = out
		for i := range recs {
			tx.fill(&recs[i], &out[i])
		}
		ms := tx.mutations()
		closing, err := s.closeEvents(ctx, txn, tx.closed, tx.now, false)
		if err != nil {
			return err
		}
		disabling, err := s.disable(ctx, txn, tx.disable, tx.now)
		if err != nil {
			return err
		}
		ms = append(ms, closing...)
		return txn.BufferWrite(append(ms, disabling...))
	})
	if err != nil {
		return nil, err
	}
	for id := range tx.disable {
		s.cards.forget(id.tenant, id.id)
	}
	return tx.out, s.refreshQueues(ctx, tx.out)
}

// refreshQueues looks again which queues the endpoints have: the attempts may have
// begun a minute ago.
func (s *Store) refreshQueues(ctx context.Context, recorded []Recorded) error {
	ids := map[endpointID]bool{}
	for _, r := range recorded {
		if n := r.Next; n != nil {
			ids[endpointID{n.Key.Tenant, n.Key.Endpoint}] = true
		}
	}
	cards, err := s.cardsOf(ctx, ids)
	if err != nil {
		return err
	}
	for _, r := range recorded {
		if n := r.Next; n != nil {
			n.Queue = cards[endpointID{n.Key.Tenant, n.Key.Endpoint}].queue()
		}
	}
	return nil
}

type deliveryID struct {
	event    webhook.EventKey
	endpoint string
}

type attemptID struct {
	delivery            deliveryID
	generation, attempt int64
}

// recording is one run of one record transaction.
type recording struct {
	now     time.Time
	rows    map[deliveryID]*webhook.Delivery
	history map[attemptID]time.Time // recorded attempts that matter here: their starts
	dirty   map[deliveryID]bool
	closed  closings
	disable map[endpointID]string // why
	inserts []*spanner.Mutation
	out     []Recorded
}

func (tx *recording) read(ctx context.Context, txn *spanner.ReadWriteTransaction, recs []AttemptRecord) error {
	asked := map[deliveryID]bool{}
	var keys []spanner.Key
	for i := range recs {
		k := recs[i].Attempt.Key
		if id := (deliveryID{k.Event, k.Endpoint}); !asked[id] {
			asked[id] = true
			keys = append(keys, spanner.Key{k.Event[:], k.Endpoint})
		}
	}
	rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("record")))
	if err != nil {
		return err
	}
	for i := range rows {
		d := rows[i].delivery()
		tx.rows[deliveryID{d.Event, d.Endpoint}] = &d
	}
	return tx.readHistory(ctx, txn, recs)
}

// readHistory looks up whether records that do not fit their row any more were
// applied before. In the common case there are none and nothing is read.
func (tx *recording) readHistory(ctx context.Context, txn *spanner.ReadWriteTransaction, recs []AttemptRecord) error {
	asked := map[attemptID]bool{}
	var keys []spanner.Key
	for i := range recs {
		k := recs[i].Attempt.Key
		id := deliveryID{k.Event, k.Endpoint}
		d := tx.rows[id]
		if d == nil || d.Tenant != k.Tenant || standsAt(d, k) {
			continue
		}
		for _, n := range []int64{k.Attempt, d.Attempt} {
			if a := (attemptID{id, k.Generation, n}); !asked[a] {
				asked[a] = true
				keys = append(keys, spanner.Key{k.Event[:], k.Endpoint, k.Generation, n})
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	rows, err := collect[attemptRow](txn.ReadWithOptions(ctx, "Attempts", spanner.KeySetFromKeys(keys...),
		[]string{"EventKey", "EndpointId", "Generation", "Attempt", "StartedAt"}, tag("record-history")))
	if err != nil {
		return err
	}
	for _, r := range rows {
		tx.history[attemptID{deliveryID{keyOf(r.EventKey), r.EndpointID}, r.Generation, r.Attempt}] = r.StartedAt
	}
	return nil
}

// standsAt reports whether d waits for exactly the attempt k.
func standsAt(d *webhook.Delivery, k webhook.AttemptKey) bool {
	return d.State == webhook.DeliveryScheduled && d.Generation == k.Generation && d.Attempt == k.Attempt
}

// apply changes the row that r is about and reports whether r is in the history.
func (tx *recording) apply(r *AttemptRecord) bool {
	k := r.Attempt.Key
	id := deliveryID{k.Event, k.Endpoint}
	d := tx.rows[id]
	if d == nil || d.Tenant != k.Tenant {
		return false
	}
	number, decision := k.Attempt, r.Decision
	switch {
	case standsAt(d, k):
	case tx.recorded(id, r, k.Attempt), tx.recorded(id, r, d.Attempt):
		return true
	case d.State.Open() && d.Generation == k.Generation && r.Attempt.Outcome.OK():
		// Late, but the endpoint has the event.
		decision = webhook.Decision{State: webhook.DeliveryDelivered}
		if number = d.Attempt; d.State != webhook.DeliveryScheduled {
			number++ // a held row stands at the last attempt that was made
		}
	case !d.State.Open() && d.Generation == k.Generation && k.Attempt == d.Attempt+1:
		// Settled while the attempt was under way: the state stays, but what was
		// sent belongs into the history.
		decision = webhook.Decision{State: d.State, Reason: d.Reason}
	default:
		return false
	}
	wasOpen := d.State.Open()
	d.State, d.Reason = decision.State, decision.Reason
	d.Attempt, d.Trigger, d.NextAttemptAt = number, r.Attempt.Trigger, time.Time{}
	if decision.State == webhook.DeliveryScheduled {
		d.Attempt, d.Trigger, d.NextAttemptAt = decision.NextAttempt, webhook.TriggerAutomatic, decision.NextAttemptAt.UTC().Round(0)
	}
	d.LastStatus, d.LastClass, d.UpdatedAt = r.Attempt.Outcome.Status, r.Attempt.Outcome.Class, tx.now
	tx.dirty[id] = true
	if wasOpen && !d.State.Open() {
		tx.closed.add(d)
	}
	if decision.Disable {
		tx.disable[endpointID{d.Tenant, d.Endpoint}] = decision.Reason
	}
	tx.history[attemptID{id, k.Generation, number}] = r.Attempt.StartedAt
	tx.inserts = append(tx.inserts, upsert("Attempts", newAttemptRow(&r.Attempt, number)))
	return true
}

func (tx *recording) recorded(id deliveryID, r *AttemptRecord, n int64) bool {
	at, ok := tx.history[attemptID{id, r.Attempt.Key.Generation, n}]
	return ok && at.Equal(r.Attempt.StartedAt)
}

func (tx *recording) fill(r *AttemptRecord, out *Recorded) {
	k := r.Attempt.Key
	d := tx.rows[deliveryID{k.Event, k.Endpoint}]
	if d == nil || d.Tenant != k.Tenant {
		return
	}
	out.Delivery = *d
	if d.State == webhook.DeliveryScheduled {
		out.Next = &webhook.Task{Key: d.Key(), At: d.NextAttemptAt, Planned: d.UpdatedAt, Queue: r.Queue}
	}
}

func (tx *recording) mutations() []*spanner.Mutation {
	var ms []*spanner.Mutation
	for id := range tx.dirty {
		ms = append(ms, updateDelivery(tx.rows[id]))
	}
	return append(ms, tx.inserts...)
}

// Settle ends the attempt k without making it: the delivery becomes held or
// cancelled, for the reason given. A delivery that is gone, has moved on, or is
// settled already is left alone.
func (s *Store) Settle(ctx context.Context, k webhook.AttemptKey, to webhook.DeliveryState, reason string) error {
	if to != webhook.DeliveryHeld && to != webhook.DeliveryCancelled {
		return wrap(invalid("a delivery is settled as held or cancelled, not %q", to), "settle %s", k)
	}
	_, err := s.write(ctx, "settle", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.Key{k.Event[:], k.Endpoint}, deliveryColumns, tag("settle")))
		if err != nil || len(rows) == 0 {
			return err
		}
		d := rows[0].delivery()
		if d.Tenant != k.Tenant || !standsAt(&d, k) {
			return nil
		}
		now := s.clock()
		stop(&d, to, reason, now)
		closed := closings{}
		if !to.Open() {
			closed.add(&d)
		}
		ms, err := s.closeEvents(ctx, txn, closed, now, false)
		if err != nil {
			return err
		}
		return txn.BufferWrite(append(ms, updateDelivery(&d)))
	})
	return wrap(err, "settle %s as %s", k, to)
}

// stop takes an open delivery out of the schedule without an attempt.
func stop(d *webhook.Delivery, to webhook.DeliveryState, reason string, now time.Time) {
	if d.State == webhook.DeliveryScheduled {
		d.Attempt-- // from the next one to the last one made
	}
	d.State, d.Reason, d.NextAttemptAt, d.UpdatedAt = to, reason, time.Time{}, now
}
