package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
)

// How messages come.
const (
	modePush = "push" // Pub/Sub posts them: scales to zero
	modePull = "pull" // streams are held open: a worker pool under steady load
)

// config is everything that the worker is told.
type config struct {
	Mode                                    string
	Project, Database                       string
	InboundTopic, EventsTopic               string
	InboundSubscription, EventsSubscription string
	PullStreams, PullMessages               int
	Commit, Commits, TaskConcurrency        int

	tasks     tasks.Config
	retention store.Retention
	schemas   *fanout.Schemas
	auth      serve.Auth
}

const environment = `usage: worker [--version]

Turns the messages of both topics into deliveries with tasks, until SIGTERM. With
MODE=push it serves POST /push/inbound and /push/events for Pub/Sub; with
MODE=pull it holds streams open and serves health checks only. Settings:

  GOOGLE_CLOUD_PROJECT   the project (needed)
  LOCATION               region of the queues (default us-central1)
  SPANNER_DATABASE       projects/P/instances/I/databases/D (needed)
  DISPATCHER_URL         base URL of the dispatcher, where attempts are posted (needed)
  INVOKER                service account whose identity tasks carry (needed)
  POOL_QUEUES            shared queues, comma-separated (needed)
  MODE                   push (default) or pull
  INBOUND_TOPIC          for dead messages (default sealpost-inbound)
  EVENTS_TOPIC           for dead messages (default sealpost-events)
  INBOUND_SUBSCRIPTION   to pull from (default sealpost-inbound-worker)
  EVENTS_SUBSCRIPTION    to pull from (default sealpost-events-worker)
  PULL_STREAMS           streams per subscription, 1 to 32 (default 4)
  PULL_MESSAGES          messages in work per subscription, 1 to 10000 (default 1000)
  EVENT_SCHEMAS          [{"type":"invoice.paid","schema":{…}}], JSON Schema 2020-12
  EVENT_SCHEMAS_FILE     a file with the same, instead
  COMMIT_EVENTS          events that may share a commit, 1 to 200 (default 50)
  COMMIT_CONCURRENCY     commits at once, 1 to 32 (default 1)
  TASK_CONCURRENCY       tasks being created at once, 1 to 1000 (default 64)
  PAYLOAD_RETENTION      how long payloads are kept (default 720h)
  ROW_RETENTION          how long event rows are kept (default 1080h, above 744h)
  AUTH                   iam (behind Cloud Run's check), verify, or none beside an emulator (needed to push)
  AUDIENCE               audience of the callers' tokens
  PUSH_INVOKER           service accounts of the push subscriptions, comma-separated
  HOST, PORT             address to listen on (default every interface, 8080)
  LOG_FORMAT, LOG_LEVEL  json or text; debug, info, warn or error
`

func usage() { fmt.Fprint(os.Stderr, environment) }

// load reads and checks every setting, and reports all faults at once.
func load(getenv func(string) string) (config, error) {
	e := environ{getenv: getenv}
	cfg := config{
		Mode:                e.text("MODE", modePush),
		Project:             e.needed("GOOGLE_CLOUD_PROJECT"),
		Database:            e.needed("SPANNER_DATABASE"),
		InboundTopic:        e.text("INBOUND_TOPIC", "sealpost-inbound"),
		EventsTopic:         e.text("EVENTS_TOPIC", "sealpost-events"),
		InboundSubscription: e.text("INBOUND_SUBSCRIPTION", "sealpost-inbound-worker"),
		EventsSubscription:  e.text("EVENTS_SUBSCRIPTION", "sealpost-events-worker"),
		PullStreams:         e.number("PULL_STREAMS", 4, 32),
		PullMessages:        e.number("PULL_MESSAGES", 1000, 10_000),
		Commit:              e.number("COMMIT_EVENTS", fanout.DefaultGroup, 200),
		Commits:             e.number("COMMIT_CONCURRENCY", 1, 32),
		TaskConcurrency:     e.number("TASK_CONCURRENCY", fanout.DefaultTaskConcurrency, 1000),
		retention:           store.Retention{Payload: e.duration("PAYLOAD_RETENTION"), Row: e.duration("ROW_RETENTION")},
	}
	cfg.tasks = tasks.Config{
		Project:    cfg.Project,
		Location:   e.text("LOCATION", "us-central1"),
		Dispatcher: e.needed("DISPATCHER_URL"),
		Invoker:    e.needed("INVOKER"),
		Pools:      e.list("POOL_QUEUES"),
	}
	e.fault("PAYLOAD_RETENTION, ROW_RETENTION", cfg.retention.Validate())
	var err error
	switch cfg.Mode {
	case modePush:
		cfg.auth, err = serve.AuthFromEnv(getenv, "PUSH_INVOKER", "")
		e.errs = append(e.errs, err)
	case modePull:
		if cfg.InboundSubscription == cfg.EventsSubscription {
			e.fault("INBOUND_SUBSCRIPTION, EVENTS_SUBSCRIPTION", errors.New("are the same"))
		}
	default:
		e.fault("MODE", fmt.Errorf("is %q, want push or pull", cfg.Mode))
	}
	cfg.schemas = e.schemas()
	return cfg, errors.Join(e.errs...)
}

// environ reads settings and gathers what is wrong with them. An empty variable
// counts as unset.
type environ struct {
	getenv func(string) string
	errs   []error
}

func (e *environ) fault(name string, err error) {
	if err != nil {
		e.errs = append(e.errs, fmt.Errorf("%s: %w", name, err))
	}
}

func (e *environ) text(name, otherwise string) string {
	if v := e.getenv(name); v != "" {
		return v
	}
	return otherwise
}

func (e *environ) needed(name string) string {
	v := e.getenv(name)
	if v == "" {
		e.fault(name, errors.New("is not set"))
	}
	return v
}

func (e *environ) list(name string) []string {
	var list []string
	for v := range strings.SplitSeq(e.needed(name), ",") {
		if v = strings.TrimSpace(v); v != "" {
			list = append(list, v)
		}
	}
	return list
}

// number is between 1 and most.
func (e *environ) number(name string, otherwise, most int) int {
	v := e.getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		e.fault(name, fmt.Errorf("is %q, want a number from 1 to %d", v, most))
	}
	return n
}

func (e *environ) duration(name string) time.Duration {
	v := e.getenv(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		e.fault(name, fmt.Errorf("is %q, want a time like 720h", v))
	}
	return max(d, 0)
}

func (e *environ) schemas() *fanout.Schemas {
	text, file := e.getenv("EVENT_SCHEMAS"), e.getenv("EVENT_SCHEMAS_FILE")
	name := "EVENT_SCHEMAS"
	switch {
	case text != "" && file != "":
		e.fault("EVENT_SCHEMAS, EVENT_SCHEMAS_FILE", errors.New("are both set"))
		return nil
	case file != "":
		name = "EVENT_SCHEMAS_FILE"
		b, err := os.ReadFile(file)
		if err != nil {
			e.fault(name, err)
			return nil
		}
		text = string(b)
	}
	s, err := fanout.ParseSchemas([]byte(text))
	e.fault(name, err)
	return s
}

func (c *config) fanout(st *store.Store, q *tasks.Queue, log *slog.Logger) fanout.Options {
	return fanout.Options{
		Store: st, Queue: q, Schemas: c.schemas, Log: log,
		Topics: map[fanout.Kind]string{fanout.Inbound: c.InboundTopic, fanout.Events: c.EventsTopic},
		Group:  c.Commit, Commits: c.Commits, TaskConcurrency: c.TaskConcurrency,
	}
}

func (c *config) subscribe(h *bus.Health, log *slog.Logger) bus.SubscribeOptions {
	return bus.SubscribeOptions{Streams: c.PullStreams, MaxOutstandingMessages: c.PullMessages, Health: h, Log: log}
}
