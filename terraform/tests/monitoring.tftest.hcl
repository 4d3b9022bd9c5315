# Metrics, alerts and the dashboard.

mock_provider "google" {}

variables {
  project_id       = "my-project"
  region           = "europe-west1"
  spanner_instance = "sealpost"
  nat_gateway      = "sealpost"
  emails           = ["oncall@example.com"]
}

run "planned" {
  command = plan
  module {
    source = "./modules/monitoring"
  }
  assert {
    condition     = alltrue([for a in values(google_monitoring_alert_policy.this) : one(one(a.conditions).condition_prometheus_query_language).disable_metric_validation])
    error_message = "A log-based metric is unknown when its alert is first made: validation must be off."
  }
  assert {
    condition     = alltrue([for a in values(google_monitoring_alert_policy.this) : strcontains(one(a.documentation).content, "## First checks") && !strcontains(one(a.documentation).content, "PROJECT")])
    error_message = "Each alert says what to do first."
  }
  assert {
    condition     = toset([for f in fileset("./modules/monitoring/playbooks", "*.md") : trimsuffix(f, ".md")]) == toset(keys(google_monitoring_alert_policy.this))
    error_message = "Alerts and playbooks differ."
  }
  # Which labels a metric has is its price: none grows with customers.
  assert {
    condition     = alltrue(flatten([for m in concat(values(google_logging_metric.counter), values(google_logging_metric.distribution)) : [for l in keys(coalesce(m.label_extractors, {})) : !contains(["endpoint", "tenant", "event_type", "type", "event_id"], l)]]))
    error_message = "A label that grows without bound."
  }
  assert {
    condition     = alltrue([for a in values(local.alerts) : alltrue([for m in regexall("logging_googleapis_com:user_sealpost_([a-z0-9_]+?)(?:_bucket)?[{\\[]", a.query) : contains(concat(keys(local.counters), keys(local.distributions)), m[0])])])
    error_message = "An alert asks for a metric that nobody makes."
  }
  assert {
    condition     = alltrue([for c in values(local.chart) : alltrue([for m in regexall("logging_googleapis_com:user_sealpost_([a-z0-9_]+?)(?:_bucket)?[{\\[]", c.query) : contains(concat(keys(local.counters), keys(local.distributions)), m[0])])])
    error_message = "A chart asks for a metric that nobody makes."
  }
  # The API leaves out zero positions: written here, they would show as a change for ever.
  assert {
    condition     = !can(regex("\"[xy]Pos\":0[,}]", google_monitoring_dashboard.overview.dashboard_json)) && !strcontains(google_monitoring_dashboard.overview.dashboard_json, "null")
    error_message = "The dashboard is not in the form that the API gives back."
  }
  assert {
    condition     = google_monitoring_notification_channel.email["oncall@example.com"].labels["email_address"] == "oncall@example.com"
    error_message = "The address gets a channel."
  }
}

run "channel_by_number" {
  command = plan
  module {
    source = "./modules/monitoring"
  }
  variables {
    notification_channels = ["123"]
  }
  expect_failures = [var.notification_channels]
}
