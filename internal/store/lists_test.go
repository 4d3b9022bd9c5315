package store

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// walk reads a list page by page and returns its ids and the token of each page.
func walk[T any](t *testing.T, size int, list func(Page) ([]T, string, error), id func(T) string) (ids, tokens []string) {
	t.Helper()
	for page := (Page{Size: size}); ; {
		tokens = append(tokens, page.Token)
		rows, next, err := list(page)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) > size {
			t.Fatalf("%d rows in a page of %d", len(rows), size)
		}
		for _, r := range rows {
			ids = append(ids, id(r))
		}
		if page.Token = next; next == "" {
			return ids, tokens
		}
		if len(tokens) > 2_000 {
			t.Fatal("no end")
		}
	}
}

func deliveryName(d webhook.Delivery) string { return d.Event.ID() + "/" + d.Endpoint }

// Case H59: 1050 deliveries with 3 distinct timestamps of nanosecond precision.
func TestPagesNeitherLoseNorRepeat(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.endpoint("default", "b", "both.*")
	when := map[string]time.Time{}
	all := events(900)
	for i, part := range [][]webhook.Event{all[:200], all[200:600], all[600:]} {
		f.clock.set(t0.Add(time.Duration(i))) // a nanosecond apart
		for j := range part {
			part[j].ReceivedAt = f.clock.now()
			when[part[j].Key.ID()+"/a"] = f.clock.now()
			if j < 40*i+10 { // 150 in all
				part[j].Type = "both.x"
				when[part[j].Key.ID()+"/b"] = f.clock.now()
			}
		}
		f.ingest(part...)
	}
	// Strong reads are slow on an emulator that has seen many commits. Slightly
	// stale ones are not, once they show everything.
	lists := f.open(Options{ListStaleness: 10 * time.Millisecond})
	for n := 0; n < 1_050; {
		ids, _ := walk(t, 500, func(p Page) ([]webhook.Delivery, string, error) {
			return lists.ListDeliveries(f.ctx, DeliveryFilter{Tenant: "default"}, p)
		}, deliveryName)
		n = len(ids)
	}
	for name, l := range map[string]struct {
		filter DeliveryFilter
		want   int
	}{
		"tenant":   {DeliveryFilter{Tenant: "default"}, 1_050},
		"endpoint": {DeliveryFilter{Tenant: "default", Endpoint: "a"}, 900},
		"state":    {DeliveryFilter{Tenant: "default", State: webhook.DeliveryScheduled}, 1_050},
		"none":     {DeliveryFilter{Tenant: "default", State: webhook.DeliveryDead}, 0},
		"since":    {DeliveryFilter{Tenant: "default", Since: t0.Add(1)}, 840},
		"until":    {DeliveryFilter{Tenant: "default", Until: t0.Add(1)}, 210},
		"between":  {DeliveryFilter{Tenant: "default", Since: t0.Add(1), Until: t0.Add(2)}, 450},
	} {
		for _, size := range []int{1, 7, 100} {
			if size == 1 && name != "endpoint" && name != "until" || size == 7 && (name == "state" || name == "since") {
				continue // thousands of reads that would show nothing new
			}
			t.Run(fmt.Sprintf("%s by %d", name, size), func(t *testing.T) {
				t.Parallel()
				list := func(p Page) ([]webhook.Delivery, string, error) { return lists.ListDeliveries(f.ctx, l.filter, p) }
				ids, tokens := walk(t, size, list, deliveryName)
				seen := map[string]bool{}
				for i, id := range ids {
					if seen[id] {
						t.Fatalf("%s twice", id)
					}
					seen[id] = true
					if i > 0 && when[id].After(when[ids[i-1]]) {
						t.Fatalf("row %d is newer than the one before", i)
					}
				}
				if len(ids) != l.want {
					t.Errorf("%d rows, want %d", len(ids), l.want)
				}
				if pages := max(1, (l.want+size-1)/size); len(tokens) != pages {
					t.Errorf("%d pages, want %d: the last one has no next token", len(tokens), pages)
				}
				// And back: a token always starts the same page.
				for i := len(tokens) - 1; i >= 0 && i >= len(tokens)-20; i-- {
					rows, _, err := list(Page{Size: size, Token: tokens[i]})
					if err != nil {
						t.Fatal(err)
					}
					for j, r := range rows {
						if deliveryName(r) != ids[i*size+j] {
							t.Fatalf("page %d on the way back differs", i)
						}
					}
				}
			})
		}
	}
	walkEvents(t, f)
}

// walkEvents pages through 900 events, of which 750 are invoices.
func walkEvents(t *testing.T, f *fixture) {
	t.Helper()
	for _, filter := range []EventFilter{{Tenant: "default"}, {Tenant: "default", Source: "stripe"}, {Tenant: "default", Type: "invoice.paid"}} {
		ids, _ := walk(t, 70, func(p Page) ([]EventRow, string, error) { return f.ListEvents(f.ctx, filter, p) }, func(r EventRow) string { return r.Key.ID() })
		seen := map[string]bool{}
		for _, id := range ids {
			seen[id] = true
		}
		want := 900
		if filter.Type != "" {
			want = 750
		}
		if len(ids) != want || len(seen) != want {
			t.Errorf("%+v: %d rows, %d distinct", filter, len(ids), len(seen))
		}
	}
}

func TestPagesWhileRowsArrive(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.ingest(events(60)...)
	n := 0
	ids, _ := walk(t, 7, func(p Page) ([]webhook.Delivery, string, error) {
		n++ // a new one of the same moment before every page, and a newer one
		f.ingest(event("default", "new", fmt.Sprint(n), "x"))
		return f.ListDeliveries(f.ctx, DeliveryFilter{Tenant: "default"}, p)
	}, deliveryName)
	seen := map[string]bool{}
	for _, id := range ids {
		if seen[id] {
			t.Fatalf("%s twice", id)
		}
		seen[id] = true
	}
	for _, e := range events(60) {
		if !seen[e.Key.ID()+"/a"] {
			t.Errorf("%s is lost", e.Key)
		}
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.endpoint("default", "b", "order.*")
	paid, order, bad := event("default", "stripe", "1", "invoice.paid"), event("default", "shop", "2", "order.made"), event("default", "shop", "3", "order.bad")
	bad.Rejection = "broken"
	f.ingest(paid, order, bad)
	d, _ := f.getDelivery(order.Key, "b")
	f.clock.move(time.Hour)
	rec := f.attempt(d, failing)
	rec.Decision = webhook.Decision{State: webhook.DeliveryDead, Reason: webhook.ReasonAgeExhausted}
	f.record(rec)
	for _, c := range []struct {
		filter DeliveryFilter
		want   int
	}{
		{DeliveryFilter{Tenant: "default"}, 3},
		{DeliveryFilter{Tenant: "default", Endpoint: "b"}, 1},
		{DeliveryFilter{Tenant: "default", Endpoint: "b", State: webhook.DeliveryDead}, 1},
		{DeliveryFilter{Tenant: "default", Endpoint: "b", State: webhook.DeliveryScheduled}, 0},
		{DeliveryFilter{Tenant: "default", State: webhook.DeliveryDead}, 1},
		{DeliveryFilter{Tenant: "default", State: webhook.DeliveryDead, Type: "invoice.paid"}, 0},
		{DeliveryFilter{Tenant: "default", State: webhook.DeliveryDead, Since: t0.Add(time.Hour)}, 1}, // by its death
		{DeliveryFilter{Tenant: "default", State: webhook.DeliveryScheduled}, 2},
		{DeliveryFilter{Tenant: "default", Type: "order.made"}, 2},
		{DeliveryFilter{Tenant: "default", Event: order.Key}, 2},
		{DeliveryFilter{Tenant: "default", Event: order.Key, Endpoint: "a"}, 1},
		{DeliveryFilter{Tenant: "default", Event: order.Key, State: webhook.DeliveryDead}, 1},
		{DeliveryFilter{Tenant: "default", Event: order.Key, Since: t0.Add(1)}, 0},
		{DeliveryFilter{Tenant: "default", Event: bad.Key}, 0},
		{DeliveryFilter{Tenant: "other"}, 0},
		{DeliveryFilter{Tenant: "other", Event: order.Key}, 0},
	} {
		got, next, err := f.ListDeliveries(f.ctx, c.filter, Page{})
		if err != nil || len(got) != c.want || next != "" {
			t.Errorf("%+v: %d, %q, %v; want %d", c.filter, len(got), next, err, c.want)
		}
		for _, d := range got {
			if read, _, err := f.Delivery(f.ctx, "default", d.Event, d.Endpoint); err != nil || !reflect.DeepEqual(read, d) {
				t.Errorf("listed %+v, read %+v, %v", d, read, err)
			}
		}
	}
	for _, c := range []struct {
		filter EventFilter
		want   int
	}{
		{EventFilter{Tenant: "default"}, 3},
		{EventFilter{Tenant: "default", Source: "shop"}, 2},
		{EventFilter{Tenant: "default", Source: "shop", State: webhook.EventRejected}, 1},
		{EventFilter{Tenant: "default", Type: "invoice.paid"}, 1},
		{EventFilter{Tenant: "default", Until: t0}, 0},
		{EventFilter{Tenant: "default", Since: t0}, 3},
		{EventFilter{Tenant: "other"}, 0},
	} {
		if got, next, err := f.ListEvents(f.ctx, c.filter, Page{}); err != nil || len(got) != c.want || next != "" {
			t.Errorf("%+v: %d, %q, %v; want %d", c.filter, len(got), next, err, c.want)
		}
	}
}

func TestTokensOfOthersAndAlteredOnesAreRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.ingest(events(3)...)
	filter := DeliveryFilter{Tenant: "default"}
	_, token, err := f.ListDeliveries(f.ctx, filter, Page{Size: 1})
	if err != nil || token == "" {
		t.Fatal(token, err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	list := func(f2 DeliveryFilter, token string) error {
		_, _, err := f.ListDeliveries(f.ctx, f2, Page{Token: token})
		return err
	}
	for i := range raw {
		b := bytes.Clone(raw)
		b[i] ^= 1
		if err := list(filter, base64.RawURLEncoding.EncodeToString(b)); !errors.Is(err, ErrInvalid) {
			t.Errorf("byte %d altered: %v", i, err)
		}
	}
	for _, bad := range []string{"x", "!!", token + "A", token[:len(token)-1], token + "=", " " + token, string(bytes.Repeat([]byte("A"), 10_000))} {
		if err := list(filter, bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.40q: %v", bad, err)
		}
	}
	for name, other := range map[string]DeliveryFilter{
		"another tenant":   {Tenant: "other"},
		"another endpoint": {Tenant: "default", Endpoint: "a"},
		"another state":    {Tenant: "default", State: webhook.DeliveryHeld},
	} {
		if err := list(other, token); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := f.ListEvents(f.ctx, EventFilter{Tenant: "default"}, Page{Token: token}); !errors.Is(err, ErrInvalid) {
		t.Errorf("another list: %v", err)
	}
	if _, _, err := f.ListDeliveries(f.ctx, filter, Page{Size: -1}); !errors.Is(err, ErrInvalid) {
		t.Errorf("negative size: %v", err)
	}
	if _, _, err := f.ListDeliveries(f.ctx, DeliveryFilter{}, Page{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no tenant: %v", err)
	}
	if err := list(filter, token); err != nil {
		t.Errorf("the token itself: %v", err)
	}
}

// Case H62: two tenants with equal ids for everything.
func TestTenantsNeverMeet(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for _, tenant := range []string{"default", "t2"} {
		f.endpoint(tenant, "ep-1")
	}
	e1, e2 := event("default", "s", "evt-1", "x"), event("t2", "s", "evt-1", "x")
	if e1.Key == e2.Key {
		t.Fatal("equal keys")
	}
	for _, r := range f.ingest(e1, e2) {
		if r.Duplicate || len(r.Tasks) != 1 || r.Tasks[0].Key.Event != r.Key {
			t.Fatalf("%+v", r)
		}
	}
	d, _ := f.getDelivery(e1.Key, "ep-1")
	f.record(f.attempt(d, failing))
	for _, c := range []struct {
		name string
		err  error
	}{
		{"event", second(f.Event(f.ctx, "t2", e1.Key))},
		{"payload", second(f.Payload(f.ctx, "t2", e1.Key))},
		{"delivery", third(f.Delivery(f.ctx, "t2", e1.Key, "ep-1"))},
		{"expunge", f.Expunge(f.ctx, "t2", e1.Key, "tester")},
		{"fan-out", second(f.ContinueFanout(f.ctx, "t2", e1.Key))},
	} {
		if !errors.Is(c.err, ErrNotFound) {
			t.Errorf("%s of the other tenant: %v", c.name, c.err)
		}
	}
	// t2 deletes its endpoint: the other's stays, with its deliveries.
	if n, err := f.DeleteEndpoint(f.ctx, "t2", "ep-1", "tester"); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if got, attempts := f.getDelivery(e1.Key, "ep-1"); got.State != webhook.DeliveryScheduled || len(attempts) != 1 {
		t.Errorf("%+v", got)
	}
	for tenant, want := range map[string][2]int{"default": {1, 1}, "t2": {1, 0}} {
		ds, _, err := f.ListDeliveries(f.ctx, DeliveryFilter{Tenant: tenant}, Page{})
		if err != nil || len(ds) != want[0] || ds[0].Tenant != tenant {
			t.Errorf("%s lists %+v, %v", tenant, ds, err)
		}
		eps, _, err := f.ListEndpoints(f.ctx, tenant, Page{})
		if err != nil || len(eps) != want[1] {
			t.Errorf("%s lists %+v, %v", tenant, eps, err)
		}
		es, _, err := f.ListEvents(f.ctx, EventFilter{Tenant: tenant}, Page{})
		if err != nil || len(es) != 1 || es[0].Tenant != tenant {
			t.Errorf("%s lists %+v, %v", tenant, es, err)
		}
	}
}

func second[A any](_ A, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

func TestListEndpoints(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	for _, tenant := range []string{"default", "default-2", "a"} {
		for i := range 5 {
			f.endpoint(tenant, fmt.Sprint("e", i))
		}
	}
	if _, err := f.DeleteEndpoint(f.ctx, "default", "e4", "tester"); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string]int{"": 14, "default": 4, "default-2": 5, "def": 0} {
		for _, size := range []int{1, 2, 4, 100} {
			ids, tokens := walk(t, size, func(p Page) ([]webhook.Endpoint, string, error) { return f.ListEndpoints(f.ctx, tenant, p) },
				func(e webhook.Endpoint) string { return e.Tenant + "/" + e.ID })
			if len(ids) != want || len(tokens) != max(1, (want+size-1)/size) {
				t.Errorf("%q by %d: %d rows in %d pages", tenant, size, len(ids), len(tokens))
			}
		}
	}
}

func TestDeadMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	body := []byte{0, 0xff, '{'}
	m := DeadMessage{Tenant: "default", Topic: "events", Subscription: "worker", MessageID: "1", Reason: "no type", Body: body,
		Attributes: map[string]string{"ce-id": "x"}, OrderingKey: "k", DeliveryAttempts: 3, PublishedAt: t0.Add(-time.Minute)}
	with := func(edit func(*DeadMessage)) DeadMessage {
		c := m
		edit(&c)
		return c
	}
	huge := noise(maxCell + 1)
	ms := []DeadMessage{m, m,
		with(func(m *DeadMessage) { m.MessageID = "2"; m.Tenant = "Not A Name" }),
		with(func(m *DeadMessage) { m.Topic = "inbound" }),
		with(func(m *DeadMessage) { m.MessageID = ""; m.Body = []byte("a") }),
		with(func(m *DeadMessage) { m.MessageID = ""; m.Body = []byte("b") }),
		with(func(m *DeadMessage) {
			m.MessageID, m.Body, m.Reason = "huge", huge, string(bytes.Repeat([]byte("r"), 9_000))
		}),
	}
	for range 2 {
		if err := f.PutDeadMessages(f.ctx, ms); err != nil {
			t.Fatal(err)
		}
		f.clock.move(time.Minute)
	}
	for tenant, want := range map[string]int{"": 6, "default": 5, "other": 0} {
		ids, _ := walk(t, 2, func(p Page) ([]DeadMessage, string, error) { return f.ListDeadMessages(f.ctx, tenant, p) }, func(m DeadMessage) string { return m.ID })
		if len(ids) != want {
			t.Errorf("%q has %d, want %d", tenant, len(ids), want)
		}
		for _, id := range ids {
			got, err := f.DeadMessage(f.ctx, tenant, id)
			if err != nil {
				t.Fatal(err)
			}
			switch got.MessageID {
			case "1":
				if got.Topic == "inbound" {
					continue
				}
				want := m
				want.ID, want.Size, want.StoredAt = id, int64(len(body)), t0
				if !reflect.DeepEqual(got, want) {
					t.Errorf("\n got %+v\nwant %+v", got, want)
				}
			case "huge":
				if !got.Truncated || !bytes.Equal(got.Body, huge[:maxCell]) || got.Size != maxCell+1 {
					t.Errorf("truncated %v, %d bytes of %d", got.Truncated, len(got.Body), got.Size)
				}
			}
			if tenant == "default" {
				if _, err := f.DeadMessage(f.ctx, "other", id); !errors.Is(err, ErrNotFound) {
					t.Errorf("another tenant: %v", err)
				}
			}
		}
	}
	if _, err := f.DeadMessage(f.ctx, "", "zz"); !errors.Is(err, ErrInvalid) {
		t.Errorf("bad id: %v", err)
	}
	f.clock.set(t0.Add(deadMessageRetention))
	if got, _, err := f.ListDeadMessages(f.ctx, "", Page{}); err != nil || len(got) != 0 {
		t.Errorf("out of retention: %d, %v", len(got), err)
	}
}

func TestSourceCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	put := func(c SourceCount) {
		t.Helper()
		if err := f.PutSourceCounts(f.ctx, []SourceCount{c}); err != nil {
			t.Fatal(err)
		}
	}
	c := SourceCount{Source: "stripe", Minute: t0, Reason: "signature", Reporter: "r1", Count: 3}
	put(c)
	put(c) // a repeat adds nothing
	c.Reporter, c.Count = "r2", 4
	put(c)
	c.Minute = t0.Add(time.Minute)
	put(c)
	c.Source, c.Tenant = "github", "t2"
	put(c)
	for _, tc := range []struct {
		filter SourceCountFilter
		rows   int
		total  int64
	}{
		{SourceCountFilter{Tenant: "default"}, 3, 11},
		{SourceCountFilter{Tenant: "default", Source: "stripe"}, 3, 11},
		{SourceCountFilter{Tenant: "default", Source: "stripe", Since: t0.Add(time.Minute).Truncate(time.Minute)}, 1, 4},
		{SourceCountFilter{Tenant: "default", Until: t0.Add(time.Minute).Truncate(time.Minute)}, 2, 7},
		{SourceCountFilter{Tenant: "t2"}, 1, 4},
		{SourceCountFilter{Tenant: "t2", Source: "stripe"}, 0, 0},
	} {
		var total int64
		rows, _ := walk(t, 1, func(p Page) ([]SourceCount, string, error) { return f.ListSourceCounts(f.ctx, tc.filter, p) }, func(c SourceCount) string {
			total += c.Count
			return ""
		})
		if len(rows) != tc.rows || total != tc.total {
			t.Errorf("%+v: %d rows, %d in all; want %d, %d", tc.filter, len(rows), total, tc.rows, tc.total)
		}
	}
	for name, edit := range map[string]func(*SourceCount){
		"no source":   func(c *SourceCount) { c.Source = "" },
		"no reporter": func(c *SourceCount) { c.Reporter = "" },
		"no minute":   func(c *SourceCount) { c.Minute = time.Time{} },
		"negative":    func(c *SourceCount) { c.Count = -1 },
		"bad tenant":  func(c *SourceCount) { c.Tenant = "A" },
	} {
		bad := c
		edit(&bad)
		if err := f.PutSourceCounts(f.ctx, []SourceCount{bad}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
