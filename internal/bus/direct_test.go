package bus_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/webhook"
)

const odd = "{\"e\":\"\\u001B\",\"f\":0.0,\"n\":1152921504606846977}\x80\xff\r\n"

var (
	shop  = bus.DirectSource{ID: "shop", Format: bus.DirectShopify, Tenant: "acme"}
	audit = bus.DirectSource{ID: "audit", Format: bus.DirectCloudEvents, Tenant: "acme"}
)

func TestDecodeDirect(t *testing.T) {
	t.Parallel()
	triggered := time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.UTC)
	byEvent := shop
	byEvent.Dedupe = "header:X-Shopify-Event-Id"
	for _, c := range []struct {
		name   string
		source bus.DirectSource
		in     bus.Message
		want   webhook.Event // without what all have in common
	}{
		{"shopify", shop, message(odd, "X-Shopify-Topic", "orders/create", "X-Shopify-Webhook-Id", "w-1", "X-Shopify-Event-Id", "e-1", "X-Shopify-Shop-Domain", "a.myshopify.com",
			"X-Shopify-Triggered-At", "2026-01-02T03:04:05.123456789Z", "X-Shopify-API-Version", "2026-01", "X-Shopify-Hmac-SHA256", "bm9uc2Vuc2U=", "Content-Type", "application/json", "other", "x"),
			webhook.Event{PublisherID: "w-1", Type: "orders/create", ContentType: "application/json", Body: []byte(odd), OccurredAt: triggered, Headers: []webhook.Header{
				{Name: "X-Shopify-Api-Version", Value: "2026-01"}, {Name: "X-Shopify-Event-Id", Value: "e-1"}, {Name: "X-Shopify-Hmac-Sha256", Value: "bm9uc2Vuc2U="}, {Name: "X-Shopify-Shop-Domain", Value: "a.myshopify.com"},
				{Name: "X-Shopify-Topic", Value: "orders/create"}, {Name: "X-Shopify-Triggered-At", Value: "2026-01-02T03:04:05.123456789Z"}, {Name: "X-Shopify-Webhook-Id", Value: "w-1"}}}},
		{"shopify, as unwrapped push writes it", shop, message("x", "x-shopify-topic", "t", "x-shopify-webhook-id", "w"),
			webhook.Event{PublisherID: "w", Type: "t", Body: []byte("x"), Headers: []webhook.Header{{Name: "X-Shopify-Topic", Value: "t"}, {Name: "X-Shopify-Webhook-Id", Value: "w"}}}},
		{"shopify without the X", shop, message("x", "Shopify-Topic", "t", "shopify-webhook-id", "w"),
			webhook.Event{PublisherID: "w", Type: "t", Body: []byte("x"), Headers: []webhook.Header{{Name: "Shopify-Topic", Value: "t"}, {Name: "Shopify-Webhook-Id", Value: "w"}}}},
		{"shopify without an id", shop, message("x", "X-Shopify-Topic", "t"),
			webhook.Event{PublisherID: "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881", Type: "t", Body: []byte("x"), Headers: []webhook.Header{{Name: "X-Shopify-Topic", Value: "t"}}}},
		{"shopify by event", byEvent, message("x", "X-Shopify-Topic", "t", "X-Shopify-Webhook-Id", "w", "x-shopify-event-id", "e"),
			webhook.Event{PublisherID: "e", Type: "t", Body: []byte("x"), Headers: []webhook.Header{{Name: "X-Shopify-Event-Id", Value: "e"}, {Name: "X-Shopify-Topic", Value: "t"}, {Name: "X-Shopify-Webhook-Id", Value: "w"}}}},
		{"shopify by event, which is absent", byEvent, message("x", "X-Shopify-Topic", "t", "X-Shopify-Webhook-Id", "w"),
			webhook.Event{PublisherID: "w", Type: "t", Body: []byte("x"), Headers: []webhook.Header{{Name: "X-Shopify-Topic", Value: "t"}, {Name: "X-Shopify-Webhook-Id", Value: "w"}}}},
		{"nothing of ours is believed", shop, message("x", "X-Shopify-Topic", "t", "X-Shopify-Webhook-Id", "w", "tenant", "victim", "ce-source", "stripe", "ordering_key", "k", "sealpost-encoding", "zstd", "sealpost-kind", "counts", "sealpost-receipt", "r", "sealpost-unsigned-id", "1"),
			webhook.Event{PublisherID: "w", Type: "t", Body: []byte("x"), Headers: []webhook.Header{{Name: "X-Shopify-Topic", Value: "t"}, {Name: "X-Shopify-Webhook-Id", Value: "w"}}}},
		{"cloudevents", audit, message(odd, "ce-specversion", "1.0", "ce-id", "i-1", "ce-type", "google.cloud.storage.object.v1.finalized", "ce-source", "//storage.googleapis.com/b", "ce-subject", "objects/o",
			"ce-time", "2026-01-02T03:04:05.123456789Z", "ce-bucket", "b", "content-type", "application/json", "tenant", "victim"),
			webhook.Event{PublisherID: "i-1", Type: "google.cloud.storage.object.v1.finalized", Subject: "objects/o", ContentType: "application/json", Body: []byte(odd), OccurredAt: triggered, Headers: []webhook.Header{
				{Name: "Ce-Bucket", Value: "b"}, {Name: "Ce-Id", Value: "i-1"}, {Name: "Ce-Source", Value: "//storage.googleapis.com/b"}, {Name: "Ce-Specversion", Value: "1.0"}, {Name: "Ce-Subject", Value: "objects/o"},
				{Name: "Ce-Time", Value: "2026-01-02T03:04:05.123456789Z"}, {Name: "Ce-Type", Value: "google.cloud.storage.object.v1.finalized"}}}},
		{"cloudevents without an id", audit, message("", "ce-type", "t", "ce-datacontenttype", "text/plain"),
			webhook.Event{PublisherID: "77", Type: "t", ContentType: "text/plain", Body: []byte{}, Headers: []webhook.Header{{Name: "Ce-Datacontenttype", Value: "text/plain"}, {Name: "Ce-Type", Value: "t"}}}},
		{"structured cloudevents", audit, message(`{"specversion":"1.0","id":"i","type":"t","source":"/s","subject":"u","tenant":"victim","time":"2026-01-02T03:04:05.123456789Z","data":{ "f": 0.0 }}`, "content-type", "application/cloudevents+json; charset=utf-8"),
			webhook.Event{PublisherID: "i", Type: "t", Subject: "u", ContentType: "application/json", Body: []byte(`{ "f": 0.0 }`), OccurredAt: triggered, Headers: []webhook.Header{{Name: "Ce-Source", Value: "/s"}}}},
		{"a time that is none", audit, message("x", "ce-type", "t", "ce-id", "i", "ce-time", "yesterday"),
			webhook.Event{PublisherID: "i", Type: "t", Body: []byte("x"), Headers: []webhook.Header{{Name: "Ce-Id", Value: "i"}, {Name: "Ce-Time", Value: "yesterday"}, {Name: "Ce-Type", Value: "t"}}}},
	} {
		c.want.Tenant, c.want.Source, c.want.Receipt, c.want.ReceivedAt = "acme", c.source.ID, "77", published
		c.want.Seal()
		got, err := bus.DecodeDirect(c.in, c.source)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", c.name, err, got, c.want)
		}
	}
}

func TestDecodeDirectRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		source bus.DirectSource
		in     bus.Message
		want   bus.Code
	}{
		{"no topic", shop, message("x", "X-Shopify-Webhook-Id", "w"), bus.CodeNoType},
		{"a topic that is none", shop, message("x", "X-Shopify-Topic", "orders *"), bus.CodeBadType},
		{"no body", shop, message("", "X-Shopify-Topic", "t", "X-Shopify-Webhook-Id", "w"), bus.CodeEmpty},
		{"two ids", shop, message("x", "X-Shopify-Topic", "t", "X-Shopify-Webhook-Id", "w", "x-shopify-webhook-id", "v"), bus.CodeBadHeaders},
		{"another format", shop, message("x", "ce-type", "t", "ce-id", "1"), bus.CodeNoType},
		{"no type", audit, message(`{"type":"t"}`, "ce-id", "1"), bus.CodeNoType},
		{"another version", audit, message("x", "ce-type", "t", "ce-specversion", "0.3"), bus.CodeBadSpecVersion},
		{"a batch", audit, message("[]", "content-type", "application/cloudevents-batch+json"), bus.CodeBadEncoding},
		{"structured, no JSON", audit, message("x", "content-type", "application/cloudevents+json"), bus.CodeBadJSON},
		{"structured, no type", audit, message(`{"id":"1"}`, "content-type", "application/cloudevents+json"), bus.CodeNoType},
		{"subject that is no text", audit, message("x", "ce-type", "t", "ce-subject", "a\x00"), bus.CodeBadField},
	} {
		if _, err := bus.DecodeDirect(c.in, c.source); reason(t, err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

func TestParseDirectSources(t *testing.T) {
	t.Parallel()
	got, err := bus.ParseDirectSources([]byte(`[{"id":"shop","format":"shopify","tenant":"acme","subscription":"s","dedupe":"header:X-Shopify-Event-Id"},{"id":"audit","format":"cloudevents"}]`))
	want := []bus.DirectSource{{ID: "shop", Format: bus.DirectShopify, Tenant: "acme", Subscription: "s", Dedupe: "header:X-Shopify-Event-Id"},
		{ID: "audit", Format: bus.DirectCloudEvents, Tenant: "default"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, empty := range []string{"", " \n", "[]"} {
		if got, err := bus.ParseDirectSources([]byte(empty)); err != nil || len(got) != 0 {
			t.Errorf("%q: %+v, %v", empty, got, err)
		}
	}
	for _, c := range []struct {
		config string
		parts  []string
	}{
		{`{`, []string{"direct sources"}},
		{`{"id":"a"}`, []string{"direct sources"}},
		{`[] []`, []string{"follows"}},
		{`[{"id":"a","format":"shopify","secret":"x"}]`, []string{"secret"}},
		{`[{"format":"shopify"}]`, []string{"source 1", "id"}},
		{`[{"id":"app","format":"shopify"}]`, []string{"id", "app"}},
		{`[{"id":"a/b","format":"xml","tenant":"A","subscription":"projects/p/subscriptions/s","dedupe":"body"}]`, []string{"a/b", "format", "xml", "tenant", "subscription", "dedupe"}},
		{`[{"id":"a","format":"shopify","subscription":"s"},{"id":"a","format":"cloudevents","subscription":"s"}]`, []string{"source 2", "id is given twice", "another source's"}},
		{`[{"id":"a","format":"shopify","dedupe":"header:"}]`, []string{"dedupe"}},
	} {
		_, err := bus.ParseDirectSources([]byte(c.config))
		if err == nil {
			t.Errorf("%s: no error", c.config)
			continue
		}
		for _, part := range c.parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %s", c.config, err, part)
			}
		}
	}
}
