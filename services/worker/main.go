// Command worker turns the messages of both topics, and of those that providers
// publish to themselves, into deliveries with tasks.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
)

func main() { serve.Main("worker", environment, run) }

func run(ctx context.Context, getenv func(string) string) error {
	cfg, err := load(getenv)
	if err != nil {
		return err
	}
	log, err := serve.NewLogger(os.Stdout, "worker", getenv)
	if err != nil {
		return err
	}
	slog.SetDefault(log) // also for what libraries say
	st, err := store.Open(ctx, cfg.Database, store.Options{Retention: cfg.retention, Filter: new(fanout.Filters).Match})
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
	in := fanout.New(cfg.fanout(st, queue, log))
	defer in.Close()
	l, err := serve.Listen(getenv)
	if err != nil {
		return err
	}
	if cfg.Mode == modePush {
		return serve.Run(ctx, l, Routes(cfg.auth.Wrap(in.Routes(), log), st.Ping, log), log)
	}
	ctx, stop := context.WithCancel(ctx)
	ready, wait := pull(ctx, &cfg, in, log)
	defer wait()
	defer stop() // also where serving fails
	return serve.Run(ctx, l, Routes(http.NotFoundHandler(), func(ctx context.Context) error { return errors.Join(st.Ping(ctx), ready()) }, log), log)
}

// Routes is all that the worker serves: what messages are pushed to, and health.
func Routes(push http.Handler, ready func(context.Context) error, log *slog.Logger) http.Handler {
	return serve.WithHealth(push, ready, log)
}

// pull consumes the subscriptions until ctx is done. ready says whether all can
// be; wait returns once what was in work is settled.
func pull(ctx context.Context, cfg *config, in *fanout.Ingester, log *slog.Logger) (ready func() error, wait func()) {
	var wg sync.WaitGroup
	var healths []*bus.Health
	for subscription, kind := range cfg.pulled {
		health := bus.NewHealth(nil)
		healths = append(healths, health)
		wg.Go(func() {
			// Ends with ctx only, and then without an error.
			_ = bus.Subscribe(ctx, cfg.Project, subscription, cfg.subscribe(health, log), func(ctx context.Context, m bus.Message) error {
				return in.Handle(ctx, m, kind)
			})
		})
	}
	ready = func() error {
		var errs []error
		for _, h := range healths {
			errs = append(errs, h.Ready())
		}
		return errors.Join(errs...)
	}
	return ready, wg.Wait
}
