package bus_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
)

func TestDecodePushWrapped(t *testing.T) {
	t.Parallel()
	at := time.Date(2021, 11, 16, 19, 21, 9, 107e6, time.UTC)
	const sub = "projects/p/subscriptions/s"
	for _, c := range []struct {
		name, body string
		want       bus.Message
	}{
		{"both spellings, no attributes", `{"message":{"data":"e30=","messageId":"1","message_id":"1","publishTime":"2021-11-16T19:21:09.107Z","publish_time":"2021-11-16T19:21:09.107Z"},"subscription":"` + sub + `"}`,
			bus.Message{ID: "1", Subscription: sub, Data: []byte("{}"), PublishTime: at}},
		{"only message_id and publish_time", `{"message":{"data":"e30=","message_id":"1","publish_time":"2021-11-16T19:21:09.107Z"},"subscription":"` + sub + `"}`,
			bus.Message{ID: "1", Subscription: sub, Data: []byte("{}"), PublishTime: at}},
		{"attributes, ordering key, attempt", `{"deliveryAttempt":5,"message":{"attributes":{"a":"b","é":"ü"},"data":"gP8bCg==","messageId":"1","orderingKey":"k"},"subscription":"` + sub + `"}`,
			bus.Message{ID: "1", Subscription: sub, Data: []byte("\x80\xff\x1b\n"), Attributes: attrs("a", "b", "é", "ü"), OrderingKey: "k", DeliveryAttempt: 5}},
		{"nothing but an id", `{"message":{"messageId":"2"}}`, bus.Message{ID: "2"}},
		{"nothing but attributes", `{"message":{"attributes":{"a":"b"}}}`, bus.Message{Attributes: attrs("a", "b")}},
		{"unknown fields, nulls, bad time", `{"x":[1],"message":{"data":null,"attributes":null,"messageId":"3","publishTime":"soon","y":{}},"subscription":null}`, bus.Message{ID: "3"}},
		{"empty data", `{"message":{"data":"","messageId":"4"}}`, bus.Message{ID: "4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := bus.DecodePush(http.Header{"Content-Type": {"application/json"}}, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			sameMessage(t, got, c.want)
		})
	}
}

func sameMessage(t *testing.T, got, want bus.Message) {
	t.Helper()
	if got.ID != want.ID || got.Subscription != want.Subscription || !bytes.Equal(got.Data, want.Data) || !got.PublishTime.Equal(want.PublishTime) ||
		got.OrderingKey != want.OrderingKey || got.DeliveryAttempt != want.DeliveryAttempt || !maps.Equal(got.Attributes, want.Attributes) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestDecodePushUnwrapped(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	for k, v := range map[string]string{
		"x-goog-pubsub-message-id": "9", "x-goog-pubsub-subscription-name": "projects/p/subscriptions/u",
		"x-goog-pubsub-publish-time": "2021-11-16T19:21:09.107Z", "x-goog-pubsub-ordering-key": "ok", "x-goog-pubsub-delivery-attempt": "3",
		"ce-id": "1", "ce-type": "a.b", "content-type": "text/plain", "tenant": "acme", "ordering_key": "k", "sealpost-headers-0": "[]", "X-Shopify-Topic": "orders/create", "Shopify-Topic": "orders/edit",
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"User-Agent":  "APIs-Google", "Authorization": "Bearer secret", "Accept": "*/*", "X-Forwarded-For": "1.2.3.4",
	} {
		h.Set(k, v)
	}
	body := `{"message":{"messageId":"forged"}}` + "\x80\xff\n"
	got, err := bus.DecodePush(h, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	sameMessage(t, got, bus.Message{
		ID: "9", Subscription: "projects/p/subscriptions/u", Data: []byte(body), PublishTime: time.Date(2021, 11, 16, 19, 21, 9, 107e6, time.UTC), OrderingKey: "ok", DeliveryAttempt: 3,
		Attributes: attrs("ce-id", "1", "ce-type", "a.b", "content-type", "text/plain", "tenant", "acme", "ordering_key", "k", "sealpost-headers-0", "[]", "x-shopify-topic", "orders/create", "shopify-topic", "orders/edit", "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
	})
}

func TestDecodePushMalformed(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		``, ` `, `x`, `[]`, `null`, `"message"`, `{}`, `{"message":null}`, `{"message":{}}`, `{"message":"e30="}`, `{"message":{"data":"***","messageId":"1"}}`,
		`{"message":{"data":"e30","messageId":"1"}}`, `{"message":{"attributes":{"a":1},"messageId":"1"}}`, `{"message":{"messageId":1}}`, `{"data":"e30="}`,
		`{"message":{"messageId":"1"}`, `{"message":{"messageId":"1"}} x`, `{"message":{"data":"","messageId":""}}`,
	} {
		_, err := bus.DecodePush(nil, []byte(body))
		var e *bus.EnvelopeError
		if !errors.As(err, &e) || string(e.Body) != body || e.TooLarge() || !bus.Permanent(err) {
			t.Errorf("%s: got %v", body, err)
		}
	}
}

func TestReadPushBounds(t *testing.T) {
	t.Parallel()
	largest := base64.StdEncoding.EncodeToString(make([]byte, bus.MaxMessageBytes))
	whole := `{"message":{"messageId":"1","data":"` + largest + `"}}`
	pad := func(n int) string { return whole + strings.Repeat(" ", n-len(whole)) }
	for _, c := range []struct {
		name    string
		body    string
		chunked bool
		large   bool
	}{
		{"largest message", whole, false, false},
		{"largest message, chunked", whole, true, false},
		{"at the limit", pad(bus.MaxPushBytes), true, false},
		{"above the limit", pad(bus.MaxPushBytes + 1), false, true},
		{"above the limit, chunked", pad(bus.MaxPushBytes + 1), true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body))
			if c.chunked {
				r.ContentLength = -1
			}
			m, err := bus.ReadPush(httptest.NewRecorder(), r)
			var e *bus.EnvelopeError
			if c.large != (errors.As(err, &e) && e.TooLarge()) {
				t.Fatalf("error is %v", err)
			}
			if !c.large && (err != nil || len(m.Data) != bus.MaxMessageBytes) {
				t.Fatalf("%d bytes, %v", len(m.Data), err)
			}
		})
	}
}

// A request that ends early is a broken connection, not a bad envelope.
func TestReadPushInterrupted(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/", io.LimitReader(strings.NewReader(`{"message":{"messageId":"1"}}`), 10))
	r.ContentLength = 29
	_, err := bus.ReadPush(httptest.NewRecorder(), r)
	var e *bus.EnvelopeError
	if err == nil || errors.As(err, &e) || bus.Permanent(err) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecodePush(f *testing.F) {
	f.Add([]byte(`{"message":{"data":"e30=","messageId":"1","attributes":{"a":"b"}},"subscription":"s"}`), "")
	f.Add([]byte("\x80\xff"), "7")
	f.Add([]byte(`{"message":{"messageId":"2"}}`), "")
	f.Fuzz(func(t *testing.T, body []byte, id string) {
		h := http.Header{}
		h.Set("X-Goog-Pubsub-Message-Id", id)
		m, err := bus.DecodePush(h, body)
		var e *bus.EnvelopeError
		switch {
		case err != nil && !errors.As(err, &e):
			t.Fatalf("error of another kind: %v", err)
		case err == nil && id != "" && !bytes.Equal(m.Data, body):
			t.Fatal("unwrapped data was changed")
		case err == nil && m.ID == "" && len(m.Data) == 0 && len(m.Attributes) == 0:
			t.Fatal("accepted nothing")
		}
	})
}

func BenchmarkDecodePush(b *testing.B) {
	body, _ := json.Marshal(map[string]any{"subscription": "projects/p/subscriptions/s", "message": map[string]any{
		"messageId": "1", "data": make([]byte, 1024), "attributes": attrs("ce-id", "1", "ce-type", "a.b", "ce-source", "shop", "tenant", "acme")}})
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		m, err := bus.DecodePush(nil, body)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := bus.DecodeInbound(m); err != nil {
			b.Fatal(err)
		}
	}
}
