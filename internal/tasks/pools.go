package tasks

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Spread is how many of the pool queues serve one endpoint.
//
// A pool dispatches in no order that anybody chooses, about first come first
// served, so a neighbour's thousand waiting tasks are in the way of everything that
// comes after them: each is dispatched once, found to be over its endpoint's limit
// and put back for later, which takes milliseconds of the dispatcher and one of the
// pool's 500 dispatches a second. Dealt over four pools, a thousand are 250 in each,
// half a second. With more than four, one endpoint's flood reaches more pools and
// more neighbours; with sixteen pools in all, two endpoints share all four in one of
// 1,820 cases, and one in three pairs shares none.
const Spread = 4

// PoolOf is the pool queue of an attempt whose endpoint has no queue of its own: one
// of the endpoint's, picked by the attempt. It depends on nothing but its arguments:
// Cloud Tasks knows a task's name within one queue only. Both choices are made by the
// highest hash (rendezvous), so that adding a pool moves few names; those it moves
// may be run twice.
//
// It panics if there is no pool; [Config.Validate] sees to it that there is.
func PoolOf(pools []string, k webhook.AttemptKey) string {
	own := poolsOf(pools, k.Tenant, k.Endpoint)
	name := k.TaskID()
	return slices.MaxFunc(own, func(a, b string) int { return cmp.Compare(score(a, name), score(b, name)) })
}

// poolsOf are the pools that serve an endpoint.
func poolsOf(pools []string, tenant, endpoint string) []string {
	if len(pools) <= Spread {
		return pools
	}
	who := tenant + "/" + endpoint
	scores := make(map[string]uint64, len(pools))
	for _, p := range pools {
		scores[p] = score(p, who)
	}
	own := slices.SortedFunc(slices.Values(pools), func(a, b string) int {
		return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a, b))
	})
	return own[:Spread]
}

// score is a hash of both. FNV alone mixes the last bytes poorly: finish with the
// 64-bit avalanche of MurmurHash3.
func score(pool, name string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s|%s", name, pool)
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}
