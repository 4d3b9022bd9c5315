package store

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/webhook"
	"google.golang.org/api/option"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// t0 is when tests begin; the emulator's own clock is another one.
var t0 = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

// clock is a time that tests move.
type clock struct{ at atomic.Pointer[time.Time] }

func newClock() *clock {
	c := &clock{}
	c.set(t0)
	return c
}

func (c *clock) now() time.Time        { return *c.at.Load() }
func (c *clock) set(t time.Time)       { c.at.Store(&t) }
func (c *clock) move(by time.Duration) { c.set(c.now().Add(by)) }

// fixture is a store on a database of its own.
type fixture struct {
	*Store
	t     testing.TB
	ctx   context.Context
	clock *clock
	db    string
}

func newFixture(t testing.TB, o Options, opts ...option.ClientOption) *fixture {
	t.Helper()
	var ddl []string
	for _, s := range Statements() {
		ddl = append(ddl, s.SQL)
	}
	f := &fixture{t: t, ctx: context.Background(), clock: newClock(), db: localtest.Database(t, ddl)}
	f.Store = f.open(o, opts...)
	return f
}

// open is another store, as another process would have, on the same database.
func (f *fixture) open(o Options, opts ...option.ClientOption) *Store {
	f.t.Helper()
	if o.Now == nil {
		o.Now = f.clock.now
	}
	s, err := Open(f.ctx, f.db, o, opts...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(s.Close)
	return s
}

func event(tenant, source, id, kind string) webhook.Event {
	e := webhook.Event{Tenant: tenant, Source: source, PublisherID: id, Type: kind, ContentType: "application/json",
		Body: []byte(`{"id":"` + id + `"}`), ReceivedAt: t0, Receipt: "receipt of " + id}
	e.Seal()
	return e
}

func events(n int) []webhook.Event {
	var out []webhook.Event
	for i := range n {
		out = append(out, event("default", "stripe", fmt.Sprintf("evt-%d", i), "invoice.paid"))
	}
	return out
}

func (f *fixture) endpoint(tenant, id string, types ...string) webhook.Endpoint {
	f.t.Helper()
	if len(types) == 0 {
		types = []string{"*"}
	}
	ep, err := f.CreateEndpoint(f.ctx, webhook.Endpoint{Tenant: tenant, ID: id, URL: "https://hooks.example.com/" + id, EventTypes: types, Queue: "q-" + id},
		[]SealedKey{{ID: "key_1", Kind: "v1", Sealed: []byte("sealed"), SealedBy: "1"}}, "tester")
	if err != nil {
		f.t.Fatal(err)
	}
	return ep
}

// endpoints writes many at once, as many calls of CreateEndpoint would.
func (f *fixture) endpoints(tenant string, n int) {
	f.t.Helper()
	for from := 0; from < n; from += 1_000 {
		var ms []*spanner.Mutation
		for i := from; i < min(n, from+1_000); i++ {
			ep := webhook.Endpoint{Tenant: tenant, ID: fmt.Sprintf("ep-%05d", i), URL: "https://hooks.example.com/", EventTypes: []string{"*"},
				State: webhook.EndpointActive, StateSince: t0, Timeout: time.Second, CreatedAt: t0, UpdatedAt: t0}
			row, err := newEndpointRow(&ep)
			if err != nil {
				f.t.Fatal(err)
			}
			ms = append(ms, insert("Endpoints", row))
		}
		ms = append(ms, upsert("EndpointSets", &setRow{Tenant: tenant, Version: int64(from + 1), Endpoints: int64(min(n, from+1_000)), UpdatedAt: t0}))
		if _, err := f.client.Apply(f.ctx, ms); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) ingest(events ...webhook.Event) []Ingested {
	f.t.Helper()
	out, err := f.Ingest(f.ctx, events)
	if err != nil {
		f.t.Fatal(err)
	}
	if len(out) != len(events) {
		f.t.Fatalf("%d results for %d events", len(out), len(events))
	}
	return out
}

// count is how many rows a table has.
func (f *fixture) count(table string) int {
	f.t.Helper()
	n := 0
	key := map[string]string{"Endpoints": "Tenant", "EndpointKeys": "Tenant", "AuditLog": "Tenant", "SourceCounts": "Tenant", "DeadMessages": "DeadKey", "Notices": "NoticeId", "EndpointHealth": "Tenant"}[table]
	if key == "" {
		key = "EventKey"
	}
	err := f.client.Single().Read(f.ctx, table, spanner.AllKeys(), []string{key}).Do(func(*spanner.Row) error {
		n++
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func (f *fixture) row(k webhook.EventKey) EventRow {
	f.t.Helper()
	r, err := f.Event(f.ctx, "default", k)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) getDelivery(k webhook.EventKey, endpoint string) (webhook.Delivery, []webhook.Attempt) {
	f.t.Helper()
	d, as, err := f.Delivery(f.ctx, "default", k, endpoint)
	if err != nil {
		f.t.Fatal(err)
	}
	return d, as
}

// set changes the state of an endpoint of the default tenant.
func (f *fixture) set(id string, to webhook.EndpointState) EndpointChange {
	f.t.Helper()
	c, err := f.SetEndpointState(f.ctx, "default", id, StateChange{To: to, Actor: "tester"})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// patient has an endpoint's failures change nothing but its deliveries.
func (f *fixture) patient(id string) {
	f.t.Helper()
	if _, err := f.UpdateEndpoint(f.ctx, "default", id, func(ep *webhook.Endpoint) error {
		ep.Health = webhook.HealthPolicy{FailuresToOpen: -1, DisableAfter: -1}
		return nil
	}, "tester"); err != nil {
		f.t.Fatal(err)
	}
}

// settle holds what waits for an endpoint that holds.
func (f *fixture) settle(d webhook.Delivery) {
	f.t.Helper()
	if settled, err := f.Settle(f.ctx, d.Key(), webhook.DeliveryHeld, ""); err != nil || !settled {
		f.t.Fatal(settled, err)
	}
}

var others atomic.Int64

// after makes one attempt of another event's delivery to the endpoint end so.
func (f *fixture) after(endpoint string, o webhook.Outcome) Recorded {
	f.t.Helper()
	e := event("default", "s", fmt.Sprint("other ", others.Add(1)), "x")
	f.ingest(e)
	d, _ := f.getDelivery(e.Key, endpoint)
	return f.record(f.attempt(d, o))[0]
}

// trip opens an endpoint's breaker by ten failures, and gives the last one's record.
func (f *fixture) trip(endpoint string) (last Recorded) {
	f.t.Helper()
	var recs []AttemptRecord
	for range webhook.DefaultFailuresToOpen {
		e := event("default", "s", fmt.Sprint("other ", others.Add(1)), "x")
		f.ingest(e)
		d, _ := f.getDelivery(e.Key, endpoint)
		recs = append(recs, f.attempt(d, failing))
	}
	for _, r := range f.record(recs...) {
		if len(r.Controls) > 0 {
			last = r
		}
	}
	return last
}

func (f *fixture) health(id string) webhook.Health {
	f.t.Helper()
	h, err := f.Health(f.ctx, "default", id)
	if err != nil {
		f.t.Fatal(err)
	}
	return h
}

// outcomes of attempts
var (
	delivered = webhook.Outcome{Class: webhook.ClassOK, Status: 200}
	failing   = webhook.Outcome{Class: webhook.ClassStatus, Status: 500}
	gone      = webhook.Outcome{Class: webhook.ClassStatus, Status: 410}
)

// attempt is the record of one attempt of d that ended so, decided as production does.
func (f *fixture) attempt(d webhook.Delivery, o webhook.Outcome) AttemptRecord {
	now := f.clock.now()
	return AttemptRecord{
		Attempt: webhook.Attempt{Key: d.Key(), Trigger: d.Trigger, StartedAt: now, Duration: 12 * time.Millisecond, Outcome: o,
			URL: "https://hooks.example.com/", RemoteAddr: "203.0.113.7:443", KeyIDs: []string{"key_1"}, Excerpt: []byte("answer\xff"), WroteRequest: true},
		Decision: webhook.Decide(d, o, webhook.RetryPolicy{}, now),
		Queue:    webhook.QueueRef{Tenant: d.Tenant, Endpoint: d.Endpoint, Own: "q-" + d.Endpoint},
	}
}

func (f *fixture) record(recs ...AttemptRecord) []Recorded {
	f.t.Helper()
	out, err := f.Record(f.ctx, recs)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func nowhere(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

type mutation = spanner.Mutation

func key(parts ...any) spanner.Key { return parts }

var strong = spanner.StrongRead()

func (f *fixture) read(table string, k webhook.EventKey, columns []string, to any) {
	f.t.Helper()
	r, err := f.client.Single().ReadRow(f.ctx, table, spanner.Key{k[:]}, columns)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := r.ToStruct(to); err != nil {
		f.t.Fatal(err)
	}
}

// listed is how many rows each kind of list shows a tenant of one event.
func (f *fixture) listed(tenant string, k webhook.EventKey) map[string]int {
	f.t.Helper()
	out := map[string]int{}
	for name, filter := range map[string]DeliveryFilter{
		"deliveries of the tenant":   {Tenant: tenant},
		"deliveries of the endpoint": {Tenant: tenant, Endpoint: "a"},
		"deliveries of the event":    {Tenant: tenant, Event: k},
		"dead deliveries":            {Tenant: tenant, State: webhook.DeliveryDead},
		"delivered ones":             {Tenant: tenant, State: webhook.DeliveryDelivered},
	} {
		ds, _, err := f.ListDeliveries(f.ctx, filter, Page{})
		if err != nil {
			f.t.Fatal(err)
		}
		out[name] = len(ds)
	}
	for name, filter := range map[string]EventFilter{"events of the tenant": {Tenant: tenant}, "events of the source": {Tenant: tenant, Source: "s"}} {
		es, _, err := f.ListEvents(f.ctx, filter, Page{})
		if err != nil {
			f.t.Fatal(err)
		}
		out[name] = len(es)
	}
	return out
}
