//go:build terraform

package internal_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/monitoring/dashboard/apiv1/dashboardpb"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sealpost/sealpost/internal/localcloud"
	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/receive"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/store"
)

// These tests plan the examples in terraform/envs with the terraform that is on the
// PATH, and hold the plan and the code together, both ways. scripts/test runs them.
// No credentials are needed: planning what does not exist asks no API.

const (
	testImage  = "europe-west1-docker.pkg.dev/my-project/sealpost/sealpost@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	testNumber = "123456789012"
)

// workspace is a copy of the configuration with a state of its own.
type workspace struct{ dir, data string }

func newWorkspace(dir string) (workspace, error) {
	w := workspace{filepath.Join(dir, "terraform"), filepath.Join(dir, "data")}
	for _, name := range []string{"terraform", "internal/store/ddl", "internal/localcloud"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("..", name))); err != nil {
			return w, err
		}
	}
	// Remote state and the lock of a provider are of whoever works there.
	_ = os.Remove(filepath.Join(w.dir, "backend.tf"))
	_ = os.Remove(filepath.Join(w.dir, ".terraform.lock.hcl"))
	_, err := w.run("init", "-backend=false", "-input=false")
	return w, err
}

func (w workspace) run(args ...string) ([]byte, error) {
	cmd := exec.Command("terraform", append([]string{"-chdir=" + w.dir}, args...)...)
	cmd.Env = append(os.Environ(), "TF_DATA_DIR="+w.data, "TF_IN_AUTOMATION=1", "CHECKPOINT_DISABLE=1", "GOOGLE_OAUTH_ACCESS_TOKEN=none-is-needed-to-plan")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("terraform %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out, nil
}

// arguments are those of a plan of an example.
func arguments(env string, more ...string) []string {
	return append([]string{"-input=false", "-no-color", "-var-file=envs/" + env + ".tfvars", "-var=image=" + testImage, "-var=project_number=" + testNumber}, more...)
}

// resource is one resource of a plan.
type resource struct {
	Address string
	Type    string
	Index   any
	Change  struct {
		Actions []string
		After   map[string]any
	}
}

type planned struct {
	Changes []resource `json:"resource_changes"`
	text    string
}

func (w workspace) plan(env string, more ...string) (planned, error) {
	var p planned
	file := filepath.Join(w.dir, "plan-"+env)
	if _, err := w.run(append([]string{"plan", "-out=" + file}, arguments(env, more...)...)...); err != nil {
		return p, err
	}
	js, err := w.run("show", "-json", file)
	if err != nil {
		return p, err
	}
	p.text = string(js)
	return p, json.Unmarshal(js, &p)
}

var plans = sync.OnceValues(func() (map[string]planned, error) {
	dir, err := os.MkdirTemp("", "plans")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	w, err := newWorkspace(dir)
	if err != nil {
		return nil, err
	}
	// The lines of the README, for TestPlanSchemes.
	schemes := bytes.NewBufferString("project_id = \"my-project\"\nregion = \"europe-west1\"\n")
	if err := provider.WriteTerraform(schemes); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(w.dir, "envs/schemes.tfvars"), schemes.Bytes(), 0o600); err != nil {
		return nil, err
	}
	all := map[string]planned{}
	for _, env := range []string{"minimal", "production", "schemes"} {
		if all[env], err = w.plan(env); err != nil {
			return nil, err
		}
	}
	return all, nil
})

func planOf(t *testing.T, env string) planned {
	t.Helper()
	all, err := plans()
	if err != nil {
		t.Fatal(err)
	}
	return all[env]
}

func eachPlan(t *testing.T, f func(t *testing.T, p planned)) {
	t.Helper()
	for _, env := range []string{"minimal", "production"} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			f(t, planOf(t, env))
		})
	}
}

func (p planned) of(kind string) []resource {
	var out []resource
	for _, r := range p.Changes {
		if r.Type == kind {
			out = append(out, r)
		}
	}
	return out
}

func (r resource) text(name string) string {
	s, _ := r.Change.After[name].(string)
	return s
}

// at follows names into blocks, of which it takes the first.
func (r resource) at(names ...string) any {
	var v any = r.Change.After
	for _, n := range names {
		if list, ok := v.([]any); ok {
			if len(list) == 0 {
				return nil
			}
			v = list[0]
		}
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[n]
	}
	return v
}

// container is the only container of a service or worker pool.
func (r resource) env() map[string]string {
	out := map[string]string{}
	list, _ := r.at("template", "containers", "env").([]any)
	for _, v := range list {
		m, _ := v.(map[string]any)
		name, _ := m["name"].(string)
		value, known := m["value"].(string)
		if !known {
			value = "(known after apply)"
		}
		out[name] = value
	}
	return out
}

func TestPlanCreatesOnly(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, p planned) {
		if len(p.Changes) < 100 {
			t.Errorf("%d resources", len(p.Changes))
		}
		for _, r := range p.Changes {
			if !slices.Equal(r.Change.Actions, []string{"create"}) {
				t.Errorf("%s: %v", r.Address, r.Change.Actions)
			}
		}
	})
}

// The settings of a service are those of its --help: none that it does not know,
// and all that it needs.
func TestPlanSettings(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, p planned) {
		services := p.of("google_cloud_run_v2_service")
		if len(services) < 3 {
			t.Fatalf("%d services", len(services))
		}
		for _, r := range services {
			name := strings.TrimPrefix(r.text("name"), "sealpost-")
			help := read(t, "services/"+name+"/config.go")
			env := r.env()
			for set := range env {
				if !regexp.MustCompile(`(?m)^  (\w+, )*` + set + `(, \w+)*  +\S`).MatchString(help) {
					t.Errorf("%s does not know %s", name, set)
				}
			}
			for _, m := range regexp.MustCompile(`(?m)^  (\w+)  .*(?:\n {20,}.*)*\(needed`).FindAllStringSubmatch(help, -1) {
				if env[m[1]] == "" {
					t.Errorf("%s needs %s", name, m[1])
				}
			}
			if command, _ := r.at("template", "containers", "command").([]any); len(command) != 1 || command[0] != "/"+name {
				t.Errorf("%s runs %v", name, command)
			}
			for _, probe := range []struct{ name, path string }{{"startup_probe", "/health/ready"}, {"liveness_probe", "/health/live"}} {
				if got := r.at("template", "containers", probe.name, "http_get", "path"); got != probe.path {
					t.Errorf("%s: %s asks %v", name, probe.name, got)
				}
			}
		}
		// Every service that exists is planned, and the reverse.
		var want []string
		entries, err := os.ReadDir("../services")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "sealpost" {
				want = append(want, "sealpost-"+e.Name())
			}
		}
		var got []string
		for _, r := range services {
			got = append(got, r.text("name"))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("services %v, in the code %v", got, want)
		}
	})
}

// The Terraform lines that the README gives for a source of each scheme are what the
// receiver takes, with an address that the provider can post to and a secret where
// one is needed.
func TestPlanSchemes(t *testing.T) {
	t.Parallel()
	p := planOf(t, "schemes")
	services := p.of("google_cloud_run_v2_service")
	i := slices.IndexFunc(services, func(r resource) bool { return r.text("name") == "sealpost-receiver" })
	if i < 0 {
		t.Fatal("no receiver")
	}
	sources, err := receive.ParseSources([]byte(services[i].env()["SOURCES"]))
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, r := range p.of("google_secret_manager_secret") {
		made[r.text("secret_id")] = true
	}
	served := map[string]bool{}
	for _, s := range sources {
		served[s.Scheme] = true
		if s.ID != s.Scheme || !strings.HasSuffix(s.PublicURL, "/in/"+s.ID) {
			t.Errorf("source %s of scheme %s at %s", s.ID, s.Scheme, s.PublicURL)
		}
		for _, ref := range s.Secrets {
			if !made[ref.Name] {
				t.Errorf("%s: nothing makes the secret %s", s.ID, ref.Name)
			}
		}
	}
	for _, in := range provider.Schemes() {
		if !served[in.Name] {
			t.Errorf("%s is not served", in.Name)
		}
	}
}

// Nobody but providers gets in unasked, and nowhere is a member everybody.
func TestPlanIsClosed(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, p planned) {
		for _, r := range p.of("google_cloud_run_v2_service") {
			open := r.at("invoker_iam_disabled") == true
			if open != (r.text("name") == "sealpost-receiver") {
				t.Errorf("%s: open to everybody: %v", r.text("name"), open)
			}
			if ingress := r.text("ingress"); r.text("name") != "sealpost-receiver" && ingress != "INGRESS_TRAFFIC_INTERNAL_ONLY" {
				t.Errorf("%s: %s", r.text("name"), ingress)
			}
		}
		for _, word := range []string{"allUsers", "allAuthenticatedUsers", "roles/owner", "roles/editor", "domain:"} {
			if strings.Contains(p.text, `"`+word) {
				t.Errorf("the plan has %s", word)
			}
		}
		for _, r := range p.Changes {
			if member := r.text("member"); strings.Contains(member, "*") || strings.Contains(r.text("role"), "*") {
				t.Errorf("%s: %s to %s", r.Address, r.text("role"), member)
			}
			if strings.HasSuffix(r.Type, "_iam_policy") || strings.HasSuffix(r.Type, "_iam_binding") {
				t.Errorf("%s takes rights from others", r.Address)
			}
		}
		for _, r := range p.of("google_project_iam_custom_role") {
			for _, permission := range r.at("permissions").([]any) {
				if strings.Contains(permission.(string), "*") {
					t.Errorf("%s: %s", r.Address, permission)
				}
			}
		}
	})
}

// The exact rights of every account of ours. A new line here is a decision.
func TestPlanRights(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, p planned) {
		const custom = "projects/my-project/roles/"
		want := map[string][]string{
			"sealpost-receiver": {"roles/pubsub.publisher on sealpost-inbound", "roles/secretmanager.secretAccessor on sealpost-source-stripe"},
			"sealpost-worker": {custom + "sealpostDatabaseUser on sealpost", custom + "sealpostTaskScheduler on the project",
				"roles/iam.serviceAccountUser on sealpost-tasks"},
			"sealpost-dispatcher": {custom + "sealpostDatabaseUser on sealpost", custom + "sealpostTaskScheduler on the project",
				custom + "sealpostQueuePauser on the project", "roles/pubsub.publisher on sealpost-events", "roles/iam.serviceAccountUser on sealpost-tasks", "roles/secretmanager.secretAccessor on sealpost-keyset"},
			"sealpost-push":  {"roles/run.invoker on sealpost-worker"},
			"sealpost-tasks": {"roles/run.invoker on sealpost-dispatcher"},
		}
		if strings.Contains(p.text, "hooks.example.com") { // production has more sources
			want["sealpost-receiver"] = append(want["sealpost-receiver"], "roles/secretmanager.secretAccessor on sealpost-source-github", "roles/secretmanager.secretAccessor on sealpost-source-slack")
		}
		got := map[string][]string{}
		for _, r := range p.Changes {
			account, ours := strings.CutSuffix(strings.TrimPrefix(r.text("member"), "serviceAccount:"), "@my-project.iam.gserviceaccount.com")
			if !ours || !strings.HasPrefix(account, "sealpost-") {
				continue
			}
			got[account] = append(got[account], r.text("role")+" on "+object(r))
		}
		for _, account := range slices.Sorted(maps.Keys(want)) {
			slices.Sort(want[account])
			slices.Sort(got[account])
			if !slices.Equal(got[account], want[account]) {
				t.Errorf("%s has\n  %s\nwant\n  %s", account, strings.Join(got[account], "\n  "), strings.Join(want[account], "\n  "))
			}
		}
		if len(got) != len(want) {
			t.Errorf("accounts with rights: %v", slices.Sorted(maps.Keys(got)))
		}
		// The table in the documentation names these roles and accounts, and no others.
		documented := read(t, "terraform/README.md")
		for account, rights := range got {
			for _, right := range rights {
				role, _, _ := strings.Cut(right, " on ")
				role = strings.TrimPrefix(role, custom)
				row := regexp.MustCompile("(?m)^\\|.*`" + regexp.QuoteMeta(role) + "`.*" + strings.TrimPrefix(account, "sealpost-"))
				if !row.MatchString(documented) {
					t.Errorf("the table of rights does not say that %s has %s", account, role)
				}
			}
		}
	})
}

// object is the name of what a right is on.
func object(r resource) string {
	for _, name := range []string{"topic", "subscription", "secret_id", "database", "name"} {
		if v := r.text(name); v != "" {
			return v
		}
	}
	if id := r.text("service_account_id"); id != "" {
		name, _, _ := strings.Cut(id[strings.LastIndex(id, "/")+1:], "@")
		return name
	}
	return "the project"
}

// Topics, subscriptions and queues are the topology's, and what it says of each is
// planned.
func TestPlanTopology(t *testing.T) {
	t.Parallel()
	top, err := localcloud.LoadTopology()
	if err != nil {
		t.Fatal(err)
	}
	eachPlan(t, func(t *testing.T, p planned) {
		names := func(kind string) []string {
			var out []string
			for _, r := range p.of(kind) {
				if name := r.text("name"); !strings.HasPrefix(name, "sealpost-direct-") {
					out = append(out, name)
				}
			}
			slices.Sort(out)
			return out
		}
		if got, want := names("google_pubsub_topic"), slices.Sorted(maps.Keys(top.Topics)); !slices.Equal(got, want) {
			t.Errorf("topics %v, want %v", got, want)
		}
		if got, want := names("google_pubsub_subscription"), slices.Sorted(maps.Keys(top.Subscriptions)); !slices.Equal(got, want) {
			t.Errorf("subscriptions %v, want %v", got, want)
		}
		dead := map[string]bool{}
		for _, r := range p.of("google_pubsub_subscription") {
			name := r.text("name")
			if r.at("expiration_policy", "ttl") != "" || r.at("enable_message_ordering") != false {
				t.Errorf("%s expires or is ordered", name)
			}
			s, ok := top.Subscriptions[name]
			if !ok {
				continue
			}
			if got := r.at("ack_deadline_seconds"); got != float64(s.AckDeadlineSeconds) {
				t.Errorf("%s: ack deadline %v", name, got)
			}
			if got := r.text("message_retention_duration"); got != fmt.Sprintf("%ds", s.RetentionSeconds) {
				t.Errorf("%s: retention %s", name, got)
			}
			if s.DeadLetter == nil {
				dead[s.Topic] = true
				continue
			}
			if got := r.at("dead_letter_policy", "max_delivery_attempts"); got != float64(s.DeadLetter.MaxDeliveryAttempts) {
				t.Errorf("%s: dead letter after %v", name, got)
			}
			if got := r.at("push_config", "push_endpoint"); got != "https://sealpost-worker-"+testNumber+".europe-west1.run.app"+s.Push.Path {
				t.Errorf("%s: pushed to %v", name, got)
			}
			if got := r.at("push_config", "oidc_token", "service_account_email"); got != s.Push.ServiceAccount+"@my-project.iam.gserviceaccount.com" {
				t.Errorf("%s: pushed as %v", name, got)
			}
		}
		for _, s := range top.Subscriptions {
			if s.DeadLetter != nil && !dead[s.DeadLetter.Topic] {
				t.Errorf("%s: nothing keeps what is published there", s.DeadLetter.Topic)
			}
		}
		shared := 0
		for _, r := range p.of("google_cloud_tasks_queue") {
			q, ok := top.Queues[fmt.Sprint(r.Index)]
			if strings.HasPrefix(fmt.Sprint(r.Index), "sealpost-ep-") {
				continue // an endpoint's, which the topology does not know
			}
			shared++
			if !ok || !regexp.MustCompile(`^`+fmt.Sprint(r.Index)+`-\d{12}$`).MatchString(r.text("name")) {
				t.Errorf("queue %v is called %s", r.Index, r.text("name"))
			}
			if r.at("rate_limits", "max_concurrent_dispatches") != float64(q.MaxConcurrentDispatches) || r.at("retry_config", "max_attempts") != float64(q.MaxAttempts) {
				t.Errorf("%s: %v", r.Address, r.Change.After)
			}
		}
		if shared != len(top.Queues) {
			t.Errorf("%d shared queues, want %d", shared, len(top.Queues))
		}
	})
}

// Terraform reads the schema as the code does, protected in both ways.
func TestPlanSchema(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, p planned) {
		db := p.of("google_spanner_database")
		if len(db) != 1 {
			t.Fatalf("%d databases", len(db))
		}
		var got, want []string
		for _, v := range db[0].at("ddl").([]any) {
			got = append(got, v.(string))
		}
		for _, s := range store.Statements() {
			want = append(want, s.SQL)
		}
		if !slices.Equal(got, want) {
			t.Errorf("Terraform reads %d statements otherwise than the code's %d", len(got), len(want))
		}
		if db[0].at("deletion_protection") != true || db[0].at("enable_drop_protection") != true {
			t.Error("the database is not protected")
		}
	})
}

// What dials supplied URLs does so through the network, whose firewall denies what
// the guard refuses before it allows the rest.
func TestPlanEgress(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, p planned) {
		for _, r := range p.of("google_cloud_run_v2_service") {
			if got := r.at("template", "vpc_access", "egress"); r.text("name") == "sealpost-dispatcher" && got != "ALL_TRAFFIC" {
				t.Errorf("the dispatcher's traffic: %v", got)
			}
		}
		type rule struct {
			priority float64
			prefix   netip.Prefix
			allow    bool
			name     string
		}
		var rules []rule
		for _, r := range p.of("google_compute_firewall") {
			if r.text("direction") != "EGRESS" {
				continue
			}
			allow, _ := r.at("allow").([]any)
			for _, v := range r.at("destination_ranges").([]any) {
				rules = append(rules, rule{r.at("priority").(float64), netip.MustParsePrefix(v.(string)), len(allow) > 0, r.text("name")})
			}
		}
		slices.SortFunc(rules, func(a, b rule) int { return int(a.priority - b.priority) })
		verdict := func(a netip.Addr) rule {
			for _, r := range rules {
				if r.prefix.Contains(a) {
					return r
				}
			}
			return rule{allow: true, name: "the network's default"}
		}
		for _, n := range safedial.Networks() {
			if !n.Prefix.Addr().Is4() {
				continue
			}
			for _, a := range []netip.Addr{n.Prefix.Addr(), last(n.Prefix)} {
				if v := verdict(a); v.allow {
					t.Errorf("%s (%s) passes by %s", a, n.Name, v.name)
				}
			}
		}
		for _, a := range []string{"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "199.36.153.8", "223.255.255.255"} {
			if v := verdict(netip.MustParseAddr(a)); !v.allow {
				t.Errorf("%s is denied by %s", a, v.name)
			}
		}
	})
}

func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

func TestPlanDashboard(t *testing.T) {
	t.Parallel()
	eachPlan(t, func(t *testing.T, p planned) {
		for _, r := range p.of("google_monitoring_dashboard") {
			checkDashboard(t, r.text("dashboard_json"))
		}
	})
}

// checkDashboard holds the dashboard against the Monitoring API's type.
func checkDashboard(t *testing.T, js string) {
	t.Helper()
	var d dashboardpb.Dashboard
	if err := protojson.Unmarshal([]byte(js), &d); err != nil {
		t.Errorf("dashboard: %v", err)
	}
	if len(d.GetMosaicLayout().GetTiles()) < 10 {
		t.Errorf("dashboard has %d tiles", len(d.GetMosaicLayout().GetTiles()))
	}
}
