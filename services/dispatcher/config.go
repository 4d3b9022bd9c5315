package main

import (
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// config is everything that the dispatcher is told.
type config struct {
	Project, Database string
	KeysetSecret      string
	KeysetVersions    []int
	ProbeURL          string
	EventsTopic       string
	MaxInFlight       int
	ConsoleURL        string
	Topics            []string
	Declared          []webhook.Endpoint
	Revision          store.Revision

	tasks     tasks.Config
	retention store.Retention
	policy    safedial.Policy
	proxy     *safedial.Proxy
	auth      serve.Auth
}

const environment = `usage: dispatcher [--version]

Serves POST /attempt, /control and /queue-ready for Cloud Tasks, until SIGTERM. Settings:

  GOOGLE_CLOUD_PROJECT   the project (needed)
  LOCATION               region of the queues (default us-central1)
  SPANNER_DATABASE       projects/P/instances/I/databases/D (needed)
  DISPATCHER_URL         this service's own base URL, where next attempts are posted (needed)
  INVOKER                service account whose identity tasks carry (needed)
  POOL_QUEUES            shared queues, comma-separated (needed)
  MAX_QUEUES             queues that the region may have in all (default 1000, the usual quota)
  CONTROL_QUEUE          queue of control tasks (default sealpost-control)
  EVENTS_TOPIC           where notices for endpoints' owners are published (default sealpost-events)
  KEYSET_SECRET          secret with the keyset that seals endpoint keys (needed)
  KEYSET_VERSIONS        its version numbers in use, comma-separated (needed)
  MAX_IN_FLIGHT          attempts at once, as Cloud Run's concurrency (default 250)
  PAYLOAD_RETENTION      how long payloads are kept (default 720h)
  ROW_RETENTION          how long event rows are kept (default 1080h, above 744h)
  EGRESS_POLICY          strict (default) or dev, beside an emulator only
  EGRESS_PORTS           ports that may be dialled (default 443,8443)
  EGRESS_ALLOW_HOSTS     names exempt from the rules for local and Google-hosted names
  EGRESS_ALLOW_PREFIXES  networks permitted although they are not public
  EGRESS_PROXY           http(s)://HOST:PORT of an HTTP proxy to go out through
  EGRESS_PROBE_URL       must be reached before failures to connect count as the endpoint's
  DESTINATION_TOPICS     topics that endpoints may name as pubsub://TOPIC, comma-separated;
                         a * at the end stands for anything (default none)
  ENDPOINTS              endpoints declared in Terraform, a JSON array (or ENDPOINTS_FILE): those
                         are made and changed when a revision starts, and disabled once they
                         are not in it any more
  CONSOLE_URL            base URL of the console, for the links in thin bodies
  AUTH                   iam (behind Cloud Run's check), verify, or none beside an emulator (needed)
  AUDIENCE               audience of the callers' tokens
  CALLERS                service accounts that may call, comma-separated (default INVOKER)
  HOST, PORT             address to listen on (default every interface, 8080)
  LOG_FORMAT, LOG_LEVEL  json or text; debug, info, warn or error
`

// load reads and checks every setting, and reports all faults at once.
func load(getenv func(string) string) (config, error) {
	e := serve.NewEnv(getenv)
	cfg := config{
		Project:        e.Needed("GOOGLE_CLOUD_PROJECT"),
		Database:       e.Needed("SPANNER_DATABASE"),
		KeysetSecret:   e.Needed("KEYSET_SECRET"),
		KeysetVersions: e.Numbers("KEYSET_VERSIONS"),
		ProbeURL:       e.Text("EGRESS_PROBE_URL", ""),
		MaxInFlight:    int(e.Number("MAX_IN_FLIGHT", deliver.DefaultMaxInFlight, 1, 10_000)),
		EventsTopic:    e.Text("EVENTS_TOPIC", "sealpost-events"),
		ConsoleURL:     strings.TrimRight(e.Text("CONSOLE_URL", ""), "/"),
		retention: store.Retention{
			Payload: e.Duration("PAYLOAD_RETENTION", 0, time.Hour, store.MaxRetention),
			Row:     e.Duration("ROW_RETENTION", 0, time.Hour, store.MaxRetention),
		},
	}
	cfg.tasks = tasks.Config{
		Project:    cfg.Project,
		Location:   e.Text("LOCATION", "us-central1"),
		Dispatcher: e.Needed("DISPATCHER_URL"),
		Invoker:    e.Needed("INVOKER"),
		Pools:      e.List("POOL_QUEUES"),
		MaxQueues:  int(e.Number("MAX_QUEUES", tasks.DefaultMaxQueues, 1, 1_000_000)),
		Control:    e.Text("CONTROL_QUEUE", "sealpost-control"),
	}
	var err error
	cfg.policy, err = deliver.PolicyFromEnv(getenv)
	e.Add(err)
	cfg.proxy, err = deliver.ProxyFromEnv(getenv)
	e.Add(err)
	if text, name := e.TextOrFile("ENDPOINTS"); len(text) > 0 {
		cfg.Declared, err = deliver.ParseDeclared(text, cfg.policy, fanout.CheckFilter)
		e.Fault(name, err)
	}
	cfg.Revision = deliver.RevisionOf(getenv("K_REVISION"))
	if getenv("DESTINATION_TOPICS") != "" {
		cfg.Topics = e.List("DESTINATION_TOPICS")
	}
	for _, t := range cfg.Topics {
		if name, wild := strings.CutSuffix(t, "*"); !wild {
			e.Fault("DESTINATION_TOPICS", webhook.ValidTopic(name))
		}
	}
	if u, err := url.Parse(cfg.ConsoleURL); cfg.ConsoleURL != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "" || u.User != nil) {
		e.Fault("CONSOLE_URL", errors.New("is not the base of a URL"))
	}
	cfg.auth, err = serve.AuthFromEnv(getenv, "CALLERS", cfg.tasks.Invoker)
	e.Add(err)
	e.Fault("PAYLOAD_RETENTION, ROW_RETENTION", cfg.retention.Validate())
	if cfg.ProbeURL != "" {
		_, err := cfg.policy.CheckURL(cfg.ProbeURL)
		e.Fault("EGRESS_PROBE_URL", err)
	}
	return cfg, e.Err()
}
