package internal_test

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cloud.google.com/go/cloudbuild/apiv1/v2/cloudbuildpb"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/safedial"
)

// These tests hold Terraform, the build and the code together without running
// Terraform. What needs a plan is in plan_test.go, what needs an apply in apply_test.go.

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The file is of the Cloud Build API's own type, its steps wait for steps before
// them, and what they use is defined.
func TestCloudBuild(t *testing.T) {
	t.Parallel()
	js, err := yaml.YAMLToJSONStrict([]byte(read(t, "cloudbuild.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	var b cloudbuildpb.Build
	if err := protojson.Unmarshal(js, &b); err != nil {
		t.Fatal(err)
	}
	var before []string
	for _, s := range b.Steps {
		if s.Id == "" || s.Timeout == nil || len(s.WaitFor) == 0 {
			t.Errorf("step %q needs an id, a timeout and what it waits for", s.Id)
		}
		for _, w := range s.WaitFor {
			if w != "-" && !slices.Contains(before, w) {
				t.Errorf("step %s waits for %s, which is not before it", s.Id, w)
			}
		}
		before = append(before, s.Id)
		for _, m := range regexp.MustCompile(`\$\{?(_[A-Z_]+)`).FindAllStringSubmatch(s.Name+s.Script, -1) {
			if _, ok := b.Substitutions[m[1]]; !ok {
				t.Errorf("step %s uses %s, which has no default", s.Id, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`\./(scripts/[a-z/]+)`).FindAllStringSubmatch(s.Script, -1) {
			if info, err := os.Stat(filepath.Join("..", m[1])); err != nil || info.Mode()&0o111 == 0 {
				t.Errorf("step %s runs %s: %v", s.Id, m[1], err)
			}
		}
		// Terraform alone decides which image runs.
		if strings.Contains(s.Script, "gcloud run") {
			t.Errorf("step %s deploys past Terraform", s.Id)
		}
	}
	for name := range b.Substitutions {
		if !strings.Contains(string(js), "$"+name) && !strings.Contains(string(js), "${"+name+"}") {
			t.Errorf("substitution %s is not used", name)
		}
	}
	if !strings.Contains(b.ServiceAccount, "/sealpost-build@") || b.Options.GetLogging() != cloudbuildpb.BuildOptions_CLOUD_LOGGING_ONLY || b.Options.GetRequestedVerifyOption() != cloudbuildpb.BuildOptions_VERIFIED {
		t.Error("the build runs as its own account, logs to Cloud Logging, and has its image attested")
	}
}

// Every special IPv4 range of the dial guard is denied by the firewall too.
func TestFirewallCoversTheGuard(t *testing.T) {
	t.Parallel()
	var rows []struct{ Range, Name string }
	if err := json.Unmarshal([]byte(read(t, "terraform/modules/network/special-ranges.json")), &rows); err != nil {
		t.Fatal(err)
	}
	var denied []netip.Prefix
	for _, r := range rows {
		p, err := netip.ParsePrefix(r.Range)
		if err != nil || p != p.Masked() {
			t.Fatalf("%q: %v", r.Range, err)
		}
		denied = append(denied, p)
	}
	for _, n := range safedial.Networks() {
		if n.Prefix.Addr().Is4() && !slices.ContainsFunc(denied, func(d netip.Prefix) bool { return d.Bits() <= n.Prefix.Bits() && d.Contains(n.Prefix.Addr()) }) {
			t.Errorf("the firewall lets through %s (%s)", n.Prefix, n.Name)
		}
	}
	// And nothing that the guard permits: each denied range is one of its rows.
	for _, d := range denied {
		if !slices.ContainsFunc(safedial.Networks(), func(n safedial.Network) bool { return n.Prefix == d }) {
			t.Errorf("the firewall denies %s, which the guard permits", d)
		}
	}
}

// block is the text of a map in a Terraform file: from its name to the brace that
// ends it.
func block(t *testing.T, text, start, end string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, start)
	inner, _, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("no %q … %q", start, end)
	}
	return inner
}

// Every setting that the receiver reads of a source can be given in Terraform,
// which refuses all others.
func TestSourceSettings(t *testing.T) {
	t.Parallel()
	tf := read(t, "terraform/sources.tf")
	var settings []string
	for _, m := range regexp.MustCompile(`(?m)^\s+(\w+)\s+= "`).FindAllStringSubmatch(block(t, tf, "source_settings = {", "}"), -1) {
		settings = append(settings, m[1])
	}
	fields := stringKeys(t, "../internal/receive/config.go", "parseSource")
	if !slices.Contains(fields, "scheme") || len(fields) < 15 {
		t.Fatalf("fields of a source: %v", fields)
	}
	for _, f := range fields {
		if f != "id" && f != "secrets" && !slices.Contains(settings, f) { // these two Terraform makes
			t.Errorf("sources: the receiver's setting %s cannot be given in Terraform (source_settings)", f)
		}
	}
	for _, s := range settings {
		if s != "secret_versions" && !slices.Contains(fields, s) {
			t.Errorf("sources: the receiver has no setting %s (source_settings)", s)
		}
	}
	var keyless []string
	for _, s := range provider.Schemes() {
		v, err := provider.New(s.Name, provider.SampleOptions(s.Name))
		if err != nil {
			t.Fatal(err)
		}
		if !v.NeedsSecret() {
			keyless = append(keyless, strconv.Quote(s.Name))
		}
	}
	slices.Sort(keyless)
	if want := "keyless_schemes = [" + strings.Join(keyless, ", ") + "]"; !strings.Contains(tf, want) {
		t.Errorf("sources.tf lacks %q", want)
	}
}

// stringKeys are the keys of the first map literal in a function.
func stringKeys(t *testing.T, file, function string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	ast.Inspect(f, func(n ast.Node) bool {
		if fn, ok := n.(*ast.FuncDecl); ok && fn.Name.Name != function {
			return false
		}
		lit, ok := n.(*ast.CompositeLit)
		if !ok || len(keys) > 0 { // the first one only; those of nested objects follow
			return true
		}
		for _, e := range lit.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				if k, ok := kv.Key.(*ast.BasicLit); ok && k.Kind == token.STRING {
					keys = append(keys, strings.Trim(k.Value, `"`))
				}
			}
		}
		return true
	})
	return keys
}

// goSources is the text of all Go code of the product, tests and the local cloud
// left out.
func goSources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, folder := range []string{".", "../services", "../functions"} {
		err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
			switch {
			case errors.Is(err, os.ErrNotExist):
				return nil
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "localcloud":
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			b, err := os.ReadFile(path)
			all.Write(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// Every field and event that a metric is made of is one that the code logs.
func TestMetricsReadLoggedFields(t *testing.T) {
	t.Parallel()
	code := goSources(t)
	tf := read(t, "terraform/modules/monitoring/metrics.tf")
	fields := regexp.MustCompile(`jsonPayload\.(\w+)`).FindAllStringSubmatch(tf, -1)
	if len(fields) < 20 {
		t.Fatalf("%d fields", len(fields))
	}
	for _, m := range fields {
		logged := regexp.MustCompile(`slog\.\w+\("`+m[1]+`"`).MatchString(code) || strings.Contains(code, `With("`+m[1]+`"`)
		if !logged {
			t.Errorf("no line has the field %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`jsonPayload\.event=(\\"\w+\\"|\([^)]*\))`).FindAllStringSubmatch(tf, -1) {
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(strings.ReplaceAll(m[1], "OR", ""), -1) {
			if !strings.Contains(code, `slog.String("event", "`+name+`")`) && !strings.Contains(code, `keyAttrs("`+name+`"`) {
				t.Errorf("no line is of the event %s", name)
			}
		}
	}
}

// rightsTable are the permissions of the table of rights, by RPC.
func rightsTable(t *testing.T) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\|").FindAllStringSubmatch(read(t, "terraform/README.md"), -1) {
		rows[m[1]] += m[2] + " "
	}
	return rows
}

// Every call of Cloud Tasks, Secret Manager and Pub/Sub that the code makes stands in
// the table of rights with its permission, and custom roles hold nothing else.
func TestRightsTable(t *testing.T) {
	t.Parallel()
	table := rightsTable(t)
	tf := read(t, "terraform/services.tf")
	code := goSources(t)
	calls := map[string]bool{}
	for _, m := range regexp.MustCompile(`\b(?:client|sm)\.((?:Create|Get|List|Update|Delete|Pause|Resume|Access|Add|Purge|Run)[A-Z]\w+)\(`).FindAllStringSubmatch(code, -1) {
		calls[m[1]] = true
	}
	for call := range calls {
		if table[call] == "" && !slices.Contains(operatorCalls, call) {
			t.Errorf("terraform/README.md's table of rights lacks %s", call)
		}
	}
	permissions := strings.Join(slices.Collect(maps.Values(table)), " ")
	for _, m := range regexp.MustCompile(`"((?:cloudtasks|spanner)\.[\w.]+)"`).FindAllStringSubmatch(tf, -1) {
		if !strings.Contains(permissions, m[1]) {
			t.Errorf("the role's permission %s is in no row of the table of rights", m[1])
		}
	}
}

// operatorCalls are made by the command line only, in the operator's name: to read a
// source's traffic on one's own machine, and in a local cloud.
var operatorCalls = []string{"AddSecretVersion", "CreateSecret", "CreateSubscription", "DeleteSubscription", "CreateTopic", "ListTasks"}

// The account that deploys may bind exactly the project-wide roles that the root
// binds.
func TestDeployerBindsOurRolesOnly(t *testing.T) {
	t.Parallel()
	expression := regexp.MustCompile(`hasOnly\(\[([^\]]+)\]\)`).FindStringSubmatch(read(t, "terraform/bootstrap/main.tf"))
	if expression == nil {
		t.Fatal("no condition on the roles that may be bound")
	}
	for _, role := range []string{"sealpostTaskScheduler", "sealpostQueuePauser", "sealpostQueueAllocator", "roles/eventarc.eventReceiver"} {
		if !strings.Contains(expression[1], role) {
			t.Errorf("the deployer may not bind %s", role)
		}
	}
	if strings.Contains(expression[1], "owner") || strings.Contains(expression[1], "editor") || strings.Contains(expression[1], "*") {
		t.Errorf("the deployer may bind %s", expression[1])
	}
}

// The image's binaries are static, the same when they are built again elsewhere,
// and run in an empty root without rights.
func TestBinaries(t *testing.T) {
	t.Parallel()
	one, two := buildBinaries(t, ".."), buildBinaries(t, copied(t))
	entries, err := os.ReadDir(one)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) < 4 {
		t.Fatalf("%d binaries", len(entries))
	}
	for _, e := range entries {
		a, err := os.ReadFile(filepath.Join(one, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(two, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s is another one when built in another folder", e.Name())
		}
		f, err := elf.NewFile(bytes.NewReader(a))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
			t.Errorf("%s is not static", e.Name())
		}
		out, err := inEmptyRoot(t, filepath.Join(one, e.Name()), "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "v1.2.3") {
			t.Errorf("%s --version in an empty root: %q, %v", e.Name(), out, err)
		}
	}
	checkHealth(t, filepath.Join(one, "receiver"))
}

// copied is the project as the image's build sees it, in another folder.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"internal", "services", "scripts/lib"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("..", name))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "functions"), os.DirFS("../functions")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(read(t, name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func buildBinaries(t *testing.T, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	cmd := exec.CommandContext(t.Context(), "./scripts/lib/binaries", out)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "VERSION=v1.2.3", "GOFLAGS=-mod=readonly", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}
