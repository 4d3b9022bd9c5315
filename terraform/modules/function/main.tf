# A function of the product: a service of the same image whose binary takes one
# CloudEvent per request, and what triggers it: Cloud Scheduler, a Pub/Sub
# subscription that the topology already has, or Eventarc.

module "service" {
  source = "../service"

  name                 = var.name
  description          = var.description
  project_id           = var.project_id
  project_number       = var.project_number
  region               = var.region
  image                = var.image
  command              = ["/function-${var.name}"]
  env                  = merge({ GOOGLE_CLOUD_PROJECT = var.project_id }, var.env)
  roles                = var.roles
  vpc                  = var.vpc
  invokers             = merge({ trigger = "serviceAccount:${local.trigger}" }, var.invokers)
  min_instances        = 0
  max_instances        = var.max_instances
  concurrency          = var.concurrency
  memory               = var.memory
  timeout_seconds      = var.timeout_seconds
  binary_authorization = var.binary_authorization
  labels               = var.labels
}

locals {
  account_id = "sealpost-${var.name}-call"
  trigger    = "${local.account_id}@${var.project_id}.iam.gserviceaccount.com"
}

# Whose name the trigger's calls carry. It may call this function and nothing else.
resource "google_service_account" "trigger" {
  project      = var.project_id
  account_id   = local.account_id
  display_name = "Sealpost calls of ${var.name}"
}

# Scheduler knows no CloudEvents: it posts one in structured form.
resource "google_cloud_scheduler_job" "this" {
  count = var.schedule == null ? 0 : 1

  project          = var.project_id
  region           = var.region
  name             = "sealpost-${var.name}"
  description      = var.description
  schedule         = var.schedule.cron
  time_zone        = var.schedule.time_zone
  attempt_deadline = "${min(var.timeout_seconds, 1800)}s"

  retry_config {
    retry_count          = var.schedule.retries
    min_backoff_duration = "5s"
    max_backoff_duration = "60s"
    max_doublings        = 3
    max_retry_duration   = "0s"
  }

  http_target {
    uri         = module.service.url
    http_method = "POST"
    headers     = { "Content-Type" = "application/cloudevents+json" }
    body = base64encode(jsonencode({
      specversion     = "1.0"
      type            = "sealpost.scheduled.${var.name}"
      source          = "//cloudscheduler.googleapis.com/projects/${var.project_id}/locations/${var.region}/jobs/sealpost-${var.name}"
      id              = "scheduled" # the same each time: a run is not an event of its own
      datacontenttype = "application/json"
      data            = var.schedule.data
    }))

    oidc_token {
      service_account_email = local.trigger
      audience              = module.service.url
    }
  }

  depends_on = [google_service_account.trigger]
}

resource "google_eventarc_trigger" "this" {
  count = var.eventarc == null ? 0 : 1

  project         = var.project_id
  location        = var.region
  name            = "sealpost-${var.name}"
  service_account = local.trigger
  labels          = var.labels

  dynamic "matching_criteria" {
    for_each = var.eventarc.criteria
    content {
      attribute = matching_criteria.key
      value     = matching_criteria.value
    }
  }

  destination {
    cloud_run_service {
      service = module.service.name
      region  = var.region
    }
  }

  dynamic "transport" {
    for_each = var.eventarc.topic == null ? [] : [var.eventarc.topic]
    content {
      pubsub {
        topic = transport.value
      }
    }
  }

  depends_on = [google_project_iam_member.eventarc]
}

resource "google_project_iam_member" "eventarc" {
  count = var.eventarc == null ? 0 : 1

  project = var.project_id
  role    = "roles/eventarc.eventReceiver"
  member  = "serviceAccount:${local.trigger}"

  depends_on = [google_service_account.trigger]
}
