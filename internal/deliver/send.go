package deliver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// ExcerptLimit is how much of an answer's body is read and kept. The rest is not
// read: the connection is closed.
const ExcerptLimit = 16 << 10

// Faults of ours, on which the customer's attempts are not spent.
var (
	// errNoEgress: this instance has not reached the outside yet; nor can others'
	// tasks on it.
	errNoEgress = errors.New("no way out of this instance yet")
	// errNotSent: this one request could not be made.
	errNotSent = errors.New("the request could not be made")
	// errLeased: another run of this task, or of an earlier one, is at it.
	errLeased = errors.New("another run of this ordered delivery is under way")
	// errNoMemory: the bodies under way fill the budget; waiting helps.
	errNoMemory = errors.New("no memory for the body now")
)

// memoryWait is how long an attempt waits for the memory of its body.
const memoryWait = 30 * time.Second

// send makes the request and says what the endpoint did. An error is ours.
func (d *Dispatcher) send(ctx context.Context, c *store.Claim) (webhook.Attempt, error) {
	keys, ids, err := d.keys(c)
	if err != nil {
		return webhook.Attempt{}, err
	}
	a := webhook.Attempt{
		Key:       c.Delivery.Key(),
		Trigger:   c.Delivery.Trigger,
		StartedAt: d.o.Now(),
		URL:       safedial.MaskURL(c.Endpoint.URL),
		KeyIDs:    ids,
	}
	timeout := c.Endpoint.Timeout
	if timeout <= 0 {
		timeout = webhook.DefaultTimeout
	}
	// One deadline over connect, TLS, request, headers and body.
	sendCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	sendCtx, trace := safedial.WithTrace(sendCtx)

	req, err := request(sendCtx, c, d.o.Version)
	if err == nil {
		if err := signing.SetHeaders(req.Header, c.Event.Key.ID(), a.StartedAt, c.Event.Body, keys...); err != nil {
			return a, err
		}
		err = d.exchange(req, &a)
	}
	a.Duration = d.o.Now().Sub(a.StartedAt)
	seen := trace.Snapshot()
	a.WroteRequest = seen.WroteRequest
	if seen.RemoteAddr.IsValid() {
		a.RemoteAddr = seen.RemoteAddr.String()
	}
	if err != nil {
		class, ours := classify(err, seen.WroteRequest)
		switch {
		case ours:
			return a, fmt.Errorf("%w: %w", errNotSent, err)
		case unreachable(class) && !d.egressOpen():
			return a, fmt.Errorf("%w: %w", errNoEgress, err)
		}
		a.Outcome.Class, a.Error = class, err.Error()
	}
	return a, nil
}

// exchange sends the request and reads the answer's status, headers and the start
// of its body. Once there is a status it says it all, whatever becomes of the body:
// an endpoint that has said 2xx has taken the event.
func (d *Dispatcher) exchange(req *http.Request, a *webhook.Attempt) error {
	res, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	a.Outcome.Status = res.StatusCode
	a.Outcome.Class = webhook.ClassStatus
	if res.StatusCode >= 200 && res.StatusCode <= 299 {
		a.Outcome.Class = webhook.ClassOK
	}
	a.Outcome.RetryAfter = webhook.ParseRetryAfter(res.Header.Values("Retry-After"), d.o.Now())
	a.Excerpt, a.Truncated, err = safedial.ReadExcerpt(res.Body, ExcerptLimit)
	if err != nil {
		a.Error = "the answer's body: " + err.Error()
	}
	if a.Outcome.Class == webhook.ClassStatus {
		a.Error = strings.TrimSpace("answered " + strconv.Itoa(res.StatusCode) + " " + http.StatusText(res.StatusCode)) // not in its words
	}
	return nil
}

// request builds the request but for its signature. An error is the endpoint's:
// its URL is none.
func request(ctx context.Context, c *store.Claim, version string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Endpoint.URL, bytes.NewReader(c.Event.Body))
	if err != nil {
		return nil, &safedial.BlockedError{Reason: safedial.InvalidURL}
	}
	contentType := c.Event.ContentType
	if contentType == "" {
		contentType = "application/json"
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "Sealpost/"+version)
	req.Header.Set("X-Sealpost-Attempt", strconv.FormatInt(c.Delivery.Attempt, 10))
	req.Header.Set("X-Sealpost-Event-Type", c.Event.Type)
	return req, nil
}

// keys opens the endpoint's valid signing keys, newest first. That none opens is
// our fault, never the endpoint's.
func (d *Dispatcher) keys(c *store.Claim) ([]signing.Secret, []string, error) {
	var keys []signing.Secret
	var ids []string
	for _, k := range c.Keys {
		plain, err := d.o.Sealer.Open(k.Sealed, k.SealedBy, k.Tenant, k.Endpoint)
		if err != nil {
			return nil, nil, err
		}
		s, err := signing.ParseSecret(string(plain))
		if err != nil {
			return nil, nil, fmt.Errorf("key %s: %w", k.ID, err)
		}
		keys, ids = append(keys, s), append(ids, k.ID)
	}
	if len(keys) == 0 {
		return nil, nil, errors.New("the endpoint has no valid signing key")
	}
	return keys, ids, nil
}

// classify names how a failed exchange ended, or says that the fault is ours. A
// timeout or reset after the request was fully written, with no answer seen, is
// ambiguous: the endpoint may have acted.
func classify(err error, wrote bool) (class webhook.Class, ours bool) {
	kind := safedial.Classify(err)
	switch {
	case kind == safedial.KindBusy || kind == safedial.KindCanceled || kind == safedial.KindOther:
		return "", true
	case wrote && (kind == safedial.KindTimeout || kind == safedial.KindReset):
		return webhook.ClassAmbiguous, false
	}
	switch kind {
	case safedial.KindBlocked:
		return webhook.ClassBlocked, false
	case safedial.KindDNS:
		return webhook.ClassDNS, false
	case safedial.KindConnect:
		return webhook.ClassConnect, false
	case safedial.KindTLS:
		return webhook.ClassTLS, false
	case safedial.KindTimeout:
		return webhook.ClassTimeout, false
	case safedial.KindBody, safedial.KindProtocol:
		return webhook.ClassBody, false
	}
	return webhook.ClassReset, false
}

// unreachable reports whether the class could as well mean that this instance's
// own network is not up.
func unreachable(c webhook.Class) bool {
	return c == webhook.ClassDNS || c == webhook.ClassConnect || c == webhook.ClassTimeout
}

// egressOpen reports whether this instance has ever reached the outside, or need
// not have.
func (d *Dispatcher) egressOpen() bool { return d.o.ProbeURL == "" || d.client.Reached() }

// Ready reports whether the way out is open, and tries to open it where it is
// not: the startup probe calls it.
func (d *Dispatcher) Ready(ctx context.Context) error {
	if d.egressOpen() {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, d.o.ProbeURL, nil)
	if err != nil {
		return fmt.Errorf("egress probe: %w", err)
	}
	res, err := d.client.Do(req)
	if err != nil {
		return fmt.Errorf("egress probe: %w", err)
	}
	return res.Body.Close()
}
