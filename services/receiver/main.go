// Command receiver takes providers' webhooks at POST /in/{source}: it verifies
// them, publishes their raw bytes, and only then answers 2xx.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/receive"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/serve"
)

func main() { serve.Main("receiver", environment, run) }

func run(ctx context.Context, getenv func(string) string) error {
	cfg, err := load(getenv)
	if err != nil {
		return err
	}
	log, err := serve.NewLogger(os.Stdout, "receiver", getenv)
	if err != nil {
		return err
	}
	slog.SetDefault(log) // also for what libraries say
	l, err := serve.Listen(getenv)
	if err != nil {
		return err
	}
	defer l.Close()
	return receiver(ctx, cfg, l, log)
}

// receiver serves on l until ctx is done. It starts only if every listed version
// of every secret can be read and used.
func receiver(ctx context.Context, cfg config, l net.Listener, log *slog.Logger) (err error) {
	if err := cfg.readSecrets(ctx); err != nil {
		return err
	}
	p, err := bus.NewPublisher(ctx, cfg.Project, cfg.Topic, bus.PublisherOptions{})
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		err = errors.Join(err, p.Close(end))
	}()
	fetch, confirm := receive.Guarded(safedial.Policy{})
	rc, err := receive.New(receive.Config{
		Fetch: fetch, Confirm: confirm, Sources: cfg.Sources, Publisher: publisher{p}, Logger: log, ByteBudget: cfg.ByteBudget, ReadTimeout: cfg.ReadTimeout,
		TrustedHops: cfg.TrustedHops, ClientCertHeader: cfg.CertHeader,
	})
	if err != nil {
		return err
	}
	counting, stop := context.WithCancel(context.WithoutCancel(ctx))
	counted := make(chan error, 1)
	go func() { counted <- rc.Run(counting) }()
	err = serve.Run(ctx, l, Routes(rc, log), log)
	stop() // no request is left: the counts are final
	return errors.Join(err, <-counted)
}

// Routes is all that the receiver serves.
func Routes(rc *receive.Receiver, log *slog.Logger) http.Handler {
	return serve.WithHealth(rc.Routes(), nil, log)
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
