package system_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"golang.org/x/sync/errgroup"

	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// What each provider posts is one event, goes through Pub/Sub, is stored and
// reaches the endpoint, byte for byte, signed anew.
func TestInbound(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	hook := newCustomer(t, nil)
	secret := r.endpoint("ep", hook.url, nil)
	sees := r.spy(system.InboundTopic)
	sources := handSigned(r.Sources)
	for _, src := range sources {
		c := signed(t, src, "1")
		r.accepted(c)
		d, attempts := r.inState(c.key, "ep", webhook.DeliveryDelivered)
		r.history(d, attempts)
		if got := hook.verified(t, c.key, secret, c.body); len(got) != 1 || got[0].header.Get("Content-Type") != "application/json" || got[0].header.Get("X-Sealpost-Event-Type") != c.typ {
			t.Errorf("%s: the endpoint was called %d times, headers %v", src.Name, len(got), got[0].header)
		}
		row := r.event(c.key)
		if row.Source != src.Name || row.PublisherID != c.id || row.Type != c.typ || row.BodyHash != sha256.Sum256(c.body) || row.Duplicates != 0 {
			t.Errorf("%s: stored as %+v", src.Name, row)
		}
		if body, err := r.Store.Payload(t.Context(), webhook.DefaultTenant, c.key); err != nil || !bytes.Equal(body, c.body) {
			t.Errorf("%s: stored is %q, %v", src.Name, body, err)
		}
		m := sees()
		if !bytes.Equal(m.Data, c.body) {
			t.Errorf("%s: Pub/Sub holds %q, posted was %q", src.Name, m.Data, c.body)
		}
		for name, want := range map[string]string{"ce-specversion": "1.0", "ce-id": c.id, "ce-type": c.typ, "ce-source": src.Name,
			"tenant": "default", "content-type": "application/json", "sealpost-scheme": src.Scheme} {
			if m.Attributes[name] != want {
				t.Errorf("%s: attribute %s is %q, want %q", src.Name, name, m.Attributes[name], want)
			}
		}
	}
	if n := len(r.events()); n != len(sources) {
		t.Errorf("%d events of %d posts", n, len(sources))
	}
	r.consistent("ep")
}

// spy reads the topic through a subscription of its own, message by message.
func (r *rig) spy(topic string) func() *pubsubpb.PubsubMessage {
	r.t.Helper()
	subs := r.pubsub.SubscriptionAdminClient
	name := r.path("subscriptions", "spy-"+topic)
	_, err := subs.CreateSubscription(r.t.Context(), &pubsubpb.Subscription{Name: name, Topic: r.path("topics", topic)})
	must(r.t, err)
	return func() *pubsubpb.PubsubMessage {
		r.t.Helper()
		var m *pubsubpb.ReceivedMessage
		eventually(r.t, func() error {
			res, err := subs.Pull(r.t.Context(), &pubsubpb.PullRequest{Subscription: name, MaxMessages: 1})
			if err != nil || len(res.GetReceivedMessages()) == 0 {
				return fmt.Errorf("no message on %s: %w", topic, err)
			}
			m = res.GetReceivedMessages()[0]
			return nil
		})
		must(r.t, subs.Acknowledge(r.t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: name, AckIds: []string{m.GetAckId()}}))
		return m.GetMessage()
	}
}

// A body beyond what Pub/Sub holds is compressed on its way, and arrives as it was.
func TestLargeBody(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	hook := newCustomer(t, nil)
	secret := r.endpoint("ep", hook.url, nil)
	src := r.source("github")
	c := signed(t, src, "large")
	c.body = []byte(`{"lines":"` + strings.Repeat("all work and no play \xff", 600_000) + `"}`)
	c.header.Set("X-Hub-Signature-256", fmt.Sprintf("sha256=%x", sum(src.Secret, string(c.body))))
	r.accepted(c)
	r.inState(c.key, "ep", webhook.DeliveryDelivered)
	hook.verified(t, c.key, secret, c.body)
}

// What an application publishes reaches the endpoint, whichever way it says it.
func TestPublished(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	hook := newCustomer(t, nil)
	secret := r.endpoint("ep", hook.url, nil)
	binary := []byte("{" + awkward)
	// Within an envelope the data is JSON: what is not UTF-8 goes as base64.
	value := strings.ReplaceAll("{"+strings.TrimSuffix(awkward, "\n"), "\xff\xfe", "  ")
	attributes := func(id string, more ...string) map[string]string {
		a := map[string]string{"ce-id": id, "ce-type": "invoice.paid"}
		for i := 0; i < len(more); i += 2 {
			a[more[i]] = more[i+1]
		}
		return a
	}
	for _, c := range []struct {
		name        string
		key         webhook.EventKey
		attributes  map[string]string
		data        string
		body        []byte
		contentType string
	}{
		{"attributes", app("1"), attributes("1", "content-type", "text/odd; charset=x"), string(binary), binary, "text/odd; charset=x"},
		{"attributes of another system", webhook.KeyOf("app:/billing", "default", "1"), attributes("1", "ce-source", "/billing", "ce-specversion", "1.0"), string(binary), binary, ""},
		{"no body", app("2"), attributes("2"), "", []byte{}, ""},
		{"envelope", app("3"), nil, `{"type":"invoice.paid","id":"3","data": ` + value + ` }`, []byte(value), ""},
		{"envelope in base64", app("4"), nil, `{"type":"invoice.paid","id":"4","data_base64":"` + base64.StdEncoding.EncodeToString(binary) + `"}`, binary, ""},
		{"structured", app("5"), map[string]string{"content-type": "application/cloudevents+json"}, `{"specversion":"1.0","type":"invoice.paid","id":"5","data":` + value + `}`, []byte(value), ""},
	} {
		r.publish(c.attributes, []byte(c.data))
		r.inState(c.key, "ep", webhook.DeliveryDelivered)
		got := hook.verified(t, c.key, secret, c.body)
		if len(got) != 1 {
			t.Fatalf("%s: the endpoint was called %d times", c.name, len(got))
		}
		if _, ct := opened(t, c.key, got[0]); ct != c.contentType {
			t.Errorf("%s: content type %q in %.200q, want %q", c.name, ct, got[0].body, c.contentType)
		}
		if row := r.event(c.key); row.BodyHash != sha256.Sum256(c.body) || row.Type != "invoice.paid" {
			t.Errorf("%s: stored as %+v", c.name, row)
		}
	}
	r.consistent("ep")
}

// Without an id the message's own serves.
func TestPublishedWithoutID(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	hook := newCustomer(t, nil)
	secret := r.endpoint("ep", hook.url, nil)
	id := r.publish(map[string]string{"ce-type": "a.b"}, []byte("x"))
	r.inState(app(id), "ep", webhook.DeliveryDelivered)
	hook.verified(t, app(id), secret, []byte("x"))
}

// One event, however often and however fast it is posted.
func TestPostedFiftyTimesAtOnce(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	a, b := newCustomer(t, nil), newCustomer(t, nil)
	r.endpoint("a", a.url, func(ep *webhook.Endpoint) { ep.EventTypes = []string{"invoice.*", "invoice.paid", "*"} })
	r.endpoint("b", b.url, nil)
	c := signed(t, r.source("stripe"), "1")
	const posts = 50
	together := make(chan struct{})
	var g errgroup.Group
	for range posts {
		g.Go(func() error {
			<-together
			code, _, err := post(t.Context(), c.url, c.header, c.body)
			if err == nil && code/100 != 2 {
				err = fmt.Errorf("the receiver answered %d", code)
			}
			return err
		})
	}
	close(together)
	must(t, g.Wait())
	eventually(t, func() error {
		row, err := r.Store.Event(t.Context(), webhook.DefaultTenant, c.key)
		if err == nil && row.Duplicates != posts-1 {
			err = fmt.Errorf("%d duplicates are counted, want %d", row.Duplicates, posts-1)
		}
		return err
	})
	r.inState(c.key, "a", webhook.DeliveryDelivered)
	r.inState(c.key, "b", webhook.DeliveryDelivered)
	r.drained()
	if n := len(r.events()); n != 1 {
		t.Errorf("%d events", n)
	}
	if ds := r.deliveries(); len(ds) != 2 {
		t.Errorf("deliveries %+v", ds)
	}
	if na, nb := len(a.requests(c.key)), len(b.requests(webhook.EventKey{})); na != 1 || nb != 1 {
		t.Errorf("the endpoints were called %d and %d times", na, nb)
	}
	r.consistent("a", "b")
}

// drained waits until no queue holds a task.
func (r *rig) drained() {
	r.t.Helper()
	queues := append([]string{}, r.queues...)
	for pool := range strings.SplitSeq(r.Env()["POOL_QUEUES"], ",") {
		queues = append(queues, pool)
	}
	eventually(r.t, func() error {
		for _, q := range queues {
			if n, err := r.Queue.Depth(r.t.Context(), q, 10); err != nil || n > 0 {
				return fmt.Errorf("queue %s holds %d tasks: %w", q, n, err)
			}
		}
		return nil
	})
}

// Many events in the same moment, with the same bytes, through several receivers and
// workers: each is itself. One more of them again is still one.
func TestCrowd(t *testing.T) {
	t.Parallel()
	events := 1000
	if testing.Short() {
		events = 200
	}
	r := start(t, system.Options{Pull: true})
	hook := newCustomer(t, nil)
	r.endpoint("ep", hook.url, nil)
	eventually(t, func() error { // its own queue is the faster one
		ep, err := r.Store.Endpoint(t.Context(), webhook.DefaultTenant, "ep")
		if err == nil && ep.QueueReadyAt.IsZero() {
			err = errNotYet
		}
		return err
	})
	src := r.source("generic-hmac")
	receivers := []string{r.URLs[system.Receiver]}
	for range 2 {
		receivers = append(receivers, r.serve(system.Receiver, r.receiverEnv(src)).url)
		r.serve(system.Worker, map[string]string{"MODE": "pull"})
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	defer client.CloseIdleConnections()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(90)
	same := signed(t, src, "0")
	for i := range events {
		g.Go(func() error {
			h := same.header.Clone()
			h.Set("X-Event-Id", fmt.Sprint(i))
			return accept(ctx, client, receivers[i%len(receivers)]+"/in/"+src.Name, h, same.body)
		})
	}
	for _, receiver := range receivers { // one event at three replicas
		g.Go(func() error { return accept(ctx, client, receiver+"/in/"+src.Name, same.header, same.body) })
	}
	must(t, g.Wait())
	events++
	eventually(t, func() error {
		delivered := 0
		for _, d := range r.deliveries() {
			if d.State == webhook.DeliveryDelivered {
				delivered++
			}
		}
		if delivered != events {
			return fmt.Errorf("%d of %d are delivered", delivered, events)
		}
		return nil
	})
	r.drained()
	if n := len(r.events()); n != events {
		t.Errorf("%d events, want %d", n, events)
	}
	calls := map[string]int{}
	for _, q := range hook.requests(webhook.EventKey{}) {
		if !bytes.Equal(q.body, same.body) {
			t.Errorf("the endpoint saw %q", q.body)
		}
		calls[q.header.Get("Webhook-Id")]++
	}
	if len(calls) != events {
		t.Errorf("the endpoint saw %d events, want %d", len(calls), events)
	}
	maps.DeleteFunc(calls, func(_ string, n int) bool { return n == 1 })
	if len(calls) > 0 {
		t.Errorf("called more than once: %v", calls)
	}
	if due, err := r.Store.Overdue(t.Context(), time.Now().Add(time.Hour), 10); err != nil || len(due) > 0 {
		t.Errorf("still scheduled: %v, %v", due, err)
	}
}

func accept(ctx context.Context, client *http.Client, url string, header http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = header.Clone()
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered %s", res.Status)
	}
	return nil
}
