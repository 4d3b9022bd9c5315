package store

import (
	"context"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
	"golang.org/x/sync/errgroup"
)

// EventFilter selects events of one tenant. Zero fields select everything.
type EventFilter struct {
	Tenant string
	Source string
	State  webhook.EventState
	Type   string // exact
	Since  time.Time
	Until  time.Time // exclusive
}

// indexed is a row of a list index: enough to filter by and to find the row.
type indexed struct {
	key      []byte
	endpoint string
	kind     string
	state    string
}

// ListEvents lists events, newest receipt first. Rows out of retention are left out.
func (s *Store) ListEvents(ctx context.Context, f EventFilter, page Page) ([]EventRow, string, error) {
	out, next, err := s.listEvents(ctx, f, page)
	return out, next, wrap(err, "list events of %s", f.Tenant)
}

func (s *Store) listEvents(ctx context.Context, f EventFilter, page Page) ([]EventRow, string, error) {
	scope := scopeOf("events", f)
	size, after, err := startPage(f.Tenant, scope, page)
	if err != nil {
		return nil, "", err
	}
	p := plan{verb: "list-events", table: "Events", index: "EventsByTenant", columns: []string{"EventKey", "ReceivedAt", "EventType", "State"}}
	for shard := range int64(listShards) {
		prefix := spanner.Key{f.Tenant, shard}
		if f.Source != "" {
			p.index, prefix = "EventsBySource", spanner.Key{f.Tenant, f.Source, shard}
		}
		p.ranges = append(p.ranges, rangeIn(prefix, f.Since, f.Until, after, false))
	}
	entries, next, err := scan(ctx, s, p, scope, size, f.State != "" || f.Type != "", func(r *spanner.Row) (e indexed, pos position, err error) {
		err = r.Columns(&e.key, &pos.at, &e.kind, &e.state)
		pos.key = e.key
		return e, pos, err
	}, func(e indexed) bool {
		return (f.State == "" || e.state == string(f.State)) && (f.Type == "" || e.kind == f.Type)
	})
	if err != nil || len(entries) == 0 {
		return nil, next, err
	}
	var keys []spanner.Key
	for _, e := range entries {
		keys = append(keys, spanner.Key{e.key})
	}
	rows, err := collect[eventRow](s.client.Single().WithTimestampBound(s.listBound()).ReadWithOptions(ctx, "Events", spanner.KeySetFromKeys(keys...), eventColumns, tag("list-events")))
	if err != nil {
		return nil, "", err
	}
	byKey := map[webhook.EventKey]*eventRow{}
	for i := range rows {
		byKey[keyOf(rows[i].EventKey)] = &rows[i]
	}
	var out []EventRow
	for _, e := range entries {
		row := byKey[keyOf(e.key)]
		if row == nil || s.expired(row.ExpireAt) {
			continue
		}
		v, err := row.public()
		if err != nil {
			return nil, "", err
		}
		out = append(out, v)
	}
	return out, next, nil
}

// startPage checks what all lists of a tenant share.
func startPage(tenant, scope string, page Page) (size int, after *position, err error) {
	if err := webhook.ValidName(tenant); err != nil {
		return 0, nil, invalid("tenant: %v", err)
	}
	if size, err = page.size(); err != nil {
		return 0, nil, err
	}
	after, err = parseToken(scope, page.Token)
	return size, after, err
}

// rangeIn is timeRange for one shard of a list that goes on over all shards at
// after: of rows with after's time, the shard has to go on beyond after's key,
// be it one that the shard does not hold.
func rangeIn(prefix spanner.Key, since, until time.Time, after *position, endpoints bool) spanner.KeyRange {
	if after == nil {
		return timeRange(prefix, since, until, nil)
	}
	if endpoints {
		return timeRange(prefix, since, until, after, after.key, after.id)
	}
	return timeRange(prefix, since, until, after, after.key)
}

// DeliveryFilter selects deliveries of one tenant. Zero fields select everything.
type DeliveryFilter struct {
	Tenant   string
	Endpoint string
	Event    webhook.EventKey
	State    webhook.DeliveryState
	Type     string // exact
	Since    time.Time
	Until    time.Time // exclusive
}

func (f *DeliveryFilter) keep(e indexed) bool {
	return (f.State == "" || e.state == string(f.State)) && (f.Type == "" || e.kind == f.Type) &&
		(f.Endpoint == "" || e.endpoint == f.Endpoint)
}

// ListDeliveries lists deliveries, newest first: by creation, or by death where
// the filter asks for dead ones of a whole tenant; the deliveries of one event by
// endpoint. Since and Until mean the same time. Those whose event is out of
// retention are left out.
func (s *Store) ListDeliveries(ctx context.Context, f DeliveryFilter, page Page) ([]webhook.Delivery, string, error) {
	out, next, err := s.listDeliveries(ctx, f, page)
	return out, next, wrap(err, "list deliveries of %s", f.Tenant)
}

func (s *Store) listDeliveries(ctx context.Context, f DeliveryFilter, page Page) ([]webhook.Delivery, string, error) {
	scope := scopeOf("deliveries", f)
	size, after, err := startPage(f.Tenant, scope, page)
	if err != nil {
		return nil, "", err
	}
	if f.Event != (webhook.EventKey{}) {
		return s.deliveriesOf(ctx, f, scope, size, after)
	}
	p, filtered := f.plan(after)
	dead := p.index == "DeliveriesDeadByTenant"
	entries, next, err := scan(ctx, s, p, scope, size, filtered, func(r *spanner.Row) (e indexed, pos position, err error) {
		if dead {
			e.state = string(webhook.DeliveryDead)
			err = r.Columns(&e.key, &e.endpoint, &pos.at, &e.kind)
		} else {
			err = r.Columns(&e.key, &e.endpoint, &pos.at, &e.kind, &e.state)
		}
		pos.key, pos.id = e.key, e.endpoint
		return e, pos, err
	}, f.keep)
	if err != nil || len(entries) == 0 {
		return nil, next, err
	}
	out, err := s.deliveriesAt(ctx, f, entries)
	return out, next, err
}

// plan picks the index with the fewest rows to look at.
func (f *DeliveryFilter) plan(after *position) (p plan, filtered bool) {
	p = plan{verb: "list-deliveries", table: "Deliveries", columns: []string{"EventKey", "EndpointId", "CreatedAt", "EventType", "State"}}
	if f.Endpoint != "" {
		p.index = "DeliveriesByEndpoint"
		p.ranges = []spanner.KeyRange{rangeIn(spanner.Key{f.Tenant, f.Endpoint}, f.Since, f.Until, after, false)}
		return p, f.State != "" || f.Type != ""
	}
	p.index, filtered = "DeliveriesByTenant", f.State != "" || f.Type != ""
	if f.State == webhook.DeliveryDead {
		p.index, filtered = "DeliveriesDeadByTenant", f.Type != ""
		p.columns = []string{"EventKey", "EndpointId", "DeadAt", "EventType"}
	}
	for shard := range int64(listShards) {
		p.ranges = append(p.ranges, rangeIn(spanner.Key{f.Tenant, shard}, f.Since, f.Until, after, true))
	}
	return p, filtered
}

// deliveriesAt reads the rows that index entries point to. A row that has changed
// since, so that the filter no longer wants it, is left out.
func (s *Store) deliveriesAt(ctx context.Context, f DeliveryFilter, entries []indexed) ([]webhook.Delivery, error) {
	var keys, events []spanner.Key
	for _, e := range entries {
		keys = append(keys, spanner.Key{e.key, e.endpoint})
		events = append(events, spanner.Key{e.key})
	}
	var rows []deliveryRow
	var expired map[webhook.EventKey]bool
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		rows, err = collect[deliveryRow](s.client.Single().WithTimestampBound(s.listBound()).ReadWithOptions(gctx, "Deliveries", spanner.KeySetFromKeys(keys...), deliveryColumns, tag("list-deliveries")))
		return err
	})
	g.Go(func() (err error) {
		expired, err = s.expiredEvents(gctx, s.client.Single().WithTimestampBound(s.listBound()), events)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	byID := map[deliveryID]*deliveryRow{}
	for i := range rows {
		byID[deliveryID{keyOf(rows[i].EventKey), rows[i].EndpointID}] = &rows[i]
	}
	var out []webhook.Delivery
	for _, e := range entries {
		r := byID[deliveryID{keyOf(e.key), e.endpoint}]
		if r == nil || r.Tenant != f.Tenant || expired[keyOf(e.key)] || f.State != "" && r.State != string(f.State) {
			continue
		}
		out = append(out, r.delivery())
	}
	return out, nil
}

// deliveriesOf lists one event's deliveries, by endpoint.
func (s *Store) deliveriesOf(ctx context.Context, f DeliveryFilter, scope string, size int, after *position) ([]webhook.Delivery, string, error) {
	k := f.Event[:]
	r := spanner.KeyRange{Start: spanner.Key{k}, End: spanner.Key{k}, Kind: spanner.ClosedClosed}
	if after != nil {
		r.Start, r.Kind = spanner.Key{k, after.id}, spanner.OpenClosed
	}
	p := plan{verb: "list-deliveries", table: "Deliveries", columns: deliveryColumns, ranges: []spanner.KeyRange{r}}
	rows, next, err := scan(ctx, s, p, scope, size, true, func(r *spanner.Row) (d deliveryRow, pos position, err error) {
		err = r.ToStruct(&d)
		return d, position{id: d.EndpointID}, err
	}, func(d deliveryRow) bool {
		return d.Tenant == f.Tenant && f.keep(indexed{endpoint: d.EndpointID, kind: d.EventType, state: d.State}) &&
			(f.Since.IsZero() || !d.CreatedAt.Before(f.Since)) && (f.Until.IsZero() || d.CreatedAt.Before(f.Until))
	})
	if err != nil || len(rows) == 0 {
		return nil, next, err
	}
	expired, err := s.expiredEvents(ctx, s.client.Single().WithTimestampBound(s.listBound()), []spanner.Key{{k}})
	if err != nil || expired[f.Event] {
		return nil, "", err
	}
	out := make([]webhook.Delivery, len(rows))
	for i := range rows {
		out[i] = rows[i].delivery()
	}
	return out, next, nil
}

// ListEndpoints lists endpoints that are not deleted, by tenant and id; an empty
// tenant means all of them.
func (s *Store) ListEndpoints(ctx context.Context, tenant string, page Page) ([]webhook.Endpoint, string, error) {
	out, next, err := s.listEndpoints(ctx, tenant, page)
	return out, next, wrap(err, "list endpoints of %q", tenant)
}

func (s *Store) listEndpoints(ctx context.Context, tenant string, page Page) ([]webhook.Endpoint, string, error) {
	scope := scopeOf("endpoints", tenant)
	size, err := page.size()
	if err != nil {
		return nil, "", err
	}
	after, err := parseToken(scope, page.Token)
	if err != nil {
		return nil, "", err
	}
	r := spanner.KeyRange{Start: spanner.Key{}, End: spanner.Key{}, Kind: spanner.ClosedClosed}
	if tenant != "" {
		r.Start, r.End = spanner.Key{tenant}, spanner.Key{tenant}
	}
	if after != nil {
		r.Start, r.Kind = spanner.Key{string(after.key), after.id}, spanner.OpenClosed
	}
	p := plan{verb: "list-endpoints", table: "Endpoints", columns: endpointColumns, ranges: []spanner.KeyRange{r}}
	rows, next, err := scan(ctx, s, p, scope, size, true, func(r *spanner.Row) (e endpointRow, pos position, err error) {
		err = r.ToStruct(&e)
		return e, position{key: []byte(e.Tenant), id: e.EndpointID}, err
	}, func(e endpointRow) bool { return e.State != string(webhook.EndpointDeleted) })
	if err != nil {
		return nil, "", err
	}
	out, err := endpoints(rows)
	return out, next, err
}
