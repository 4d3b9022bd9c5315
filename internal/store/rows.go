package store

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// The row types name every column of their table once; reading and writing both
// follow from them.

type eventRow struct {
	EventKey             []byte
	Tenant               string
	Shard                int64
	Source               string
	PublisherID          string `spanner:"PublisherId"`
	EventType            string
	Subject              string
	OrderingKey          string
	ContentType          string
	Headers              string
	BodyHash             []byte
	BodySize             int64
	OccurredAt           spanner.NullTime
	ReceivedAt           time.Time
	CommittedAt          time.Time
	Receipt              string
	State                string
	Rejection            string
	Duplicates           int64
	LastDuplicateAt      spanner.NullTime
	LastDuplicateReceipt spanner.NullString
	FanoutAfter          spanner.NullString
	ExpungedAt           spanner.NullTime
	ExpireAt             spanner.NullTime
	Flags                []string
	ReopenedBy           []string
	ReplayKey            []byte
}

type payloadRow struct {
	EventKey []byte
	Body     []byte
	Encoding string
	ExpireAt spanner.NullTime
}

type deliveryRow struct {
	EventKey      []byte
	EndpointID    string `spanner:"EndpointId"`
	Tenant        string
	Shard         int64
	EventType     string
	State         string
	Reason        string
	Generation    int64
	Attempt       int64
	Task          int64
	NextTrigger   string
	NextAttemptAt spanner.NullTime
	StartedAt     time.Time
	LastStatus    int64
	LastClass     string
	CreatedAt     time.Time
	UpdatedAt     time.Time
	DueShard      spanner.NullInt64
	OpenState     spanner.NullString
	DeadAt        spanner.NullTime
	OrderKey      []byte
	OrderSeq      spanner.NullInt64
	OrderWait     spanner.NullInt64
	LeasedUntil   spanner.NullTime
}

type attemptRow struct {
	EventKey     []byte
	EndpointID   string `spanner:"EndpointId"`
	Generation   int64
	Attempt      int64
	Task         int64
	StartTrigger string
	StartedAt    time.Time
	DurationMs   int64
	Status       int64
	Class        string
	RetryAfterMs int64
	Error        string
	URL          string `spanner:"Url"`
	RemoteAddr   string
	KeyIDs       []string `spanner:"KeyIds"`
	Excerpt      []byte
	Truncated    bool
	WroteRequest bool
	Exchange     spanner.NullString
}

type endpointRow struct {
	Tenant         string
	EndpointID     string `spanner:"EndpointId"`
	URL            string `spanner:"Url"`
	Description    string
	EventTypes     []string
	State          string
	StateReason    string
	StateSince     time.Time
	RatePerSecond  float64
	MaxConcurrency int64
	TimeoutMs      int64
	Retry          string
	Queue          string
	QueueReadyAt   spanner.NullTime
	QueueLeftAt    spanner.NullTime
	CreatedAt      time.Time
	UpdatedAt      time.Time
	Settings       spanner.NullString
	AuthSealed     []byte
	AuthSealedBy   spanner.NullString
}

// healthRow is an endpoint's health. Columns that came later are NULL in old rows.
type healthRow struct {
	Tenant              string
	EndpointID          string `spanner:"EndpointId"`
	Breaker             string
	ConsecutiveFailures int64
	FailingSince        spanner.NullTime
	LastSuccessAt       spanner.NullTime
	LastFailureAt       spanner.NullTime
	OpenUntil           spanner.NullTime
	UpdatedAt           time.Time
	OpenedAt            spanner.NullTime
	Trips               spanner.NullInt64
	ThrottledUntil      spanner.NullTime
	ThrottleStep        spanner.NullInt64
	Warned              spanner.NullInt64
	Epoch               spanner.NullInt64
	ReleasedEpoch       spanner.NullInt64
	ReleaseAll          spanner.NullBool
	LeftAt              spanner.NullTime
	Troubled            spanner.NullBool
}

type noticeRow struct {
	NoticeID   []byte `spanner:"NoticeId"`
	Tenant     string
	EndpointID string `spanner:"EndpointId"`
	Kind       string
	Detail     string
	CreatedAt  time.Time
	SentAt     spanner.NullTime
	Unsent     spanner.NullBool
	ExpireAt   time.Time
}

type keyRow struct {
	Tenant     string
	EndpointID string `spanner:"EndpointId"`
	KeyID      string `spanner:"KeyId"`
	Kind       string
	Sealed     []byte
	SealedBy   string
	NotBefore  time.Time
	NotAfter   spanner.NullTime
	CreatedAt  time.Time
}

type setRow struct {
	Tenant    string
	Version   int64
	Endpoints int64
	UpdatedAt time.Time
}

var (
	eventColumns    = columnsOf[eventRow]()
	payloadColumns  = columnsOf[payloadRow]()
	deliveryColumns = columnsOf[deliveryRow]()
	attemptColumns  = columnsOf[attemptRow]()
	endpointColumns = columnsOf[endpointRow]()
	keyColumns      = columnsOf[keyRow]()
	healthColumns   = columnsOf[healthRow]()
	noticeColumns   = columnsOf[noticeRow]()
	setColumns      = columnsOf[setRow]()
)

func columnsOf[T any]() []string {
	t := reflect.TypeFor[T]()
	names := make([]string, t.NumField())
	for i := range names {
		if names[i] = t.Field(i).Tag.Get("spanner"); names[i] == "" {
			names[i] = t.Field(i).Name
		}
	}
	return names
}

// insert is InsertStruct for a row type that is known to convert.
func insert[T any](table string, row *T) *spanner.Mutation {
	m, err := spanner.InsertStruct(table, row)
	if err != nil {
		panic("store: " + table + ": " + err.Error()) // our own struct types only
	}
	return m
}

func upsert[T any](table string, row *T) *spanner.Mutation {
	m, err := spanner.InsertOrUpdateStruct(table, row)
	if err != nil {
		panic("store: " + table + ": " + err.Error())
	}
	return m
}

// collect reads every row of an iterator into T.
func collect[T any](it *spanner.RowIterator) ([]T, error) {
	var out []T
	err := it.Do(func(r *spanner.Row) error {
		var v T
		if err := r.ToStruct(&v); err != nil {
			return err
		}
		out = append(out, v)
		return nil
	})
	return out, err
}

func nullTime(t time.Time) spanner.NullTime { return spanner.NullTime{Time: t, Valid: !t.IsZero()} }

func plainTime(t spanner.NullTime) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time
}

func keyOf(b []byte) (k webhook.EventKey) {
	copy(k[:], b)
	return k
}

// shardCount spreads indexes that would otherwise grow at one end.
const (
	dueShards  = 16
	listShards = 8
)

func listShard(k []byte) int64 { return int64(k[0]) % listShards }

func newEventRow(e *webhook.Event, headers string) *eventRow {
	return &eventRow{
		EventKey: e.Key[:], Tenant: e.Tenant, Shard: listShard(e.Key[:]), Source: e.Source, PublisherID: e.PublisherID,
		EventType: e.Type, Subject: e.Subject, OrderingKey: e.OrderingKey, ContentType: e.ContentType, Headers: headers,
		BodyHash: e.BodyHash[:], BodySize: int64(len(e.Body)), OccurredAt: nullTime(e.OccurredAt.UTC()), ReceivedAt: e.ReceivedAt.UTC(),
		CommittedAt: spanner.CommitTimestamp, Receipt: e.Receipt, Rejection: clip(e.Rejection, 4096),
	}
}

func (r *eventRow) event() (webhook.Event, error) {
	e := webhook.Event{
		Key: keyOf(r.EventKey), Tenant: r.Tenant, Source: r.Source, PublisherID: r.PublisherID, Type: r.EventType,
		Subject: r.Subject, OrderingKey: r.OrderingKey, ContentType: r.ContentType,
		OccurredAt: plainTime(r.OccurredAt), ReceivedAt: r.ReceivedAt, Receipt: r.Receipt, Rejection: r.Rejection, Flags: r.Flags,
	}
	copy(e.BodyHash[:], r.BodyHash)
	if err := json.Unmarshal([]byte(r.Headers), &e.Headers); err != nil {
		return e, fmt.Errorf("stored headers of %s: %w", e.Key, err)
	}
	if len(e.Headers) == 0 {
		e.Headers = nil
	}
	return e, nil
}

func newDeliveryRow(d *webhook.Delivery) *deliveryRow {
	r := &deliveryRow{
		EventKey: d.Event[:], EndpointID: d.Endpoint, Tenant: d.Tenant, Shard: listShard(d.Event[:]), EventType: d.EventType,
		State: string(d.State), Reason: clip(d.Reason, 1024), Generation: d.Generation, Attempt: d.Attempt, Task: d.Task,
		NextTrigger: string(d.Trigger), StartedAt: d.StartedAt, LastStatus: int64(d.LastStatus), LastClass: string(d.LastClass),
		CreatedAt: d.CreatedAt, UpdatedAt: d.UpdatedAt,
	}
	// The columns below carry the null-filtered indexes: a delivery is in a work
	// list exactly while these say so.
	if d.State == webhook.DeliveryScheduled {
		r.DueShard = spanner.NullInt64{Int64: int64(d.Event[0]) % dueShards, Valid: true}
		r.NextAttemptAt = spanner.NullTime{Time: d.NextAttemptAt, Valid: true}
	}
	if d.State.Open() {
		r.OpenState = spanner.NullString{StringVal: string(d.State), Valid: true}
	}
	if d.Ordered() {
		r.OrderKey = d.OrderKey[:]
		r.OrderSeq = spanner.NullInt64{Int64: d.OrderSeq, Valid: true}
		if d.State.Open() {
			r.OrderWait = spanner.NullInt64{Int64: d.OrderPlace, Valid: true}
		}
	}
	if d.State == webhook.DeliveryDead {
		r.DeadAt = spanner.NullTime{Time: d.UpdatedAt, Valid: true}
	}
	return r
}

func (r *deliveryRow) delivery() webhook.Delivery {
	d := webhook.Delivery{
		Event: keyOf(r.EventKey), Tenant: r.Tenant, Endpoint: r.EndpointID, EventType: r.EventType,
		State: webhook.DeliveryState(r.State), Reason: r.Reason, Generation: r.Generation, Attempt: r.Attempt, Task: r.Task,
		Trigger: webhook.Trigger(r.NextTrigger), NextAttemptAt: plainTime(r.NextAttemptAt), StartedAt: r.StartedAt,
		LastStatus: int(r.LastStatus), LastClass: webhook.Class(r.LastClass), CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		OrderSeq: r.OrderSeq.Int64, OrderPlace: r.OrderWait.Int64,
	}
	copy(d.OrderKey[:], r.OrderKey)
	return d
}

// updateDelivery writes what can change of d. Whoever changes a delivery ends its
// lease.
func updateDelivery(d *webhook.Delivery) *spanner.Mutation {
	r := newDeliveryRow(d)
	return spanner.Update("Deliveries",
		[]string{"EventKey", "EndpointId", "State", "Reason", "Generation", "Attempt", "Task", "NextTrigger", "NextAttemptAt",
			"StartedAt", "LastStatus", "LastClass", "UpdatedAt", "DueShard", "OpenState", "DeadAt",
			"OrderKey", "OrderSeq", "OrderWait", "LeasedUntil"},
		[]any{r.EventKey, r.EndpointID, r.State, r.Reason, r.Generation, r.Attempt, r.Task, r.NextTrigger, r.NextAttemptAt,
			r.StartedAt, r.LastStatus, r.LastClass, r.UpdatedAt, r.DueShard, r.OpenState, r.DeadAt,
			r.OrderKey, r.OrderSeq, r.OrderWait, r.LeasedUntil})
}

// newAttemptRow never fails for what an endpoint or an operator wrote: it cuts.
func newAttemptRow(a *webhook.Attempt, number int64) *attemptRow {
	r := &attemptRow{
		EventKey: a.Key.Event[:], EndpointID: a.Key.Endpoint, Generation: a.Key.Generation, Attempt: number, Task: a.Key.Task,
		StartTrigger: clip(string(a.Trigger), 32), StartedAt: a.StartedAt.UTC(), DurationMs: a.Duration.Milliseconds(),
		Status: int64(a.Outcome.Status), Class: clip(string(a.Outcome.Class), 16), RetryAfterMs: a.Outcome.RetryAfter.Milliseconds(),
		Error: clip(a.Error, 4096), URL: clip(a.URL, 4096), RemoteAddr: clip(a.RemoteAddr, 128), KeyIDs: []string{},
		Excerpt: a.Excerpt, Truncated: a.Truncated, WroteRequest: a.WroteRequest,
	}
	for _, id := range a.KeyIDs {
		r.KeyIDs = append(r.KeyIDs, clip(id, 128))
	}
	if r.Excerpt == nil {
		r.Excerpt = []byte{}
	}
	if a.Exchange != nil {
		if text, err := json.Marshal(a.Exchange); err == nil { // numbers, strings and bytes: it never is one
			r.Exchange = spanner.NullString{StringVal: string(text), Valid: true}
		}
	}
	if len(r.Excerpt) > maxExcerpt {
		r.Excerpt, r.Truncated = r.Excerpt[:maxExcerpt], true
	}
	return r
}

func (r *attemptRow) attempt(tenant string) webhook.Attempt {
	a := webhook.Attempt{
		Key: webhook.AttemptKey{Event: keyOf(r.EventKey), Tenant: tenant, Endpoint: r.EndpointID,
			Generation: r.Generation, Attempt: r.Attempt, Task: r.Task},
		Trigger: webhook.Trigger(r.StartTrigger), StartedAt: r.StartedAt, Duration: time.Duration(r.DurationMs) * time.Millisecond,
		Outcome: webhook.Outcome{Class: webhook.Class(r.Class), Status: int(r.Status), RetryAfter: time.Duration(r.RetryAfterMs) * time.Millisecond},
		Error:   r.Error, URL: r.URL, RemoteAddr: r.RemoteAddr, Excerpt: r.Excerpt, Truncated: r.Truncated, WroteRequest: r.WroteRequest,
	}
	if r.Exchange.Valid {
		a.Exchange = &webhook.Exchange{}
		if err := json.Unmarshal([]byte(r.Exchange.StringVal), a.Exchange); err != nil {
			a.Exchange = nil // of an older form; the rest of the attempt is worth more
		}
	}
	if len(r.KeyIDs) > 0 {
		a.KeyIDs = r.KeyIDs
	}
	if len(a.Excerpt) == 0 {
		a.Excerpt = nil
	}
	return a
}

func newEndpointRow(e *webhook.Endpoint) (*endpointRow, error) {
	retry, err := json.Marshal(e.Retry)
	if err != nil {
		return nil, fmt.Errorf("retry policy: %w", err)
	}
	types := e.EventTypes
	if types == nil {
		types = []string{}
	}
	settings, err := json.Marshal(&e.EndpointSettings)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	set := spanner.NullString{StringVal: string(settings), Valid: string(settings) != "{}"}
	return &endpointRow{
		Tenant: e.Tenant, EndpointID: e.ID, URL: e.URL, Description: e.Description, EventTypes: types,
		State: string(e.State), StateReason: clip(e.StateReason, 1024), StateSince: e.StateSince,
		RatePerSecond: e.RatePerSecond, MaxConcurrency: e.MaxConcurrency, TimeoutMs: e.Timeout.Milliseconds(),
		Retry: string(retry), Queue: e.Queue, QueueReadyAt: nullTime(e.QueueReadyAt), QueueLeftAt: nullTime(e.QueueLeftAt), CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt,
		Settings: set, AuthSealed: e.Auth.Sealed, AuthSealedBy: spanner.NullString{StringVal: e.Auth.SealedBy, Valid: e.Auth.SealedBy != ""},
	}, nil
}

func (r *endpointRow) endpoint() (webhook.Endpoint, error) {
	e := webhook.Endpoint{
		Tenant: r.Tenant, ID: r.EndpointID, URL: r.URL, Description: r.Description, EventTypes: r.EventTypes,
		State: webhook.EndpointState(r.State), StateReason: r.StateReason, StateSince: r.StateSince,
		RatePerSecond: r.RatePerSecond, MaxConcurrency: r.MaxConcurrency, Timeout: time.Duration(r.TimeoutMs) * time.Millisecond,
		Queue: r.Queue, QueueReadyAt: plainTime(r.QueueReadyAt), QueueLeftAt: plainTime(r.QueueLeftAt), CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}
	if err := json.Unmarshal([]byte(r.Retry), &e.Retry); err != nil {
		return e, fmt.Errorf("stored endpoint %s/%s: %w", e.Tenant, e.ID, err)
	}
	if r.Settings.Valid {
		if err := json.Unmarshal([]byte(r.Settings.StringVal), &e.EndpointSettings); err != nil {
			return e, fmt.Errorf("stored settings of endpoint %s/%s: %w", e.Tenant, e.ID, err)
		}
	}
	e.Auth.Sealed, e.Auth.SealedBy = r.AuthSealed, r.AuthSealedBy.StringVal
	return e, nil
}

func newHealthRow(id endpointID, h *webhook.Health, now time.Time) *healthRow {
	count := func(n int64) spanner.NullInt64 { return spanner.NullInt64{Int64: n, Valid: true} }
	breaker := h.Breaker
	if h.Closed() {
		breaker = webhook.BreakerClosed
	}
	return &healthRow{
		Tenant: id.tenant, EndpointID: id.id, Breaker: string(breaker), ConsecutiveFailures: h.ConsecutiveFailures,
		FailingSince: nullTime(h.FailingSince), LastSuccessAt: nullTime(h.LastSuccessAt), LastFailureAt: nullTime(h.LastFailureAt),
		OpenUntil: nullTime(h.OpenUntil), UpdatedAt: now, OpenedAt: nullTime(h.OpenedAt), Trips: count(h.Trips),
		ThrottledUntil: nullTime(h.ThrottledUntil), ThrottleStep: count(h.ThrottleStep), Warned: count(h.Warned), Epoch: count(h.Epoch),
		ReleasedEpoch: count(h.ReleasedEpoch), ReleaseAll: spanner.NullBool{Bool: h.ReleaseAll, Valid: true}, LeftAt: nullTime(h.LeftAt),
		Troubled: spanner.NullBool{Bool: true, Valid: !h.Closed() || h.Releasing()},
	}
}

func (r *healthRow) health() webhook.Health {
	return webhook.Health{
		Breaker: webhook.Breaker(r.Breaker), ConsecutiveFailures: r.ConsecutiveFailures, FailingSince: plainTime(r.FailingSince),
		LastSuccessAt: plainTime(r.LastSuccessAt), LastFailureAt: plainTime(r.LastFailureAt), OpenedAt: plainTime(r.OpenedAt),
		OpenUntil: plainTime(r.OpenUntil), Trips: r.Trips.Int64, ThrottledUntil: plainTime(r.ThrottledUntil), ThrottleStep: r.ThrottleStep.Int64,
		Warned: r.Warned.Int64, Epoch: r.Epoch.Int64, ReleasedEpoch: r.ReleasedEpoch.Int64, ReleaseAll: r.ReleaseAll.Bool, LeftAt: plainTime(r.LeftAt),
	}
}

func endpoints(rows []endpointRow) ([]webhook.Endpoint, error) {
	out := make([]webhook.Endpoint, len(rows))
	for i := range rows {
		var err error
		if out[i], err = rows[i].endpoint(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
