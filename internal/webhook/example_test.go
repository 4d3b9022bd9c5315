package webhook_test

import (
	"fmt"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

func ExampleDecide() {
	d := webhook.Delivery{
		Event:  webhook.KeyOf("stripe", "default", "evt_1"),
		Tenant: "default", Endpoint: "billing",
		State: webhook.DeliveryScheduled, Generation: 1, Attempt: 1, Task: 1,
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	busy := webhook.Outcome{
		Class: webhook.ClassStatus, Status: 503,
		RetryAfter: webhook.ParseRetryAfter([]string{"120"}, now),
	}
	dec := webhook.Decide(d, busy, webhook.RetryPolicy{}, now)
	fmt.Println(dec.State, "attempt", dec.NextAttempt, "after", dec.NextAttemptAt.Sub(now))
	// Output: scheduled attempt 2 after 2m0s
}

func ExampleMatchType() {
	patterns := []string{"invoice.*", "customer.created"}
	fmt.Println(webhook.MatchType(patterns, "invoice.paid"), webhook.MatchType(patterns, "customer.deleted"))
	// Output: true false
}

func ExampleKeyOf() {
	// The same provider event always has the same key, and so the same webhook-id.
	fmt.Println(webhook.KeyOf("stripe", "default", "evt_1PqR").ID())
	// Another tenant's event of the same id is another event.
	fmt.Println(webhook.KeyOf("stripe", "acme", "evt_1PqR").ID())
	// Output:
	// evt_4vtcg2dd3jj5xnipgwptjsmvdy
	// evt_xa5twu4xpfn5r6h7ujndqzvneq
}
