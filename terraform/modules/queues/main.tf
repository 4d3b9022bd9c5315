# Cloud Tasks queues: control and pools from the topology file, and one for each
# endpoint that is declared here. Queues of endpoints added at run time are the
# product's own and not in this state.
#
# A deleted queue's name stays unusable for days, so no name is ever used twice:
# each ends in the time at which it was first planned, which is kept for as long
# as the queue stays. The code is told the names.

locals {
  shared = { for name, q in var.topology.queues : name => {
    role          = q.role
    rate          = q.max_dispatches_per_second
    concurrency   = q.max_concurrent_dispatches
    max_attempts  = q.max_attempts
    min_backoff   = q.min_backoff_seconds
    max_backoff   = q.max_backoff_seconds
    max_doublings = q.max_doublings
    replaced_with = var.generation
    endpoint      = null
  } }
  own = { for id, e in var.endpoints : "sealpost-ep-${replace(id, "_", "-")}" => {
    role          = "endpoint"
    rate          = e.rate_per_second
    concurrency   = e.max_concurrency
    max_attempts  = -1
    min_backoff   = 5
    max_backoff   = 300
    max_doublings = 6
    replaced_with = var.generation
    endpoint      = id
  } }
  queues = merge(local.shared, local.own)
}

resource "terraform_data" "generation" {
  for_each = local.queues

  input            = formatdate("YYMMDDhhmmss", plantimestamp())
  triggers_replace = [each.value.replaced_with, var.location]

  lifecycle {
    ignore_changes = [input]
  }
}

resource "google_cloud_tasks_queue" "this" {
  for_each = local.queues

  project  = var.project_id
  location = var.location
  name     = "${each.key}-${terraform_data.generation[each.key].input}"

  rate_limits {
    max_dispatches_per_second = each.value.rate
    max_concurrent_dispatches = each.value.concurrency
  }

  # Spanner decides when to give up; a run that failed by our fault comes again.
  retry_config {
    max_attempts  = each.value.max_attempts
    min_backoff   = "${each.value.min_backoff}s"
    max_backoff   = "${each.value.max_backoff}s"
    max_doublings = each.value.max_doublings
  }

  dynamic "stackdriver_logging_config" {
    for_each = var.log_sampling == 0 ? [] : [var.log_sampling]
    content {
      sampling_ratio = stackdriver_logging_config.value
    }
  }

  lifecycle {
    precondition {
      condition     = length(each.key) + 13 <= 100
      error_message = "Queue ${each.key} would have a name of more than 100 characters."
    }
  }
}
