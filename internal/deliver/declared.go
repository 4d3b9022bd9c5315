package deliver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// declaredJSON is one endpoint as Terraform writes it. Times are texts such as "15s".
type declaredJSON struct {
	ID             string                      `json:"id"`
	Tenant         string                      `json:"tenant"`
	URL            string                      `json:"url"`
	Queue          string                      `json:"queue"`
	Description    string                      `json:"description"`
	EventTypes     []string                    `json:"event_types"`
	RatePerSecond  float64                     `json:"rate_per_second"`
	MaxConcurrency int64                       `json:"max_concurrency"`
	Timeout        string                      `json:"timeout"`
	Retry          string                      `json:"retry"`
	Filter         string                      `json:"filter"`
	RecordFiltered bool                        `json:"record_filtered"`
	PayloadMode    webhook.PayloadMode         `json:"payload_mode"`
	Ordering       webhook.Ordering            `json:"ordering"`
	Headers        []webhook.Header            `json:"headers"`
	Legacy         []webhook.SignatureTemplate `json:"legacy_signatures"`
	Owner          string                      `json:"owner"`
	Metadata       map[string]string           `json:"metadata"`
	APIVersion     string                      `json:"api_version"`
	Health         struct {
		FailuresToOpen int64  `json:"failures_to_open"`
		CoolDown       string `json:"cool_down"`
		MaxCoolDown    string `json:"max_cool_down"`
		DisableAfter   string `json:"disable_after"`
	} `json:"health"`
}

// ParseDeclared reads a JSON array of endpoints that Terraform declares, each with
// the queue that it has there:
//
//	[{"id": "billing", "url": "https://billing.example.com/hook", "queue": "sealpost-ep-billing-1",
//	  "tenant": "default", "event_types": ["invoice.*"], "rate_per_second": 50, "max_concurrency": 20,
//	  "timeout": "15s", "retry": "41h", "filter": "body.amount > 100", "payload_mode": "raw",
//	  "ordering": "block", "headers": [{"name": "X-Env", "value": "prod"}], "owner": "ops@example.com",
//	  "health": {"failures_to_open": 10, "cool_down": "1m", "max_cool_down": "1h", "disable_after": "120h"}, …}]
//
// Only id, url and queue are needed. Every fault is reported, with its endpoint and
// field: what no filter, template or policy could use would fail at each attempt.
func ParseDeclared(text []byte, policy safedial.Policy, checkFilter func(string) error) ([]webhook.Endpoint, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var list []declaredJSON
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("declared endpoints: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("declared endpoints: something follows the JSON array")
	}
	var errs []error
	seen := map[string]bool{}
	out := make([]webhook.Endpoint, len(list))
	for i := range list {
		ep, faults := list[i].endpoint(policy, checkFilter)
		if key := ep.Tenant + "/" + ep.ID; seen[key] {
			faults = append(faults, errors.New("is declared twice"))
		} else {
			seen[key] = true
		}
		for _, err := range faults {
			errs = append(errs, fmt.Errorf("endpoint %q: %w", ep.ID, err))
		}
		out[i] = ep
	}
	return out, errors.Join(errs...)
}

// endpoint makes the domain's endpoint, and all faults.
func (j *declaredJSON) endpoint(policy safedial.Policy, checkFilter func(string) error) (webhook.Endpoint, []error) {
	var errs []error
	fault := func(field string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field, err))
		}
	}
	duration := func(field, text string) time.Duration {
		if text == "" {
			return 0
		}
		v, err := time.ParseDuration(text)
		fault(field, err)
		return v
	}
	ep := webhook.Endpoint{Tenant: j.Tenant, ID: j.ID, URL: j.URL, Queue: j.Queue, Description: j.Description, EventTypes: j.EventTypes,
		RatePerSecond: j.RatePerSecond, MaxConcurrency: j.MaxConcurrency, Timeout: duration("timeout", j.Timeout),
		EndpointSettings: webhook.EndpointSettings{Filter: j.Filter, RecordFiltered: j.RecordFiltered, PayloadMode: j.PayloadMode, Ordering: j.Ordering,
			Headers: j.Headers, Legacy: j.Legacy, Owner: j.Owner, Metadata: j.Metadata, APIVersion: j.APIVersion, ManagedBy: webhook.ManagedByTerraform,
			Health: webhook.HealthPolicy{FailuresToOpen: j.Health.FailuresToOpen, CoolDown: duration("health.cool_down", j.Health.CoolDown),
				MaxCoolDown: duration("health.max_cool_down", j.Health.MaxCoolDown), DisableAfter: duration("health.disable_after", j.Health.DisableAfter)}}}
	if ep.Tenant == "" {
		ep.Tenant = webhook.DefaultTenant
	}
	if len(ep.EventTypes) == 0 {
		ep.EventTypes = []string{"*"}
	}
	fault("id", webhook.ValidName(ep.ID))
	fault("tenant", webhook.ValidName(ep.Tenant))
	if ep.Queue == "" {
		fault("queue", errors.New("is missing"))
	}
	if j.Retry != "" {
		var err error
		ep.Retry, err = webhook.ParseRetryPolicy(j.Retry)
		fault("retry", err)
	}
	for _, p := range ep.EventTypes {
		fault("event_types", webhook.ValidPattern(p))
	}
	for _, l := range ep.Legacy {
		_, err := signing.ParseTemplate(l.Template)
		fault("legacy_signatures", err)
	}
	if t := ep.Timeout; t != 0 && (t < webhook.MinTimeout || t > webhook.MaxTimeout) {
		fault("timeout", fmt.Errorf("%s is not between %s and %s", t, webhook.MinTimeout, webhook.MaxTimeout))
	}
	fault("settings", ep.EndpointSettings.Validate())
	fault("filter", checkFilter(ep.Filter))
	fault("url", webhook.ValidURL(ep.URL))
	if _, topic := ep.Topic(); !topic {
		u, err := policy.CheckURL(ep.URL)
		if fault("url", err); err == nil {
			ep.URL = u.String()
		}
	}
	return ep, errs
}

// RevisionOf reads Cloud Run's name of a revision, whose number grows from one to the
// next: "sealpost-dispatcher-00042-abc". Other names have no serial.
// https://cloud.google.com/run/docs/container-contract#env-vars
func RevisionOf(name string) store.Revision {
	parts := strings.Split(name, "-")
	r := store.Revision{Name: name}
	if len(parts) < 3 {
		return r
	}
	if n, err := strconv.ParseUint(parts[len(parts)-2], 10, 32); err == nil {
		r.Serial = int64(n)
	}
	return r
}

// Declare makes the endpoints that Terraform manages what eps say: new ones are made,
// with a signing key of their own, others changed, and those that are no longer
// declared are disabled, since their queues are gone; nothing held for them is lost.
// A revision that is not the latest does nothing. It is idempotent, and goes on where
// an interrupted call stopped.
func (d *Dispatcher) Declare(ctx context.Context, r store.Revision, eps []webhook.Endpoint) error {
	due, err := d.o.Store.DeclarationDue(ctx, r)
	if err != nil || !due {
		return err
	}
	declared := map[string]bool{}
	for _, ep := range eps {
		declared[ep.Tenant+"/"+ep.ID] = true
		key, err := d.newKey(ep.Tenant, ep.ID)
		if err != nil {
			return err
		}
		now, err := d.o.Store.DeclareEndpoint(ctx, ep, key)
		if err != nil {
			return err
		}
		if now.QueueReadyAt.IsZero() {
			// A queue that does not answer yet is asked again by whoever schedules.
			if err := d.o.Queue.Announce(ctx, now.QueueRef()); err != nil {
				d.o.Log.WarnContext(ctx, "the queue of a declared endpoint does not answer yet", slog.String("event", "declare"),
					slog.String("tenant", ep.Tenant), slog.String("endpoint", ep.ID), slog.String("error", err.Error()))
			}
		}
	}
	managed, err := d.o.Store.DeclaredEndpoints(ctx)
	if err != nil {
		return err
	}
	for _, ep := range managed {
		if declared[ep.Tenant+"/"+ep.ID] {
			continue
		}
		c, err := d.o.Store.ForgetEndpoint(ctx, ep.Tenant, ep.ID)
		if err != nil {
			return err
		}
		if err := d.control(ctx, c.Controls); err != nil {
			return err
		}
	}
	if err := d.o.Store.MarkDeclared(ctx, r); err != nil {
		return err
	}
	d.o.Log.InfoContext(ctx, "declared endpoints applied", slog.String("event", "declare"), slog.String("revision", r.Name),
		slog.Int("endpoints", len(eps)))
	return nil
}

// newKey makes a sealed signing secret.
func (d *Dispatcher) newKey(tenant, endpoint string) (store.SealedKey, error) {
	secret, err := signing.GenerateSecret(nil)
	if err != nil {
		return store.SealedKey{}, err
	}
	sealed, by, err := d.o.Sealer.Seal([]byte(secret.Reveal()), tenant, endpoint)
	if err != nil {
		return store.SealedKey{}, err
	}
	id, err := uuid.NewV7()
	return store.SealedKey{Tenant: tenant, Endpoint: endpoint, ID: webhook.KeyID(id), Kind: "v1", Sealed: sealed, SealedBy: by}, err
}
