package system_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// dev is a running `sealpost dev`, with emulators of its own.
type dev struct {
	*process
	info map[string]json.RawMessage
	env  map[string]string
}

func startDev(t *testing.T) *dev {
	t.Helper()
	cmd := exec.Command(binary(t, "sealpost"), "dev", "--json", "--no-demo")
	cmd.Env = environ()
	d := &dev{process: run(t, cmd)}
	d.line(func(line string) bool { return json.Unmarshal([]byte(line), &d.info) == nil })
	d.field("env", &d.env)
	return d
}

func (d *dev) field(name string, v any) {
	d.t.Helper()
	if err := json.Unmarshal(d.info[name], v); err != nil {
		d.t.Fatalf("%s: %v in %s", name, err, d.info[name])
	}
}

func (d *dev) text(name string) string {
	d.t.Helper()
	var s string
	d.field(name, &s)
	return s
}

// cli runs a command against the instance.
func (d *dev) cli(stdin string, args ...string) (out []byte, code int) {
	d.t.Helper()
	return cli(d.t, environ(d.env), stdin, args...)
}

func cli(t *testing.T, env []string, stdin string, args ...string) (out []byte, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary(t, "sealpost"), args...)
	cmd.Env, cmd.Stdin = env, strings.NewReader(stdin)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	code = cmd.ProcessState.ExitCode()
	if (code == 0) != (said.Len() == 0) && !strings.Contains(string(out), `"verdict"`) {
		t.Errorf("sealpost %s: exit code %d, and standard error %q", strings.Join(args, " "), code, said.String())
	}
	return out, code
}

// does runs a command that succeeds, and reads its one JSON value into v.
func (d *dev) does(v any, stdin string, args ...string) {
	d.t.Helper()
	out, code := d.cli(stdin, append(args, "--json")...)
	if code != 0 {
		d.t.Fatalf("sealpost %s: exit code %d", strings.Join(args, " "), code)
	}
	if err := json.Unmarshal(out, v); err != nil || bytes.Count(out, []byte("\n")) != 1 {
		d.t.Fatalf("sealpost %s: %v in %q", strings.Join(args, " "), err, out)
	}
}

type endpointOut struct {
	ID, Tenant, URL, Secret, State string
	Events                         []string
	Keys                           []struct{ ID, Kind string }
}

type deliveryOut struct {
	Event, Endpoint, State string
	Attempts               []struct {
		Attempt, Status int
		Class           string
	}
}

// A person's way through the whole command line, as they would go it.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	d := startDev(t)
	d.describesItself()

	hook := newCustomer(t, nil)
	var ep endpointOut
	d.does(&ep, "", "endpoints", "add", "--url", hook.url, "--events", "invoice.*,order.created")
	if ep.ID == "" || ep.Tenant != "default" || ep.URL != hook.url || !strings.HasPrefix(ep.Secret, "whsec_") {
		t.Fatalf("added %+v", ep)
	}
	var list []endpointOut
	if d.does(&list, "", "endpoints", "list"); len(list) != 1 || list[0].ID != ep.ID || list[0].Secret != "" {
		t.Errorf("listed %+v", list)
	}
	var shown endpointOut
	d.does(&shown, "", "endpoints", "show", ep.ID)
	if shown.State != "active" || len(shown.Keys) != 1 || shown.Keys[0].Kind != "v1" || shown.Secret != "" || !slices.Equal(shown.Events, []string{"invoice.*", "order.created"}) {
		t.Errorf("shown %+v", shown)
	}

	d.publishes(hook, ep)
	d.receives(hook, ep)
	d.rotates(hook, ep)
	d.removes(hook, ep)
	d.refuses(ep)

	children := descendants(d.cmd.Process.Pid)
	if len(children) < 2 {
		t.Errorf("%d child processes, want both emulators", len(children))
	}
	must(t, d.cmd.Process.Signal(os.Interrupt))
	d.ended(15 * time.Second)
	if d.err != nil {
		t.Errorf("after Ctrl-C: %v", d.err)
	}
	if n := strings.Count(d.out.String(), "\n"); n != 1 || d.errs.String() != "" {
		t.Errorf("standard output has %d lines, want the one; standard error: %s", n, d.errs.String())
	}
	for _, pid := range children {
		if alive(pid) {
			t.Errorf("process %d has survived", pid)
		}
	}
}

// describesItself holds the line that dev prints against what it runs.
func (d *dev) describesItself() {
	d.t.Helper()
	names := []string{"console", "dispatcher", "env", "project", "receiver", "sources", "worker"}
	if got := slices.Sorted(maps.Keys(d.info)); !slices.Equal(got, names) {
		d.t.Errorf("the line has %v, want %v", got, names)
	}
	for _, service := range []string{"receiver", "worker", "dispatcher", "console"} {
		if err := ready(d.text(service)); err != nil {
			d.t.Errorf("%s: %v", service, err)
		}
		if u, err := url.Parse(d.text(service)); err != nil || u.Hostname() != "127.0.0.1" {
			d.t.Errorf("%s serves at %s", service, d.text(service))
		}
	}
	for _, name := range []string{"SPANNER_EMULATOR_HOST", "PUBSUB_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST", "SECRET_MANAGER_EMULATOR_HOST"} {
		conn, err := net.Dial("tcp", d.env[name])
		if err != nil {
			d.t.Errorf("%s: %v", name, err)
			continue
		}
		_ = conn.Close()
	}
	if d.env["SPANNER_DATABASE"] == "" || d.env["GOOGLE_CLOUD_PROJECT"] != d.text("project") || d.text("project") == "" {
		d.t.Errorf("project %q, environment %v", d.text("project"), d.env)
	}
	var sources map[string]system.Source
	d.field("sources", &sources)
	for _, scheme := range []string{"standard-webhooks", "stripe", "github", "shopify", "slack", "generic-hmac"} {
		if s := sources[scheme]; s.Scheme != scheme || s.Secret == "" || s.URL != d.text("receiver")+"/in/"+scheme {
			d.t.Errorf("source %s: %+v", scheme, s)
		}
	}
}

// delivered follows an event to its end through the command line.
func (d *dev) delivered(event, endpoint string) {
	d.t.Helper()
	var got deliveryOut
	eventually(d.t, func() error {
		out, code := cli(d.t, environ(d.env), "", "deliveries", "list", "--event", event, "--json")
		var list []deliveryOut
		if err := json.Unmarshal(out, &list); err != nil || code != 0 {
			return fmt.Errorf("exit code %d, %w", code, err)
		}
		if len(list) != 1 || list[0].State != "delivered" {
			return fmt.Errorf("deliveries %+v", list)
		}
		return nil
	})
	d.does(&got, "", "deliveries", "show", event, endpoint)
	if got.Event != event || got.Endpoint != endpoint || got.State != "delivered" || len(got.Attempts) != 1 || got.Attempts[0].Status != 200 || got.Attempts[0].Class != "ok" || got.Attempts[0].Attempt != 1 {
		d.t.Errorf("%+v", got)
	}
}

func (d *dev) publishes(hook *customer, ep endpointOut) {
	d.t.Helper()
	body := []byte("{" + awkward)
	file := filepath.Join(d.t.TempDir(), "body")
	must(d.t, os.WriteFile(file, body, 0o600))
	for i, args := range [][]string{{"--data", "@" + file}, {"--data", "-"}} {
		var published struct {
			Event, ID, Tenant, Type string
			Bytes                   int
		}
		d.does(&published, string(body), append([]string{"publish", "--type", "invoice.paid", "--id", fmt.Sprint(i)}, args...)...)
		if published.ID != fmt.Sprint(i) || published.Type != "invoice.paid" || published.Tenant != "default" || published.Bytes != len(body) || published.Event != app(published.ID).ID() {
			d.t.Fatalf("published %+v", published)
		}
		d.delivered(published.Event, ep.ID)
		got := hook.requests(app(published.ID))
		if len(got) != 1 {
			d.t.Fatalf("the endpoint saw %+v", got)
		}
		if payload, _ := opened(d.t, app(published.ID), got[0]); !bytes.Equal(payload, body) {
			d.t.Errorf("the endpoint saw %q", got[0].body)
		}
		verified(d.t, ep.Secret, hook.requests(app(published.ID))[0])
		if out, code := d.cli("", "events", "show", published.Event, "--payload"); code != 0 || !bytes.Equal(out, body) {
			d.t.Errorf("exit code %d, payload %q", code, out)
		}
		var shown struct {
			ID, Type, State, SHA256 string
			Deliveries              []deliveryOut
		}
		d.does(&shown, "", "events", "show", published.Event)
		if shown.ID != published.Event || shown.Type != "invoice.paid" || shown.State != "accepted" || len(shown.Deliveries) != 1 || shown.Deliveries[0].Endpoint != ep.ID {
			d.t.Errorf("shown %+v", shown)
		}
	}
	var list []struct{ ID, Type, Source string }
	if d.does(&list, "", "events", "list"); len(list) != 2 || list[0].ID != app("1").ID() || list[1].ID != app("0").ID() || list[0].Source != "app" {
		d.t.Errorf("events, newest first: %+v", list)
	}
}

func verified(t *testing.T, secret string, r request) {
	t.Helper()
	official, err := standardwebhooks.NewWebhook(secret)
	must(t, err)
	if err := official.Verify(r.body, r.header); err != nil {
		t.Errorf("the official library refuses our signature: %v", err)
	}
}

// receives posts what a provider would, signed with the secret that dev prints.
func (d *dev) receives(hook *customer, ep endpointOut) {
	d.t.Helper()
	var sources map[string]system.Source
	d.field("sources", &sources)
	src := sources["stripe"]
	src.Name = "stripe"
	c := signed(d.t, src, "1")
	if code, _, err := post(d.t.Context(), c.url, c.header, c.body); err != nil || code != http.StatusOK {
		d.t.Fatalf("the receiver answered %d, %v", code, err)
	}
	d.delivered(c.key.ID(), ep.ID)
	if got := hook.requests(c.key); len(got) != 1 || !bytes.Equal(got[0].body, c.body) {
		d.t.Errorf("the endpoint saw %+v", got)
	}
}

// rotates gives the endpoint a second secret: for a while both sign.
func (d *dev) rotates(hook *customer, ep endpointOut) {
	d.t.Helper()
	var rotated struct{ ID, Secret string }
	d.does(&rotated, "", "endpoints", "rotate-secret", ep.ID)
	if rotated.ID != ep.ID || !strings.HasPrefix(rotated.Secret, "whsec_") || rotated.Secret == ep.Secret {
		d.t.Fatalf("rotated %+v", rotated)
	}
	n := 0
	var key webhook.EventKey
	eventually(d.t, func() error { // the dispatcher knows within two seconds
		n++
		id := fmt.Sprintf("rotated-%d", n)
		d.does(&struct{}{}, "", "publish", "--type", "invoice.paid", "--id", id)
		key = app(id)
		d.delivered(key.ID(), ep.ID)
		if sigs := strings.Fields(hook.requests(key)[0].header.Get("Webhook-Signature")); len(sigs) != 2 {
			return fmt.Errorf("signed %d times", len(sigs))
		}
		return nil
	})
	verified(d.t, rotated.Secret, hook.requests(key)[0])
	verified(d.t, ep.Secret, hook.requests(key)[0])
}

// removes takes the endpoint away; nothing is sent to it any more.
func (d *dev) removes(hook *customer, ep endpointOut) {
	d.t.Helper()
	var removed struct {
		ID      string
		Removed bool
	}
	if d.does(&removed, "", "endpoints", "remove", ep.ID); removed.ID != ep.ID || !removed.Removed {
		d.t.Errorf("removed %+v", removed)
	}
	before := len(hook.requests(webhook.EventKey{}))
	d.does(&struct{}{}, "", "publish", "--type", "invoice.paid", "--id", "late")
	eventually(d.t, func() error {
		out, code := cli(d.t, environ(d.env), "", "events", "list", "--json")
		if code != 0 || !bytes.Contains(out, []byte(app("late").ID())) {
			return fmt.Errorf("exit code %d: %w", code, errNotYet)
		}
		return nil
	})
	var shown struct{ State string }
	if d.does(&shown, "", "events", "show", app("late").ID()); shown.State != "unmatched" {
		d.t.Errorf("an event that nobody wants is %s", shown.State)
	}
	if n := len(hook.requests(webhook.EventKey{})); n != before {
		d.t.Errorf("the removed endpoint was called %d times more", n-before)
	}
	var list []endpointOut
	if d.does(&list, "", "endpoints", "list"); len(list) != 0 {
		d.t.Errorf("listed %+v", list)
	}
}

// refuses holds every command to its exit codes: 1 no or failed, 2 wrong usage.
func (d *dev) refuses(ep endpointOut) {
	d.t.Helper()
	unknown := webhook.KeyOf("none", "none", "none").ID()
	for _, c := range []struct {
		want int
		args []string
	}{
		{1, []string{"endpoints", "show", "nobody"}},
		{1, []string{"endpoints", "rotate-secret", ep.ID}}, // removed
		{1, []string{"endpoints", "show", ep.ID, "--tenant", "another"}},
		{1, []string{"endpoints", "add", "--url", "http://127.0.0.1:1/", "--id", ep.ID}}, // ids are not used twice
		{1, []string{"events", "show", unknown, "--payload"}},
		{1, []string{"events", "show", app("1").ID(), "--tenant", "another"}},
		{1, []string{"deliveries", "show", unknown}},
		{2, []string{"endpoints", "add"}},
		{2, []string{"endpoints", "add", "--url", "http://10.0.0.1/"}},
		{2, []string{"publish", "--type", "in voice"}},
		{2, []string{"events", "show", "nonsense"}},
		{2, []string{"nonsense"}},
		{2, []string{"--nonsense"}},
	} {
		if _, code := d.cli("", c.args...); code != c.want {
			d.t.Errorf("sealpost %s: exit code %d, want %d", strings.Join(c.args, " "), code, c.want)
		}
	}
	if _, code := cli(d.t, environ(), "", "events", "list"); code != 2 {
		d.t.Errorf("sealpost events list without the environment: exit code %d", code)
	}
}

// verify and check-url need nothing but themselves.
func TestCommandLineWithoutCloud(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"evt_1","type":"a.b"}`)
	captured := func(name, secret string) map[string]any {
		return map[string]any{"name": name, "scheme": "github", "secret": secret, "method": "POST", "url": "https://h.example/in/x",
			"headers":     map[string]string{"X-Hub-Signature-256": fmt.Sprintf("sha256=%x", sum("right", string(body))), "X-GitHub-Event": "push", "X-GitHub-Delivery": "1"},
			"body_base64": base64.StdEncoding.EncodeToString(body), "now_unix": 1_700_000_000, "expect": map[string]string{"verdict": "ignored"}}
	}
	verdicts := func(requests any) ([]map[string]any, int) {
		b, err := json.Marshal(requests)
		must(t, err)
		file := filepath.Join(t.TempDir(), "requests")
		must(t, os.WriteFile(file, b, 0o600))
		out, code := cli(t, environ(), "", "verify", "--requests", file)
		var lines []map[string]any
		for line := range strings.Lines(string(out)) {
			var v map[string]any
			must(t, json.Unmarshal([]byte(line), &v))
			lines = append(lines, v)
		}
		return lines, code
	}
	lines, code := verdicts([]any{captured("good", "right"), captured("bad", "wrong")})
	if code != 0 || len(lines) != 2 || lines[0]["name"] != "good" || lines[0]["verdict"] != "accept" || lines[1]["name"] != "bad" || lines[1]["verdict"] != "reject" || lines[1]["reason"] == "" {
		t.Errorf("exit code %d, %v", code, lines)
	}
	if lines, code := verdicts(captured("one", "right")); code != 0 || len(lines) != 1 || lines[0]["verdict"] != "accept" {
		t.Errorf("exit code %d, %v", code, lines)
	}
	if lines, code := verdicts(captured("one", "wrong")); code != 1 || len(lines) != 1 || lines[0]["verdict"] != "reject" || lines[0]["explanation"] == nil {
		t.Errorf("exit code %d, %v", code, lines)
	}

	for _, c := range []struct {
		url, verdict string
		code         int
	}{
		{"https://93.184.215.14/hook", "allowed", 0},
		{"http://93.184.215.14/hook", "blocked", 1},
		{"https://127.0.0.1/", "blocked", 1},
		{"https://[::ffff:10.0.0.1]/", "blocked", 1},
		{"https://user:password@93.184.215.14/", "blocked", 1},
		{"https://93.184.215.14:22/", "blocked", 1},
	} {
		out, code := cli(t, environ(), "", "check-url", c.url, "--json")
		var v struct{ URL, Verdict, Reason string }
		if err := json.Unmarshal(out, &v); err != nil || code != c.code || v.Verdict != c.verdict || v.URL != c.url || v.Reason == "" {
			t.Errorf("%s: exit code %d, %s, %v", c.url, code, out, err)
		}
	}
}

// When `sealpost dev` is killed its emulators go with it.
func TestDevKilled(t *testing.T) {
	t.Parallel()
	d := startDev(t)
	children := descendants(d.cmd.Process.Pid)
	if len(children) < 2 {
		t.Fatalf("%d child processes, want both emulators", len(children))
	}
	must(t, d.cmd.Process.Signal(syscall.SIGKILL))
	d.killed()
	eventually(t, func() error {
		for _, pid := range children {
			if alive(pid) {
				return fmt.Errorf("process %d has survived", pid)
			}
		}
		return nil
	})
}
