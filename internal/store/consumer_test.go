package store_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/webhook"
)

// What the far end of a delivery looks like. Sealpost delivers every event at least
// once and in no promised order: an endpoint may see an event twice, and an older
// one after a newer one. Two rules make that harmless:
//
//   - The id and the change are one transaction. What carries an id that was seen is
//     done already; what fails leaves neither, and comes again.
//   - A version guard: an event changes a thing only if it is newer than what is
//     known of it, by the sender's version (or its time), never by the order of
//     arrival.

// consumerDDL is the consumer's own schema. Ids are kept for longer than Sealpost
// may deliver an event again: rows live 45 days, and a person can replay them.
var consumerDDL = []string{
	`CREATE TABLE Orders (
  OrderId STRING(64) NOT NULL,
  Version INT64 NOT NULL,
  Status STRING(64) NOT NULL,
  Changes INT64 NOT NULL
) PRIMARY KEY (OrderId)`,
	`CREATE TABLE SeenWebhooks (
  WebhookId STRING(64) NOT NULL,
  SeenAt TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true)
) PRIMARY KEY (WebhookId), ROW DELETION POLICY (OLDER_THAN(SeenAt, INTERVAL 60 DAY))`,
}

// order is the payload of an event.
type order struct {
	ID      string `json:"id"`
	Version int64  `json:"version"`
	Status  string `json:"status"`
}

// consumer is an endpoint that keeps orders.
type consumer struct {
	db  *spanner.Client
	key *standardwebhooks.Webhook
}

// ServeHTTP answers 2xx once the event is dealt with for good, 4xx to what is not
// Sealpost's, and 5xx to what is to come again.
func (c *consumer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil || c.key.Verify(body, r.Header) != nil { // before anything is parsed
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var o order
	if err := json.Unmarshal(body, &o); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if err := c.apply(r.Context(), r.Header.Get("webhook-id"), o); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// apply changes the order unless the webhook was seen or the order is newer.
func (c *consumer) apply(ctx context.Context, webhookID string, o order) error {
	_, err := c.db.ReadWriteTransaction(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		_, err := txn.ReadRow(ctx, "SeenWebhooks", spanner.Key{webhookID}, []string{"WebhookId"})
		if !errors.Is(err, spanner.ErrRowNotFound) {
			return err // nil: a repeat
		}
		changes := []*spanner.Mutation{spanner.Insert("SeenWebhooks", []string{"WebhookId", "SeenAt"}, []any{webhookID, spanner.CommitTimestamp})}
		var known, times int64
		row, err := txn.ReadRow(ctx, "Orders", spanner.Key{o.ID}, []string{"Version", "Changes"})
		switch {
		case err == nil:
			err = row.Columns(&known, &times)
		case errors.Is(err, spanner.ErrRowNotFound):
			err = nil
		}
		if err != nil {
			return err
		}
		if o.Version > known {
			changes = append(changes, spanner.InsertOrUpdate("Orders", []string{"OrderId", "Version", "Status", "Changes"}, []any{o.ID, o.Version, o.Status, times + 1}))
		}
		return txn.BufferWrite(changes)
	})
	return err
}

// consumerRig sends a consumer what a dispatcher would.
type consumerRig struct {
	t   *testing.T
	db  *spanner.Client
	url string
	key *standardwebhooks.Webhook
}

func newConsumer(t *testing.T) *consumerRig {
	t.Helper()
	db, err := spanner.NewClientWithConfig(context.Background(), localtest.Database(t, consumerDDL), spanner.ClientConfig{DisableNativeMetrics: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	key, err := standardwebhooks.NewWebhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(&consumer{db, key})
	t.Cleanup(srv.Close)
	return &consumerRig{t, db, srv.URL, key}
}

// send posts an event; its id follows from the version, as a provider's would.
func (r *consumerRig) send(version int64, status string) int {
	r.t.Helper()
	id := webhook.KeyOf("shop", "default", fmt.Sprint(version)).ID()
	body, err := json.Marshal(order{"A1", version, status})
	if err != nil {
		r.t.Fatal(err)
	}
	now := time.Now()
	signature, err := r.key.Sign(id, now, body)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("webhook-id", id)
	req.Header.Set("webhook-timestamp", fmt.Sprint(now.Unix()))
	req.Header.Set("webhook-signature", signature)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Error(err)
		return 0
	}
	defer res.Body.Close()
	return res.StatusCode
}

// holds checks the order, how often it changed, and how many webhooks were seen.
func (r *consumerRig) holds(version int64, status string, changes int64, seen int) {
	r.t.Helper()
	var o order
	var times int64
	row, err := r.db.Single().ReadRow(r.t.Context(), "Orders", spanner.Key{"A1"}, []string{"Version", "Status", "Changes"})
	if err == nil {
		err = row.Columns(&o.Version, &o.Status, &times)
	}
	n := 0
	if err == nil {
		err = r.db.Single().Read(r.t.Context(), "SeenWebhooks", spanner.AllKeys(), []string{"WebhookId"}).Do(func(*spanner.Row) error { n++; return nil })
	}
	if err != nil || o.Version != version || o.Status != status || times != changes || n != seen {
		r.t.Errorf("version %d %q after %d changes, %d webhooks seen, %v; want version %d %q, %d and %d", o.Version, o.Status, times, n, err, version, status, changes, seen)
	}
}

func TestConsumer(t *testing.T) {
	t.Parallel()
	type sent struct {
		version int64
		status  string
	}
	for _, c := range []struct {
		name    string
		sent    []sent
		version int64
		status  string
		changes int64
		seen    int
	}{
		{"in order", []sent{{1, "paid"}, {2, "shipped"}}, 2, "shipped", 2, 2},
		{"reversed", []sent{{2, "shipped"}, {1, "paid"}}, 2, "shipped", 1, 2},
		{"repeated", []sent{{1, "paid"}, {1, "paid"}, {1, "paid"}}, 1, "paid", 1, 1},
		{"repeated after a newer one", []sent{{1, "paid"}, {2, "shipped"}, {1, "paid"}, {2, "shipped"}}, 2, "shipped", 2, 2},
		{"the middle one late", []sent{{1, "paid"}, {3, "returned"}, {2, "shipped"}}, 3, "returned", 2, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newConsumer(t)
			for _, s := range c.sent {
				if code := r.send(s.version, s.status); code != http.StatusNoContent {
					t.Errorf("version %d: %d", s.version, code)
				}
			}
			r.holds(c.version, c.status, c.changes, c.seen)
		})
	}
}

// The same webhook many times at once, among others, in no order.
func TestConsumerUnderConcurrentRepeats(t *testing.T) {
	t.Parallel()
	r := newConsumer(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if code := r.send(int64(1+i%4), fmt.Sprint("state ", 1+i%4)); code != http.StatusNoContent {
				t.Errorf("%d", code)
			}
		})
	}
	wg.Wait()
	var times int64
	row, err := r.db.Single().ReadRow(t.Context(), "Orders", spanner.Key{"A1"}, []string{"Changes"})
	if err == nil {
		err = row.Columns(&times)
	}
	if err != nil || times < 1 || times > 4 {
		t.Errorf("%d changes by 4 events, %v", times, err)
	}
	r.holds(4, "state 4", times, 4)
}

// What nobody signed changes nothing; nor does what cannot be committed, which is
// asked for again.
func TestConsumerRefuses(t *testing.T) {
	t.Parallel()
	r := newConsumer(t)
	if code := r.send(1, "paid"); code != http.StatusNoContent {
		t.Fatal(code)
	}
	stranger := *r
	var err error
	if stranger.key, err = standardwebhooks.NewWebhook("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"); err != nil {
		t.Fatal(err)
	}
	if code := stranger.send(2, "stolen"); code != http.StatusBadRequest {
		t.Errorf("a stranger's: %d", code)
	}
	if code := r.send(3, string(bytes.Repeat([]byte("x"), 65))); code != http.StatusInternalServerError { // does not fit its column
		t.Errorf("what cannot be committed: %d", code)
	}
	r.holds(1, "paid", 1, 1)
	if code := r.send(3, "shipped"); code != http.StatusNoContent {
		t.Errorf("the same webhook, now that it can: %d", code)
	}
	r.holds(3, "shipped", 2, 2)
}
