package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// What is held comes back in two ways: one delivery as a probe, once a breaker's
// cool-down is over, and all of them, a page at a time, when the breaker closes or
// somebody switches the endpoint on.
//
// Two rules make sure that nothing is left behind. Whatever makes a delivery held
// reads, in its own transaction, that the endpoint holds; so once the change that
// ends this is committed, no more are added behind a release's back. And every step
// can be taken again: a page that was begun before is found among the scheduled
// deliveries that lie on it, whose tasks are made again under the same names.

// releaseChunk is how many held deliveries one commit releases.
const releaseChunk = 400

// probeSkew is how early a probe may begin, since clocks differ.
const probeSkew = 2 * time.Second

// ReleasedPage is what one step of a release came to.
type ReleasedPage struct {
	// Released is how many deliveries it took up.
	Released int
	// Tasks ought to exist now: those of what was released, and of everything else on
	// the page that is due.
	Tasks []webhook.Task
	// Next is where the release goes on once the tasks exist; nil if this was the last
	// page: then call [Store.FinishRelease].
	Next *webhook.Control
	// Late says that the control is of an earlier epoch, or the endpoint holds again:
	// nothing was done.
	Late bool
}

// ReleasePage takes one step of a release. Held deliveries become scheduled, at
// their attempt and with a new task, spread over time by the endpoint's rate; the
// next page comes when that time is over, so that an endpoint which fails again
// stops the release before all of it has moved. What somebody left, or a filter
// could not judge, stays held unless the release was asked for as a whole.
// Repeating a step is harmless.
func (s *Store) ReleasePage(ctx context.Context, c webhook.Control) (ReleasedPage, error) {
	var after webhook.EventKey
	var err error
	if c.Page != "" {
		if after, err = webhook.ParseEventID(c.Page); err != nil {
			return ReleasedPage{}, wrap(invalid("page: %v", err), "release %s/%s", c.Tenant, c.Endpoint)
		}
	}
	r := &release{s: s, c: c, after: after[:], first: c.Page == ""}
	if _, err = s.write(ctx, "release", r.takeUp); err == nil && !r.out.Late {
		err = r.complete(ctx)
	}
	return r.out, wrap(err, "release %s/%s from %q", c.Tenant, c.Endpoint, c.Page)
}

// release is one step of a release.
type release struct {
	s     *Store
	c     webhook.Control
	after []byte
	first bool // from the beginning, after's own key included

	ep   webhook.Endpoint
	h    webhook.Health
	now  time.Time
	end  []byte // the last key of this page; nil = to the end
	took time.Duration
	out  ReleasedPage
}

// span is the index range of one state on this page, from after to end.
func (r *release) span(state webhook.DeliveryState, end []byte) spanner.KeyRange {
	prefix := spanner.Key{r.c.Tenant, r.c.Endpoint, string(state)}
	from, kind := append(prefix[:3:3], r.after), spanner.OpenClosed
	if r.first {
		from, kind = prefix, spanner.ClosedClosed
	}
	to := prefix
	if end != nil {
		to = append(prefix[:3:3], end)
	}
	return spanner.KeyRange{Start: from, End: to, Kind: kind}
}

// takeUp is the transaction that makes the page's held deliveries scheduled.
func (r *release) takeUp(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
	r.out, r.end, r.now = ReleasedPage{}, nil, r.s.clock()
	var err error
	if r.ep, r.h, err = readBoth(ctx, txn, r.c.Tenant, r.c.Endpoint); errors.Is(err, spanner.ErrRowNotFound) {
		r.out.Late = true
		return nil
	} else if err != nil {
		return err
	}
	if r.h.Epoch != r.c.Epoch || r.ep.State != webhook.EndpointActive || !r.h.Closed() {
		r.out.Late = true
		return nil
	}
	keys, err := openKeys(ctx, txn, r.span(webhook.DeliveryHeld, nil), r.c.Endpoint, releaseChunk)
	if err != nil || len(keys) == 0 {
		return err
	}
	if len(keys) == releaseChunk {
		r.end = keys[len(keys)-1][0].([]byte)
	}
	rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("release")))
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(row deliveryRow) bool { d := row.delivery(); return !releasable(&d, &r.h) })
	order, events, err := r.takePlaces(ctx, txn, rows)
	if err != nil {
		return err
	}
	var ms []*spanner.Mutation
	for i := range rows {
		d := rows[i].delivery()
		resume(&d, webhook.ReasonReleased, r.slot(i), r.now)
		if e := events[d.Event]; e != nil {
			order.enter(&d, e.OrderingKey, plainTime(e.OccurredAt))
		}
		ms = append(ms, updateDelivery(&d))
	}
	r.out.Released, r.took = len(rows), r.slot(len(rows)).Sub(r.now)
	return txn.BufferWrite(append(ms, order.mutations()...))
}

// takePlaces gives the events of those deliveries that are to enter a line now, for the
// filter could not judge them when they came, and the lines.
func (r *release) takePlaces(ctx context.Context, txn *spanner.ReadWriteTransaction, rows []deliveryRow) (*orders, map[webhook.EventKey]*eventRow, error) {
	var keys []spanner.Key
	for i := range rows {
		if d := rows[i].delivery(); r.ep.Ordering != webhook.OrderingNone && unjudged(&d) && !d.Ordered() {
			keys = append(keys, spanner.Key{rows[i].EventKey})
		}
	}
	entering, lines := map[webhook.EventKey]*eventRow{}, map[orderID]bool{}
	if len(keys) > 0 {
		events, err := collect[eventRow](txn.ReadWithOptions(ctx, "Events", spanner.KeySetFromKeys(keys...),
			[]string{"EventKey", "OrderingKey", "OccurredAt"}, tag("release-events")))
		if err != nil {
			return nil, nil, err
		}
		for i := range events {
			if key := events[i].OrderingKey; key != "" {
				entering[keyOf(events[i].EventKey)] = &events[i]
				lines[orderID{r.c.Tenant, r.c.Endpoint, webhook.OrderKeyOf(key)}] = true
			}
		}
	}
	order, err := readOrders(ctx, txn, lines, r.now)
	return order, entering, err
}

// slot is when the n-th delivery of a page goes out.
func (r *release) slot(n int) time.Time {
	rate := r.ep.RatePerSecond
	if rate <= 0 {
		rate = webhook.DefaultRatePerSecond
	}
	return later(r.now, r.h.ThrottledUntil).Add(time.Duration(float64(n) / rate * float64(time.Second))).UTC().Round(0)
}

// releasable reports whether a held delivery goes with the release under way. One
// whose ordering key is parked waits for that key.
func releasable(d *webhook.Delivery, h *webhook.Health) bool {
	return d.State == webhook.DeliveryHeld && d.Reason != webhook.ReasonKeyParked && (h.ReleaseAll ||
		!unjudged(d) && d.UpdatedAt.After(h.LeftAt))
}

// unjudged reports whether a delivery is held because its endpoint's filter could not
// say yes or no.
func unjudged(d *webhook.Delivery) bool {
	return d.State == webhook.DeliveryHeld && strings.HasPrefix(d.Reason, webhook.ReasonFilterFailed)
}

// resume puts a held delivery back to its next attempt.
func resume(d *webhook.Delivery, reason string, at, now time.Time) {
	d.State, d.Reason, d.NextAttemptAt, d.UpdatedAt = webhook.DeliveryScheduled, reason, at, now
	d.Attempt++ // from the last one made to the next
	d.Task++
}

// complete finds the tasks of everything that is scheduled on the page: what the
// transaction took up, now or in an earlier run, and what was due meanwhile.
func (r *release) complete(ctx context.Context) error {
	txn := r.s.client.ReadOnlyTransaction()
	defer txn.Close()
	keys, err := openKeys(ctx, txn, r.span(webhook.DeliveryScheduled, r.end), r.c.Endpoint, releaseChunk)
	if err != nil {
		return err
	}
	if len(keys) == releaseChunk {
		r.end = keys[len(keys)-1][0].([]byte)
	}
	if len(keys) > 0 {
		rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("release-tasks")))
		if err != nil {
			return err
		}
		var early []spanner.Key
		for i := range rows {
			d := rows[i].delivery()
			switch {
			case d.State != webhook.DeliveryScheduled:
			case d.Reason == webhook.ReasonReleased || !d.NextAttemptAt.After(r.now):
				r.out.Tasks = append(r.out.Tasks, *taskOf(&d, r.ep.QueueRef()))
			case d.Reason == webhook.ReasonThrottled && !r.h.Throttled(r.now):
				early = append(early, spanner.Key{rows[i].EventKey, rows[i].EndpointID})
			}
		}
		if err := r.pullIn(ctx, early); err != nil {
			return err
		}
	}
	if r.end != nil {
		next := r.c
		next.Page, next.At = keyOf(r.end).ID(), r.now.Add(r.took)
		r.out.Next = &next
	}
	return nil
}

// pullIn brings forward what a throttle put off that is over by now.
func (r *release) pullIn(ctx context.Context, keys []spanner.Key) error {
	if len(keys) == 0 {
		return nil
	}
	var tasks []webhook.Task
	_, err := r.s.write(ctx, "release-early", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		tasks = nil
		rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("release-early")))
		if err != nil {
			return err
		}
		var ms []*spanner.Mutation
		for i := range rows {
			d := rows[i].delivery()
			if d.State != webhook.DeliveryScheduled || d.Reason != webhook.ReasonThrottled {
				continue
			}
			d.Task++
			d.Reason, d.NextAttemptAt, d.UpdatedAt = webhook.ReasonReleased, r.slot(r.out.Released+len(ms)), r.now
			ms = append(ms, updateDelivery(&d))
			tasks = append(tasks, *taskOf(&d, r.ep.QueueRef()))
		}
		return txn.BufferWrite(ms)
	})
	r.out.Tasks = append(r.out.Tasks, tasks...)
	return err
}

// openKeys reads the keys of an endpoint's open deliveries in a range of the index.
func openKeys(ctx context.Context, r reader, in spanner.KeyRange, endpoint string, limit int) ([]spanner.Key, error) {
	opts := limited("open-by-endpoint", limit)
	opts.Index = "DeliveriesOpenByEndpoint"
	var keys []spanner.Key
	err := r.ReadWithOptions(ctx, "Deliveries", in, []string{"EventKey"}, opts).Do(func(row *spanner.Row) error {
		var k []byte
		err := row.Columns(&k)
		keys = append(keys, spanner.Key{k, endpoint})
		return err
	})
	return keys, err
}

// FinishRelease notes that the release which c belongs to is complete. In another
// epoch it changes nothing.
func (s *Store) FinishRelease(ctx context.Context, c webhook.Control) error {
	err := s.changeHealth(ctx, "finish-release", c, func(ep *webhook.Endpoint, h *webhook.Health, _ time.Time) bool {
		if h.ReleasedEpoch == c.Epoch || ep.State != webhook.EndpointActive || !h.Closed() {
			return false
		}
		h.ReleasedEpoch, h.ReleaseAll = c.Epoch, false
		return true
	})
	return wrap(err, "finish release of %s/%s", c.Tenant, c.Endpoint)
}

// changeHealth has change edit an endpoint's health, in the control's epoch only.
func (s *Store) changeHealth(ctx context.Context, verb string, c webhook.Control, change func(*webhook.Endpoint, *webhook.Health, time.Time) bool) error {
	_, err := s.write(ctx, verb, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		ep, h, err := readBoth(ctx, txn, c.Tenant, c.Endpoint)
		if errors.Is(err, spanner.ErrRowNotFound) {
			return nil
		}
		now := s.clock()
		if err != nil || h.Epoch != c.Epoch || !change(&ep, &h, now) {
			return err
		}
		return txn.BufferWrite([]*spanner.Mutation{upsert("EndpointHealth", newHealthRow(endpointID{c.Tenant, c.Endpoint}, &h, now))})
	})
	s.cards.forget(c.Tenant, c.Endpoint)
	s.trouble.forget()
	return err
}

// Probe is what became of a probe that was to begin.
type Probe struct {
	// Started says that there is one: by this call, and Task is its task, or, for
	// [Store.BeginProbe], the attempt asked about.
	Started bool
	Task    *webhook.Task
	// Awaiting says that no delivery was there to probe with: the next that comes is
	// the probe, and the endpoint's queue must run for it to come.
	Awaiting bool
	// Controls ought to exist now.
	Controls []webhook.Control
}

// errEarly: a control task ran before its time.
var errEarly = errors.New("the cool-down is not over")

// StartProbe begins the probe that a control asks for: one held delivery, else one
// scheduled, taken at random so that no single one bears all probes, is scheduled at
// once. If there is none, the next delivery that comes is the probe.
//
// In another epoch, or to an endpoint that is not active, it does nothing. Before
// the cool-down's end it is an error. Repeating it is harmless.
func (s *Store) StartProbe(ctx context.Context, c webhook.Control) (Probe, error) {
	// First, what comes from now on is no longer held. What was held before can
	// then be looked through without a lock: no more is added.
	var due bool
	var early error
	err := s.changeHealth(ctx, "cool-down-over", c, func(ep *webhook.Endpoint, h *webhook.Health, now time.Time) bool {
		due, early = false, nil
		if ep.State != webhook.EndpointActive || h.Closed() {
			return false
		}
		if now.Add(probeSkew).Before(h.OpenUntil) {
			early = errEarly
			return false
		}
		due = true
		was := *h
		*h = h.Await()
		return *h != was
	})
	if err = errors.Join(err, early); err != nil || !due {
		return Probe{}, wrap(err, "probe %s/%s", c.Tenant, c.Endpoint)
	}
	for range 5 {
		d, err := s.candidate(ctx, c)
		if err != nil {
			return Probe{}, wrap(err, "probe %s/%s", c.Tenant, c.Endpoint)
		}
		if d == nil {
			return Probe{Awaiting: true}, nil
		}
		p, again, err := s.probeWith(ctx, c, d)
		if err != nil || !again {
			return p, wrap(err, "probe %s/%s with %s", c.Tenant, c.Endpoint, d.Event)
		}
	}
	return Probe{}, wrap(conflict("every delivery looked at has moved on"), "probe %s/%s", c.Tenant, c.Endpoint)
}

// candidate finds a delivery to probe with; nil if there is none.
func (s *Store) candidate(ctx context.Context, c webhook.Control) (*webhook.Delivery, error) {
	txn := s.client.ReadOnlyTransaction()
	defer txn.Close()
	h, err := readHealth(ctx, txn, []spanner.Key{{c.Tenant, c.Endpoint}})
	if err != nil {
		return nil, err
	}
	health := h[endpointID{c.Tenant, c.Endpoint}]
	start := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(c.Tenant+"\x00"+c.Endpoint+"\x00"), uint64(c.Epoch)))
	for _, state := range []webhook.DeliveryState{webhook.DeliveryHeld, webhook.DeliveryScheduled} {
		// From a random key to the end, then from the start.
		for _, from := range [][]byte{start[:16], nil} {
			d, err := firstEligible(ctx, txn, &release{c: c, after: from, first: from == nil}, state, &health)
			if err != nil || d != nil {
				return d, err
			}
		}
	}
	return nil, nil
}

func firstEligible(ctx context.Context, txn *spanner.ReadOnlyTransaction, r *release, state webhook.DeliveryState, h *webhook.Health) (*webhook.Delivery, error) {
	const few = 50
	for {
		keys, err := openKeys(ctx, txn, r.span(state, nil), r.c.Endpoint, few)
		if err != nil || len(keys) == 0 {
			return nil, err
		}
		rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("probe-candidate")))
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if d := rows[i].delivery(); eligible(&d, h) {
				return &d, nil
			}
		}
		if len(keys) < few {
			return nil, nil
		}
		r.after, r.first = keys[few-1][0].([]byte), false
	}
}

// eligible reports whether a delivery can be probed with.
func eligible(d *webhook.Delivery, h *webhook.Health) bool {
	return releasable(d, h) && !unjudged(d) || d.State == webhook.DeliveryScheduled && d.Trigger != webhook.TriggerTest
}

// probeWith makes d the probe. again says that it has moved on.
func (s *Store) probeWith(ctx context.Context, c webhook.Control, chosen *webhook.Delivery) (p Probe, again bool, err error) {
	_, err = s.write(ctx, "probe", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		p, again = Probe{}, false
		ep, h, err := readBoth(ctx, txn, c.Tenant, c.Endpoint)
		if err != nil {
			return err
		}
		now := s.clock()
		h, due := h.Probe(now)
		if !due || h.Epoch != c.Epoch+1 || ep.State != webhook.EndpointActive {
			return nil
		}
		row, err := readDelivery(ctx, txn, c.Tenant, chosen.Event, c.Endpoint, "probe")
		if err != nil {
			return err
		}
		if row == nil {
			again = true
			return nil
		}
		d := row.delivery()
		switch {
		case !eligible(&d, &h):
			again = true
			return nil
		case d.State == webhook.DeliveryHeld:
			resume(&d, "", now, now)
		default:
			d.Task++
			d.NextAttemptAt, d.UpdatedAt = now, now
		}
		d.Trigger = webhook.TriggerProbe
		p = Probe{Started: true, Task: taskOf(&d, ep.QueueRef()), Controls: webhook.Outstanding(&ep, &h)}
		return txn.BufferWrite([]*spanner.Mutation{updateDelivery(&d), upsert("EndpointHealth", newHealthRow(endpointID{c.Tenant, c.Endpoint}, &h, now))})
	})
	s.cards.forget(c.Tenant, c.Endpoint)
	s.trouble.forget()
	return p, again, err
}

// BeginProbe makes the attempt k, whose claim said [VerdictProbe], the probe, unless
// there is one already. Claim it again after: Started or not, things have changed.
func (s *Store) BeginProbe(ctx context.Context, k webhook.AttemptKey) (Probe, error) {
	var p Probe
	_, err := s.write(ctx, "begin-probe", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		p = Probe{}
		row, err := readDelivery(ctx, txn, k.Tenant, k.Event, k.Endpoint, "begin-probe")
		if err != nil || row == nil {
			return err
		}
		d := row.delivery()
		ep, h, err := readBoth(ctx, txn, k.Tenant, k.Endpoint)
		if err != nil {
			return err
		}
		now := s.clock()
		if a, _ := webhook.Admit(&ep, &h, d.Trigger, now); a != webhook.AdmitProbe || !standsAt(&d, k) {
			p.Started = d.Trigger == webhook.TriggerProbe && a == webhook.AdmitRun
			return nil
		}
		h, _ = h.Probe(now)
		d.Trigger, d.UpdatedAt = webhook.TriggerProbe, now
		p = Probe{Started: true, Controls: webhook.Outstanding(&ep, &h)}
		return txn.BufferWrite([]*spanner.Mutation{updateDelivery(&d), upsert("EndpointHealth", newHealthRow(endpointID{k.Tenant, k.Endpoint}, &h, now))})
	})
	s.cards.forget(k.Tenant, k.Endpoint)
	s.trouble.forget()
	return p, wrap(err, "begin probe with %s", k)
}

// HoldQueue reports whether the endpoint's own queue is to stand still now, and
// which one that is; empty if it has none. It is read strongly. What has to go out
// while the queue stands still does not go through it.
func (s *Store) HoldQueue(ctx context.Context, tenant, id string) (queue string, hold bool, err error) {
	ep, h, err := s.endpointHealth(ctx, tenant, id)
	if errors.Is(err, spanner.ErrRowNotFound) {
		return "", false, nil
	}
	if err != nil {
		return "", false, wrap(err, "queue of %s/%s", tenant, id)
	}
	if ep.State == webhook.EndpointDeleted {
		return "", false, nil
	}
	return ep.Queue, holdsQueue(&ep, &h), nil
}

// CreateTest stores an event that goes to one endpoint only, whatever it subscribes
// to, and gives its task. It is sent once, by the trigger test, also to an endpoint
// that is paused, disabled or whose breaker is open, and says nothing of the
// endpoint's health. A repeated call with the same event gives the same task.
// [ErrNotFound] if there is no such endpoint or it is deleted.
func (s *Store) CreateTest(ctx context.Context, tenant, endpoint string, e webhook.Event) (webhook.Task, error) {
	p, err := prepare(&e)
	if err == nil && e.Tenant != tenant {
		err = invalid("the event is tenant %q's", e.Tenant)
	}
	if err != nil {
		return webhook.Task{}, wrap(err, "test %s/%s", tenant, endpoint)
	}
	var task webhook.Task
	_, err = s.write(ctx, "test", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		ep, err := readEndpoint(ctx, txn, tenant, endpoint)
		if err == nil && ep.State == webhook.EndpointDeleted {
			err = ErrNotFound
		}
		if err != nil {
			return err
		}
		row, err := readDelivery(ctx, txn, tenant, e.Key, endpoint, "test")
		if err != nil {
			return err
		}
		now := s.clock()
		d := webhook.Delivery{Event: e.Key, Tenant: tenant, Endpoint: endpoint, EventType: e.Type, State: webhook.DeliveryScheduled,
			Generation: 1, Attempt: 1, Task: 1, Trigger: webhook.TriggerTest, NextAttemptAt: now, StartedAt: now, CreatedAt: now, UpdatedAt: now}
		if row != nil {
			d = row.delivery()
			task = *taskOf(&d, ep.QueueRef())
			return nil
		}
		task = *taskOf(&d, ep.QueueRef())
		er := newEventRow(&e, p.headers)
		er.State = string(webhook.EventAccepted)
		return txn.BufferWrite([]*spanner.Mutation{insert("Events", er),
			insert("Payloads", &payloadRow{EventKey: e.Key[:], Body: p.body.body, Encoding: p.body.encoding}),
			insert("Deliveries", newDeliveryRow(&d))})
	})
	return task, wrap(err, "test %s/%s", tenant, endpoint)
}
