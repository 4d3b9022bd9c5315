package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// endpointFlags are an endpoint's properties as flags. Those that are given change an
// endpoint, the others leave it alone.
type endpointFlags struct {
	cmd *cobra.Command

	url, description, events, retry, queue      string
	filter, payload, ordering, owner, version   string
	auth                                        string
	rate                                        float64
	concurrency, failures                       int64
	timeout, coolDown, maxCoolDown, disableTime time.Duration
	recordFiltered                              bool
	headers, legacy, metadata                   []string
}

func (e *endpointFlags) add(cmd *cobra.Command) {
	e.cmd = cmd
	f := cmd.Flags()
	f.StringVar(&e.url, "url", "", "where events are sent: https, or pubsub://TOPIC for a topic of the project")
	f.StringVar(&e.description, "description", "", "a note for people")
	f.StringVar(&e.events, "events", "*", "event types: exact, or ending in .*; comma-separated")
	f.Float64Var(&e.rate, "rate", webhook.DefaultRatePerSecond, "deliveries per second at most")
	f.Int64Var(&e.concurrency, "concurrency", webhook.DefaultMaxConcurrency, "deliveries under way at once at most")
	f.DurationVar(&e.timeout, "timeout", webhook.DefaultTimeout, "how long one attempt may take (1s to 60s)")
	f.StringVar(&e.retry, "retry", webhook.PresetDefault, "retry policy: default, 41h, waits such as 0s,5s,5m, or exponential;…: see retry-plan --help")
	f.StringVar(&e.queue, "queue", "auto", "own: a queue of its own, also of those kept in reserve; pool: shared queues; auto: its own while there are enough")
	f.StringVar(&e.filter, "filter", "", "CEL expression over id, type, source, subject, time, headers and body that says whether an event is sent, such as 'body.amount > 1000'")
	f.BoolVar(&e.recordFiltered, "record-filtered", false, "keep a delivery of what the filter says no to")
	f.StringVar(&e.payload, "payload-mode", "", "wrapped, raw, thin or cloudevents (default raw for inbound events, else wrapped)")
	f.StringVar(&e.ordering, "ordering", "", "send one delivery per ordering key at a time, in order, and after a dead one: block (the key waits), skip-after-dead (it goes on), park-key (what follows is held); \"\" for no order")
	f.StringArrayVar(&e.headers, "header", nil, "a header to send, \"Name: value\"; may be repeated, \"\" removes all")
	f.StringArrayVar(&e.legacy, "legacy-signature", nil, "a further signature header, such as \"X-Signature=sha256={hmac_sha256_hex:{body}}\"; may be repeated, \"\" removes all")
	f.StringVar(&e.auth, "auth", "", "credentials for the endpoint as JSON, @FILE, or - for standard input, such as {\"kind\":\"bearer\",\"token\":\"…\"}; none removes them")
	f.Int64Var(&e.failures, "failures-to-open", webhook.DefaultFailuresToOpen, "failures in a row that open the circuit; -1: never")
	f.DurationVar(&e.coolDown, "cool-down", webhook.DefaultCoolDown, "wait before the first probe of an open circuit")
	f.DurationVar(&e.maxCoolDown, "max-cool-down", webhook.DefaultMaxCoolDown, "longest wait between probes")
	f.DurationVar(&e.disableTime, "disable-after", webhook.DefaultDisableAfter, "nothing but failures for this long disables; -1ns: never")
	f.StringVar(&e.owner, "owner", "", "whom to tell when it fails: an e-mail address or an https URL")
	f.StringArrayVar(&e.metadata, "metadata", nil, "a note for programs, key=value; may be repeated, \"\" removes all")
	f.StringVar(&e.version, "api-version", "", "format of the publisher's payloads that it expects")
}

// apply gives ep what the flags say, all of them or those that were given. It reports
// every fault.
func (e *endpointFlags) apply(c *cli, ep *webhook.Endpoint, all bool) error {
	var errs []error
	fault := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	set := func(flag string, do func() error) {
		if all || e.cmd.Flags().Changed(flag) {
			fault(flag, do())
		}
	}
	if all && e.url == "" {
		errs = append(errs, errors.New("--url is needed"))
	} else {
		set("url", func() error { ep.URL = e.url; return c.checkURL(ep) })
	}
	set("description", func() error { ep.Description = e.description; return nil })
	set("events", func() error { ep.EventTypes = serve.SplitList(e.events); return checkPatterns(ep.EventTypes) })
	set("timeout", func() error {
		ep.Timeout = e.timeout
		if ep.Timeout < webhook.MinTimeout || ep.Timeout > webhook.MaxTimeout {
			return fmt.Errorf("%s is not between %s and %s", ep.Timeout, webhook.MinTimeout, webhook.MaxTimeout)
		}
		return nil
	})
	set("rate", func() error {
		ep.RatePerSecond = e.rate
		if !(ep.RatePerSecond >= tasks.MinRate && ep.RatePerSecond <= tasks.MaxRate) { // not for NaN
			return fmt.Errorf("%g is not between %g and %d", ep.RatePerSecond, tasks.MinRate, tasks.MaxRate)
		}
		return nil
	})
	set("concurrency", func() error {
		ep.MaxConcurrency = e.concurrency
		if ep.MaxConcurrency < 1 || ep.MaxConcurrency > tasks.MaxConcurrency {
			return fmt.Errorf("%d is not between 1 and %d", ep.MaxConcurrency, tasks.MaxConcurrency)
		}
		return nil
	})
	set("retry", func() (err error) { ep.Retry, err = webhook.ParseRetryPolicy(e.retry); return err })
	set("queue", func() (err error) { ep.Queueing, err = parseQueueing(e.queue); return err })
	e.settings(set, ep)
	if len(errs) == 0 {
		if err := ep.EndpointSettings.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// settings does the part of apply that concerns [webhook.EndpointSettings].
func (e *endpointFlags) settings(set func(string, func() error), ep *webhook.Endpoint) {
	text := func(flag string, to *string, v string) { set(flag, func() error { *to = v; return nil }) }
	set("filter", func() error { ep.Filter = e.filter; return fanout.CheckFilter(e.filter) })
	text("payload-mode", (*string)(&ep.PayloadMode), e.payload)
	text("ordering", (*string)(&ep.Ordering), e.ordering)
	text("owner", &ep.Owner, e.owner)
	text("api-version", &ep.APIVersion, e.version)
	set("record-filtered", func() error { ep.RecordFiltered = e.recordFiltered; return nil })
	set("header", func() error {
		ep.Headers = nil
		return split(e.headers, ":", func(name, value string) error {
			ep.Headers = append(ep.Headers, webhook.Header{Name: name, Value: value})
			return nil
		})
	})
	set("legacy-signature", func() error {
		ep.Legacy = nil
		return split(e.legacy, "=", func(name, template string) error {
			ep.Legacy = append(ep.Legacy, webhook.SignatureTemplate{Header: name, Template: template})
			_, err := signing.ParseTemplate(template)
			return err
		})
	})
	set("metadata", func() error {
		ep.Metadata = nil
		return split(e.metadata, "=", func(key, value string) error {
			if ep.Metadata == nil {
				ep.Metadata = map[string]string{}
			}
			ep.Metadata[key] = value
			return nil
		})
	})
	// A zero field of the policy means its default: what says the default stays zero.
	policy := func(flag string, to *time.Duration, v, usual time.Duration) {
		set(flag, func() error {
			if *to = v; v == usual {
				*to = 0
			}
			return nil
		})
	}
	policy("cool-down", &ep.Health.CoolDown, e.coolDown, webhook.DefaultCoolDown)
	policy("max-cool-down", &ep.Health.MaxCoolDown, e.maxCoolDown, webhook.DefaultMaxCoolDown)
	policy("disable-after", &ep.Health.DisableAfter, e.disableTime, webhook.DefaultDisableAfter)
	set("failures-to-open", func() error {
		if ep.Health.FailuresToOpen = e.failures; e.failures == webhook.DefaultFailuresToOpen {
			ep.Health.FailuresToOpen = 0
		}
		return nil
	})
}

// split takes what a repeated flag was given, each "name, separator, value". A single
// empty one stands for none.
func split(values []string, separator string, take func(name, value string) error) error {
	if len(values) == 1 && values[0] == "" {
		return nil
	}
	for _, v := range values {
		name, value, ok := strings.Cut(v, separator)
		if !ok {
			return fmt.Errorf("%q has no %q", name, separator) // no value: it may be a secret
		}
		if err := take(strings.TrimSpace(name), strings.TrimSpace(value)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (c *cli) checkURL(ep *webhook.Endpoint) error {
	if _, topic := ep.Topic(); topic {
		return webhook.ValidURL(ep.URL)
	}
	policy, err := deliver.PolicyFromEnv(c.getenv)
	if err == nil {
		_, err = policy.CheckURL(ep.URL)
	}
	return err
}

func checkPatterns(patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("names no event type")
	}
	var errs []error
	for _, p := range patterns {
		errs = append(errs, webhook.ValidPattern(p))
	}
	return errors.Join(errs...)
}

func parseQueueing(s string) (webhook.Queueing, error) {
	switch q := webhook.Queueing(s); q {
	case "auto":
		return webhook.QueueingAuto, nil
	case webhook.QueueingAuto, webhook.QueueingOwn, webhook.QueueingPool:
		return q, nil
	}
	return "", fmt.Errorf("%q is not auto, own or pool", s)
}

// credentials seals what --auth says for the endpoint; ok is false if it was not given.
func (e *endpointFlags) credentials(ctx context.Context, c *cli, tenant, id string) (auth webhook.EndpointAuth, ok bool, err error) {
	switch {
	case !e.cmd.Flags().Changed("auth"):
		return auth, false, nil
	case e.auth == "none":
		return auth, true, nil
	}
	text := e.auth
	if file, is := strings.CutPrefix(text, "@"); is {
		b, err := os.ReadFile(file)
		if err != nil {
			return auth, false, usageError{wrap("--auth", err)}
		}
		text = string(b)
	} else if text, err = c.readText(text); err != nil {
		return auth, false, usageError{wrap("--auth", err)}
	}
	var cr secrets.Credentials
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&cr); err != nil {
		return auth, false, usageError{errors.New("--auth: not the JSON of credentials: {\"kind\":\"basic\",\"username\":…,\"password\":…} and the like")}
	}
	now := time.Now()
	if err := cr.Validate(now); err != nil {
		return auth, false, usageError{wrap("--auth", err)}
	}
	sealer, err := c.sealer(ctx)
	if err != nil {
		return auth, false, err
	}
	sealed, by, err := sealer.SealAuth(cr, tenant, id, now)
	return webhook.EndpointAuth{Kind: webhook.AuthKind(cr.Kind), Summary: cr.Summary(), Sealed: sealed, SealedBy: by}, true, err
}
