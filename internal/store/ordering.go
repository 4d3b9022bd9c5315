package store

import (
	"bytes"
	"context"
	"errors"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// An ordered endpoint gets the events of one ordering key one at a time, by the
// publisher's times, or by arrival where it gives none. Pub/Sub keeps no order, so
// an event may come after a later one: it still goes before those that wait, but
// not before what was sent. Each delivery has its place in the line of its key
// (OrderPlace); the key's row says whose turn it is (Head). Everything else of the
// line is waiting: it has no task and no time.
//
//   - A delivery whose key has no head becomes the head when it is stored, and is
//     scheduled like any other.
//   - The transaction that ends the head makes the next in line the head and
//     schedules it. Its task follows the commit; a task of the one that ended, run
//     again after a crash, finds the head and makes sure of its task.
//   - A head that died blocks its key, or parks it, or is stepped over, as the
//     endpoint's [webhook.Ordering] says. Blocked and parked keys go on once the head
//     is replayed and ends otherwise, or with [Store.ReleaseKey]; what a parked key
//     holds up is shown as held.
//   - A replay of anything but the head joins the line at its end.
//   - What the endpoint's filter could not judge has no place, and holds up nobody, until
//     somebody releases it. It takes its place then.
//   - The head is attempted under a lease, so that two runs of one task do not send
//     at once.
//
// All of a key is serialized by its one row, which a transaction reads and writes.
// Keys do not touch one another.

// Why a key stands still.
const (
	stopBlocked = "blocked"
	stopParked  = "parked"
)

const (
	// orderRetention is how long a key's row outlives its last change.
	orderRetention = 60 * 24 * time.Hour
	// parkChunk bounds the followers that turn held in a commit that parks keys. More
	// stay waiting, which differs in nothing but the word.
	parkChunk = 60
	// leaseSlack is how much longer than the endpoint's timeout a lease lasts: for
	// signing, and for the commit of what came of it.
	leaseSlack = 45 * time.Second
)

type orderRow struct {
	Tenant      string
	EndpointID  string `spanner:"EndpointId"`
	OrderKey    []byte
	OrderingKey string
	LastSeq     int64
	LastAt      int64
	Head        []byte
	Stop        string
	StoppedAt   spanner.NullTime
	UpdatedAt   time.Time
	ExpireAt    spanner.NullTime
}

var orderColumns = columnsOf[orderRow]()

type orderID struct {
	tenant, endpoint string
	key              webhook.OrderKey
}

func orderOf(d *webhook.Delivery) orderID { return orderID{d.Tenant, d.Endpoint, d.OrderKey} }

func (id orderID) row() spanner.Key { return spanner.Key{id.tenant, id.endpoint, id.key[:]} }

// orders are the lines that one transaction is about.
type orders struct {
	now   time.Time
	rows  map[orderID]*orderRow
	dirty map[orderID]bool
}

// readOrders reads the lines' rows in txn. Without ids nothing is read.
func readOrders(ctx context.Context, txn *spanner.ReadWriteTransaction, ids map[orderID]bool, now time.Time) (*orders, error) {
	o := &orders{now: now, rows: map[orderID]*orderRow{}, dirty: map[orderID]bool{}}
	if len(ids) == 0 {
		return o, nil
	}
	var keys []spanner.Key
	for id := range ids {
		keys = append(keys, id.row())
	}
	rows, err := collect[orderRow](txn.ReadWithOptions(ctx, "OrderedKeys", spanner.KeySetFromKeys(keys...), orderColumns, tag("ordered-keys")))
	for i := range rows {
		r := &rows[i]
		id := orderID{tenant: r.Tenant, endpoint: r.EndpointID}
		copy(id.key[:], r.OrderKey)
		o.rows[id] = r
	}
	return o, err
}

// change gives the line's row for a change.
func (o *orders) change(id orderID) *orderRow {
	r := o.rows[id]
	if r == nil {
		r = &orderRow{Tenant: id.tenant, EndpointID: id.endpoint, OrderKey: id.key[:]}
		o.rows[id] = r
	}
	o.dirty[id] = true
	r.UpdatedAt = o.now
	return r
}

// mutations write the lines that changed. A line without a head is kept for a while.
func (o *orders) mutations() []*spanner.Mutation {
	var ms []*spanner.Mutation
	for id := range o.dirty {
		r := o.rows[id]
		r.ExpireAt = spanner.NullTime{}
		if r.Head == nil {
			r.ExpireAt = nullTime(o.now.Add(orderRetention))
		}
		ms = append(ms, upsert("OrderedKeys", r))
	}
	return ms
}

// enter puts a delivery that was in no line at its place in the line of a key, by the
// publisher's time, or by now where that is zero.
func (o *orders) enter(d *webhook.Delivery, orderingKey string, occurred time.Time) {
	d.OrderKey = webhook.OrderKeyOf(orderingKey)
	if occurred.IsZero() {
		occurred = o.now
	}
	o.join(d, orderingKey, occurred)
}

// join puts a delivery that is about to be scheduled or held at its place in its
// line. If it is not the head there, it waits.
func (o *orders) join(d *webhook.Delivery, orderingKey string, at time.Time) {
	r := o.change(orderOf(d))
	if orderingKey != "" {
		r.OrderingKey = orderingKey
	}
	d.OrderPlace = r.place(at)
	if d.OrderSeq == 0 {
		d.OrderSeq = d.OrderPlace
	}
	if r.Head == nil {
		r.Head = d.Event[:]
		return
	}
	if d.State == webhook.DeliveryScheduled {
		d.Attempt-- // from the next one to the last one made
	}
	d.State, d.Reason, d.NextAttemptAt = webhook.DeliveryWaiting, webhook.ReasonNotItsTurn, time.Time{}
	if r.Stop == stopParked {
		d.State, d.Reason = webhook.DeliveryHeld, webhook.ReasonKeyParked
	}
}

// place is a place for something of that time: after all of earlier times, and of
// those of the same time after what came before. Only the latest time is remembered
// exactly: of several late ones with one time, none goes first for certain.
func (r *orderRow) place(at time.Time) int64 {
	t := at.UnixMicro()
	if t < r.LastAt {
		return max(t, 1)
	}
	r.LastSeq = max(t, r.LastSeq+1)
	r.LastAt = t
	return r.LastSeq
}

// again is for a delivery that is restarted: a head that had stopped its line goes
// on as the head; any other joins the line.
func (o *orders) again(d *webhook.Delivery) {
	if o.isHead(d) {
		r := o.change(orderOf(d))
		r.Stop, r.StoppedAt = "", spanner.NullTime{}
		d.OrderPlace = d.OrderSeq
		return
	}
	o.join(d, "", o.now)
}

// isHead reports whether it is d's turn.
func (o *orders) isHead(d *webhook.Delivery) bool {
	r := o.rows[orderOf(d)]
	return r != nil && bytes.Equal(r.Head, d.Event[:])
}

// ended is a head that has ended, and what its endpoint does about dead ones.
type ended struct {
	delivery *webhook.Delivery
	ordering webhook.Ordering
}

// advance moves on the lines whose heads have ended, and gives those that are
// scheduled by that. Deliveries that are not their line's head change nothing.
func (s *Store) advance(ctx context.Context, txn *spanner.ReadWriteTransaction, gone []ended, now time.Time) (next []webhook.Delivery, ms []*spanner.Mutation, err error) {
	ids := map[orderID]bool{}
	for _, e := range gone {
		if e.delivery.Ordered() {
			ids[orderOf(e.delivery)] = true
		}
	}
	if len(ids) == 0 {
		return nil, nil, nil
	}
	o, err := readOrders(ctx, txn, ids, now)
	if err != nil {
		return nil, nil, err
	}
	room := parkChunk
	for _, e := range gone {
		d := e.delivery
		if !d.Ordered() || !o.isHead(d) {
			continue
		}
		r := o.change(orderOf(d))
		switch {
		case d.State == webhook.DeliveryDead && e.ordering == webhook.OrderingBlock:
			r.Stop, r.StoppedAt = stopBlocked, nullTime(now)
			continue
		case d.State == webhook.DeliveryDead && e.ordering == webhook.OrderingParkKey:
			r.Stop, r.StoppedAt = stopParked, nullTime(now)
			parked, err := s.park(ctx, txn, r, room, now)
			if err != nil {
				return nil, nil, err
			}
			room -= len(parked)
			ms = append(ms, parked...)
			continue
		}
		follower, err := s.step(ctx, txn, r, now)
		if err != nil {
			return nil, nil, err
		}
		if follower != nil {
			next = append(next, *follower)
			ms = append(ms, updateDelivery(follower))
		}
	}
	return next, append(ms, o.mutations()...), nil
}

// step makes the first of those that wait the head and schedules it; nil if nobody
// does.
func (s *Store) step(ctx context.Context, txn *spanner.ReadWriteTransaction, r *orderRow, now time.Time) (*webhook.Delivery, error) {
	line, err := s.behind(ctx, txn, r, 1)
	if err != nil {
		return nil, err
	}
	r.Stop, r.StoppedAt = "", spanner.NullTime{}
	if len(line) == 0 {
		r.Head = nil
		return nil, nil
	}
	d := &line[0]
	r.Head = d.Event[:]
	d.State, d.Reason = webhook.DeliveryScheduled, ""
	d.Attempt++ // from the last one made to the next one
	d.NextAttemptAt, d.StartedAt, d.UpdatedAt = now, now, now
	return d, nil
}

// behind reads the first deliveries of the line but its head, up to limit.
func (s *Store) behind(ctx context.Context, txn *spanner.ReadWriteTransaction, r *orderRow, limit int) ([]webhook.Delivery, error) {
	opts := limited("next-in-order", limit+1)
	opts.Index = "DeliveriesInOrder"
	found, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.Key{r.Tenant, r.EndpointID, r.OrderKey}.AsPrefix(),
		[]string{"EventKey", "EndpointId", "OrderWait"}, opts))
	if err != nil {
		return nil, err
	}
	var keys []spanner.Key
	for _, f := range found {
		if !bytes.Equal(f.EventKey, r.Head) && len(keys) < limit {
			keys = append(keys, spanner.Key{f.EventKey, f.EndpointID})
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("next-in-order")))
	if err != nil {
		return nil, err
	}
	out := make([]webhook.Delivery, len(rows))
	for i := range rows {
		out[i] = rows[i].delivery()
	}
	return out, nil
}

// park shows what stands behind the head as held, as far as there is room.
func (s *Store) park(ctx context.Context, txn *spanner.ReadWriteTransaction, r *orderRow, room int, now time.Time) ([]*spanner.Mutation, error) {
	if room <= 0 {
		return nil, nil
	}
	line, err := s.behind(ctx, txn, r, room)
	if err != nil {
		return nil, err
	}
	ms := make([]*spanner.Mutation, len(line))
	for i := range line {
		d := &line[i]
		d.State, d.Reason, d.UpdatedAt = webhook.DeliveryHeld, webhook.ReasonKeyParked, now
		ms[i] = updateDelivery(d)
	}
	return ms, nil
}

// lease gives this run of the head's attempt k the right to send, for at most
// timeout and what follows it. ok is false while another run has it, and if the
// delivery has moved on.
func (s *Store) lease(ctx context.Context, k webhook.AttemptKey, timeout time.Duration) (ok bool, err error) {
	_, err = s.write(ctx, "lease", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		ok = false
		row, err := txn.ReadRowWithOptions(ctx, "Deliveries", spanner.Key{k.Event[:], k.Endpoint},
			[]string{"State", "Generation", "Attempt", "LeasedUntil"}, tag("lease"))
		if err != nil {
			return err
		}
		var r deliveryRow
		if err := row.ToStruct(&r); err != nil {
			return err
		}
		now := s.clock()
		if d := r.delivery(); !standsAt(&d, k) || r.LeasedUntil.Valid && r.LeasedUntil.Time.After(now) {
			return nil
		}
		ok = true
		return txn.BufferWrite([]*spanner.Mutation{leased(k, nullTime(now.Add(timeout+leaseSlack)))})
	})
	return ok, err
}

func leased(k webhook.AttemptKey, until spanner.NullTime) *spanner.Mutation {
	return spanner.Update("Deliveries", []string{"EventKey", "EndpointId", "LeasedUntil"}, []any{k.Event[:], k.Endpoint, until})
}

// EndLease gives up the lease of an attempt that could not be made by our own
// fault, so that its next run need not wait. Without one, nothing changes.
func (s *Store) EndLease(ctx context.Context, k webhook.AttemptKey) error {
	_, err := s.write(ctx, "end-lease", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		row, err := readDelivery(ctx, txn, k.Tenant, k.Event, k.Endpoint, "end-lease")
		if err != nil || row == nil || !row.LeasedUntil.Valid {
			return err
		}
		if d := row.delivery(); !standsAt(&d, k) {
			return nil
		}
		return txn.BufferWrite([]*spanner.Mutation{leased(k, spanner.NullTime{})})
	})
	return wrap(err, "end lease of %s", k)
}

// HeadTask is the task that ought to exist for the line of an ordered delivery; nil
// if nobody in it is scheduled.
func (s *Store) HeadTask(ctx context.Context, d *webhook.Delivery) (*webhook.Task, error) {
	t, err := s.headTask(ctx, d)
	return t, wrap(err, "head of the line of %s to %s/%s", d.Event, d.Tenant, d.Endpoint)
}

func (s *Store) headTask(ctx context.Context, d *webhook.Delivery) (*webhook.Task, error) {
	id := orderOf(d)
	row, err := s.client.Single().ReadRowWithOptions(ctx, "OrderedKeys", id.row(), orderColumns, tag("ordered-key"))
	if errors.Is(err, spanner.ErrRowNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r orderRow
	if err := row.ToStruct(&r); err != nil || r.Head == nil {
		return nil, err
	}
	head, err := s.delivery(ctx, id.tenant, keyOf(r.Head), id.endpoint, "head")
	if err != nil || head == nil || head.State != string(webhook.DeliveryScheduled) {
		return nil, err
	}
	card, err := s.card(ctx, id.tenant, id.endpoint)
	if err != nil {
		return nil, err
	}
	h := head.delivery()
	return taskOf(&h, card.queue()), nil
}

// StoppedKey is an ordering key that stands still behind a dead delivery.
type StoppedKey struct {
	Tenant, Endpoint string
	OrderingKey      string
	Parked           bool // else blocked
	StoppedAt        time.Time
	Head             webhook.EventKey // whose delivery is the dead one
}

// StoppedKeys lists the keys of an endpoint that stand still, the latest first, at
// most limit.
func (s *Store) StoppedKeys(ctx context.Context, tenant, endpoint string, limit int) ([]StoppedKey, error) {
	txn := s.client.ReadOnlyTransaction()
	defer txn.Close()
	opts := limited("stopped-keys", limit)
	opts.Index = "OrderedKeysStopped"
	found, err := collect[orderRow](txn.ReadWithOptions(ctx, "OrderedKeys", spanner.Key{tenant, endpoint}.AsPrefix(), []string{"OrderKey"}, opts))
	if err != nil || len(found) == 0 {
		return nil, wrap(err, "stopped keys of %s/%s", tenant, endpoint)
	}
	out := make([]StoppedKey, 0, len(found))
	for _, f := range found {
		row, err := txn.ReadRowWithOptions(ctx, "OrderedKeys", spanner.Key{tenant, endpoint, f.OrderKey}, orderColumns, tag("stopped-keys"))
		if err != nil {
			return nil, wrap(err, "stopped keys of %s/%s", tenant, endpoint)
		}
		var r orderRow
		if err := row.ToStruct(&r); err != nil {
			return nil, wrap(err, "stopped keys of %s/%s", tenant, endpoint)
		}
		out = append(out, StoppedKey{Tenant: tenant, Endpoint: endpoint, OrderingKey: r.OrderingKey,
			Parked: r.Stop == stopParked, StoppedAt: plainTime(r.StoppedAt), Head: keyOf(r.Head)})
	}
	return out, nil
}

// ReleaseKey steps over the dead delivery behind which an ordering key stands still,
// and gives the task that ought to exist now; nil if nothing waits. A second call
// changes nothing. [ErrNotFound] if the endpoint has no such key.
func (s *Store) ReleaseKey(ctx context.Context, tenant, endpoint, orderingKey, actor string) (*webhook.Task, error) {
	auditID := s.newID()
	id := orderID{tenant, endpoint, webhook.OrderKeyOf(orderingKey)}
	var next *webhook.Delivery
	_, err := s.write(ctx, "release-key", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		next = nil
		now := s.clock()
		o, err := readOrders(ctx, txn, map[orderID]bool{id: true}, now)
		if err != nil {
			return err
		}
		if o.rows[id] == nil {
			return ErrNotFound
		}
		if o.rows[id].Stop == "" {
			return nil
		}
		if next, err = s.step(ctx, txn, o.change(id), now); err != nil {
			return err
		}
		ms := append(o.mutations(), auditRow(auditID, tenant, actor, "endpoint.release-key", endpoint, map[string]any{"ordering_key": orderingKey}, now))
		if next != nil {
			ms = append(ms, updateDelivery(next))
		}
		return txn.BufferWrite(ms)
	})
	if err != nil {
		return nil, wrap(err, "release key of %s/%s", tenant, endpoint)
	}
	task, err := s.headTask(ctx, &webhook.Delivery{Tenant: tenant, Endpoint: endpoint, OrderKey: id.key})
	return task, wrap(err, "release key of %s/%s", tenant, endpoint)
}
