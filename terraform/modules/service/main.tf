# A service of the product: its own service account, the roles that this account
# has and no others, the Cloud Run service (or the worker pool, which pulls), and
# who may call it. It starts only once the roles stand, since services read their
# secrets at the start.

locals {
  name    = "sealpost-${var.name}"
  email   = "${local.name}@${var.project_id}.iam.gserviceaccount.com"
  member  = "serviceAccount:${local.email}"
  url     = "https://${local.name}-${var.project_number}.${var.region}.run.app"
  is_pool = var.kind == "worker_pool"

  secrets = var.roles.secrets
}

resource "google_service_account" "this" {
  project      = var.project_id
  account_id   = local.name
  display_name = "Sealpost ${var.name}"
  description  = var.description
}

resource "google_project_iam_member" "this" {
  for_each = var.roles.project

  project = var.project_id
  role    = each.value
  member  = local.member

  depends_on = [google_service_account.this]
}

resource "google_spanner_database_iam_member" "this" {
  for_each = var.roles.database

  project  = var.project_id
  instance = each.value.instance
  database = each.value.database
  role     = each.value.role
  member   = local.member

  depends_on = [google_service_account.this]
}

resource "google_pubsub_topic_iam_member" "this" {
  for_each = var.roles.publish

  project = var.project_id
  topic   = each.value
  role    = "roles/pubsub.publisher"
  member  = local.member

  depends_on = [google_service_account.this]
}

resource "google_pubsub_subscription_iam_member" "this" {
  for_each = var.roles.subscribe

  project      = var.project_id
  subscription = each.value
  role         = "roles/pubsub.subscriber"
  member       = local.member

  depends_on = [google_service_account.this]
}

resource "google_secret_manager_secret_iam_member" "this" {
  for_each = local.secrets

  project   = var.project_id
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = local.member

  depends_on = [google_service_account.this]
}

# Who makes a task or a call in another account's name needs this right on it.
resource "google_service_account_iam_member" "acts_as" {
  for_each = var.roles.acts_as

  service_account_id = "projects/${var.project_id}/serviceAccounts/${each.value}"
  role               = "roles/iam.serviceAccountUser"
  member             = local.member

  depends_on = [google_service_account.this]
}

resource "google_cloud_run_v2_service" "this" {
  count = local.is_pool ? 0 : 1

  project              = var.project_id
  location             = var.region
  name                 = local.name
  description          = var.description
  labels               = var.labels
  ingress              = var.ingress
  invoker_iam_disabled = var.public
  custom_audiences     = [local.url]
  deletion_protection  = var.deletion_protection

  dynamic "binary_authorization" {
    for_each = var.binary_authorization ? [1] : []
    content {
      use_default = true
    }
  }

  template {
    service_account                  = local.email
    timeout                          = "${var.timeout_seconds}s"
    max_instance_request_concurrency = var.concurrency
    execution_environment            = "EXECUTION_ENVIRONMENT_GEN2"
    labels                           = var.labels

    scaling {
      min_instance_count = var.min_instances
      max_instance_count = var.max_instances
    }

    dynamic "vpc_access" {
      for_each = var.vpc == null ? [] : [var.vpc]
      content {
        egress = "ALL_TRAFFIC"
        network_interfaces {
          network    = vpc_access.value.network
          subnetwork = vpc_access.value.subnetwork
        }
      }
    }

    containers {
      image   = var.image
      command = var.command

      ports {
        container_port = 8080
      }

      resources {
        limits            = { cpu = var.cpu, memory = var.memory }
        cpu_idle          = var.cpu_idle
        startup_cpu_boost = true
      }

      dynamic "env" {
        for_each = var.env
        content {
          name  = env.key
          value = env.value
        }
      }

      startup_probe {
        period_seconds    = 5
        timeout_seconds   = 5
        failure_threshold = ceil(var.startup_seconds / 5)
        http_get {
          path = "/health/ready"
          port = 8080
        }
      }

      liveness_probe {
        period_seconds    = 30
        timeout_seconds   = 5
        failure_threshold = 3
        http_get {
          path = "/health/live"
          port = 8080
        }
      }
    }
  }

  lifecycle {
    # Terraform alone says which image runs; these two only tell which tool looked at
    # the service last.
    ignore_changes = [client, client_version]

    precondition {
      condition     = !var.public || length(var.invokers) == 0
      error_message = "${local.name} is public: invokers would have no meaning."
    }
    precondition {
      condition     = sum([for k, v in var.env : length(k) + length(v)]) <= 30000
      error_message = "${local.name}: the settings take more than 30,000 bytes, and Cloud Run refuses more than 32 KiB. Large ones belong into a file in the image."
    }
  }

  depends_on = [
    google_service_account.this,
    google_project_iam_member.this,
    google_spanner_database_iam_member.this,
    google_pubsub_topic_iam_member.this,
    google_pubsub_subscription_iam_member.this,
    google_secret_manager_secret_iam_member.this,
    google_service_account_iam_member.acts_as,
  ]
}

resource "google_cloud_run_v2_service_iam_member" "invoker" {
  for_each = local.is_pool ? {} : var.invokers

  project  = var.project_id
  location = var.region
  name     = google_cloud_run_v2_service.this[0].name
  role     = "roles/run.invoker"
  member   = each.value
}

resource "google_cloud_run_v2_worker_pool" "this" {
  count = local.is_pool ? 1 : 0

  project             = var.project_id
  location            = var.region
  name                = local.name
  description         = var.description
  labels              = var.labels
  deletion_protection = var.deletion_protection

  dynamic "binary_authorization" {
    for_each = var.binary_authorization ? [1] : []
    content {
      use_default = true
    }
  }

  scaling {
    scaling_mode          = "MANUAL"
    manual_instance_count = max(1, var.min_instances)
  }

  template {
    service_account = local.email
    labels          = var.labels

    dynamic "vpc_access" {
      for_each = var.vpc == null ? [] : [var.vpc]
      content {
        egress = "ALL_TRAFFIC"
        network_interfaces {
          network    = vpc_access.value.network
          subnetwork = vpc_access.value.subnetwork
        }
      }
    }

    containers {
      image   = var.image
      command = var.command

      resources {
        limits = { cpu = var.cpu, memory = var.memory }
      }

      dynamic "env" {
        for_each = var.env
        content {
          name  = env.key
          value = env.value
        }
      }

      startup_probe {
        period_seconds    = 5
        timeout_seconds   = 5
        failure_threshold = ceil(var.startup_seconds / 5)
        http_get {
          path = "/health/ready"
          port = 8080
        }
      }

      liveness_probe {
        period_seconds    = 30
        timeout_seconds   = 5
        failure_threshold = 3
        http_get {
          path = "/health/live"
          port = 8080
        }
      }
    }
  }

  lifecycle {
    ignore_changes = [client, client_version]
  }

  depends_on = [
    google_service_account.this,
    google_project_iam_member.this,
    google_spanner_database_iam_member.this,
    google_pubsub_topic_iam_member.this,
    google_pubsub_subscription_iam_member.this,
    google_secret_manager_secret_iam_member.this,
    google_service_account_iam_member.acts_as,
  ]
}
