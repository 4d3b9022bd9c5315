package store

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Endpoints can be declared in Terraform, which then owns their settings and their
// queues: see [webhook.ManagedByTerraform]. A service applies the declaration when a
// new revision of it starts.

const declaredEndpoints = "endpoints"

// Revision names a revision of a service. A later one has a higher Serial; 0 means
// that nobody knows, and such a one applies whatever it declares each time.
type Revision struct {
	Serial int64
	Name   string
}

// DeclarationDue reports whether the revision's declaration is to be applied: neither
// it nor a later one was.
func (s *Store) DeclarationDue(ctx context.Context, r Revision) (bool, error) {
	if r.Serial == 0 {
		return true, nil
	}
	serial, err := declaredSerial(ctx, s.client.Single())
	return serial < r.Serial, wrap(err, "declaration of %s", r.Name)
}

func declaredSerial(ctx context.Context, r rowReader) (serial int64, err error) {
	row, err := r.ReadRowWithOptions(ctx, "Declarations", spanner.Key{declaredEndpoints}, []string{"Serial"}, tag("declaration"))
	if errors.Is(err, spanner.ErrRowNotFound) {
		return 0, nil
	}
	if err == nil {
		err = row.Columns(&serial)
	}
	return serial, err
}

// MarkDeclared notes that the revision's declaration is applied. A later one's stays.
func (s *Store) MarkDeclared(ctx context.Context, r Revision) error {
	if r.Serial == 0 {
		return nil
	}
	_, err := s.write(ctx, "declared", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		serial, err := declaredSerial(ctx, txn)
		if err != nil || serial >= r.Serial {
			return err
		}
		return txn.BufferWrite([]*spanner.Mutation{spanner.InsertOrUpdate("Declarations", []string{"Kind", "Serial", "Revision", "AppliedAt"},
			[]any{declaredEndpoints, r.Serial, clip(r.Name, 128), s.clock()})})
	})
	return wrap(err, "mark declaration of %s", r.Name)
}

// DeclareEndpoint makes an endpoint what Terraform declares: it is created, with key,
// or its settings and the name of its queue are changed. State and keys of one that is
// there stay. Idempotent. [ErrConflict] if the id is an endpoint's that was made
// elsewhere, or is deleted.
func (s *Store) DeclareEndpoint(ctx context.Context, ep webhook.Endpoint, key SealedKey) (webhook.Endpoint, error) {
	ep.ManagedBy = webhook.ManagedByTerraform
	created, err := s.CreateEndpoint(ctx, ep, []SealedKey{key}, webhook.ManagedByTerraform)
	if err == nil || !errors.Is(err, ErrAlreadyExists) {
		return created, err
	}
	var found webhook.Endpoint
	out, err := s.UpdateEndpoint(ctx, ep.Tenant, ep.ID, func(now *webhook.Endpoint) error {
		if found = *now; now.ManagedBy != webhook.ManagedByTerraform {
			return conflict("the endpoint was not made by Terraform: declare it under another id, or remove it")
		}
		*now = ep
		return nil
	}, webhook.ManagedByTerraform)
	if errors.Is(err, ErrNotFound) {
		err = conflict("the id is a deleted endpoint's and is not used again")
	}
	if err != nil || found.Queue == ep.Queue {
		return out, wrap(err, "declare endpoint %s/%s", ep.Tenant, ep.ID)
	}
	// Terraform has replaced the queue; the old one is gone with the tasks in it.
	err = s.changeEndpoint(ctx, "declare-queue", ep.Tenant, ep.ID, 0, func(now *webhook.Endpoint, _ time.Time) (*spanner.Mutation, bool) {
		if now.Queue == ep.Queue {
			return nil, false
		}
		now.Queue, now.QueueReadyAt, now.QueueLeftAt = ep.Queue, time.Time{}, time.Time{}
		out = *now
		return nil, true
	})
	return out, wrap(err, "declare queue of %s/%s", ep.Tenant, ep.ID)
}

// ForgetEndpoint is for an endpoint that Terraform does not declare any more: it is
// disabled, what is sent to it from now on is held, and anybody may remove it or switch
// it on. Idempotent. The controls are to be made.
func (s *Store) ForgetEndpoint(ctx context.Context, tenant, id string) (EndpointChange, error) {
	c, err := s.SetEndpointState(ctx, tenant, id, StateChange{To: webhook.EndpointDisabled, Reason: webhook.ReasonUndeclared, Actor: webhook.ManagedByTerraform})
	if err != nil {
		return c, err
	}
	c.Endpoint, err = s.UpdateEndpoint(ctx, tenant, id, func(ep *webhook.Endpoint) error {
		ep.ManagedBy = ""
		return nil
	}, webhook.ManagedByTerraform)
	return c, err
}

// DeclaredEndpoints lists the endpoints of all tenants that Terraform manages.
func (s *Store) DeclaredEndpoints(ctx context.Context) ([]webhook.Endpoint, error) {
	var out []webhook.Endpoint
	for q, err := range s.QueueStates(ctx) {
		if err != nil {
			return nil, err
		}
		if ep := q.Endpoint; ep.ManagedBy == webhook.ManagedByTerraform && ep.State != webhook.EndpointDeleted {
			out = append(out, ep)
		}
	}
	return out, nil
}
