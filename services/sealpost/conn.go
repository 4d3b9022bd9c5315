package main

import (
	"context"
	"fmt"
	"os/user"
	"strconv"
	"time"

	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
)

const environmentHelp = `  GOOGLE_CLOUD_PROJECT   the project
  SPANNER_DATABASE       projects/P/instances/I/databases/D
  LOCATION               region of the queues (default us-central1)
  DISPATCHER_URL         base URL of the dispatcher, where tasks are posted
  INVOKER                service account whose identity tasks carry
  POOL_QUEUES            shared queues, comma-separated
  MAX_QUEUES             queues that the region may have in all (default 1000)
  CONTROL_QUEUE          queue of control tasks (default sealpost-control)
  KEYSET_SECRET          secret that holds the keyset which seals endpoint keys
  KEYSET_VERSIONS        its version numbers in use, comma-separated
  EVENTS_TOPIC           topic of published events (default sealpost-events)
  INBOUND_TOPIC          topic of verified events (default sealpost-inbound)
  RECEIVER_URL           base URL of the receiver, for trigger
  EGRESS_…               which URLs may be dialled, and
  PAYLOAD_RETENTION, ROW_RETENTION  how long is kept what the command writes: as the
                         dispatcher has them, see its --help
`

// env reads a variable that the command cannot do without.
func (c *cli) env(name string) (string, error) {
	if v := c.getenv(name); v != "" {
		return v, nil
	}
	return "", usageError{fmt.Errorf("%s is not set: set it to your project's, or load the environment that 'sealpost dev' prints", name)}
}

func (c *cli) envOr(name, fallback string) string {
	if v := c.getenv(name); v != "" {
		return v
	}
	return fallback
}

func (c *cli) store(ctx context.Context) (*store.Store, error) {
	db, err := c.env("SPANNER_DATABASE")
	if err != nil {
		return nil, err
	}
	e := serve.NewEnv(c.getenv)
	keep := store.Retention{Payload: e.Duration("PAYLOAD_RETENTION", 0, time.Hour, store.MaxRetention), Row: e.Duration("ROW_RETENTION", 0, time.Hour, store.MaxRetention)}
	if err := e.Err(); err != nil {
		return nil, usageError{err}
	}
	return store.Open(ctx, db, store.Options{Retention: keep})
}

func (c *cli) queue(ctx context.Context) (*tasks.Queue, error) {
	cfg := tasks.Config{Location: c.envOr("LOCATION", "us-central1"), Pools: serve.SplitList(c.getenv("POOL_QUEUES")),
		Control: c.envOr("CONTROL_QUEUE", "sealpost-control")}
	for name, p := range map[string]*string{"GOOGLE_CLOUD_PROJECT": &cfg.Project, "DISPATCHER_URL": &cfg.Dispatcher, "INVOKER": &cfg.Invoker} {
		v, err := c.env(name)
		if err != nil {
			return nil, err
		}
		*p = v
	}
	e := serve.NewEnv(c.getenv)
	cfg.MaxQueues = int(e.Number("MAX_QUEUES", tasks.DefaultMaxQueues, 1, 1_000_000))
	if err := e.Err(); err != nil {
		return nil, usageError{err}
	}
	return tasks.New(ctx, cfg)
}

func (c *cli) sealer(ctx context.Context) (*secrets.Sealer, error) {
	project, err := c.env("GOOGLE_CLOUD_PROJECT")
	if err != nil {
		return nil, err
	}
	name, err := c.env("KEYSET_SECRET")
	if err != nil {
		return nil, err
	}
	var versions []int
	for _, s := range serve.SplitList(c.getenv("KEYSET_VERSIONS")) {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, usageError{fmt.Errorf("KEYSET_VERSIONS: %q is not a number", s)}
		}
		versions = append(versions, n)
	}
	client, err := secrets.NewClient(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Sealer(ctx, project, name, versions)
}

// actor is who the audit log names.
func actor() string {
	if u, err := user.Current(); err == nil {
		return "cli:" + u.Username
	}
	return "cli"
}
