package tasks

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sealpost/sealpost/internal/webhook"
)

func pools(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprint("pool-", i))
	}
	return out
}

func attempt(endpoint string, n int) webhook.AttemptKey {
	return webhook.AttemptKey{Event: webhook.KeyOf("s", "t", fmt.Sprint(n)), Tenant: "t", Endpoint: endpoint, Generation: 1, Attempt: 1, Task: 1}
}

// An endpoint's attempts are dealt evenly over four pools, whatever the order in which
// pools are named, and all endpoints evenly over all.
func TestPoolOf(t *testing.T) {
	t.Parallel()
	all := pools(16)
	reversed := slices.Clone(all)
	slices.Reverse(reversed)
	total := map[string]int{}
	for e := range 200 {
		endpoint := fmt.Sprint("ep-", e)
		seen := map[string]int{}
		for i := range 400 {
			p := PoolOf(all, attempt(endpoint, i))
			if PoolOf(reversed, attempt(endpoint, i)) != p {
				t.Fatal("the order of the pools decides")
			}
			seen[p]++
			total[p]++
		}
		if len(seen) != Spread {
			t.Fatalf("%s uses %v", endpoint, seen)
		}
		for p, n := range seen {
			if n < 60 || n > 145 {
				t.Errorf("%s has %d of 400 in %s", endpoint, n, p)
			}
		}
	}
	for p, n := range total {
		if n < 2500 || n > 7500 {
			t.Errorf("%s has %d of 80000", p, n)
		}
	}
	if p := PoolOf(pools(1), attempt("a", 1)); p != "pool-0" {
		t.Error(p)
	}
	moved := 0
	for i := range 100 {
		k := attempt("a", i)
		if PoolOf(all, k) != PoolOf(pools(17), k) {
			moved++
		}
	}
	if moved > 60 {
		t.Errorf("one more pool moves %d of 100 names of an endpoint", moved)
	}
}
