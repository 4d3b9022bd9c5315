package bus_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/sealpost/sealpost/internal/bus"
)

const subscription = "projects/" + project + "/subscriptions/worker"

func subscribed(t testing.TB, srv *pstest.Server) {
	t.Helper()
	if _, err := srv.GServer.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: subscription, Topic: topic, AckDeadlineSeconds: 10}); err != nil {
		t.Fatal(err)
	}
}

// interruptions is a log that tells of every interruption.
type interruptions struct {
	slog.Handler
	seen chan struct{}
}

func watchLog() (*slog.Logger, <-chan struct{}) {
	h := interruptions{slog.DiscardHandler, make(chan struct{}, 1000)}
	return slog.New(h), h.seen
}

func (interruptions) Enabled(context.Context, slog.Level) bool { return true }

func (h interruptions) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "pull interrupted" {
		h.seen <- struct{}{}
	}
	return nil
}

// run starts Subscribe and returns what stops it and waits for its end.
func run(t testing.TB, o bus.SubscribeOptions, handle func(context.Context, bus.Message) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- bus.Subscribe(ctx, project, "worker", o, handle) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("subscribe: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func TestSubscribeSettlesMessages(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	subscribed(t, srv)
	var mu sync.Mutex
	tries := map[string]int{}
	done := make(chan bus.Message, 100)
	stop := run(t, bus.SubscribeOptions{ClientOptions: opts, Log: slog.New(slog.DiscardHandler)}, func(_ context.Context, m bus.Message) error {
		mu.Lock()
		tries[m.ID]++
		n := tries[m.ID]
		mu.Unlock()
		switch {
		case n == 1 && m.Attributes["ce-id"] == "error":
			return errors.New("later")
		case n == 1 && m.Attributes["ce-id"] == "panic":
			panic("injected")
		}
		done <- m
		return nil
	})
	for _, id := range []string{"ok", "error", "panic"} {
		srv.Publish(topic, []byte("\x80\xff "+id+"\n"), attrs("ce-id", id))
	}
	for range 3 {
		m := <-done
		if id := m.Attributes["ce-id"]; string(m.Data) != "\x80\xff "+id+"\n" || m.Subscription != subscription || m.PublishTime.IsZero() {
			t.Errorf("got %+v", m)
		}
	}
	stop()
	for _, m := range srv.Messages() {
		want := 1
		if m.Attributes["ce-id"] != "ok" {
			want = 2
		}
		if m.Acks != 1 || tries[m.ID] != want {
			t.Errorf("%s: %d acks after %d tries, want %d", m.Attributes["ce-id"], m.Acks, tries[m.ID], want)
		}
	}
}

// Stopping lets what is in work end and be acknowledged.
func TestSubscribeStopsGracefully(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	subscribed(t, srv)
	entered, release := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan error, 1)
	go func() {
		finished <- bus.Subscribe(ctx, project, "worker", bus.SubscribeOptions{ClientOptions: opts}, func(ctx context.Context, _ bus.Message) error {
			close(entered)
			<-release
			return ctx.Err()
		})
	}()
	id := srv.Publish(topic, []byte("x"), nil)
	<-entered
	cancel()
	close(release)
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
	if m := srv.Message(id); m.Acks != 1 {
		t.Errorf("%d acks", m.Acks)
	}
}

// A handler that does not end is given up after the grace, with its context done.
func TestSubscribeGivesUpAfterGrace(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	subscribed(t, srv)
	entered, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan error, 1)
	go func() {
		finished <- bus.Subscribe(ctx, project, "worker", bus.SubscribeOptions{ClientOptions: opts, Grace: 50 * time.Millisecond}, func(ctx context.Context, _ bus.Message) error {
			close(entered)
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		})
	}()
	srv.Publish(topic, []byte("x"), nil)
	<-entered
	cancel()
	if err := <-finished; err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// With nothing listening, Subscribe still ends with its context, at once.
func TestSubscribeStopsWithoutBroker(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	log, interrupted := watchLog()
	health := bus.NewHealth(nil)
	stop := run(t, bus.SubscribeOptions{ClientOptions: clientOptions(l.Addr().String()), Log: log, Health: health}, nil)
	<-interrupted
	if err := health.Ready(); err == nil {
		t.Error("ready without a broker")
	}
	began := time.Now()
	stop()
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("stopping took %s", d)
	}
}

// The same when the broker has gone while messages were flowing.
func TestSubscribeStopsAfterBrokerIsGone(t *testing.T) {
	t.Parallel()
	srv := pstest.NewServerWithAddress("127.0.0.1:0")
	t.Cleanup(func() { srv.Close() })
	if _, err := srv.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic}); err != nil {
		t.Fatal(err)
	}
	subscribed(t, srv)
	g, addr := serve(t, srv, "127.0.0.1:0")
	log, interrupted := watchLog()
	got := make(chan struct{}, 100)
	stop := run(t, bus.SubscribeOptions{ClientOptions: clientOptions(addr), Log: log}, func(context.Context, bus.Message) error { got <- struct{}{}; return nil })
	srv.Publish(topic, []byte("x"), nil)
	<-got
	g.Stop()
	<-interrupted
	began := time.Now()
	stop()
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("stopping took %s", d)
	}
}

// The broker goes away and comes back empty, on the same address: the subscriber
// is unready meanwhile, recovers by itself, and loses nothing that was published
// to the new one.
func TestSubscribeRecoversFromRestart(t *testing.T) {
	t.Parallel()
	first := pstest.NewServerWithAddress("127.0.0.1:0")
	t.Cleanup(func() { first.Close() })
	ready := func(srv *pstest.Server) {
		if _, err := srv.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic}); err != nil {
			t.Error(err)
		}
		subscribed(t, srv)
	}
	ready(first)
	g, addr := serve(t, first, "127.0.0.1:0")

	log, interrupted := watchLog()
	health := bus.NewHealth(nil)
	got := make(chan string, 1000)
	run(t, bus.SubscribeOptions{ClientOptions: clientOptions(addr), Log: log, Health: health}, func(_ context.Context, m bus.Message) error {
		got <- string(m.Data)
		return nil
	})
	first.Publish(topic, []byte("before"), nil)
	if m := <-got; m != "before" {
		t.Fatalf("got %q", m)
	}
	if err := health.Ready(); err != nil {
		t.Errorf("not ready after a message: %v", err)
	}

	g.Stop()
	<-interrupted
	if err := health.Ready(); err == nil {
		t.Error("ready with the broker gone")
	}

	second := pstest.NewServerWithAddress("127.0.0.1:0")
	t.Cleanup(func() { second.Close() })
	serve(t, second, addr)
	drain(interrupted)
	<-interrupted // its subscription is absent at first
	if err := health.Ready(); err == nil {
		t.Error("ready without the subscription")
	}
	ready(second)
	want := map[string]bool{}
	for i := range 100 {
		second.Publish(topic, fmt.Append(nil, i), nil)
		want[fmt.Sprint(i)] = true
	}
	for len(want) > 0 {
		delete(want, <-got)
	}
	if err := health.Ready(); err != nil {
		t.Errorf("not ready after recovery: %v", err)
	}
}

func drain(c <-chan struct{}) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}

// One stream that brings nothing counts as open only after a while: a refused one
// is open for a moment, too.
func TestHealthSettles(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	subscribed(t, srv)
	var mu sync.Mutex
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	health := bus.NewHealth(clock)
	if err := health.Ready(); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("at first: %v", err)
	}
	opened := make(chan struct{}, 1)
	opts = append(opts, streamOpened(opened))
	stop := run(t, bus.SubscribeOptions{ClientOptions: opts, Health: health, Streams: 1}, nil)
	<-opened
	if err := health.Ready(); err == nil {
		t.Error("ready at once")
	}
	mu.Lock()
	now = now.Add(time.Second)
	mu.Unlock()
	if err := health.Ready(); err != nil {
		t.Errorf("not ready after a second: %v", err)
	}
	stop()
	if err := health.Ready(); err == nil {
		t.Error("ready after the end")
	}
}

func BenchmarkSubscribe(b *testing.B) {
	srv, opts := broker(b)
	subscribed(b, srv)
	done := make(chan struct{}, 1000)
	run(b, bus.SubscribeOptions{ClientOptions: opts}, func(context.Context, bus.Message) error { done <- struct{}{}; return nil })
	data := noise(1024)
	for b.Loop() {
		srv.Publish(topic, data, nil)
		<-done
	}
}

// streamOpened tells when a stream's first request has been sent, after which the
// health knows of it.
func streamOpened(opened chan<- struct{}) option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return told{s, opened}, err
	}))
}

type told struct {
	grpc.ClientStream
	sent chan<- struct{}
}

func (s told) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	select {
	case s.sent <- struct{}{}:
	default:
	}
	return err
}
