package cloudtasks

import (
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

func retryConfig(attempts int32, least, most time.Duration, doublings int32, age time.Duration) *cloudtaskspb.RetryConfig {
	return &cloudtaskspb.RetryConfig{
		MaxAttempts: attempts, MinBackoff: durationpb.New(least), MaxBackoff: durationpb.New(most),
		MaxDoublings: doublings, MaxRetryDuration: durationpb.New(age),
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	s := time.Second
	for _, c := range []struct {
		name string
		r    *cloudtaskspb.RetryConfig
		want []time.Duration
	}{
		{"the reference's example", retryConfig(0, 10*s, 300*s, 3, 0), []time.Duration{10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 240 * s, 300 * s, 300 * s}},
		{"linear from the start", retryConfig(0, 10*s, 35*s, 0, 0), []time.Duration{10 * s, 20 * s, 30 * s, 35 * s}},
		{"constant", retryConfig(0, 5*s, 5*s, 16, 0), []time.Duration{5 * s, 5 * s, 5 * s}},
		{"default", retryConfig(0, s/10, time.Hour, 16, 0), []time.Duration{s / 10, s / 5, 2 * s / 5}},
		{"beyond any number", retryConfig(0, s, time.Hour, 1<<30, 0), []time.Duration{s, 2 * s, 4 * s}},
	} {
		for i, want := range c.want {
			if got := backoff(c.r, int32(i+1)); got != want {
				t.Errorf("%s: backoff after attempt %d = %v, want %v", c.name, i+1, got, want)
			}
		}
		if got, most := backoff(c.r, 1<<30), c.r.GetMaxBackoff().AsDuration(); got != most {
			t.Errorf("%s: backoff after very many attempts = %v, want %v", c.name, got, most)
		}
	}
}

func TestExhausted(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name     string
		attempts int32
		age      time.Duration
		n        int32
		after    time.Duration
		want     bool
	}{
		{"below attempts", 3, 0, 2, time.Hour, false},
		{"attempts reached, no age set", 3, 0, 3, 0, true},
		{"attempts reached, age not", 3, time.Hour, 3, time.Hour - 1, false},
		{"age reached, attempts not", 3, time.Hour, 2, time.Hour, false},
		{"both reached", 3, time.Hour, 3, time.Hour, true},
		{"unlimited attempts, age not reached", -1, time.Hour, 1000, time.Hour - 1, false},
		{"unlimited attempts, age reached", -1, time.Hour, 1, time.Hour, true},
		{"no limit at all", -1, 0, 1 << 30, 30 * 24 * time.Hour, false},
	} {
		r := retryConfig(c.attempts, time.Second, time.Second, 0, c.age)
		if got := exhausted(r, c.n, first, first.Add(c.after)); got != c.want {
			t.Errorf("%s: exhausted = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestSettleFillsDefaults(t *testing.T) {
	t.Parallel()
	q := &cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MaxRetryDuration: durationpb.New(2500 * time.Millisecond)}}
	if err := settle(q, DefaultBurst); err != nil {
		t.Fatal(err)
	}
	l, r := q.GetRateLimits(), q.GetRetryConfig()
	if l.GetMaxDispatchesPerSecond() != 500 || l.GetMaxConcurrentDispatches() != 1000 || l.GetMaxBurstSize() != 100 {
		t.Errorf("rate limits = %v", l)
	}
	if r.GetMaxAttempts() != 100 || r.GetMinBackoff().AsDuration() != 100*time.Millisecond || r.GetMaxBackoff().AsDuration() != time.Hour ||
		r.GetMaxDoublings() != 16 || r.GetMaxRetryDuration().AsDuration() != 2*time.Second {
		t.Errorf("retry config = %v", r)
	}
}

func TestDefaultBurst(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]int32{500: 100, 300: 60, 51: 11, 50: 10, 1: 10, 0.1: 10} {
		if got := DefaultBurst(rate); got != want {
			t.Errorf("DefaultBurst(%v) = %d, want %d", rate, got, want)
		}
	}
}

func TestApplyMask(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path  string
		rate  float64
		tries int32
		code  codes.Code
	}{
		{"rate_limits.max_dispatches_per_second", 7, 1, codes.OK},
		{"rate_limits", 7, 1, codes.OK},
		{"retry_config.max_attempts", 2, 9, codes.OK},
		{"", 7, 9, codes.OK},
		{"*", 7, 9, codes.OK},
		{"state", 2, 1, codes.OK},
		{"rate_limits.max_burst_size", 2, 1, codes.OK},
		{"http_target.header_overrides", 2, 1, codes.OK},
		{"nonsense", 2, 1, codes.InvalidArgument},
		{"rate_limits.nonsense", 2, 1, codes.InvalidArgument},
		{"rate_limits.max_dispatches_per_second.x", 2, 1, codes.InvalidArgument},
		{"http_target.header_overrides.header", 2, 1, codes.InvalidArgument},
	} {
		dst := &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 2}, RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 1}}
		src := &cloudtaskspb.Queue{State: cloudtaskspb.Queue_PAUSED, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 7, MaxBurstSize: 1}, RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 9}}
		var mask *fieldmaskpb.FieldMask
		if c.path != "" {
			mask = &fieldmaskpb.FieldMask{Paths: []string{c.path}}
		}
		err := applyMask(dst, src, mask)
		if status.Code(err) != c.code || dst.RateLimits.MaxDispatchesPerSecond != c.rate || dst.RetryConfig.MaxAttempts != c.tries || dst.State != 0 {
			t.Errorf("mask %q: %v, %v", c.path, dst, err)
		}
	}
}

func TestBucket(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		rate  float64
		burst int32
		want  []time.Duration // of the first dispatches from start, each as early as may be
	}{
		{"1/s, burst 2", 1, 2, []time.Duration{0, 0, time.Second, 2 * time.Second}},
		{"once in ten seconds", 0.1, 1, []time.Duration{0, 10 * time.Second, 20 * time.Second}},
		{"500/s", 500, 1, []time.Duration{0, 2 * time.Millisecond, 4 * time.Millisecond}},
		{"hardly ever", 1e-12, 1, []time.Duration{0, maxInterval}},
	} {
		var b bucket
		b.set(c.rate, c.burst, start)
		now := start
		for i, want := range c.want {
			if at := b.ready(); at.After(now) {
				now = at
			}
			if got := now.Sub(start); got != want {
				t.Errorf("%s: dispatch %d after %v, want %v", c.name, i, got, want)
			}
			b.take(now)
		}
	}
}

func TestBucketKeepsDebtWhenLimitsChange(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var b bucket
	b.set(0.001, 1, start)
	b.take(start) // the next token is 1,000 s away
	b.set(2, 1, start)
	if got := b.ready().Sub(start); got != 500*time.Millisecond {
		t.Errorf("after raising the rate to 2/s the next token is %v away, want 500ms", got)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("a", n) }
	for _, c := range []struct {
		name string
		ok   bool
	}{
		{"projects/p/locations/l/queues/q/tasks/t", true},
		{"projects/example.com:p-1/locations/europe-west1/queues/Q-1/tasks/T_1-a", true},
		{"projects/p/locations/l/queues/" + long(100) + "/tasks/" + long(500), true},
		{"projects/p/locations/l/queues/" + long(101) + "/tasks/t", false},
		{"projects/p/locations/l/queues/q/tasks/" + long(501), false},
		{"projects/p/locations/l/queues/q_1/tasks/t", false},
		{"projects/p/locations/l/queues/q/tasks/", false},
		{"projects/p/locations/l/queues/q/tasks/t\n", false},
		{"projects/p/locations/l/queues/q/tasks/t/u", false},
		{"projects/p/locations/l/queues/q/tasks/t:u", false},
		{"projects/p/queues/q/tasks/t", false},
		{"projects/p/locations/l/queues/q", false},
		{"t", false},
		{"", false},
	} {
		_, _, err := splitTask(c.name)
		if (err == nil) != c.ok || err != nil && status.Code(err) != codes.InvalidArgument {
			t.Errorf("splitTask(%.60q) = %v, want ok %v", c.name, err, c.ok)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"":                              0,
		"120":                           2 * time.Minute,
		"-1":                            0,
		"1.5":                           0,
		"soon":                          0,
		"Thu, 01 Jan 2026 00:01:00 GMT": time.Minute,
		"Wed, 31 Dec 2025 23:59:00 GMT": 0,
		"99999999999999999999":          0,
	} {
		if got := retryAfter(v, now); got != want {
			t.Errorf("retryAfter(%q) = %v, want %v", v, got, want)
		}
	}
}

func TestOverrideURL(t *testing.T) {
	t.Parallel()
	scheme := cloudtaskspb.UriOverride_HTTPS
	host, port, none := "h.example", int64(8443), int64(0)
	path := &cloudtaskspb.PathOverride{Path: "/p"}
	query := &cloudtaskspb.QueryOverride{QueryParams: "a=b"}
	all := &cloudtaskspb.UriOverride{Scheme: &scheme, Host: &host, Port: &port, PathOverride: path, QueryOverride: query}
	lax := &cloudtaskspb.UriOverride{Scheme: &scheme, Host: &host, Port: &port, PathOverride: path, QueryOverride: query, UriOverrideEnforceMode: cloudtaskspb.UriOverride_IF_NOT_EXISTS}
	for _, c := range []struct {
		url  string
		o    *cloudtaskspb.UriOverride
		want string
	}{
		{"http://x/y?z=1", nil, "http://x/y?z=1"},
		{"http://x:1/y?z=1", all, "https://h.example:8443/p?a=b"},
		{"http://x:1/y?z=1", lax, "http://x:1/y?z=1"},
		{"http://x/", lax, "http://x:8443/p?a=b"},
		{"http://[::1]:80/y", &cloudtaskspb.UriOverride{Port: &none}, "http://[::1]/y"},
	} {
		got, err := overrideURL(c.url, c.o)
		if err != nil || got != c.want {
			t.Errorf("overrideURL(%q) = %q, %v, want %q", c.url, got, err, c.want)
		}
	}
}
