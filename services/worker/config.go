package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/schema"
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
	schemas   *schema.Set
	direct    []bus.DirectSource
	pulled    map[string]fanout.Kind // by subscription; nil with MODE=push
	auth      serve.Auth
}

const environment = `usage: worker [--version]

Turns the messages of both topics into deliveries with tasks, until SIGTERM. With
MODE=push it serves POST /push/inbound, /push/events and, for each direct source,
/push/direct/{source} for Pub/Sub; with MODE=pull it holds streams open and serves
health checks only.

A direct source is a provider that publishes to a topic of the project itself:
Shopify, or Eventarc and others that send CloudEvents. Nothing there is signed:
that its events are authentic rests on Pub/Sub's IAM alone. Give each source a topic
of its own, and the publisher's role on it to the provider's service account only.

Settings:

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
  DIRECT_SOURCES         [{"id":"shop","format":"shopify","tenant":"default","subscription":"…",
                         "dedupe":"header:X-Shopify-Event-Id"}]: format is shopify or cloudevents,
                         subscription is needed to pull, tenant and dedupe may be left out
  DIRECT_SOURCES_FILE    a file with the same, instead
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

// load reads and checks every setting, and reports all faults at once.
func load(getenv func(string) string) (config, error) {
	e := serve.NewEnv(getenv)
	cfg := config{
		Mode:                e.Text("MODE", modePush),
		Project:             e.Needed("GOOGLE_CLOUD_PROJECT"),
		Database:            e.Needed("SPANNER_DATABASE"),
		InboundTopic:        e.Text("INBOUND_TOPIC", "sealpost-inbound"),
		EventsTopic:         e.Text("EVENTS_TOPIC", "sealpost-events"),
		InboundSubscription: e.Text("INBOUND_SUBSCRIPTION", "sealpost-inbound-worker"),
		EventsSubscription:  e.Text("EVENTS_SUBSCRIPTION", "sealpost-events-worker"),
		PullStreams:         int(e.Number("PULL_STREAMS", 4, 1, 32)),
		PullMessages:        int(e.Number("PULL_MESSAGES", 1000, 1, 10_000)),
		Commit:              int(e.Number("COMMIT_EVENTS", fanout.DefaultGroup, 1, 200)),
		Commits:             int(e.Number("COMMIT_CONCURRENCY", 1, 1, 32)),
		TaskConcurrency:     int(e.Number("TASK_CONCURRENCY", fanout.DefaultTaskConcurrency, 1, 1000)),
		retention:           store.Retention{Payload: e.Duration("PAYLOAD_RETENTION", 0, time.Hour, store.MaxRetention), Row: e.Duration("ROW_RETENTION", 0, time.Hour, store.MaxRetention)},
	}
	cfg.tasks = tasks.Config{
		Project:    cfg.Project,
		Location:   e.Text("LOCATION", "us-central1"),
		Dispatcher: e.Needed("DISPATCHER_URL"),
		Invoker:    e.Needed("INVOKER"),
		Pools:      e.List("POOL_QUEUES"),
	}
	e.Fault("PAYLOAD_RETENTION, ROW_RETENTION", cfg.retention.Validate())
	var err error
	text, name := e.TextOrFile("DIRECT_SOURCES")
	cfg.direct, err = bus.ParseDirectSources(text)
	e.Fault(name, err)
	switch cfg.Mode {
	case modePush:
		cfg.auth, err = serve.AuthFromEnv(getenv, "PUSH_INVOKER", "")
		e.Add(err)
	case modePull:
		cfg.pulled, err = cfg.subscriptions()
		e.Fault("INBOUND_SUBSCRIPTION, EVENTS_SUBSCRIPTION, DIRECT_SOURCES", err)
	default:
		e.Fault("MODE", fmt.Errorf("is %q, want push or pull", cfg.Mode))
	}
	text, name = e.TextOrFile("EVENT_SCHEMAS")
	cfg.schemas, err = schema.Parse(text)
	e.Fault(name, err)
	return cfg, e.Err()
}

// subscriptions says what is pulled from each: one kind of message.
func (c *config) subscriptions() (map[string]fanout.Kind, error) {
	all := map[string]fanout.Kind{}
	var errs []error
	add := func(name string, kind fanout.Kind) {
		switch other, taken := all[name]; {
		case name == "":
			errs = append(errs, fmt.Errorf("%s has no subscription", kind))
		case taken:
			errs = append(errs, fmt.Errorf("%s is the subscription of %s and of %s", name, other, kind))
		}
		all[name] = kind
	}
	add(c.InboundSubscription, fanout.Inbound)
	add(c.EventsSubscription, fanout.Events)
	for _, s := range c.direct {
		add(s.Subscription, fanout.Direct(s.ID))
	}
	return all, errors.Join(errs...)
}

func (c *config) fanout(st *store.Store, q *tasks.Queue, log *slog.Logger) fanout.Options {
	return fanout.Options{
		Store: st, Queue: q, Direct: c.direct, Schemas: c.schemas, Log: log,
		Topics: map[fanout.Kind]string{fanout.Inbound: c.InboundTopic, fanout.Events: c.EventsTopic},
		Group:  c.Commit, Commits: c.Commits, TaskConcurrency: c.TaskConcurrency,
	}
}

func (c *config) subscribe(h *bus.Health, log *slog.Logger) bus.SubscribeOptions {
	return bus.SubscribeOptions{Streams: c.PullStreams, MaxOutstandingMessages: c.PullMessages, Health: h, Log: log}
}
