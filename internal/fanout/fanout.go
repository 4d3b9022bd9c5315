package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/schema"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Kind is the topic that a message came from. The subscription or the push path
// says it, never the message.
type Kind string

// Kinds. There is one more for each of Options.Direct: see [Direct].
const (
	Inbound Kind = "inbound" // what the receiver verified, and its counts
	Events  Kind = "events"  // what the team's own systems publish
)

const directPrefix = "direct/"

// Direct is the kind of what the provider of a direct source publishes itself.
func Direct(source string) Kind { return Kind(directPrefix + source) }

// Steps at which Options.Step is called, in order. Tests stop there to show that
// a crash loses nothing.
const (
	StepDecoded     = "decoded"      // nothing is stored
	StepCommitted   = "committed"    // stored, no task is created
	StepTaskCreated = "task created" // after each one
	StepScheduled   = "scheduled"    // all is done, Pub/Sub not told
)

// Defaults of [Options].
const (
	DefaultGroup           = 50
	DefaultGroupBytes      = 32 << 20
	DefaultTaskConcurrency = 64
	DefaultByteBudget      = 256 << 20
)

// Options are an Ingester's collaborators and settings.
type Options struct {
	Store *store.Store
	Queue *tasks.Queue
	// Direct are the sources whose providers publish to Pub/Sub themselves.
	Direct []bus.DirectSource
	// Schemas of event types; nil checks nothing.
	Schemas *schema.Set
	Log     *slog.Logger     // nil discards
	Now     func() time.Time // nil = time.Now
	// Topics by the last part of their names, for dead messages; default
	// "sealpost-inbound" and "sealpost-events", and "direct/" and the source's id.
	Topics map[Kind]string

	// Group and GroupBytes bound the events that share one commit, and Commits how
	// many of those run at once: 50, 32 MiB and 1.
	Group, GroupBytes, Commits int
	// TaskConcurrency bounds the tasks that are being created at any time, over all
	// events: 64.
	TaskConcurrency int
	// ByteBudget bounds the bodies of push requests held at any time, and again the
	// payloads unpacked from them or from pulled messages: 256 MiB.
	ByteBudget int64

	// Step, when not nil, is called between the steps; an error or a panic stops the
	// message there as a crash would. Nil in production.
	Step func(ctx context.Context, step string) error
}

// handleWithin bounds the work on one message, well below the 600 s after which
// Pub/Sub delivers it again.
const handleWithin = 5 * time.Minute

// Ingester turns messages into deliveries with tasks. It is safe for concurrent
// use and is to be closed.
type Ingester struct {
	o      Options
	events *store.Batcher[webhook.Event, store.Ingested]
	slots  *semaphore.Weighted // of tasks being created
	bytes  *semaphore.Weighted // of push bodies held
	bodies *semaphore.Weighted // of payloads unpacked
	direct map[Kind]bus.DirectSource
}

// New makes an Ingester.
func New(o Options) *Ingester {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	topics := map[Kind]string{Inbound: "sealpost-inbound", Events: "sealpost-events"}
	direct := map[Kind]bus.DirectSource{}
	for _, s := range o.Direct {
		k := Direct(s.ID)
		direct[k], topics[k] = s, string(k)
	}
	for k, v := range o.Topics {
		topics[k] = v
	}
	o.Topics = topics
	o.Group = or(o.Group, DefaultGroup)
	o.GroupBytes = or(o.GroupBytes, DefaultGroupBytes)
	o.Commits = or(o.Commits, 1)
	o.TaskConcurrency = or(o.TaskConcurrency, DefaultTaskConcurrency)
	o.ByteBudget = max(or(o.ByteBudget, DefaultByteBudget), bus.MaxPushBytes)
	return &Ingester{
		o: o,
		events: store.NewBatcher(store.BatcherOptions[webhook.Event]{
			MaxItems: o.Group, MaxBytes: o.GroupBytes, Concurrency: o.Commits,
			Size: func(e webhook.Event) int { return len(e.Body) },
		}, o.Store.Ingest),
		slots:  semaphore.NewWeighted(int64(o.TaskConcurrency)),
		bytes:  semaphore.NewWeighted(o.ByteBudget),
		bodies: semaphore.NewWeighted(o.ByteBudget),
		direct: direct,
	}
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Close refuses new events and waits for those under way to be committed.
func (in *Ingester) Close() { in.events.Close() }

// Handle does all that a message asks for. nil means that it is done with and may
// be acknowledged: its event is stored with its deliveries and every task exists,
// or the message is stored as dead, or its counts are. An error means that it is
// to be delivered again.
//
// Handling a message twice does nothing twice: what is stored already is found to
// be so, and missing tasks are created.
func (in *Ingester) Handle(ctx context.Context, m bus.Message, kind Kind) error {
	ctx, cancel := context.WithTimeout(m.Context(ctx), handleWithin)
	defer cancel()
	if kind == Inbound && m.IsCounts() {
		return in.counts(ctx, m)
	}
	began := in.o.Now()
	if size := m.UnpackedSize(); size > 0 {
		if err := in.bodies.Acquire(ctx, size); err != nil {
			return in.again(ctx, m, fmt.Errorf("wait for memory for message %s: %w", m.ID, err))
		}
		defer in.bodies.Release(size)
	}
	ev, err := in.decode(m, kind)
	if refused := (*bus.DecodeError)(nil); errors.As(err, &refused) {
		return in.bury(ctx, m, kind, refused)
	} else if err != nil {
		return in.again(ctx, m, fmt.Errorf("decode message %s: %w", m.ID, err))
	}
	if ev.ReceivedAt.IsZero() {
		ev.ReceivedAt = began.UTC()
	}
	ev.Rejection = in.o.Schemas.Check(ev.Type, ev.Body)
	done, err := in.ingest(ctx, ev)
	if code := permanent(err); code != "" && done.Key != ev.Key { // nothing is stored
		return in.bury(ctx, m, kind, &bus.DecodeError{Reason: code, Detail: err.Error()})
	}
	in.log(ctx, m, &ev, done, in.o.Now().Sub(began), err)
	if err != nil {
		return fmt.Errorf("message %s: %w", m.ID, err)
	}
	return nil
}

func (in *Ingester) decode(m bus.Message, kind Kind) (webhook.Event, error) {
	switch kind {
	case Inbound:
		return bus.DecodeInbound(m)
	case Events:
		return bus.DecodeEvent(m)
	}
	if source, ok := in.direct[kind]; ok {
		return bus.DecodeDirect(m, source)
	}
	return webhook.Event{}, fmt.Errorf("unknown kind of message %q", kind)
}

// permanent is the reason for which an event can never be stored; "" if it may
// succeed later.
func permanent(err error) bus.Code {
	switch {
	case errors.Is(err, store.ErrTooLarge):
		return bus.CodeTooLarge
	case errors.Is(err, store.ErrInvalid):
		return bus.CodeBadField
	}
	return ""
}

// done is what became of an event.
type done struct {
	store.Ingested
	tasks int // that exist now for certain
}

// ingest commits the event with its deliveries and creates the tasks, chunk by
// chunk where the fan-out is wide.
func (in *Ingester) ingest(ctx context.Context, ev webhook.Event) (done, error) {
	if err := in.step(ctx, StepDecoded); err != nil {
		return done{}, err
	}
	first, err := in.events.Do(ctx, ev)
	if err != nil {
		return done{}, fmt.Errorf("commit: %w", err)
	}
	d := done{Ingested: first}
	for part := first; ; {
		if err := in.step(ctx, StepCommitted); err != nil {
			return d, err
		}
		n, err := in.schedule(ctx, part.Tasks)
		d.tasks += n
		if err != nil {
			return d, err
		}
		if !part.More {
			break
		}
		if part, err = in.o.Store.ContinueFanout(ctx, ev.Tenant, ev.Key); err != nil {
			if errors.Is(err, store.ErrNotFound) {
				break // expunged meanwhile: nobody is left to deliver to
			}
			return d, err
		}
	}
	return d, in.step(ctx, StepScheduled)
}

func (in *Ingester) step(ctx context.Context, name string) error {
	if in.o.Step == nil {
		return nil
	}
	return in.o.Step(ctx, name)
}

// again writes the line of a message that is to be delivered again, where it has
// no other.
func (in *Ingester) again(ctx context.Context, m bus.Message, err error) error {
	in.o.Log.LogAttrs(ctx, slog.LevelError, "message will come again", slog.String("event", "message_failed"),
		slog.String("message_id", m.ID), slog.String("subscription", m.Subscription), slog.Int("delivery_attempt", m.DeliveryAttempt),
		slog.String("error", err.Error()))
	return err
}

// log writes the one line of an event.
func (in *Ingester) log(ctx context.Context, m bus.Message, ev *webhook.Event, d done, took time.Duration, err error) {
	level, message := slog.LevelInfo, "event ingested"
	attrs := []slog.Attr{
		slog.String("event", "ingest"),
		slog.String("event_id", ev.Key.ID()),
		slog.String("tenant", ev.Tenant),
		slog.String("source", ev.Source),
		slog.String("event_type", ev.Type),
		slog.String("publisher_id", ev.PublisherID),
		slog.String("message_id", m.ID),
		slog.Int("delivery_attempt", m.DeliveryAttempt),
		slog.Int("bytes", len(ev.Body)),
		slog.String("state", string(d.State)),
		slog.Bool("duplicate", d.Duplicate),
		slog.Bool("redelivery", d.Redelivery),
		slog.Int("reopened", d.Reopened),
		slog.Bool("suspected_replay", slices.Contains(d.Flags, webhook.FlagSuspectedReplay)),
		slog.Int("deliveries", d.tasks),
		slog.Float64("ms", float64(took.Microseconds())/1000),
		slog.Float64("age_ms", float64(in.o.Now().Sub(ev.ReceivedAt).Microseconds())/1000),
		slog.String("outcome", "done"),
	}
	if ev.Rejection != "" {
		attrs = append(attrs, slog.String("rejection", ev.Rejection))
	}
	if err != nil {
		level, message = slog.LevelError, "event will come again"
		attrs[len(attrs)-1] = slog.String("outcome", "retry")
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	in.o.Log.LogAttrs(ctx, level, message, attrs...)
}
