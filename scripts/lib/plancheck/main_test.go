package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address, kind, actions string
		want                   string // part of the fault, "" where the plan passes
	}{
		{"module.spanner.google_spanner_database.this", "google_spanner_database", `"update"`, ""},
		{"module.spanner.google_spanner_database.this", "google_spanner_database", `"create"`, ""},
		{"module.spanner.google_spanner_database.this", "google_spanner_database", `"no-op"`, ""},
		{"module.spanner.google_spanner_database.this", "google_spanner_database", `"delete","create"`, "replaced"},
		{"module.spanner.google_spanner_database.this", "google_spanner_database", `"create","delete"`, "replaced"},
		{"module.spanner.google_spanner_instance.this", "google_spanner_instance", `"delete"`, "destroyed"},
		{`module.network.google_compute_address.nat["2"]`, "google_compute_address", `"delete"`, "destroyed"},
		{`module.pubsub.google_pubsub_subscription.this["sealpost-inbound-worker"]`, "google_pubsub_subscription", `"delete","create"`, "replaced"},
		{`module.pubsub.google_pubsub_topic.direct["sealpost-direct-shop"]`, "google_pubsub_topic", `"delete"`, ""},
		{`module.pubsub.google_pubsub_topic.direct["sealpost-direct-shop"]`, "google_pubsub_topic", `"delete","create"`, "replaced"},
		{`module.secrets.google_secret_manager_secret.this["sealpost-source-x"]`, "google_secret_manager_secret", `"delete"`, ""},
		{"google_kms_crypto_key.k", "google_kms_crypto_key", `"delete"`, "destroyed"},
		{"google_storage_bucket.b", "google_storage_bucket", `"delete","create"`, "replaced"},
		{"module.receiver.google_cloud_run_v2_service.this[0]", "google_cloud_run_v2_service", `"delete","create"`, ""},
	} {
		in := fmt.Sprintf(`{"format_version":"1.2","resource_changes":[{"address":%q,"type":%q,"change":{"actions":[%s]}}]}`, c.address, c.kind, c.actions)
		faults, err := check(strings.NewReader(in))
		got := strings.Join(faults, "; ")
		if err != nil || (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %q, %v, want %q", c.address, c.actions, got, err, c.want)
		}
	}
	for _, in := range []string{"", "{}", "[]", "no JSON"} {
		if _, err := check(strings.NewReader(in)); err == nil {
			t.Errorf("%q is taken for a plan", in)
		}
	}
}
