package store

import (
	"bytes"
	"context"
	"slices"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// closings are the deliveries that stop being open in one transaction, by event.
type closings map[webhook.EventKey]map[string]bool

func (c closings) add(d *webhook.Delivery) {
	if c[d.Event] == nil {
		c[d.Event] = map[string]bool{}
	}
	c[d.Event][d.Endpoint] = true
}

// closeEvents starts the retention of those events that have no open delivery
// besides the ones being closed. The index is read inside the transaction, so of
// two transactions that close the last two deliveries at once, one sees the
// other's. An event whose fan-out is unfinished stays open, unless finished says
// that this transaction ends it.
func (s *Store) closeEvents(ctx context.Context, txn *spanner.ReadWriteTransaction, c closings, now time.Time, finished bool) ([]*spanner.Mutation, error) {
	if len(c) == 0 {
		return nil, nil
	}
	open, err := openBesides(ctx, txn, c)
	if err != nil {
		return nil, err
	}
	var keys []spanner.Key
	for k := range c {
		if !open[k] {
			keys = append(keys, spanner.Key{k[:]})
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	set := spanner.KeySetFromKeys(keys...)
	events, err := collect[eventRow](txn.ReadWithOptions(ctx, "Events", set, []string{"EventKey", "ReceivedAt", "FanoutAfter"}, tag("close-events")))
	if err != nil {
		return nil, err
	}
	bodies, err := collect[payloadRow](txn.ReadWithOptions(ctx, "Payloads", set, []string{"EventKey"}, tag("close-payloads")))
	if err != nil {
		return nil, err
	}
	stored := map[webhook.EventKey]bool{}
	for _, b := range bodies {
		stored[keyOf(b.EventKey)] = true
	}
	var ms []*spanner.Mutation
	for _, e := range events {
		if e.FanoutAfter.Valid && !finished {
			continue
		}
		columns := []string{"EventKey", "ExpireAt"}
		ms = append(ms, spanner.Update("Events", columns, []any{e.EventKey, s.retention.rowExpiry(e.ReceivedAt, now)}))
		if stored[keyOf(e.EventKey)] { // it may have been expunged
			ms = append(ms, spanner.Update("Payloads", columns, []any{e.EventKey, s.retention.payloadExpiry(e.ReceivedAt, now)}))
		}
	}
	return ms, nil
}

// openBesides reports which events have an open delivery that is not among c's.
// One read asks about all of them. It is limited, since a wide fan-out may have
// thousands; the events that the limit cut off are asked about singly.
func openBesides(ctx context.Context, txn *spanner.ReadWriteTransaction, c closings) (map[webhook.EventKey]bool, error) {
	keys := make([]webhook.EventKey, 0, len(c))
	limit := 64
	for k, closing := range c {
		keys = append(keys, k)
		limit += 2 * (len(closing) + 1)
	}
	slices.SortFunc(keys, func(a, b webhook.EventKey) int { return bytes.Compare(a[:], b[:]) })
	open := map[webhook.EventKey]bool{}
	read := func(limit int, keys ...webhook.EventKey) (last webhook.EventKey, n int, err error) {
		var ranges []spanner.KeySet
		for _, k := range keys {
			ranges = append(ranges, spanner.Key{k[:]}.AsPrefix())
		}
		opts := limited("open-deliveries", limit)
		opts.Index = "DeliveriesOpenByEvent"
		rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySets(ranges...), []string{"EventKey", "EndpointId"}, opts))
		for _, r := range rows {
			last = keyOf(r.EventKey)
			if !c[last][r.EndpointID] {
				open[last] = true
			}
		}
		return last, len(rows), err
	}
	last, n, err := read(limit, keys...)
	if err != nil || n < limit {
		return open, err
	}
	for _, k := range keys {
		if open[k] || bytes.Compare(k[:], last[:]) < 0 {
			continue
		}
		if _, _, err := read(len(c[k])+1, k); err != nil {
			return nil, err
		}
	}
	return open, nil
}
