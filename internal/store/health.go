package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// An endpoint's health is judged by [webhook.Health], from the attempts that
// [Store.Record] adds to the history, each once:
//
//   - An attempt counts in the transaction that adds it. What the history has
//     already, and what is dropped because its delivery has moved on, does not: a
//     repeated call could not tell that it had counted it.
//   - Tests do not count: somebody tries an endpoint out.
//   - Nor does what was under way when the endpoint was paused, disabled or deleted.
//
// The row is written when something changes that matters, with the notices and the
// state that follow, in the commit that has the attempt. A success of a healthy
// endpoint is written once a minute, so that the row is no hot spot.
const successEvery = time.Minute

// noticeRetention is how long notices are kept.
const noticeRetention = 90 * 24 * time.Hour

// readHealth reads what is known of endpoints; those never called are left out.
func readHealth(ctx context.Context, r reader, keys []spanner.Key) (map[endpointID]webhook.Health, error) {
	rows, err := collect[healthRow](r.ReadWithOptions(ctx, "EndpointHealth", spanner.KeySetFromKeys(keys...), healthColumns, tag("health")))
	out := map[endpointID]webhook.Health{}
	for i := range rows {
		out[endpointID{rows[i].Tenant, rows[i].EndpointID}] = rows[i].health()
	}
	return out, err
}

// Health reads an endpoint's health strongly. [ErrNotFound] if the tenant has no
// such endpoint.
func (s *Store) Health(ctx context.Context, tenant, id string) (webhook.Health, error) {
	_, h, err := s.endpointHealth(ctx, tenant, id)
	return h, wrap(err, "health of %s/%s", tenant, id)
}

// endpointHealth reads both as of one moment.
func (s *Store) endpointHealth(ctx context.Context, tenant, id string) (webhook.Endpoint, webhook.Health, error) {
	txn := s.client.ReadOnlyTransaction()
	defer txn.Close()
	return readBoth(ctx, txn, tenant, id)
}

type pointReader interface {
	rowReader
	reader
}

// readBoth reads an endpoint and its health.
func readBoth(ctx context.Context, r pointReader, tenant, id string) (webhook.Endpoint, webhook.Health, error) {
	ep, err := readEndpoint(ctx, r, tenant, id)
	if err != nil {
		return ep, webhook.Health{}, err
	}
	h, err := readHealth(ctx, r, []spanner.Key{{tenant, id}})
	return ep, h[endpointID{tenant, id}], err
}

// troubleList is which endpoints' breakers were not closed when it was last read.
type troubleList struct {
	mu     sync.Mutex
	readAt time.Time
	list   map[string][]string // tenant → endpoints
}

// maxTroubled bounds the list. What is beyond it is found out at the claim.
const maxTroubled = 10_000

// troubled is the list, at most two seconds old. One read serves all that is
// ingested meanwhile, and most of the time it finds nothing.
func (s *Store) troubled(ctx context.Context) (map[string][]string, error) {
	t, now := s.trouble, s.clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if age := now.Sub(t.readAt); t.list != nil && age >= 0 && age < cardAge {
		return t.list, nil
	}
	opts := limited("troubled", maxTroubled)
	opts.Index = "EndpointHealthTroubled"
	list := map[string][]string{}
	err := s.client.Single().ReadWithOptions(ctx, "EndpointHealth", spanner.Key{true}.AsPrefix(), []string{"Tenant", "EndpointId", "Breaker"}, opts).Do(func(r *spanner.Row) error {
		var row healthRow
		if err := r.ToStructLenient(&row); err != nil {
			return err
		}
		if row.Breaker != string(webhook.BreakerClosed) {
			list[row.Tenant] = append(list[row.Tenant], row.EndpointID)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.list, t.readAt = list, now
	return list, nil
}

func (t *troubleList) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = nil
}

// holds says of an endpoint why deliveries made now are to be held; empty if they
// are not.
type holds func(*webhook.Endpoint) string

// readHolds makes it for the wanted endpoints of the sets. Their states are current in
// any case; the breakers are read, inside txn, of those endpoints that were lately
// in trouble, as the list from before the transaction says. A breaker that opened since is found out at the claim; one that has
// closed is seen to have, so that nothing is held which its release has passed by.
func readHolds(ctx context.Context, txn *spanner.ReadWriteTransaction, troubled map[string][]string, sets map[string]*endpointSet, wanted func(*webhook.Endpoint) bool, now time.Time) (_ holds, err error) {
	var healths map[endpointID]webhook.Health
	var keys []spanner.Key
	for t, set := range sets {
		for _, id := range troubled[t] {
			if ep := set.byID(id); ep != nil && wanted(ep) {
				keys = append(keys, spanner.Key{t, id})
			}
		}
	}
	if len(keys) > 0 {
		if healths, err = readHealth(ctx, txn, keys); err != nil {
			return nil, err
		}
	}
	return func(ep *webhook.Endpoint) string {
		h := healths[endpointID{ep.Tenant, ep.ID}]
		if a, reason := webhook.Admit(ep, &h, webhook.TriggerAutomatic, now); a == webhook.AdmitHeld {
			return reason
		}
		return ""
	}, nil
}

// Notice is something that an endpoint's owner is to be told.
type Notice struct {
	ID               [16]byte
	Tenant, Endpoint string
	Kind             webhook.Notice
	Detail           NoticeDetail
	CreatedAt        time.Time
	SentAt           time.Time // when it was published; zero = not yet
}

// NoticeDetail is what was the case when the notice was written.
type NoticeDetail struct {
	State               webhook.EndpointState `json:"state"`
	Reason              string                `json:"reason,omitempty"`
	Since               time.Time             `json:"since,omitzero"` // of the state, or of the failures
	ConsecutiveFailures int64                 `json:"consecutive_failures"`
	LastSuccessAt       time.Time             `json:"last_success_at,omitzero"`
	OpenUntil           time.Time             `json:"open_until,omitzero"`
	Owner               string                `json:"owner,omitempty"`
}

func newNoticeRow(id [16]byte, kind webhook.Notice, ep *webhook.Endpoint, h *webhook.Health, now time.Time) *noticeRow {
	d := NoticeDetail{State: ep.State, Reason: ep.StateReason, Since: ep.StateSince, ConsecutiveFailures: h.ConsecutiveFailures,
		LastSuccessAt: h.LastSuccessAt, Owner: ep.Owner}
	switch kind {
	case webhook.NoticeBreakerOpened:
		d.Reason, d.Since, d.OpenUntil = webhook.ReasonBreakerOpen, h.FailingSince, h.OpenUntil
	case webhook.NoticeEndpointFailing:
		d.Reason, d.Since = "nothing but failures", h.FailingSince
	case webhook.NoticeBreakerClosed:
		d.Since = now
	}
	text, _ := json.Marshal(d) // strings, numbers and times: cannot fail
	return &noticeRow{NoticeID: id[:], Tenant: ep.Tenant, EndpointID: ep.ID, Kind: string(kind), Detail: string(text), CreatedAt: now,
		Unsent: spanner.NullBool{Bool: true, Valid: true}, ExpireAt: now.Add(noticeRetention)}
}

func (r *noticeRow) notice() (Notice, error) {
	n := Notice{Tenant: r.Tenant, Endpoint: r.EndpointID, Kind: webhook.Notice(r.Kind), CreatedAt: r.CreatedAt, SentAt: plainTime(r.SentAt)}
	copy(n.ID[:], r.NoticeID)
	return n, json.Unmarshal([]byte(r.Detail), &n.Detail)
}

// unsent reads the ids of an endpoint's notices that are not published, oldest first.
func unsent(ctx context.Context, r reader, tenant, id string, limit int) ([][]byte, error) {
	opts := limited("unsent-notices", limit)
	opts.Index = "NoticesUnsent"
	rows, err := collect[noticeRow](r.ReadWithOptions(ctx, "Notices", spanner.Key{tenant, id}.AsPrefix(), []string{"NoticeId"}, opts))
	var ids [][]byte
	for _, row := range rows {
		ids = append(ids, row.NoticeID)
	}
	return ids, err
}

// noticesAtOnce bounds what one call publishes, or makes controls for.
const noticesAtOnce = 100

// UnsentNotices lists an endpoint's notices that are not published yet, oldest
// first, a hundred at most.
func (s *Store) UnsentNotices(ctx context.Context, tenant, id string) ([]Notice, error) {
	txn := s.client.ReadOnlyTransaction()
	defer txn.Close()
	ids, err := unsent(ctx, txn, tenant, id, noticesAtOnce)
	if err != nil || len(ids) == 0 {
		return nil, wrap(err, "notices of %s/%s", tenant, id)
	}
	var keys []spanner.Key
	for _, id := range ids {
		keys = append(keys, spanner.Key{id})
	}
	rows, err := collect[noticeRow](txn.ReadWithOptions(ctx, "Notices", spanner.KeySetFromKeys(keys...), noticeColumns, tag("unsent-notices")))
	if err != nil {
		return nil, wrap(err, "notices of %s/%s", tenant, id)
	}
	return sortedNotices(rows)
}

func sortedNotices(rows []noticeRow) ([]Notice, error) {
	slices.SortFunc(rows, func(a, b noticeRow) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), bytes.Compare(a.NoticeID, b.NoticeID))
	})
	out := make([]Notice, len(rows))
	for i := range rows {
		var err error
		if out[i], err = rows[i].notice(); err != nil {
			return nil, wrap(err, "stored notice %x", rows[i].NoticeID)
		}
	}
	return out, nil
}

// MarkNoticeSent notes that a notice was published. Idempotent.
func (s *Store) MarkNoticeSent(ctx context.Context, id [16]byte) error {
	_, err := s.client.Apply(ctx, []*spanner.Mutation{spanner.Update("Notices", []string{"NoticeId", "SentAt", "Unsent"},
		[]any{id[:], s.clock(), nil})}, spanner.TransactionTag("sealpost-notice-sent"))
	return wrap(err, "mark notice %x sent", id)
}

func notifyControl(ep *webhook.Endpoint, h *webhook.Health, id []byte) webhook.Control {
	return webhook.Control{Kind: webhook.ControlNotify, Tenant: ep.Tenant, Endpoint: ep.ID, Epoch: h.Epoch, Page: hex.EncodeToString(id)}
}

// Outstanding lists every control that an endpoint's state calls for, read
// strongly: whoever changed it last may have stopped before it made them. None for
// an endpoint that the tenant never had.
func (s *Store) Outstanding(ctx context.Context, tenant, id string) ([]webhook.Control, error) {
	txn := s.client.ReadOnlyTransaction()
	defer txn.Close()
	ep, h, err := readBoth(ctx, txn, tenant, id)
	if errors.Is(err, spanner.ErrRowNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap(err, "controls of %s/%s", tenant, id)
	}
	ids, err := unsent(ctx, txn, tenant, id, noticesAtOnce)
	out := webhook.Outstanding(&ep, &h)
	for _, n := range ids {
		out = append(out, notifyControl(&ep, &h, n))
	}
	return out, wrap(err, "controls of %s/%s", tenant, id)
}

// observed is one attempt that a transaction adds to the history.
type observed struct {
	record int // its place among the records
	o      webhook.Observation
	at     time.Time // of its end
}

// settlement is one endpoint in a recording.
type settlement struct {
	seen     []observed
	before   webhook.Health
	health   webhook.Health
	endpoint *webhook.Endpoint // nil where nothing asked for it
	notices  []webhook.Notice
	opened   bool
	closed   bool
	disable  string
}

// quiet reports whether the attempts say nothing but that a healthy endpoint is
// healthy.
func (e *settlement) quiet() bool {
	h := &e.before
	if !h.Closed() || h.ConsecutiveFailures != 0 || !h.FailingSince.IsZero() || h.ThrottleStep != 0 || !h.ThrottledUntil.IsZero() {
		return false
	}
	return !slices.ContainsFunc(e.seen, func(o observed) bool { return !o.o.Outcome.OK() })
}

// observe judges the endpoints by the attempts of a recording.
func (tx *recording) observe(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
	if len(tx.settled) == 0 {
		return nil
	}
	var keys, asked []spanner.Key
	for id := range tx.settled {
		keys = append(keys, spanner.Key{id.tenant, id.id})
	}
	healths, err := readHealth(ctx, txn, keys)
	if err != nil {
		return err
	}
	for id, e := range tx.settled {
		e.before, e.health = healths[id], healths[id]
		if !e.quiet() {
			asked = append(asked, spanner.Key{id.tenant, id.id})
		}
	}
	if len(asked) > 0 {
		rows, err := collect[endpointRow](txn.ReadWithOptions(ctx, "Endpoints", spanner.KeySetFromKeys(asked...), endpointColumns, tag("record-endpoints")))
		if err != nil {
			return err
		}
		for i := range rows {
			ep, err := rows[i].endpoint()
			if err != nil {
				return err
			}
			tx.settled[endpointID{ep.Tenant, ep.ID}].endpoint = &ep
		}
	}
	for _, e := range tx.settled {
		e.judge(tx.now)
	}
	return nil
}

// judge applies the attempts in the order of their starts.
func (e *settlement) judge(now time.Time) {
	slices.SortStableFunc(e.seen, func(a, b observed) int { return a.o.StartedAt.Compare(b.o.StartedAt) })
	if e.quiet() {
		for _, o := range e.seen {
			e.health.LastSuccessAt = later(e.health.LastSuccessAt, o.at)
		}
		if e.health.LastSuccessAt.Sub(e.before.LastSuccessAt) < successEvery {
			e.health = e.before
		}
		return
	}
	if e.endpoint == nil || e.endpoint.State != webhook.EndpointActive {
		return
	}
	for _, o := range e.seen {
		c := e.health.Observe(e.endpoint, o.o, o.at)
		e.health = c.Health
		e.notices = append(e.notices, c.Notices...)
		if c.Opened || c.Closed {
			e.opened, e.closed = c.Opened, c.Closed
		}
		if c.Disable != "" {
			e.opened, e.closed, e.disable = false, false, c.Disable
			ep := e.endpoint
			ep.State, ep.StateReason, ep.StateSince, ep.UpdatedAt = webhook.EndpointDisabled, c.Disable, now, now
			return // what else was under way says nothing any more
		}
	}
}

// place corrects what was decided of a delivery before its endpoint's health was
// known: the next attempt after a probe's failure waits for the breaker, after a
// throttling answer for the throttle's end; and a deleted endpoint keeps nothing.
func (tx *recording) place(r *AttemptRecord, e *settlement) {
	d := tx.rows[deliveryID{r.Attempt.Key.Event, r.Attempt.Key.Endpoint}]
	if e.endpoint == nil || !d.State.Open() {
		return
	}
	a, reason := webhook.Admit(e.endpoint, &e.health, webhook.TriggerAutomatic, tx.now)
	switch {
	case d.State == webhook.DeliveryHeld && a == webhook.AdmitCancel:
		stop(d, webhook.DeliveryCancelled, reason, tx.now)
		tx.closed.add(d)
		tx.ended = append(tx.ended, ended{delivery: d})
	case d.State == webhook.DeliveryScheduled && r.Attempt.Trigger == webhook.TriggerProbe && a == webhook.AdmitHeld:
		stop(d, webhook.DeliveryHeld, reason, tx.now)
	case d.State == webhook.DeliveryScheduled && e.health.Throttled(d.NextAttemptAt):
		d.NextAttemptAt = e.health.AfterThrottle(d.Key(), tx.now).UTC().Round(0)
	}
}

// consequences are the rows that follow from what was observed, and the controls,
// which go with the first record of their endpoint.
func (s *Store) consequences(ctx context.Context, txn *spanner.ReadWriteTransaction, tx *recording) ([]*spanner.Mutation, error) {
	var ms []*spanner.Mutation
	bumped := map[string]bool{}
	for _, id := range slices.SortedFunc(maps.Keys(tx.settled), func(a, b endpointID) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.id, b.id))
	}) {
		e := tx.settled[id]
		if e.health != e.before {
			ms = append(ms, upsert("EndpointHealth", newHealthRow(id, &e.health, tx.now)))
		}
		if e.disable != "" {
			row, err := newEndpointRow(e.endpoint)
			if err != nil {
				return nil, err
			}
			if !bumped[id.tenant] { // once per commit is enough, and all that one read allows
				bumped[id.tenant] = true
				bump, err := bumpSet(ctx, txn, id.tenant, 0, s.maxEps, tx.now)
				if err != nil {
					return nil, err
				}
				ms = append(ms, bump)
			}
			ms = append(ms, upsert("Endpoints", row),
				auditRow(s.newID(), id.tenant, systemActor, "endpoint.disable", id.id, map[string]any{"reason": e.disable}, tx.now))
		}
		var controls []webhook.Control
		if e.opened || e.closed || e.disable != "" {
			controls = webhook.Outstanding(e.endpoint, &e.health)
		}
		for _, kind := range e.notices {
			row := newNoticeRow(s.newID(), kind, e.endpoint, &e.health, tx.now)
			ms = append(ms, insert("Notices", row))
			controls = append(controls, notifyControl(e.endpoint, &e.health, row.NoticeID))
		}
		tx.out[e.seen[0].record].Controls = controls
	}
	return ms, nil
}
