# The services write one wide line per unit of work; these turn lines into metrics.
# Labels are bounded: sources are configured, reasons and classes are constants of
# the code. Endpoints, tenants and event types are no labels: their views read
# Spanner.

locals {
  resources = "resource.type=(\"cloud_run_revision\" OR \"cloud_run_worker_pool\")"

  # Milliseconds from 1 to about half an hour.
  ms = { scale = 1, growth_factor = 1.6, num_finite_buckets = 31 }
  # Milliseconds from 10 to about eleven days.
  age = { scale = 10, growth_factor = 1.7, num_finite_buckets = 35 }

  counters = {
    receiver_requests = {
      description = "Requests of providers, by source, status and reason of refusal."
      filter      = "jsonPayload.service=\"receiver\" AND jsonPayload.scheme:*"
      labels      = { source = "jsonPayload.source", status = "jsonPayload.status", reason = "jsonPayload.reason" }
    }
    worker_events = {
      description = "Messages ingested, by the event's state and whether it was a duplicate; outcome retry comes again."
      filter      = "jsonPayload.service=\"worker\" AND jsonPayload.event=\"ingest\""
      labels      = { state = "jsonPayload.state", duplicate = "jsonPayload.duplicate", outcome = "jsonPayload.outcome" }
    }
    worker_failures = {
      description = "Messages that could not be handled and come again."
      filter      = "jsonPayload.service=\"worker\" AND jsonPayload.event=\"message_failed\""
      labels      = {}
    }
    dead_messages = {
      description = "Messages that can never be handled, by reason."
      filter      = "jsonPayload.service=\"worker\" AND jsonPayload.event=\"dead_message\""
      labels      = { reason = "jsonPayload.reason" }
    }
    attempts = {
      description = "Attempts, by what the endpoint did (class), the attempt's number and what became of the delivery (outcome)."
      filter      = "jsonPayload.service=\"dispatcher\" AND jsonPayload.event=\"attempt\""
      labels      = { class = "jsonPayload.class", attempt = "jsonPayload.attempt", outcome = "jsonPayload.outcome", trigger = "jsonPayload.trigger" }
    }
    task_failures = {
      description = "Tasks that failed by our own fault and run again."
      filter      = "jsonPayload.service=\"dispatcher\" AND jsonPayload.event=\"task_failed\""
      labels      = {}
    }
    faults = {
      description = "Panics, tasks that make no sense, callers refused, by service."
      filter      = "jsonPayload.event=(\"panic\" OR \"bad_task\" OR \"unauthorized\")"
      labels      = { service = "jsonPayload.service", event = "jsonPayload.event" }
    }
  }

  distributions = {
    receiver_ms = {
      description = "How long providers waited for an answer, by source."
      filter      = "jsonPayload.service=\"receiver\" AND jsonPayload.scheme:*"
      value       = "jsonPayload.ms"
      buckets     = local.ms
      labels      = { source = "jsonPayload.source" }
    }
    ingest_age_ms = {
      description = "From an event's receipt to its commit, the first time."
      filter      = "jsonPayload.service=\"worker\" AND jsonPayload.event=\"ingest\" AND jsonPayload.outcome=\"done\" AND jsonPayload.duplicate=false"
      value       = "jsonPayload.age_ms"
      buckets     = local.age
      labels      = {}
    }
    attempt_ms = {
      description = "How long endpoints took, by class."
      filter      = "jsonPayload.service=\"dispatcher\" AND jsonPayload.event=\"attempt\""
      value       = "jsonPayload.ms"
      buckets     = local.ms
      labels      = { class = "jsonPayload.class" }
    }
    delivered_age_ms = {
      description = "From an event's receipt to its delivery."
      filter      = "jsonPayload.service=\"dispatcher\" AND jsonPayload.event=\"attempt\" AND jsonPayload.outcome=\"delivered\""
      value       = "jsonPayload.age_ms"
      buckets     = local.age
      labels      = {}
    }
  }
}

resource "google_logging_metric" "counter" {
  for_each = local.counters

  project     = var.project_id
  name        = "sealpost/${each.key}"
  description = each.value.description
  filter      = "${local.resources} AND ${each.value.filter}"

  label_extractors = { for k, field in each.value.labels : k => "EXTRACT(${field})" }

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
    unit        = "1"
    dynamic "labels" {
      for_each = each.value.labels
      content {
        key        = labels.key
        value_type = "STRING"
      }
    }
  }
}

resource "google_logging_metric" "distribution" {
  for_each = local.distributions

  project     = var.project_id
  name        = "sealpost/${each.key}"
  description = each.value.description
  filter      = "${local.resources} AND ${each.value.filter}"

  value_extractor  = "EXTRACT(${each.value.value})"
  label_extractors = { for k, field in each.value.labels : k => "EXTRACT(${field})" }

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "DISTRIBUTION"
    unit        = "ms"
    dynamic "labels" {
      for_each = each.value.labels
      content {
        key        = labels.key
        value_type = "STRING"
      }
    }
  }

  bucket_options {
    exponential_buckets {
      scale              = each.value.buckets.scale
      growth_factor      = each.value.buckets.growth_factor
      num_finite_buckets = each.value.buckets.num_finite_buckets
    }
  }
}
