package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/webhook"
)

const (
	project = "sealpost-test"
	topic   = "projects/" + project + "/topics/events"
)

// broker is Pub/Sub's in-process fake with one topic. It takes messages as large
// as Pub/Sub does.
func broker(t testing.TB, opts ...pstest.ServerReactorOption) (*pstest.Server, []option.ClientOption) {
	t.Helper()
	srv := pstest.NewServerWithAddress("127.0.0.1:0", opts...)
	t.Cleanup(func() { srv.Close() })
	if _, err := srv.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic}); err != nil {
		t.Fatal(err)
	}
	_, addr := serve(t, srv, "127.0.0.1:0")
	return srv, clientOptions(addr)
}

// serve lets the fake answer at an address of our choice.
func serve(t testing.TB, srv *pstest.Server, addr string) (*grpc.Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(20 << 20))
	pubsubpb.RegisterPublisherServer(g, &srv.GServer)
	pubsubpb.RegisterSubscriberServer(g, &srv.GServer)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return g, l.Addr().String()
}

func clientOptions(addr string) []option.ClientOption {
	return []option.ClientOption{option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
}

func publisher(t testing.TB, o bus.PublisherOptions) *bus.Publisher {
	t.Helper()
	p, err := bus.NewPublisher(t.Context(), project, "events", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = p.Close(ctx)
	})
	return p
}

func received(m *pstest.Message) bus.Message {
	return bus.Message{ID: m.ID, Data: m.Data, Attributes: m.Attributes, OrderingKey: m.OrderingKey, PublishTime: m.PublishTime}
}

func noise(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func inbound() webhook.Event {
	return webhook.Event{
		Tenant: "acme", Source: "stripe-eu", PublisherID: "evt_1", Type: "invoice.paid", Subject: "in_1", OrderingKey: "cus_1",
		ContentType: "application/json", Body: []byte("\x80\xff{\"a\":0.0,\"b\":\"\\u001B\",\"c\":1152921504606846977}\n"),
		Headers:    []webhook.Header{{Name: "Stripe-Signature", Value: "t=1,v1=<&>"}, {Name: "X-Odd", Value: "\xe9\xff"}, {Name: "X-Empty"}, {Name: "X-Long", Value: strings.Repeat("aé€😀", 900)}},
		OccurredAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), ReceivedAt: time.Date(2026, 1, 2, 3, 4, 6, 7, time.UTC), Receipt: "r-1",
	}
}

func TestPublishInboundRoundTrip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*webhook.Event)
		want   func(*webhook.Event) // beyond the same; nil for nothing
	}{
		{"everything", func(*webhook.Event) {}, nil},
		{"only what must be", func(e *webhook.Event) {
			*e = webhook.Event{Tenant: "default", Source: "s", PublisherID: "1", Type: "t", ReceivedAt: e.ReceivedAt, Receipt: "r"}
		}, nil},
		{"an id that nobody signed", func(e *webhook.Event) { e.UnsignedID = true }, nil},
		{"whose replays are refused", func(e *webhook.Event) { e.UnsignedID, e.RefuseReplay = true, true }, nil},
		{"marked by the receiver", func(e *webhook.Event) {
			e.Flags = []string{webhook.FlagInvalidSchema, webhook.FlagDedupeFallback}
		}, nil},
		{"marks of a newer receiver", func(e *webhook.Event) {
			e.Flags = []string{"brand_new", webhook.FlagInvalidSchema, webhook.FlagInvalidSchema}
		}, func(e *webhook.Event) { e.Flags = []string{webhook.FlagInvalidSchema} }},
		{"a refusal without its reason", func(e *webhook.Event) { e.RefuseReplay = true }, func(e *webhook.Event) { e.RefuseReplay = false }},
		{"25 MB that compress", func(e *webhook.Event) { e.Body = bytes.Repeat([]byte("{\"x\": 1.0}\n"), 25<<20/11) }, nil},
		{"the largest body that does not compress", func(e *webhook.Event) { e.Headers, e.Body = nil, noise(bus.MaxMessageBytes-512) }, nil},
		{"id that must be hashed", func(e *webhook.Event) { e.PublisherID = strings.Repeat("x", 513) }, func(e *webhook.Event) { e.PublisherID = webhook.CanonicalID(e.PublisherID) }},
		{"unusable media type", func(e *webhook.Event) { e.ContentType = "\xff" }, func(e *webhook.Event) { e.ContentType = "" }},
		{"time that cannot be written", func(e *webhook.Event) { e.OccurredAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, func(e *webhook.Event) { e.OccurredAt = time.Time{} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv, opts := broker(t)
			p := publisher(t, bus.PublisherOptions{ClientOptions: opts})
			ev := inbound()
			c.change(&ev)
			if err := p.PublishInbound(t.Context(), ev, "stripe"); err != nil {
				t.Fatal(err)
			}
			msgs := srv.Messages()
			if len(msgs) != 1 {
				t.Fatalf("%d messages", len(msgs))
			}
			withinLimits(t, msgs[0])
			m := received(msgs[0])
			got, err := bus.DecodeInbound(m)
			if err != nil {
				t.Fatal(err)
			}
			if c.want != nil {
				c.want(&ev)
			}
			ev.Seal()
			sameEvent(t, got, ev)
			if m.Scheme() != "stripe" || m.IsCounts() {
				t.Errorf("scheme %q, counts %t", m.Scheme(), m.IsCounts())
			}
		})
	}
}

func withinLimits(t *testing.T, m *pstest.Message) {
	t.Helper()
	n := len(m.Data)
	for k, v := range m.Attributes {
		if n += len(k) + len(v); len(k) > 256 || len(v) > 1024 {
			t.Errorf("attribute %s has %d bytes", k, len(v))
		}
	}
	if n > bus.MaxMessageBytes || len(m.Attributes) > 100 || m.OrderingKey != "" {
		t.Errorf("message of %d bytes with %d attributes and ordering key %q", n, len(m.Attributes), m.OrderingKey)
	}
}

// What does not fit or cannot be decoded is refused before it is sent.
func TestPublishRefusals(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	p := publisher(t, bus.PublisherOptions{ClientOptions: opts})
	in := func(f func(*webhook.Event)) error {
		e := inbound()
		f(&e)
		return p.PublishInbound(t.Context(), e, "x")
	}
	out := func(e bus.EventMessage) error { _, err := p.PublishEvent(t.Context(), e); return err }
	for _, c := range []struct {
		name  string
		err   error
		large bool
	}{
		{"body that does not compress", in(func(e *webhook.Event) { e.Body = noise(bus.MaxMessageBytes) }), true},
		{"body beyond the request limit", in(func(e *webhook.Event) { e.Body = make([]byte, 32<<20+1) }), true},
		{"headers beyond the attributes", in(func(e *webhook.Event) { e.Headers = []webhook.Header{{Name: "X", Value: strings.Repeat("x", 80<<10)}} }), true},
		{"subject", in(func(e *webhook.Event) { e.Subject = strings.Repeat("s", 1025) }), true},
		{"invalid subject", in(func(e *webhook.Event) { e.Subject = "\xff" }), false},
		{"source of published events", in(func(e *webhook.Event) { e.Source = "app" }), false},
		{"tenant", in(func(e *webhook.Event) { e.Tenant = "" }), false},
		{"type", in(func(e *webhook.Event) { e.Type = "a*" }), false},
		{"id", in(func(e *webhook.Event) { e.PublisherID = "" }), false},
		{"published type", out(bus.EventMessage{}), false},
		{"published tenant", out(bus.EventMessage{Type: "a", Tenant: "A"}), false},
		{"published source", out(bus.EventMessage{Type: "a", Source: "a\nb"}), false},
		{"published CloudEvent in a CloudEvent", out(bus.EventMessage{Type: "a", ContentType: "application/cloudevents+json"}), false},
		{"published data", out(bus.EventMessage{Type: "a", Data: noise(bus.MaxMessageBytes)}), true},
		{"counts", p.PublishCounts(t.Context(), []bus.Count{{Source: "s", Reason: "r", Minute: published, Reporter: "x"}}), false},
		{"too many counts", p.PublishCounts(t.Context(), make([]bus.Count, 5001)), true},
	} {
		var l interface{ TooLarge() bool }
		if c.err == nil || !bus.Permanent(c.err) || errors.Is(c.err, bus.ErrTooLarge) != c.large || (errors.As(c.err, &l) && l.TooLarge()) != c.large {
			t.Errorf("%s: got %v", c.name, c.err)
		}
	}
	if n := len(srv.Messages()); n != 0 {
		t.Errorf("%d messages were sent", n)
	}
}

// The boundary is that of the whole request: one byte more is refused.
func TestPublishBoundary(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	p := publisher(t, bus.PublisherOptions{ClientOptions: opts})
	var last error
	lo, hi := bus.MaxMessageBytes-256, bus.MaxMessageBytes // lo fits, hi does not
	data := noise(hi)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if _, err := p.PublishEvent(t.Context(), bus.EventMessage{Type: "a.b", Data: data[:mid]}); err == nil {
			lo = mid
		} else {
			hi, last = mid, err
		}
		srv.ClearMessages()
	}
	var e *bus.TooLargeError
	if !errors.As(last, &e) || e.Size != bus.MaxMessageBytes+1 {
		t.Errorf("smallest refusal at %d bytes of data: %v", hi, last)
	}
}

func TestPublishEventRoundTrip(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	p := publisher(t, bus.PublisherOptions{ClientOptions: opts})
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for i, e := range []bus.EventMessage{
		{Type: "a.b"},
		{Tenant: "acme", ID: "1", Type: "a.b", Source: "/shop/é", Subject: "s", OrderingKey: "k", ContentType: "text/plain", Time: at, Data: []byte("\x80\xff\x00\n")},
		{Type: "a.b", Data: bytes.Repeat([]byte("0.0 "), 4<<20)},
	} {
		id, err := p.PublishEvent(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		m := received(srv.Message(id))
		got, err := bus.DecodeEvent(m)
		if err != nil {
			t.Fatal(err)
		}
		want := webhook.Event{Tenant: e.Tenant, Source: bus.EventSource(e.Source), PublisherID: e.ID, Type: e.Type, Subject: e.Subject, OrderingKey: e.OrderingKey,
			ContentType: e.ContentType, Body: e.Data, OccurredAt: e.Time, ReceivedAt: m.PublishTime, Receipt: id}
		if i != 1 {
			want.Tenant, want.PublisherID = webhook.DefaultTenant, id
		}
		want.Seal()
		sameEvent(t, got, want)
	}
}

func TestPublishCounts(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	p := publisher(t, bus.PublisherOptions{ClientOptions: opts})
	if err := p.PublishCounts(t.Context(), nil); err != nil || len(srv.Messages()) != 0 {
		t.Fatalf("nothing: %v, %d messages", err, len(srv.Messages()))
	}
	minute := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	in := []bus.Count{{Source: "stripe", Reason: "bad_signature", Minute: minute.Add(30 * time.Second), Count: 3, Reporter: "i-1/7"}, {Source: "github", Reason: "type_not_wanted", Minute: minute, Count: 1 << 40, Reporter: "i-1/7"},
		{Source: "github", Reason: webhook.CountSecretUsed, Minute: minute, Count: 1, Reporter: "i-1/7", Secret: "source-github", Version: 2, Scheme: "github"},
		{Source: "sns", Reason: webhook.CountSecretListed, Minute: minute, Count: 1, Reporter: "i-1/7", Scheme: "aws-sns"}}
	if err := p.PublishCounts(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	m := received(srv.Messages()[0])
	got, err := bus.DecodeCounts(m)
	in[0].Minute = minute
	if err != nil || !m.IsCounts() || !slices.Equal(got, in) || got[1].AboutSecret() || !got[2].AboutSecret() || !got[3].AboutSecret() {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{``, `{}`, `[{}]`, `[{"source":"s","reason":"r","minute":"2026-01-02T03:04:00Z","count":-1,"reporter":"x"}]`, `[{"source":"S","reason":"r","minute":"2026-01-02T03:04:00Z","count":1,"reporter":"x"}]`, `[{"source":"s","reason":"r","minute":"now","count":1,"reporter":"x"}]`,
		`[{"source":"s","reason":"secret_used","minute":"2026-01-02T03:04:00Z","count":1,"reporter":"x","secret":"a\u0000"}]`, `[{"source":"s","reason":"secret_used","minute":"2026-01-02T03:04:00Z","count":1,"reporter":"x","version":-1}]`} {
		if _, err := bus.DecodeCounts(message(bad)); reason(t, err) != bus.CodeBadCounts {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestTraceContextIsCarried(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	p := publisher(t, bus.PublisherOptions{ClientOptions: opts})
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled})
	id, err := p.PublishEvent(trace.ContextWithSpanContext(t.Context(), sc), bus.EventMessage{Type: "a.b"})
	if err != nil {
		t.Fatal(err)
	}
	got := trace.SpanContextFromContext(received(srv.Message(id)).Context(context.Background()))
	if got.TraceID() != sc.TraceID() || got.SpanID() != sc.SpanID() {
		t.Errorf("got %v", got)
	}
}

// Broken kept headers are reported, never half read.
func TestDecodeInboundRefusals(t *testing.T) {
	t.Parallel()
	ok := []string{"ce-type", "a.b", "ce-source", "stripe", "ce-id", "1"}
	for _, c := range []struct {
		name string
		kv   []string
		want bus.Code
	}{
		{"fine", nil, ""},
		{"no source", []string{"ce-source", ""}, bus.CodeBadSource},
		{"source of published events", []string{"ce-source", "app"}, bus.CodeBadSource},
		{"source like a published one", []string{"ce-source", "app:x"}, bus.CodeBadSource},
		{"no type", []string{"ce-type", ""}, bus.CodeNoType},
		{"bad type", []string{"ce-type", "a b"}, bus.CodeBadType},
		{"bad tenant", []string{"tenant", "A"}, bus.CodeBadTenant},
		{"first piece missing", []string{"sealpost-headers-1", "[]"}, bus.CodeBadHeaders},
		{"middle piece missing", []string{"sealpost-headers-0", "[", "sealpost-headers-2", "]"}, bus.CodeBadHeaders},
		{"pieces cut", []string{"sealpost-headers-0", "[{"}, bus.CodeBadHeaders},
		{"corrupt body", []string{"sealpost-encoding", "zstd"}, bus.CodeBadEncoding},
		{"bad times count as absent", []string{"ce-time", "x", "sealpost-received", "y"}, ""},
	} {
		m := message("body", append(ok[:len(ok):len(ok)], c.kv...)...)
		ev, err := bus.DecodeInbound(m)
		if got := reason(t, err); got != c.want {
			t.Errorf("%s: got %q (%v), want %q", c.name, got, err, c.want)
		}
		if err == nil && (ev.ReceivedAt != published || ev.Receipt != "77" || ev.Tenant != "default") {
			t.Errorf("%s: got %+v", c.name, ev)
		}
	}
	if _, err := bus.DecodeInbound(bus.Message{ID: "2"}); reason(t, err) != bus.CodeEmpty {
		t.Errorf("nothing: %v", err)
	}
}

// failing makes publish requests fail that hold the given ordering key.
type failing struct {
	key    atomic.Pointer[string]
	code   codes.Code
	failed atomic.Int64
}

func (f *failing) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if r, ok := req.(*pubsubpb.PublishRequest); ok {
		for _, m := range r.Messages {
			if k := f.key.Load(); k != nil && m.Attributes["ordering_key"] == *k {
				f.failed.Add(1)
				return status.Error(f.code, "injected")
			}
		}
	}
	return next(ctx, method, req, reply, cc, opts...)
}

// After a failed publish nothing stays paused: the same key goes on without a
// restart, in order, and other keys never notice.
func TestPublishRecoversAfterFailure(t *testing.T) {
	t.Parallel()
	srv, opts := broker(t)
	f := &failing{code: codes.DeadlineExceeded}
	opts = append(opts, option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(f.intercept)))
	p := publisher(t, bus.PublisherOptions{ClientOptions: opts, Timeout: 200 * time.Millisecond})
	send := func(key string, n int) error {
		_, err := p.PublishEvent(t.Context(), bus.EventMessage{Type: "a.b", OrderingKey: key, ID: fmt.Sprint(key, n)})
		return err
	}
	if err := send("K", 1); err != nil {
		t.Fatal(err)
	}
	key := "K"
	f.key.Store(&key)
	if err := send("K", 2); err == nil || bus.Permanent(err) {
		t.Fatalf("got %v, want a failure that may heal", err)
	}
	if err := send("L", 1); err != nil {
		t.Fatalf("another key: %v", err)
	}
	f.key.Store(nil)
	for n := 2; n <= 4; n++ {
		if err := send("K", n); err != nil {
			t.Fatalf("after healing: %v", err)
		}
	}
	var order []string
	for _, m := range srv.Messages() {
		if m.Attributes["ordering_key"] == "K" {
			order = append(order, m.Attributes["ce-id"])
		}
	}
	if got := strings.Join(order, " "); got != "K1 K2 K3 K4" {
		t.Errorf("order is %s", got)
	}
	if f.failed.Load() == 0 {
		t.Error("nothing was injected")
	}
}

// The errors of Pub/Sub: InvalidArgument never heals, the rest may.
func TestPublishErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code      codes.Code
		permanent bool
	}{
		{codes.InvalidArgument, true}, {codes.NotFound, false}, {codes.PermissionDenied, false}, {codes.Unauthenticated, false}, {codes.FailedPrecondition, false},
	} {
		_, opts := broker(t, pstest.WithErrorInjection("Publish", c.code, "injected"))
		p := publisher(t, bus.PublisherOptions{ClientOptions: opts})
		err := p.PublishInbound(t.Context(), inbound(), "x")
		if err == nil || bus.Permanent(err) != c.permanent || status.Code(errors.Unwrap(err)) != c.code && !c.permanent {
			t.Errorf("%s: got %v", c.code, err)
		}
	}
}

// A publish never outlives its context, neither waiting for an answer nor for
// room.
func TestPublishEndsWithContext(t *testing.T) {
	t.Parallel()
	_, opts := broker(t)
	release := make(chan struct{})
	entered := make(chan struct{}, 8)
	hang := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
		entered <- struct{}{}
		<-release
		return next(ctx, method, req, reply, cc, o...)
	}
	opts = append(opts, option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(hang)))
	p := publisher(t, bus.PublisherOptions{ClientOptions: opts, MaxOutstandingMessages: 1})
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	send := func() { errs <- p.PublishInbound(ctx, inbound(), "x") }
	go send()
	<-entered // the first holds the only place
	go send()
	cancel()
	for range 2 {
		if err := <-errs; !errors.Is(err, context.Canceled) || bus.Permanent(err) {
			t.Errorf("got %v", err)
		}
	}
	close(release)
}

func BenchmarkPublishInbound(b *testing.B) {
	srv, opts := broker(b)
	p := publisher(b, bus.PublisherOptions{ClientOptions: opts})
	ev := inbound()
	ev.Body = noise(1024)
	b.ReportAllocs()
	var wg sync.WaitGroup
	next := make(chan struct{})
	for range 64 {
		wg.Go(func() {
			for range next {
				if err := p.PublishInbound(b.Context(), ev, "x"); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	srv.ClearMessages()
}

func ExamplePublisher_PublishEvent() {
	srv := pstest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	_, _ = srv.GServer.CreateTopic(ctx, &pubsubpb.Topic{Name: topic})
	p, err := bus.NewPublisher(ctx, project, "events", bus.PublisherOptions{ClientOptions: clientOptions(srv.Addr)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close(ctx)
	id, err := p.PublishEvent(ctx, bus.EventMessage{Tenant: "acme", ID: "inv-1", Type: "invoice.paid", ContentType: "application/json", Data: []byte(`{"total": 10.0}`)})
	if err != nil {
		fmt.Println(err)
		return
	}
	m := srv.Message(id)
	ev, err := bus.DecodeEvent(bus.Message{ID: m.ID, Attributes: m.Attributes, Data: m.Data, PublishTime: m.PublishTime})
	fmt.Println(ev.Source, ev.Tenant, ev.Type, ev.PublisherID, string(ev.Body), err)
	// Output: app acme invoice.paid inv-1 {"total": 10.0} <nil>
}
