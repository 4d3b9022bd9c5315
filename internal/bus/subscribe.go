package bus

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// SubscribeOptions bound what a subscription holds. Zero values mean the
// defaults.
type SubscribeOptions struct {
	// MaxOutstandingMessages and MaxOutstandingBytes bound the messages in work over
	// all streams: 1,000 and 100 MB.
	MaxOutstandingMessages int
	MaxOutstandingBytes    int
	// Streams is the number of pull streams: 4.
	Streams int
	// MaxExtension is how long a message may be in work: 10 minutes. Then Pub/Sub
	// delivers it again.
	MaxExtension time.Duration
	// Grace is how long messages in work may take once ctx is done: 8 s, within the
	// 10 s that Cloud Run gives. What is not done then is delivered again.
	Grace time.Duration
	// Health is told whether messages can be consumed; nil for nobody.
	Health *Health
	// Log is told of every interruption; nil means slog's default.
	Log *slog.Logger
	// ClientOptions are passed to the Pub/Sub client.
	ClientOptions []option.ClientOption
}

// Bounds of the wait between an interruption and the next connection.
const (
	reconnectFirst = 250 * time.Millisecond
	reconnectMost  = 5 * time.Second
	// lease is what an ack deadline is extended by. The client's own minimum of 10 s
	// expires while an instance is starved of CPU; its maximum of minutes is how long
	// a message waits that was on its way to a stream that broke.
	lease = 20 * time.Second
	// ackFlush is how long acks may take on their way after the last message.
	ackFlush = time.Second
)

// Subscribe hands the messages of the subscription (its last part) of the project
// to handle, many at a time, until ctx is done; then it returns nil. A message is
// acknowledged when handle returns nil; on an error or a panic it is released at
// once, to come again. The context that handle gets outlives ctx by at most
// o.Grace.
//
// Delivery is at least once. Nothing ends Subscribe but ctx: connections that
// drop, a broker that restarts, an absent subscription and a missing permission
// are logged, make o.Health unready, and are tried again with a fresh client
// every few seconds.
func Subscribe(ctx context.Context, project, subscription string, o SubscribeOptions, handle func(context.Context, Message) error) error {
	if o.Health == nil {
		o.Health = NewHealth(nil)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	s := newSubscriber(work, project, subscription, o, handle)
	over := make(chan struct{})
	defer context.AfterFunc(ctx, func() { time.AfterFunc(s.grace(), func() { close(over) }) })()
	wait := reconnectFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := s.receive(ctx, over)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > reconnectMost {
			wait = reconnectFirst
		}
		o.Health.lost(err)
		o.Log.LogAttrs(ctx, slog.LevelWarn, "pull interrupted", slog.String("subscription", s.name),
			slog.Any("error", err), slog.Duration("wait", wait))
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
		wait = min(2*wait, reconnectMost)
	}
	o.Health.lost(context.Cause(ctx))
	select {
	case <-s.quiet():
	case <-over:
	}
	return nil
}

type subscriber struct {
	project, subscription, name string

	o      SubscribeOptions
	handle func(context.Context, Message) error
	work   context.Context // of the handlers

	mu      sync.Mutex
	current int           // messages in work
	idle    chan struct{} // closed while there are none
}

func newSubscriber(work context.Context, project, subscription string, o SubscribeOptions, handle func(context.Context, Message) error) *subscriber {
	s := &subscriber{
		project: project, subscription: subscription, o: o, handle: handle, work: work,
		name: fmt.Sprintf("projects/%s/subscriptions/%s", project, subscription),
		idle: make(chan struct{}),
	}
	close(s.idle)
	return s
}

func (s *subscriber) grace() time.Duration { return or(s.o.Grace, 8*time.Second) }

// receive pulls until ctx is done, Pub/Sub refuses for good, or the connection is
// lost. The client's own retrying is not relied upon for the last: it backs off
// for up to half a minute and outlives its context while nothing answers. So a
// stream that cannot be opened ends the whole client.
func (s *subscriber) receive(ctx context.Context, over <-chan struct{}) error {
	rctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client, err := s.connect(rctx, cancel)
	if err != nil {
		return err
	}
	sub := client.Subscriber(s.subscription)
	sub.ReceiveSettings = pubsub.ReceiveSettings{
		MaxExtension:               or(s.o.MaxExtension, 10*time.Minute),
		MinDurationPerAckExtension: lease,
		MaxDurationPerAckExtension: lease,
		MaxOutstandingMessages:     or(s.o.MaxOutstandingMessages, 1000),
		MaxOutstandingBytes:        or(s.o.MaxOutstandingBytes, 100<<20),
		NumGoroutines:              or(s.o.Streams, 4),
	}
	done := make(chan error, 1)
	go func() { done <- sub.Receive(rctx, s.message) }()
	select {
	case err := <-done:
		client.Close()
		return err
	case <-rctx.Done():
	}
	if ctx.Err() == nil {
		go s.retire(client, done)
		return context.Cause(rctx)
	}
	defer client.Close()
	select {
	case <-done:
		return nil
	case <-over:
		return nil
	case <-s.quiet():
	}
	select { // acks leave now, if anybody is there to take them
	case <-done:
	case <-time.After(ackFlush):
	}
	return nil
}

// retire gives what a lost client still has in work the time to end, and acks
// that can leave the time to leave.
func (s *subscriber) retire(client *pubsub.Client, done <-chan error) {
	select {
	case <-done:
	case <-time.After(s.grace()):
	}
	client.Close()
}

// connect makes a client whose streams report to the health, and which ends
// itself through lost when a stream cannot be opened.
func (s *subscriber) connect(ctx context.Context, lost context.CancelCauseFunc) (*pubsub.Client, error) {
	watch := s.o.Health.watcher(ctx, lost)
	opts := append([]option.ClientOption{
		reconnecting(),
		option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(watch.intercept)),
	}, s.o.ClientOptions...)
	return pubsub.NewClient(ctx, s.project, opts...)
}

// reconnecting has a client find its way back soon after an outage. gRPC's own
// default lets minutes pass between two tries.
func reconnecting() option.ClientOption {
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}
	params.Backoff.MaxDelay = reconnectMost
	return option.WithGRPCDialOption(grpc.WithConnectParams(params))
}

// message handles one message and settles it.
func (s *subscriber) message(_ context.Context, m *pubsub.Message) {
	s.add(1)
	defer s.add(-1)
	if err := s.call(fromClient(m, s.name)); err != nil {
		m.Nack()
		return
	}
	m.Ack()
}

func (s *subscriber) call(m Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
			s.o.Log.LogAttrs(s.work, slog.LevelError, "panic while handling a message", slog.String("message", m.ID),
				slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		}
	}()
	return s.handle(s.work, m)
}

func fromClient(m *pubsub.Message, subscription string) Message {
	out := Message{
		ID: m.ID, Subscription: subscription, Attributes: m.Attributes, Data: m.Data,
		PublishTime: m.PublishTime.UTC(), OrderingKey: m.OrderingKey,
	}
	if m.DeliveryAttempt != nil {
		out.DeliveryAttempt = *m.DeliveryAttempt
	}
	return out
}

func (s *subscriber) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == 0 {
		s.idle = make(chan struct{})
	}
	if s.current += n; s.current == 0 {
		close(s.idle)
	}
}

// quiet is closed when no message is in work.
func (s *subscriber) quiet() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle
}
