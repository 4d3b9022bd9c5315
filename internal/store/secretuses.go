package store

import (
	"context"
	"slices"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// SecretUse is one version of a source's secret as receivers last reported it. A
// source whose provider publishes its keys is listed with an empty Secret, and used
// under the host that the keys came from.
type SecretUse struct {
	Tenant  string // empty means webhook.DefaultTenant
	Source  string
	Secret  string
	Version int64
	Scheme  string
	// ListedAt is when a receiver last said that it is configured; zero if none did.
	ListedAt time.Time
	// UsedAt is the minute in which it last verified a request; zero if it never did.
	UsedAt time.Time
}

type secretUseRow struct {
	Tenant    string
	Source    string
	Secret    string
	Version   int64
	Scheme    string
	ListedAt  spanner.NullTime
	UsedAt    spanner.NullTime
	UpdatedAt time.Time
}

var secretUseColumns = columnsOf[secretUseRow]()

type secretUseKey struct {
	tenant, source, secret string
	version                int64
}

func (r *secretUseRow) key() secretUseKey {
	return secretUseKey{r.Tenant, r.Source, r.Secret, r.Version}
}

// PutSecretUses remembers the latest time of each kind. Reports may come repeatedly
// and in any order.
func (s *Store) PutSecretUses(ctx context.Context, uses []SecretUse) error {
	latest := map[secretUseKey]*secretUseRow{}
	for _, u := range uses {
		r := &secretUseRow{Tenant: u.Tenant, Source: u.Source, Secret: u.Secret, Version: u.Version, Scheme: u.Scheme,
			ListedAt: nullTime(u.ListedAt.UTC()), UsedAt: nullTime(u.UsedAt.UTC())}
		if r.Tenant == "" {
			r.Tenant = webhook.DefaultTenant
		}
		if err := checkSecretUse(r); err != nil {
			return wrap(err, "store use of a secret of %q", u.Source)
		}
		if before := latest[r.key()]; before != nil {
			r.after(before)
		}
		latest[r.key()] = r
	}
	rows := make([]*secretUseRow, 0, len(latest))
	for _, r := range latest {
		rows = append(rows, r)
	}
	for part := range slices.Chunk(rows, 2_000) {
		if err := s.putSecretUses(ctx, part); err != nil {
			return wrap(err, "store %d uses of secrets", len(uses))
		}
	}
	return nil
}

func (s *Store) putSecretUses(ctx context.Context, rows []*secretUseRow) error {
	now := s.clock()
	_, err := s.write(ctx, "secret-uses", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		var keys []spanner.Key
		for _, r := range rows {
			keys = append(keys, spanner.Key{r.Tenant, r.Source, r.Secret, r.Version})
		}
		stored, err := collect[secretUseRow](txn.ReadWithOptions(ctx, "SecretUses", spanner.KeySetFromKeys(keys...), secretUseColumns, tag("secret-uses")))
		if err != nil {
			return err
		}
		known := map[secretUseKey]*secretUseRow{}
		for i := range stored {
			known[stored[i].key()] = &stored[i]
		}
		var ms []*spanner.Mutation
		for _, r := range rows {
			next := *r // the transaction may run again
			next.UpdatedAt = now
			if before := known[r.key()]; before != nil {
				next.after(before)
			}
			ms = append(ms, upsert("SecretUses", &next))
		}
		return txn.BufferWrite(ms)
	})
	return err
}

// after makes r, which is reported later than before, hold the latest of both times.
func (r *secretUseRow) after(before *secretUseRow) {
	if before.ListedAt.Valid && before.ListedAt.Time.After(r.ListedAt.Time) {
		r.ListedAt = before.ListedAt
	}
	if before.UsedAt.Valid && before.UsedAt.Time.After(r.UsedAt.Time) {
		r.UsedAt = before.UsedAt
	}
	if r.Scheme == "" {
		r.Scheme = before.Scheme
	}
}

func checkSecretUse(r *secretUseRow) error {
	if err := webhook.ValidName(r.Tenant); err != nil {
		return invalid("tenant: %v", err)
	}
	if err := webhook.ValidName(r.Source); err != nil {
		return invalid("source: %v", err)
	}
	if len(r.Secret) > 256 || !utf8.ValidString(r.Secret) || len(r.Scheme) > 64 || !utf8.ValidString(r.Scheme) || r.Version < 0 {
		return invalid("secret %.40q version %d of scheme %.40q", r.Secret, r.Version, r.Scheme)
	}
	for _, at := range []spanner.NullTime{r.ListedAt, r.UsedAt} {
		if at.Valid && at.Time.Year() < 2000 {
			return invalid("time %s", at.Time)
		}
	}
	return nil
}

// ListSecretUses lists the secrets of a tenant's sources, by source, name and
// version. An empty source lists all.
func (s *Store) ListSecretUses(ctx context.Context, tenant, source string) ([]SecretUse, error) {
	key := spanner.Key{tenant}
	if source != "" {
		key = append(key, source)
	}
	rows, err := collect[secretUseRow](s.client.Single().WithTimestampBound(s.listBound()).ReadWithOptions(ctx, "SecretUses", key.AsPrefix(), secretUseColumns, tag("list-secret-uses")))
	out := make([]SecretUse, len(rows))
	for i, r := range rows {
		out[i] = SecretUse{Tenant: r.Tenant, Source: r.Source, Secret: r.Secret, Version: r.Version, Scheme: r.Scheme, ListedAt: plainTime(r.ListedAt), UsedAt: plainTime(r.UsedAt)}
	}
	return out, wrap(err, "list the secrets of %s", tenant)
}
