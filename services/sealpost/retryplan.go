package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/webhook"
)

// planView is a retry plan as it is printed.
type planView struct {
	Policy   string        `json:"policy"`
	From     time.Time     `json:"from"`
	Seed     int64         `json:"seed"`
	Attempts []plannedView `json:"attempts"`
}

type plannedView struct {
	Attempt  int64     `json:"attempt"`
	At       time.Time `json:"at"`
	Earliest time.Time `json:"earliest"`
	Latest   time.Time `json:"latest"`
	AfterS   float64   `json:"after_s"` // seconds from the start to At
}

func (c *cli) retryPlanCommand() *cobra.Command {
	var tenant, endpoint, policy, from string
	var seed int64
	cmd := &cobra.Command{
		Use:   "retry-plan (--policy POLICY | --endpoint ID)",
		Short: "Print when a delivery would be attempted",
		Long: `Prints the times of the attempts at a delivery, should each fail at once and none be
answered with a Retry-After: for one delivery, which --seed picks, and the earliest and
latest for all. The policy is the endpoint's, or given:

` + policyHelp,
		Example: `  sealpost retry-plan --policy default
  sealpost retry-plan --policy "41h;max-age=24h;permanent=400-499,!404" --from 2026-03-01T12:00:00Z
  sealpost retry-plan --policy "exponential;base=30s;cap=6h;attempts=12;jitter=equal" --seed 7
  sealpost retry-plan --endpoint billing`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := time.Now()
			var err error
			if from != "" {
				if start, err = time.Parse(time.RFC3339, from); err != nil {
					return usageError{fmt.Errorf("--from %q: want a time such as 2026-03-01T12:00:00Z", from)}
				}
			}
			if (policy == "") == (endpoint == "") {
				return usageError{errors.New("want either --policy or --endpoint")}
			}
			var p webhook.RetryPolicy
			if policy != "" {
				if p, err = webhook.ParseRetryPolicy(policy); err != nil {
					return usageError{wrap("--policy", err)}
				}
			} else {
				st, err := c.store(cmd.Context())
				if err != nil {
					return err
				}
				defer st.Close()
				ep, err := st.Endpoint(cmd.Context(), tenant, endpoint)
				if err != nil {
					return err
				}
				p = ep.Retry
			}
			v := planOf(p, webhook.AttemptKey{Tenant: tenant, Endpoint: endpoint, Generation: 1, Task: 1}, start.UTC(), seed)
			return c.print(v, v.text)
		},
	}
	f := cmd.Flags()
	f.StringVar(&policy, "policy", "", "the policy")
	f.StringVar(&endpoint, "endpoint", "", "an endpoint whose policy it is")
	f.StringVar(&tenant, "tenant", webhook.DefaultTenant, "the endpoint's tenant")
	f.Int64Var(&seed, "seed", 0, "which of all deliveries: equal numbers give equal times")
	f.StringVar(&from, "from", "", "when the delivery begins, RFC 3339 (default now)")
	return cmd
}

// policyHelp is what [webhook.ParseRetryPolicy] reads.
const policyHelp = `  default                 Standard Webhooks' ten attempts over 75 h
  41h                     eight: at once, then after 30s, 2m, 10m, 1h, 4h, 12h, 24h
  0s,30s,5m,2h            the waits before each attempt; like the two above, each
                          plus 0 to 20 %
  exponential             backoff, followed by what differs from
                          ;base=10s;factor=2;cap=24h;attempts=10;jitter=full
                          (jitter: full is 0 to the wait, equal half of it to all, or none)
  {"delays_s":[0,30]}     as it is stored

Each may be followed by ;attempts=N, ;max-age=48h and ;permanent=400-499,!404 (statuses
that end a delivery at once; never 410, 429, 502, 503, 504).`

func planOf(p webhook.RetryPolicy, k webhook.AttemptKey, from time.Time, seed int64) planView {
	k.Event = webhook.KeyOf("retry-plan", k.Tenant, strconv.FormatInt(seed, 10))
	v := planView{Policy: p.String(), From: from, Seed: seed, Attempts: []plannedView{}}
	for _, a := range p.Plan(k, from) {
		v.Attempts = append(v.Attempts, plannedView{a.Attempt, a.At, a.Earliest, a.Latest, a.At.Sub(from).Seconds()})
	}
	return v
}

func (v planView) text(w io.Writer) {
	const stamp = "2006-01-02T15:04:05Z"
	fmt.Fprintf(w, "policy  %s\n", v.Policy)
	table(w, "ATTEMPT\tTIME\tAFTER\tEARLIEST\tLATEST", func(row func(...any)) {
		for _, a := range v.Attempts {
			row(a.Attempt, a.At.Format(stamp), a.At.Sub(v.From).Round(time.Second), a.Earliest.Format(stamp), a.Latest.Format(stamp))
		}
	})
}
