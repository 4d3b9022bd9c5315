package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/payload"
	"github.com/sealpost/sealpost/internal/webhook"
)

// DeadMessage is a Pub/Sub message that could not be processed, kept with the
// reason. Nobody's delivery failed: what endpoints do never makes one.
type DeadMessage struct {
	ID               string // set by the store
	Tenant           string // empty if the message does not say
	Topic            string
	Subscription     string
	MessageID        string
	Reason           string
	Attributes       map[string]string
	OrderingKey      string
	Body             []byte // left out of lists
	Size             int64  // bytes of the body as it came; set by the store
	Truncated        bool   // the body was too large for a cell and is cut
	DeliveryAttempts int64
	PublishedAt      time.Time // zero if unknown
	// StoredAt is set by the store.
	StoredAt time.Time
}

type deadRow struct {
	DeadKey          []byte
	Tenant           string
	Shard            int64
	Topic            string
	Subscription     string
	MessageID        string `spanner:"MessageId"`
	Reason           string
	Attributes       string
	OrderingKey      string
	Body             []byte
	Encoding         string
	BodySize         int64
	Truncated        bool
	DeliveryAttempts int64
	PublishedAt      spanner.NullTime
	StoredAt         time.Time
	ExpireAt         time.Time
}

var (
	deadColumns = columnsOf[deadRow]()
	// deadHead is a row without its body: a page of bodies could be gigabytes.
	deadHead = slices.DeleteFunc(columnsOf[deadRow](), func(c string) bool { return c == "Body" })
)

// deadKey identifies a message by its topic and id, or without an id by its body.
func deadKey(m *DeadMessage) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q ", m.Topic, m.MessageID)
	if m.MessageID == "" {
		h.Write(m.Body)
	}
	return h.Sum(nil)[:16]
}

func newDeadRow(m *DeadMessage, now time.Time) (*deadRow, error) {
	attributes, err := json.Marshal(m.Attributes)
	if err != nil {
		return nil, err
	}
	r := &deadRow{
		DeadKey: deadKey(m), Tenant: m.Tenant, Topic: clip(m.Topic, 512), Subscription: clip(m.Subscription, 512),
		MessageID: clip(m.MessageID, 256), Reason: clip(m.Reason, 4096), Attributes: string(attributes), OrderingKey: clip(m.OrderingKey, 1024),
		Body: m.Body, BodySize: int64(len(m.Body)), Truncated: m.Truncated, DeliveryAttempts: m.DeliveryAttempts,
		PublishedAt: nullTime(m.PublishedAt.UTC()), StoredAt: now, ExpireAt: now.Add(deadMessageRetention),
	}
	r.Shard = listShard(r.DeadKey)
	if webhook.ValidName(m.Tenant) != nil {
		r.Tenant = "" // what a poison message says of itself need not be a name
	}
	if len(attributes) > maxHeaders {
		r.Attributes, r.Truncated = "{}", true
	}
	if out, ok := payload.Compress(m.Body); ok {
		r.Body, r.Encoding = out, payload.Encoding
	}
	if len(r.Body) > maxCell || len(m.Body) > maxBody {
		r.Body, r.Encoding, r.Truncated = m.Body[:min(maxCell, len(m.Body))], "", true
	}
	if r.Body == nil {
		r.Body = []byte{}
	}
	return r, nil
}

// PutDeadMessages stores messages that are not there yet, by topic and message id
// (or body). Nothing about a message makes it fail: what is too long is cut.
func (s *Store) PutDeadMessages(ctx context.Context, ms []DeadMessage) error {
	for len(ms) > 0 {
		n, size := 0, 0
		for n < len(ms) && n < maxGroup && (n == 0 || size+len(ms[n].Body) <= maxCommitBytes) {
			size += len(ms[n].Body) + sizeEvent
			n++
		}
		if err := s.putDead(ctx, ms[:n]); err != nil {
			return wrap(err, "store %d dead messages", len(ms))
		}
		ms = ms[n:]
	}
	return nil
}

func (s *Store) putDead(ctx context.Context, ms []DeadMessage) error {
	now := s.clock()
	rows := map[webhook.EventKey]*deadRow{}
	var keys []spanner.Key
	for i := range ms {
		r, err := newDeadRow(&ms[i], now)
		if err != nil {
			return err
		}
		if k := keyOf(r.DeadKey); rows[k] == nil {
			rows[k] = r
			keys = append(keys, spanner.Key{r.DeadKey})
		}
	}
	_, err := s.write(ctx, "dead-messages", func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		old, err := collect[deadRow](txn.ReadWithOptions(ctx, "DeadMessages", spanner.KeySetFromKeys(keys...), []string{"DeadKey"}, tag("dead-messages")))
		if err != nil {
			return err
		}
		stored := map[webhook.EventKey]bool{}
		for _, r := range old {
			stored[keyOf(r.DeadKey)] = true
		}
		var ms []*spanner.Mutation
		for k, r := range rows {
			if !stored[k] {
				ms = append(ms, insert("DeadMessages", r))
			}
		}
		return txn.BufferWrite(ms)
	})
	return err
}

// ListDeadMessages lists dead messages without their bodies, newest first; an empty tenant means all,
// those that name no tenant included.
func (s *Store) ListDeadMessages(ctx context.Context, tenant string, page Page) ([]DeadMessage, string, error) {
	out, next, err := s.listDead(ctx, tenant, page)
	return out, next, wrap(err, "list dead messages of %q", tenant)
}

func (s *Store) listDead(ctx context.Context, tenant string, page Page) ([]DeadMessage, string, error) {
	scope := scopeOf("dead-messages", tenant)
	size, err := page.size()
	if err != nil {
		return nil, "", err
	}
	after, err := parseToken(scope, page.Token)
	if err != nil {
		return nil, "", err
	}
	p := plan{verb: "list-dead", table: "DeadMessages", index: "DeadMessagesByTime", columns: []string{"DeadKey", "StoredAt"}}
	for shard := range int64(listShards) {
		p.ranges = append(p.ranges, rangeIn(spanner.Key{shard}, time.Time{}, time.Time{}, after, false))
	}
	if tenant != "" {
		p.index, p.ranges = "DeadMessagesByTenant", []spanner.KeyRange{rangeIn(spanner.Key{tenant}, time.Time{}, time.Time{}, after, false)}
	}
	entries, next, err := scan(ctx, s, p, scope, size, false, func(r *spanner.Row) (key []byte, pos position, err error) {
		err = r.Columns(&key, &pos.at)
		pos.key = key
		return key, pos, err
	}, func([]byte) bool { return true })
	if err != nil || len(entries) == 0 {
		return nil, next, err
	}
	var keys []spanner.Key
	for _, k := range entries {
		keys = append(keys, spanner.Key{k})
	}
	rows, err := collect[deadRow](s.client.Single().WithTimestampBound(s.listBound()).ReadWithOptions(ctx, "DeadMessages", spanner.KeySetFromKeys(keys...), deadHead, tag("list-dead")))
	if err != nil {
		return nil, "", err
	}
	byKey := map[webhook.EventKey]*deadRow{}
	for i := range rows {
		byKey[keyOf(rows[i].DeadKey)] = &rows[i]
	}
	var out []DeadMessage
	for _, k := range entries {
		r := byKey[keyOf(k)]
		if r == nil || !r.ExpireAt.After(s.clock()) {
			continue
		}
		m, err := r.message()
		if err != nil {
			return nil, "", err
		}
		out = append(out, m)
	}
	return out, next, nil
}

func (r *deadRow) message() (DeadMessage, error) {
	m := DeadMessage{ID: hex.EncodeToString(r.DeadKey), Size: r.BodySize, Tenant: r.Tenant, Topic: r.Topic, Subscription: r.Subscription, MessageID: r.MessageID, Reason: r.Reason,
		OrderingKey: r.OrderingKey, Truncated: r.Truncated, DeliveryAttempts: r.DeliveryAttempts,
		PublishedAt: plainTime(r.PublishedAt), StoredAt: r.StoredAt}
	if err := json.Unmarshal([]byte(r.Attributes), &m.Attributes); err != nil {
		return m, fmt.Errorf("stored attributes of dead message %s: %w", r.MessageID, err)
	}
	if r.Body == nil {
		return m, nil
	}
	var err error
	m.Body, err = unpack(packed{r.Body, r.Encoding})
	return m, err
}

// DeadMessage reads one message with its body; an empty tenant reads any. [ErrNotFound]
// if the tenant has none of that ID.
func (s *Store) DeadMessage(ctx context.Context, tenant, id string) (DeadMessage, error) {
	m, err := s.deadMessage(ctx, tenant, id)
	return m, wrap(err, "dead message %s", id)
}

func (s *Store) deadMessage(ctx context.Context, tenant, id string) (DeadMessage, error) {
	key, err := hex.DecodeString(id)
	if err != nil || len(key) != 16 {
		return DeadMessage{}, invalid("id is not 32 hexadecimal digits")
	}
	row, err := s.client.Single().ReadRowWithOptions(ctx, "DeadMessages", spanner.Key{key}, deadColumns, tag("dead-message"))
	if err != nil {
		return DeadMessage{}, err
	}
	var r deadRow
	if err := row.ToStruct(&r); err != nil {
		return DeadMessage{}, err
	}
	if tenant != "" && r.Tenant != tenant || !r.ExpireAt.After(s.clock()) {
		return DeadMessage{}, ErrNotFound
	}
	return r.message()
}

// SourceCount is how often something happened at a source in one minute, as one
// reporting instance counted it: refusals and duplicates are not stored one by one.
type SourceCount struct {
	Tenant   string // empty means webhook.DefaultTenant
	Source   string
	Minute   time.Time // cut to the minute
	Reason   string
	Reporter string // the instance; a new process is a new reporter
	Count    int64
}

type countRow struct {
	Tenant    string
	Source    string
	Minute    time.Time
	Reason    string
	Reporter  string
	Total     int64
	UpdatedAt time.Time
	ExpireAt  time.Time
}

var countColumns = columnsOf[countRow]()

// PutSourceCounts stores final counts: what is there already for the same source,
// minute, reason and reporter is replaced, so that a repeat adds nothing.
func (s *Store) PutSourceCounts(ctx context.Context, counts []SourceCount) error {
	now := s.clock()
	var ms []*spanner.Mutation
	for _, c := range counts {
		r := countRow{Tenant: c.Tenant, Source: c.Source, Minute: c.Minute.UTC().Truncate(time.Minute), Reason: c.Reason, Reporter: c.Reporter,
			Total: c.Count, UpdatedAt: now}
		if r.Tenant == "" {
			r.Tenant = webhook.DefaultTenant
		}
		r.ExpireAt = r.Minute.Add(sourceCountRetention)
		if err := checkCount(&r); err != nil {
			return wrap(err, "store count of %q at %q", c.Reason, c.Source)
		}
		ms = append(ms, upsert("SourceCounts", &r))
	}
	for part := range slices.Chunk(ms, 2_000) {
		// Replacing is idempotent, so the cheaper commit without replay protection serves.
		if _, err := s.client.Apply(ctx, part, spanner.ApplyAtLeastOnce(), spanner.TransactionTag("sealpost-source-counts")); err != nil {
			return wrap(err, "store %d source counts", len(counts))
		}
	}
	return nil
}

func checkCount(r *countRow) error {
	if err := webhook.ValidName(r.Tenant); err != nil {
		return invalid("tenant: %v", err)
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{{"source", r.Source, 2048}, {"reason", r.Reason, 128}, {"reporter", r.Reporter, 256}} {
		if f.value == "" || len(f.value) > f.limit || !utf8.ValidString(f.value) {
			return invalid("%s %.40q: want 1 to %d bytes of UTF-8", f.name, f.value, f.limit)
		}
	}
	if r.Total < 0 || r.Minute.Year() < 2000 {
		return invalid("count %d in minute %s", r.Total, r.Minute)
	}
	return nil
}

// SourceCountFilter selects counts of one tenant. Zero fields select everything.
type SourceCountFilter struct {
	Tenant string
	Source string
	Since  time.Time
	Until  time.Time // exclusive
}

// ListSourceCounts lists counts by source, and within a source newest minute
// first, then by reason and reporter.
func (s *Store) ListSourceCounts(ctx context.Context, f SourceCountFilter, page Page) ([]SourceCount, string, error) {
	out, next, err := s.listCounts(ctx, f, page)
	return out, next, wrap(err, "list source counts of %s", f.Tenant)
}

func (s *Store) listCounts(ctx context.Context, f SourceCountFilter, page Page) ([]SourceCount, string, error) {
	scope := scopeOf("source-counts", f)
	size, after, err := startPage(f.Tenant, scope, page)
	if err != nil {
		return nil, "", err
	}
	r := timeRange(spanner.Key{f.Tenant}, time.Time{}, time.Time{}, nil)
	if f.Source != "" {
		r = timeRange(spanner.Key{f.Tenant, f.Source}, f.Since, f.Until, nil)
	}
	if after != nil {
		var at countPlace
		if json.Unmarshal([]byte(after.id), &at) != nil {
			return nil, "", invalid("page token is not one that this list gave")
		}
		r.Start, r.Kind = spanner.Key{f.Tenant, at.Source, after.at, at.Reason, at.Reporter}, spanner.OpenClosed
	}
	p := plan{verb: "list-source-counts", table: "SourceCounts", columns: countColumns, ranges: []spanner.KeyRange{r}}
	rows, next, err := scan(ctx, s, p, scope, size, true, func(r *spanner.Row) (c countRow, pos position, err error) {
		if err := r.ToStruct(&c); err != nil {
			return c, pos, err
		}
		id, err := json.Marshal(countPlace{c.Source, c.Reason, c.Reporter})
		return c, position{at: c.Minute, id: string(id)}, err
	}, func(c countRow) bool {
		return c.ExpireAt.After(s.clock()) && (f.Since.IsZero() || !c.Minute.Before(f.Since)) && (f.Until.IsZero() || c.Minute.Before(f.Until))
	})
	var out []SourceCount
	for _, c := range rows {
		out = append(out, SourceCount{Tenant: c.Tenant, Source: c.Source, Minute: c.Minute, Reason: c.Reason, Reporter: c.Reporter, Count: c.Total})
	}
	return out, next, err
}

// SumSourceCounts adds up a source's counts since a time, by reason.
func (s *Store) SumSourceCounts(ctx context.Context, tenant, source string, since time.Time) (map[string]int64, error) {
	sums := map[string]int64{}
	now := s.clock()
	r := timeRange(spanner.Key{tenant, source}, since.UTC().Truncate(time.Minute), time.Time{}, nil)
	err := s.client.Single().WithTimestampBound(s.listBound()).ReadWithOptions(ctx, "SourceCounts", r, []string{"Reason", "Total", "ExpireAt"}, tag("sum-source-counts")).Do(func(row *spanner.Row) error {
		var reason string
		var total int64
		var expires time.Time
		if err := row.Columns(&reason, &total, &expires); err != nil {
			return err
		}
		if expires.After(now) {
			sums[reason] += total
		}
		return nil
	})
	return sums, wrap(err, "sum the counts of source %s", source)
}

// countPlace is what of a count's key a page token needs besides the minute.
type countPlace struct{ Source, Reason, Reporter string }

// Audit is one line of the audit log: who changed what.
type Audit struct {
	Tenant, Actor, Action, Target string
	At                            time.Time
	Detail                        json.RawMessage // an object
}

// ListAudit lists a tenant's audit log, newest first.
func (s *Store) ListAudit(ctx context.Context, tenant string, page Page) ([]Audit, string, error) {
	scope := scopeOf("audit", tenant)
	size, after, err := startPage(tenant, scope, page)
	if err != nil {
		return nil, "", wrap(err, "list audit log of %q", tenant)
	}
	p := plan{verb: "list-audit", table: "AuditLog", columns: auditColumns,
		ranges: []spanner.KeyRange{rangeIn(spanner.Key{tenant}, time.Time{}, time.Time{}, after, false)}}
	rows, next, err := scan(ctx, s, p, scope, size, true, func(r *spanner.Row) (a auditLogRow, pos position, err error) {
		err = r.ToStruct(&a)
		return a, position{at: a.At, key: a.AuditID}, err
	}, func(a auditLogRow) bool { return a.ExpireAt.After(s.clock()) })
	var out []Audit
	for _, a := range rows {
		out = append(out, Audit{Tenant: a.Tenant, Actor: a.Actor, Action: a.Action, Target: a.Target, At: a.At, Detail: json.RawMessage(a.Detail)})
	}
	return out, next, wrap(err, "list audit log of %s", tenant)
}
