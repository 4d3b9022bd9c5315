// Package deliver owns the attempt: claim, sign, send, decide, record, schedule.
//
// It refuses to count a fault of ours as an attempt of the endpoint's: what the
// endpoint did is an [webhook.Outcome] and is recorded; an error is ours, nothing
// is recorded, and the task runs again. It opens no connection but through
// safedial.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Steps at which Options.Step is called, in order. Tests stop there to show that
// a crash loses nothing.
const (
	StepClaimed   = "claimed"   // the row was read, nothing sent
	StepSent      = "sent"      // the endpoint has answered, nothing recorded
	StepRecorded  = "recorded"  // the outcome is committed, the next task not created
	StepScheduled = "scheduled" // all is done, Cloud Tasks not told
)

// DefaultBodyBudget holds ten of the largest bodies that receivers take.
const DefaultBodyBudget = 256 << 20

// maxConns bounds the connections of an instance, to one host and in all.
const maxConns = 1024

// afterwards bounds what follows the exchange: the commit and the next task.
const afterwards = 30 * time.Second

// Options are a Dispatcher's collaborators and settings.
type Options struct {
	Store  *store.Store
	Queue  *tasks.Queue
	Sealer *secrets.Sealer
	// Policy says which URLs and addresses may be dialled.
	Policy safedial.Policy
	// ProbeURL is outside the network; an instance must have reached it, or any
	// endpoint, before its failures to connect count as the endpoint's. On a fresh
	// instance the way out may take a minute to open. Empty means that it is open.
	ProbeURL string
	Version  string // for the User-Agent
	// Proxy, when not nil, is the way out for everything but Pub/Sub.
	Proxy *safedial.Proxy
	// ConsoleURL is the console's base URL, without a slash at its end, for the links in
	// thin bodies; empty leaves them out.
	ConsoleURL string
	// Publisher publishes to the topics that endpoints name; nil refuses them all.
	// Topics are the names that they may name; one that ends in * stands for a prefix.
	Publisher Publisher
	Topics    []string
	// BodyBudget bounds the bytes of payloads held at any time; 0 means
	// [DefaultBodyBudget].
	BodyBudget int64
	Log        *slog.Logger
	Now        func() time.Time // nil = time.Now
	// Step, when not nil, is called between the steps; an error stops the attempt
	// there as a crash would. Nil in production.
	Step func(ctx context.Context, step string) error
}

// Dispatcher makes attempts. It is safe for concurrent use.
type Dispatcher struct {
	o       Options
	sender  *sender
	bodies  *semaphore.Weighted
	records *store.Batcher[store.AttemptRecord, store.Recorded]
}

// New makes a Dispatcher.
func New(o Options) *Dispatcher {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.BodyBudget == 0 {
		o.BodyBudget = DefaultBodyBudget
	}
	d := &Dispatcher{o: o, bodies: semaphore.NewWeighted(o.BodyBudget), sender: newSender(o)}
	d.records = store.NewBatcher(store.BatcherOptions[store.AttemptRecord]{
		MaxItems: 200,
		MaxBytes: 16 << 20,
		Size:     func(r store.AttemptRecord) int { return len(r.Attempt.Excerpt) + 1024 },
	}, o.Store.Record)
	return d
}

// Close waits for what is being recorded and closes idle connections.
func (d *Dispatcher) Close() {
	d.records.Close()
	d.sender.client.CloseIdleConnections()
}

// Attempt makes the attempt that k names, if it is still to be made.
//
// A nil error means that Cloud Tasks may forget the task: the outcome is
// committed and the next task exists, or there is nothing to do. An error is
// ours; the caller has the task run again. Running it again is safe at every
// step: a recorded attempt is not sent again, an unrecorded one may be.
func (d *Dispatcher) Attempt(ctx context.Context, k webhook.AttemptKey) error {
	claim, err := d.o.Store.Claim(ctx, k)
	if err != nil {
		return fmt.Errorf("claim %s: %w", k, err)
	}
	if claim.Verdict != store.VerdictRun {
		return d.skip(ctx, k, claim)
	}
	if err := d.step(ctx, StepClaimed); err != nil {
		return err
	}
	// From here on a caller that hangs up changes nothing: an attempt that was
	// begun is recorded, so that it is not made again.
	ctx = context.WithoutCancel(ctx)
	attempt, err := d.unpackAndSend(ctx, claim)
	if err != nil {
		return fmt.Errorf("send %s: %w", k, err)
	}
	if err := d.step(ctx, StepSent); err != nil {
		return err
	}
	now := d.o.Now()
	decision := webhook.Decide(claim.Delivery, attempt.Outcome, claim.Endpoint.Retry, now)
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	recorded, err := d.records.Do(ctx, store.AttemptRecord{Attempt: attempt, Decision: decision, Queue: claim.Endpoint.QueueRef()})
	if err != nil {
		return fmt.Errorf("record %s: %w", k, err)
	}
	d.logAttempt(ctx, claim, attempt, decision, recorded.Applied)
	if err := d.step(ctx, StepRecorded); err != nil {
		return err
	}
	if err := d.schedule(ctx, recorded.Next); err != nil {
		return err
	}
	return d.step(ctx, StepScheduled)
}

// unpackAndSend holds the body in memory for no longer than the exchange, and
// waits its turn for the memory.
func (d *Dispatcher) unpackAndSend(ctx context.Context, c *store.Claim) (webhook.Attempt, error) {
	size := min(footprint(c.Endpoint.PayloadMode, &c.Event, c.Size), d.o.BodyBudget)
	waiting, cancel := context.WithTimeout(ctx, memoryWait)
	defer cancel()
	if err := d.bodies.Acquire(waiting, size); err != nil {
		return webhook.Attempt{}, fmt.Errorf("%w: %d bytes", errNoMemory, size)
	}
	defer d.bodies.Release(size)
	if err := c.Unpack(); err != nil {
		return webhook.Attempt{}, err
	}
	return d.sender.send(ctx, c)
}

// skip does what is due for an attempt that must not be made.
func (d *Dispatcher) skip(ctx context.Context, k webhook.AttemptKey, c *store.Claim) error {
	d.o.Log.LogAttrs(ctx, slog.LevelInfo, "attempt skipped", append(keyAttrs("skip", k), slog.String("verdict", string(c.Verdict)))...)
	var err error
	switch c.Verdict {
	case store.VerdictStale:
		// The delivery has moved on; whoever moved it may have crashed before it
		// scheduled the attempt that is due instead.
		return d.schedule(ctx, c.Current)
	case store.VerdictHeld:
		err = d.o.Store.Settle(ctx, k, webhook.DeliveryHeld, c.Reason)
	case store.VerdictCancelled:
		err = d.o.Store.Settle(ctx, k, webhook.DeliveryCancelled, c.Reason)
	case store.VerdictGone: // neither row nor anything to do
	}
	if err != nil {
		return fmt.Errorf("settle %s: %w", k, err)
	}
	return nil
}

func (d *Dispatcher) schedule(ctx context.Context, t *webhook.Task) error {
	if t == nil {
		return nil
	}
	return d.o.Queue.Schedule(ctx, *t)
}

func (d *Dispatcher) step(ctx context.Context, name string) error {
	if d.o.Step == nil {
		return nil
	}
	return d.o.Step(ctx, name)
}

// QueueReady notes that an endpoint's own queue dispatches, so that its tasks go
// there from now on. An endpoint that is gone needs nothing.
func (d *Dispatcher) QueueReady(ctx context.Context, r tasks.Ready) error {
	err := d.o.Store.MarkQueueReady(ctx, r.Tenant, r.Endpoint)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// logAttempt writes the one wide line of an attempt.
func (d *Dispatcher) logAttempt(ctx context.Context, c *store.Claim, a webhook.Attempt, dec webhook.Decision, applied bool) {
	level := slog.LevelInfo
	if !a.Outcome.OK() {
		level = slog.LevelWarn
	}
	attrs := append(keyAttrs("attempt", a.Key),
		slog.String("event_type", c.Event.Type),
		slog.String("source", c.Event.Source),
		slog.String("trigger", string(a.Trigger)),
		slog.String("class", string(a.Outcome.Class)),
		slog.Int("status", a.Outcome.Status),
		slog.Float64("ms", float64(a.Duration.Microseconds())/1000),
		slog.String("outcome", string(dec.State)),
		slog.Bool("applied", applied),
		slog.Float64("age_ms", float64(d.o.Now().Sub(c.Event.ReceivedAt).Microseconds())/1000),
	)
	if a.Error != "" {
		attrs = append(attrs, slog.String("error", a.Error))
	}
	if !dec.NextAttemptAt.IsZero() {
		attrs = append(attrs, slog.Time("next_attempt_at", dec.NextAttemptAt.UTC()))
	}
	d.o.Log.LogAttrs(ctx, level, http.StatusText(a.Outcome.Status), attrs...)
}

func keyAttrs(event string, k webhook.AttemptKey) []slog.Attr {
	return []slog.Attr{
		slog.String("event", event),
		slog.String("event_id", k.Event.ID()),
		slog.String("tenant", k.Tenant),
		slog.String("endpoint", k.Endpoint),
		slog.Int64("generation", k.Generation),
		slog.Int64("attempt", k.Attempt),
	}
}
