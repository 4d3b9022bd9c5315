package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// env is a complete environment with changes: "NAME=value" sets, "NAME=" unsets.
func env(changes ...string) func(string) string {
	vars := map[string]string{
		"GOOGLE_CLOUD_PROJECT": "p", "SPANNER_DATABASE": "projects/p/instances/i/databases/d", "DISPATCHER_URL": "https://dispatcher", "INVOKER": "tasks@p.iam",
		"POOL_QUEUES": "pool-0,pool-1", "KEYSET_SECRET": "keyset", "KEYSET_VERSIONS": "1,2", "AUTH": "iam", "AUDIENCE": "https://dispatcher",
	}
	for _, c := range changes {
		name, value, _ := strings.Cut(c, "=")
		vars[name] = value
	}
	return func(name string) string { return vars[name] }
}

func TestLoad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		env  []string
		bad  []string // parts of the error; none: accepted
	}{
		{"complete", nil, nil},
		{"nothing", []string{"GOOGLE_CLOUD_PROJECT=", "SPANNER_DATABASE=", "DISPATCHER_URL=", "INVOKER=", "POOL_QUEUES=", "KEYSET_SECRET=", "KEYSET_VERSIONS=", "AUTH=", "AUDIENCE="},
			[]string{"GOOGLE_CLOUD_PROJECT", "SPANNER_DATABASE", "DISPATCHER_URL", "INVOKER", "POOL_QUEUES", "KEYSET_SECRET", "KEYSET_VERSIONS", "AUTH", "AUDIENCE", "CALLERS"}},
		{"latest is no number", []string{"KEYSET_VERSIONS=latest"}, []string{"KEYSET_VERSIONS", "latest"}},
		{"version zero", []string{"KEYSET_VERSIONS=1,0"}, []string{"KEYSET_VERSIONS"}},
		{"rows kept too short", []string{"ROW_RETENTION=744h"}, []string{"ROW_RETENTION"}},
		{"rows kept just long enough", []string{"ROW_RETENTION=745h"}, nil},
		{"payloads longer than rows", []string{"PAYLOAD_RETENTION=2000h"}, []string{"PAYLOAD_RETENTION"}},
		{"not a time", []string{"ROW_RETENTION=45d"}, []string{"ROW_RETENTION"}},
		{"dev in earnest", []string{"EGRESS_POLICY=dev"}, []string{"EGRESS_POLICY"}},
		{"dev beside an emulator", []string{"EGRESS_POLICY=dev", "SPANNER_EMULATOR_HOST=h:1"}, nil},
		{"other policy", []string{"EGRESS_POLICY=open"}, []string{"EGRESS_POLICY"}},
		{"ports", []string{"EGRESS_PORTS=443, 9443"}, nil},
		{"bad port", []string{"EGRESS_PORTS=0"}, []string{"EGRESS_PORTS"}},
		{"bad prefix", []string{"EGRESS_ALLOW_PREFIXES=10.0.0.0"}, []string{"EGRESS_ALLOW_PREFIXES"}},
		{"probe", []string{"EGRESS_PROBE_URL=https://probe.example.com/"}, nil},
		{"probe that may not be dialled", []string{"EGRESS_PROBE_URL=http://10.0.0.1/"}, []string{"EGRESS_PROBE_URL"}},
		{"proxy", []string{"EGRESS_PROXY=http://user:s3cret@10.0.0.5:4750"}, nil},
		{"proxy without a port", []string{"EGRESS_PROXY=http://proxy"}, []string{"EGRESS_PROXY"}},
		{"topics", []string{"DESTINATION_TOPICS=billing, team-*"}, nil},
		{"a topic of ours", []string{"DESTINATION_TOPICS=sealpost-events"}, []string{"DESTINATION_TOPICS"}},
		{"console", []string{"CONSOLE_URL=https://console.example.com/"}, nil},
		{"console with a query", []string{"CONSOLE_URL=https://console.example.com/?a=b"}, []string{"CONSOLE_URL"}},
		{"no check of callers in earnest", []string{"AUTH=none"}, []string{"AUTH=none"}},
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
		if err == nil && (len(cfg.KeysetVersions) != 2 || cfg.auth.Emails[0] != "tasks@p.iam") {
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
	names := regexp.MustCompile(`e\.(?:Text|Needed|List|Numbers|Number|Duration)\("([A-Z_]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(names) < 10 {
		t.Fatalf("only %d settings are found in the source", len(names))
	}
	for _, name := range names {
		if !strings.Contains(environment, "\n  "+name[1]+" ") {
			t.Errorf("the help does not name %s", name[1])
		}
	}
}
