package store

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// maxCachedEndpoints bounds what the set cache holds, over all tenants.
const maxCachedEndpoints = 100_000

// endpointSet is a tenant's endpoints at one version: by id, none deleted.
type endpointSet struct {
	version   int64
	endpoints []webhook.Endpoint
}

// byID gives an endpoint of the set; nil if it has none of that id.
func (s *endpointSet) byID(id string) *webhook.Endpoint {
	i, ok := slices.BinarySearchFunc(s.endpoints, id, func(e webhook.Endpoint, id string) int { return strings.Compare(e.ID, id) })
	if !ok {
		return nil
	}
	return &s.endpoints[i]
}

// setCache remembers the newest set seen per tenant. A set counts only where the
// version read in the same transaction is its own, so a stale entry is never
// wrong, merely useless.
type setCache struct {
	mu   sync.Mutex
	sets map[string]*endpointSet
	held int
}

func newSetCache() *setCache { return &setCache{sets: map[string]*endpointSet{}} }

func (c *setCache) get(tenant string, version int64) *endpointSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sets[tenant]; s != nil && s.version == version {
		return s
	}
	return nil
}

func (c *setCache) put(tenant string, s *endpointSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.sets[tenant]; old != nil {
		if old.version >= s.version {
			return
		}
		c.drop(tenant)
	}
	for other := range c.sets { // in no order: any one will do
		if c.held+c.weight(s) <= maxCachedEndpoints {
			break
		}
		c.drop(other)
	}
	c.sets[tenant] = s
	c.held += c.weight(s)
}

func (c *setCache) drop(tenant string) {
	c.held -= c.weight(c.sets[tenant])
	delete(c.sets, tenant)
}

// weight counts an empty set too: tenants without endpoints are not free.
func (c *setCache) weight(s *endpointSet) int { return len(s.endpoints) + 1 }

// readSets gives the current sets of the tenants, as of txn: the versions are
// read in it, and so are the endpoints where no cached set has that version. An
// endpoint whose creation is committed before txn is therefore always in them.
// fresh holds those that were read, for the cache once txn is committed.
func (s *Store) readSets(ctx context.Context, txn *spanner.ReadWriteTransaction, tenants map[string]bool) (sets, fresh map[string]*endpointSet, err error) {
	sets, fresh = map[string]*endpointSet{}, map[string]*endpointSet{}
	if len(tenants) == 0 {
		return sets, fresh, nil
	}
	var keys []spanner.Key
	for t := range tenants {
		keys = append(keys, spanner.Key{t})
		sets[t] = &endpointSet{} // a tenant without a row never had an endpoint
	}
	rows, err := collect[setRow](txn.ReadWithOptions(ctx, "EndpointSets", spanner.KeySetFromKeys(keys...), setColumns, tag("endpoint-sets")))
	if err != nil {
		return nil, nil, err
	}
	var stale []spanner.KeySet
	for _, r := range rows {
		if known := s.sets.get(r.Tenant, r.Version); known != nil {
			sets[r.Tenant] = known
			continue
		}
		sets[r.Tenant] = &endpointSet{version: r.Version}
		fresh[r.Tenant] = sets[r.Tenant]
		stale = append(stale, spanner.Key{r.Tenant}.AsPrefix())
	}
	if len(stale) == 0 {
		return sets, fresh, nil
	}
	eps, err := collect[endpointRow](txn.ReadWithOptions(ctx, "Endpoints", spanner.KeySets(stale...), endpointColumns, tag("endpoints")))
	if err != nil {
		return nil, nil, err
	}
	for i := range eps {
		if eps[i].State == string(webhook.EndpointDeleted) {
			continue
		}
		e, err := eps[i].endpoint()
		if err != nil {
			return nil, nil, err
		}
		set := sets[e.Tenant]
		set.endpoints = append(set.endpoints, e) // in order: the read is by primary key
	}
	return sets, fresh, nil
}

// bumpSet is the mutation that every change of a tenant's endpoints commits with
// itself. delta changes the number of endpoints; beyond limit it is refused.
func bumpSet(ctx context.Context, txn *spanner.ReadWriteTransaction, tenant string, delta, limit int64, now time.Time) (*spanner.Mutation, error) {
	set := setRow{Tenant: tenant}
	rows, err := collect[setRow](txn.ReadWithOptions(ctx, "EndpointSets", spanner.Key{tenant}, setColumns, tag("endpoint-sets")))
	if err != nil {
		return nil, err
	}
	if len(rows) > 0 {
		set = rows[0]
	}
	set.Version++
	set.Endpoints += delta
	set.UpdatedAt = now
	if delta > 0 && set.Endpoints > limit {
		return nil, tooLarge("tenant %s has %d endpoints, the most allowed", tenant, limit)
	}
	return upsert("EndpointSets", &set), nil
}
