package store

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
)

const (
	// cardAge is how long an endpoint and its keys may be used after they were
	// read: what a claim says about them is never older.
	cardAge  = 2 * time.Second
	maxCards = 20_000
	// cardTimeout bounds a read that several callers wait for.
	cardTimeout = 10 * time.Second
)

type endpointID struct{ tenant, id string }

// card is what an attempt needs to know of an endpoint.
type card struct {
	id       endpointID
	exists   bool
	endpoint webhook.Endpoint
	health   webhook.Health
	keys     []SealedKey // all, newest first
	readAt   time.Time   // before the read
}

// queue says where the endpoint's tasks go; without an endpoint, to a pool.
func (c *card) queue() webhook.QueueRef {
	if c == nil || !c.exists {
		ref := webhook.QueueRef{}
		if c != nil {
			ref.Tenant, ref.Endpoint = c.id.tenant, c.id.id
		}
		return ref
	}
	return c.endpoint.QueueRef()
}

type cardCache struct {
	mu     sync.Mutex
	cards  map[endpointID]*card
	epoch  uint64 // grows with every forget: what was read before is not kept
	flight singleflight.Group
}

func newCardCache() *cardCache { return &cardCache{cards: map[endpointID]*card{}} }

func (c *cardCache) get(id endpointID, now time.Time) *card {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.cards[id]; k != nil && now.Sub(k.readAt) < cardAge && !now.Before(k.readAt) {
		return k
	}
	return nil
}

func (c *cardCache) forget(tenant, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	delete(c.cards, endpointID{tenant, id})
}

func (c *cardCache) current() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

func (c *cardCache) put(epoch uint64, cards map[endpointID]*card) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	for id, k := range cards {
		if len(c.cards) >= maxCards {
			clear(c.cards) // they would be too old within seconds anyhow
		}
		c.cards[id] = k
	}
}

// card is one endpoint with its keys, at most cardAge old. Concurrent callers
// share one read; one that gives up does not end it for the others.
func (s *Store) card(ctx context.Context, tenant, id string) (*card, error) {
	want := endpointID{tenant, id}
	if k := s.cards.get(want, s.clock()); k != nil {
		return k, nil
	}
	read := s.cards.flight.DoChan(tenant+"/"+id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cardTimeout)
		defer cancel()
		cards, err := s.cardsOf(ctx, map[endpointID]bool{want: true})
		return cards[want], err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-read:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*card), nil
	}
}

// cardsOf gives a card for every id, of which those not cached are read together.
func (s *Store) cardsOf(ctx context.Context, ids map[endpointID]bool) (map[endpointID]*card, error) {
	out := make(map[endpointID]*card, len(ids))
	now, epoch := s.clock(), s.cards.current()
	var keys []spanner.Key
	var prefixes []spanner.KeySet
	missing := map[endpointID]*card{}
	for id := range ids {
		if k := s.cards.get(id, now); k != nil {
			out[id] = k
			continue
		}
		missing[id] = &card{id: id, readAt: now}
		out[id] = missing[id]
		keys = append(keys, spanner.Key{id.tenant, id.id})
		prefixes = append(prefixes, spanner.Key{id.tenant, id.id}.AsPrefix())
	}
	if len(missing) == 0 {
		return out, nil
	}
	var eps []endpointRow
	var sealed []keyRow
	var healths map[endpointID]webhook.Health
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		eps, err = collect[endpointRow](s.client.Single().ReadWithOptions(gctx, "Endpoints", spanner.KeySetFromKeys(keys...), endpointColumns, tag("endpoint-card")))
		return err
	})
	g.Go(func() (err error) {
		sealed, err = collect[keyRow](s.client.Single().ReadWithOptions(gctx, "EndpointKeys", spanner.KeySets(prefixes...), keyColumns, tag("endpoint-card-keys")))
		return err
	})
	g.Go(func() (err error) {
		healths, err = readHealth(gctx, s.client.Single(), keys)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, mapped(err)
	}
	for i := range eps {
		e, err := eps[i].endpoint()
		if err != nil {
			return nil, err
		}
		k := missing[endpointID{e.Tenant, e.ID}]
		k.exists, k.endpoint, k.health = true, e, healths[k.id]
	}
	for i := range sealed {
		k := missing[endpointID{sealed[i].Tenant, sealed[i].EndpointID}]
		k.keys = append(k.keys, sealed[i].key())
	}
	for _, k := range missing {
		newestFirst(k.keys)
	}
	s.cards.put(epoch, missing)
	return out, nil
}

// SealedKey is a signing key of an endpoint, as it is stored: sealed.
type SealedKey struct {
	Tenant, Endpoint string
	ID               string // see webhook.KeyID
	Kind             string // "v1" (symmetric), "v1a" (ed25519) or "legacy" (a text, for templates)
	Sealed           []byte
	SealedBy         string // the version of the keyset that sealed it
	NotBefore        time.Time
	NotAfter         time.Time // zero means no end
	CreatedAt        time.Time
}

// ValidAt reports whether the key signs at t: from NotBefore until before NotAfter.
func (k *SealedKey) ValidAt(t time.Time) bool {
	return !t.Before(k.NotBefore) && (k.NotAfter.IsZero() || t.Before(k.NotAfter))
}

func newestFirst(keys []SealedKey) {
	slices.SortFunc(keys, func(a, b SealedKey) int {
		if c := b.NotBefore.Compare(a.NotBefore); c != 0 {
			return c
		}
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(b.ID, a.ID)
	})
}

func (r *keyRow) key() SealedKey {
	return SealedKey{Tenant: r.Tenant, Endpoint: r.EndpointID, ID: r.KeyID, Kind: r.Kind, Sealed: r.Sealed, SealedBy: r.SealedBy,
		NotBefore: r.NotBefore, NotAfter: plainTime(r.NotAfter), CreatedAt: r.CreatedAt}
}

func newKeyRow(k *SealedKey) *keyRow {
	return &keyRow{Tenant: k.Tenant, EndpointID: k.Endpoint, KeyID: k.ID, Kind: k.Kind, Sealed: k.Sealed, SealedBy: k.SealedBy,
		NotBefore: k.NotBefore.UTC(), NotAfter: nullTime(k.NotAfter.UTC()), CreatedAt: k.CreatedAt.UTC()}
}
