# Topics and subscriptions, from the topology file that the local cloud uses too.
# What keeps messages safe is not left to defaults: no subscription expires, none
# but those of dead letters is without a dead letter, and each dead letter has a
# subscription, since a topic without one drops what is published to it.

locals {
  topics        = var.topology.topics
  subscriptions = var.topology.subscriptions

  # Of the direct sources: providers that publish to a topic of this project themselves.
  direct = { for id, s in var.direct_sources : "sealpost-direct-${id}" => merge(s, { id = id }) }

  main = { for name, s in local.subscriptions : name => s if s.dead_letter != null }
  dead = { for name, s in local.subscriptions : name => s if s.dead_letter == null }

  # The agent forwards dead letters: it publishes to their topic and acknowledges the original.
  agent = "serviceAccount:service-${var.project_number}@gcp-sa-pubsub.iam.gserviceaccount.com"

  archived    = var.archive == null ? toset([]) : toset(["sealpost-events", "sealpost-inbound"])
  dead_topics = toset([for s in values(local.main) : s.dead_letter.topic])
}

resource "google_pubsub_schema" "events" {
  count = var.events_schema == null ? 0 : 1

  project    = var.project_id
  name       = "sealpost-events"
  type       = var.events_schema.type
  definition = var.events_schema.definition
}

resource "google_pubsub_topic" "this" {
  for_each = local.topics

  project                    = var.project_id
  name                       = each.key
  labels                     = var.labels
  message_retention_duration = contains(local.dead_topics, each.key) ? null : "${var.topic_retention_days * 86400}s"
  kms_key_name               = var.kms_key

  dynamic "message_storage_policy" {
    for_each = length(var.storage_regions) == 0 ? [] : [var.storage_regions]
    content {
      allowed_persistence_regions = message_storage_policy.value
    }
  }

  dynamic "schema_settings" {
    for_each = each.key == "sealpost-events" ? google_pubsub_schema.events : []
    content {
      schema   = schema_settings.value.id
      encoding = "JSON"
    }
  }

  lifecycle {
    prevent_destroy = true
  }
}

resource "google_pubsub_subscription" "this" {
  for_each = local.subscriptions

  project                    = var.project_id
  name                       = each.key
  topic                      = google_pubsub_topic.this[each.value.topic].id
  labels                     = var.labels
  ack_deadline_seconds       = each.value.ack_deadline_seconds
  message_retention_duration = "${var.emulator ? min(each.value.retention_seconds, 604800) : each.value.retention_seconds}s" # the emulator takes 7 days at most
  enable_message_ordering    = false

  expiration_policy {
    ttl = "" # never
  }

  retry_policy {
    minimum_backoff = "${each.value.retry.minimum_backoff_seconds}s"
    maximum_backoff = "${each.value.retry.maximum_backoff_seconds}s"
  }

  dynamic "dead_letter_policy" {
    for_each = each.value.dead_letter == null ? [] : [each.value.dead_letter]
    content {
      dead_letter_topic     = google_pubsub_topic.this[dead_letter_policy.value.topic].id
      max_delivery_attempts = coalesce(var.max_delivery_attempts, dead_letter_policy.value.max_delivery_attempts)
    }
  }

  dynamic "push_config" {
    for_each = each.value.push == null || var.push == null ? [] : [each.value.push]
    content {
      push_endpoint = "${var.push.url}${push_config.value.path}"
      dynamic "oidc_token" {
        for_each = var.push.service_account == null ? [] : [var.push]
        content {
          service_account_email = oidc_token.value.service_account
          audience              = oidc_token.value.url
        }
      }
    }
  }

  lifecycle {
    prevent_destroy = true

    precondition {
      condition     = each.value.dead_letter == null || try(each.value.dead_letter.max_delivery_attempts >= 5 && each.value.dead_letter.max_delivery_attempts <= 100, false)
      error_message = "Subscription ${each.key}: max_delivery_attempts must be from 5 to 100, as Pub/Sub has it."
    }
    precondition {
      condition     = each.value.dead_letter == null || length([for s in values(local.dead) : s if try(s.topic == each.value.dead_letter.topic, false)]) > 0
      error_message = "Subscription ${each.key}: its dead-letter topic has no subscription, so dead letters would be lost."
    }
  }
}

# Direct sources come and go with the configuration, so nothing prevents that.
resource "google_pubsub_topic" "direct" {
  for_each = local.direct

  project                    = var.project_id
  name                       = each.key
  labels                     = var.labels
  message_retention_duration = "${var.topic_retention_days * 86400}s"
}

resource "google_pubsub_subscription" "direct" {
  for_each = local.direct

  project                    = var.project_id
  name                       = "${each.key}-worker"
  topic                      = google_pubsub_topic.direct[each.key].id
  labels                     = var.labels
  ack_deadline_seconds       = 600
  message_retention_duration = "604800s"
  enable_message_ordering    = false

  expiration_policy {
    ttl = ""
  }

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.this["sealpost-inbound-dead"].id
    max_delivery_attempts = coalesce(var.max_delivery_attempts, 100)
  }

  dynamic "push_config" {
    for_each = var.push == null ? [] : [var.push]
    content {
      push_endpoint = "${var.push.url}/push/direct/${each.value.id}"
      dynamic "oidc_token" {
        for_each = var.push.service_account == null ? [] : [var.push]
        content {
          service_account_email = oidc_token.value.service_account
          audience              = oidc_token.value.url
        }
      }
    }
  }
}

# Who may publish to a direct source's topic is all that its authenticity rests on.
resource "google_pubsub_topic_iam_member" "direct_publisher" {
  for_each = { for name, s in local.direct : name => s if s.publisher != null && !var.emulator }

  project = var.project_id
  topic   = google_pubsub_topic.direct[each.key].name
  role    = "roles/pubsub.publisher"
  member  = each.value.publisher
}

# The agent's rights come after a topic, which makes sure that the agent exists.
resource "google_pubsub_topic_iam_member" "agent" {
  for_each = var.emulator ? [] : local.dead_topics

  project = var.project_id
  topic   = google_pubsub_topic.this[each.key].name
  role    = "roles/pubsub.publisher"
  member  = local.agent
}

resource "google_pubsub_subscription_iam_member" "agent" {
  for_each = var.emulator ? {} : merge(
    { for name, s in local.main : name => google_pubsub_subscription.this[name].name },
    { for name, s in local.direct : "${name}-worker" => google_pubsub_subscription.direct[name].name },
  )

  project      = var.project_id
  subscription = each.value
  role         = "roles/pubsub.subscriber"
  member       = local.agent
}

# The agent makes the tokens that pushes carry.
resource "google_service_account_iam_member" "agent" {
  count = try(var.push.service_account, null) == null || var.emulator ? 0 : 1

  service_account_id = "projects/${var.project_id}/serviceAccounts/${var.push.service_account}"
  role               = "roles/iam.serviceAccountOpenIdTokenCreator"
  member             = local.agent

  depends_on = [google_pubsub_topic.this]
}

resource "google_pubsub_topic_iam_member" "publisher" {
  for_each = var.emulator ? toset([]) : var.event_publishers

  project = var.project_id
  topic   = google_pubsub_topic.this["sealpost-events"].name
  role    = "roles/pubsub.publisher"
  member  = each.key
}

# Every message of both topics, raw, in BigQuery. What cannot be written there is
# kept apart: it is no dead letter of the product.
resource "google_pubsub_subscription" "archive" {
  for_each = local.archived

  project                    = var.project_id
  name                       = "${each.key}-archive"
  topic                      = google_pubsub_topic.this[each.key].id
  labels                     = var.labels
  message_retention_duration = "604800s"

  expiration_policy {
    ttl = ""
  }

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.archive_dead[0].id
    max_delivery_attempts = 100
  }

  bigquery_config {
    table          = "${var.project_id}.${var.archive.dataset}.${var.archive.table}"
    write_metadata = true
  }

  depends_on = [google_bigquery_table_iam_member.agent]
}

resource "google_bigquery_table_iam_member" "agent" {
  count = var.archive == null ? 0 : 1

  project    = var.project_id
  dataset_id = var.archive.dataset
  table_id   = var.archive.table
  role       = "roles/bigquery.dataEditor"
  member     = local.agent

  depends_on = [google_pubsub_topic.this]
}

resource "google_pubsub_topic" "archive_dead" {
  count = var.archive == null ? 0 : 1

  project = var.project_id
  name    = "sealpost-archive-dead"
  labels  = var.labels
}

resource "google_pubsub_subscription" "archive_dead" {
  count = var.archive == null ? 0 : 1

  project                    = var.project_id
  name                       = "sealpost-archive-dead-letter"
  topic                      = google_pubsub_topic.archive_dead[0].id
  labels                     = var.labels
  message_retention_duration = "2678400s"

  expiration_policy {
    ttl = ""
  }
}

resource "google_pubsub_topic_iam_member" "archive_agent" {
  count = var.archive == null ? 0 : 1

  project = var.project_id
  topic   = google_pubsub_topic.archive_dead[0].name
  role    = "roles/pubsub.publisher"
  member  = local.agent
}

resource "google_pubsub_subscription_iam_member" "archive_agent" {
  for_each = local.archived

  project      = var.project_id
  subscription = google_pubsub_subscription.archive[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = local.agent
}
