// Package internal_test keeps the layout of the project: what may stand at the top,
// and who may import whom. The rules are the text of the design; a failure names the
// file's package, the import and the rule.
package internal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sealpost/sealpost/"

// rule says what a package of internal/ may import of ours, and of others.
type rule struct {
	ours []string // packages of internal/, with all that is below them
	// modules are the prefixes of what it may import beyond the standard library; nil
	// where anything goes that is not ruled otherwise.
	modules []string
}

// none is for packages that import the standard library only.
var none = []string{}

// rules has an entry for every package directly in internal/. Packages below one
// (store/ddl) belong to it.
var rules = map[string]rule{
	// Pure: no I/O but the standard library's.
	"webhook":  {modules: none},
	"signing":  {modules: none},
	"safedial": {modules: none},
	"payload":  {modules: []string{"github.com/klauspost/compress"}},
	"expr":     {modules: []string{"cel.dev/cel-go"}},
	"schema":   {ours: []string{"webhook"}, modules: []string{"github.com/santhosh-tekuri/jsonschema"}},
	"provider": {ours: []string{"webhook"}, modules: none},
	// The only users of Google's clients.
	"store":   {ours: []string{"webhook", "payload"}},
	"bus":     {ours: []string{"webhook", "payload"}},
	"tasks":   {ours: []string{"webhook", "payload"}},
	"secrets": {modules: []string{"cloud.google.com/go/secretmanager", "github.com/tink-crypto/tink-go", "google.golang.org/", "github.com/googleapis/gax-go"}},
	// The stories. They never import one another.
	"receive":  {ours: slices.DeleteFunc(slices.Clone(leaves), func(s string) bool { return s == "store" })}, // never touches Spanner
	"fanout":   {ours: leaves},
	"deliver":  {ours: leaves},
	"maintain": {ours: leaves},
	"console":  {ours: leaves},
	// What a main needs around a story.
	"serve": {ours: []string{"webhook"}},
	// The local cloud knows nothing of the product.
	"localcloud": {},
	// Everything in one process, for dev and tests.
	"system": {ours: append(slices.Clone(leaves), "receive", "fanout", "deliver", "console", "localcloud")},
}

var leaves = []string{"webhook", "provider", "signing", "safedial", "payload", "expr", "schema", "store", "bus", "tasks", "secrets", "serve"}

// localOnly are packages that production never holds, with their only importers
// outside tests.
var localOnly = map[string][]string{
	"localcloud": {"services/sealpost", "scripts", "internal/system"},
	"system":     {"services/sealpost", "scripts"},
}

// googleSDK are the client libraries that only store, bus, tasks, secrets and the
// local cloud import; all others stay testable without a cloud.
var googleSDK = []string{
	"cloud.google.com/go/spanner", "cloud.google.com/go/pubsub",
	"cloud.google.com/go/cloudtasks", "cloud.google.com/go/secretmanager",
}

var googleSDKUsers = []string{"internal/store", "internal/bus", "internal/tasks", "internal/secrets", "internal/localcloud"}

// topLevel is all that may stand at the top of the repository; names that start
// with a dot are free.
var topLevel = []string{
	"functions", "services", "internal", "terraform", "scripts",
	"go.mod", "go.sum", "README.md", "LICENSE", "Dockerfile", "cloudbuild.yaml",
}

// goPackage is what `go list -json` tells of a package.
type goPackage struct {
	ImportPath   string
	Name         string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// own is the path below the module, "internal/store/ddl".
func (p goPackage) own() string { return strings.TrimPrefix(p.ImportPath+"/", module) }

func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Name,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var list []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, fault := range faults(p) {
			t.Error(fault)
		}
	}
}

// faults are the breaches of the import rule in one package.
func faults(p goPackage) []string {
	var out []string
	own := strings.TrimSuffix(p.own(), "/")
	blame := func(imported, why string) { out = append(out, own+" imports "+imported+": "+why) }
	name, inside := internalName(own)
	r, ruled := rules[name]
	if inside && !ruled {
		out = append(out, own+": internal/"+name+" is not in the design's layout; give it a rule here and a place there")
		return out
	}
	for _, imported := range p.Imports {
		target, ours := strings.CutPrefix(imported, module)
		switch {
		case !ours:
			if inside && r.modules != nil && !standard(imported) && !hasPrefix(imported, r.modules) {
				blame(imported, "internal/"+name+" imports the standard library only"+besides(r.modules))
			}
			if !within(own, googleSDKUsers) && !isMain(p) && hasPrefix(imported, googleSDK) {
				blame(imported, "Google's clients are for "+strings.Join(googleSDKUsers, ", ")+" and mains")
			}
			continue
		case strings.HasPrefix(target, "services/"), strings.HasPrefix(target, "functions/"):
			blame(target, "services and functions are imported by nobody")
			continue
		}
		targetName, _ := internalName(target)
		switch {
		case targetName == name:
		case localOnly[targetName] != nil:
			if users := localOnly[targetName]; !within(own, users) {
				blame(target, targetName+" is for tests and "+strings.Join(users, ", "))
			}
		case !inside:
		case !slices.Contains(r.ours, targetName):
			blame(target, "internal/"+name+" may import of ours: "+strings.Join(r.ours, ", "))
		}
	}
	return append(out, testFaults(p, own, name)...)
}

// testFaults: tests may import what they need, except a main, and except one story
// from another's.
func testFaults(p goPackage, own, name string) []string {
	stories := []string{"receive", "fanout", "deliver", "maintain", "console"}
	var out []string
	for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
		target, ours := strings.CutPrefix(imported, module)
		if !ours {
			continue
		}
		targetName, inside := internalName(target)
		switch {
		case !inside && !strings.HasPrefix(target, "scripts/") && target != own:
			out = append(out, "a test of "+own+" imports "+target+": services and functions are imported by nobody")
		case slices.Contains(stories, name) && slices.Contains(stories, targetName) && name != targetName:
			out = append(out, "a test of "+own+" imports "+target+": "+strings.Join(stories, ", ")+" never import one another")
		}
	}
	return out
}

// internalName is "store" for internal/store/ddl.
func internalName(own string) (name string, inside bool) {
	rest, inside := strings.CutPrefix(own, "internal/")
	name, _, _ = strings.Cut(rest, "/")
	return name, inside && name != ""
}

func isMain(p goPackage) bool { return p.Name == "main" }

// standard tells the standard library: its paths have no dot in the first element.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

func hasPrefix(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// within is for paths: internal/tasks does not contain internal/tasksomething.
func within(own string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return own == f || strings.HasPrefix(own, f+"/") })
}

func besides(modules []string) string {
	if len(modules) == 0 {
		return ""
	}
	return " and " + strings.Join(modules, ", ")
}

func TestTopLevel(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	ignored := ignoredNames(t)
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || slices.Contains(topLevel, name) || slices.ContainsFunc(ignored, func(pattern string) bool {
			matched, err := path.Match(pattern, name)
			return err == nil && matched
		}) {
			continue
		}
		t.Errorf("%s is not part of the layout; the top level holds only %s", name, strings.Join(topLevel, ", "))
	}
}

// ignoredNames are the patterns of .gitignore that speak of the top level: what
// they match is nobody's work.
func ignoredNames(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../.gitignore")
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for line := range strings.Lines(string(data)) {
		patterns = append(patterns, strings.Trim(strings.TrimSpace(line), "/"))
	}
	return patterns
}

// TestRules holds the checker itself against breaches of each kind.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pkg, imports, want string // want: part of the fault, "" where allowed
	}{
		{"internal/webhook", "time", ""},
		{"internal/webhook", module + "internal/store", "may import of ours"},
		{"internal/webhook", "github.com/google/uuid", "standard library only"},
		{"internal/payload", "github.com/klauspost/compress/zstd", ""},
		{"internal/payload", "golang.org/x/sync/errgroup", "standard library only"},
		{"internal/provider", module + "internal/webhook", ""},
		{"internal/provider", module + "internal/signing", "may import of ours"},
		{"internal/store", module + "internal/webhook", ""},
		{"internal/store", module + "internal/store/ddl", ""},
		{"internal/store", module + "internal/bus", "may import of ours"},
		{"internal/store", "cloud.google.com/go/spanner", ""},
		{"internal/deliver", "cloud.google.com/go/spanner", "Google's clients"},
		{"internal/deliver", module + "internal/safedial", ""},
		{"internal/deliver", module + "internal/receive", "may import of ours"},
		{"internal/receive", module + "internal/localcloud", "localcloud is for"},
		{"internal/util", "time", "not in the design's layout"},
		{"services/worker", module + "internal/fanout", ""},
		{"services/worker", module + "internal/localcloud", "localcloud is for"},
		{"services/worker", module + "services/receiver", "imported by nobody"},
		{"internal/receive", module + "internal/store", "may import of ours"},
		{"services/sealpostman", module + "internal/localcloud", "localcloud is for"},
		{"services/sealpost", module + "internal/localcloud", ""},
		{"services/sealpostman", module + "functions/sweep", "imported by nobody"},
		{"scripts/lib/withemulators", module + "internal/localcloud", ""},
	} {
		got := strings.Join(faults(goPackage{ImportPath: module + c.pkg, Imports: []string{c.imports}}), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s imports %s: %q, want %q", c.pkg, c.imports, got, c.want)
		}
	}
	for name := range maps.Keys(rules) {
		for _, other := range rules[name].ours {
			if _, ok := rules[other]; !ok {
				t.Errorf("the rule of %s names %s, which has none", name, other)
			}
		}
	}
}
