package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Everything that can be said of an endpoint, said by flags, changed one by one, and
// shown without secrets.
func TestEndpointSettings(t *testing.T) {
	t.Parallel()
	auth := filepath.Join(t.TempDir(), "auth.json")
	if err := os.WriteFile(auth, []byte(`{"kind":"basic","username":"u","password":"p4ssw0rd"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	add := command(t, "endpoints", "add", "--id", "settings", "--url", "http://127.0.0.1:1/?k=s3cret", "--events", "settings.*", "--json",
		"--queue", "pool", "--retry", "41h", "--rate", "5", "--concurrency", "2", "--timeout", "3s", "--payload-mode", "thin", "--ordering", "block",
		"--header", "X-Team: billing=1", "--header", "X-Other: s3cret", "--legacy-signature", "X-Sig=sha256={hmac_sha256_hex:{body}}", "--auth", "@"+auth,
		"--failures-to-open", "3", "--cool-down", "30s", "--owner", "ops@example.com", "--metadata", "plan=gold", "--api-version", "2026-03-01", "--description", "a note")
	ep := into[endpointView](t, add)
	set := ep.Settings
	if ep.Queue != "" || ep.Retry != "41h" || set.PayloadMode != webhook.PayloadThin || set.Ordering != webhook.OrderingBlock || len(set.Headers) != 2 ||
		set.Auth.Kind != webhook.AuthBasic || set.Health.FailuresToOpen != 3 || set.Owner != "ops@example.com" || set.Metadata["plan"] != "gold" || set.APIVersion != "2026-03-01" {
		t.Errorf("%+v", ep)
	}
	if strings.Contains(add.out, "s3cret") || strings.Contains(add.out, "p4ssw0rd") {
		t.Errorf("a secret is shown: %s", add.out)
	}
	update := func(args ...string) endpointView {
		t.Helper()
		return into[endpointView](t, command(t, append([]string{"endpoints", "update", "settings", "--json"}, args...)...))
	}
	if ep := update("--rate", "7", "--header", "", "--auth", "none"); ep.RatePerSecond != 7 || ep.MaxConcurrency != 2 || ep.Retry != "41h" || len(ep.Settings.Headers) != 0 ||
		ep.Settings.Auth.Kind != "" || ep.Settings.Owner != "ops@example.com" {
		t.Errorf("%+v", ep)
	}
	if ep := update("--cool-down", "1m", "--failures-to-open", "10", "--ordering", "", "--metadata", ""); ep.Settings.Health != (webhook.HealthPolicy{}) || ep.Settings.Ordering != "" || len(ep.Settings.Metadata) != 0 {
		t.Errorf("%+v", ep)
	}
	if ep := update("--queue", "own"); ep.Queue == "" {
		t.Errorf("it has no queue: %+v", ep)
	}
	// Nothing is half done where one flag is wrong, and every fault is named.
	r := command(t, "endpoints", "update", "settings", "--rate", "0", "--retry", "never", "--description", "other")
	if r.code != exitUsage || !strings.Contains(r.err, "--rate") || !strings.Contains(r.err, "--retry") {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
	for _, bad := range [][]string{
		{"--header", "Host: x"}, {"--header", "nothing"}, {"--legacy-signature", "X-S={{"}, {"--auth", "{}"}, {"--auth", `{"kind":"bearer","token":"t","x":1}`},
		{"--payload-mode", "yaml"}, {"--ordering", "fifo"}, {"--filter", "body.amount >"}, {"--filter", "amount > 1"}, {"--filter", "body.amount + 1"}, {"--owner", "nobody"}, {"--queue", "mine"}, {"--metadata", "plan"}, {"--cool-down", "1ms"}, {"--url", "ftp://x"}, {"--url", ""}, {"--events", ""},
	} {
		if r := command(t, append([]string{"endpoints", "update", "settings"}, bad...)...); r.code != exitUsage {
			t.Errorf("%q: exit %d, %s", bad, r.code, r.err)
		}
	}
	if ep := into[endpointView](t, command(t, "endpoints", "show", "settings", "--json")); ep.Description != "a note" || ep.RatePerSecond != 7 || ep.Breaker != "closed" {
		t.Errorf("%+v", ep)
	}
	if r := command(t, "endpoints", "update", "nobody", "--rate", "1"); r.code != exitFailed || !strings.Contains(r.err, "not found") {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
}

// Paused and disabled endpoints hold; switched on they get what was held, or what was
// left once it is released.
func TestEndpointStates(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	t.Cleanup(hook.Close)
	into[endpointView](t, command(t, "endpoints", "add", "--id", "states", "--url", hook.URL, "--events", "states.*", "--json"))
	event := func() string {
		return into[struct{ Event string }](t, command(t, "publish", "--type", "states.x", "--json")).Event
	}
	state := func(key, want string) {
		t.Helper()
		wait(t, want, func() bool {
			r := command(t, "deliveries", "show", key, "states", "--json")
			return r.code == 0 && into[deliveryView](t, r).State == want
		})
	}
	do := func(args ...string) endpointView {
		t.Helper()
		return into[endpointView](t, command(t, append([]string{"endpoints"}, append(args, "states", "--json")...)...))
	}
	if ep := do("pause", "--reason", "maintenance"); ep.State != "paused" || ep.StateReason != "maintenance" {
		t.Errorf("%+v", ep)
	}
	first := event()
	state(first, "held")
	if r := command(t, "endpoints", "release", "states"); r.code != exitFailed || !strings.Contains(r.err, "paused") {
		t.Errorf("released while paused: exit %d, %s", r.code, r.err)
	}
	do("resume")
	state(first, "delivered")
	do("disable")
	second := event()
	state(second, "held")
	if ep := do("enable", "--leave-held"); ep.State != "active" {
		t.Errorf("%+v", ep)
	}
	third := event()
	state(third, "delivered")
	state(second, "held")
	do("release")
	state(second, "delivered")
	if n := calls.Load(); n != 3 {
		t.Errorf("%d calls", n)
	}
}

// A dead delivery stops its ordering key, which shows, until the key is released.
func TestOrderingKeyIsReleased(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(hook.Close)
	into[endpointView](t, command(t, "endpoints", "add", "--id", "ordered", "--url", hook.URL, "--events", "ordered.*", "--ordering", "block", "--retry", "0s", "--json"))
	event := func(at string) string {
		return into[struct{ Event string }](t, command(t, "publish", "--type", "ordered.x", "--ordering-key", "k/1", "--time", at, "--json")).Event
	}
	state := func(key, want string) {
		t.Helper()
		wait(t, want, func() bool {
			r := command(t, "deliveries", "list", "--event", key, "--state", want, "--json")
			return r.code == 0 && len(into[[]deliveryView](t, r)) == 1
		})
	}
	first := event("2026-03-01T12:00:00Z")
	state(first, "dead")
	second := event("2026-03-01T12:00:01Z")
	state(second, "waiting")
	show := into[endpointView](t, command(t, "endpoints", "show", "ordered", "--json"))
	if len(show.Stopped) != 1 || show.Stopped[0].OrderingKey != "k/1" || show.Stopped[0].Parked || show.Stopped[0].Event != first {
		t.Errorf("%+v", show.Stopped)
	}
	if r := command(t, "endpoints", "show", "ordered"); !strings.Contains(r.out, `blocked      ordering key "k/1" since `) {
		t.Errorf("%s", r.out)
	}
	if r := command(t, "endpoints", "release", "ordered", "--key", "k/2"); r.code != exitFailed || !strings.Contains(r.err, "not found") {
		t.Errorf("another key: exit %d, %s", r.code, r.err)
	}
	if r := command(t, "endpoints", "release", "ordered", "--key", "k/1"); r.code != exitDone || !strings.Contains(r.out, second) {
		t.Errorf("exit %d, %s%s", r.code, r.out, r.err)
	}
	state(second, "delivered")
	state(first, "dead")
	if r := command(t, "endpoints", "release", "ordered", "--key", "k/1"); r.code != exitDone || !strings.Contains(r.out, "nothing waits") {
		t.Errorf("again: exit %d, %s%s", r.code, r.out, r.err)
	}
	if r := command(t, "endpoints", "show", "ordered"); strings.Contains(r.out, "blocked") {
		t.Errorf("%s", r.out)
	}
	if r := command(t, "publish", "--type", "ordered.x", "--time", "noon"); r.code != exitUsage || !strings.Contains(r.err, "--time") {
		t.Errorf("a wrong time: exit %d, %s", r.code, r.err)
	}
}

// A test reaches an endpoint that is switched off, and shows the whole exchange.
func TestEndpointTest(t *testing.T) {
	t.Parallel()
	var answer atomic.Int64
	answer.Store(200)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Seen", r.Header.Get("Webhook-Id"))
		w.WriteHeader(int(answer.Load()))
		fmt.Fprint(w, "thank you")
	}))
	t.Cleanup(hook.Close)
	into[endpointView](t, command(t, "endpoints", "add", "--id", "tested", "--url", hook.URL, "--events", "none.*", "--json"))
	into[endpointView](t, command(t, "endpoints", "disable", "tested", "--json"))
	v := into[testView](t, command(t, "endpoints", "test", "tested", "--json", "--data", `{"n":1}`))
	if !v.OK || v.Attempt.Trigger != "test" || v.Exchange == nil || v.Exchange.Response == nil || string(v.Exchange.Response.Body) != "thank you" ||
		!strings.Contains(string(v.Exchange.Request.Body), `"n":1`) || !strings.Contains(fmt.Sprint(v.Exchange.Response.Headers), v.Event) {
		t.Errorf("%+v %+v", v, v.Exchange)
	}
	answer.Store(500)
	r := command(t, "endpoints", "test", "tested")
	if r.code != exitFailed || !strings.Contains(r.out, "> POST ") || !strings.Contains(r.out, "< 500") || !strings.Contains(r.out, "thank you") {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
	if r := command(t, "endpoints", "test", "tested", "--data", "{"); r.code != exitUsage {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
}

// Reconciliation mends and is silent once there is nothing to mend.
func TestQueuesReconcile(t *testing.T) {
	t.Parallel()
	sys, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	ep := into[endpointView](t, command(t, "endpoints", "add", "--id", "drifting", "--url", "http://127.0.0.1:1/", "--events", "none.*", "--json"))
	if err := sys.Queue.Pause(t.Context(), ep.Queue); err != nil {
		t.Fatal(err)
	}
	reconcile := func() (mine []string) {
		for _, c := range into[[]queueChangeView](t, command(t, "queues", "reconcile", "--json")) {
			if c.Endpoint == "drifting" {
				mine = append(mine, c.Change)
			}
		}
		return mine
	}
	// The local system's queues try again sooner than the command line would have them.
	if got := fmt.Sprint(reconcile()); !strings.Contains(got, "resumed") {
		t.Errorf("%s", got)
	}
	if got := reconcile(); len(got) != 0 {
		t.Errorf("still: %q", got)
	}
}
