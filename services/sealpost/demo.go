package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// demoWithin bounds one event's whole way.
const demoWithin = 30 * time.Second

// demo sends one event each way to a sample endpoint and shows what became of it.
func (c *cli) demo(ctx context.Context, sys *system.System) error {
	secret, err := signing.GenerateSecret(rand.Reader)
	if err != nil {
		return err
	}
	hook, err := newSampleEndpoint(secret)
	if err != nil {
		return err
	}
	defer hook.close()
	ep := webhook.Endpoint{
		Tenant: webhook.DefaultTenant, ID: "sample", URL: hook.url, Description: "sealpost dev's sample endpoint",
		EventTypes: []string{"customer.*", "invoice.*"}, State: webhook.EndpointActive,
		RatePerSecond: webhook.DefaultRatePerSecond, MaxConcurrency: webhook.DefaultMaxConcurrency, Timeout: webhook.DefaultTimeout,
	}
	ep.Queue = queueName()
	if queueErr, err := createEndpoint(ctx, sys.Store, sys.Sealer, sys.Queue, &ep, secret, "dev"); err != nil || queueErr != nil {
		return errors.Join(err, queueErr)
	}
	fmt.Fprintf(c.out, "A sample endpoint listens on %s for %s. It fails its first request, to show a retry.\n", ep.URL, strings.Join(ep.EventTypes, " and "))

	fmt.Fprintln(c.out, "\nIn: Stripe posts a signed customer.created")
	began := time.Now()
	inbound, err := c.postStripe(ctx, sys)
	if err != nil {
		return err
	}
	if err := c.follow(ctx, sys, hook, inbound, began); err != nil {
		return err
	}
	fmt.Fprintln(c.out, "\nOut: an application publishes invoice.paid")
	began = time.Now()
	published, err := publishSample(ctx, sys)
	if err != nil {
		return err
	}
	if err := c.follow(ctx, sys, hook, published, began); err != nil {
		return err
	}
	fmt.Fprintln(c.out, "\nBoth arrived. Ctrl-C stops everything; the sample endpoint answers until then.")
	select {
	case <-ctx.Done():
	case <-sys.Cloud.Done():
	}
	return nil
}

// postStripe is the sample provider.
func (c *cli) postStripe(ctx context.Context, sys *system.System) (webhook.EventKey, error) {
	var src system.Source
	for _, s := range sys.Sources {
		if s.Scheme == "stripe" {
			src = s
		}
	}
	id := "evt_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	now := time.Now()
	body := fmt.Appendf(nil, `{"id":%q,"object":"event","created":%d,"type":"customer.created","data":{"object":{"id":"cus_1","balance":0.0}}}`, id, now.Unix())
	mac := hmac.New(sha256.New, []byte(src.Secret))
	fmt.Fprintf(mac, "%d.%s", now.Unix(), body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, src.URL, bytes.NewReader(body))
	if err != nil {
		return webhook.EventKey{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", now.Unix(), hex.EncodeToString(mac.Sum(nil))))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return webhook.EventKey{}, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return webhook.EventKey{}, fmt.Errorf("the receiver answered %s", res.Status)
	}
	fmt.Fprintf(c.out, "  %7s  the receiver verified it, Pub/Sub has it, the receiver answered %s\n", since(now), res.Status)
	return webhook.KeyOf(src.Name, webhook.DefaultTenant, id), nil
}

func publishSample(ctx context.Context, sys *system.System) (webhook.EventKey, error) {
	p, err := bus.NewPublisher(ctx, sys.Cloud.Project(), system.EventsTopic, bus.PublisherOptions{})
	if err != nil {
		return webhook.EventKey{}, err
	}
	defer p.Close(ctx)
	m := bus.EventMessage{ID: uuid.Must(uuid.NewV7()).String(), Type: "invoice.paid", Tenant: webhook.DefaultTenant, ContentType: "application/json", Data: []byte(`{"invoice":"in_1","amount":1999}`)}
	if _, err := p.PublishEvent(ctx, m); err != nil {
		return webhook.EventKey{}, err
	}
	return webhook.KeyOf(bus.EventSource(""), m.Tenant, m.ID), nil
}

// follow waits until the event is delivered and shows its attempts.
func (c *cli) follow(ctx context.Context, sys *system.System, hook *sampleEndpoint, k webhook.EventKey, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, demoWithin)
	defer cancel()
	stored := false
	for shown := 0; ; {
		d, attempts, err := sys.Store.Delivery(ctx, webhook.DefaultTenant, k, "sample")
		if err == nil && !stored {
			stored = true
			fmt.Fprintf(c.out, "  %7s  the worker stored %s and scheduled its delivery\n", since(began), k)
		}
		for _, a := range attempts[min(shown, len(attempts)):] {
			fmt.Fprintf(c.out, "  %7s  attempt %d: %s; the endpoint says: %s\n", since(began), a.Key.Attempt, lastAnswer(string(a.Outcome.Class), a.Outcome.Status), hook.said(k.ID(), int(a.Key.Attempt)))
		}
		if d.State == webhook.DeliveryScheduled && shown < len(attempts) {
			fmt.Fprintf(c.out, "           attempt %d follows in %.1f s\n", d.Attempt, time.Until(d.NextAttemptAt).Seconds())
		}
		shown = max(shown, len(attempts))
		if err == nil && d.State != webhook.DeliveryScheduled {
			fmt.Fprintf(c.out, "  %7s  %s\n", since(began), d.State)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not delivered: %w", k, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func since(t time.Time) string { return fmt.Sprintf("%.0f ms", time.Since(t).Seconds()*1000) }

// sampleEndpoint is a customer's receiver as it should be: it verifies each
// request by the Standard Webhooks scheme before it believes it.
type sampleEndpoint struct {
	url string
	srv *http.Server
	v   provider.Verifier
	key []provider.Secret

	mu    sync.Mutex
	seen  map[string][]string // webhook-id → what was said at each request
	first bool
}

func newSampleEndpoint(secret signing.Secret) (*sampleEndpoint, error) {
	v, err := provider.New("standard-webhooks", provider.Options{})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &sampleEndpoint{url: "http://" + l.Addr().String() + "/hook", v: v, seen: map[string][]string{},
		key: []provider.Secret{provider.NewSecret("sample", 1, []byte(secret.Reveal()))}, first: true}
	e.srv = &http.Server{Handler: e, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = e.srv.Serve(l) }() // ends with close
	return e, nil
}

func (e *sampleEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 32<<20))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, err = e.v.Verify(provider.Request{Method: r.Method, Header: r.Header, Body: body, Query: r.URL.Query()}, e.key, time.Now())
	e.mu.Lock()
	defer e.mu.Unlock()
	status, said := http.StatusOK, fmt.Sprintf("signature good, %d bytes", len(body))
	switch {
	case err != nil:
		status, said = http.StatusUnauthorized, "signature bad"
	case e.first:
		e.first = false
		status, said = http.StatusServiceUnavailable, said+", but busy"
	}
	id := r.Header.Get("Webhook-Id")
	e.seen[id] = append(e.seen[id], said)
	w.WriteHeader(status)
}

// said is what the endpoint made of the nth request with the id.
func (e *sampleEndpoint) said(id string, n int) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if all := e.seen[id]; n <= len(all) {
		return all[n-1]
	}
	return "nothing"
}

func (e *sampleEndpoint) close() { _ = e.srv.Close() }
