package store

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

func TestCreateEndpointFillsAndKeeps(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{NewID: func() [16]byte { return [16]byte{1} }})
	given := webhook.Endpoint{Tenant: "default", URL: "https://x.example/hook?a=1", Description: "billing", EventTypes: []string{"invoice.*", "order.paid"},
		Retry: webhook.RetryPolicy{Delays: []time.Duration{0, 1500 * time.Millisecond}, MaxAge: time.Hour}, Queue: "q"}
	got, err := f.CreateEndpoint(f.ctx, given, []SealedKey{{ID: "k", Kind: "v1", Sealed: []byte{0, 1}, SealedBy: "7", Tenant: "wrong", Endpoint: "wrong"}}, "tester")
	if err != nil {
		t.Fatal(err)
	}
	want := given
	want.ID = webhook.EndpointID([16]byte{1})
	want.State, want.StateSince, want.CreatedAt, want.UpdatedAt = webhook.EndpointActive, t0, t0, t0
	want.RatePerSecond, want.MaxConcurrency, want.Timeout = webhook.DefaultRatePerSecond, webhook.DefaultMaxConcurrency, webhook.DefaultTimeout
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	if read, err := f.Endpoint(f.ctx, "default", want.ID); err != nil || !reflect.DeepEqual(read, want) {
		t.Errorf("read\n%+v, %v, want\n%+v", read, err, want)
	}
	keys, err := f.Keys(f.ctx, "default", want.ID)
	if wantKey := (SealedKey{Tenant: "default", Endpoint: want.ID, ID: "k", Kind: "v1", Sealed: []byte{0, 1}, SealedBy: "7", NotBefore: t0, CreatedAt: t0}); err != nil ||
		len(keys) != 1 || !reflect.DeepEqual(keys[0], wantKey) {
		t.Errorf("%+v, %v", keys, err)
	}
	if _, err := f.CreateEndpoint(f.ctx, got, nil, "tester"); !errors.Is(err, ErrAlreadyExists) || !Permanent(err) {
		t.Errorf("again: %v", err)
	}
	got.Tenant = "other"
	if _, err := f.CreateEndpoint(f.ctx, got, nil, "tester"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

func TestCreateEndpointRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{MaxEndpoints: 2})
	key := SealedKey{ID: "k", Kind: "v1", Sealed: []byte{1}, SealedBy: "1"}
	for _, c := range []struct {
		name string
		edit func(*webhook.Endpoint, *SealedKey)
		want error
	}{
		{"no tenant", func(e *webhook.Endpoint, _ *SealedKey) { e.Tenant = "" }, ErrInvalid},
		{"bad id", func(e *webhook.Endpoint, _ *SealedKey) { e.ID = "A b" }, ErrInvalid},
		{"no URL", func(e *webhook.Endpoint, _ *SealedKey) { e.URL = "" }, ErrInvalid},
		{"long URL", func(e *webhook.Endpoint, _ *SealedKey) { e.URL = "https://" + strings.Repeat("a", 2041) }, ErrTooLarge},
		{"URL not UTF-8", func(e *webhook.Endpoint, _ *SealedKey) { e.URL = "https://\xff" }, ErrInvalid},
		{"bad pattern", func(e *webhook.Endpoint, _ *SealedKey) { e.EventTypes = []string{"a*"} }, ErrInvalid},
		{"many patterns", func(e *webhook.Endpoint, _ *SealedKey) { e.EventTypes = make([]string, 201) }, ErrInvalid},
		{"bad policy", func(e *webhook.Endpoint, _ *SealedKey) { e.Retry.MaxAge = -1 }, ErrInvalid},
		{"born deleted", func(e *webhook.Endpoint, _ *SealedKey) { e.State = webhook.EndpointDeleted }, ErrInvalid},
		{"negative rate", func(e *webhook.Endpoint, _ *SealedKey) { e.RatePerSecond = -1 }, ErrInvalid},
		{"key without id", func(_ *webhook.Endpoint, k *SealedKey) { k.ID = "" }, ErrInvalid},
		{"key of no kind", func(_ *webhook.Endpoint, k *SealedKey) { k.Kind = "v2" }, ErrInvalid},
		{"empty key", func(_ *webhook.Endpoint, k *SealedKey) { k.Sealed = nil }, ErrInvalid},
		{"key that never was", func(_ *webhook.Endpoint, k *SealedKey) { k.NotAfter = t0 }, ErrInvalid},
	} {
		ep, k := webhook.Endpoint{Tenant: "default", ID: "a", URL: "https://x.example", EventTypes: []string{"*"}}, key
		c.edit(&ep, &k)
		if _, err := f.CreateEndpoint(f.ctx, ep, []SealedKey{k}, "tester"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	f.endpoint("default", "a")
	f.endpoint("default", "b")
	third := webhook.Endpoint{Tenant: "default", ID: "c", URL: "https://x.example"}
	if _, err := f.CreateEndpoint(f.ctx, third, nil, "tester"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one endpoint too many: %v", err)
	}
	if _, err := f.DeleteEndpoint(f.ctx, "default", "a", "tester"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.CreateEndpoint(f.ctx, third, nil, "tester"); err != nil {
		t.Errorf("after one was deleted: %v", err)
	}
}

func TestDeleteEndpointCancelsEverything(t *testing.T) {
	t.Parallel()
	l := &lossy{}
	f := newFixture(t, Options{}, l.option())
	f.endpoint("default", "a")
	f.endpoint("default", "b")
	f.endpoint("other", "a")
	all := events(1_000)
	for _, part := range [][]webhook.Event{all[:500], all[500:]} {
		f.ingest(part...)
	}
	foreign := event("other", "s", "1", "x")
	f.ingest(foreign)
	for _, e := range all[:100] { // so that closing "a" closes these events
		d, _ := f.getDelivery(e.Key, "b")
		f.record(f.attempt(d, delivered))
	}
	f.clock.move(time.Minute)
	// Interrupted in the first chunk, whose commit happens all the same.
	l.n.Store(2)
	first, err := f.DeleteEndpoint(f.ctx, "default", "a", "tester")
	if !Transient(err) {
		t.Fatalf("%d, %v, want a transient error", first, err)
	}
	n, err := f.DeleteEndpoint(f.ctx, "default", "a", "tester")
	if err != nil || n != 1_000-cancelChunk {
		t.Fatalf("%d more cancelled, %v; want %d", n, err, 1_000-cancelChunk)
	}
	if n, err = f.DeleteEndpoint(f.ctx, "default", "a", "tester"); n != 0 || err != nil {
		t.Errorf("again: %d, %v", n, err)
	}
	checkCancelled(t, f, all)
	if d, _, err := f.Delivery(f.ctx, "other", foreign.Key, "a"); err != nil || d.State != webhook.DeliveryScheduled {
		t.Errorf("the other tenant's: %+v, %v", d, err)
	}
	if ep, err := f.Endpoint(f.ctx, "default", "a"); err != nil || ep.State != webhook.EndpointDeleted {
		t.Errorf("tombstone: %+v, %v", ep, err)
	}
	eps, _, err := f.ListEndpoints(f.ctx, "default", Page{})
	if err != nil || len(eps) != 1 || eps[0].ID != "b" {
		t.Errorf("listed: %+v, %v", eps, err)
	}
	if r := f.ingest(event("default", "s", "later", "x"))[0]; len(r.Tasks) != 1 {
		t.Errorf("later event: %+v", r)
	}
	if _, err := f.DeleteEndpoint(f.ctx, "default", "none", "tester"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	if err := f.RotateKey(f.ctx, "default", "a", SealedKey{ID: "k", Kind: "v1", Sealed: []byte{1}}, 0, "tester"); !errors.Is(err, ErrNotFound) {
		t.Errorf("new key for a deleted one: %v", err)
	}
}

// checkCancelled looks at 1,000 events of which "a" is cancelled, while "b" has the
// first hundred delivered and waits for the rest.
func checkCancelled(t *testing.T, f *fixture, all []webhook.Event) {
	t.Helper()
	closed := map[webhook.EventKey]bool{}
	for page := (Page{Size: 500}); ; {
		rows, next, err := f.ListEvents(f.ctx, EventFilter{Tenant: "default"}, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			closed[r.Key] = !r.ExpireAt.IsZero()
		}
		if page.Token = next; next == "" {
			break
		}
	}
	for i, e := range all {
		if got, ok := closed[e.Key]; !ok || got != (i < 100) {
			t.Errorf("event %d: closed %v, listed %v", i, got, ok)
		}
	}
	for state, want := range map[webhook.DeliveryState]int{webhook.DeliveryCancelled: 1_000, webhook.DeliveryScheduled: 900, webhook.DeliveryDelivered: 100} {
		n := 0
		for page := (Page{Size: 500}); ; {
			rows, next, err := f.ListDeliveries(f.ctx, DeliveryFilter{Tenant: "default", State: state}, page)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range rows {
				n++
				if cancelled := state == webhook.DeliveryCancelled; cancelled != (d.Endpoint == "a") ||
					cancelled && (d.Reason != webhook.ReasonEndpointDeleted || d.Attempt != 0 || !d.NextAttemptAt.IsZero()) {
					t.Fatalf("%+v", d)
				}
			}
			if page.Token = next; next == "" {
				break
			}
		}
		if n != want {
			t.Errorf("%d deliveries are %s, want %d", n, state, want)
		}
	}
}

func TestRotateKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a") // key_1, v1
	key := func(id, kind string) SealedKey {
		return SealedKey{ID: id, Kind: kind, Sealed: []byte("sealed " + id), SealedBy: "1"}
	}
	for i, step := range []struct {
		key     SealedKey
		overlap time.Duration
	}{{key("key_2", "v1"), 24 * time.Hour}, {key("key_a", "v1a"), 0}, {key("key_3", "v1"), time.Hour}} {
		f.clock.move(time.Minute)
		for range 2 { // the repeat changes nothing
			if err := f.RotateKey(f.ctx, "default", "a", step.key, step.overlap, "tester"); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
	}
	keys, err := f.Keys(f.ctx, "default", "a")
	if err != nil {
		t.Fatal(err)
	}
	end := t0.Add(3*time.Minute + time.Hour)
	for i, want := range []struct {
		id                  string
		notBefore, notAfter time.Time
	}{
		{"key_3", t0.Add(3 * time.Minute), time.Time{}},
		{"key_a", t0.Add(2 * time.Minute), time.Time{}}, // another kind is not replaced
		{"key_2", t0.Add(time.Minute), end},
		{"key_1", t0, end}, // sooner than the first rotation said
	} {
		if k := keys[i]; k.ID != want.id || !k.NotBefore.Equal(want.notBefore) || !k.NotAfter.Equal(want.notAfter) {
			t.Errorf("key %d: %+v, want %+v", i, k, want)
		}
	}
	e := event("default", "s", "1", "x")
	f.ingest(e)
	d, _ := f.getDelivery(e.Key, "a")
	for _, c := range []struct {
		at   time.Time
		want string
	}{{end.Add(-1), "[key_3 key_a key_2 key_1]"}, {end, "[key_3 key_a]"}} {
		f.clock.set(c.at)
		claim, err := f.Claim(f.ctx, d.Key())
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, k := range claim.Keys {
			ids = append(ids, k.ID)
		}
		if fmt.Sprint(ids) != c.want {
			t.Errorf("at %s: %s, want %s", c.at, ids, c.want)
		}
	}
	other := key("key_3", "v1")
	other.Sealed = []byte("different")
	if err := f.RotateKey(f.ctx, "default", "a", other, 0, "tester"); !errors.Is(err, ErrAlreadyExists) {
		t.Errorf("another key of the same id: %v", err)
	}
	if err := f.RotateKey(f.ctx, "default", "a", key("key_4", "v1"), -1, "tester"); !errors.Is(err, ErrInvalid) {
		t.Errorf("negative overlap: %v", err)
	}
	if err := f.RotateKey(f.ctx, "other", "a", key("key_4", "v1"), 0, "tester"); !errors.Is(err, ErrNotFound) {
		t.Errorf("another tenant: %v", err)
	}
	if _, err := f.Keys(f.ctx, "other", "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("another tenant's keys: %v", err)
	}
}
