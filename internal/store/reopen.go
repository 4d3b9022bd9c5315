package store

import (
	"context"
	"maps"
	"slices"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// A provider that sends an event again, of its own accord or because somebody
// pressed its button, is told 2xx like the first time; were that all, the repeat
// would be swallowed although the event never got through. So a repeat re-opens
// the event's dead deliveries: each starts a new generation at attempt 1, by the
// trigger provider-redelivery, and the event's retention stands still again.
//
//   - Only dead ones. Delivered, held and cancelled ones stay as they are, and so
//     do those whose endpoint is deleted. Those of an endpoint that is paused, disabled
//     or whose breaker is open become held.
//   - Only from configured inbound sources. An application that publishes an id
//     again gets what it always gets, one event; for more there are replays.
//   - Only by a request that came after the delivery had died. What was waiting in
//     Pub/Sub meanwhile, or comes from it once more, did not ask for that.
//   - Only once per receipt, whatever clocks say: the event's row keeps the
//     receipts that re-opened something, [maxReopenings] at most; then only a
//     replay helps.
//   - Only while the payload is stored.
//
// The common repeat finds nothing dead, which costs one read of an index without
// locks. What there is to be done happens in a transaction after the one that
// counted the repeat: a crash between them, or before the tasks exist, leaves the
// message unacknowledged, its redelivery gets here again, and either the deliveries
// are re-opened then or their tasks are among those that ought to exist.

const (
	maxReopenings = 50
	// reopenChunk bounds the deliveries of one transaction.
	reopenChunk = 400
)

// repeat is a provider's own repeat of a stored event.
type repeat struct {
	tenant  string
	receipt string
	at      time.Time // when it was received
}

// reopen does what repeats ask for, and says how many deliveries of each event it
// re-opened and as of when all of this can be read: at, or later.
func (s *Store) reopen(ctx context.Context, repeats map[webhook.EventKey][]repeat, at time.Time) (map[webhook.EventKey]int, time.Time, error) {
	reopened := map[webhook.EventKey]int{}
	dead, err := s.deadBefore(ctx, repeats, at)
	if err != nil {
		return nil, at, err
	}
	if len(dead) == 0 {
		return reopened, at, nil
	}
	troubled, err := s.troubled(ctx)
	if err != nil {
		return nil, at, err
	}
	for k, ids := range dead {
		used := map[string]bool{}
		for chunk := range slices.Chunk(ids, reopenChunk) {
			last := chunk[len(chunk)-1] == ids[len(ids)-1]
			var n int
			var usedNow map[string]bool
			done, err := s.write(ctx, "reopen", func(ctx context.Context, txn *spanner.ReadWriteTransaction) (err error) {
				usedNow = maps.Clone(used)
				n, err = s.reopenChunk(ctx, txn, k, chunk, repeats[k], troubled, usedNow, last)
				return err
			})
			if err != nil {
				return nil, at, err
			}
			used = usedNow
			reopened[k] += n
			if done.After(at) {
				at = done
			}
		}
	}
	return reopened, at, nil
}

// deadBefore lists, as of at, the endpoints whose delivery of an event had died
// before one of its repeats came.
func (s *Store) deadBefore(ctx context.Context, repeats map[webhook.EventKey][]repeat, at time.Time) (map[webhook.EventKey][]string, error) {
	if len(repeats) == 0 {
		return nil, nil
	}
	var sets []spanner.KeySet
	for k, rs := range repeats {
		latest := slices.MaxFunc(rs, func(a, b repeat) int { return a.at.Compare(b.at) }).at
		sets = append(sets, spanner.KeyRange{Start: spanner.Key{k[:]}, End: spanner.Key{k[:], latest}, Kind: spanner.ClosedOpen})
	}
	opts := tag("dead-deliveries")
	opts.Index = "DeliveriesDeadByEvent"
	rows, err := collect[deliveryRow](s.client.Single().WithTimestampBound(spanner.ReadTimestamp(at)).ReadWithOptions(ctx, "Deliveries",
		spanner.KeySets(sets...), []string{"EventKey", "EndpointId"}, opts))
	out := map[webhook.EventKey][]string{}
	for _, r := range rows {
		k := keyOf(r.EventKey)
		out[k] = append(out[k], r.EndpointID)
	}
	return out, err
}

// reopenChunk re-opens those of an event's deliveries to the endpoints that are
// still dead and for which one of the repeats asks. used collects the receipts of
// those that do; with the last chunk they are spent.
func (s *Store) reopenChunk(ctx context.Context, txn *spanner.ReadWriteTransaction, k webhook.EventKey, endpoints []string, repeats []repeat, troubled map[string][]string, used map[string]bool, last bool) (int, error) {
	now := s.clock()
	row, err := s.reopenable(ctx, txn, k, now)
	if err != nil || row == nil {
		return 0, err
	}
	fresh := slices.DeleteFunc(slices.Clone(repeats), func(r repeat) bool { return slices.Contains(row.ReopenedBy, r.receipt) })
	if len(fresh) == 0 || len(row.ReopenedBy) >= maxReopenings {
		return 0, nil
	}
	sets, _, err := s.readSets(ctx, txn, map[string]bool{row.Tenant: true})
	if err != nil {
		return 0, err
	}
	held, err := readHolds(ctx, txn, troubled, sets, func(ep *webhook.Endpoint) bool { return slices.Contains(endpoints, ep.ID) }, now)
	if err != nil {
		return 0, err
	}
	var keys []spanner.Key
	for _, id := range endpoints {
		keys = append(keys, spanner.Key{k[:], id})
	}
	rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("reopen")))
	if err != nil {
		return 0, err
	}
	lines := map[orderID]bool{}
	for i := range rows {
		if d := rows[i].delivery(); d.Ordered() {
			lines[orderOf(&d)] = true
		}
	}
	order, err := readOrders(ctx, txn, lines, now)
	if err != nil {
		return 0, err
	}
	var ms []*spanner.Mutation
	for i := range rows {
		ep := sets[row.Tenant].byID(rows[i].EndpointID)
		if !rows[i].DeadAt.Valid || ep == nil {
			continue
		}
		asked := false
		for _, r := range fresh {
			if r.at.After(rows[i].DeadAt.Time) {
				asked, used[r.receipt] = true, true
			}
		}
		if asked {
			d := rows[i].delivery()
			restart(&d, ep, webhook.TriggerProviderRedelivery, held, now)
			if d.Ordered() {
				order.again(&d)
			}
			ms = append(ms, updateDelivery(&d))
		}
	}
	n := len(ms)
	ms = append(ms, order.mutations()...)
	if n == 0 && (!last || len(used) == 0) {
		return 0, nil
	}
	if last {
		for _, r := range fresh {
			if used[r.receipt] && !slices.Contains(row.ReopenedBy, r.receipt) {
				row.ReopenedBy = append(row.ReopenedBy, r.receipt)
			}
		}
	}
	ms = append(ms, spanner.Update("Events", []string{"EventKey", "ReopenedBy"}, []any{k[:], row.ReopenedBy}))
	if n > 0 {
		ms = append(ms, spanner.Update("Events", []string{"EventKey", "ExpireAt"}, []any{k[:], nil}),
			spanner.Update("Payloads", []string{"EventKey", "ExpireAt"}, []any{k[:], nil}))
	}
	return n, txn.BufferWrite(ms)
}

// reopenable reads an event's row; nil if its payload is gone, or about to go.
func (s *Store) reopenable(ctx context.Context, txn *spanner.ReadWriteTransaction, k webhook.EventKey, now time.Time) (*eventRow, error) {
	events, err := collect[eventRow](txn.ReadWithOptions(ctx, "Events", spanner.Key{k[:]}, []string{"Tenant", "ExpireAt", "ReopenedBy"}, tag("reopen-event")))
	if err != nil || len(events) == 0 {
		return nil, err
	}
	payloads, err := collect[payloadRow](txn.ReadWithOptions(ctx, "Payloads", spanner.Key{k[:]}, []string{"ExpireAt"}, tag("reopen-payload")))
	if err != nil || len(payloads) == 0 {
		return nil, err
	}
	for _, end := range []spanner.NullTime{events[0].ExpireAt, payloads[0].ExpireAt} {
		if end.Valid && !end.Time.After(now) {
			return nil, nil
		}
	}
	return &events[0], nil
}

// restart puts a closed delivery at the first attempt of a new generation, as
// [fanOut] would make it.
func restart(d *webhook.Delivery, ep *webhook.Endpoint, why webhook.Trigger, held holds, now time.Time) {
	d.Generation, d.Task, d.Trigger, d.StartedAt, d.UpdatedAt = d.Generation+1, 1, why, now, now
	begin(d, ep, held, now)
}
