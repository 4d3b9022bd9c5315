package console

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// KeysPath is where receivers find the public keys of their endpoint: GET
// KeysPath + "{tenant}/{endpoint}".
const KeysPath = "/.well-known/webhook-keys/"

const (
	// keysLinger is how long a public key is shown after its end: requests that were
	// signed before may be verified until then, in flight or from a queue.
	keysLinger = time.Hour
	// keysAge is how long an answer may be used by caches, and is by this one: the
	// path is public, and must not be a way to Spanner for everybody. After a rotation
	// the old key signs on for longer, so that a cached answer holds a key that
	// verifies; an overlap below it is the operator's choice.
	keysAge = time.Minute
	// maxKeyPages bounds this cache.
	maxKeyPages = 4096
)

// keyPage is an endpoint's public keys, as they are answered.
type keyPage struct {
	Tenant   string      `json:"tenant"`
	Endpoint string      `json:"endpoint"`
	Keys     []publicKey `json:"keys"` // newest first
}

type publicKey struct {
	ID        string            `json:"id"`
	Kind      string            `json:"kind"` // always v1a: v1 secrets are not public
	Key       signing.PublicKey `json:"key"`  // whpk_…
	NotBefore time.Time         `json:"not_before"`
	NotAfter  *time.Time        `json:"not_after,omitempty"`
}

// Keys serves the public halves of the endpoints' ed25519 keys (v1a), for receivers
// that verify without a shared secret. It is public and needs no authentication; it
// must have the keyset, since the keys are stored sealed.
//
// It answers 404 for everything that has no such key, without saying why: which
// tenants and endpoints exist is nobody's business. A deleted endpoint has none.
type Keys struct {
	store  *store.Store
	sealer *secrets.Sealer
	log    *slog.Logger
	now    func() time.Time

	mu    sync.Mutex
	pages map[string]cachedPage
}

type cachedPage struct {
	body []byte // nil: not found
	tag  string
	at   time.Time
}

// NewKeys makes the handler. A nil clock is time.Now.
func NewKeys(st *store.Store, sealer *secrets.Sealer, log *slog.Logger, now func() time.Time) *Keys {
	if now == nil {
		now = time.Now
	}
	return &Keys{store: st, sealer: sealer, log: log, now: now, pages: map[string]cachedPage{}}
}

// ServeHTTP answers GET and HEAD below [KeysPath].
func (k *Keys) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return
	}
	tenant, endpoint, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, KeysPath), "/")
	if !ok || !strings.HasPrefix(r.URL.Path, KeysPath) || webhook.ValidName(tenant) != nil || webhook.ValidName(endpoint) != nil {
		notFound(w)
		return
	}
	p, err := k.page(r, tenant, endpoint)
	switch {
	case err != nil:
		k.log.ErrorContext(r.Context(), "public keys failed", slog.String("event", "public_keys"), slog.String("tenant", tenant), slog.String("endpoint", endpoint), slog.String("error", err.Error()))
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "the keys are not available now", http.StatusServiceUnavailable)
		return
	case p.body == nil:
		notFound(w)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "public, max-age=60")
	h.Set("ETag", p.tag)
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Access-Control-Allow-Origin", "*") // public as they are
	if r.Header.Get("If-None-Match") == p.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(p.body)
}

func notFound(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "public, max-age=60")
	http.Error(w, "no public keys here", http.StatusNotFound)
}

func (k *Keys) page(r *http.Request, tenant, endpoint string) (cachedPage, error) {
	now, name := k.now(), tenant+"/"+endpoint
	k.mu.Lock()
	p, ok := k.pages[name]
	k.mu.Unlock()
	if ok && now.Sub(p.at) < keysAge && !now.Before(p.at) {
		return p, nil
	}
	body, err := k.read(r, tenant, endpoint, now)
	if err != nil {
		return cachedPage{}, err
	}
	p = cachedPage{body: body, at: now}
	if body != nil {
		sum := sha256.Sum256(body)
		p.tag = `"` + hex.EncodeToString(sum[:12]) + `"`
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.pages) >= maxKeyPages {
		clear(k.pages) // they would be too old soon anyhow
	}
	k.pages[name] = p
	return p, nil
}

// read makes the page; nil where there is none.
func (k *Keys) read(r *http.Request, tenant, endpoint string, now time.Time) ([]byte, error) {
	ep, err := k.store.Endpoint(r.Context(), tenant, endpoint)
	if errors.Is(err, store.ErrNotFound) || err == nil && ep.State == webhook.EndpointDeleted {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sealed, err := k.store.Keys(r.Context(), tenant, endpoint)
	if err != nil {
		return nil, err
	}
	page := keyPage{Tenant: tenant, Endpoint: endpoint}
	for _, s := range sealed {
		if s.Kind != "v1a" || !s.NotAfter.IsZero() && now.After(s.NotAfter.Add(keysLinger)) {
			continue
		}
		plain, err := k.sealer.Open(s.Sealed, s.SealedBy, s.Tenant, s.Endpoint)
		if err != nil {
			return nil, err
		}
		private, err := signing.ParsePrivateKey(string(plain))
		if err != nil {
			return nil, err
		}
		p := publicKey{ID: s.ID, Kind: s.Kind, Key: private.Public(), NotBefore: s.NotBefore.UTC()}
		if !s.NotAfter.IsZero() {
			end := s.NotAfter.UTC()
			p.NotAfter = &end
		}
		page.Keys = append(page.Keys, p)
	}
	if len(page.Keys) == 0 {
		return nil, nil
	}
	return json.Marshal(page)
}
