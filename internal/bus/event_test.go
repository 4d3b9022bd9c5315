package bus_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/webhook"
)

var published = time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)

func attrs(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

func message(data string, kv ...string) bus.Message {
	return bus.Message{ID: "77", PublishTime: published, Data: []byte(data), Attributes: attrs(kv...)}
}

// reason is the code of a DecodeError, "" for nil.
func reason(t *testing.T, err error) bus.Code {
	t.Helper()
	if err == nil {
		return ""
	}
	var d *bus.DecodeError
	if !errors.As(err, &d) {
		t.Fatalf("error %v is no DecodeError", err)
	}
	if !bus.Permanent(err) {
		t.Errorf("%v is not permanent", err)
	}
	return d.Reason
}

func TestDecodeEventPayload(t *testing.T) {
	t.Parallel()
	const odd = "\x80\xff\x1b {\"n\":0.0,\"big\":1152921504606846977,\"e\":\"\\u001B\"}\r\n\n"
	for _, c := range []struct {
		name string
		in   bus.Message
		body string
		ct   string
	}{
		{"binary keeps every byte", message(odd, "ce-type", "a.b", "content-type", "application/octet-stream"), odd, "application/octet-stream"},
		{"binary without content type", message(odd, "ce-type", "a.b"), odd, ""},
		{"binary with the attribute in another case", message("x", "ce-type", "a.b", "Content-Type", "text/csv"), "x", "text/csv"},
		{"binary with ce-datacontenttype", message("x", "ce-type", "a.b", "ce-datacontenttype", "text/csv"), "x", "text/csv"},
		{"binary with an empty payload", message("", "ce-type", "a.b"), "", ""},
		{"binary beats a JSON body", message(`{"type":"c.d","data":1}`, "ce-type", "a.b"), `{"type":"c.d","data":1}`, ""},
		{"object", message(`{"type":"a.b","data": { "n" : 0.0, "big":1152921504606846977, "e":"\u001B\u00e9" } }`), `{ "n" : 0.0, "big":1152921504606846977, "e":"\u001B\u00e9" }`, "application/json"},
		{"duplicate keys inside data are data", message(`{"type":"a.b","data":{"x":1,"x":2}}`), `{"x":1,"x":2}`, "application/json"},
		{"number", message(`{"type":"a.b","data":1.50e+1}`), `1.50e+1`, "application/json"},
		{"string stays JSON", message(`{"type":"a.b","data":"h\u00e9"}`), `"h\u00e9"`, "application/json"},
		{"string of text", message(`{"type":"a.b","datacontenttype":"text/plain","data":"h\u00e9\n"}`), "hé\n", "text/plain"},
		{"string of +json", message(`{"type":"a.b","datacontenttype":"application/ld+json; charset=utf-8","data":"x"}`), `"x"`, "application/ld+json; charset=utf-8"},
		{"object of a type that is not JSON", message(`{"type":"a.b","datacontenttype":"text/xml","data":{"a":1}}`), `{"a":1}`, "text/xml"},
		{"null", message(`{"type":"a.b","data":null}`), `null`, "application/json"},
		{"none", message(`{"type":"a.b"}`), ``, ""},
		{"base64", message(`{"type":"a.b","data_base64":"` + base64.StdEncoding.EncodeToString([]byte(odd)) + `","datacontenttype":"application/x"}`), odd, "application/x"},
		{"invalid UTF-8 inside data", message("{\"type\":\"a.b\",\"data\":\"\x80\xff\"}"), "\"\x80\xff\"", "application/json"},
		{"trailing newline after the envelope", message("{\"type\":\"a.b\",\"data\":[1]}\n\n"), "[1]", "application/json"},
		{"structured CloudEvent", message(`{"specversion":"1.0","id":"1","source":"/s","type":"a.b","data":{"z": 1.0}}`, "content-type", "application/cloudevents+json; charset=UTF-8"), `{"z": 1.0}`, "application/json"},
		{"structured with copied attributes", message(`{"specversion":"1.0","id":"1","source":"/s","type":"a.b","data":{}}`, "content-type", "application/cloudevents+json", "ce-type", "a.b"), `{}`, "application/json"},
		{"unknown event format is binary with a type", message("avro", "content-type", "application/cloudevents+avro", "ce-type", "a.b"), "avro", "application/cloudevents+avro"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ev, err := bus.DecodeEvent(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if string(ev.Body) != c.body || ev.ContentType != c.ct || ev.Type != "a.b" {
				t.Errorf("got %q as %q of type %q, want %q as %q", ev.Body, ev.ContentType, ev.Type, c.body, c.ct)
			}
		})
	}
}

func TestDecodeEventFields(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	base := webhook.Event{Tenant: "default", Source: "app", PublisherID: "77", Type: "a.b", ReceivedAt: published, Receipt: "77"}
	with := func(f func(*webhook.Event)) webhook.Event { e := base; f(&e); return e }
	full := with(func(e *webhook.Event) {
		e.Tenant, e.Source, e.PublisherID, e.Subject, e.OrderingKey, e.OccurredAt = "acme", "app:/shop", "i-1", "cart 7", "k", at
	})
	ordered := message("", "ce-type", "a.b")
	ordered.OrderingKey = "mk"
	for _, c := range []struct {
		name string
		in   bus.Message
		want webhook.Event
	}{
		{"nothing but a type", message("", "ce-type", "a.b"), base},
		{"binary", message("", "ce-type", "a.b", "ce-id", "i-1", "ce-source", "/shop", "ce-subject", "cart 7", "ce-time", "2026-01-02T04:04:05.0000006+01:00", "tenant", "acme", "ordering_key", "k"), full},
		{"binary with CloudEvents extensions", message("", "ce-type", "a.b", "ce-id", "i-1", "ce-source", "/shop", "ce-subject", "cart 7", "ce-time", "2026-01-02T03:04:05.0000006Z", "ce-tenant", "acme", "ce-orderingkey", "k"), full},
		{"JSON", message(`{"type":"a.b","id":"i-1","source":"/shop","subject":"cart 7","timestamp":"2026-01-02T03:04:05.0000006Z","tenant":"acme","ordering_key":"k"}`), full},
		{"JSON, time before timestamp", message(`{"type":"a.b","id":"i-1","source":"/shop","subject":"cart 7","timestamp":"2001-01-02T03:04:05Z","time":"2026-01-02T03:04:05.0000006Z","tenant":"acme","ordering_key":"k"}`), full},
		{"structured with extensions", message(`{"specversion":"1.0","type":"a.b","id":"i-1","source":"/shop","subject":"cart 7","time":"2026-01-02T03:04:05.0000006Z","tenant":"acme","orderingkey":"k"}`, "content-type", "application/cloudevents+json"), full},
		{"JSON, tenant and key from attributes", message(`{"type":"a.b","id":"i-1","source":"/shop","subject":"cart 7","time":"2026-01-02T03:04:05.0000006Z"}`, "tenant", "acme", "ordering_key", "k"), full},
		{"JSON, the same tenant twice", message(`{"type":"a.b","tenant":"acme"}`, "tenant", "acme"), with(func(e *webhook.Event) { e.Tenant = "acme" })},
		{"unknown members and other spellings are ignored", message(`{"type":"a.b","Type":"c","ID":"x","foo":{"type":"d"},"TENANT":"x!"}`), base},
		{"nulls count as absent", message(`{"type":"a.b","id":null,"tenant":null,"time":null,"datacontenttype":null}`), base},
		{"empty id counts as absent", message(`{"type":"a.b","id":""}`), base},
		{"bad time counts as absent", message("", "ce-type", "a.b", "ce-time", "yesterday"), base},
		{"time that Spanner cannot hold", message("", "ce-type", "a.b", "ce-time", "9999-12-31T23:59:59-12:00"), base},
		{"year 0", message("", "ce-type", "a.b", "ce-time", "0000-01-01T00:00:00Z"), base},
		{"number as time", message(`{"type":"a.b","timestamp":1700000000}`), base},
		{"the message's ordering key comes last", ordered, with(func(e *webhook.Event) { e.OrderingKey = "mk" })},
		{"control character in an id is hashed", message("", "ce-type", "a.b", "ce-id", "a\nb"), with(func(e *webhook.Event) { e.PublisherID = webhook.CanonicalID("a\nb") })},
		{"inbound attributes mean nothing here", message("", "ce-type", "a.b", "sealpost-receipt", "r", "sealpost-received", "2001-01-01T00:00:00Z", "sealpost-kind", "counts"), base},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := bus.DecodeEvent(c.in)
			if err != nil {
				t.Fatal(err)
			}
			c.want.Seal()
			sameEvent(t, got, c.want)
		})
	}
}

func sameEvent(t *testing.T, got, want webhook.Event) {
	t.Helper()
	for _, f := range []struct {
		name      string
		got, want any
	}{
		{"key", got.Key, want.Key}, {"tenant", got.Tenant, want.Tenant}, {"source", got.Source, want.Source},
		{"id", got.PublisherID, want.PublisherID}, {"type", got.Type, want.Type}, {"subject", got.Subject, want.Subject},
		{"ordering key", got.OrderingKey, want.OrderingKey}, {"content type", got.ContentType, want.ContentType},
		{"body", string(got.Body), string(want.Body)}, {"hash", got.BodyHash, want.BodyHash},
		{"occurred", got.OccurredAt, want.OccurredAt}, {"received", got.ReceivedAt, want.ReceivedAt}, {"receipt", got.Receipt, want.Receipt},
		{"rejection", got.Rejection, want.Rejection}, {"number of headers", len(got.Headers), len(want.Headers)},
		{"unsigned id", got.UnsignedID, want.UnsignedID}, {"refusal of replays", got.RefuseReplay, want.RefuseReplay},
	} {
		if f.got != f.want {
			t.Errorf("%s is %v, want %v", f.name, f.got, f.want)
		}
	}
	for i := range min(len(got.Headers), len(want.Headers)) {
		if got.Headers[i] != want.Headers[i] {
			t.Errorf("header %d is %q, want %q", i, got.Headers[i], want.Headers[i])
		}
	}
}

func TestDecodeEventRefusals(t *testing.T) {
	t.Parallel()
	nameless := message("", "ce-type", "a.b")
	nameless.ID = ""
	for _, c := range []struct {
		name string
		in   bus.Message
		want bus.Code
	}{
		{"nothing at all", message(""), bus.CodeEmpty},
		{"white space", message(" \n"), bus.CodeEmpty},
		{"not JSON", message("hello"), bus.CodeBadJSON},
		{"array", message(`[{"type":"a.b"}]`), bus.CodeBadJSON},
		{"cut short", message(`{"type":"a.b","data":{"x":1}`), bus.CodeBadJSON},
		{"cut inside data", message(`{"type":"a.b","data":{"x":`), bus.CodeBadJSON},
		{"two objects", message(`{"type":"a.b"}{"type":"c.d"}`), bus.CodeBadJSON},
		{"rubbish behind", message(`{"type":"a.b"} x`), bus.CodeBadJSON},
		{"type twice", message(`{"type":"a.b","type":"c.d"}`), bus.CodeBadJSON},
		{"data twice", message(`{"type":"a.b","data":1,"data":1}`), bus.CodeBadJSON},
		{"type twice, once escaped", message(`{"type":"a.b","t\u0079pe":"c.d"}`), bus.CodeBadJSON},
		{"both data forms", message(`{"type":"a.b","data":1,"data_base64":"AA=="}`), bus.CodeBadJSON},
		{"no type", message(`{"id":"1","data":{}}`), bus.CodeNoType},
		{"null type", message(`{"type":null}`), bus.CodeNoType},
		{"type of another case", message(`{"Type":"a.b"}`), bus.CodeNoType},
		{"number as type", message(`{"type":5}`), bus.CodeBadType},
		{"pattern as type", message(`{"type":"a.*"}`), bus.CodeBadType},
		{"type with a space", message("", "ce-type", "a b"), bus.CodeBadType},
		{"type too long", message("", "ce-type", strings.Repeat("a", 257)), bus.CodeBadType},
		{"number as id", message(`{"type":"a.b","id":5}`), bus.CodeBadID},
		{"no id anywhere", nameless, bus.CodeNoID},
		{"bad tenant", message("", "ce-type", "a.b", "tenant", "Acme"), bus.CodeBadTenant},
		{"bad tenant in JSON", message(`{"type":"a.b","tenant":"a/b"}`), bus.CodeBadTenant},
		{"number as tenant", message(`{"type":"a.b","tenant":1}`), bus.CodeBadTenant},
		{"two tenants", message(`{"type":"a.b","tenant":"acme"}`, "tenant", "other"), bus.CodeBadTenant},
		{"two tenants in attributes", message("", "ce-type", "a.b", "tenant", "acme", "ce-tenant", "other"), bus.CodeBadTenant},
		{"control character in source", message("", "ce-type", "a.b", "ce-source", "a\x00b"), bus.CodeBadSource},
		{"newline in source", message(`{"type":"a.b","source":"a\nb"}`), bus.CodeBadSource},
		{"source too long", message(`{"type":"a.b","source":"` + strings.Repeat("s", 1025) + `"}`), bus.CodeBadSource},
		{"subject too long", message(`{"type":"a.b","subject":"` + strings.Repeat("s", 1025) + `"}`), bus.CodeBadField},
		{"newline in content type", message(`{"type":"a.b","datacontenttype":"a\r\nb"}`), bus.CodeBadField},
		{"CloudEvents 0.3", message(`{"specversion":"0.3","type":"a.b"}`), bus.CodeBadSpecVersion},
		{"CloudEvents 2.0, binary", message("", "ce-type", "a.b", "ce-specversion", "2.0"), bus.CodeBadSpecVersion},
		{"batch", message(`[]`, "content-type", "application/cloudevents-batch+json"), bus.CodeBadEncoding},
		{"bad base64", message(`{"type":"a.b","data_base64":"*"}`), bus.CodeBadEncoding},
		{"base64 that is no string", message(`{"type":"a.b","data_base64":{}}`), bus.CodeBadEncoding},
		{"half a surrogate pair in an id", message(`{"type":"a.b","id":"\ud800"}`), bus.CodeBadEncoding},
		{"half a surrogate pair in text", message(`{"type":"a.b","datacontenttype":"text/plain","data":"\udc00"}`), bus.CodeBadEncoding},
		{"invalid UTF-8 in an id", message("{\"type\":\"a.b\",\"id\":\"\xff\"}"), bus.CodeBadEncoding},
		{"unknown compression", message("x", "ce-type", "a.b", "sealpost-encoding", "br"), bus.CodeBadEncoding},
		{"corrupt compression", message("x", "ce-type", "a.b", "sealpost-encoding", "zstd"), bus.CodeBadEncoding},
		{"structured, not JSON", message("x", "content-type", "application/cloudevents+json", "ce-type", "a.b"), bus.CodeBadJSON},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := bus.DecodeEvent(c.in)
			if got := reason(t, err); got != c.want {
				t.Errorf("got %q (%v), want %q", got, err, c.want)
			}
		})
	}
}

// Escaped replacement characters are not half pairs.
func TestDecodeEventReplacementCharacter(t *testing.T) {
	t.Parallel()
	for _, id := range []string{`"\uFFFD"`, `"\ufffd"`, `"` + "\ufffd" + `"`} {
		ev, err := bus.DecodeEvent(message(`{"type":"a.b","id":` + id + `}`))
		if err != nil || ev.PublisherID != "\ufffd" {
			t.Errorf("id %s: %q, %v", id, ev.PublisherID, err)
		}
	}
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add([]byte(`{"type":"a.b","id":"1","data":{"x":0.0}}`), "", "", "")
	f.Add([]byte(`{"specversion":"1.0","type":"a.b","data_base64":"AA=="}`), "application/cloudevents+json", "", "acme")
	f.Add([]byte("\x80\xff"), "text/plain", "a.b", "")
	f.Fuzz(func(t *testing.T, data []byte, ct, typ, tenant string) {
		m := message(string(data), "content-type", ct, "ce-type", typ, "tenant", tenant)
		ev, err := bus.DecodeEvent(m)
		if err != nil {
			reason(t, err)
			return
		}
		if webhook.ValidType(ev.Type) != nil || webhook.ValidName(ev.Tenant) != nil || ev.PublisherID == "" ||
			!strings.HasPrefix(ev.Source, "app") || strings.ContainsRune(ev.Source, 0) {
			t.Fatalf("accepted %+v", ev)
		}
		if typ != "" && !strings.HasPrefix(strings.ToLower(ct), "application/cloudevents") && string(ev.Body) != string(data) {
			t.Fatalf("binary mode changed %q to %q", data, ev.Body)
		}
	})
}
