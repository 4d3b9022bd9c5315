package store

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// AttemptRecord is one attempt that was made, and what was decided from it.
type AttemptRecord struct {
	Attempt  webhook.Attempt
	Decision webhook.Decision
	Queue    webhook.QueueRef // of the endpoint, for the next task
	Ordering webhook.Ordering // of the endpoint
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
	// Follower is the task of the next delivery in line, if this one was the head of
	// an ordering key and has ended.
	Follower *webhook.Task
	// Controls are the control tasks that ought to exist now because of this attempt.
	Controls []webhook.Control
	// Again says that this call added nothing to the history. Whoever did may have
	// stopped before it made the controls: see [Store.Outstanding].
	Again bool
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
// The last open delivery of an event starts the event's retention. What the attempt
// says of the endpoint is judged in the same commit, see health.go: it opens or
// closes the breaker, keeps dispatches back, or disables. A delivery whose probe
// failed is held then, and one that was to come before a throttle's end comes after.
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
			closed: closings{}, history: map[attemptID]time.Time{}, settled: map[endpointID]*settlement{}, out: make([]Recorded, len(recs))}
		return tx.run(ctx, txn, s, recs)
	})
	if err != nil {
		return nil, err
	}
	for id, e := range tx.settled {
		if e.health.LastSuccessAt = e.before.LastSuccessAt; e.health != e.before || e.disable != "" {
			s.cards.forget(id.tenant, id.id)
			s.trouble.forget()
		}
	}
	return tx.out, s.refreshQueues(ctx, tx.out)
}

// run is one run of the transaction.
func (tx *recording) run(ctx context.Context, txn *spanner.ReadWriteTransaction, s *Store, recs []AttemptRecord) error {
	if err := tx.read(ctx, txn, recs); err != nil {
		return err
	}
	for i := range recs {
		tx.out[i].Again = true
		tx.out[i].Applied = tx.apply(i, &recs[i])
	}
	if err := tx.observe(ctx, txn); err != nil {
		return err
	}
	for _, e := range tx.settled {
		for _, o := range e.seen {
			tx.place(&recs[o.record], e)
		}
	}
	followers, advancing, err := s.advance(ctx, txn, tx.ended, tx.now)
	if err != nil {
		return err
	}
	for i := range recs {
		tx.fill(&recs[i], &tx.out[i], followers)
	}
	ms := append(tx.mutations(), advancing...)
	closing, err := s.closeEvents(ctx, txn, tx.closed, tx.now, false)
	if err != nil {
		return err
	}
	following, err := s.consequences(ctx, txn, tx)
	if err != nil {
		return err
	}
	return txn.BufferWrite(slices.Concat(ms, closing, following))
}

// refreshQueues looks again which queues the endpoints have: the attempts may have
// begun a minute ago.
func (s *Store) refreshQueues(ctx context.Context, recorded []Recorded) error {
	ids := map[endpointID]bool{}
	var tasks []*webhook.Task
	for i := range recorded {
		for _, t := range []*webhook.Task{recorded[i].Next, recorded[i].Follower} {
			if t != nil {
				ids[endpointID{t.Key.Tenant, t.Key.Endpoint}] = true
				tasks = append(tasks, t)
			}
		}
	}
	cards, err := s.cardsOf(ctx, ids)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		t.Queue = cards[endpointID{t.Key.Tenant, t.Key.Endpoint}].queue()
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
	settled map[endpointID]*settlement
	ended   []ended
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

// apply changes the row that r, number i of the records, is about and reports
// whether r is in the history.
func (tx *recording) apply(i int, r *AttemptRecord) bool {
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
	if decision.State == webhook.DeliveryHeld && d.Trigger == webhook.TriggerProbe {
		d.Trigger = webhook.TriggerAutomatic // what comes next is none
	}
	d.LastStatus, d.LastClass, d.UpdatedAt = r.Attempt.Outcome.Status, r.Attempt.Outcome.Class, tx.now
	tx.dirty[id] = true
	if wasOpen && !d.State.Open() {
		tx.closed.add(d)
		tx.ended = append(tx.ended, ended{d, r.Ordering})
	}
	tx.out[i].Again = false
	tx.note(i, r)
	tx.history[attemptID{id, k.Generation, number}] = r.Attempt.StartedAt
	tx.inserts = append(tx.inserts, upsert("Attempts", newAttemptRow(&r.Attempt, number)))
	return true
}

// note remembers what the attempt says of its endpoint.
func (tx *recording) note(i int, r *AttemptRecord) {
	a := &r.Attempt
	if a.Trigger == webhook.TriggerTest {
		return
	}
	id := endpointID{a.Key.Tenant, a.Key.Endpoint}
	if tx.settled[id] == nil {
		tx.settled[id] = &settlement{}
	}
	at := a.StartedAt.Add(a.Duration).UTC().Round(0)
	if at.After(tx.now) {
		at = tx.now
	}
	tx.settled[id].seen = append(tx.settled[id].seen, observed{i, webhook.Observation{Outcome: a.Outcome, StartedAt: a.StartedAt,
		Probe: a.Trigger == webhook.TriggerProbe}, at})
}

func (tx *recording) recorded(id deliveryID, r *AttemptRecord, n int64) bool {
	at, ok := tx.history[attemptID{id, r.Attempt.Key.Generation, n}]
	return ok && at.Equal(r.Attempt.StartedAt)
}

func (tx *recording) fill(r *AttemptRecord, out *Recorded, followers []webhook.Delivery) {
	k := r.Attempt.Key
	d := tx.rows[deliveryID{k.Event, k.Endpoint}]
	if d == nil || d.Tenant != k.Tenant {
		return
	}
	out.Delivery = *d
	for i := range followers {
		if f := &followers[i]; d.Ordered() && orderOf(f) == orderOf(d) {
			out.Follower = taskOf(f, r.Queue)
		}
	}
	if d.State == webhook.DeliveryScheduled {
		out.Next = taskOf(d, r.Queue)
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
// settled already is left alone. settled is false, and nothing changes, if it was
// to be held for a reason that is none any more: whoever claimed it knew the
// endpoint as it was two seconds ago, and a release may have passed by since. Claim
// it again then.
func (s *Store) Settle(ctx context.Context, k webhook.AttemptKey, to webhook.DeliveryState, reason string) (settled bool, err error) {
	if to != webhook.DeliveryHeld && to != webhook.DeliveryCancelled {
		return false, wrap(invalid("a delivery is settled as held or cancelled, not %q", to), "settle %s", k)
	}
	_, err = s.write(ctx, "settle", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		settled = true
		row, err := readDelivery(ctx, txn, k.Tenant, k.Event, k.Endpoint, "settle")
		if err != nil || row == nil {
			return err
		}
		d, now := row.delivery(), s.clock()
		if !standsAt(&d, k) {
			return nil
		}
		if to == webhook.DeliveryHeld {
			ep, h, err := readBoth(ctx, txn, k.Tenant, k.Endpoint)
			if err != nil {
				return err
			}
			var a webhook.Admission
			if a, reason = webhook.Admit(&ep, &h, d.Trigger, now); a != webhook.AdmitHeld {
				settled = false
				return nil
			}
		}
		stop(&d, to, reason, now)
		closed := closings{}
		if !to.Open() {
			closed.add(&d)
		}
		ms, err := s.closeEvents(ctx, txn, closed, now, false)
		if err != nil {
			return err
		}
		if !to.Open() {
			_, advancing, err := s.advance(ctx, txn, []ended{{delivery: &d}}, now)
			if err != nil {
				return err
			}
			ms = append(ms, advancing...)
		}
		return txn.BufferWrite(append(ms, updateDelivery(&d)))
	})
	if !settled {
		s.cards.forget(k.Tenant, k.Endpoint)
	}
	return settled, wrap(err, "settle %s as %s", k, to)
}

// Postpone puts off the attempt k, which is none, until the endpoint's throttle is
// over, and gives the task that ought to exist instead; nil if the delivery has
// moved on. postponed is false, and nothing changes, if the endpoint is not
// throttled any more: claim the attempt again then. A repeated call gives the same
// task.
func (s *Store) Postpone(ctx context.Context, k webhook.AttemptKey) (task *webhook.Task, postponed bool, err error) {
	_, err = s.write(ctx, "postpone", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		task, postponed = nil, true
		row, err := readDelivery(ctx, txn, k.Tenant, k.Event, k.Endpoint, "postpone")
		if err != nil || row == nil {
			return err
		}
		d, now := row.delivery(), s.clock()
		if !standsAt(&d, k) {
			return nil
		}
		ep, h, err := readBoth(ctx, txn, k.Tenant, k.Endpoint)
		if err != nil {
			return err
		}
		if d.Task <= k.Task {
			if a, _ := webhook.Admit(&ep, &h, d.Trigger, now); a != webhook.AdmitLater {
				postponed = false
				return nil
			}
			d.NextAttemptAt, d.Reason, d.UpdatedAt = h.AfterThrottle(k, now).UTC().Round(0), webhook.ReasonThrottled, now
			d.Task = k.Task + 1
			if err := txn.BufferWrite([]*spanner.Mutation{updateDelivery(&d)}); err != nil {
				return err
			}
		}
		task = taskOf(&d, ep.QueueRef())
		return nil
	})
	if !postponed {
		s.cards.forget(k.Tenant, k.Endpoint)
	}
	return task, postponed, wrap(err, "postpone %s", k)
}

// taskOf is the task that a scheduled delivery ought to have.
func taskOf(d *webhook.Delivery, q webhook.QueueRef) *webhook.Task {
	return &webhook.Task{Key: d.Key(), At: d.NextAttemptAt, Planned: d.UpdatedAt, Queue: q, Direct: d.Trigger.Direct()}
}

// stop takes an open delivery out of the schedule without an attempt.
func stop(d *webhook.Delivery, to webhook.DeliveryState, reason string, now time.Time) {
	if d.State == webhook.DeliveryScheduled {
		d.Attempt-- // from the next one to the last one made
	}
	if d.Trigger == webhook.TriggerProbe {
		d.Trigger = webhook.TriggerAutomatic // what comes next is none
	}
	d.State, d.Reason, d.NextAttemptAt, d.UpdatedAt = to, reason, time.Time{}, now
}
