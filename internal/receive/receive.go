package receive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sealpost/sealpost/internal/expr"
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
	// TrustedHops says where the client's address stands, for sources with AllowCIDRs: 0
	// for the connection's peer, n for the n-th address from the right of
	// X-Forwarded-For. Cloud Run appends one address, the client's; Google's external
	// Application Load Balancer appends two, the client's and its own. nil: not known, and
	// such sources stop the start.
	TrustedHops *int
	// ClientCertHeader names the header in which a load balancer passes on the leaf of a
	// client certificate that it has verified, in the form of RFC 9440. Name it only if
	// no request reaches this receiver but through that load balancer, and if it sets
	// the header on every request: whoever can set it has any certificate. Empty: a
	// source that asks for a certificate stops the start.
	ClientCertHeader string
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
	hops        *int
	certHeader  string
}

// source is a [Source] ready for use.
type source struct {
	Source
	scheme   *provider.Scheme
	methods  []string
	allow    string // the Allow header
	dedupe   *expr.Program
	types    typesOf
	prefixes []netip.Prefix
}

// ready makes a source without faults ready for use.
func ready(s Source) (*source, error) {
	scheme, err := s.verifier()
	if err != nil {
		return nil, err
	}
	s.Tenant = or(s.Tenant, webhook.DefaultTenant)
	s.BodyLimit = or(s.BodyLimit, DefaultBodyLimit)
	s.PublishDeadline = or(s.PublishDeadline, DefaultPublishDeadline)
	s.SchemaMode = or(s.SchemaMode, SchemaReject)
	s.Keys = slices.Clone(s.Keys)
	src := &source{Source: s, scheme: scheme, methods: scheme.Methods(), allow: strings.Join(scheme.Methods(), ", ")}
	src.dedupe, err = s.identifier()
	src.types, _ = parseTypes(s.ContentTypes)     // faults were reported
	src.prefixes, _ = parsePrefixes(s.AllowCIDRs) // likewise
	return src, err
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
		hops:        c.TrustedHops,
		certHeader:  c.ClientCertHeader,
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
		src, err := ready(s)
		if err != nil {
			return nil, fmt.Errorf("source %q: %w", s.ID, err)
		}
		rc.sources[s.ID] = src
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
	if len(s.AllowCIDRs) > 0 && rc.hops == nil {
		out = append(out, errors.New("allow_cidrs: the receiver is not told how many hops it may trust (TRUSTED_HOPS)"))
	}
	if s.asksForCertificate() && rc.certHeader == "" {
		out = append(out, errors.New("mtls_subject, mtls_san: the receiver is not told which header holds the client certificate (CLIENT_CERT_HEADER)"))
	}
	v, err := s.verifier()
	if err != nil {
		return out // reported already
	}
	switch {
	case len(s.Keys) == 0 && v.NeedsSecret():
		out = append(out, errors.New("secrets: none was read"))
	case v.Fetches(s.Keys) && rc.keys == nil:
		out = append(out, errors.New("secrets: the provider's keys are not among them, and this receiver cannot fetch those"))
	}
	for _, err := range v.CheckSecrets(s.Keys) {
		out = append(out, fmt.Errorf("secrets: %w", err))
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
	secret   *provider.Secret // that matched
	body     []byte           // decoded; nil if nothing was
	encoded  error            // why an encoded body is not taken
	notes    []slog.Attr      // what the event is marked for
	*refusal                  // nil if the event was published or a handshake answered
	shaken   bool             // a handshake was answered
	err      error            // ours
}

// mark flags the event and has the log line say why.
func (o *outcome) mark(flag, why string) {
	o.event.Flags = append(o.event.Flags, flag)
	o.notes = append(o.notes, slog.String(flag, why))
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
	if o.refusal = rc.origin(src, r); o.refusal != nil {
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
		rc.count(o, webhook.CountHandshake)
		rc.record(r.Context(), o, id.Response.Status)
		shake(w, id.Response)
		return
	}
	rc.conclude(r.Context(), w, o, false)
}

// accept is the story of a request whose body is here: verify, identify, admit,
// publish.
func (rc *Receiver) accept(r *http.Request, o *outcome, body []byte) provider.Identity {
	src := o.source
	o.request = provider.Request{Method: r.Method, Header: r.Header, URL: src.PublicURL, Body: body}
	if r.URL.RawQuery != "" {
		o.request.URL += "?" + r.URL.RawQuery
		o.request.Query = r.URL.Query()
	}
	plain := decoder{budget: &rc.budget, limit: src.BodyLimit}
	defer func() { rc.budget.give(plain.held) }()
	if o.refusal = rc.decoding(o, &plain, &o.request); o.refusal != nil {
		return provider.Identity{}
	}
	keys := src.Keys
	if src.scheme.Fetches(keys) {
		var more []provider.Secret
		if more, o.refusal = rc.fetched(r.Context(), o); o.refusal != nil {
			return provider.Identity{}
		}
		keys = slices.Concat(keys, more)
	}
	id, err := src.scheme.Verify(o.request, keys, o.start)
	if err != nil {
		o.refusal = unverified(err)
		if plain.why != nil {
			o.refusal = plain.why
		} else if o.encoded != nil {
			o.refusal.detail += "; " + o.encoded.Error() + ", see content_encoding"
		}
		return id
	}
	if id.Secret >= 0 {
		o.secret = &keys[id.Secret]
	}
	if id.Confirm != "" {
		id.Response, o.refusal = rc.confirmed(r.Context(), o, id.Confirm)
	}
	if id.Response != nil || o.refusal != nil {
		o.shaken = o.refusal == nil
		return id
	}
	if o.encoded != nil {
		o.refusal = refused(reasonEncoding, "%s", o.encoded)
		return id
	}
	rc.identify(r, o, id)
	if o.refusal = rc.admitted(o, r); o.refusal == nil {
		rc.publish(r.Context(), o)
	}
	return id
}

// identify makes the event of an authentic request.
func (rc *Receiver) identify(r *http.Request, o *outcome, id provider.Identity) {
	src := o.source
	o.event = webhook.Event{
		Tenant:      src.Tenant,
		Source:      src.ID,
		PublisherID: id.ID,
		Type:        id.Type,
		ContentType: r.Header.Get("Content-Type"),
		Headers:     id.Headers,
		Body:        o.request.Body,
		OccurredAt:  id.OccurredAt,
		ReceivedAt:  o.start,
		Receipt:     rc.newReceipt(),
		UnsignedID:  id.UnsignedID,
	}
	if o.body != nil {
		o.event.Body = o.body
	}
	if src.dedupe != nil {
		rc.rename(r, o)
	}
	o.event.RefuseReplay = o.event.UnsignedID && src.OnReplay == OnReplayRefuse
	o.event.Key = webhook.KeyOf(src.ID, src.Tenant, o.event.PublisherID)
}

// rename gives the event the identity that the source's expression gives it, or
// leaves it its scheme's and says so.
func (rc *Receiver) rename(r *http.Request, o *outcome) {
	src, ev := o.source, &o.event
	in := expr.Input{ID: ev.PublisherID, Type: ev.Type, Source: ev.Source, Time: ev.OccurredAt, Body: ev.Body}
	if src.dedupe.Uses("headers") {
		in.Headers = visible(r.Header, src.scheme)
	}
	// A sender that hangs up must not change what its event is called.
	name, err := src.dedupe.String(context.WithoutCancel(r.Context()), in)
	if err == nil && strings.TrimSpace(name) == "" {
		err = errors.New("the expression gives an empty text")
	}
	if err != nil {
		o.mark(webhook.FlagDedupeFallback, err.Error())
		return
	}
	ev.PublisherID = webhook.CanonicalID(name)
	// What is not in the body may be in a header that nobody signed.
	ev.UnsignedID = src.scheme.SignsBodyOnly() && slices.ContainsFunc([]string{"id", "type", "time", "headers"}, src.dedupe.Uses)
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
	status, reason := http.StatusOK, webhook.CountAccepted
	if o.refusal != nil {
		status, reason = o.status(), o.reason
	}
	rc.count(o, reason)
	rc.record(ctx, o, status)
	answer(w, status, unread, o.source.scheme.Ack())
}

// count counts the request, its event's flags, and the use of its secret: of every
// request that the secret verified, whatever became of it then.
func (rc *Receiver) count(o *outcome, reason string) {
	rc.counts.add(o.source, reason, o.start)
	if o.refusal == nil {
		for _, flag := range o.event.Flags {
			rc.counts.add(o.source, webhook.CountOfFlag(flag), o.start)
		}
	}
	if o.secret != nil {
		rc.counts.use(o.source, o.secret, o.start)
	}
}

// record writes the request's one line. It holds no payload, no query string, and of
// headers only who was refused for where it came from.
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
	if o.secret != nil {
		attrs = append(attrs, slog.String("secret", o.secret.String()))
	}
	if o.event.Receipt != "" {
		attrs = append(attrs, slog.String("event", o.event.Key.ID()), slog.String("publisher_id", o.event.PublisherID),
			slog.String("type", o.event.Type), slog.String("receipt", o.event.Receipt))
	}
	attrs = append(attrs, o.notes...)
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
