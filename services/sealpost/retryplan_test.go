package main

import (
	"strings"
	"testing"
	"time"
)

// A plan needs no project, says the same for the same seed and stays in its bounds.
func TestRetryPlan(t *testing.T) {
	t.Parallel()
	plan := func(args ...string) planView {
		t.Helper()
		return into[planView](t, bare(t, none, "", append([]string{"retry-plan", "--json", "--from", "2026-03-01T12:00:00+01:00"}, args...)...))
	}
	first := plan("--policy", "default", "--seed", "1")
	if again := plan("--policy", "default", "--seed", "1"); len(again.Attempts) != 10 || again.Attempts[9] != first.Attempts[9] {
		t.Errorf("the same seed gives %+v and %+v", first, again)
	}
	if other := plan("--policy", "default", "--seed", "2"); other.Attempts[9] == first.Attempts[9] {
		t.Error("another seed gives the same times")
	}
	start := time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC)
	for i, a := range first.Attempts {
		if a.Attempt != int64(i+1) || a.At.Before(a.Earliest) || a.At.After(a.Latest) || a.AfterS != a.At.Sub(start).Seconds() {
			t.Errorf("%+v", a)
		}
	}
	if last := first.Attempts[9]; last.Earliest.Sub(start) != 75*time.Hour+35*time.Minute+5*time.Second {
		t.Errorf("the last attempt comes %s after the first at the earliest", last.Earliest.Sub(start))
	}
	for policy, attempts := range map[string]int{"41h": 8, "41h;max-age=24h": 7, "0s,1m": 2, `{"exponential":{"base_s":1,"attempts":4}}`: 4, "exponential;attempts=3": 3} {
		if got := plan("--policy", policy); len(got.Attempts) != attempts {
			t.Errorf("%s: %+v", policy, got)
		}
	}
	r := bare(t, none, "", "retry-plan", "--policy", "exponential;base=1m;jitter=none;attempts=3", "--from", "2026-03-01T12:00:00Z")
	want := `policy  exponential;base=1m;factor=2;cap=24h;attempts=3;jitter=none
ATTEMPT  TIME                  AFTER  EARLIEST              LATEST
1        2026-03-01T12:00:00Z  0s     2026-03-01T12:00:00Z  2026-03-01T12:00:00Z
2        2026-03-01T12:01:00Z  1m0s   2026-03-01T12:01:00Z  2026-03-01T12:01:00Z
3        2026-03-01T12:03:00Z  3m0s   2026-03-01T12:03:00Z  2026-03-01T12:03:00Z
`
	if r.code != 0 || r.out != want {
		t.Errorf("exit %d, %s:\n%s", r.code, r.err, r.out)
	}
	for _, c := range [][2]string{
		{"retry-plan", "either"}, {"retry-plan --policy 41h --endpoint x", "either"}, {"retry-plan --policy soon", "--policy"},
		{"retry-plan --policy 41h --from now", "--from"}, {"retry-plan --endpoint x", "SPANNER_DATABASE"},
	} {
		if r := bare(t, none, "", strings.Fields(c[0])...); r.code != exitUsage || !strings.Contains(r.err, c[1]) {
			t.Errorf("%s: exit %d, %s", c[0], r.code, r.err)
		}
	}
}

// An endpoint's own policy is planned.
func TestRetryPlanOfEndpoint(t *testing.T) {
	t.Parallel()
	into[endpointView](t, command(t, "endpoints", "add", "--id", "planned", "--url", "http://127.0.0.1:1/", "--retry", "0s,1m;max-age=1h;permanent=404", "--events", "none.*", "--json"))
	p := into[planView](t, command(t, "retry-plan", "--endpoint", "planned", "--json"))
	if p.Policy != "0s,1m;max-age=1h;permanent=404" || len(p.Attempts) != 2 {
		t.Errorf("%+v", p)
	}
}
