package store

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// EndpointChange is an endpoint as a change has left it, and what remains to be
// done outside of Spanner: every control is to be made (tasks.Queue.Control) before
// the change counts as done. A repeated change that finds nothing to do gives the
// same controls.
type EndpointChange struct {
	Endpoint webhook.Endpoint
	Health   webhook.Health
	Controls []webhook.Control
}

// UpdateEndpoint has change edit an endpoint, and stores what it made of it. The
// function may run more than once, each time on what is stored then; what it returns
// as an error is passed on, and nothing changes. To refuse when somebody else's
// change came between, it compares UpdatedAt with what was seen and returns
// [ErrConflict].
//
// Tenant, id, state and queue are not the function's to change: there are verbs for
// those. [ErrNotFound] if there is no such endpoint or it is deleted; [ErrManaged] if
// it is managed and actor is not its manager; [ErrInvalid] names the field.
func (s *Store) UpdateEndpoint(ctx context.Context, tenant, id string, change func(*webhook.Endpoint) error, actor string) (webhook.Endpoint, error) {
	auditID := s.newID()
	var out webhook.Endpoint
	var refused error
	err := s.changeEndpoint(ctx, "update-endpoint", tenant, id, 0, func(ep *webhook.Endpoint, now time.Time) (*spanner.Mutation, bool) {
		var fields []string
		if fields, refused = edit(ep, change, actor); refused != nil {
			return nil, false
		}
		if len(fields) > 0 {
			ep.UpdatedAt = now
		}
		out = *ep
		return auditRow(auditID, tenant, actor, "endpoint.update", id, map[string]any{"fields": fields}, now), len(fields) > 0
	})
	if err = errors.Join(err, refused); err != nil {
		return webhook.Endpoint{}, wrap(err, "update endpoint %s/%s", tenant, id)
	}
	return out, nil
}

// edit applies an update to ep and says which fields it changed.
func edit(ep *webhook.Endpoint, change func(*webhook.Endpoint) error, actor string) ([]string, error) {
	if ep.State == webhook.EndpointDeleted {
		return nil, ErrNotFound
	}
	before, err := cloneEndpoint(ep)
	if err != nil {
		return nil, err
	}
	if err := change(ep); err != nil {
		return nil, err
	}
	keep(ep, &before)
	fillEndpoint(ep)
	if err := checkEndpoint(ep); err != nil {
		return nil, err
	}
	fields, err := changedFields(&before, ep)
	if err != nil || len(fields) == 0 {
		return nil, err
	}
	for _, manager := range []string{before.ManagedBy, ep.ManagedBy} {
		if manager != "" && manager != actor {
			return nil, managed(manager)
		}
	}
	return fields, nil
}

func managed(by string) error {
	return wrap(ErrManaged, "the endpoint is managed by %s and read-only elsewhere", by)
}

// cloneEndpoint is a copy that shares nothing.
func cloneEndpoint(ep *webhook.Endpoint) (webhook.Endpoint, error) {
	row, err := newEndpointRow(ep)
	if err != nil {
		return webhook.Endpoint{}, err
	}
	row.EventTypes, row.AuthSealed = slices.Clone(row.EventTypes), slices.Clone(row.AuthSealed)
	return row.endpoint()
}

// keep puts back what an update cannot change.
func keep(ep, before *webhook.Endpoint) {
	ep.Tenant, ep.ID, ep.CreatedAt, ep.UpdatedAt = before.Tenant, before.ID, before.CreatedAt, before.UpdatedAt
	ep.State, ep.StateReason, ep.StateSince = before.State, before.StateReason, before.StateSince
	ep.Queue, ep.QueueReadyAt, ep.QueueLeftAt = before.Queue, before.QueueReadyAt, before.QueueLeftAt
}

// changedFields names what differs in the stored forms, never a value.
func changedFields(a, b *webhook.Endpoint) ([]string, error) {
	ra, err := newEndpointRow(a)
	if err != nil {
		return nil, err
	}
	rb, err := newEndpointRow(b)
	if err != nil {
		return nil, err
	}
	var out []string
	va, vb := reflect.ValueOf(*ra), reflect.ValueOf(*rb)
	for i, name := range endpointColumns {
		if name != "Settings" && !reflect.DeepEqual(va.Field(i).Interface(), vb.Field(i).Interface()) {
			out = append(out, name)
		}
	}
	var sa, sb map[string]json.RawMessage
	for text, into := range map[string]*map[string]json.RawMessage{ra.Settings.StringVal: &sa, rb.Settings.StringVal: &sb} {
		if text != "" {
			if err := json.Unmarshal([]byte(text), into); err != nil {
				return nil, err
			}
		}
	}
	if ra.Settings == rb.Settings {
		return out, nil
	}
	for name := range sb {
		if string(sa[name]) != string(sb[name]) {
			out = append(out, name)
		}
	}
	for name := range sa {
		if _, still := sb[name]; !still {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// StateChange is what somebody wants of an endpoint's state.
type StateChange struct {
	// To is active (resume, enable, or close an open breaker and end a throttle),
	// paused or disabled.
	To webhook.EndpointState
	// Reason is for people; empty for the usual one.
	Reason string
	Actor  string
	// LeaveHeld, on the way to active, leaves what is held by now until somebody
	// releases it.
	LeaveHeld bool
}

// SetEndpointState pauses, disables or switches on an endpoint. Pausing and
// disabling have its deliveries held from now on: a claim knows within two seconds.
// Switching on resets its health and has what was held released, or leaves it. An
// endpoint that is in the state already is left alone, but for a reset where its
// breaker is open or its dispatches are kept back. It is idempotent, also after an
// error whose commit may have happened.
//
// Whoever manages an endpoint elsewhere manages its settings, not its state: that
// anybody may change. The owner is told of disabling and enabling. [ErrNotFound] if
// there is no such endpoint or it is deleted; [ErrConflict] if a disabled one is to
// be paused.
func (s *Store) SetEndpointState(ctx context.Context, tenant, id string, c StateChange) (EndpointChange, error) {
	verb, ok := map[webhook.EndpointState]string{webhook.EndpointActive: "endpoint.enable", webhook.EndpointPaused: "endpoint.pause",
		webhook.EndpointDisabled: "endpoint.disable"}[c.To]
	if !ok {
		return EndpointChange{}, wrap(invalid("state: %q is not active, paused or disabled", c.To), "set state of %s/%s", tenant, id)
	}
	out, err := s.changeState(ctx, "endpoint-state", tenant, id, 0, func(x *stateTx) error {
		ep, h := x.ep, &x.health
		if ep.State == webhook.EndpointDeleted {
			return ErrNotFound
		}
		if ep.State == c.To && (c.To != webhook.EndpointActive || h.Closed() && !h.Throttled(x.now)) {
			return nil
		}
		reason, action := c.Reason, verb
		switch c.To {
		case webhook.EndpointActive:
			if ep.State == webhook.EndpointPaused {
				action = "endpoint.resume"
			} else if ep.State == webhook.EndpointActive {
				action = "endpoint.reset"
			}
			if ep.State == webhook.EndpointDisabled {
				x.notices = append(x.notices, webhook.NoticeEnabled)
			}
			*h = h.Reset(c.LeaveHeld, x.now)
		case webhook.EndpointPaused:
			if ep.State == webhook.EndpointDisabled {
				return conflict("the endpoint is disabled (%s): enable it first", ep.StateReason)
			}
			h.Epoch++
			reason = or(reason, webhook.ReasonEndpointPaused)
		case webhook.EndpointDisabled:
			x.notices = append(x.notices, webhook.NoticeDisabled)
			h.Epoch++
			reason = or(reason, webhook.ReasonEndpointDisabled)
		}
		x.changed, x.moved = true, ep.State != c.To
		ep.State, ep.StateReason = c.To, clip(reason, 1024)
		x.audit(s, action, c.Actor, map[string]any{"reason": reason, "leave_held": c.LeaveHeld})
		return nil
	})
	return out, wrap(err, "set state of %s/%s to %s", tenant, id, c.To)
}

// Release has everything that is held for an endpoint scheduled again, also what
// was left when it was switched on and what its filter could not judge. [ErrNotFound]
// as for SetEndpointState; [ErrConflict] if the endpoint is not active or its breaker
// not closed: what is released would only be held again.
func (s *Store) Release(ctx context.Context, tenant, id, actor string) (EndpointChange, error) {
	out, err := s.changeState(ctx, "release", tenant, id, 0, func(x *stateTx) error {
		switch ep := x.ep; {
		case ep.State == webhook.EndpointDeleted:
			return ErrNotFound
		case ep.State != webhook.EndpointActive:
			return conflict("the endpoint is %s (%s)", ep.State, ep.StateReason)
		case !x.health.Closed():
			return conflict("the endpoint's circuit is %s", x.health.Breaker)
		case x.health.Releasing() && x.health.ReleaseAll:
			return nil // it is under way
		}
		x.health.Epoch++
		x.health.ReleaseAll, x.health.LeftAt = true, time.Time{}
		x.changed = true
		x.audit(s, "endpoint.release", actor, nil)
		return nil
	})
	return out, wrap(err, "release %s/%s", tenant, id)
}

// RemoveEndpoint marks an endpoint deleted. The row stays as a tombstone, so that
// deliveries can be read and the id is not used again. Its open deliveries are
// cancelled by the controls that it gives. Idempotent. [ErrManaged] as for
// UpdateEndpoint.
func (s *Store) RemoveEndpoint(ctx context.Context, tenant, id, actor string) (EndpointChange, error) {
	out, err := s.changeState(ctx, "delete-endpoint", tenant, id, -1, func(x *stateTx) error {
		if x.ep.State == webhook.EndpointDeleted {
			return nil
		}
		if m := x.ep.ManagedBy; m != "" && m != actor {
			return managed(m)
		}
		x.changed, x.moved = true, true
		x.ep.State, x.ep.StateReason = webhook.EndpointDeleted, webhook.ReasonEndpointDeleted
		x.health.Epoch++
		x.audit(s, "endpoint.delete", actor, nil)
		return nil
	})
	return out, wrap(err, "delete endpoint %s/%s", tenant, id)
}

// DeleteEndpoint is [Store.RemoveEndpoint], and cancels the open deliveries in
// chunks before it returns. It says how many this call cancelled, and goes on where
// an interrupted call stopped.
func (s *Store) DeleteEndpoint(ctx context.Context, tenant, id, actor string) (cancelled int, err error) {
	if _, err := s.RemoveEndpoint(ctx, tenant, id, actor); err != nil {
		return 0, err
	}
	for {
		n, more, err := s.CancelPage(ctx, tenant, id)
		cancelled += n
		if err != nil || !more {
			return cancelled, err
		}
	}
}

// CancelPage cancels up to 400 open deliveries of a deleted endpoint, and says how
// many and whether there may be more. Those of any other are left alone.
func (s *Store) CancelPage(ctx context.Context, tenant, id string) (n int, more bool, err error) {
	_, err = s.write(ctx, "cancel-deliveries", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		n = 0
		ep, err := readEndpoint(ctx, txn, tenant, id)
		if err != nil || ep.State != webhook.EndpointDeleted {
			return err
		}
		opts := limited("cancel-deliveries", cancelChunk)
		opts.Index = "DeliveriesOpenByEndpoint"
		open, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.Key{tenant, id}.AsPrefix(), []string{"EventKey"}, opts))
		if n = len(open); err != nil {
			return err
		}
		if n < cancelChunk { // nothing waits behind anything any more
			if err := txn.BufferWrite([]*spanner.Mutation{spanner.Delete("OrderedKeys", spanner.Key{tenant, id}.AsPrefix())}); err != nil || n == 0 {
				return err
			}
		}
		keys := make([]spanner.Key, n)
		for i, r := range open {
			keys[i] = spanner.Key{r.EventKey, id}
		}
		rows, err := collect[deliveryRow](txn.ReadWithOptions(ctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("cancel-deliveries")))
		if err != nil {
			return err
		}
		now := s.clock()
		closed := closings{}
		var ms []*spanner.Mutation
		for i := range rows {
			d := rows[i].delivery()
			stop(&d, webhook.DeliveryCancelled, webhook.ReasonEndpointDeleted, now)
			closed.add(&d)
			ms = append(ms, updateDelivery(&d))
		}
		closing, err := s.closeEvents(ctx, txn, closed, now, false)
		if err != nil {
			return err
		}
		return txn.BufferWrite(append(ms, closing...))
	})
	return n, n == cancelChunk, wrap(err, "cancel deliveries to %s/%s", tenant, id)
}

// stateTx is one change of an endpoint's state and health.
type stateTx struct {
	ep      *webhook.Endpoint
	health  webhook.Health
	now     time.Time
	changed bool // something is to be written
	moved   bool // the state itself is another one
	notices []webhook.Notice
	audits  []*spanner.Mutation
}

func (x *stateTx) audit(s *Store, action, actor string, detail map[string]any) {
	x.audits = append(x.audits, auditRow(s.newID(), x.ep.Tenant, actor, action, x.ep.ID, detail, x.now))
}

// changeState runs one transaction that changes an endpoint and its health.
func (s *Store) changeState(ctx context.Context, verb, tenant, id string, delta int64, change func(*stateTx) error) (EndpointChange, error) {
	var out EndpointChange
	_, err := s.write(ctx, verb, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		ep, h, err := readBoth(ctx, txn, tenant, id)
		if err != nil {
			return err
		}
		x := &stateTx{ep: &ep, health: h, now: s.clock()}
		if err := change(x); err != nil {
			return err
		}
		if x.moved {
			ep.StateSince = x.now
		}
		out = EndpointChange{Endpoint: ep, Health: x.health, Controls: webhook.Outstanding(&ep, &x.health)}
		if !x.changed {
			ids, err := unsent(ctx, txn, tenant, id, noticesAtOnce)
			for _, n := range ids {
				out.Controls = append(out.Controls, notifyControl(&ep, &x.health, n))
			}
			return err
		}
		ms := append(x.audits, upsert("EndpointHealth", newHealthRow(endpointID{tenant, id}, &x.health, x.now)))
		if x.moved {
			rows, err := s.endpointChange(ctx, txn, &ep, delta, x.now)
			if err != nil {
				return err
			}
			ms = append(rows, ms...)
			out.Endpoint = ep
		}
		for _, kind := range x.notices {
			row := newNoticeRow(s.newID(), kind, &ep, &x.health, x.now)
			ms = append(ms, insert("Notices", row))
			out.Controls = append(out.Controls, notifyControl(&ep, &x.health, row.NoticeID))
		}
		return txn.BufferWrite(ms)
	})
	s.cards.forget(tenant, id)
	s.trouble.forget()
	return out, err
}

func or(s, otherwise string) string {
	if strings.TrimSpace(s) == "" {
		return otherwise
	}
	return s
}

// changeEndpoint runs one transaction that changes an endpoint: change edits it
// and says what to write down about that, nil meaning that nothing is to change.
func (s *Store) changeEndpoint(ctx context.Context, verb, tenant, id string, delta int64, change func(ep *webhook.Endpoint, now time.Time) (audit *spanner.Mutation, ok bool)) error {
	_, err := s.write(ctx, verb, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		ep, err := readEndpoint(ctx, txn, tenant, id)
		if err != nil {
			return err
		}
		now := s.clock()
		audit, ok := change(&ep, now)
		if !ok {
			return nil
		}
		ms, err := s.endpointChange(ctx, txn, &ep, delta, now)
		if err != nil {
			return err
		}
		if audit != nil {
			ms = append(ms, audit)
		}
		return txn.BufferWrite(ms)
	})
	s.cards.forget(tenant, id)
	return err
}

func (s *Store) endpointChange(ctx context.Context, txn *spanner.ReadWriteTransaction, ep *webhook.Endpoint, delta int64, now time.Time) ([]*spanner.Mutation, error) {
	ep.UpdatedAt = now
	row, err := newEndpointRow(ep)
	if err != nil {
		return nil, err
	}
	bump, err := bumpSet(ctx, txn, ep.Tenant, delta, s.maxEps, now)
	return []*spanner.Mutation{bump, upsert("Endpoints", row)}, err
}

// ListNotices lists a tenant's notices, newest first. Those out of retention are
// left out.
func (s *Store) ListNotices(ctx context.Context, tenant string, page Page) ([]Notice, string, error) {
	scope := scopeOf("notices", tenant)
	size, after, err := startPage(tenant, scope, page)
	if err != nil {
		return nil, "", wrap(err, "list notices of %q", tenant)
	}
	p := plan{verb: "list-notices", table: "Notices", index: "NoticesByTenant", columns: []string{"NoticeId", "CreatedAt"},
		ranges: []spanner.KeyRange{rangeIn(spanner.Key{tenant}, time.Time{}, time.Time{}, after, false)}}
	ids, next, err := scan(ctx, s, p, scope, size, false, func(r *spanner.Row) (id []byte, pos position, err error) {
		err = r.Columns(&id, &pos.at)
		pos.key = id
		return id, pos, err
	}, func([]byte) bool { return true })
	if err != nil || len(ids) == 0 {
		return nil, next, wrap(err, "list notices of %s", tenant)
	}
	var keys []spanner.Key
	for _, id := range ids {
		keys = append(keys, spanner.Key{id})
	}
	rows, err := collect[noticeRow](s.client.Single().WithTimestampBound(s.listBound()).ReadWithOptions(ctx, "Notices", spanner.KeySetFromKeys(keys...), noticeColumns, tag("list-notices")))
	if err != nil {
		return nil, "", wrap(err, "list notices of %s", tenant)
	}
	rows = slices.DeleteFunc(rows, func(r noticeRow) bool { return !r.ExpireAt.After(s.clock()) })
	out, err := sortedNotices(rows)
	slices.Reverse(out)
	return out, next, err
}
