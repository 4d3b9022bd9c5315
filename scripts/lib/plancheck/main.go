// Command plancheck reads a plan as `terraform show -json` prints it and refuses,
// with exit code 1, one that destroys or replaces what holds data or what others
// rely on: it stands between plan and apply.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// stateful are the types of resources that a plan may create and update, and
// nothing else.
var stateful = []string{
	"google_spanner_instance", "google_spanner_database",
	"google_pubsub_topic", "google_pubsub_subscription",
	"google_secret_manager_secret", "google_secret_manager_secret_version",
	"google_compute_address", "google_compute_global_address", // customers' allow-lists name them
	"google_storage_bucket", "google_kms_key_ring", "google_kms_crypto_key",
	"google_artifact_registry_repository", "google_bigquery_dataset", "google_bigquery_table",
}

// removable are addresses of such resources that configuration removes on purpose:
// a source that is no longer listed takes its secret or topic along.
var removable = []string{
	"module.pubsub.google_pubsub_topic.direct[", "module.pubsub.google_pubsub_subscription.direct[",
	"module.secrets.google_secret_manager_secret.this[",
}

// plan is what is read of the JSON form.
// https://developer.hashicorp.com/terraform/internals/json-format#plan-representation
type plan struct {
	FormatVersion   string `json:"format_version"`
	ResourceChanges []struct {
		Address string `json:"address"`
		Type    string `json:"type"`
		Change  struct {
			Actions []string `json:"actions"`
		} `json:"change"`
	} `json:"resource_changes"`
}

func main() {
	faults, err := check(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "plancheck:", err)
		os.Exit(2)
	}
	for _, f := range faults {
		fmt.Fprintln(os.Stderr, "plancheck:", f)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}

// check returns what the plan must not do, one line each.
func check(r io.Reader) ([]string, error) {
	var p plan
	if err := json.NewDecoder(r).Decode(&p); err != nil {
		return nil, fmt.Errorf("read a plan: %w", err)
	}
	if p.FormatVersion == "" {
		return nil, fmt.Errorf("read a plan: this is none (terraform show -json PLAN)")
	}
	var faults []string
	for _, c := range p.ResourceChanges {
		if !slices.Contains(stateful, c.Type) || !slices.Contains(c.Change.Actions, "delete") {
			continue
		}
		replaced := slices.Contains(c.Change.Actions, "create")
		switch {
		case replaced:
			faults = append(faults, c.Address+" would be replaced: what it holds would be lost")
		case !slices.ContainsFunc(removable, func(prefix string) bool { return strings.HasPrefix(c.Address, prefix) }):
			faults = append(faults, c.Address+" would be destroyed")
		}
	}
	return faults, nil
}
