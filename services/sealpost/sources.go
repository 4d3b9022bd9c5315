package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// sourceView is an inbound source as commands print it.
type sourceView struct {
	Source    string           `json:"source"`
	Tenant    string           `json:"tenant"`
	Scheme    string           `json:"scheme"`
	Hours     int              `json:"hours"` // that the counts are about
	Accepted  int64            `json:"accepted"`
	Refused   int64            `json:"refused"`
	Reasons   map[string]int64 `json:"reasons"` // all counts; accepted_… and handshake are no refusals
	Secrets   []secretView     `json:"secrets"`
	LastEvent *time.Time       `json:"last_used_at,omitempty"`
}

// secretView is one version of a source's secret.
type secretView struct {
	Name    string     `json:"name"`
	Version int64      `json:"version"`
	UsedAt  *time.Time `json:"last_used_at,omitempty"` // to the minute; absent: never used
	// Listed says that receivers still report the version as configured.
	Listed   bool       `json:"configured"`
	ListedAt *time.Time `json:"configured_at,omitempty"`
}

func (c *cli) sourcesCommand() *cobra.Command {
	return group("sources", "Show what providers send, and which secrets they still sign with", c.sourcesList())
}

func (c *cli) sourcesList() *cobra.Command {
	var tenant string
	var hours int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List sources with their counts, and the last use of each version of their secrets",
		Long: `List sources with the requests that they accepted and refused, by reason, and each
version of their secrets with its last use, so that an old one can be retired: when the
provider signs with the new version only, remove the old number from the source's
configuration. Of two versions with equal contents, the first listed counts as used.

Receivers report every minute, and once at their start what they are configured with.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if hours < 1 || hours > 24*90 {
				return usageError{fmt.Errorf("--hours %d is not between 1 and %d", hours, 24*90)}
			}
			st, err := c.store(cmd.Context())
			if err != nil {
				return err
			}
			defer st.Close()
			now := time.Now()
			views, err := viewSources(cmd.Context(), st, tenant, hours, now)
			if err != nil {
				return err
			}
			return c.print(views, func(w io.Writer) { writeSources(w, views, now) })
		}}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "tenant")
	cmd.Flags().IntVar(&hours, "hours", 24, "how far back requests are counted")
	return cmd
}

// stillListed is how far behind the newest report on a source a version's may be.
// A receiver names all versions in one report, so that it is seconds at most.
const stillListed = 2 * time.Minute

func viewSources(ctx context.Context, st *store.Store, tenant string, hours int, now time.Time) ([]sourceView, error) {
	uses, err := st.ListSecretUses(ctx, tenant, "")
	if err != nil {
		return nil, err
	}
	views := []sourceView{}
	newest := map[string]time.Time{}
	for _, u := range uses {
		if u.ListedAt.After(newest[u.Source]) {
			newest[u.Source] = u.ListedAt
		}
	}
	for _, u := range uses { // by source
		if len(views) == 0 || views[len(views)-1].Source != u.Source {
			views = append(views, sourceView{Source: u.Source, Tenant: u.Tenant, Scheme: u.Scheme, Hours: hours, Secrets: []secretView{}})
		}
		v := &views[len(views)-1]
		if !u.ListedAt.IsZero() && u.ListedAt.Equal(newest[u.Source]) {
			v.Scheme = u.Scheme // of the newest configuration
		}
		if !u.UsedAt.IsZero() && (v.LastEvent == nil || u.UsedAt.After(*v.LastEvent)) {
			v.LastEvent = optional(u.UsedAt)
		}
		if u.Secret != "" {
			v.Secrets = append(v.Secrets, secretView{Name: u.Secret, Version: u.Version, UsedAt: optional(u.UsedAt), ListedAt: optional(u.ListedAt),
				Listed: !u.ListedAt.IsZero() && newest[u.Source].Sub(u.ListedAt) < stillListed})
		}
	}
	for i := range views {
		v := &views[i]
		if v.Reasons, err = st.SumSourceCounts(ctx, tenant, v.Source, now.Add(-time.Duration(hours)*time.Hour)); err != nil {
			return nil, err
		}
		v.Accepted = v.Reasons[webhook.CountAccepted]
		for reason, n := range v.Reasons {
			if webhook.CountsRefusal(reason) {
				v.Refused += n
			}
		}
	}
	return views, nil
}

func writeSources(w io.Writer, views []sourceView, now time.Time) {
	for _, v := range views {
		fmt.Fprintf(w, "%s (%s): %d accepted, %d refused in the last %d h%s\n", v.Source, v.Scheme, v.Accepted, v.Refused, v.Hours, reasons(v.Reasons))
		table(w, "  SECRET\tVERSION\tLAST USED\tCONFIGURED", func(row func(...any)) {
			for _, s := range v.Secrets {
				used, listed := "never", "no longer"
				if s.UsedAt != nil {
					used = ago(now.Sub(*s.UsedAt))
				}
				if s.Listed {
					listed = "yes"
				} else if s.ListedAt == nil {
					listed = "-" // the provider's own key
				}
				row("  "+s.Name, s.Version, used, listed)
			}
		})
	}
}

// reasons names everything but plain acceptance, the most frequent first.
func reasons(counts map[string]int64) string {
	names := slices.Collect(maps.Keys(counts))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b)) })
	var parts []string
	for _, n := range names {
		if n != webhook.CountAccepted {
			parts = append(parts, fmt.Sprintf("%s %d", n, counts[n]))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// ago says how long ago something was, in the unit that people would use.
func ago(d time.Duration) string {
	count := func(n int64, unit string) string {
		if n == 1 {
			return "1 " + unit + " ago"
		}
		return fmt.Sprintf("%d %ss ago", n, unit)
	}
	switch {
	case d < 2*time.Minute:
		return "in use"
	case d < time.Hour:
		return count(int64(d.Minutes()), "minute")
	case d < 48*time.Hour:
		return count(int64(d.Hours()), "hour")
	}
	return count(int64(d.Hours()/24), "day")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
