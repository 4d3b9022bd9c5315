// Package system owns the whole of Sealpost in one process: the local cloud, its
// schema and topology, every service on a loopback port, and one sample source
// per scheme. `sealpost dev` and the tests of the whole path run on it.
//
// It refuses to be part of production: it listens on loopback only, and its
// services check callers no more than the emulators allow.
package system

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/console"
	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/localcloud"
	"github.com/sealpost/sealpost/internal/receive"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
)

// Names in the local cloud.
const (
	InboundTopic = "sealpost-inbound"
	EventsTopic  = "sealpost-events"
	keysetSecret = "sealpost-endpoint-keyset"
	invoker      = "sealpost-tasks@" + localcloud.DefaultProject + ".iam.gserviceaccount.com"
)

// Services by name.
const (
	Receiver   = "receiver"
	Worker     = "worker"
	Dispatcher = "dispatcher"
	Console    = "console"
)

// Options adjust a System. The zero value is what `sealpost dev` runs.
type Options struct {
	Cloud localcloud.Options
	Log   *slog.Logger // nil discards
	// Elsewhere holds the base URLs of services that run in other processes and are
	// not started here.
	Elsewhere map[string]string
	// Retry shortens Pub/Sub's and Cloud Tasks' waits after a failure of ours.
	Retry time.Duration
	// Pull has the worker pull from its subscriptions instead of being pushed to:
	// Pub/Sub's emulator pushes two messages at a time, however many wait.
	Pull bool
	// WorkerStep and DispatcherStep are the injected stops of fanout and deliver.
	WorkerStep, DispatcherStep func(ctx context.Context, step string) error
}

// System is a running Sealpost.
type System struct {
	Cloud    *localcloud.Cloud
	Store    *store.Store
	Queue    *tasks.Queue
	Sealer   *secrets.Sealer
	Database string
	// URLs are the services' base URLs by name.
	URLs    map[string]string
	Sources []Source

	env     map[string]string
	o       Options
	stop    context.CancelFunc
	serving sync.WaitGroup // ends with stop
	wg      sync.WaitGroup // ends with a closer
	mu      sync.Mutex
	failed  []error
	// closers run last to first.
	closers []func() error
}

// Start brings everything up and returns when all of it is ready. It sets the
// emulators' variables in this process's environment, since the ordinary clients
// read them there, and Close sets them back: one System at a time per process,
// unless the emulators of all are set before and shared.
func Start(ctx context.Context, o Options) (*System, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Cloud.Project == "" && serve.OnEmulators(os.Getenv) {
		// On emulators that somebody runs already, perhaps for another System: topics
		// and subscriptions must not be taken from it.
		o.Cloud.Project = fmt.Sprintf("%s-%08x", localcloud.DefaultProject, rand.Uint32())
	}
	s := &System{o: o, URLs: map[string]string{}}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *System) start(ctx context.Context) (err error) {
	if s.Cloud, err = localcloud.Start(ctx, s.o.Cloud); err != nil {
		return err
	}
	s.closers = append(s.closers, s.Cloud.Close)
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	handlers, err := s.handlers(run)
	if err != nil {
		return err
	}
	for name, l := range listeners {
		s.background(&s.serving, func() error { return serve.Run(run, l, handlers[name], s.o.Log.With("service", name)) })
	}
	for name := range listeners {
		if err := s.await(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// listen opens a loopback port per service that runs here.
func (s *System) listen() (map[string]net.Listener, error) {
	listeners := map[string]net.Listener{}
	for _, name := range []string{Receiver, Worker, Dispatcher, Console} {
		if url, ok := s.o.Elsewhere[name]; ok {
			s.URLs[name] = url
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		listeners[name] = l
		s.URLs[name] = "http://" + l.Addr().String()
	}
	return listeners, nil
}

// prepare makes the schema, the topology and the secrets, and opens the clients.
func (s *System) prepare(ctx context.Context) error {
	for k, v := range s.Cloud.Env() {
		if err := s.setenv(k, v); err != nil {
			return err
		}
	}
	var ddl []string
	for _, st := range store.Statements() {
		ddl = append(ddl, st.SQL)
	}
	var err error
	if s.Database, err = s.Cloud.NewDatabase(ctx, ddl); err != nil {
		return err
	}
	if _, err := s.Cloud.ApplyTopology(ctx, localcloud.ApplyOptions{Services: s.URLs, Pull: s.o.Pull, RetryBackoff: s.o.Retry}); err != nil {
		return err
	}
	topology, err := localcloud.LoadTopology()
	if err != nil {
		return err
	}
	sm, err := secrets.NewClient(ctx)
	if err != nil {
		return err
	}
	defer sm.Close()
	keyset, err := secrets.NewKeyset()
	if err != nil {
		return err
	}
	version, err := sm.Put(ctx, s.Cloud.Project(), keysetSecret, keyset)
	if err != nil {
		return err
	}
	if s.Sealer, err = sm.Sealer(ctx, s.Cloud.Project(), keysetSecret, []int{version}); err != nil {
		return err
	}
	if s.Sources, err = sampleSources(ctx, sm, s.Cloud.Project(), s.URLs[Receiver]); err != nil {
		return err
	}
	if s.Store, err = store.Open(ctx, s.Database, store.Options{Filter: new(fanout.Filters).Match}); err != nil {
		return err
	}
	s.closers = append(s.closers, func() error { s.Store.Close(); return nil })
	cfg := tasks.Config{Project: s.Cloud.Project(), Location: s.Cloud.Location(), Dispatcher: s.URLs[Dispatcher], Invoker: invoker,
		Pools: topology.PoolQueues(), Control: topology.ControlQueue(), MinBackoff: s.o.Retry, MaxBackoff: 10 * s.o.Retry, Lost: s.Store.LostQueue}
	if s.Queue, err = tasks.New(ctx, cfg); err != nil {
		return err
	}
	s.closers = append(s.closers, s.Queue.Close)
	s.env = s.Cloud.Env()
	for k, v := range map[string]string{
		"LOCATION": s.Cloud.Location(), "SPANNER_DATABASE": s.Database, "DISPATCHER_URL": s.URLs[Dispatcher], "INVOKER": invoker,
		"POOL_QUEUES": strings.Join(topology.PoolQueues(), ","), "CONTROL_QUEUE": topology.ControlQueue(), "KEYSET_SECRET": keysetSecret, "KEYSET_VERSIONS": fmt.Sprint(version),
		"INBOUND_TOPIC": InboundTopic, "RECEIVER_URL": s.URLs[Receiver], "EVENTS_TOPIC": EventsTopic, "EGRESS_POLICY": "dev",
	} {
		s.env[k] = v
	}
	return nil
}

// setenv sets a variable until Close: the next System of this process must not
// take this one's emulators for somebody else's.
func (s *System) setenv(name, value string) error {
	before, was := os.LookupEnv(name)
	if was && before == value {
		return nil
	}
	s.closers = append(s.closers, func() error {
		if was {
			return os.Setenv(name, before)
		}
		return os.Unsetenv(name)
	})
	return os.Setenv(name, value)
}

// handlers makes each service as its main does, but for settings. What goes on
// beside the requests ends with ctx.
func (s *System) handlers(ctx context.Context) (map[string]http.Handler, error) {
	handlers := map[string]http.Handler{}
	log := func(name string) *slog.Logger { return s.o.Log.With("service", name) }
	if _, elsewhere := s.o.Elsewhere[Receiver]; !elsewhere {
		h, err := s.receiver(ctx, log(Receiver))
		if err != nil {
			return nil, err
		}
		handlers[Receiver] = h
	}
	in := fanout.New(fanout.Options{Store: s.Store, Queue: s.Queue, Log: log(Worker), Step: s.o.WorkerStep})
	s.closers = append(s.closers, func() error { in.Close(); return nil })
	// Pub/Sub's emulator sends no token.
	if _, elsewhere := s.o.Elsewhere[Worker]; s.o.Pull && !elsewhere {
		s.pull(ctx, in)
	}
	handlers[Worker] = serve.WithHealth(in.Routes(), s.Store.Ping, log(Worker))

	events, err := bus.NewPublisher(ctx, s.Cloud.Project(), EventsTopic, bus.PublisherOptions{})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, closing(events))
	publish := func(ctx context.Context, m bus.EventMessage) error {
		_, err := events.PublishEvent(ctx, m)
		return err
	}
	topics, err := bus.NewTopics(ctx, s.Cloud.Project(), bus.PublisherOptions{})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, closing(topics))
	d := deliver.New(deliver.Options{Store: s.Store, Queue: s.Queue, Sealer: s.Sealer, Policy: safedial.Dev(), Version: serve.Version(),
		ConsoleURL: s.URLs[Console], Publish: publish, Publisher: topics, Topics: []string{"*"}, Log: log(Dispatcher), Step: s.o.DispatcherStep})
	s.closers = append(s.closers, func() error { d.Close(); return nil })
	auth := serve.Auth{Mode: serve.AuthIAM, Audience: s.URLs[Dispatcher], Emails: []string{invoker}}
	handlers[Dispatcher] = serve.WithHealth(auth.Wrap(d.Routes(), log(Dispatcher)), s.Store.Ping, log(Dispatcher))

	pages := http.NewServeMux()
	pages.Handle(console.KeysPath, console.NewKeys(s.Store, s.Sealer, log(Console), nil))
	pages.Handle("/", console.New(s.Store, log(Console), nil).Routes())
	handlers[Console] = serve.WithHealth(pages, s.Store.Ping, log(Console))
	return handlers, nil
}

// pull consumes both subscriptions until ctx is done.
func (s *System) pull(ctx context.Context, in *fanout.Ingester) {
	for subscription, kind := range map[string]fanout.Kind{InboundTopic + "-worker": fanout.Inbound, EventsTopic + "-worker": fanout.Events} {
		o := bus.SubscribeOptions{Log: s.o.Log.With("service", Worker), Grace: time.Second}
		s.background(&s.serving, func() error {
			return bus.Subscribe(ctx, s.Cloud.Project(), subscription, o, func(ctx context.Context, m bus.Message) error { return in.Handle(ctx, m, kind) })
		})
	}
}

func (s *System) receiver(ctx context.Context, log *slog.Logger) (http.Handler, error) {
	p, err := bus.NewPublisher(ctx, s.Cloud.Project(), InboundTopic, bus.PublisherOptions{})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, closing(p))
	fetch, confirm := receive.Guarded(safedial.Policy{})
	cfg := receive.Config{Publisher: publisher{p}, Logger: log, Fetch: fetch, Confirm: confirm}
	for _, src := range s.Sources {
		cfg.Sources = append(cfg.Sources, src.config)
	}
	rc, err := receive.New(cfg)
	if err != nil {
		return nil, err
	}
	counting, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.background(&s.wg, func() error { return rc.Run(counting) })
	// Once no request is left the counts are final; Run publishes them and returns.
	s.closers = append(s.closers, func() error { stop(); s.wg.Wait(); return nil })
	return serve.WithHealth(rc.Routes(), nil, log), nil
}

// closing ends a publisher, which has nothing left to send.
func closing(p interface{ Close(context.Context) error }) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return p.Close(ctx)
	}
}

// publisher gives the receiver's counts the form in which they travel.
type publisher struct{ *bus.Publisher }

func (p publisher) PublishCounts(ctx context.Context, counts []receive.Count) error {
	report := make([]bus.Count, len(counts))
	for i, c := range counts {
		report[i] = bus.Count(c)
	}
	return p.Publisher.PublishCounts(ctx, report)
}

func (s *System) background(wg *sync.WaitGroup, f func() error) {
	wg.Go(func() {
		if err := f(); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.failed = append(s.failed, err)
		}
	})
}

// await returns when the service says that it is ready.
func (s *System) await(ctx context.Context, name string) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URLs[name]+serve.ReadyPath, nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
			if res.StatusCode < 300 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the %s: %w", name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Env is the environment with which any other command or client, ours or
// Google's, talks to this system. The map is the caller's.
func (s *System) Env() map[string]string {
	env := make(map[string]string, len(s.env))
	for k, v := range s.env {
		env[k] = v
	}
	return env
}

// Close ends the services, then the local cloud with its children, and returns
// when all are gone. Idempotent.
func (s *System) Close() error {
	if s.stop != nil {
		s.stop()
	}
	http.DefaultClient.CloseIdleConnections()
	s.serving.Wait()
	var errs []error
	closers := s.closers
	s.closers = nil
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i]())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	errs = append(errs, s.failed...)
	s.failed = nil
	return errors.Join(errs...)
}
