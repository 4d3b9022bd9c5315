package deliver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// topicBox is a Publisher that keeps what it was given.
type topicBox struct {
	mu    sync.Mutex
	topic []string
	got   []bus.Outgoing
	err   error
}

func (b *topicBox) PublishTo(_ context.Context, topic string, m bus.Outgoing) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return "", b.err
	}
	b.topic, b.got = append(b.topic, topic), append(b.got, m)
	return "m1", nil
}

func topicWire(t *testing.T, err error, allowed ...string) (*wire, *topicBox) {
	box := &topicBox{err: err}
	return newWire(t, nil, func(o *Options) { o.Publisher, o.Topics = box, allowed }), box
}

// A topic gets the publisher's bytes under the CloudEvents attributes, which our own
// bus reads back as the same event.
func TestPublishedToATopic(t *testing.T) {
	t.Parallel()
	w, box := topicWire(t, nil, "billing")
	c := w.claim("pubsub://billing", func(c *store.Claim) {
		c.Event.Subject, c.Event.OrderingKey, c.Event.Sequence = "invoices/1", "cus_1", 7
		c.Endpoint.APIVersion = "2026-01-01"
		c.Endpoint.Headers = []webhook.Header{{Name: "X-Region", Value: "eu"}, {Name: "ce-type", Value: "forged"}}
		c.Keys = nil // nothing is signed
	})
	a := w.send(c)
	if a.Outcome.Class != webhook.ClassOK || !a.Outcome.OK() || !a.WroteRequest || len(a.KeyIDs) != 0 || a.URL != "pubsub://billing" || a.Exchange != nil {
		t.Fatalf("%+v", a)
	}
	m := box.got[0]
	if !slices.Equal(box.topic, []string{"billing"}) || string(m.Data) != `{"amount": 19.90}` || m.OrderingKey != "cus_1" {
		t.Errorf("%v %+v", box.topic, m)
	}
	want := map[string]string{"ce-specversion": "1.0", "ce-id": "in_1", "ce-source": "urn:sealpost:app", "ce-type": "invoice.paid", "ce-time": "2026-03-01T12:00:00.000005Z", "ce-tenant": "acme",
		"ce-subject": "invoices/1", "ce-sealpostid": c.Event.Key.ID(), "ce-orderingkey": "cus_1", "ce-sequence": "00000000000000000007", "content-type": "application/json",
		"webhook-id": c.Event.Key.ID(), "sealpost-attempt": "3", "sealpost-api-version": "2026-01-01", "x-region": "eu"}
	if !maps.Equal(m.Attributes, want) {
		t.Errorf("attributes\n%v, want\n%v", m.Attributes, want)
	}
	ev, err := bus.DecodeEvent(bus.Message{ID: "m1", Attributes: m.Attributes, Data: m.Data})
	if err != nil || ev.Type != "invoice.paid" || ev.Tenant != "acme" || ev.PublisherID != "in_1" || ev.OrderingKey != "cus_1" || string(ev.Body) != string(m.Data) {
		t.Errorf("read back: %+v, %v", ev, err)
	}
}

// Other payload modes are possible, and a test event shows what was published.
func TestTopicModesAndExchange(t *testing.T) {
	t.Parallel()
	for mode, want := range map[webhook.PayloadMode][2]string{"cloudevents": {"application/cloudevents+json; charset=utf-8", `{"specversion":"1.0"`}, "wrapped": {"application/json", `{"type":"invoice.paid"`}, "raw": {"application/json", `{"amount"`}} {
		w, box := topicWire(t, nil, "bil*")
		a := w.send(w.claim("pubsub://billing", func(c *store.Claim) {
			c.Endpoint.PayloadMode, c.Delivery.Trigger = mode, webhook.TriggerTest
			c.Endpoint.Headers = []webhook.Header{{Name: "X-Api-Key", Value: "s3cret"}}
		}))
		if box.got[0].Attributes["content-type"] != want[0] || !strings.HasPrefix(string(box.got[0].Data), want[1]) {
			t.Errorf("%s: %+v", mode, box.got[0])
		}
		x := a.Exchange
		if x == nil || x.Protocol != "Pub/Sub" || x.Request.Method != "PUBLISH" || x.Response.Status != 200 || x.Response.Headers[0].Value != "m1" || !slices.Contains(x.Request.Headers, webhook.Header{Name: "x-api-key", Value: "***"}) {
			t.Errorf("%s: %+v", mode, x)
		}
	}
}

// A fault of the topic is an attempt; an outage of Pub/Sub is ours.
func TestTopicOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int // 0: ours
		fault  string
	}{
		{status.Error(codes.NotFound, "s3cret"), 404, "topic billing: it does not exist"},
		{status.Error(codes.PermissionDenied, "s3cret"), 403, "roles/pubsub.publisher"},
		{&bus.InvalidError{Detail: "s3cret"}, 400, "does not take the message"},
		{&bus.TooLargeError{What: "message"}, 413, "larger than a message may be"},
		{status.Error(codes.Unavailable, "away"), 0, ""},
		{status.Error(codes.ResourceExhausted, "quota"), 0, ""},
		{context.DeadlineExceeded, 0, ""},
		{errors.New("whatever"), 0, ""},
	} {
		w, _ := topicWire(t, c.err, "*")
		a, err := w.s.send(t.Context(), w.claim("pubsub://billing"))
		if c.status == 0 {
			if !errors.Is(err, errBusAway) || !outage(err) {
				t.Errorf("%v: %v", c.err, err)
			}
			continue
		}
		if err != nil || a.Outcome.Class != webhook.ClassStatus || a.Outcome.Status != c.status || !strings.Contains(a.Error, c.fault) || strings.Contains(a.Error, "s3cret") || a.WroteRequest {
			t.Errorf("%v: %+v, %v", c.err, a, err)
		}
	}
}

// Endpoints name only topics that the operator lists.
func TestTopicsArePermittedByTheOperator(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allowed []string
		topic   string
		ok      bool
	}{
		{nil, "billing", false}, {[]string{"billing"}, "billing", true}, {[]string{"billing"}, "billing2", false}, {[]string{"bill*"}, "billing", true},
		{[]string{"a", "b*"}, "bb-c", true}, {[]string{"*"}, "anything", true}, {[]string{"*"}, "sealpost-events", false}, {[]string{"*"}, "../x", false},
	} {
		w, box := topicWire(t, nil, c.allowed...)
		a := w.send(w.claim("pubsub://" + c.topic))
		if (a.Outcome.Class == webhook.ClassOK) != c.ok || (len(box.got) == 1) != c.ok || !c.ok && a.Outcome.Class != webhook.ClassBlocked {
			t.Errorf("%v, %s: %+v", c.allowed, c.topic, a)
		}
	}
}
