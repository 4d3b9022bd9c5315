package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

const (
	maxEventTypes = 200
	maxSealed     = 8 << 10
	// cancelChunk is how many deliveries one commit cancels.
	cancelChunk = 400
)

// systemActor signs what Sealpost does of its own accord.
const systemActor = "system"

// CreateEndpoint stores a new endpoint with its signing keys and returns it as
// stored. What is empty gets its default: an id, the state active, the usual
// limits and timeout. The keys become the endpoint's; a key without NotBefore is
// valid from now. From the moment it returns every event that is committed is
// matched against the endpoint. [ErrAlreadyExists] if the id is taken, be it by a
// deleted endpoint; [ErrTooLarge] if the tenant has too many.
func (s *Store) CreateEndpoint(ctx context.Context, ep webhook.Endpoint, keys []SealedKey, actor string) (webhook.Endpoint, error) {
	if ep.ID == "" {
		ep.ID = webhook.EndpointID(s.newID())
	}
	fillEndpoint(&ep)
	if err := checkEndpoint(&ep); err != nil {
		return webhook.Endpoint{}, wrap(err, "create endpoint %s/%s", ep.Tenant, ep.ID)
	}
	auditID := s.newID()
	_, err := s.write(ctx, "create-endpoint", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		now := s.clock()
		ep.StateSince, ep.CreatedAt, ep.UpdatedAt = now, now, now
		_, err := txn.ReadRowWithOptions(ctx, "Endpoints", spanner.Key{ep.Tenant, ep.ID}, []string{"State"}, tag("create-endpoint"))
		if err == nil {
			return ErrAlreadyExists
		}
		if !errors.Is(err, spanner.ErrRowNotFound) {
			return err
		}
		bump, err := bumpSet(ctx, txn, ep.Tenant, 1, s.maxEps, now)
		if err != nil {
			return err
		}
		row, err := newEndpointRow(&ep)
		if err != nil {
			return err
		}
		ms := []*spanner.Mutation{bump, insert("Endpoints", row)}
		for _, k := range keys {
			if err := adopt(&k, ep.Tenant, ep.ID, now); err != nil {
				return err
			}
			ms = append(ms, insert("EndpointKeys", newKeyRow(&k)))
		}
		ms = append(ms, auditRow(auditID, ep.Tenant, actor, "endpoint.create", ep.ID, map[string]any{"events": ep.EventTypes}, now))
		return txn.BufferWrite(ms)
	})
	if err != nil {
		return webhook.Endpoint{}, wrap(err, "create endpoint %s/%s", ep.Tenant, ep.ID)
	}
	s.cards.forget(ep.Tenant, ep.ID)
	return ep, nil
}

func fillEndpoint(ep *webhook.Endpoint) {
	if ep.State == "" {
		ep.State = webhook.EndpointActive
	}
	if ep.RatePerSecond == 0 {
		ep.RatePerSecond = webhook.DefaultRatePerSecond
	}
	if ep.MaxConcurrency == 0 {
		ep.MaxConcurrency = webhook.DefaultMaxConcurrency
	}
	if ep.Timeout == 0 {
		ep.Timeout = webhook.DefaultTimeout
	}
	ep.QueueReadyAt = ep.QueueReadyAt.UTC().Round(0)
}

func checkEndpoint(ep *webhook.Endpoint) error {
	if err := webhook.ValidName(ep.Tenant); err != nil {
		return invalid("tenant: %v", err)
	}
	if err := webhook.ValidName(ep.ID); err != nil {
		return invalid("endpoint id: %v", err)
	}
	for _, p := range ep.EventTypes {
		if err := webhook.ValidPattern(p); err != nil {
			return invalid("%v", err)
		}
	}
	if err := ep.Retry.Validate(); err != nil {
		return invalid("%v", err)
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{{"url", ep.URL, 2048}, {"description", ep.Description, 1024}, {"queue", ep.Queue, 512}} {
		if len(f.value) > f.limit {
			return tooLarge("%s has %d bytes, at most %d are allowed", f.name, len(f.value), f.limit)
		}
		if !utf8.ValidString(f.value) {
			return invalid("%s is not valid UTF-8", f.name)
		}
	}
	if err := webhook.ValidURL(ep.URL); err != nil {
		return invalid("%v", err)
	}
	if err := ep.EndpointSettings.Validate(); err != nil {
		return invalid("%v", err)
	}
	switch {
	case len(ep.EventTypes) > maxEventTypes:
		return tooLarge("%d event type patterns, at most %d are allowed", len(ep.EventTypes), maxEventTypes)
	case ep.State != webhook.EndpointActive && ep.State != webhook.EndpointPaused && ep.State != webhook.EndpointDisabled:
		return invalid("state: %q is not active, paused or disabled", ep.State)
	case !(ep.RatePerSecond >= 0 && ep.RatePerSecond < math.MaxInt32) || ep.MaxConcurrency < 0 || ep.Timeout < 0:
		return invalid("a limit is negative or no number")
	}
	return nil
}

// adopt makes k a key of the endpoint and checks it.
func adopt(k *SealedKey, tenant, endpoint string, now time.Time) error {
	k.Tenant, k.Endpoint, k.CreatedAt = tenant, endpoint, now
	if k.NotBefore.IsZero() {
		k.NotBefore = now
	}
	switch {
	case k.ID == "" || len(k.ID) > 128 || !utf8.ValidString(k.ID):
		return invalid("key id %q", k.ID)
	case k.Kind != "v1" && k.Kind != "v1a" && k.Kind != "legacy":
		return invalid("key %s: kind %q is none of v1, v1a and legacy", k.ID, k.Kind)
	case len(k.Sealed) == 0 || len(k.Sealed) > maxSealed:
		return invalid("key %s: %d sealed bytes, want 1 to %d", k.ID, len(k.Sealed), maxSealed)
	case len(k.SealedBy) > 256:
		return invalid("key %s: keyset version has %d bytes", k.ID, len(k.SealedBy))
	case !k.NotAfter.IsZero() && !k.NotBefore.Before(k.NotAfter):
		return invalid("key %s ends before it starts", k.ID)
	}
	return nil
}

// Endpoint reads one endpoint strongly, be it deleted. [ErrNotFound] if the
// tenant never had it.
func (s *Store) Endpoint(ctx context.Context, tenant, id string) (webhook.Endpoint, error) {
	e, err := readEndpoint(ctx, s.client.Single(), tenant, id)
	return e, wrap(err, "endpoint %s/%s", tenant, id)
}

// rowReader is what single reads and transactions share.
type rowReader interface {
	ReadRowWithOptions(ctx context.Context, table string, key spanner.Key, columns []string, opts *spanner.ReadOptions) (*spanner.Row, error)
}

func readEndpoint(ctx context.Context, r rowReader, tenant, id string) (webhook.Endpoint, error) {
	row, err := r.ReadRowWithOptions(ctx, "Endpoints", spanner.Key{tenant, id}, endpointColumns, tag("endpoint"))
	if err != nil {
		return webhook.Endpoint{}, err
	}
	var e endpointRow
	if err := row.ToStruct(&e); err != nil {
		return webhook.Endpoint{}, err
	}
	return e.endpoint()
}

// Keys lists all signing keys of an endpoint, newest first, those out of date
// included. [ErrNotFound] if the tenant has no such endpoint.
func (s *Store) Keys(ctx context.Context, tenant, endpoint string) ([]SealedKey, error) {
	rows, err := collect[keyRow](s.client.Single().ReadWithOptions(ctx, "EndpointKeys", spanner.Key{tenant, endpoint}.AsPrefix(), keyColumns, tag("keys")))
	if err == nil && len(rows) == 0 {
		_, err = readEndpoint(ctx, s.client.Single(), tenant, endpoint)
	}
	if err != nil {
		return nil, wrap(err, "keys of %s/%s", tenant, endpoint)
	}
	keys := make([]SealedKey, len(rows))
	for i := range rows {
		keys[i] = rows[i].key()
	}
	newestFirst(keys)
	return keys, nil
}

// RotateKey adds a key, valid from now, and ends the endpoint's other keys of its
// kind overlap later, unless they end sooner anyhow; until then both sign. A
// repeated call with the same key changes nothing; another key of the same id is
// [ErrAlreadyExists]. [ErrNotFound] if there is no such endpoint or it is deleted.
func (s *Store) RotateKey(ctx context.Context, tenant, endpoint string, newKey SealedKey, overlap time.Duration, actor string) error {
	if overlap < 0 {
		return wrap(invalid("overlap %s is negative", overlap), "rotate key of %s/%s", tenant, endpoint)
	}
	auditID := s.newID()
	_, err := s.write(ctx, "rotate-key", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		ep, err := readEndpoint(ctx, txn, tenant, endpoint)
		if err != nil {
			return err
		}
		if ep.State == webhook.EndpointDeleted {
			return ErrNotFound
		}
		rows, err := collect[keyRow](txn.ReadWithOptions(ctx, "EndpointKeys", spanner.Key{tenant, endpoint}.AsPrefix(), keyColumns, tag("rotate-key")))
		if err != nil {
			return err
		}
		now := s.clock()
		k := newKey
		k.NotBefore = now
		if err := adopt(&k, tenant, endpoint, now); err != nil {
			return err
		}
		ms := []*spanner.Mutation{insert("EndpointKeys", newKeyRow(&k)),
			auditRow(auditID, tenant, actor, "endpoint.rotate-key", endpoint, map[string]any{"key": k.ID, "overlap_s": overlap.Seconds()}, now)}
		end := now.Add(overlap)
		for _, r := range rows {
			if r.KeyID == k.ID {
				if bytes.Equal(r.Sealed, k.Sealed) {
					return nil // an earlier call of ours
				}
				return ErrAlreadyExists
			}
			if r.Kind != k.Kind || r.NotAfter.Valid && !r.NotAfter.Time.After(end) {
				continue
			}
			ms = append(ms, spanner.Update("EndpointKeys", []string{"Tenant", "EndpointId", "KeyId", "NotAfter"}, []any{tenant, endpoint, r.KeyID, end}))
		}
		return txn.BufferWrite(ms)
	})
	s.cards.forget(tenant, endpoint)
	return wrap(err, "rotate key of %s/%s", tenant, endpoint)
}

type auditLogRow struct {
	Tenant   string
	At       time.Time `spanner:"HappenedAt"`
	AuditID  []byte    `spanner:"AuditId"`
	Actor    string
	Action   string
	Target   string
	Detail   string
	ExpireAt time.Time
}

var auditColumns = columnsOf[auditLogRow]()

func auditRow(id [16]byte, tenant, actor, action, target string, detail map[string]any, now time.Time) *spanner.Mutation {
	text := []byte("{}")
	if len(detail) > 0 {
		text, _ = json.Marshal(detail) // strings and numbers only: cannot fail
	}
	return insert("AuditLog", &auditLogRow{Tenant: tenant, At: now, AuditID: id[:], Actor: clip(actor, 512), Action: action,
		Target: clip(target, 512), Detail: string(text), ExpireAt: now.Add(auditRetention)})
}
