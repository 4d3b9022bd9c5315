package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// env is a complete environment with changes: "NAME=value" sets, "NAME=" unsets.
func env(changes ...string) func(string) string {
	vars := map[string]string{
		"GOOGLE_CLOUD_PROJECT": "p", "SPANNER_DATABASE": "projects/p/instances/i/databases/d", "DISPATCHER_URL": "https://dispatcher", "INVOKER": "tasks@p.iam",
		"POOL_QUEUES": "pool-0,pool-1", "AUTH": "iam", "AUDIENCE": "https://worker", "PUSH_INVOKER": "push@p.iam",
	}
	for _, c := range changes {
		name, value, _ := strings.Cut(c, "=")
		vars[name] = value
	}
	return func(name string) string { return vars[name] }
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "schemas.json")
	if err := os.WriteFile(file, []byte(`[{"type":"a.b","schema":{"type":"object"}}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		env  []string
		bad  []string // parts of the error; none: accepted
	}{
		{"complete", nil, nil},
		{"nothing", []string{"GOOGLE_CLOUD_PROJECT=", "SPANNER_DATABASE=", "DISPATCHER_URL=", "INVOKER=", "POOL_QUEUES=", "AUTH=", "AUDIENCE=", "PUSH_INVOKER="},
			[]string{"GOOGLE_CLOUD_PROJECT", "SPANNER_DATABASE", "DISPATCHER_URL", "INVOKER", "POOL_QUEUES", "AUTH", "AUDIENCE", "PUSH_INVOKER"}},
		{"pull needs no callers", []string{"MODE=pull", "AUTH=", "AUDIENCE=", "PUSH_INVOKER="}, nil},
		{"pull, one subscription", []string{"MODE=pull", "INBOUND_SUBSCRIPTION=s", "EVENTS_SUBSCRIPTION=s"}, []string{"INBOUND_SUBSCRIPTION"}},
		{"direct sources", []string{`DIRECT_SOURCES=[{"id":"shop","format":"shopify"}]`}, nil},
		{"direct sources, wrong", []string{`DIRECT_SOURCES=[{"id":"shop","format":"xml"}]`}, []string{"DIRECT_SOURCES", "shop", "xml"}},
		{"direct sources, pulled", []string{"MODE=pull", `DIRECT_SOURCES=[{"id":"shop","format":"shopify","subscription":"s"}]`}, nil},
		{"direct sources, pulled from nowhere", []string{"MODE=pull", `DIRECT_SOURCES=[{"id":"shop","format":"shopify"}]`}, []string{"DIRECT_SOURCES", "direct/shop has no subscription"}},
		{"direct sources, pulled from another's", []string{"MODE=pull", "EVENTS_SUBSCRIPTION=s", `DIRECT_SOURCES=[{"id":"shop","format":"shopify","subscription":"s"}]`}, []string{"DIRECT_SOURCES", "s is the subscription of events and of direct/shop"}},
		{"other mode", []string{"MODE=poll"}, []string{"MODE"}},
		{"no check of callers in earnest", []string{"AUTH=none"}, []string{"AUTH=none"}},
		{"no check of callers beside an emulator", []string{"AUTH=none", "PUBSUB_EMULATOR_HOST=h:1"}, nil},
		{"schemas", []string{`EVENT_SCHEMAS=[{"type":"a.b","schema":true}]`}, nil},
		{"bad schemas", []string{`EVENT_SCHEMAS=[{"type":"a*","schema":true}]`}, []string{"EVENT_SCHEMAS", "a*"}},
		{"schemas from a file", []string{"EVENT_SCHEMAS_FILE=" + file}, nil},
		{"absent file", []string{"EVENT_SCHEMAS_FILE=" + file + "x"}, []string{"EVENT_SCHEMAS_FILE"}},
		{"schemas twice", []string{"EVENT_SCHEMAS=[]", "EVENT_SCHEMAS_FILE=" + file}, []string{"both"}},
		{"bounds, lower", []string{"PULL_STREAMS=0", "PULL_MESSAGES=0", "COMMIT_EVENTS=0", "COMMIT_CONCURRENCY=0", "TASK_CONCURRENCY=0"}, []string{"PULL_STREAMS", "PULL_MESSAGES", "COMMIT_EVENTS", "COMMIT_CONCURRENCY", "TASK_CONCURRENCY"}},
		{"bounds, at", []string{"PULL_STREAMS=32", "PULL_MESSAGES=10000", "COMMIT_EVENTS=200", "COMMIT_CONCURRENCY=32", "TASK_CONCURRENCY=1000"}, nil},
		{"bounds, above", []string{"PULL_STREAMS=33", "COMMIT_EVENTS=201"}, []string{"PULL_STREAMS", "COMMIT_EVENTS"}},
		{"not a number", []string{"COMMIT_EVENTS=many"}, []string{"many"}},
		{"rows kept too short", []string{"ROW_RETENTION=24h"}, []string{"ROW_RETENTION"}},
	} {
		cfg, err := load(env(c.env...))
		if (err == nil) != (c.bad == nil) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, part := range c.bad {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %s", c.name, err, part)
			}
		}
		if err == nil && (cfg.Project != "p" || cfg.tasks.Location == "" || len(cfg.tasks.Pools) != 2) {
			t.Errorf("%s: %+v", c.name, cfg)
		}
	}
}

// The help names every setting.
func TestHelp(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("config.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`e\.(?:Text|Needed|List|Number|Duration|TextOrFile)\("([A-Z_]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(names) < 15 {
		t.Fatalf("only %d settings are found in the source", len(names))
	}
	for _, name := range names {
		if !strings.Contains(environment, "\n  "+name[1]+" ") {
			t.Errorf("the help does not name %s", name[1])
		}
	}
}
