package fanout_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/localcloud"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// state is what a wire does.
type state int

const (
	passing state = iota
	frozen        // connections stand, and nothing passes
	cut           // connections break, and new ones are closed as soon as they are made
)

// wire is a TCP proxy that can fail.
type wire struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond
	state   state
	conns   map[net.Conn]bool
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{l: l, to: to, conns: map[net.Conn]bool{}}
	w.changed.L = &w.mu
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		_ = l.Close()
		w.be(cut)
		w.wg.Wait()
	})
	return w
}

func (w *wire) accept() {
	for {
		c, err := w.l.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.join(c) })
	}
}

func (w *wire) join(a net.Conn) {
	b, err := net.Dial("tcp", w.to)
	if err != nil {
		_ = a.Close()
		return
	}
	w.mu.Lock()
	whole := w.state != cut
	if whole {
		w.conns[a], w.conns[b] = true, true
	}
	w.mu.Unlock()
	if whole {
		var both sync.WaitGroup
		for _, d := range [][2]net.Conn{{a, b}, {b, a}} {
			both.Go(func() {
				_, _ = io.Copy(d[0], thawed{w, d[1]})
				_, _ = a.Close(), b.Close()
			})
		}
		both.Wait()
	}
	_, _ = a.Close(), b.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, a)
	delete(w.conns, b)
}

func (w *wire) be(now state) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = now
	w.changed.Broadcast()
	for c := range w.conns {
		if now == cut {
			_ = c.Close()
		}
	}
}

// thawed gives what it has read once the wire is not frozen.
type thawed struct {
	w *wire
	r io.Reader
}

func (t thawed) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	for t.w.state == frozen {
		t.w.changed.Wait()
	}
	return n, err
}

func (w *wire) options() []option.ClientOption {
	return []option.ClientOption{option.WithEndpoint(w.l.Addr().String()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
}

// burst is a crowd of senders, each of which sends a message until it is told that
// Pub/Sub has it, as providers do.
type burst struct {
	t      *testing.T
	p      *bus.Publisher
	sent   atomic.Int64
	failed atomic.Int64

	cutAt, healAfter int64 // messages sent, tries failed
	cut, heal        func()
	cutOnce          sync.Once
	healOnce         sync.Once
}

func (b *burst) send(id string, receipt string) {
	for try := 0; ; try++ {
		ev := webhook.Event{Tenant: "default", Source: "stripe", PublisherID: id, Type: "a.b", Body: []byte(exact + id), ReceivedAt: time.Now(), Receipt: fmt.Sprint(receipt, "-", try)}
		// The receiver's own deadline is twice as long; so is an outage that matters.
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
		err := b.p.PublishInbound(ctx, ev, "stripe")
		cancel()
		switch {
		case err == nil:
			if b.sent.Add(1) >= b.cutAt {
				b.cutOnce.Do(b.cut)
			}
			return
		case b.t.Context().Err() != nil:
			b.t.Errorf("%s was never sent: %v", id, err)
			return
		}
		if b.failed.Add(1) >= b.healAfter {
			b.healOnce.Do(b.heal)
		}
	}
}

// A burst, a tenth of it duplicates, while Pub/Sub is out of reach for some seconds,
// the senders' connections broken, the worker's frozen: everything that Pub/Sub took is stored exactly once, with
// one task, and nothing else is.
func TestBurstThroughAnOutage(t *testing.T) {
	t.Parallel()
	messages := 2000
	if testing.Short() {
		messages = 400
	}
	const crowd = 64
	distinct := messages * 9 / 10
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	in := b.ingester(fanout.Options{})
	project := topology(t, localcloud.ApplyOptions{Pull: true})
	broker := os.Getenv("PUBSUB_EMULATOR_HOST") // known by now
	senders, worker := newWire(t, broker), newWire(t, broker)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	handled := make(chan string, 100_000)
	var consuming sync.WaitGroup
	consuming.Go(func() {
		_ = bus.Subscribe(ctx, project, "sealpost-inbound-worker", bus.SubscribeOptions{ClientOptions: worker.options()}, func(ctx context.Context, m bus.Message) error {
			err := in.Handle(ctx, m, fanout.Inbound)
			if err == nil {
				handled <- m.Attributes["ce-id"]
			}
			return err
		})
	})

	p, err := bus.NewPublisher(t.Context(), project, "sealpost-inbound", bus.PublisherOptions{ClientOptions: senders.options()})
	if err != nil {
		t.Fatal(err)
	}
	s := &burst{t: t, p: p, cutAt: int64(messages / 3), healAfter: 3 * crowd, // about three seconds
		cut:  func() { senders.be(cut); worker.be(frozen) },
		heal: func() { senders.be(passing); worker.be(passing) }}
	ids := make(chan int)
	var sending sync.WaitGroup
	for range crowd {
		sending.Go(func() {
			for i := range ids {
				s.send(fmt.Sprint(i%distinct), fmt.Sprint(i))
			}
		})
	}
	for i := range messages {
		ids <- i
	}
	close(ids)
	sending.Wait()
	if err := p.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if s.failed.Load() < s.healAfter {
		t.Errorf("only %d tries failed: there was no outage", s.failed.Load())
	}
	deadline := time.After(2 * time.Minute)
	for seen := map[string]bool{}; len(seen) < distinct; {
		select {
		case id := <-handled:
			seen[id] = true
		case <-deadline:
			t.Fatalf("%d events have not been handled", distinct-len(seen))
		}
	}
	cancel()
	consuming.Wait()
	b.exactly(distinct)
}

// exactly checks that the store holds the events 0 to n-1 of the burst, each once and
// with one task, and nothing else.
func (b *bench) exactly(n int) {
	b.t.Helper()
	left := map[string]bool{}
	for i := range n {
		left[fmt.Sprint(i)] = true
	}
	total, duplicates := 0, int64(0)
	for page := (store.Page{Size: 200}); ; {
		rows, next, err := b.store.ListEvents(context.Background(), store.EventFilter{Tenant: "default"}, page)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, row := range rows {
			if !left[row.PublisherID] || row.Size != int64(len(exact)+len(row.PublisherID)) || row.State != webhook.EventAccepted {
				b.t.Errorf("unexpected: %+v", row)
			}
			delete(left, row.PublisherID)
			duplicates += row.Duplicates
		}
		total += len(rows)
		if page.Token = next; next == "" {
			break
		}
	}
	if total != n || len(left) != 0 || duplicates == 0 || len(b.dead()) != 0 {
		b.t.Errorf("%d events stored, %d missing, %d duplicates counted, %d dead messages; want %d events", total, len(left), duplicates, len(b.dead()), n)
	}
	times := map[webhook.AttemptKey]int{}
	for _, k := range b.tasks() {
		if times[k]++; times[k] > 1 {
			b.t.Errorf("%s has two tasks", k)
		}
	}
	if len(times) != n {
		b.t.Errorf("%d tasks for %d events", len(times), n)
	}
}
