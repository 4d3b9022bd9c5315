// Command dispatcher makes the attempts that Cloud Tasks calls for: it claims,
// signs, sends, decides, records and schedules the next.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
)

func main() { serve.Main("dispatcher", environment, run) }

func run(ctx context.Context, getenv func(string) string) error {
	cfg, err := load(getenv)
	if err != nil {
		return err
	}
	log, err := serve.NewLogger(os.Stdout, "dispatcher", getenv)
	if err != nil {
		return err
	}
	slog.SetDefault(log) // also for what libraries say
	sm, err := secrets.NewClient(ctx)
	if err != nil {
		return err
	}
	defer sm.Close()
	sealer, err := sm.Sealer(ctx, cfg.Project, cfg.KeysetSecret, cfg.KeysetVersions)
	if err != nil {
		return fmt.Errorf("KEYSET_SECRET, KEYSET_VERSIONS: %w", err)
	}
	st, err := store.Open(ctx, cfg.Database, store.Options{Retention: cfg.retention})
	if err != nil {
		return err
	}
	defer st.Close()
	cfg.tasks.Lost = st.LostQueue
	queue, err := tasks.New(ctx, cfg.tasks)
	if err != nil {
		return err
	}
	defer queue.Close()
	events, err := bus.NewPublisher(ctx, cfg.Project, cfg.EventsTopic, bus.PublisherOptions{})
	if err != nil {
		return err
	}
	defer closeWithin(events.Close, time.Second)
	publish := func(ctx context.Context, m bus.EventMessage) error {
		_, err := events.PublishEvent(ctx, m)
		return err
	}
	topics, err := bus.NewTopics(ctx, cfg.Project, bus.PublisherOptions{})
	if err != nil {
		return err
	}
	defer closeWithin(topics.Close, time.Second)
	d := deliver.New(deliver.Options{Store: st, Queue: queue, Sealer: sealer, Policy: cfg.policy, Proxy: cfg.proxy, ProbeURL: cfg.ProbeURL,
		ConsoleURL: cfg.ConsoleURL, Publish: publish, Publisher: topics, Topics: cfg.Topics, MaxInFlight: cfg.MaxInFlight,
		Version: serve.Version(), Log: log})
	defer d.Close()
	if err := d.Declare(ctx, cfg.Revision, cfg.Declared); err != nil {
		return fmt.Errorf("declared endpoints: %w", err)
	}

	ready := func(ctx context.Context) error { return errors.Join(st.Ping(ctx), d.Ready(ctx)) }
	l, err := serve.Listen(getenv)
	if err != nil {
		return err
	}
	return serve.Run(ctx, l, serve.WithHealth(cfg.auth.Wrap(d.Routes(), log), ready, log), log)
}

// closeWithin has nothing left to send: every publish has been waited for.
func closeWithin(closing func(context.Context) error, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := closing(ctx); err != nil {
		slog.Warn("close a publisher", slog.String("error", err.Error()))
	}
}
