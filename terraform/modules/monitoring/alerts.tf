# Alerts are PromQL with metric validation off: a log-based metric is unknown for
# some minutes after it is made, and an alert on it would fail the first apply. Each
# alert has a playbook of its own name, which is its documentation.

locals {
  # Our own metrics as PromQL names them.
  # https://cloud.google.com/monitoring/promql/promql-mapping
  prefix = "logging_googleapis_com:user_sealpost"

  alerts = {
    publish-failures = {
      title    = "Receiver cannot publish"
      severity = "CRITICAL"
      query    = "sum(increase(${local.prefix}_receiver_requests{reason=\"publish_failed\"}[5m])) > 5"
      duration = "0s"
    }
    signature-failures = {
      title    = "Signature failures surge"
      severity = "WARNING"
      query    = "sum by (source) (increase(${local.prefix}_receiver_requests{status=\"401\"}[15m])) > 20 and sum by (source) (increase(${local.prefix}_receiver_requests{status=\"401\"}[15m])) > 0.2 * sum by (source) (increase(${local.prefix}_receiver_requests[15m]))"
      duration = "0s"
    }
    source-errors = {
      title    = "A source gets errors"
      severity = "CRITICAL"
      query    = "sum by (source) (increase(${local.prefix}_receiver_requests{status=~\"4(0[02-9]|1[0-9]|2[0-9])|5..\"}[15m])) > 5 and sum by (source) (increase(${local.prefix}_receiver_requests{status=~\"4(0[02-9]|1[0-9]|2[0-9])|5..\"}[15m])) > 0.005 * sum by (source) (increase(${local.prefix}_receiver_requests[15m]))"
      duration = "0s"
    }
    slow-answers = {
      title    = "Providers wait too long"
      severity = "WARNING"
      query    = "histogram_quantile(0.9, sum by (le, source) (rate(${local.prefix}_receiver_ms_bucket[15m]))) > 2400"
      duration = "300s"
    }
    ingest-lag = {
      title    = "Events wait before they are stored"
      severity = "CRITICAL"
      query    = "max by (subscription_id) (pubsub_googleapis_com:subscription_oldest_unacked_message_age{monitored_resource=\"pubsub_subscription\",subscription_id=~\"sealpost-.*-worker\"}) > 300"
      duration = "300s"
    }
    ingest-failures = {
      title    = "Messages fail and come again"
      severity = "WARNING"
      query    = "sum(increase(${local.prefix}_worker_failures[10m])) > 20"
      duration = "300s"
    }
    dead-messages = {
      title    = "Dead messages"
      severity = "WARNING"
      query    = "sum(increase(${local.prefix}_dead_messages[15m])) > 0"
      duration = "0s"
    }
    dead-letters = {
      title    = "Dead letters wait"
      severity = "CRITICAL"
      query    = "max by (subscription_id) (pubsub_googleapis_com:subscription_num_undelivered_messages{monitored_resource=\"pubsub_subscription\",subscription_id=~\"sealpost-.*-dead-letter\"}) > 0"
      duration = "300s"
    }
    first-attempts = {
      title    = "First attempts fail"
      severity = "CRITICAL"
      query    = "sum(rate(${local.prefix}_attempts{attempt=\"1\"}[30m])) * 1800 > 50 and sum(rate(${local.prefix}_attempts{attempt=\"1\",class=\"ok\"}[30m])) < 0.9 * sum(rate(${local.prefix}_attempts{attempt=\"1\"}[30m]))"
      duration = "300s"
    }
    deliveries-dead = {
      title    = "Deliveries gave up"
      severity = "WARNING"
      query    = "sum(increase(${local.prefix}_attempts{outcome=\"dead\"}[1h])) > 0"
      duration = "0s"
    }
    slow-delivery = {
      title    = "Deliveries take long"
      severity = "WARNING"
      query    = "histogram_quantile(0.5, sum by (le) (rate(${local.prefix}_delivered_age_ms_bucket[30m]))) > 60000"
      duration = "900s"
    }
    task-failures = {
      title    = "Dispatcher fails by its own fault"
      severity = "CRITICAL"
      query    = "sum(increase(${local.prefix}_task_failures[10m])) > 20"
      duration = "300s"
    }
    dials-blocked = {
      title    = "Endpoints that may not be dialled"
      severity = "WARNING"
      query    = "sum(increase(${local.prefix}_attempts{class=\"blocked\"}[1h])) > 20"
      duration = "0s"
    }
    faults = {
      title    = "Panic or refused caller"
      severity = "CRITICAL"
      query    = "sum by (service, event) (increase(${local.prefix}_faults[10m])) > 0"
      duration = "0s"
    }
    nat-ports = {
      title    = "NAT drops packets"
      severity = "CRITICAL"
      query    = "sum by (gateway_name, reason) (increase(router_googleapis_com:nat_dropped_sent_packets_count{monitored_resource=\"nat_gateway\",gateway_name=\"${var.nat_gateway}\"}[10m])) > 0"
      duration = "300s"
    }
    spanner-cpu = {
      title    = "Spanner runs hot"
      severity = "WARNING"
      query    = "max by (instance_id) (sum by (instance_id, database, location) (spanner_googleapis_com:instance_cpu_utilization_by_priority{monitored_resource=\"spanner_instance\",instance_id=\"${var.spanner_instance}\",priority=\"high\"})) > 0.65"
      duration = "600s"
    }
    queue-depth = {
      title    = "A queue grows"
      severity = "WARNING"
      query    = "max by (queue_id) (cloudtasks_googleapis_com:queue_depth{monitored_resource=\"cloud_tasks_queue\",queue_id=~\"sealpost-(pool|control).*\"}) > 10000"
      duration = "1800s"
    }
  }
}

resource "google_monitoring_notification_channel" "email" {
  for_each = var.emails

  project      = var.project_id
  type         = "email"
  display_name = "Sealpost: ${each.key}"
  labels       = { email_address = each.key }
  user_labels  = var.labels
}

resource "google_monitoring_alert_policy" "this" {
  for_each = local.alerts

  project               = var.project_id
  display_name          = "Sealpost: ${each.value.title}"
  combiner              = "OR"
  severity              = each.value.severity
  user_labels           = var.labels
  notification_channels = concat(sort(var.notification_channels), [for c in google_monitoring_notification_channel.email : c.id])

  conditions {
    display_name = each.value.title
    condition_prometheus_query_language {
      query                     = each.value.query
      duration                  = each.value.duration
      evaluation_interval       = "60s"
      disable_metric_validation = true
    }
  }

  documentation {
    subject   = "Sealpost: ${each.value.title}"
    mime_type = "text/markdown"
    content   = replace(replace(file("${path.module}/playbooks/${each.key}.md"), "PROJECT", var.project_id), "REGION", var.region)
  }

  alert_strategy {
    auto_close = "86400s"
  }

  depends_on = [google_logging_metric.counter, google_logging_metric.distribution]
}
