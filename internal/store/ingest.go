package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Ingested is what became of one event.
type Ingested struct {
	Key   webhook.EventKey
	State webhook.EventState
	// Duplicate says that the event was there already; Redelivery that the repeat
	// has the first's receipt: Pub/Sub delivered one message again, or an earlier
	// call of ours committed without our learning of it.
	Duplicate  bool
	Redelivery bool
	// Reopened is how many dead deliveries this repeat re-opened. Of several repeats
	// of an event in one group, the first says it for all.
	Reopened int
	Flags    []string // of the event
	// Tasks are the deliveries that may still lack a task. For a duplicate, those
	// are all that are scheduled: whoever stored the event first may have stopped
	// before making them.
	Tasks []webhook.Task
	// More says that endpoints remain which did not fit this commit:
	// [Store.ContinueFanout] goes on.
	More bool
}

// prepared is an event in its stored form.
type prepared struct {
	event   *webhook.Event
	body    packed
	headers string
}

func (p *prepared) size() int { return len(p.body.body) + len(p.headers) + sizeEvent }

func prepare(e *webhook.Event) (prepared, error) {
	if err := checkEvent(e); err != nil {
		return prepared{}, err
	}
	body, err := pack(e.Body)
	if err != nil {
		return prepared{}, err
	}
	headers, err := headersText(e.Headers)
	return prepared{e, body, headers}, err
}

// Ingest stores events and fans them out, in one transaction for the whole group
// unless Spanner's limits need several. Results are in the order of the events.
//
// It is safe to repeat, also after an error whose commit may have happened: what
// is stored already comes back as a duplicate, with the tasks that ought to
// exist. An endpoint whose creation was committed before an event's commit is
// always considered for it. Two equal keys in one group are an event and its
// duplicate. A duplicate is counted once per receipt, and not at all where the
// receipt is the first's (receipts that alternate are counted each time: only the
// latest is remembered).
//
// A repeat by a provider, that is a duplicate with another receipt from a
// configured inbound source, also re-opens what is dead: see reopen.go. An event
// whose id nobody signed is compared by its body with earlier ones: see replay.go.
//
// An event that breaks a limit or lacks a field fails the call with [ErrTooLarge]
// or [ErrInvalid], naming the event, before anything is written.
func (s *Store) Ingest(ctx context.Context, events []webhook.Event) ([]Ingested, error) {
	rest := make([]prepared, len(events))
	for i := range events {
		var err error
		if rest[i], err = prepare(&events[i]); err != nil {
			return nil, wrap(err, "ingest %s", events[i].Key)
		}
	}
	out := make([]Ingested, 0, len(events))
	for len(rest) > 0 {
		part, err := s.ingestGroup(ctx, rest[:min(len(rest), maxGroup)])
		if err != nil {
			return nil, wrap(err, "ingest %d events from %s", len(rest), rest[0].event.Key)
		}
		out = append(out, part...)
		rest = rest[len(part):]
	}
	return out, nil
}

// ingestGroup stores the first of events: at least one, and as many as fit.
func (s *Store) ingestGroup(ctx context.Context, events []prepared) ([]Ingested, error) {
	var tx *ingestion
	troubled, err := s.troubled(ctx)
	if err != nil {
		return nil, mapped(err)
	}
	at, err := s.write(ctx, "ingest", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		tx = &ingestion{store: s, now: s.clock(), troubled: troubled, known: map[webhook.EventKey]*knownEvent{}, repeats: map[webhook.EventKey][]repeat{}}
		if err := tx.read(ctx, txn, events); err != nil {
			return err
		}
		for i := range events {
			if !tx.add(&events[i]) {
				break
			}
		}
		return txn.BufferWrite(tx.mutations())
	})
	if err != nil {
		return nil, err
	}
	for tenant, set := range tx.fresh {
		s.sets.put(tenant, set)
	}
	reopened, at, err := s.reopen(ctx, tx.repeats, at)
	if err != nil {
		return nil, err
	}
	return tx.results(ctx, at, reopened)
}

// ingestion is one run of one ingest transaction.
type ingestion struct {
	store *Store
	now   time.Time
	known map[webhook.EventKey]*knownEvent
	sets  map[string]*endpointSet
	fresh map[string]*endpointSet
	out   []Ingested

	troubled map[string][]string // see readHolds
	holds    holds

	bodies  bodies
	orders  *orders
	repeats map[webhook.EventKey][]repeat // of events that were stored before

	inserts            []*spanner.Mutation
	cost, size, fanned int
}

// knownEvent is an event that is stored, or is about to be by this transaction.
type knownEvent struct {
	row      eventRow
	inserted bool
	counted  bool // its duplicates changed
	tasks    []webhook.Task
}

func (tx *ingestion) read(ctx context.Context, txn *spanner.ReadWriteTransaction, events []prepared) error {
	var keys []spanner.Key
	seen := map[webhook.EventKey]bool{}
	for i := range events {
		if k := events[i].event.Key; !seen[k] {
			seen[k] = true
			keys = append(keys, spanner.Key{k[:]})
		}
	}
	rows, err := collect[eventRow](txn.ReadWithOptions(ctx, "Events", spanner.KeySetFromKeys(keys...),
		[]string{"EventKey", "Receipt", "State", "Duplicates", "LastDuplicateReceipt", "FanoutAfter", "Flags"}, tag("ingest-keys")))
	if err != nil {
		return err
	}
	for _, r := range rows {
		tx.known[keyOf(r.EventKey)] = &knownEvent{row: r}
	}
	tenants := map[string]bool{}
	for i := range events {
		if e := events[i].event; tx.known[e.Key] == nil && e.Rejection == "" {
			tenants[e.Tenant] = true
		}
	}
	if tx.sets, tx.fresh, err = tx.store.readSets(ctx, txn, tenants); err != nil {
		return err
	}
	if tx.holds, err = readHolds(ctx, txn, tx.troubled, tx.sets, tx.wanted(events), tx.now); err != nil {
		return err
	}
	if tx.bodies, err = readBodies(ctx, txn, events, tx.known); err != nil {
		return err
	}
	lines := map[orderID]bool{}
	for i := range events {
		if e := events[i].event; tx.known[e.Key] == nil && e.Rejection == "" {
			tx.store.lines(e, tx.sets[e.Tenant], lines)
		}
	}
	tx.orders, err = readOrders(ctx, txn, lines, tx.now)
	return err
}

// lines adds the lines that an event joins at its tenant's endpoints, whatever
// their filters say.
func (s *Store) lines(e *webhook.Event, set *endpointSet, into map[orderID]bool) {
	if e.OrderingKey == "" {
		return
	}
	key := webhook.OrderKeyOf(e.OrderingKey)
	for i := range set.endpoints {
		if ep := &set.endpoints[i]; ep.Ordering != webhook.OrderingNone && s.match(ep, e) {
			into[orderID{e.Tenant, ep.ID, key}] = true
		}
	}
}

// wanted reports whether any of the events goes to an endpoint.
func (tx *ingestion) wanted(events []prepared) func(*webhook.Endpoint) bool {
	return func(ep *webhook.Endpoint) bool {
		return slices.ContainsFunc(events, func(p prepared) bool { return p.event.Tenant == ep.Tenant && tx.store.match(ep, p.event) })
	}
}

// add plans one event. It answers false, having planned nothing, if the commit
// would grow beyond its limits.
func (tx *ingestion) add(p *prepared) bool {
	if k := tx.known[p.event.Key]; k != nil {
		if len(tx.out) > 0 && tx.cost+costDuplicate > maxMutations {
			return false
		}
		tx.duplicate(p.event, k)
		return true
	}
	replay := tx.bodies.replayed(p.event, tx.store.retention.Row, tx.now)
	rejection := p.event.Rejection
	if rejection == "" && replay != nil && p.event.RefuseReplay {
		rejection = fmt.Sprintf("suspected replay: the body came before, as %s", replay.event)
	}
	var matched []target
	if rejection == "" {
		matched = tx.store.matching(p.event, tx.sets[p.event.Tenant], "")
	}
	chunk := min(len(matched), tx.store.chunk)
	cost := costEvent + costPayload + costReplay + chunk*(costDelivery+costOrdered)
	size := p.size() + chunk*sizeDelivery
	if len(tx.out) > 0 && (tx.cost+cost > maxMutations || tx.size+size > maxCommitBytes || tx.fanned+len(matched) > tx.store.chunk) {
		return false
	}
	tx.cost, tx.size, tx.fanned = tx.cost+cost, tx.size+size, tx.fanned+chunk
	k := tx.insert(p, matched, chunk, rejection)
	k.row.Flags = slices.Clone(p.event.Flags)
	if replay != nil {
		k.row.Flags = append(k.row.Flags, webhook.FlagSuspectedReplay)
	}
	tx.inserts = append(tx.inserts, tx.bodies.remember(p.event, tx.known)...)
	tx.out = append(tx.out, Ingested{Key: p.event.Key, State: webhook.EventState(k.row.State), Flags: k.row.Flags, Tasks: k.tasks, More: k.row.FanoutAfter.Valid})
	return true
}

func (tx *ingestion) duplicate(e *webhook.Event, k *knownEvent) {
	redelivery := e.Receipt == k.row.Receipt
	if !redelivery && (!k.row.LastDuplicateReceipt.Valid || k.row.LastDuplicateReceipt.StringVal != e.Receipt) {
		k.row.Duplicates++
		k.row.LastDuplicateAt = nullTime(tx.now)
		k.row.LastDuplicateReceipt = spanner.NullString{StringVal: e.Receipt, Valid: true}
		if !k.counted && !k.inserted {
			tx.cost += costDuplicate
		}
		k.counted = true
	}
	if !redelivery && !k.inserted && webhook.ProviderSource(e.Source) {
		tx.repeats[e.Key] = append(tx.repeats[e.Key], repeat{tenant: e.Tenant, receipt: e.Receipt, at: e.ReceivedAt})
	}
	tx.out = append(tx.out, Ingested{Key: e.Key, State: webhook.EventState(k.row.State), Duplicate: true, Redelivery: redelivery,
		Flags: k.row.Flags, Tasks: k.tasks, More: k.row.FanoutAfter.Valid})
}

// insert plans the rows of a new event.
func (tx *ingestion) insert(p *prepared, matched []target, chunk int, rejection string) *knownEvent {
	e := p.event
	k := &knownEvent{row: *newEventRow(e, p.headers), inserted: true}
	tx.known[e.Key] = k
	k.row.Rejection = clip(rejection, 4096)
	switch {
	case rejection != "":
		k.row.State = string(webhook.EventRejected)
	case len(matched) == 0:
		k.row.State = string(webhook.EventUnmatched)
	default:
		k.row.State = string(webhook.EventAccepted)
	}
	if chunk < len(matched) {
		k.row.FanoutAfter = spanner.NullString{StringVal: matched[chunk-1].ep.ID, Valid: true}
	}
	body := payloadRow{EventKey: e.Key[:], Body: p.body.body, Encoding: p.body.encoding}
	if !anyOpen(matched) {
		keep := tx.store.retention
		k.row.ExpireAt = nullTime(keep.rowExpiry(e.ReceivedAt.UTC(), tx.now))
		body.ExpireAt = nullTime(keep.payloadExpiry(e.ReceivedAt.UTC(), tx.now))
	}
	tx.inserts = append(tx.inserts, insert("Payloads", &body))
	var deliveries []*spanner.Mutation
	deliveries, k.tasks = fanOut(e, matched[:chunk], tx.holds, tx.orders, tx.now)
	tx.inserts = append(tx.inserts, deliveries...)
	return k
}

// mutations are the whole commit, parents before their children.
func (tx *ingestion) mutations() []*spanner.Mutation {
	var ms []*spanner.Mutation
	for key, k := range tx.known {
		switch {
		case k.inserted:
			ms = append(ms, insert("Events", &k.row))
		case k.counted:
			ms = append(ms, spanner.Update("Events",
				[]string{"EventKey", "Duplicates", "LastDuplicateAt", "LastDuplicateReceipt"},
				[]any{key[:], k.row.Duplicates, k.row.LastDuplicateAt, k.row.LastDuplicateReceipt}))
		}
	}
	return append(append(ms, tx.inserts...), tx.orders.mutations()...)
}

// results completes the duplicates of events that were there before: their tasks
// are read as of the last commit, after it, so that the reads hold no locks.
func (tx *ingestion) results(ctx context.Context, at time.Time, reopened map[webhook.EventKey]int) ([]Ingested, error) {
	var old []webhook.EventKey
	for key, k := range tx.known {
		if !k.inserted {
			old = append(old, key)
		}
	}
	tasks, err := tx.store.scheduledTasks(ctx, at, old)
	if err != nil {
		return nil, err
	}
	for i := range tx.out {
		if r := &tx.out[i]; !tx.known[r.Key].inserted {
			r.Tasks = tasks[r.Key]
			if !r.Redelivery {
				r.Reopened = reopened[r.Key]
				delete(reopened, r.Key)
			}
		}
	}
	return tx.out, nil
}

// target is an endpoint that gets a delivery of an event.
type target struct {
	ep *webhook.Endpoint
	// state, if not empty, is what the filter makes of the delivery: filtered, or held
	// because it could not say.
	state  webhook.DeliveryState
	reason string
}

func anyOpen(targets []target) bool {
	return slices.ContainsFunc(targets, func(t target) bool { return t.state != webhook.DeliveryFiltered })
}

// matching lists, by id, the endpoints beyond after that get a delivery of the
// event. Those whose filter says no get one only if they want it recorded.
//
// A filter that fails on an event says neither yes nor no, and neither is assumed:
// sending could give away what it was there to keep back, and dropping would lose
// the event. The delivery is held, with the filter's complaint as its reason, until
// somebody releases or replays it; releases that happen by themselves pass it by.
func (s *Store) matching(e *webhook.Event, set *endpointSet, after string) []target {
	var out []target
	for i := range set.endpoints {
		ep := &set.endpoints[i]
		if ep.ID <= after || !s.match(ep, e) {
			continue
		}
		if ep.Filter == "" {
			out = append(out, target{ep: ep})
			continue
		}
		yes, err := s.filter(ep, e)
		switch {
		case err != nil:
			out = append(out, target{ep, webhook.DeliveryHeld, webhook.ReasonFilterFailed + err.Error()})
		case yes:
			out = append(out, target{ep: ep})
		case ep.RecordFiltered:
			out = append(out, target{ep, webhook.DeliveryFiltered, ""})
		}
	}
	return out
}

// fanOut makes the deliveries of an event to endpoints, and the tasks of those
// that are due at once. o has the lines that they join.
func fanOut(e *webhook.Event, to []target, held holds, o *orders, now time.Time) (ms []*spanner.Mutation, tasks []webhook.Task) {
	for _, t := range to {
		d := webhook.Delivery{
			Event: e.Key, Tenant: e.Tenant, Endpoint: t.ep.ID, EventType: e.Type,
			Generation: 1, Task: 1, Trigger: webhook.TriggerAutomatic, StartedAt: now, CreatedAt: now, UpdatedAt: now,
		}
		if t.state != "" {
			d.State, d.Reason = t.state, t.reason // and no place in a line: see takePlaces
		} else {
			begin(&d, t.ep, held, now)
			if e.OrderingKey != "" && t.ep.Ordering != webhook.OrderingNone {
				o.enter(&d, e.OrderingKey, e.OccurredAt)
			}
		}
		if d.State == webhook.DeliveryScheduled {
			tasks = append(tasks, *taskOf(&d, t.ep.QueueRef()))
		}
		ms = append(ms, insert("Deliveries", newDeliveryRow(&d)))
	}
	return ms, tasks
}

// begin puts a delivery at the first attempt of its generation, or holds it.
func begin(d *webhook.Delivery, ep *webhook.Endpoint, held holds, now time.Time) {
	if reason := held(ep); reason != "" {
		d.State, d.Reason, d.Attempt, d.NextAttemptAt = webhook.DeliveryHeld, reason, 0, time.Time{}
		return
	}
	d.State, d.Reason, d.Attempt = webhook.DeliveryScheduled, "", 1
	d.NextAttemptAt = now.Add(ep.Retry.Delay(d.Key()))
}

// scheduledTasks are the tasks that ought to exist for the events, as of at.
func (s *Store) scheduledTasks(ctx context.Context, at time.Time, keys []webhook.EventKey) (map[webhook.EventKey][]webhook.Task, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var sets []spanner.KeySet
	for _, k := range keys {
		sets = append(sets, spanner.Key{k[:], string(webhook.DeliveryScheduled)}.AsPrefix())
	}
	opts := tag("event-tasks")
	opts.Index = "DeliveriesOpenByEvent"
	open, err := collect[deliveryRow](s.client.Single().WithTimestampBound(spanner.ReadTimestamp(at)).ReadWithOptions(ctx, "Deliveries",
		spanner.KeySets(sets...), []string{"EventKey", "EndpointId"}, opts))
	if err != nil || len(open) == 0 {
		return nil, err
	}
	var rowKeys []spanner.Key
	for _, r := range open {
		rowKeys = append(rowKeys, spanner.Key{r.EventKey, r.EndpointID})
	}
	rows, err := collect[deliveryRow](s.client.Single().WithTimestampBound(spanner.ReadTimestamp(at)).ReadWithOptions(ctx, "Deliveries",
		spanner.KeySetFromKeys(rowKeys...), taskColumns, tag("event-tasks")))
	if err != nil {
		return nil, err
	}
	return s.tasksOf(ctx, rows)
}

var taskColumns = []string{"EventKey", "EndpointId", "Tenant", "Generation", "Attempt", "Task", "NextAttemptAt", "UpdatedAt", "NextTrigger"}

// dueColumns are those that the index of due deliveries holds.
var dueColumns = taskColumns[:len(taskColumns)-2]

// tasksOf turns scheduled rows into tasks, by event.
func (s *Store) tasksOf(ctx context.Context, rows []deliveryRow) (map[webhook.EventKey][]webhook.Task, error) {
	ids := map[endpointID]bool{}
	for i := range rows {
		ids[endpointID{rows[i].Tenant, rows[i].EndpointID}] = true
	}
	cards, err := s.cardsOf(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := map[webhook.EventKey][]webhook.Task{}
	for i := range rows {
		d := rows[i].delivery()
		out[d.Event] = append(out[d.Event], *taskOf(&d, cards[endpointID{d.Tenant, d.Endpoint}].queue()))
	}
	return out, nil
}

// ContinueFanout makes the next chunk of deliveries of an event whose ingestion
// said More, and says in its turn whether there is more. Its tasks are those of
// this chunk. After an error the chunk may have been committed: ingest the event
// again, which returns every task that ought to exist, then go on. An event whose
// fan-out is complete is left alone. [ErrNotFound] if the tenant has no such event.
func (s *Store) ContinueFanout(ctx context.Context, tenant string, k webhook.EventKey) (Ingested, error) {
	var out Ingested
	var fresh map[string]*endpointSet
	troubled, err := s.troubled(ctx)
	if err != nil {
		return out, wrap(err, "continue fan-out of %s", k)
	}
	_, err = s.write(ctx, "continue-fanout", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		row, err := readEvent(ctx, txn, tenant, k)
		if err != nil {
			return err
		}
		fresh = nil
		out = Ingested{Key: k, State: webhook.EventState(row.State)}
		if !row.FanoutAfter.Valid {
			return nil
		}
		e, err := row.event()
		if err != nil {
			return err
		}
		if e.Body, err = s.bodyForMatch(ctx, txn, k); err != nil {
			return err
		}
		var sets map[string]*endpointSet
		if sets, fresh, err = s.readSets(ctx, txn, map[string]bool{tenant: true}); err != nil {
			return err
		}
		now := s.clock()
		held, err := readHolds(ctx, txn, troubled, sets, func(ep *webhook.Endpoint) bool { return s.match(ep, &e) }, now)
		if err != nil {
			return err
		}
		to := s.matching(&e, sets[tenant], row.FanoutAfter.StringVal)
		cursor := spanner.NullString{}
		if len(to) > s.chunk {
			to = to[:s.chunk]
			cursor = spanner.NullString{StringVal: to[len(to)-1].ep.ID, Valid: true}
		}
		lines := map[orderID]bool{}
		s.lines(&e, sets[tenant], lines)
		o, err := readOrders(ctx, txn, lines, now)
		if err != nil {
			return err
		}
		ms, tasks := fanOut(&e, to, held, o, now)
		ms = append(ms, o.mutations()...)
		out.Tasks, out.More = tasks, cursor.Valid
		ms = append(ms, spanner.Update("Events", []string{"EventKey", "FanoutAfter"}, []any{k[:], cursor}))
		if !cursor.Valid && !anyOpen(to) {
			// Everything before may have ended while the fan-out was unfinished, and
			// nothing that is added now will end later.
			closing, err := s.closeEvents(ctx, txn, closings{k: nil}, now, true)
			if err != nil {
				return err
			}
			ms = append(ms, closing...)
		}
		return txn.BufferWrite(ms)
	})
	if err != nil {
		return Ingested{}, wrap(err, "continue fan-out of %s", k)
	}
	for t, set := range fresh {
		s.sets.put(t, set)
	}
	return out, nil
}

// bodyForMatch reads an event's bytes only for a Match that may look at them.
func (s *Store) bodyForMatch(ctx context.Context, txn *spanner.ReadWriteTransaction, k webhook.EventKey) ([]byte, error) {
	if !s.matchesBody {
		return nil, nil
	}
	rows, err := collect[payloadRow](txn.ReadWithOptions(ctx, "Payloads", spanner.Key{k[:]}, payloadColumns, tag("payload")))
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return unpack(packed{rows[0].Body, rows[0].Encoding})
}
