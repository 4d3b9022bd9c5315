package deliver

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

func sampleEvent(body string, adjust ...func(*webhook.Event)) *webhook.Event {
	ev := &webhook.Event{Tenant: "acme", Source: "app", PublisherID: "in_1", Type: "invoice.paid", ContentType: "application/json", Body: []byte(body),
		OccurredAt: time.Date(2026, 3, 1, 13, 0, 0, 5000, time.FixedZone("", 3600)), ReceivedAt: time.Date(2026, 3, 1, 12, 0, 1, 0, time.UTC)}
	for _, f := range adjust {
		f(ev)
	}
	ev.Seal()
	return ev
}

func typed(ct string) func(*webhook.Event) {
	return func(ev *webhook.Event) { ev.ContentType = ct }
}

func source(s string) func(*webhook.Event) {
	return func(ev *webhook.Event) { ev.Source = s }
}

func ordered(key string, n int64) func(*webhook.Event) {
	return func(ev *webhook.Event) { ev.OrderingKey, ev.Sequence = key, n }
}

func untimed(ev *webhook.Event) { ev.OccurredAt = time.Time{} }

// Payloads that a JSON library would give back otherwise. The first is that of
// hookdeck/outpost#718, whose database reordered the members of replayed events.
var spellings = []string{
	`{"b":1,"a":{"z":1,"a":2},"a":3}`,
	`{"n":0.0,"e":1E400,"big":1152921504606846977,"neg":-0,"exp":1.0e+2}`,
	`{"esc":"\u001B\/\u00e9","emoji":"😀","pair":"\ud83d\ude00","half":"\ud800","html":"<&>","sep":"` + "\u2028" + `"}`,
	" \t\r\n{ \"a\" :\t1 }\n\n", `null`, `true`, `0`, `""`, `"a \"quoted\" text"`, `[]`, `{}`, `[1, 2 ,3]`,
}

func TestBodies(t *testing.T) {
	t.Parallel()
	const id = "evt_aew57c6jlacv3x6jbv2itovgcm" // of app/acme/in_1
	const head = `{"type":"invoice.paid","timestamp":"2026-03-01T12:00:00.000005Z","id":"` + id + `"`
	const ce = `{"specversion":"1.0","id":"in_1","source":"urn:sealpost:app","type":"invoice.paid","time":"2026-03-01T12:00:00.000005Z"`
	const ext = `"sealpostid":"` + id + `"`
	for _, c := range []struct {
		name string
		mode webhook.PayloadMode
		ev   *webhook.Event
		want string
		ct   string
	}{
		{"published, by default", "", sampleEvent(`{"a": 0.0}`), head + `,"data":{"a": 0.0}}`, "application/json"},
		{"published with a source, by default", "", sampleEvent(`1`, source("app:/billing")), head + `,"data":1}`, "application/json"},
		{"inbound, by default", "", sampleEvent(`{"a": 0.0}`, source("stripe"), typed("Application/JSON; charset=UTF-8")), `{"a": 0.0}`, "Application/JSON; charset=UTF-8"},
		{"raw without a type", "raw", sampleEvent("\xff", typed("")), "\xff", "application/json"},
		{"raw and empty", "raw", sampleEvent(""), "", "application/json"},
		{"wrapped, inbound", "wrapped", sampleEvent(`{}`, source("stripe")), head + `,"data":{}}`, "application/json"},
		{"wrapped, no time given", "wrapped", sampleEvent(`{}`, untimed), strings.Replace(head, "12:00:00.000005Z", "12:00:01Z", 1) + `,"data":{}}`, "application/json"},
		{"wrapped, ordered", "wrapped", sampleEvent(`{}`, ordered("cus_1", 7)), head + `,"sequence":7,"data":{}}`, "application/json"},
		{"wrapped, ordered, no sequence kept", "wrapped", sampleEvent(`{}`, ordered("cus_1", 0)), head + `,"data":{}}`, "application/json"},
		{"wrapped, a sequence without a key", "wrapped", sampleEvent(`{}`, ordered("", 7)), head + `,"data":{}}`, "application/json"},
		{"wrapped, undeclared JSON", "wrapped", sampleEvent(`{}`, typed("")), head + `,"data":{}}`, "application/json"},
		{"wrapped, problem+json", "wrapped", sampleEvent(`{}`, typed("application/problem+json")), head + `,"data":{}}`, "application/json"},
		{"wrapped, empty", "wrapped", sampleEvent(``), head + `,"data":null}`, "application/json"},
		{"wrapped, undeclared and no JSON", "wrapped", sampleEvent(`hello`, typed("")), head + `,"data_base64":"aGVsbG8="}`, "application/json"},
		{"wrapped, declared JSON that is none", "wrapped", sampleEvent(`{"a":1,}`), head + `,"content_type":"application/json","data_base64":"eyJhIjoxLH0="}`, "application/json"},
		{"wrapped, two JSON values", "wrapped", sampleEvent(`{}{}`), head + `,"content_type":"application/json","data_base64":"e317fQ=="}`, "application/json"},
		{"wrapped, JSON that is not UTF-8", "wrapped", sampleEvent("\"\xff\""), head + `,"content_type":"application/json","data_base64":"Iv8i"}`, "application/json"},
		{"wrapped, JSON behind a byte order mark", "wrapped", sampleEvent("\ufeff{}"), head + `,"content_type":"application/json","data_base64":"77u/e30="}`, "application/json"},
		{"wrapped, text", "wrapped", sampleEvent("a\"b\\c\n\x01é\u2028", typed("text/plain")), head + `,"content_type":"text/plain","data":"a\"b\\c\n\u0001é` + "\u2028" + `"}`, "application/json"},
		{"wrapped, JSON declared as text", "wrapped", sampleEvent(`{}`, typed("text/plain; charset=UTF-8")), head + `,"content_type":"text/plain; charset=UTF-8","data":"{}"}`, "application/json"},
		{"wrapped, text in Latin-1", "wrapped", sampleEvent("a", typed("text/plain; charset=iso-8859-1")), head + `,"content_type":"text/plain; charset=iso-8859-1","data_base64":"YQ=="}`, "application/json"},
		{"wrapped, form", "wrapped", sampleEvent("a=b&c", typed("application/x-www-form-urlencoded")), head + `,"content_type":"application/x-www-form-urlencoded","data":"a=b&c"}`, "application/json"},
		{"wrapped, bytes", "wrapped", sampleEvent("\x00\xff", typed("application/octet-stream")), head + `,"content_type":"application/octet-stream","data_base64":"AP8="}`, "application/json"},
		{"thin", "thin", sampleEvent(`{"secret":1}`), head + `,"data":{"id":"` + id + `","url":"https://console.example/v1/events/` + id + `/payload"}}`, "application/json"},
		{"cloudevents", "cloudevents", sampleEvent(`{"a": 0.0}`), ce + `,"datacontenttype":"application/json",` + ext + `,"data":{"a": 0.0}}`, typeCloudEvent},
		{"cloudevents, empty", "cloudevents", sampleEvent(``, typed("")), ce + `,` + ext + `}`, typeCloudEvent},
		{"cloudevents, undeclared JSON", "cloudevents", sampleEvent(`0`, typed("")), ce + `,` + ext + `,"data":0}`, typeCloudEvent},
		{"cloudevents, undeclared bytes", "cloudevents", sampleEvent("\xff", typed("")), ce + `,"datacontenttype":"application/octet-stream",` + ext + `,"data_base64":"/w=="}`, typeCloudEvent},
		{"cloudevents, XML", "cloudevents", sampleEvent(`<a b="c"/>`, typed("text/xml")), ce + `,"datacontenttype":"text/xml",` + ext + `,"data":"<a b=\"c\"/>"}`, typeCloudEvent},
		{"cloudevents, ordered", "cloudevents", sampleEvent(`0`, ordered("k", 12)), ce + `,"datacontenttype":"application/json",` + ext + `,"orderingkey":"k","sequence":"00000000000000000012","data":0}`, typeCloudEvent},
	} {
		got, err := MakeBody(c.mode, c.ev, "https://console.example")
		want := strings.ReplaceAll(c.want, id, c.ev.Key.ID())
		if err != nil || string(got.Bytes) != want || got.ContentType != c.ct {
			t.Errorf("%s: %v\n got %s %s\nwant %s %s", c.name, err, got.ContentType, got.Bytes, c.ct, want)
		}
	}
	if b, err := MakeBody("thin", sampleEvent(`{}`), ""); err != nil || bytes.Contains(b.Bytes, []byte("url")) {
		t.Errorf("thin without a base: %s, %v", b.Bytes, err)
	}
	if _, err := MakeBody("fat", sampleEvent(`{}`), ""); err == nil {
		t.Error("an unknown mode is taken")
	}
}

// hookdeck/outpost#718 and #723: payloads kept as JSON came back in another
// spelling. What the publisher wrote stands in every body, byte for byte, and every
// making of a body gives the same bytes.
func TestPayloadSurvivesByteForByte(t *testing.T) {
	t.Parallel()
	for _, body := range spellings {
		for _, mode := range []webhook.PayloadMode{"wrapped", "raw", "cloudevents"} {
			ev := sampleEvent(body)
			first, err := MakeBody(mode, ev, "")
			if err != nil || !bytes.Contains(first.Bytes, []byte(body)) {
				t.Errorf("%s of %q: %q, %v", mode, body, first.Bytes, err)
			}
			if mode != "raw" && (!json.Valid(first.Bytes) || !bytes.Contains(first.Bytes, []byte(`"data":`+body))) {
				t.Errorf("%s of %q: %q", mode, body, first.Bytes)
			}
			again, _ := MakeBody(mode, sampleEvent(body), "")
			if !bytes.Equal(first.Bytes, again.Bytes) || string(ev.Body) != body {
				t.Errorf("%s of %q: %q, then %q", mode, body, first.Bytes, again.Bytes)
			}
		}
	}
}

// CloudEvents' source is a URI reference, and source and id together are unique
// (spec section 3.1).
func TestCloudEventSources(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"app": "urn:sealpost:app", "app:": "urn:sealpost:app", "app:app": "app", "stripe": "urn:sealpost:in:stripe",
		"app:/billing": "/billing", "app:https://a.example/b?c#d": "https://a.example/b?c#d", "app:urn:x:y": "urn:x:y",
		"app:a b": "a%20b", "app:é": "%C3%A9", "app:100%": "100%25", "app::x": "%3Ax", "app:a\"b": "a%22b",
	} {
		if got := ceSource(&webhook.Event{Source: in}); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

var attributeName = regexp.MustCompile(`^[a-z0-9]{1,20}$`)

// The memory foreseen for a body suffices, also where each of its bytes needs six.
func TestFootprint(t *testing.T) {
	t.Parallel()
	for _, mode := range []webhook.PayloadMode{"", "wrapped", "raw", "thin", "cloudevents"} {
		for ct, fill := range map[string]string{"application/json": "x", "application/octet-stream": "x", "text/plain": "\x01", "application/xml": `"`} {
			for _, size := range []int{0, 1, 1000, 1 << 20} {
				ev := sampleEvent(`"`+strings.Repeat(fill, size)+`"`, typed(ct))
				ev.Body = slices.Clip(ev.Body)
				ev.Subject, ev.Source = strings.Repeat("\x7f", 2048), "app:"+strings.Repeat("\x7f", 2000)
				b, err := MakeBody(mode, ev, "https://console.example")
				if err != nil {
					t.Fatal(err)
				}
				held := cap(b.Bytes)
				if mode != "raw" && mode != "thin" {
					held += len(ev.Body)
				}
				if n := footprint(mode, ev, int64(len(ev.Body))); mode != "thin" && int64(held) > n {
					t.Errorf("%q of %d bytes %s: %d held, %d foreseen", mode, size, ct, held, n)
				}
			}
		}
	}
}

// Whatever the payload and its type, the envelope is JSON from which the payload can
// be had, and its attributes' names are legal.
func FuzzEnvelope(f *testing.F) {
	for _, s := range spellings {
		f.Add([]byte(s), "application/json", "k", "subject")
	}
	f.Add([]byte("\xff\x00"), "image/png", "", "")
	f.Add([]byte("text\x1f"), "text/plain;charset=utf-8", "k\u2028", "s\ufffe\x7f")
	f.Fuzz(func(t *testing.T, body []byte, ct, key, subject string) {
		ev := sampleEvent(string(body), typed(ct), ordered(key, 3))
		ev.Subject = subject
		for _, mode := range []webhook.PayloadMode{"wrapped", "cloudevents"} {
			b, err := MakeBody(mode, ev, "")
			if err != nil {
				t.Fatal(err)
			}
			var members map[string]json.RawMessage
			if err := json.Unmarshal(b.Bytes, &members); err != nil {
				t.Fatalf("%s: %v: %q", mode, err, b.Bytes)
			}
			for name := range members {
				if mode == "cloudevents" && name != "data_base64" && !attributeName.MatchString(name) {
					t.Errorf("attribute %q", name)
				}
			}
			if got := unwrap(t, members, formOf(ev)); !bytes.Equal(got, bytes.TrimSpace(body)) && !bytes.Equal(got, body) {
				t.Errorf("%s: %q, want %q", mode, got, body)
			}
		}
	})
}

func unwrap(t *testing.T, members map[string]json.RawMessage, f form) []byte {
	var s string
	switch data, encoded := members["data"], members["data_base64"]; {
	case f == formNone:
		return nil
	case f == formJSON:
		return data
	case f == formText:
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatal(err)
		}
		return []byte(s)
	default:
		if err := json.Unmarshal(encoded, &s); err != nil {
			t.Fatal(err)
		}
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func ExampleMakeBody() {
	ev := webhook.Event{Tenant: "default", Source: "app", PublisherID: "in_1", Type: "invoice.paid",
		ReceivedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Body: []byte(`{"amount": 19.90}`)}
	ev.Seal()
	for _, mode := range []webhook.PayloadMode{webhook.PayloadRaw, webhook.PayloadWrapped, webhook.PayloadThin} {
		b, _ := MakeBody(mode, &ev, "https://console.example.com")
		fmt.Printf("%s\n", b.Bytes)
	}
	// Output:
	// {"amount": 19.90}
	// {"type":"invoice.paid","timestamp":"2026-03-01T12:00:00Z","id":"evt_tbo5w2iumifxrdtpjt5gtcedli","data":{"amount": 19.90}}
	// {"type":"invoice.paid","timestamp":"2026-03-01T12:00:00Z","id":"evt_tbo5w2iumifxrdtpjt5gtcedli","data":{"id":"evt_tbo5w2iumifxrdtpjt5gtcedli","url":"https://console.example.com/v1/events/evt_tbo5w2iumifxrdtpjt5gtcedli/payload"}}
}
