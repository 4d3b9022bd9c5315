package system_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// What a receiver refuses or ignores, it answers as each provider needs it, and
// counts; the counts of a receiver that ends are stored.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	hook := newCustomer(t, nil)
	r.endpoint("ep", hook.url, nil)
	src := r.source("stripe")
	slack := r.source("slack")
	receiver := r.serve(system.Receiver, r.receiverWith(map[string]any{"allow_types": []string{"invoice.*"}, "body_limit": 2048}, src, slack))
	base := receiver.url + "/in/"

	good := signed(t, src, "good")
	forged, stale := signed(t, src, "forged"), signed(t, src, "stale")
	forged.body = bytes.Replace(forged.body, []byte("0.0"), []byte("9.9"), 1)
	old := fmt.Sprint(time.Now().Add(-time.Hour).Unix())
	stale.header.Set("Stripe-Signature", fmt.Sprintf("t=%s,v1=%x", old, sum(src.Secret, old+"."+string(stale.body))))
	unwanted := signed(t, slack, "unwanted") // of type message
	handshake := slackCall(t, slack, `{"type":"url_verification"}`)
	large := bytes.Repeat([]byte("x"), 2049)
	for _, c := range []struct {
		name   string
		method string
		source string
		header http.Header
		body   []byte
		want   int
	}{
		{"good", "POST", "stripe", good.header, good.body, 200},
		{"forged", "POST", "stripe", forged.header, forged.body, 401},
		{"forged again", "POST", "stripe", forged.header, forged.body, 401},
		{"stale", "POST", "stripe", stale.header, stale.body, 401},
		{"unsigned", "POST", "stripe", nil, good.body, 401},
		{"another's", "POST", "slack", good.header, good.body, 401},
		{"unknown source", "POST", "strip", good.header, good.body, 404},
		{"no source", "POST", "", good.header, good.body, 404},
		{"wrong method", "GET", "stripe", nil, nil, 405},
		{"wrong method, signed", "PUT", "stripe", good.header, good.body, 405},
		{"too large", "POST", "stripe", nil, large, 413},
		{"handshake without a challenge", "POST", "slack", handshake.header, handshake.body, 400},
		{"unwanted type", "POST", "slack", unwanted.header, unwanted.body, 204},
		{"unwanted type again", "POST", "slack", unwanted.header, unwanted.body, 204},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, base+c.source, bytes.NewReader(c.body))
		must(t, err)
		maps.Copy(req.Header, c.header)
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		body, err := io.ReadAll(res.Body)
		must(t, err)
		res.Body.Close()
		if res.StatusCode != c.want || (c.want == 405) != (res.Header.Get("Allow") == "POST") {
			t.Errorf("%s: answered %s, Allow %q", c.name, res.Status, res.Header.Get("Allow"))
		}
		if c.want == 401 && string(body) != "unauthorized\n" {
			t.Errorf("%s: told %q", c.name, body)
		}
	}
	if code := brokenBody(t, receiver.url, "/in/stripe"); code != 400 {
		t.Errorf("a body that is badly framed: answered %d", code)
	}
	r.inState(good.key, "ep", webhook.DeliveryDelivered)
	receiver.stop(terminate, 10*time.Second)

	r.counted(map[string]int64{
		"stripe mismatch": 2, "stripe stale": 1, "stripe missing_signature": 1, "stripe wrong_method": 2,
		"stripe too_large": 1, "stripe body_read": 1, "slack missing_signature": 1, "slack bad_body": 1, "slack unwanted_type": 2,
	})
	if n := len(r.events()); n != 1 {
		t.Errorf("%d events are stored, want the good one", n)
	}
	if n := len(hook.requests(webhook.EventKey{})); n != 1 {
		t.Errorf("the endpoint was called %d times", n)
	}
}

// counted waits until exactly these refusals are stored, by source and reason.
func (r *rig) counted(want map[string]int64) {
	r.t.Helper()
	eventually(r.t, func() error {
		got := map[string]int64{}
		counts := all(r.t, func(p store.Page) ([]store.SourceCount, string, error) {
			return r.Store.ListSourceCounts(r.t.Context(), store.SourceCountFilter{Tenant: webhook.DefaultTenant}, p)
		})
		for _, c := range counts {
			if webhook.CountsRefusal(c.Reason) {
				got[c.Source+" "+c.Reason] += c.Count
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("counted %v, want %v", got, want)
		}
		return nil
	})
}

// slackCall is any body, signed by Slack.
func slackCall(t *testing.T, src system.Source, body string) call {
	t.Helper()
	c := signed(t, src, "1")
	unix := fmt.Sprint(time.Now().Unix())
	c.body = []byte(body)
	c.header.Set("X-Slack-Request-Timestamp", unix)
	c.header.Set("X-Slack-Signature", fmt.Sprintf("v0=%x", sum(src.Secret, "v0:"+unix+":"+body)))
	return c
}

// brokenBody sends a chunked body whose second chunk is none.
func brokenBody(t *testing.T, base, path string) int {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: receiver\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nnonsense\r\n")
	must(t, err)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	res.Body.Close()
	return res.StatusCode
}

// What no compression makes fit into a message is refused for good, and Slack's
// handshake is answered.
func TestNeitherTooLargeNorEvents(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	src := r.source("github")
	c := signed(t, src, "huge")
	c.body = make([]byte, 11_000_000)
	noise := rand.NewChaCha8([32]byte{1})
	_, err := noise.Read(c.body)
	must(t, err)
	c.header.Set("X-Hub-Signature-256", fmt.Sprintf("sha256=%x", sum(src.Secret, string(c.body))))
	if code, _, err := post(t.Context(), c.url, c.header, c.body); err != nil || code != http.StatusRequestEntityTooLarge {
		t.Errorf("answered %d, %v", code, err)
	}
	slack := r.source("slack")
	c = slackCall(t, slack, `{"token":"t","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification"}`)
	if code, _, err := post(t.Context(), c.url, c.header, c.body); err != nil || code != http.StatusOK {
		t.Errorf("the handshake is answered %d, %v", code, err)
	}
	last := signed(t, src, "last")
	r.accepted(last)
	eventually(t, func() error { _, err := r.Store.Event(t.Context(), webhook.DefaultTenant, last.key); return err })
	if n := len(r.events()); n != 1 {
		t.Errorf("%d events are stored, want the last one", n)
	}
}

func (r *rig) deadMessages() []store.DeadMessage {
	r.t.Helper()
	return all(r.t, func(p store.Page) ([]store.DeadMessage, string, error) {
		return r.Store.ListDeadMessages(r.t.Context(), "", p)
	})
}

// A message that is no event is kept with the reason, once, and troubles nobody
// again.
func TestDeadMessages(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	hook := newCustomer(t, nil)
	r.endpoint("ep", hook.url, nil)
	reasons := map[string]string{} // of each message
	for _, c := range []struct {
		topic      string
		attributes map[string]string
		data       string
		reason     string
	}{
		{system.EventsTopic, nil, "not JSON \xff", "bad_json"},
		{system.EventsTopic, nil, `{"id":"1"}`, "no_type"},
		{system.EventsTopic, map[string]string{"ce-type": "in voice"}, "{}", "bad_type"},
		{system.EventsTopic, map[string]string{"ce-type": "a.b", "tenant": "No Such"}, "{}", "bad_tenant"},
		{system.EventsTopic, map[string]string{"ce-type": "a.b", "sealpost-encoding": "zstd"}, "{}", "bad_encoding"},
		{system.InboundTopic, nil, "{}", "bad_source"},
		{system.InboundTopic, map[string]string{"sealpost-kind": "counts"}, "{}", "bad_counts"},
	} {
		p := r.pubsub.Publisher(c.topic)
		id, err := p.Publish(t.Context(), &pubsub.Message{Data: []byte(c.data), Attributes: c.attributes}).Get(t.Context())
		p.Stop()
		must(t, err)
		reasons[id] = c.topic + " " + c.reason + " " + c.data
	}
	eventually(t, func() error {
		if n := len(r.deadMessages()); n < len(reasons) {
			return fmt.Errorf("%d messages are dead, want %d", n, len(reasons))
		}
		return nil
	})
	// They were settled: what comes after them is handled, and they are not.
	r.publish(map[string]string{"ce-id": "after", "ce-type": "a.b"}, nil)
	in := signed(t, r.source("github"), "after")
	r.accepted(in)
	r.inState(app("after"), "ep", webhook.DeliveryDelivered)
	r.inState(in.key, "ep", webhook.DeliveryDelivered)
	dead := r.deadMessages()
	if len(dead) != len(reasons) {
		t.Errorf("%d messages are dead, want %d", len(dead), len(reasons))
	}
	for _, m := range dead {
		full, err := r.Store.DeadMessage(t.Context(), "", m.ID)
		must(t, err)
		reason, _, _ := strings.Cut(full.Reason, ":")
		if got := full.Topic + " " + reason + " " + string(full.Body); got != reasons[m.MessageID] {
			t.Errorf("message %s: %q, want %q", m.MessageID, got, reasons[m.MessageID])
		}
		if n := r.logs.count(map[string]string{"event": "dead_message", "message_id": m.MessageID}); n != 1 {
			t.Errorf("message %s was dealt with %d times", m.MessageID, n)
		}
	}
	if n := len(r.events()); n != 2 {
		t.Errorf("%d events are stored, want the two that came after", n)
	}
}

// An event that breaks its type's schema is kept as rejected and sent to nobody.
func TestSchemas(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{Pull: true, Elsewhere: map[string]string{system.Worker: "http://127.0.0.1:9"}})
	hook := newCustomer(t, nil)
	r.endpoint("ep", hook.url, nil)
	r.serve(system.Worker, map[string]string{"MODE": "pull",
		"EVENT_SCHEMAS": `[{"type":"invoice.paid","schema":{"type":"object","required":["amount"],"properties":{"amount":{"type":"integer","minimum":1}}}}]`})
	for _, c := range []struct {
		id, typ, data string
		state         webhook.EventState
	}{
		{"good", "invoice.paid", `{"amount":1}`, webhook.EventAccepted},
		{"too little", "invoice.paid", `{"amount":0}`, webhook.EventRejected},
		{"nothing", "invoice.paid", `{}`, webhook.EventRejected},
		{"not JSON", "invoice.paid", `x`, webhook.EventRejected},
		{"another type", "invoice.sent", `x`, webhook.EventAccepted},
	} {
		r.publish(map[string]string{"ce-id": c.id, "ce-type": c.typ}, []byte(c.data))
		eventually(t, func() error { _, err := r.Store.Event(t.Context(), webhook.DefaultTenant, app(c.id)); return err })
		row := r.event(app(c.id))
		if row.State != c.state || (row.Rejection == "") != (c.state == webhook.EventAccepted) {
			t.Errorf("%s: %s, %q", c.id, row.State, row.Rejection)
		}
		if c.state == webhook.EventAccepted {
			r.inState(app(c.id), "ep", webhook.DeliveryDelivered)
		}
	}
	if ds := r.deliveries(); len(ds) != 2 {
		t.Errorf("deliveries %+v", ds)
	}
	if dead := r.deadMessages(); len(dead) > 0 {
		t.Errorf("dead messages %+v", dead)
	}
}

// From the moment that an endpoint is there it gets every event, and from the moment
// that it is removed none.
func TestEndpointsComeAndGo(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	warm := newCustomer(t, nil)
	r.endpoint("warm", warm.url, nil)
	r.publish(map[string]string{"ce-id": "warm", "ce-type": "a.b"}, nil)
	r.inState(app("warm"), "warm", webhook.DeliveryDelivered) // all that caches has cached
	for i := range 5 {
		name := fmt.Sprintf("ep-%d", i)
		hook := newCustomer(t, func(int) int { return map[bool]int{true: 500, false: 200}[i == 4] })
		secret := r.endpoint(name, hook.url, func(ep *webhook.Endpoint) { ep.Retry.Delays = []time.Duration{0, time.Hour} })
		r.publish(map[string]string{"ce-id": name, "ce-type": "a.b"}, []byte(name))
		if i < 4 {
			r.inState(app(name), name, webhook.DeliveryDelivered)
			hook.verified(t, app(name), secret, []byte(name))
			continue
		}
		// This one waits for its second attempt when the endpoint goes.
		eventually(t, func() error {
			_, attempts, err := r.Store.Delivery(t.Context(), webhook.DefaultTenant, app(name), name)
			if err == nil && len(attempts) == 0 {
				err = errNotYet
			}
			return err
		})
		if n, err := r.Store.DeleteEndpoint(t.Context(), webhook.DefaultTenant, name, "test"); err != nil || n != 1 {
			t.Errorf("cancelled %d, %v", n, err)
		}
		if d, _ := r.inState(app(name), name, webhook.DeliveryCancelled); d.Reason != webhook.ReasonEndpointDeleted {
			t.Errorf("%+v", d)
		}
		r.publish(map[string]string{"ce-id": "late", "ce-type": "a.b"}, nil)
		r.inState(app("late"), "warm", webhook.DeliveryDelivered)
		if n := len(hook.requests(webhook.EventKey{})); n != 1 {
			t.Errorf("the removed endpoint was called %d times", n)
		}
		if _, _, err := r.Store.Delivery(t.Context(), webhook.DefaultTenant, app("late"), name); err == nil {
			t.Error("the removed endpoint has a delivery of a later event")
		}
	}
}

// 410 is the last request that an endpoint gets: it is disabled, and what is for it
// is held.
func TestGone(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	hook := newCustomer(t, func(int) int { return http.StatusGone })
	other := newCustomer(t, nil)
	r.endpoint("gone", hook.url, nil)
	r.endpoint("other", other.url, nil)
	r.publish(map[string]string{"ce-id": "1", "ce-type": "a.b"}, nil)
	if d, attempts := r.inState(app("1"), "gone", webhook.DeliveryHeld); d.Reason != webhook.ReasonGone || len(attempts) != 1 || attempts[0].Outcome.Status != http.StatusGone {
		t.Errorf("%+v, %+v", d, attempts)
	}
	ep, err := r.Store.Endpoint(t.Context(), webhook.DefaultTenant, "gone")
	must(t, err)
	if ep.State != webhook.EndpointDisabled || ep.StateReason != webhook.ReasonGone {
		t.Errorf("the endpoint is %s (%s)", ep.State, ep.StateReason)
	}
	r.publish(map[string]string{"ce-id": "2", "ce-type": "a.b"}, nil)
	r.inState(app("2"), "gone", webhook.DeliveryHeld)
	r.inState(app("2"), "other", webhook.DeliveryDelivered)
	r.drained()
	if n := len(hook.requests(webhook.EventKey{})); n != 1 {
		t.Errorf("the endpoint was called %d times", n)
	}
}
