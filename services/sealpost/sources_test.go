package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/store"
)

func TestSourcesList(t *testing.T) {
	t.Parallel()
	sys, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), sys.Env()["SPANNER_DATABASE"], store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	now := time.Now().UTC().Truncate(time.Minute)
	put := func(ctx context.Context) error {
		if err := st.PutSecretUses(ctx, []store.SecretUse{
			{Tenant: "shop", Source: "stripe", Secret: "source-stripe", Version: 1, Scheme: "stripe", ListedAt: now, UsedAt: now.Add(-73 * time.Hour)},
			{Tenant: "shop", Source: "stripe", Secret: "source-stripe", Version: 2, Scheme: "stripe", ListedAt: now, UsedAt: now},
			{Tenant: "shop", Source: "stripe", Secret: "source-stripe", Version: 3, Scheme: "stripe", ListedAt: now},
			{Tenant: "shop", Source: "old", Secret: "source-old", Version: 1, Scheme: "slack", ListedAt: now.Add(-48 * time.Hour), UsedAt: now.Add(-50 * time.Hour)},
			{Tenant: "shop", Source: "old", Secret: "source-old", Version: 2, Scheme: "github", ListedAt: now},
			{Tenant: "shop", Source: "sns", Secret: "", Version: 0, Scheme: "aws-sns", ListedAt: now},
			{Tenant: "shop", Source: "sns", Secret: "sns.us-east-1.amazonaws.com", Version: 0, Scheme: "aws-sns", UsedAt: now.Add(-2 * time.Hour)},
		}); err != nil {
			return err
		}
		count := func(reason string, at time.Time, n int64) store.SourceCount {
			return store.SourceCount{Tenant: "shop", Source: "stripe", Reason: reason, Minute: at, Reporter: "r", Count: n}
		}
		return st.PutSourceCounts(ctx, []store.SourceCount{
			count("accepted", now, 10), count("accepted", now.Add(-time.Hour), 5), count("accepted", now.Add(-30*time.Hour), 100),
			count("mismatch", now, 2), count("stale", now, 3), count("accepted_dedupe_fallback", now, 1), count("handshake", now, 1),
		})
	}
	if err := put(t.Context()); err != nil {
		t.Fatal(err)
	}
	views := into[[]sourceView](t, command(t, "sources", "list", "--tenant", "shop", "--json"))
	if len(views) != 3 {
		t.Fatalf("%+v", views)
	}
	stripe := views[2]
	if stripe.Source != "stripe" || stripe.Scheme != "stripe" || stripe.Accepted != 15 || stripe.Refused != 5 || len(stripe.Secrets) != 3 || stripe.Secrets[2].UsedAt != nil || !stripe.Secrets[0].Listed || stripe.LastEvent == nil {
		t.Errorf("%+v", stripe)
	}
	if old := views[0]; old.Scheme != "github" || old.Secrets[0].Listed || !old.Secrets[1].Listed {
		t.Errorf("%+v", old)
	}
	if sns := views[1]; len(sns.Secrets) != 1 || sns.Secrets[0].Name != "sns.us-east-1.amazonaws.com" {
		t.Errorf("%+v", sns)
	}
	if v := into[[]sourceView](t, command(t, "sources", "list", "--tenant", "shop", "--hours", "48", "--json"))[2]; v.Accepted != 115 {
		t.Errorf("in 48 h: %+v", v)
	}
	text := command(t, "sources", "list", "--tenant", "shop").out
	for _, want := range []string{
		"stripe (stripe): 15 accepted, 5 refused in the last 24 h: stale 3, mismatch 2, accepted_dedupe_fallback 1, handshake 1\n",
		"source-stripe  1        3 days ago", "source-stripe  3        never", "source-old  1        2 days ago  no longer", "2 hours ago",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\ndoes not say %q", text, want)
		}
	}
	for _, args := range [][]string{{"--hours", "0"}, {"--hours", "2161"}, {"x"}} {
		if r := command(t, append([]string{"sources", "list"}, args...)...); r.code != exitUsage {
			t.Errorf("%v: exit %d", args, r.code)
		}
	}
}

// From a provider's request to the list: the receiver's report reaches Spanner.
func TestSourcesShowWhatReceiversReport(t *testing.T) {
	t.Parallel()
	if r := command(t, "trigger", "--scheme", "github"); r.code != exitDone {
		t.Fatalf("%+v", r)
	}
	wait(t, "github is listed", func() bool {
		r := command(t, "sources", "list", "--json")
		if r.code != exitDone {
			t.Fatalf("%+v", r)
		}
		for _, v := range into[[]sourceView](t, r) {
			if v.Source == "github" {
				return v.Scheme == "github" && len(v.Secrets) == 1 && v.Secrets[0].Name == "sealpost-source-github" && v.Secrets[0].Version == 1 && v.Secrets[0].Listed
			}
		}
		return false
	})
}

func TestAgo(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "in use", 119 * time.Second: "in use", 2 * time.Minute: "2 minutes ago", 59 * time.Minute: "59 minutes ago", time.Hour: "1 hour ago",
		47 * time.Hour: "47 hours ago", 48 * time.Hour: "2 days ago", 73 * time.Hour: "3 days ago",
	} {
		if got := ago(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
