package console_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/console"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// keysBench is the handler over a store whose clock the test moves.
type keysBench struct {
	t      *testing.T
	now    atomic.Int64
	store  *store.Store
	sealer *secrets.Sealer
	keys   *console.Keys
}

func newKeysBench(t *testing.T) *keysBench {
	t.Helper()
	var ddl []string
	for _, s := range store.Statements() {
		ddl = append(ddl, s.SQL)
	}
	b := &keysBench{t: t}
	b.now.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Unix())
	var err error
	b.store, err = store.Open(t.Context(), localtest.Database(t, ddl), store.Options{Now: b.clock})
	must(t, err)
	t.Cleanup(b.store.Close)
	ks, err := secrets.NewKeyset()
	must(t, err)
	b.sealer, err = secrets.NewSealer(map[int][]byte{1: ks})
	must(t, err)
	b.keys = console.NewKeys(b.store, b.sealer, slog.New(slog.DiscardHandler), b.clock)
	return b
}

func (b *keysBench) clock() time.Time        { return time.Unix(b.now.Load(), 0).UTC() }
func (b *keysBench) advance(d time.Duration) { b.now.Add(int64(d / time.Second)) }

// key seals a fresh key of the kind; public is its public half where it has one.
func (b *keysBench) key(id, kind, endpoint string) (k store.SealedKey, public string) {
	b.t.Helper()
	secret, err := signing.GenerateSecret(nil)
	must(b.t, err)
	text := secret.Reveal()
	if kind == "v1a" {
		private, err := signing.GeneratePrivateKey(nil)
		must(b.t, err)
		text, public = private.Reveal(), private.Public().String()
	}
	sealed, by, err := b.sealer.Seal([]byte(text), "acme", endpoint)
	must(b.t, err)
	return store.SealedKey{ID: id, Kind: kind, Sealed: sealed, SealedBy: by}, public
}

func (b *keysBench) endpoint(id string, keys ...store.SealedKey) {
	b.t.Helper()
	_, err := b.store.CreateEndpoint(b.t.Context(), webhook.Endpoint{Tenant: "acme", ID: id, URL: "https://a.example/", EventTypes: []string{"*"}}, keys, "test")
	must(b.t, err)
}

func (b *keysBench) get(path string, header ...string) *httptest.ResponseRecorder {
	b.t.Helper()
	r := httptest.NewRequest("GET", "https://console.example"+path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	b.keys.ServeHTTP(w, r)
	return w
}

// shown are the keys of the answer.
func (b *keysBench) shown(path string) (keys []struct {
	ID, Kind, Key string
	NotAfter      *time.Time `json:"not_after"`
}) {
	b.t.Helper()
	w := b.get(path)
	var page struct {
		Tenant, Endpoint string
		Keys             json.RawMessage
	}
	if w.Code != http.StatusOK || json.Unmarshal(w.Body.Bytes(), &page) != nil || page.Tenant != "acme" {
		b.t.Fatalf("%d: %s", w.Code, w.Body)
	}
	must(b.t, json.Unmarshal(page.Keys, &keys))
	return keys
}

func TestPublicKeys(t *testing.T) {
	t.Parallel()
	b := newKeysBench(t)
	first, firstPublic := b.key("key_1", "v1a", "both")
	symmetric, _ := b.key("key_2", "v1", "both")
	b.endpoint("both", first, symmetric)
	only, _ := b.key("key_3", "v1", "only-v1")
	b.endpoint("only-v1", only)
	gone, _ := b.key("key_4", "v1a", "gone")
	b.endpoint("gone", gone)
	_, err := b.store.DeleteEndpoint(t.Context(), "acme", "gone", "test")
	must(t, err)

	path := console.KeysPath + "acme/both"
	if got := b.shown(path); len(got) != 1 || got[0].ID != "key_1" || got[0].Kind != "v1a" || got[0].Key != firstPublic || got[0].NotAfter != nil {
		t.Errorf("%+v", got)
	}
	w := b.get(path)
	if h := w.Header(); h.Get("Content-Type") != "application/json" || h.Get("Cache-Control") != "public, max-age=60" || h.Get("ETag") == "" {
		t.Errorf("headers %v", h)
	}
	if again := b.get(path, "If-None-Match", w.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() != 0 {
		t.Errorf("the same again: %d", again.Code)
	}
	// Whatever is not there looks alike.
	unknown := b.get(console.KeysPath + "acme/nobody")
	for _, p := range []string{"acme/only-v1", "acme/gone", "other/both", "acme/", "acme", "", "acme/both/more", "acme/..%2fboth", "Acme/both"} {
		got := b.get(console.KeysPath + p)
		if got.Code != http.StatusNotFound || got.Body.String() != unknown.Body.String() {
			t.Errorf("%q: %d %s", p, got.Code, got.Body)
		}
	}
	post := httptest.NewRecorder()
	b.keys.ServeHTTP(post, httptest.NewRequest("POST", path, nil))
	if post.Code != http.StatusMethodNotAllowed || post.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d", post.Code)
	}

	// A rotation: both keys while the old one signs, and an hour longer.
	second, secondPublic := b.key("key_5", "v1a", "both")
	b.advance(time.Minute)
	must(t, b.store.RotateKey(t.Context(), "acme", "both", second, 24*time.Hour, "test"))
	b.advance(time.Minute)
	got := b.shown(path)
	if len(got) != 2 || got[0].Key != secondPublic || got[1].Key != firstPublic || got[0].NotAfter != nil || got[1].NotAfter == nil {
		t.Errorf("while both sign: %+v", got)
	}
	b.advance(24*time.Hour + 58*time.Minute)
	if got := b.shown(path); len(got) != 2 {
		t.Errorf("59 minutes after the end: %+v", got)
	}
	b.advance(3 * time.Minute)
	if got := b.shown(path); len(got) != 1 || got[0].Key != secondPublic {
		t.Errorf("long after the end: %+v", got)
	}
}

// Answers are cached for a minute, and a keyset that is missing is a fault of ours
// that says nothing.
func TestPublicKeysOfAnotherKeyset(t *testing.T) {
	t.Parallel()
	b := newKeysBench(t)
	k, _ := b.key("key_1", "v1a", "ep")
	k.SealedBy = "99"
	b.endpoint("ep", k)
	if w := b.get(console.KeysPath + "acme/ep"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := b.get(console.KeysPath + "acme/later"); w.Code != http.StatusNotFound {
		t.Fatal(w.Code)
	}
	later, _ := b.key("key_2", "v1a", "later")
	b.endpoint("later", later)
	b.advance(59 * time.Second)
	if w := b.get(console.KeysPath + "acme/later"); w.Code != http.StatusNotFound {
		t.Errorf("within the minute: %d", w.Code)
	}
	b.advance(time.Second)
	if w := b.get(console.KeysPath + "acme/later"); w.Code != http.StatusOK {
		t.Errorf("after it: %d", w.Code)
	}
}
