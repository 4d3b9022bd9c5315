package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sealpost/sealpost/internal/system"
)

// shared is one system for all tests of the command line: it takes a second to
// start.
var (
	running *system.System
	shared  = sync.OnceValues(func() (*system.System, error) {
		var err error
		running, err = system.Start(context.Background(), system.Options{Retry: 200 * time.Millisecond})
		return running, err
	})
)

func TestMain(m *testing.M) {
	code := m.Run()
	if running != nil {
		if err := running.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "end:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// result is one run of the command.
type result struct {
	code     int
	out, err string
}

// command runs sealpost with the environment that `sealpost dev` prints.
func command(t *testing.T, args ...string) result {
	t.Helper()
	sys, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	env := sys.Env()
	return bare(t, func(name string) string { return env[name] }, "", args...)
}

func bare(t *testing.T, getenv func(string) string, in string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), args, getenv, strings.NewReader(in), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

func none(string) string { return "" }

// into decodes the JSON that a command printed.
func into[T any](t *testing.T, r result) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || r.code != 0 {
		t.Fatalf("exit %d, %v: %s%s", r.code, err, r.out, r.err)
	}
	return v
}

// The whole story of one endpoint and one event, told by the command line alone.
func TestStory(t *testing.T) {
	t.Parallel()
	payload := []byte("{\"amount\":1152921504606846977,\"f\":0.0,\"e\":\"\\u001Bé\"}\n")
	var mu sync.Mutex
	var seen []http.Header
	var sent []byte
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		// An application's event comes in an envelope, around its very bytes.
		if bytes.HasSuffix(body, fmt.Appendf(nil, `,"data":%s}`, payload)) {
			seen, sent = append(seen, r.Header.Clone()), body
		}
	}))
	t.Cleanup(hook.Close)

	ep := into[endpointView](t, command(t, "endpoints", "add", "--url", hook.URL+"/hook?token=s3cret", "--events", "story.*", "--tenant", "acme", "--json"))
	if ep.ID == "" || ep.Tenant != "acme" || !strings.HasPrefix(ep.Secret, "whsec_") || strings.Contains(ep.URL, "s3cret") || ep.QueueError != "" {
		t.Fatalf("%+v", ep)
	}
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, payload, 0o600); err != nil {
		t.Fatal(err)
	}
	type published struct{ Event, ID string }
	p := into[published](t, command(t, "publish", "--type", "story.told", "--tenant", "acme", "--id", "s1", "--data", "@"+file, "--json"))
	if again := into[published](t, command(t, "publish", "--type", "story.told", "--tenant", "acme", "--id", "s1", "--data", "@"+file, "--json")); again != p {
		t.Errorf("the same id is another event: %+v, %+v", p, again)
	}
	var d deliveryView
	wait(t, "delivered", func() bool {
		r := command(t, "deliveries", "show", p.Event, ep.ID, "--tenant", "acme", "--json")
		if r.code == 0 {
			d = into[deliveryView](t, r)
		}
		return d.State == "delivered"
	})
	if len(d.Attempts) != 1 || d.Attempts[0].Status != 200 || strings.Contains(fmt.Sprint(d), "s3cret") {
		t.Errorf("%+v", d)
	}
	mu.Lock()
	official, err := standardwebhooks.NewWebhook(ep.Secret)
	if err != nil || len(seen) != 1 || official.Verify(sent, seen[0]) != nil || seen[0].Get("Webhook-Id") != p.Event {
		t.Errorf("%v: the endpoint saw %v", err, seen)
	}
	mu.Unlock()
	if r := command(t, "events", "show", p.Event, "--tenant", "acme", "--payload"); r.out != string(payload) || r.code != 0 {
		t.Errorf("payload %q, exit %d", r.out, r.code)
	}
	wait(t, "the duplicate is counted", func() bool {
		return into[eventView](t, command(t, "events", "show", p.Event, "--tenant", "acme", "--json")).Duplicates == 1
	})
	if evs := into[[]eventView](t, command(t, "events", "list", "--tenant", "acme", "--json")); len(evs) != 1 || evs[0].ID != p.Event {
		t.Errorf("%+v", evs)
	}
	if ds := into[[]deliveryView](t, command(t, "deliveries", "list", "--tenant", "acme", "--state", "delivered", "--json")); len(ds) != 1 {
		t.Errorf("%+v", ds)
	}
	if evs := into[[]eventView](t, command(t, "events", "list", "--json", "--tenant", "nobody")); evs == nil || len(evs) != 0 {
		t.Errorf("another tenant's list is %+v", evs)
	}
	rotated := into[map[string]any](t, command(t, "endpoints", "rotate-secret", ep.ID, "--tenant", "acme", "--json"))
	if rotated["secret"] == ep.Secret || len(into[endpointView](t, command(t, "endpoints", "show", ep.ID, "--tenant", "acme", "--json")).Keys) != 2 {
		t.Errorf("%v", rotated)
	}
	if r := command(t, "endpoints", "show", ep.ID); r.code != exitFailed || strings.Contains(r.err, "spanner") {
		t.Errorf("another tenant's endpoint: exit %d, %s", r.code, r.err)
	}
	if r := command(t, "endpoints", "remove", ep.ID, "--tenant", "acme", "--json"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := command(t, "endpoints", "add", "--url", hook.URL, "--id", ep.ID, "--tenant", "acme"); r.code != exitFailed || !strings.Contains(r.err, "not used twice") {
		t.Errorf("a removed id: %+v", r)
	}
	if eps := into[[]endpointView](t, command(t, "endpoints", "list", "--tenant", "acme", "--json")); len(eps) != 0 {
		t.Errorf("%+v", eps)
	}
}

func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(45 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("in 45 s not: %s", what)
		}
	}
}

// Every command has a form for people, too.
func TestTextForms(t *testing.T) {
	t.Parallel()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	t.Cleanup(hook.Close)
	add := command(t, "endpoints", "add", "--url", hook.URL, "--id", "text", "--tenant", "text", "--retry", "0s,1h")
	if add.code != 0 || !strings.Contains(add.out, "whsec_") {
		t.Fatalf("%+v", add)
	}
	pub := command(t, "publish", "--type", "text.form", "--tenant", "text")
	id := pub.out[strings.Index(pub.out, "evt_"):][:30]
	wait(t, "a failed attempt", func() bool {
		return strings.Contains(command(t, "deliveries", "show", id, "--tenant", "text").out, "418")
	})
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"endpoints list --tenant text", []string{"text", "active", hook.URL}},
		{"endpoints show text --tenant text", []string{"50/s", "key_"}},
		{"events list --tenant text", []string{id, "accepted"}},
		{"events show " + id + " --tenant text", []string{"text.form", "sha256", "scheduled"}},
		{"deliveries list --tenant text", []string{"scheduled", "status 418"}},
		{"deliveries show " + id + "/text --tenant text", []string{"1.1", "status 418", "attempt 2 at"}},
		{"endpoints rotate-secret text --tenant text --overlap 1h", []string{"whsec_", "1h0m0s"}},
		{"endpoints rotate-secret text --tenant text --kind v1a", []string{"whpk_", "kind v1a"}},
		{"endpoints rotate-secret text --tenant text --kind legacy --secret an-old-secret", []string{"kind legacy"}},
		{"endpoints remove text --tenant text", []string{"removed text", "1 open"}},
	} {
		r := command(t, strings.Fields(tt.args)...)
		for _, want := range tt.want {
			if r.code != 0 || !strings.Contains(r.out, want) {
				t.Errorf("%s: exit %d, %q is not in %s%s", tt.args, r.code, want, r.out, r.err)
			}
		}
	}
}

// Wrong calls exit with 2 and say what is wrong; a plain no exits with 1.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		code int
		want string // on standard error, or output
	}{
		{"--help", 0, "SPANNER_DATABASE"},
		{"--version", 0, "sealpost"},
		{"bogus", 2, "bogus"},
		{"endpoints", 2, "needs a command"},
		{"endpoints bogus", 2, "bogus"},
		{"endpoints show", 2, "endpoint's id"},
		{"endpoints add", 2, "--url is needed"},
		{"endpoints add --url https://x.example --events inv*", 2, "--events"},
		{"endpoints add --url https://10.0.0.1/", 2, "10.0.0.0/8"},
		{"endpoints add --url https://x.example --rate NaN", 2, "--rate"},
		{"endpoints add --url https://x.example --rate 0", 2, "--rate"},
		{"endpoints add --url https://x.example --concurrency 0", 2, "--concurrency"},
		{"endpoints add --url https://x.example --timeout 61s", 2, "--timeout"},
		{"endpoints add --url https://x.example --retry 0s,200h", 2, "--retry"},
		{"endpoints add --url https://x.example --secret nonsense", 2, "--secret"},
		{"endpoints add --url https://x.example --tenant A", 2, "--tenant"},
		{"endpoints rotate-secret x --overlap 200h", 2, "--overlap"},
		{"endpoints rotate-secret x --kind v2", 2, "v1, v1a and legacy"},
		{"endpoints rotate-secret x --kind legacy", 2, "give it"},
		{"endpoints rotate-secret x --kind v1a --secret whsec_x", 2, "whsk_"},
		{"endpoints add --url pubsub://sealpost-events", 2, "taken"},
		{"publish", 2, "--type"},
		{"publish --type a.b --data @/does/not/exist", 2, "exist"},
		{"events show nonsense", 2, "event id"},
		{"deliveries list --state bogus", 2, "--state"},
		{"deliveries list --event x", 2, "--event"},
		{"events list --limit 0", 2, "--limit"},
		{"events list --bogus", 2, "bogus"},
		{"listen --source x --forward-to http://10.0.0.1/", 2, "--forward-to"},
		{"trigger", 2, "--scheme is needed"},
		{"trigger --scheme bogus", 2, "--scheme"},
		{"trigger --scheme stripe --source nobody", 2, "no source"},
		{"trigger --scheme stripe --source nobody --key k", 1, "404"},
		{"verify", 2, "--requests"},
		{"check-url", 2, "URL"},
		{"endpoints show none", 1, "not found"},
		{"events show evt_aaaaaaaaaaaaaaaaaaaaaaaaaa", 1, "not found"},
	} {
		r := command(t, strings.Fields(tt.args)...)
		if r.code != tt.code || !strings.Contains(r.out+r.err, tt.want) {
			t.Errorf("%s: exit %d, want %d and %q: %s%s", tt.args, r.code, tt.code, tt.want, r.out, r.err)
		}
	}
	for _, args := range []string{"events list", "endpoints list", "publish --type a.b", "trigger --scheme stripe"} {
		if r := bare(t, none, "", strings.Fields(args)...); r.code != exitUsage || r.err == "" {
			t.Errorf("%s without an environment: exit %d, %s", args, r.code, r.err)
		}
	}
}

// check-url judges as the dispatcher of a strict environment does.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://93.184.216.34/hook": "allowed", "https://[2606:2800:220:1::1]:8443/": "allowed",
		"http://93.184.216.34/": "blocked", "https://93.184.216.34:22/": "blocked", "https://127.0.0.1/": "blocked", "https://[::ffff:7f00:1]/": "blocked",
		"https://2130706433/": "blocked", "https://0x7f.1/": "blocked", "https://u:p@93.184.216.34/": "blocked", "https://localhost/": "blocked",
		"https://169.254.169.254/": "blocked", "https://x.run.app/": "blocked", "nonsense": "blocked",
	} {
		r := bare(t, none, "", "check-url", "--json", url)
		var v urlVerdict
		if err := json.Unmarshal([]byte(r.out), &v); err != nil || v.Verdict != want || v.URL != url || v.Reason == "" || (r.code == 0) != (want == "allowed") {
			t.Errorf("%s: exit %d, %v, %s", url, r.code, err, r.out)
		}
	}
	if r := bare(t, none, "", "check-url", "https://93.184.216.34/", "https://10.0.0.1/"); r.code != exitFailed || strings.Count(r.out, "\n") != 2 {
		t.Errorf("%+v", r)
	}
}

// verify reads one request or many, from a file or standard input.
func TestVerify(t *testing.T) {
	t.Parallel()
	good := `{"name":"good","scheme":"github","secret":"It's a Secret to Everybody","headers":{"X-Hub-Signature-256":"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},"body_base64":"SGVsbG8sIFdvcmxkIQ==","now_unix":0}`
	bad := strings.NewReplacer(`"good"`, `"bad"`, "SGVsbG8sIFdvcmxkIQ==", "SGVsbG8sIFdvcmxkIQo=").Replace(good)
	for _, tt := range []struct {
		in   string
		code int
		want []string
	}{
		{"[" + good + "," + bad + "]", 0, []string{`"name":"good","verdict":"accept"`, `"name":"bad","verdict":"reject","reason":"mismatch"`}},
		{good, 0, []string{`"accept"`}},
		{bad, 1, []string{`"reject"`, "line end"}},
		{"[]", 2, nil}, {"null", 2, nil}, {"{", 2, nil}, {"", 2, nil},
	} {
		r := bare(t, none, tt.in, "verify", "--requests", "-")
		if r.code != tt.code {
			t.Errorf("%.40s: exit %d, want %d: %s%s", tt.in, r.code, tt.code, r.out, r.err)
		}
		for _, want := range tt.want {
			if !strings.Contains(r.out, want) {
				t.Errorf("%.40s: %q is not in %s", tt.in, want, r.out)
			}
		}
	}
}

// trigger posts what its source accepts, and listen forwards it as it came.
func TestTriggerAndListen(t *testing.T) {
	t.Parallel()
	sys, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	env := sys.Env()
	got := make(chan *http.Request, 10)
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		got <- r
	}))
	t.Cleanup(program.Close)
	ctx, stop := context.WithCancel(t.Context())
	out := &said{ready: make(chan struct{})}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"listen", "--source", "pagerduty", "--forward-to", program.URL}, func(n string) string { return env[n] }, strings.NewReader(""), out, io.Discard)
	}()
	<-out.ready
	for _, scheme := range []string{"pagerduty", "stripe"} { // only the first is listened to
		if r := command(t, "trigger", "--scheme", scheme); r.code != 0 || !strings.Contains(r.out, "200") {
			t.Fatalf("%s: %+v", scheme, r)
		}
	}
	if r := <-got; r.Header.Get("X-Pagerduty-Signature") == "" || r.Method != http.MethodPost {
		t.Errorf("forwarded %v", r.Header)
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("exit %d", code)
	}
	if len(got) != 0 || !strings.Contains(out.String(), "202") {
		t.Errorf("%d more forwarded; said %s", len(got), out)
	}
	if r := command(t, "trigger", "--scheme", "stripe", "--key", "another"); r.code != exitFailed || !strings.Contains(r.out, "401") || !strings.Contains(r.err, "sources list") {
		t.Errorf("signed with another key: %+v", r)
	}
}

// said is output that tells when it has begun.
type said struct {
	mu    sync.Mutex
	b     bytes.Buffer
	ready chan struct{}
	once  sync.Once
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.once.Do(func() { close(s.ready) })
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
