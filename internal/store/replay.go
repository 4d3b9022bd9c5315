package store

import (
	"context"
	"crypto/sha256"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// A provider that signs the body alone leaves the event's id to whoever sends the
// request: an authentic body can be sent again under any id, and the primary key
// sees nothing. So such events ([webhook.Event].UnsignedID) are also known by a
// hash over source, tenant and body, which a null-filtered index finds; events of
// all other sources have no entry there and pay nothing.
//
// Of the events with one body, only the newest holds the entry: the index has one
// entry per body, one read asks about a whole group, and the body is remembered
// for the retention of the last event that had it. Those reads lock what they
// found to be absent, so that of two replays at once one sees the other.

// replayKey is what equal bodies of one source and tenant have in common.
type replayKey [16]byte

func replayKeyOf(e *webhook.Event) (k replayKey) {
	h := sha256.New()
	h.Write([]byte(e.Source))
	h.Write([]byte{0})
	h.Write([]byte(e.Tenant))
	h.Write([]byte{0})
	h.Write(e.BodyHash[:])
	copy(k[:], h.Sum(nil))
	return k
}

// bodies are the newest events with the bodies that a transaction is about.
type bodies map[replayKey]*bodySeen

type bodySeen struct {
	event    webhook.EventKey
	received time.Time
}

// readBodies looks up the bodies of those events that are new and whose id nobody
// signed. Without any, nothing is read.
func readBodies(ctx context.Context, txn *spanner.ReadWriteTransaction, events []prepared, known map[webhook.EventKey]*knownEvent) (bodies, error) {
	seen := bodies{}
	asked := map[replayKey]bool{}
	var keys []spanner.KeySet
	for i := range events {
		e := events[i].event
		if !e.UnsignedID || known[e.Key] != nil {
			continue
		}
		if k := replayKeyOf(e); !asked[k] {
			asked[k] = true
			keys = append(keys, spanner.Key{k[:]}.AsPrefix())
		}
	}
	if len(keys) == 0 {
		return seen, nil
	}
	opts := tag("ingest-bodies")
	opts.Index = "EventsByReplayKey"
	rows, err := collect[eventRow](txn.ReadWithOptions(ctx, "Events", spanner.KeySets(keys...), []string{"ReplayKey", "EventKey", "ReceivedAt"}, opts))
	for _, r := range rows {
		var k replayKey
		copy(k[:], r.ReplayKey)
		seen[k] = &bodySeen{keyOf(r.EventKey), r.ReceivedAt}
	}
	return seen, err
}

// replayed gives the event that had e's body before, if its retention is not over;
// nil if there is none, or e's id is signed.
func (b bodies) replayed(e *webhook.Event, keep time.Duration, now time.Time) *bodySeen {
	if !e.UnsignedID {
		return nil
	}
	if before := b[replayKeyOf(e)]; before != nil && before.received.Add(keep).After(now) {
		return before
	}
	return nil
}

// remember makes e, which is among known, the holder of its body's entry unless
// a newer event is, and gives what that changes of other rows.
func (b bodies) remember(e *webhook.Event, known map[webhook.EventKey]*knownEvent) []*spanner.Mutation {
	if !e.UnsignedID {
		return nil
	}
	k := replayKeyOf(e)
	before := b[k]
	if before != nil && before.received.After(e.ReceivedAt) {
		return nil
	}
	b[k] = &bodySeen{e.Key, e.ReceivedAt}
	known[e.Key].row.ReplayKey = k[:]
	switch {
	case before == nil:
		return nil
	case known[before.event] != nil && known[before.event].inserted:
		known[before.event].row.ReplayKey = nil
		return nil
	}
	return []*spanner.Mutation{spanner.Update("Events", []string{"EventKey", "ReplayKey"}, []any{before.event[:], nil})}
}
