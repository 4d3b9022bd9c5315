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
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// ExcerptLimit is how much of an answer's body is read and kept. The rest is not
// read: the connection is closed.
const ExcerptLimit = 16 << 10

// Faults of ours, on which the customer's attempts are not spent.
var (
	// errNoEgress: this instance has not reached the outside yet, or its proxy is away;
	// nor can others' tasks on it.
	errNoEgress = errors.New("no way out of this instance now")
	// errNotSent: this one request could not be made.
	errNotSent = errors.New("the request could not be made")
	// errLeased: another run of this task, or of an earlier one, is at it.
	errLeased = errors.New("another run of this ordered delivery is under way")
	// errNoMemory: the bodies under way fill the budget; waiting helps.
	errNoMemory = errors.New("no memory for the body now")
)

// memoryWait is how long an attempt waits for the memory of its body.
const memoryWait = 30 * time.Second

// settingError is a fault in what the endpoint is configured to be sent: nothing is
// sent, and the attempt is the endpoint's. What is saved has been validated; this is
// for what was not, or has become invalid since.
type settingError struct{ err error }

func (e *settingError) Error() string { return e.err.Error() }
func (e *settingError) Unwrap() error { return e.err }

// sender makes one attempt: body, signatures, authentication, exchange. It knows
// nothing of what becomes of the attempt.
type sender struct {
	o      Options
	client *safedial.Client
	tokens *tokenCache
	certs  *certClients
}

func newSender(o Options) *sender {
	return newSenderOver(o, safedial.NewClient(o.Policy, clientOptions(o)))
}

func clientOptions(o Options) safedial.ClientOptions {
	// No attempt may wait, on its own deadline, for a connection that others hold: the
	// queues bound what runs at once.
	return safedial.ClientOptions{Timeout: webhook.MaxTimeout + time.Second, Proxy: o.Proxy, MaxConnsPerHost: maxConns, MaxConns: maxConns}
}

func newSenderOver(o Options, client *safedial.Client) *sender {
	s := &sender{o: o, client: client}
	s.tokens = newTokenCache(s.client, o.Now, userAgent(o.Version))
	s.certs = newCertClients(s.client)
	return s
}

func userAgent(version string) string { return "Sealpost/" + version }

// outgoing is a request that is ready to be sent, and what must be known of it
// afterwards.
type outgoing struct {
	req  *http.Request
	body Body
	auth authorization
	// secret are byte strings that must not appear in what is kept of the answer.
	secret [][]byte
}

// send makes the request and says what the endpoint did. An error is ours.
func (s *sender) send(ctx context.Context, c *store.Claim) (webhook.Attempt, error) {
	if topic, ok := c.Endpoint.Topic(); ok {
		return s.publish(ctx, c, topic)
	}
	a := s.begin(c)
	keys, err := s.keys(c)
	if err != nil {
		return a, err
	}
	a.KeyIDs = keys.ids
	out, err := s.prepare(c, keys, a.StartedAt)
	if err != nil {
		return s.notSent(a, err)
	}
	// One deadline over token, connect, TLS, request, headers and body; what was ours
	// to do is done.
	ctx, cancel := context.WithTimeout(ctx, timeout(&c.Endpoint))
	defer cancel()
	if err := s.authenticate(ctx, &c.Endpoint, out); err != nil {
		return s.notSent(a, err)
	}
	sendCtx, trace := safedial.WithTrace(ctx)
	out.req = out.req.WithContext(sendCtx)
	answer, err := s.exchange(out, &a)
	a.Duration = s.o.Now().Sub(a.StartedAt)
	seen := trace.Snapshot()
	a.WroteRequest = seen.WroteRequest
	if seen.RemoteAddr.IsValid() {
		a.RemoteAddr = seen.RemoteAddr.String()
	}
	if err != nil {
		if a, err = s.failed(a, err, seen.WroteRequest); err != nil {
			return a, err
		}
	}
	if a.Trigger == webhook.TriggerTest {
		a.Exchange = exchangeOf(out, answer, &a, seen, c.Endpoint.Headers)
	}
	return a, nil
}

// begin is the attempt that a claim is for, before anything is done.
func (s *sender) begin(c *store.Claim) webhook.Attempt {
	return webhook.Attempt{Key: c.Delivery.Key(), Trigger: c.Delivery.Trigger, StartedAt: s.o.Now(), URL: safedial.MaskURL(c.Endpoint.URL)}
}

func timeout(ep *webhook.Endpoint) time.Duration {
	if ep.Timeout <= 0 {
		return webhook.DefaultTimeout
	}
	return ep.Timeout
}

// notSent is an attempt whose request could not be made ready: the endpoint's where
// its settings or its token endpoint are at fault, else ours.
func (s *sender) notSent(a webhook.Attempt, err error) (webhook.Attempt, error) {
	a.Duration = s.o.Now().Sub(a.StartedAt)
	if fault, ok := errors.AsType[*settingError](err); ok {
		a.Outcome.Class, a.Error = webhook.ClassBlocked, fault.Error()
		return a, nil
	}
	if fault, ok := errors.AsType[*tokenError](err); ok {
		if fault.cause != nil {
			failed, err := s.failed(a, fault.cause, false)
			failed.Error = fault.Error()
			return failed, err
		}
		a.Outcome.Class, a.Error = webhook.ClassBlocked, fault.Error()
		return a, nil
	}
	return a, err
}

// failed notes how an exchange ended that gave no answer, unless that is ours.
func (s *sender) failed(a webhook.Attempt, err error, wrote bool) (webhook.Attempt, error) {
	class, ours := classify(err, wrote)
	switch {
	case safedial.Classify(err) == safedial.KindProxy:
		return a, fmt.Errorf("%w: %w", errNoEgress, err)
	case ours:
		return a, fmt.Errorf("%w: %w", errNotSent, err)
	case unreachable(class) && !s.egressOpen():
		return a, fmt.Errorf("%w: %w", errNoEgress, err)
	}
	a.Outcome.Class, a.Error = class, err.Error()
	return a, nil
}

// exchange sends the request and reads the answer's status, headers and the start
// of its body. Once there is a status it says it all, whatever becomes of the body:
// an endpoint that has said 2xx has taken the event.
func (s *sender) exchange(out *outgoing, a *webhook.Attempt) (*http.Response, error) {
	res, err := out.auth.client.Do(out.req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	a.Outcome.Status = res.StatusCode
	a.Outcome.Class = webhook.ClassStatus
	if res.StatusCode >= 200 && res.StatusCode <= 299 {
		a.Outcome.Class = webhook.ClassOK
	}
	if res.StatusCode == http.StatusUnauthorized {
		s.tokens.refused(out.auth.token)
	}
	a.Outcome.RetryAfter = webhook.ParseRetryAfter(res.Header.Values("Retry-After"), s.o.Now())
	a.Excerpt, a.Truncated, err = excerpt(res, out.secret)
	if err != nil {
		a.Error = "the answer's body: " + err.Error()
	}
	if a.Outcome.Class == webhook.ClassStatus {
		a.Error = strings.TrimSpace("answered " + strconv.Itoa(res.StatusCode) + " " + http.StatusText(res.StatusCode)) // not in its words
	}
	return res, nil
}

// excerpt is the start of an answer's body. Endpoints echo what they were sent: our
// credentials are masked in it, also one that its end cuts.
func excerpt(res *http.Response, secret [][]byte) (b []byte, truncated bool, err error) {
	b, truncated, err = safedial.ReadExcerpt(res.Body, ExcerptLimit)
	return mask(b, secret), truncated, err
}

// mask puts a fixed text in the place of every secret, and of the beginning of one at
// the end of b.
func mask(b []byte, secret [][]byte) []byte {
	for _, s := range secret {
		if bytes.Contains(b, s) {
			b = bytes.ReplaceAll(b, s, []byte(webhook.Masked))
		}
		for n := min(len(s)-1, len(b)); n >= minHidden; n-- {
			if bytes.HasSuffix(b, s[:n]) {
				b = append(bytes.Clone(b[:len(b)-n]), webhook.Masked...)
				break
			}
		}
	}
	return b
}

// prepare makes the request but for its authentication: body, headers and signatures.
// A *settingError is the endpoint's, any other ours.
func (s *sender) prepare(c *store.Claim, keys signingKeys, at time.Time) (*outgoing, error) {
	body, err := MakeBody(c.Endpoint.PayloadMode, &c.Event, s.o.ConsoleURL)
	if err != nil {
		return nil, &settingError{err}
	}
	c.Event.Body = nil // where body is another, this one's memory is wanted
	req, err := request(c, body, s.o.Version)
	if err != nil {
		return nil, err
	}
	if err := sign(req.Header, c, body, keys, at); err != nil {
		return nil, err
	}
	return &outgoing{req: req, body: body}, nil
}

// authenticate completes the request, and notes what its answer must not be kept with. A *settingError or *tokenError is the
// endpoint's, any other ours.
func (s *sender) authenticate(ctx context.Context, ep *webhook.Endpoint, out *outgoing) (err error) {
	if out.auth, err = s.authorize(ctx, ep); err != nil {
		return err
	}
	if out.auth.header != "" {
		out.req.Header.Set("Authorization", out.auth.header)
	}
	out.auth.hide = append(out.auth.hide, embedded(ep)...)
	out.secret = out.auth.secrets()
	return nil
}

// request builds the request but for signatures and authentication.
func request(c *store.Claim, body Body, version string) (*http.Request, error) {
	// A bytes.Reader can be read again: on a connection that the endpoint closes before
	// it has taken the request, the whole body is sent anew.
	req, err := http.NewRequest(http.MethodPost, c.Endpoint.URL, bytes.NewReader(body.Bytes))
	if err != nil {
		return nil, &settingError{&safedial.BlockedError{Reason: safedial.InvalidURL}}
	}
	if err := c.Endpoint.ValidHeaders(); err != nil {
		return nil, &settingError{err}
	}
	for _, h := range c.Endpoint.Headers {
		req.Header.Set(h.Name, h.Value)
	}
	req.Header.Set("Content-Type", sendable(body.ContentType))
	req.Header.Set("User-Agent", userAgent(version))
	req.Header.Set("X-Sealpost-Attempt", strconv.FormatInt(c.Delivery.Attempt, 10))
	req.Header.Set("X-Sealpost-Event-Type", sendable(c.Event.Type))
	if v := c.Endpoint.APIVersion; v != "" {
		req.Header.Set("X-Sealpost-Api-Version", sendable(v))
	}
	return req, nil
}

// sendable makes a header value that HTTP carries everywhere of text that may be any:
// bytes beyond visible ASCII and spaces become question marks. A provider's odd
// content type must not make an event undeliverable.
func sendable(s string) string {
	b := []byte(strings.TrimSpace(s))
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b)
}

// sign sets the headers of Standard Webhooks and those of the endpoint's templates.
func sign(h http.Header, c *store.Claim, body Body, keys signingKeys, at time.Time) error {
	id := c.Event.Key.ID()
	if err := signing.SetHeaders(h, id, at, body.Bytes, keys.standard...); err != nil {
		return err
	}
	for _, l := range c.Endpoint.Legacy {
		t, err := signing.ParseTemplate(l.Template)
		if err != nil {
			return &settingError{fmt.Errorf("signature header %s: %w", l.Header, err)}
		}
		if len(keys.legacy) == 0 {
			return &settingError{fmt.Errorf("signature header %s: the endpoint has no valid key of kind v1 or legacy", l.Header)}
		}
		if err := t.SetHeader(h, l.Header, id, at, body.Bytes, keys.legacy...); err != nil {
			return err
		}
	}
	return nil
}

// signingKeys are an endpoint's valid keys, newest first.
type signingKeys struct {
	standard []signing.Key    // v1 and v1a
	legacy   []signing.MACKey // for templates: the legacy texts, or without any the v1 secrets
	ids      []string
}

// keys opens the endpoint's valid signing keys. That none opens is our fault, never
// the endpoint's.
func (s *sender) keys(c *store.Claim) (signingKeys, error) {
	var out signingKeys
	var secrets []signing.MACKey
	for _, k := range c.Keys {
		plain, err := s.o.Sealer.Open(k.Sealed, k.SealedBy, k.Tenant, k.Endpoint)
		if err != nil {
			return out, err
		}
		switch k.Kind {
		case "v1":
			var key signing.Secret
			if key, err = signing.ParseSecret(string(plain)); err == nil {
				out.standard, secrets = append(out.standard, key), append(secrets, key)
			}
		case "v1a":
			var key signing.PrivateKey
			if key, err = signing.ParsePrivateKey(string(plain)); err == nil {
				out.standard = append(out.standard, key)
			}
		case "legacy":
			var key signing.LegacySecret
			if key, err = signing.ParseLegacySecret(string(plain)); err == nil {
				out.legacy = append(out.legacy, key)
			}
		default:
			err = fmt.Errorf("its kind %q is unknown", k.Kind)
		}
		if err != nil {
			return out, fmt.Errorf("key %s: %w", k.ID, err)
		}
		out.ids = append(out.ids, k.ID)
	}
	if len(out.standard) == 0 {
		return out, errors.New("the endpoint has no valid signing key")
	}
	if len(out.legacy) == 0 {
		out.legacy = secrets
	}
	return out, nil
}

// classify names how a failed exchange ended, or says that the fault is ours. A
// timeout or reset after the request was fully written, with no answer seen, is
// ambiguous: the endpoint may have acted.
func classify(err error, wrote bool) (class webhook.Class, ours bool) {
	kind := safedial.Classify(err)
	switch {
	case kind == safedial.KindBusy || kind == safedial.KindCanceled || kind == safedial.KindProxy || kind == safedial.KindOther:
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
func (s *sender) egressOpen() bool { return s.o.ProbeURL == "" || s.client.Reached() }

// Ready reports whether the way out is open, and tries to open it where it is
// not: the startup probe calls it.
func (d *Dispatcher) Ready(ctx context.Context) error { return d.sender.ready(ctx) }

func (s *sender) ready(ctx context.Context) error {
	if s.egressOpen() {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, s.o.ProbeURL, nil)
	if err != nil {
		return fmt.Errorf("egress probe: %w", err)
	}
	res, err := s.client.Do(req)
	if err != nil {
		return fmt.Errorf("egress probe: %w", err)
	}
	return res.Body.Close()
}

// credentials opens what the endpoint is authenticated to with; the zero value where
// that is nothing. An error is ours.
func (s *sender) credentials(ep *webhook.Endpoint) (secrets.Credentials, error) {
	if ep.Auth.Kind == webhook.AuthNone {
		return secrets.Credentials{}, nil
	}
	return s.o.Sealer.OpenAuth(ep.Auth.Sealed, ep.Auth.SealedBy, ep.Tenant, ep.ID)
}
