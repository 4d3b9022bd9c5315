package fanout_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// What providers publish themselves becomes events of their source, whichever way
// it comes, and whatever it says of itself.
func TestDirectSources(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("acme", "all", "*")
	in := b.ingester(fanout.Options{Direct: []bus.DirectSource{
		{ID: "shop", Format: bus.DirectShopify, Tenant: "acme"}, {ID: "audit", Format: bus.DirectCloudEvents, Tenant: "acme"}}})
	shop := func(id, webhookID string, kv ...string) bus.Message {
		return message(id, "", exact, append([]string{"X-Shopify-Topic", "orders/create", "X-Shopify-Webhook-Id", webhookID, "tenant", "victim"}, kv...)...)
	}
	push := func(path string, m bus.Message) int {
		w := httptest.NewRecorder()
		in.Routes().ServeHTTP(w, httptest.NewRequest("POST", path, strings.NewReader(wrapped(m))))
		return w.Code
	}
	for _, c := range []struct {
		name       string
		do         func() int
		code       int
		key        webhook.EventKey // zero: no event
		tasks      int              // new ones
		dead       int              // new ones
		duplicates int64
	}{
		{"shopify", func() int { return push("/push/direct/shop", shop("m1", "w1")) }, 204, key("shop", "acme", "w1"), 1, 0, 0},
		{"the same message", func() int { return push("/push/direct/shop", shop("m1", "w1")) }, 204, key("shop", "acme", "w1"), 0, 0, 0},
		{"shopify's repeat", func() int { return push("/push/direct/shop", shop("m2", "w1")) }, 204, key("shop", "acme", "w1"), 0, 0, 1},
		{"the same over HTTP", func() int {
			return push("/push/inbound", message("m3", "orders/create", exact, "ce-source", "shop", "ce-id", "w1", "tenant", "acme", "sealpost-receipt", "r"))
		}, 204, key("shop", "acme", "w1"), 0, 0, 2},
		{"cloudevents", func() int {
			return push("/push/direct/audit", message("m4", "a.b", exact, "ce-id", "w1", "ce-source", "//x"))
		}, 204, key("audit", "acme", "w1"), 1, 0, 0},
		{"pulled", func() int {
			if err := in.Handle(t.Context(), shop("m5", "w2"), fanout.Direct("shop")); err != nil {
				return 503
			}
			return 204
		}, 204, key("shop", "acme", "w2"), 1, 0, 0},
		{"no topic", func() int { return push("/push/direct/shop", message("m6", "", "x", "tenant", "victim")) }, 204, webhook.EventKey{}, 0, 1, 0},
		{"forged counts", func() int { return push("/push/direct/shop", message("m7", "", "[]", "sealpost-kind", "counts")) }, 204, webhook.EventKey{}, 0, 1, 0},
		{"another format", func() int { return push("/push/direct/audit", shop("m8", "w3")) }, 204, webhook.EventKey{}, 0, 1, 0},
		{"no envelope", func() int {
			w := httptest.NewRecorder()
			in.Routes().ServeHTTP(w, httptest.NewRequest("POST", "/push/direct/shop", strings.NewReader("x")))
			return w.Code
		}, 400, webhook.EventKey{}, 0, 1, 0},
		{"no such source", func() int { return push("/push/direct/other", shop("m9", "w4")) }, 404, webhook.EventKey{}, 0, 0, 0},
		{"no source", func() int { return push("/push/direct/", shop("m9", "w4")) }, 404, webhook.EventKey{}, 0, 0, 0},
		{"pulled of no such source", func() int {
			if err := in.Handle(t.Context(), shop("m9", "w4"), fanout.Direct("other")); err == nil {
				return 204
			}
			return 503
		}, 503, webhook.EventKey{}, 0, 0, 0},
	} {
		tasks, dead := len(b.tasks()), len(b.dead())
		if code := c.do(); code != c.code || len(b.tasks())-tasks != c.tasks || len(b.dead())-dead != c.dead {
			t.Errorf("%s: %d, %d tasks, %d dead messages", c.name, code, len(b.tasks())-tasks, len(b.dead())-dead)
		}
		if c.key == (webhook.EventKey{}) {
			continue
		}
		row := b.event("acme", c.key)
		body, err := b.store.Payload(t.Context(), "acme", c.key)
		if err != nil || string(body) != exact || row.Duplicates != c.duplicates || row.State != webhook.EventAccepted {
			t.Errorf("%s: %q, %v, %+v", c.name, body, err, row)
		}
	}
	for _, d := range b.dead() {
		if d.Tenant != "acme" || !strings.HasPrefix(d.Topic, "direct/") {
			t.Errorf("dead message of %q, topic %q", d.Tenant, d.Topic)
		}
	}
}
