package store

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Reports come repeatedly, late and in any order: each time only grows.
func TestSecretUses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	at := func(minutes int) time.Time { return t0.Add(time.Duration(minutes) * time.Minute) }
	use := func(version int64, listed, used int) SecretUse {
		u := SecretUse{Source: "stripe", Secret: "s", Version: version, Scheme: "stripe"}
		if listed > 0 {
			u.ListedAt = at(listed)
		}
		if used > 0 {
			u.UsedAt = at(used)
		}
		return u
	}
	other := use(1, 5, 0)
	other.Tenant = "t2"
	moved := use(2, 9, 0)
	moved.Scheme = "standard-webhooks"
	for _, report := range [][]SecretUse{
		{use(1, 1, 0), use(2, 1, 0), other, {Source: "sns", ListedAt: at(1), Scheme: "aws-sns"}},
		{use(1, 0, 3), use(1, 0, 2)},
		{use(1, 0, 1)}, // late
		{use(1, 0, 3), use(1, 0, 3)},
		{moved, use(2, 4, 0)},
		nil,
	} {
		if err := f.PutSecretUses(f.ctx, report); err != nil {
			t.Fatal(err)
		}
	}
	show := func(tenant, source string) string {
		t.Helper()
		uses, err := f.ListSecretUses(f.ctx, tenant, source)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, u := range uses {
			minutes := func(at time.Time) int {
				if at.IsZero() {
					return 0
				}
				return int(at.Sub(t0).Minutes())
			}
			lines = append(lines, fmt.Sprintf("%s %s/%d %s listed %d used %d", u.Source, u.Secret, u.Version, u.Scheme, minutes(u.ListedAt), minutes(u.UsedAt)))
		}
		return strings.Join(lines, "; ")
	}
	if got, want := show("default", ""), "sns /0 aws-sns listed 1 used 0; stripe s/1 stripe listed 1 used 3; stripe s/2 stripe listed 9 used 0"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got, want := show("default", "sns"), "sns /0 aws-sns listed 1 used 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := show("t2", "stripe"), "stripe s/1 stripe listed 5 used 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for name, edit := range map[string]func(*SecretUse){
		"tenant":  func(u *SecretUse) { u.Tenant = "A" },
		"source":  func(u *SecretUse) { u.Source = "" },
		"secret":  func(u *SecretUse) { u.Secret = strings.Repeat("x", 257) },
		"utf-8":   func(u *SecretUse) { u.Secret = "\xff" },
		"version": func(u *SecretUse) { u.Version = -1 },
		"scheme":  func(u *SecretUse) { u.Scheme = strings.Repeat("x", 65) },
		"time":    func(u *SecretUse) { u.UsedAt = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		bad := use(1, 1, 1)
		edit(&bad)
		if err := f.PutSecretUses(f.ctx, []SecretUse{bad}); !errors.Is(err, ErrInvalid) {
			t.Errorf("bad %s: %v", name, err)
		}
	}
}

func TestSumSourceCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	count := func(source, reason string, minute int, reporter string, n int64) SourceCount {
		return SourceCount{Source: source, Reason: reason, Minute: t0.Add(time.Duration(minute) * time.Minute), Reporter: reporter, Count: n}
	}
	if err := f.PutSourceCounts(f.ctx, []SourceCount{
		count("a", "accepted", 0, "r1", 1), count("a", "accepted", 1, "r1", 2), count("a", "accepted", 1, "r2", 4), count("a", "stale", 2, "r1", 8), count("b", "accepted", 1, "r1", 16),
	}); err != nil {
		t.Fatal(err)
	}
	for since, want := range map[time.Duration]map[string]int64{
		0: {"accepted": 7, "stale": 8}, time.Minute: {"accepted": 6, "stale": 8}, 90 * time.Second: {"accepted": 6, "stale": 8}, 2 * time.Minute: {"stale": 8}, time.Hour: {},
	} {
		got, err := f.SumSourceCounts(f.ctx, "default", "a", t0.Truncate(time.Minute).Add(since))
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("since %s: %v, %v, want %v", since, got, err, want)
		}
	}
}

// What the receiver marked stays on the event, and the store adds its own mark.
func TestFlagsOfTheReceiver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	a, b := unsigned("default", "github", "1", "body", t0), unsigned("default", "github", "2", "body", t0)
	a.Flags, b.Flags = []string{webhook.FlagInvalidSchema}, []string{webhook.FlagInvalidSchema}
	f.ingest(a, b)
	for k, want := range map[webhook.EventKey]string{a.Key: "[invalid_schema]", b.Key: "[invalid_schema suspected_replay]"} {
		if got := fmt.Sprint(f.row(k).Flags); got != want {
			t.Errorf("flags %s, want %s", got, want)
		}
	}
	if fmt.Sprint(a.Flags, b.Flags) != "[invalid_schema] [invalid_schema]" {
		t.Error("the caller's events were changed")
	}
}
