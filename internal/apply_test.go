//go:build terraform && standin

package internal_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Where the provider is a stand-in that applies into nothing, whole installations are
// applied, to see that a second plan has nothing to do, and what a change would do.
// It tells what Terraform and this configuration do, not what Google's API gives back.
func TestApply(t *testing.T) {
	t.Parallel()
	for _, env := range []string{"minimal", "production"} {
		t.Run(env, func(t *testing.T) {
			t.Parallel()
			w, err := newWorkspace(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.run(append([]string{"apply", "-auto-approve"}, arguments(env)...)...); err != nil {
				t.Fatal(err)
			}
			t.Run("again", func(t *testing.T) {
				_, err := w.run(append([]string{"plan", "-detailed-exitcode"}, arguments(env)...)...)
				var exit *exec.ExitError
				if errors.As(err, &exit) && exit.ExitCode() == 2 {
					t.Errorf("a second plan has something to do: %v", err)
				} else if err != nil {
					t.Error(err)
				}
			})
			for _, c := range []struct {
				name string
				args []string
				want map[string]string // address or its end → actions; nothing else may change
			}{
				{"an address more", []string{`-var=network={"subnet_cidr":"10.80.0.0/23","nat_addresses":3}`}, map[string]string{
					`google_compute_address.nat["3"]`: "create", "google_compute_router_nat.this": "update", "google_compute_subnetwork.egress": "update",
				}},
				{"another image", []string{"-var=image=" + strings.ReplaceAll(testImage, "0000", "1111")}, map[string]string{
					"google_cloud_run_v2_service.this[0]": "update",
				}},
				{"a source gone", []string{"-var=sources={}"}, map[string]string{
					"google_cloud_run_v2_service.this[0]": "update", "google_secret_manager_secret_iam_member.this[": "delete", "google_secret_manager_secret.this[": "delete",
					"google_compute_security_policy_rule.": "delete",
				}},
				{"more attempts", []string{`-var=pubsub={"max_delivery_attempts":50}`}, map[string]string{"google_pubsub_subscription.": "update"}},
			} {
				t.Run(c.name, func(t *testing.T) { checkChange(t, w, env, c.args, c.want) })
			}
		})
	}
}

func checkChange(t *testing.T, w workspace, env string, args []string, want map[string]string) {
	t.Helper()
	if env == "production" && slices.Contains(args, "-var=sources={}") {
		args = append(args, `-var=front_door={"domains":["hooks.example.com"]}`)
	}
	p, err := w.plan(env, args...)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, r := range p.Changes {
		actions := strings.Join(r.Change.Actions, ",")
		if actions == "no-op" || r.Type == "terraform_data" {
			continue
		}
		changed++
		expected := false
		for address, action := range want {
			expected = expected || strings.Contains(r.Address, address) && actions == action
		}
		if !expected {
			t.Errorf("%s: %s", r.Address, actions)
		}
	}
	if changed == 0 {
		t.Error("nothing changes")
	}
	// Neither does plancheck object.
	cmd := exec.CommandContext(t.Context(), "go", "run", "./scripts/lib/plancheck")
	cmd.Dir = ".."
	cmd.Stdin = strings.NewReader(p.text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("plancheck: %v\n%s", err, out)
	}
}

// A schema with one statement more is an update in place; an edited one is refused.
func TestApplySchema(t *testing.T) {
	t.Parallel()
	w, err := newWorkspace(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.run(append([]string{"apply", "-auto-approve"}, arguments("minimal")...)...); err != nil {
		t.Fatal(err)
	}
	ddl := w.dir + "/../internal/store/ddl/"
	write(t, ddl+"9999_more.sql", "ALTER TABLE Events ADD COLUMN More STRING(MAX);\n")
	p, err := w.plan("minimal")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range p.Changes {
		actions := strings.Join(r.Change.Actions, ",")
		switch {
		case r.Type == "google_spanner_database" && actions != "update":
			t.Errorf("appending a statement: %s", actions)
		case r.Type != "google_spanner_database" && actions != "no-op":
			t.Errorf("%s: %s", r.Address, actions)
		}
	}
	var first []string
	for _, r := range p.of("google_spanner_database") {
		js, err := json.Marshal(r.at("ddl"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(js, &first); err != nil {
			t.Fatal(err)
		}
	}
	if len(first) == 0 || !strings.Contains(first[len(first)-1], "ADD COLUMN More") {
		t.Fatal("the appended statement is not the last one")
	}
	old := readFile(t, ddl+"0001_events.sql")
	write(t, ddl+"0001_events.sql", strings.Replace(old, "Tenant STRING(63) NOT NULL,", "Tenant STRING(64) NOT NULL,", 1))
	if _, err := w.plan("minimal"); err == nil || !strings.Contains(err.Error(), "landed statement") {
		t.Errorf("an edited statement is planned: %v", err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
