package store

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// ReserveSlots gives each request slots that nobody else has: over all instances an
// endpoint's attempts do not exceed its rate. One transaction per group; requests for
// one endpoint are served in order. Reserved slots that are not used are lost, and so
// are those of a call whose outcome is unknown: an endpoint may get less than its
// rate, never more.
func (s *Store) ReserveSlots(ctx context.Context, reqs []webhook.SlotRequest) ([]webhook.Slots, error) {
	for i := range reqs {
		if r := &reqs[i]; r.Count < 1 || r.Interval <= 0 || r.Burst < 0 || r.Holder == "" || len(r.Holder) > 64 {
			return nil, wrap(invalid("want a holder, slots and an interval: %+v", *r), "reserve slots")
		}
	}
	out := make([]webhook.Slots, 0, len(reqs))
	for part := range slices.Chunk(reqs, maxGroup) {
		got, err := s.reserveGroup(ctx, part)
		if err != nil {
			return nil, wrap(err, "reserve slots of %d endpoints", len(part))
		}
		out = append(out, got...)
	}
	return out, nil
}

type slotsRow struct {
	Tenant     string
	EndpointID string `spanner:"EndpointId"`
	NextSlot   time.Time
	Holders    []string
	HeldUntil  []time.Time
	UpdatedAt  time.Time
}

var slotsColumns = columnsOf[slotsRow]()

func (s *Store) reserveGroup(ctx context.Context, reqs []webhook.SlotRequest) (out []webhook.Slots, err error) {
	_, err = s.write(ctx, "reserve-slots", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		now := s.clock()
		rows := map[endpointID]*slotsRow{}
		var keys []spanner.Key
		for i := range reqs {
			id := endpointID{reqs[i].Tenant, reqs[i].Endpoint}
			if rows[id] == nil {
				rows[id] = &slotsRow{Tenant: id.tenant, EndpointID: id.id}
				keys = append(keys, spanner.Key{id.tenant, id.id})
			}
		}
		stored, err := collect[slotsRow](txn.ReadWithOptions(ctx, "EndpointSlots", spanner.KeySetFromKeys(keys...), slotsColumns, tag("reserve-slots")))
		if err != nil {
			return err
		}
		for i := range stored {
			rows[endpointID{stored[i].Tenant, stored[i].EndpointID}] = &stored[i]
		}
		out = make([]webhook.Slots, len(reqs))
		for i := range reqs {
			r := rows[endpointID{reqs[i].Tenant, reqs[i].Endpoint}]
			a := webhook.Allotment{NextSlot: r.NextSlot, Holders: r.Holders, HeldUntil: r.HeldUntil}
			a, out[i] = a.Reserve(reqs[i], now)
			r.NextSlot, r.Holders, r.HeldUntil, r.UpdatedAt = a.NextSlot, a.Holders, a.HeldUntil, now
		}
		var ms []*spanner.Mutation
		for _, r := range rows {
			ms = append(ms, upsert("EndpointSlots", r))
		}
		return txn.BufferWrite(ms)
	})
	return out, err
}

// Deferral moves a scheduled attempt to a later time.
type Deferral struct {
	Key webhook.AttemptKey
	At  time.Time
}

// Defer notes that attempts are made later than planned, because the endpoint's limit
// has no earlier time for them, so that nobody takes them for lost. It gives the tasks
// that ought to exist instead, each under a new name, also where an earlier call moved
// the attempt; nil for one that is not scheduled any more. It never moves an attempt to an earlier time. One transaction.
func (s *Store) Defer(ctx context.Context, ds []Deferral) ([]*webhook.Task, error) {
	out := make([]*webhook.Task, len(ds))
	ids := map[endpointID]bool{}
	_, err := s.write(ctx, "defer", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		now := s.clock()
		clear(out)
		var keys []spanner.Key
		for i := range ds {
			keys = append(keys, spanner.Key{ds[i].Key.Event[:], ds[i].Key.Endpoint})
		}
		rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("defer")))
		if err != nil {
			return err
		}
		byID := map[deliveryID]*webhook.Delivery{}
		for i := range rows {
			d := rows[i].delivery()
			byID[deliveryID{d.Event, d.Endpoint}] = &d
		}
		var ms []*spanner.Mutation
		for i := range ds {
			k := ds[i].Key
			d := byID[deliveryID{k.Event, k.Endpoint}]
			if d == nil || d.Tenant != k.Tenant || !standsAt(d, k) {
				continue
			}
			if d.Task <= k.Task {
				if at := ds[i].At.UTC().Round(0); at.After(d.NextAttemptAt) {
					d.NextAttemptAt, d.Reason = at, webhook.ReasonLimited
				}
				d.Task, d.UpdatedAt = k.Task+1, now
				ms = append(ms, updateDelivery(d))
			}
			out[i] = taskOf(d, webhook.QueueRef{})
			ids[endpointID{d.Tenant, d.Endpoint}] = true
		}
		return txn.BufferWrite(ms)
	})
	if err != nil {
		return nil, wrap(err, "defer %d attempts", len(ds))
	}
	cards, err := s.cardsOf(ctx, ids)
	if err != nil {
		return nil, wrap(err, "defer %d attempts", len(ds))
	}
	for _, t := range out {
		if t != nil {
			t.Queue = cards[endpointID{t.Key.Tenant, t.Key.Endpoint}].queue()
		}
	}
	return out, nil
}
