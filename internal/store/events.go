package store

import (
	"context"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// EventRow is an event as it is stored, without its body.
type EventRow struct {
	webhook.Event
	State           webhook.EventState
	Size            int64 // bytes of the body as it came
	CommittedAt     time.Time
	Duplicates      int64
	LastDuplicateAt time.Time // zero if there was none
	FanoutPending   bool      // deliveries are still being made
	ExpungedAt      time.Time // when somebody removed the payload; zero if nobody did
	ExpireAt        time.Time // zero while a delivery is open
}

func (r *eventRow) public() (EventRow, error) {
	e, err := r.event()
	return EventRow{Event: e, State: webhook.EventState(r.State), Size: r.BodySize, CommittedAt: r.CommittedAt, Duplicates: r.Duplicates,
		LastDuplicateAt: plainTime(r.LastDuplicateAt), FanoutPending: r.FanoutAfter.Valid,
		ExpungedAt: plainTime(r.ExpungedAt), ExpireAt: plainTime(r.ExpireAt)}, err
}

// readEvent reads an event's row; another tenant's is answered like an absent one.
func readEvent(ctx context.Context, r rowReader, tenant string, k webhook.EventKey) (*eventRow, error) {
	row, err := r.ReadRowWithOptions(ctx, "Events", spanner.Key{k[:]}, eventColumns, tag("event"))
	if err != nil {
		return nil, err
	}
	var e eventRow
	if err := row.ToStruct(&e); err != nil {
		return nil, err
	}
	if e.Tenant != tenant {
		return nil, ErrNotFound
	}
	return &e, nil
}

// Event reads one event strongly. [ErrNotFound] if the tenant has none of that
// key or its retention is over.
func (s *Store) Event(ctx context.Context, tenant string, k webhook.EventKey) (EventRow, error) {
	row, err := readEvent(ctx, s.client.Single(), tenant, k)
	if err == nil && s.expired(row.ExpireAt) {
		err = ErrNotFound
	}
	if err != nil {
		return EventRow{}, wrap(err, "event %s", k)
	}
	out, err := row.public()
	return out, wrap(err, "event %s", k)
}

// Payload returns an event's body, byte for byte as it was ingested. [ErrNotFound]
// if the tenant has no such event, or its payload was expunged or is out of
// retention.
func (s *Store) Payload(ctx context.Context, tenant string, k webhook.EventKey) ([]byte, error) {
	ev, err := s.storedEvent(ctx, tenant, k, spanner.StrongRead())
	if err == nil && (ev == nil || ev.body == nil) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, wrap(err, "payload of %s", k)
	}
	body, err := unpack(*ev.body)
	return body, wrap(err, "payload of %s", k)
}

// Expunge removes an event's payload for good and keeps the row, which goes on to
// tell duplicates. Open deliveries are cancelled when they come up. A second call
// changes nothing.
func (s *Store) Expunge(ctx context.Context, tenant string, k webhook.EventKey, actor string) error {
	auditID := s.newID()
	_, err := s.write(ctx, "expunge", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		row, err := readEvent(ctx, txn, tenant, k)
		if err != nil || row.ExpungedAt.Valid {
			return err
		}
		now := s.clock()
		return txn.BufferWrite([]*spanner.Mutation{
			spanner.Delete("Payloads", spanner.Key{k[:]}),
			spanner.Update("Events", []string{"EventKey", "ExpungedAt"}, []any{k[:], now}),
			auditRow(auditID, tenant, actor, "event.expunge", k.ID(), nil, now),
		})
	})
	return wrap(err, "expunge %s", k)
}

// Delivery reads one delivery and all its attempts, oldest first, strongly.
// [ErrNotFound] if the tenant has none.
func (s *Store) Delivery(ctx context.Context, tenant string, k webhook.EventKey, endpoint string) (webhook.Delivery, []webhook.Attempt, error) {
	// One timestamp for all, or the row and its history would disagree.
	txn := s.client.ReadOnlyTransaction()
	defer txn.Close()
	row, err := readDelivery(ctx, txn, tenant, k, endpoint, "delivery")
	var rows []attemptRow
	if err == nil && row != nil {
		rows, err = collect[attemptRow](txn.ReadWithOptions(ctx, "Attempts", spanner.Key{k[:], endpoint}.AsPrefix(), attemptColumns, tag("attempts")))
	}
	var expired map[webhook.EventKey]bool
	if err == nil && row != nil {
		expired, err = s.expiredEvents(ctx, txn, []spanner.Key{{k[:]}})
	}
	if err == nil && (row == nil || expired[k]) {
		err = ErrNotFound
	}
	if err != nil {
		return webhook.Delivery{}, nil, wrap(err, "delivery of %s to %s/%s", k, tenant, endpoint)
	}
	attempts := make([]webhook.Attempt, len(rows))
	for i := range rows {
		attempts[i] = rows[i].attempt(tenant)
	}
	return row.delivery(), attempts, nil
}

// reader is a read-only transaction of either kind.
type reader interface {
	ReadWithOptions(ctx context.Context, table string, keys spanner.KeySet, columns []string, opts *spanner.ReadOptions) *spanner.RowIterator
}

// expiredEvents tells which of the events are out of retention.
func (s *Store) expiredEvents(ctx context.Context, r reader, keys []spanner.Key) (map[webhook.EventKey]bool, error) {
	rows, err := collect[eventRow](r.ReadWithOptions(ctx, "Events", spanner.KeySetFromKeys(keys...),
		[]string{"EventKey", "ExpireAt"}, tag("expiry")))
	out := map[webhook.EventKey]bool{}
	for _, r := range rows {
		out[keyOf(r.EventKey)] = s.expired(r.ExpireAt)
	}
	return out, err
}

// Overdue lists tasks of scheduled deliveries that were to start before the time
// given, the longest overdue first, at most limit. A rate-limited backlog is
// legitimately overdue: ask Cloud Tasks before making a task anew.
func (s *Store) Overdue(ctx context.Context, before time.Time, limit int) ([]webhook.Task, error) {
	if limit <= 0 {
		return nil, nil
	}
	p := plan{verb: "overdue", table: "Deliveries", index: "DeliveriesDue", columns: dueColumns, limit: limit, oldestFirst: true}
	for shard := range int64(dueShards) {
		p.ranges = append(p.ranges, spanner.KeyRange{Start: spanner.Key{shard}, End: spanner.Key{shard, before.UTC()}, Kind: spanner.ClosedOpen})
	}
	var rows []deliveryRow
	var order []webhook.EventKey
	err := s.merge(ctx, p, func(r *spanner.Row) (position, error) {
		var d deliveryRow
		err := r.ToStruct(&d)
		return position{at: plainTime(d.NextAttemptAt), key: d.EventKey, id: d.EndpointID}, err
	}, func(_ position, r *spanner.Row) (bool, error) {
		var d deliveryRow
		if err := r.ToStruct(&d); err != nil {
			return false, err
		}
		rows = append(rows, d)
		order = append(order, keyOf(d.EventKey))
		return len(rows) < limit, nil
	})
	if err != nil {
		return nil, wrap(err, "overdue before %s", before)
	}
	if rows, err = s.withTriggers(ctx, rows); err != nil {
		return nil, wrap(err, "overdue before %s", before)
	}
	byEvent, err := s.tasksOf(ctx, rows)
	if err != nil {
		return nil, wrap(err, "overdue before %s", before)
	}
	tasks := make([]webhook.Task, 0, len(rows))
	for _, k := range order { // tasksOf keeps the order within an event
		task := byEvent[k][0]
		task.Planned = s.clock() // a task made anew has a name of its own, good in any queue
		tasks = append(tasks, task)
		byEvent[k] = byEvent[k][1:]
	}
	return tasks, nil
}

// withTriggers completes rows from the index of due deliveries, which does not hold what
// their attempts are made for: probes and tests stay out of queues that may be paused.
func (s *Store) withTriggers(ctx context.Context, rows []deliveryRow) ([]deliveryRow, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	keys := make([]spanner.Key, len(rows))
	for i, r := range rows {
		keys[i] = spanner.Key{r.EventKey, r.EndpointID}
	}
	full, err := collect[deliveryRow](s.client.Single().ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...),
		[]string{"EventKey", "EndpointId", "NextTrigger"}, tag("overdue-triggers")))
	triggers := map[deliveryID]string{}
	for _, r := range full {
		triggers[deliveryID{keyOf(r.EventKey), r.EndpointID}] = r.NextTrigger
	}
	for i := range rows {
		rows[i].NextTrigger = triggers[deliveryID{keyOf(rows[i].EventKey), rows[i].EndpointID}]
	}
	return rows, err
}
