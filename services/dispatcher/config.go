package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
)

// config is everything that the dispatcher is told.
type config struct {
	Project        string        `env:"GOOGLE_CLOUD_PROJECT, required"`
	Location       string        `env:"LOCATION, default=us-central1"`
	Database       string        `env:"SPANNER_DATABASE, required"`
	DispatcherURL  string        `env:"DISPATCHER_URL, required"`
	Invoker        string        `env:"INVOKER, required"`
	Pools          []string      `env:"POOL_QUEUES, required"`
	KeysetSecret   string        `env:"KEYSET_SECRET, required"`
	KeysetVersions []int         `env:"KEYSET_VERSIONS, required"`
	ProbeURL       string        `env:"EGRESS_PROBE_URL"`
	Payload        time.Duration `env:"PAYLOAD_RETENTION"`
	Row            time.Duration `env:"ROW_RETENTION"`

	policy safedial.Policy
	auth   serve.Auth
}

const environment = `usage: dispatcher [--version]

Serves POST /attempt and /queue-ready for Cloud Tasks, until SIGTERM. Settings:

  GOOGLE_CLOUD_PROJECT   the project (needed)
  LOCATION               region of the queues (default us-central1)
  SPANNER_DATABASE       projects/P/instances/I/databases/D (needed)
  DISPATCHER_URL         this service's own base URL, where next attempts are posted (needed)
  INVOKER                service account whose identity tasks carry (needed)
  POOL_QUEUES            shared queues, comma-separated (needed)
  KEYSET_SECRET          secret with the keyset that seals endpoint keys (needed)
  KEYSET_VERSIONS        its version numbers in use, comma-separated (needed)
  PAYLOAD_RETENTION      how long payloads are kept (default 720h)
  ROW_RETENTION          how long event rows are kept (default 1080h, above 744h)
  EGRESS_POLICY          strict (default) or dev, beside an emulator only
  EGRESS_PORTS           ports that may be dialled (default 443,8443)
  EGRESS_ALLOW_HOSTS     names exempt from the rules for local and Google-hosted names
  EGRESS_ALLOW_PREFIXES  networks permitted although they are not public
  EGRESS_PROBE_URL       must be reached before failures to connect count as the endpoint's
  AUTH                   iam (behind Cloud Run's check), verify, or none beside an emulator (needed)
  AUDIENCE               audience of the callers' tokens
  CALLERS                service accounts that may call, comma-separated (default INVOKER)
  HOST, PORT             address to listen on (default every interface, 8080)
  LOG_FORMAT, LOG_LEVEL  json or text; debug, info, warn or error
`

func usage() { fmt.Fprint(os.Stderr, environment) }

// load reads and checks every setting, and reports all faults at once.
func load(ctx context.Context, getenv func(string) string) (config, error) {
	var cfg config
	errs := []error{envconfig.ProcessWith(ctx, &envconfig.Config{Target: &cfg, Lookuper: serve.Lookuper(getenv)})}
	var err error
	if cfg.policy, err = deliver.PolicyFromEnv(getenv); err != nil {
		errs = append(errs, err)
	}
	if cfg.auth, err = serve.AuthFromEnv(getenv, "CALLERS", cfg.Invoker); err != nil {
		errs = append(errs, err)
	}
	if err := cfg.retention().Validate(); err != nil {
		errs = append(errs, fmt.Errorf("PAYLOAD_RETENTION, ROW_RETENTION: %w", err))
	}
	if cfg.ProbeURL != "" {
		if _, err := cfg.policy.CheckURL(cfg.ProbeURL); err != nil {
			errs = append(errs, fmt.Errorf("EGRESS_PROBE_URL: %w", err))
		}
	}
	return cfg, errors.Join(errs...)
}

func (c *config) retention() store.Retention { return store.Retention{Payload: c.Payload, Row: c.Row} }

func (c *config) tasks() tasks.Config {
	return tasks.Config{Project: c.Project, Location: c.Location, Dispatcher: c.DispatcherURL, Invoker: c.Invoker, Pools: c.Pools}
}
