package receive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Publisher makes events durable. Pub/Sub is one; `sealpost verify` has another.
type Publisher interface {
	// PublishInbound returns after the publish result: nil means durable. It must
	// honour ctx. An error with a method TooLarge() bool that says true means that
	// no retry can help.
	PublishInbound(ctx context.Context, ev webhook.Event, scheme string) error
	// PublishCounts makes one report durable.
	PublishCounts(ctx context.Context, counts []Count) error
}

// Defaults of [Config].
const (
	DefaultByteBudget  = 128 << 20
	DefaultReadTimeout = 10 * time.Second
)

// Config wires a receiver.
type Config struct {
	Sources   []Source // with their Keys resolved
	Publisher Publisher
	Logger    *slog.Logger     // slog.Default() if nil
	Now       func() time.Time // time.Now if nil
	// ByteBudget bounds the bytes held for bodies at any time; 0 means
	// [DefaultByteBudget]. It must hold the largest body of any source.
	ByteBudget int64
	// ReadTimeout bounds the arrival of one body; 0 means [DefaultReadTimeout].
	ReadTimeout time.Duration
	// Reporter names this instance in counts; a UUID if empty.
	Reporter string
	// Fetch gets a provider's certificate or key set by an https URL whose host is
	// pinned ([provider.Scheme.Fetch]). It must honour ctx, follow no redirect and
	// bound what it reads. Results are kept. nil: a source whose keys would have to be
	// fetched stops the start.
	Fetch func(ctx context.Context, url string) ([]byte, error)
	// Confirm visits the URL that confirms an SNS subscription, under the same rules.
	// nil: no subscription is confirmed; SNS is asked to try again.
	Confirm func(ctx context.Context, url string) error
	// NewReceipt gives the id of one accepted request; a UUIDv7 if nil.
	NewReceipt func() string

	observe func(*outcome) // sees every request of a known source, for VerifyRequests
}

// Receiver serves every configured source. It keeps no state about events.
type Receiver struct {
	sources     map[string]*source
	publisher   Publisher
	log         *slog.Logger
	now         func() time.Time
	budget      budget
	readTimeout time.Duration
	newReceipt  func() string
	observe     func(*outcome)
	counts      counts
	confirm     func(ctx context.Context, url string) error
	keys        *keyring // nil if there is nothing to fetch with
}

// source is a [Source] ready for use.
type source struct {
	Source
	scheme  *provider.Scheme
	methods []string
	allow   string // the Allow header
}

// New makes a receiver, or reports everything that is wrong with the sources: a
// source that could accept nothing, or everything, stops the start.
func New(c Config) (*Receiver, error) {
	rc := &Receiver{
		sources:     map[string]*source{},
		publisher:   c.Publisher,
		log:         c.Logger,
		now:         c.Now,
		readTimeout: c.ReadTimeout,
		newReceipt:  c.NewReceipt,
		observe:     c.observe,
		confirm:     c.Confirm,
	}
	if c.Fetch != nil {
		rc.keys = newKeyring(c.Fetch)
	}
	rc.budget.max = c.ByteBudget
	rc.counts.reporter = c.Reporter
	rc.defaults()
	if c.Publisher == nil {
		return nil, errors.New("receiver: no publisher")
	}
	if err := checkSources(c.Sources, rc.unusable); err != nil {
		return nil, err
	}
	for _, s := range c.Sources {
		scheme, err := s.verifier()
		if err != nil {
			return nil, fmt.Errorf("source %q: %w", s.ID, err)
		}
		s.Tenant = or(s.Tenant, webhook.DefaultTenant)
		s.BodyLimit = or(s.BodyLimit, DefaultBodyLimit)
		s.PublishDeadline = or(s.PublishDeadline, DefaultPublishDeadline)
		s.Keys = slices.Clone(s.Keys)
		rc.sources[s.ID] = &source{s, scheme, scheme.Methods(), strings.Join(scheme.Methods(), ", ")}
	}
	return rc, nil
}

func (rc *Receiver) defaults() {
	if rc.log == nil {
		rc.log = slog.Default()
	}
	if rc.now == nil {
		rc.now = time.Now
	}
	if rc.newReceipt == nil {
		rc.newReceipt = func() string { return uuid.Must(uuid.NewV7()).String() }
	}
	rc.budget.max = or(rc.budget.max, DefaultByteBudget)
	rc.readTimeout = or(rc.readTimeout, DefaultReadTimeout)
	if rc.counts.reporter == "" {
		rc.counts.reporter = uuid.NewString()
	}
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// unusable reports what only shows with secrets and limits at hand.
func (rc *Receiver) unusable(s *Source) []error {
	var out []error
	if limit := or(s.BodyLimit, DefaultBodyLimit); limit > rc.budget.max-rc.budget.max/8 {
		out = append(out, fmt.Errorf("body_limit: %d bytes do not fit the instance's byte budget of %d", limit, rc.budget.max))
	}
	v, err := s.verifier()
	if err != nil {
		return out // reported already
	}
	switch {
	case len(s.Keys) == 0 && v.NeedsSecret():
		out = append(out, errors.New("secrets: none was read"))
	case len(s.Keys) == 0 && rc.keys == nil:
		out = append(out, errors.New("secrets: none was read, and this receiver cannot fetch the provider's keys"))
	}
	for _, k := range s.Keys {
		if err := v.CheckSecret(k); err != nil {
			out = append(out, fmt.Errorf("secrets: %w", err))
		}
	}
	return out
}

// Routes serves /in/{source} and answers 404 to everything else.
func (rc *Receiver) Routes() http.Handler { return http.HandlerFunc(rc.serve) }

// outcome is what became of one request, as it is logged.
type outcome struct {
	source   *source
	start    time.Time
	request  provider.Request
	event    webhook.Event
	secret   string
	*refusal       // nil if the event was published or a handshake answered
	shaken   bool  // a handshake was answered
	err      error // ours
}

func (rc *Receiver) serve(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/in/")
	src := rc.sources[name]
	if !ok || src == nil {
		answer(w, http.StatusNotFound, r.ContentLength != 0, "")
		return
	}
	o := &outcome{source: src, start: rc.now()}
	if !slices.Contains(src.methods, r.Method) {
		w.Header().Set("Allow", src.allow)
		o.refusal = refused(reasonWrongMethod, "the provider uses %s", src.allow)
		rc.conclude(r.Context(), w, o, r.ContentLength != 0)
		return
	}
	body := reader{budget: &rc.budget, limit: src.BodyLimit}
	defer func() { rc.budget.give(body.held) }()
	if o.refusal = body.read(w, r, rc.readTimeout); o.refusal != nil {
		rc.conclude(r.Context(), w, o, true)
		return
	}
	id := rc.accept(r, o, body.buf)
	if o.shaken {
		rc.record(r.Context(), o, id.Response.Status)
		shake(w, id.Response)
		return
	}
	rc.conclude(r.Context(), w, o, false)
}

// accept is the story of a request whose body is here: verify, identify, filter,
// publish.
func (rc *Receiver) accept(r *http.Request, o *outcome, body []byte) provider.Identity {
	src := o.source
	o.request = provider.Request{Method: r.Method, Header: r.Header, URL: src.PublicURL, Body: body}
	if r.URL.RawQuery != "" {
		o.request.URL += "?" + r.URL.RawQuery
		o.request.Query = r.URL.Query()
	}
	keys := src.Keys
	if len(keys) == 0 {
		if keys, o.refusal = rc.fetched(r.Context(), o); o.refusal != nil {
			return provider.Identity{}
		}
	}
	id, err := src.scheme.Verify(o.request, keys, o.start)
	if err != nil {
		o.refusal = unverified(err)
		return id
	}
	if id.Secret >= 0 {
		o.secret = keys[id.Secret].String()
	}
	if id.Confirm != "" {
		id.Response, o.refusal = rc.confirmed(r.Context(), o, id.Confirm)
	}
	if id.Response != nil || o.refusal != nil {
		o.shaken = o.refusal == nil
		return id
	}
	o.event = webhook.Event{
		Key:         webhook.KeyOf(src.ID, src.Tenant, id.ID),
		Tenant:      src.Tenant,
		Source:      src.ID,
		PublisherID: id.ID,
		Type:        id.Type,
		ContentType: r.Header.Get("Content-Type"),
		Headers:     id.Headers,
		Body:        body,
		OccurredAt:  id.OccurredAt,
		ReceivedAt:  o.start,
		Receipt:     rc.newReceipt(),
		UnsignedID:  id.UnsignedID,
	}
	o.event.RefuseReplay = id.UnsignedID && src.OnReplay == OnReplayRefuse
	if len(src.AllowTypes) > 0 && !webhook.MatchType(src.AllowTypes, id.Type) {
		o.refusal = refused(reasonUnwantedType, "type %q is not among allow_types", id.Type)
		return id
	}
	rc.publish(r.Context(), o)
	return id
}

func unverified(err error) *refusal {
	var r *provider.Refusal
	if !errors.As(err, &r) { // not reached: but never take a fault for a pass
		return refused(string(provider.Malformed), "%s", err)
	}
	return refused(string(r.Reason), "%s", r.Detail)
}

// publish waits for the result, at most as long as the source allows. A sender
// that hangs up meanwhile does not stop it: its retry would only be a duplicate.
func (rc *Receiver) publish(ctx context.Context, o *outcome) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.source.PublishDeadline)
	defer cancel()
	if o.err = rc.publisher.PublishInbound(ctx, o.event, o.source.Scheme); o.err == nil {
		return
	}
	var size interface{ TooLarge() bool }
	if errors.As(o.err, &size) && size.TooLarge() {
		o.refusal = refused(reasonTooLarge, "the message does not fit, compressed or not")
		return
	}
	o.refusal = refused(reasonPublishFailed, "not published within %s; the provider is asked to retry", o.source.PublishDeadline)
}

// conclude counts, logs and answers, in this order: after the answer an instance
// may have no CPU left to do it.
func (rc *Receiver) conclude(ctx context.Context, w http.ResponseWriter, o *outcome, unread bool) {
	status := http.StatusOK
	if o.refusal != nil {
		status = o.status()
		rc.counts.add(o.source.Tenant, o.source.ID, o.reason, o.start)
	}
	rc.record(ctx, o, status)
	answer(w, status, unread, o.source.scheme.Ack())
}

// record writes the request's one line. It holds no payload, no header value and
// no query string.
func (rc *Receiver) record(ctx context.Context, o *outcome, status int) {
	if rc.observe != nil {
		rc.observe(o)
	}
	level, message := slog.LevelInfo, "event accepted"
	attrs := make([]slog.Attr, 0, 16)
	attrs = append(attrs,
		slog.String("source", o.source.ID), slog.String("tenant", o.source.Tenant), slog.String("scheme", o.source.Scheme),
		slog.Int("status", status), slog.Int("bytes", len(o.request.Body)),
		slog.Float64("ms", float64(rc.now().Sub(o.start).Microseconds())/1000))
	if o.secret != "" {
		attrs = append(attrs, slog.String("secret", o.secret))
	}
	if o.event.Receipt != "" {
		attrs = append(attrs, slog.String("event", o.event.Key.ID()), slog.String("publisher_id", o.event.PublisherID),
			slog.String("type", o.event.Type), slog.String("receipt", o.event.Receipt))
	}
	switch {
	case o.shaken:
		message = "handshake answered"
	case o.refusal != nil:
		message = "request refused"
		attrs = append(attrs, slog.String("reason", o.reason), slog.String("detail", o.detail))
		if o.err != nil {
			level = slog.LevelError
			attrs = append(attrs, slog.String("error", o.err.Error()))
		}
	}
	rc.log.LogAttrs(ctx, level, message, attrs...)
}
