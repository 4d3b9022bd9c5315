package deliver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

func anyFilter(text string) error {
	if strings.Contains(text, "!!") {
		return errors.New("line 1, column 1: no expression")
	}
	return nil
}

func TestParseDeclared(t *testing.T) {
	t.Parallel()
	eps, err := deliver.ParseDeclared([]byte(`[
	  {"id": "a", "url": "https://Hooks.Example.com/x", "queue": "q-a"},
	  {"id": "b", "tenant": "acme", "url": "pubsub://orders", "queue": "q-b", "event_types": ["invoice.*"], "rate_per_second": 5,
	   "max_concurrency": 2, "timeout": "20s", "retry": "41h", "filter": "body.a > 1", "payload_mode": "raw", "ordering": "block",
	   "headers": [{"name": "X-Env", "value": "prod"}], "owner": "ops@example.com", "metadata": {"k": "v"}, "api_version": "2026-01-01",
	   "health": {"failures_to_open": 3, "cool_down": "2m", "max_cool_down": "3h", "disable_after": "48h"}}]`), safedial.Policy{}, anyFilter)
	must(t, err)
	a, b := eps[0], eps[1]
	if a.Tenant != "default" || a.URL != "https://hooks.example.com/x" || a.EventTypes[0] != "*" || a.Queue != "q-a" || a.ManagedBy != webhook.ManagedByTerraform {
		t.Errorf("%+v", a)
	}
	if b.Timeout != 20*time.Second || b.Retry.Attempts() != 8 || b.Ordering != webhook.OrderingBlock || b.Health.CoolDown != 2*time.Minute ||
		b.Health.DisableAfter != 48*time.Hour || b.Headers[0].Value != "prod" || b.RatePerSecond != 5 || b.MaxConcurrency != 2 {
		t.Errorf("%+v", b)
	}
}

func TestParseDeclaredFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{`{}`, "cannot unmarshal object"},
		{`[] []`, "something follows"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q", "color": "red"}]`, `unknown field "color"`},
		{`[{"id": "A", "url": "https://x.example", "queue": "q"}]`, `endpoint "A": id`},
		{`[{"id": "a", "url": "https://x.example"}]`, "queue: is missing"},
		{`[{"id": "a", "url": "https://10.0.0.1", "queue": "q"}]`, "url:"},
		{`[{"id": "a", "url": "https://u:p@x.example", "queue": "q"}]`, "url:"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q", "retry": "often"}]`, "retry:"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q", "timeout": "61s"}]`, "timeout: 1m1s"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q", "timeout": "soon"}]`, "timeout:"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q", "filter": "!!"}]`, "filter:"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q", "ordering": "any"}]`, "ordering"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q", "headers": [{"name": "Host", "value": "x"}]}]`, "reserved"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q", "legacy_signatures": [{"header": "X-S", "template": "{nothing}"}]}]`, "legacy_signatures"},
		{`[{"id": "a", "url": "https://x.example", "queue": "q"}, {"id": "a", "url": "https://y.example", "queue": "r"}]`, "declared twice"},
	} {
		if _, err := deliver.ParseDeclared([]byte(c.text), safedial.Policy{}, anyFilter); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}

func TestRevisionOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int64{"": 0, "sealpost-dispatcher-00042-abc": 42, "sealpost-dispatcher-123456-xyz": 123456,
		"dispatcher": 0, "a-b": 0, "sealpost-dispatcher-blue": 0, "a--1-b": 1} {
		if got := deliver.RevisionOf(name); got.Serial != want || got.Name != name {
			t.Errorf("%q: %+v, want %d", name, got, want)
		}
	}
}

// What Terraform declares is made, changed and forgotten; nobody else changes it, and
// an older revision undoes nothing.
func TestDeclare(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	rc := newReceiver(t, nil)
	declare := func(serial int64, eps ...webhook.Endpoint) error {
		return b.d.Declare(t.Context(), store.Revision{Serial: serial, Name: fmt.Sprint("r-", serial)}, eps)
	}
	ep := func(id, queue string, rate float64) webhook.Endpoint {
		return webhook.Endpoint{Tenant: "default", ID: id, URL: rc.URL, EventTypes: []string{"*"}, Queue: queue, RatePerSecond: rate}
	}
	must(t, b.queue.CreateQueue(t.Context(), &webhook.Endpoint{Tenant: "default", ID: "a", Queue: "tf-a", RatePerSecond: 5, MaxConcurrency: 5})) // by Terraform
	must(t, declare(1, ep("a", "tf-a", 5), ep("b", "tf-b", 5)))
	must(t, declare(1, ep("a", "tf-a", 5))) // once per revision: b stays
	b.clock.Advance(time.Minute)
	k := b.publish("1", []byte(`{}`))
	b.clock.Advance(time.Minute)
	for _, id := range []string{"a", "b"} { // b's queue does not exist: a pool serves it
		if d, _ := b.delivery(k, id); d.State != webhook.DeliveryDelivered {
			t.Errorf("%s: %s (%s)", id, d.State, d.Reason)
		}
	}
	if _, err := b.store.UpdateEndpoint(t.Context(), "default", "a", func(ep *webhook.Endpoint) error { ep.Description = "x"; return nil }, "operator"); !errors.Is(err, store.ErrManaged) {
		t.Errorf("an operator's change: %v", err)
	}
	must(t, declare(2, ep("a", "tf-a2", 7)))
	must(t, declare(1, ep("a", "tf-a", 5), ep("b", "tf-b", 5))) // an old instance
	got, err := b.store.Endpoint(t.Context(), "default", "a")
	must(t, err)
	if got.Queue != "tf-a2" || got.RatePerSecond != 7 || got.State != webhook.EndpointActive || !got.QueueReadyAt.IsZero() {
		t.Errorf("a is %+v", got)
	}
	keys, err := b.store.Keys(t.Context(), "default", "a")
	must(t, err)
	if len(keys) != 1 {
		t.Errorf("a has %d keys, want the one that it was made with", len(keys))
	}
	got, err = b.store.Endpoint(t.Context(), "default", "b")
	must(t, err)
	if got.State != webhook.EndpointDisabled || got.StateReason != webhook.ReasonUndeclared || got.ManagedBy != "" {
		t.Errorf("b is %+v", got)
	}
	k = b.publish("2", []byte(`{}`))
	b.clock.Advance(time.Minute)
	if d, _ := b.delivery(k, "b"); d.State != webhook.DeliveryHeld {
		t.Errorf("to b: %s (%s)", d.State, d.Reason)
	}
	b.endpoint("mine", rc.URL, nil)
	if err := declare(3, ep("mine", "tf-mine", 5)); !errors.Is(err, store.ErrConflict) {
		t.Errorf("an id that is somebody else's: %v", err)
	}
}
