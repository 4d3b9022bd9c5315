// Package deliver owns the attempt: claim, sign, send, decide, record, schedule.
//
// It refuses to count a fault of ours as an attempt of the endpoint's: what the
// endpoint did is an [webhook.Outcome] and is recorded; an error is ours, nothing
// is recorded, and the task runs again. It opens no connection but through
// safedial.
package deliver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sealpost/sealpost/internal/bus"
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
	StepNext      = "next"      // the next task exists, control tasks do not
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
	// MaxInFlight bounds the attempts under way; 0 means [DefaultMaxInFlight]. It is to
	// be what Cloud Run's concurrency is: then a full instance gets no more requests.
	MaxInFlight int
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
	// Publish publishes an event of Sealpost's own, such as a notice for an endpoint's
	// owner, to the topic of published events, and returns once Pub/Sub has it. Nil
	// publishes none: notices stay unsent until a dispatcher can.
	Publish func(context.Context, bus.EventMessage) error
	Log     *slog.Logger
	Now     func() time.Time // nil = time.Now
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
	made    controlMemo

	limits       *limits
	reservations *store.Batcher[webhook.SlotRequest, webhook.Slots]
	deferrals    *store.Batcher[store.Deferral, *webhook.Task]
}

// New makes a Dispatcher.
func New(o Options) *Dispatcher {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultMaxInFlight
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
	d.reservations = store.NewBatcher(store.BatcherOptions[webhook.SlotRequest]{MaxItems: 200}, o.Store.ReserveSlots)
	d.deferrals = store.NewBatcher(store.BatcherOptions[store.Deferral]{MaxItems: 200}, o.Store.Defer)
	d.limits = newLimits(rand.Text(), o.MaxInFlight, o.Now, d.reservations.Do)
	return d
}

// Close waits for what is being recorded and closes idle connections.
func (d *Dispatcher) Close() {
	d.records.Close()
	d.reservations.Close()
	d.deferrals.Close()
	d.sender.client.CloseIdleConnections()
}

// Attempt makes the attempt that k names, if it is still to be made.
//
// A nil error means that Cloud Tasks may forget the task: the outcome is
// committed, the next task exists and so do the control tasks that follow, or
// there is nothing to do. An error is ours; the caller has the task run again.
// Running it again is safe at every step: a recorded attempt is not sent again, an
// unrecorded one may be.
func (d *Dispatcher) Attempt(ctx context.Context, k webhook.AttemptKey) error {
	claim, err := d.claim(ctx, k)
	if err != nil || claim == nil {
		return err
	}
	d.o.Queue.Ensure(ctx, &claim.Endpoint)
	release, err := d.admit(ctx, k, claim)
	if release == nil {
		return d.endLease(ctx, claim, err)
	}
	defer release()
	if err := d.step(ctx, StepClaimed); err != nil {
		return err
	}
	// From here on a caller that hangs up changes nothing: an attempt that was
	// begun is recorded, so that it is not made again.
	ctx = context.WithoutCancel(ctx)
	attempt, err := d.unpackAndSend(ctx, claim)
	if err != nil {
		return d.endLease(ctx, claim, fmt.Errorf("send %s: %w", k, err))
	}
	if err := d.step(ctx, StepSent); err != nil {
		return err
	}
	now := d.o.Now()
	decision := webhook.DecideTriggered(claim.Delivery, attempt.Outcome, claim.Endpoint.Retry, now)
	ctx, cancel := context.WithTimeout(ctx, afterwards)
	defer cancel()
	recorded, err := d.records.Do(ctx, store.AttemptRecord{Attempt: attempt, Decision: decision, Queue: claim.Endpoint.QueueRef(), Ordering: claim.Endpoint.Ordering})
	if err != nil {
		return fmt.Errorf("record %s: %w", k, err)
	}
	d.logAttempt(ctx, claim, attempt, recorded)
	if err := d.step(ctx, StepRecorded); err != nil {
		return err
	}
	for _, t := range []*webhook.Task{recorded.Next, recorded.Follower} {
		if err := d.schedule(ctx, t); err != nil {
			return err
		}
	}
	if err := d.step(ctx, StepNext); err != nil {
		return err
	}
	if err := d.follow(ctx, k, recorded); err != nil {
		return err
	}
	return d.step(ctx, StepScheduled)
}

// claims bounds how often an attempt is claimed anew because its endpoint was
// found to be no longer what the claim knew.
const claims = 4

// claim gives what is needed to make the attempt; nil if it is not to be made, and
// all that is due instead is done.
func (d *Dispatcher) claim(ctx context.Context, k webhook.AttemptKey) (*store.Claim, error) {
	for range claims {
		c, err := d.o.Store.Claim(ctx, k)
		if err != nil {
			return nil, fmt.Errorf("claim %s: %w", k, err)
		}
		if err := d.ensure(ctx, c.Controls); err != nil {
			return nil, err
		}
		if c.Verdict == store.VerdictRun {
			return c, nil
		}
		if done, err := d.skip(ctx, k, c); done || err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("claim %s: %w", k, errUnsettled)
}

// errUnsettled: the endpoint's state keeps changing under the attempt.
var errUnsettled = errors.New("the endpoint's state is changing")

// follow makes the control tasks that follow from a recorded attempt. Where an
// earlier run recorded it, that may have stopped before it made them.
func (d *Dispatcher) follow(ctx context.Context, k webhook.AttemptKey, r store.Recorded) error {
	if r.Again {
		return d.Follow(ctx, k.Tenant, k.Endpoint)
	}
	return d.control(ctx, r.Controls)
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

// skip does what is due for an attempt that must not be made. It answers false if
// that turns out to have been a mistake: the attempt is to be claimed anew.
func (d *Dispatcher) skip(ctx context.Context, k webhook.AttemptKey, c *store.Claim) (done bool, err error) {
	switch c.Verdict {
	case store.VerdictStale:
		// The delivery has moved on; whoever moved it may have crashed before it
		// scheduled the attempt that is due instead, or saw to the endpoint.
		if err = d.schedule(ctx, c.Current); err == nil {
			err = d.Follow(ctx, k.Tenant, k.Endpoint)
		}
		done = true
	case store.VerdictHeld:
		done, err = d.o.Store.Settle(ctx, k, webhook.DeliveryHeld, c.Reason)
	case store.VerdictCancelled:
		done, err = d.cancelAttempt(ctx, k, c)
	case store.VerdictLeased:
		err = errLeased
	case store.VerdictLater:
		var task *webhook.Task
		if task, done, err = d.o.Store.Postpone(ctx, k); err == nil {
			err = d.schedule(ctx, task)
		}
	case store.VerdictProbe:
		var p store.Probe
		if p, err = d.o.Store.BeginProbe(ctx, k); err == nil {
			err = d.control(ctx, p.Controls)
		}
	default: // gone: neither row nor anything to do
		done = true
	}
	if err != nil {
		return false, fmt.Errorf("settle %s as %s: %w", k, c.Verdict, err)
	}
	if done {
		d.o.Log.LogAttrs(ctx, slog.LevelInfo, "attempt skipped", append(keyAttrs("skip", k), slog.String("verdict", string(c.Verdict)), slog.String("reason", c.Reason))...)
	}
	return done, nil
}

// endLease lets the next run of an ordered delivery begin at once, where this one
// ended by a fault of ours. It gives that fault back.
func (d *Dispatcher) endLease(ctx context.Context, c *store.Claim, fault error) error {
	if fault == nil || !c.Delivery.Ordered() {
		return fault
	}
	return errors.Join(fault, d.o.Store.EndLease(ctx, c.Delivery.Key()))
}

// cancelAttempt settles the attempt as cancelled and has the next in its line, if it is in
// one, take its turn.
func (d *Dispatcher) cancelAttempt(ctx context.Context, k webhook.AttemptKey, c *store.Claim) (done bool, err error) {
	done, err = d.o.Store.Settle(ctx, k, webhook.DeliveryCancelled, c.Reason)
	if err != nil || !done || !c.Delivery.Ordered() {
		return done, err
	}
	next, err := d.o.Store.HeadTask(ctx, &c.Delivery)
	if err != nil {
		return false, err
	}
	return true, d.schedule(ctx, next)
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
	err := d.o.Store.MarkQueueReady(ctx, r.Tenant, r.Endpoint, r.Queue)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// logAttempt writes the one wide line of an attempt.
func (d *Dispatcher) logAttempt(ctx context.Context, c *store.Claim, a webhook.Attempt, r store.Recorded) {
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
		slog.String("outcome", string(r.Delivery.State)),
		slog.Bool("applied", r.Applied),
		slog.Float64("age_ms", float64(d.o.Now().Sub(c.Event.ReceivedAt).Microseconds())/1000),
	)
	if a.Error != "" {
		attrs = append(attrs, slog.String("error", a.Error))
	}
	if next := r.Delivery.NextAttemptAt; !next.IsZero() {
		attrs = append(attrs, slog.Time("next_attempt_at", next.UTC()))
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
