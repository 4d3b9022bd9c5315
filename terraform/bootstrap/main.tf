# What must be there before the first apply of the root: APIs, the registry for the
# image, the account that builds and deploys, a bucket for the root's state, and the
# secret with the keyset, which a destroy of the root must not take along.

terraform {
  required_version = ">= 1.9"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 7.0.0, < 8.0.0"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = var.region
}

module "apis" {
  source = "../modules/apis"

  project_id = var.project_id
}

locals {
  labels = merge({ app = "sealpost" }, var.labels)
  build  = "sealpost-build@${var.project_id}.iam.gserviceaccount.com"
}

resource "google_artifact_registry_repository" "this" {
  project       = var.project_id
  location      = var.region
  repository_id = "sealpost"
  format        = "DOCKER"
  description   = "Sealpost's image."
  labels        = local.labels

  # Old images go; what may be rolled back to stays.
  cleanup_policies {
    id     = "keep-recent"
    action = "KEEP"
    most_recent_versions {
      keep_count = 20
    }
  }
  cleanup_policies {
    id     = "delete-old"
    action = "DELETE"
    condition {
      older_than = "7776000s"
    }
  }

  docker_config {
    immutable_tags = false # the tag latest moves; what runs is named by digest
  }

  depends_on = [module.apis]
}

resource "google_storage_bucket" "state" {
  project                     = var.project_id
  name                        = "${var.project_id}-sealpost-terraform"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  labels                      = local.labels
  force_destroy               = false

  versioning {
    enabled = true
  }
  lifecycle_rule {
    condition {
      num_newer_versions = 30
      with_state         = "ARCHIVED"
    }
    action {
      type = "Delete"
    }
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [module.apis]
}

# Sources that gcloud uploads, and logs of builds that run as an account of one's own.
resource "google_storage_bucket" "builds" {
  project                     = var.project_id
  name                        = "${var.project_id}-sealpost-builds"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  labels                      = local.labels
  force_destroy               = true

  lifecycle_rule {
    condition {
      age = 30
    }
    action {
      type = "Delete"
    }
  }

  depends_on = [module.apis]
}

# Without its keyset, every endpoint's signing key is lost.
module "keyset" {
  source = "../modules/secrets"

  project_id        = var.project_id
  replica_locations = var.secret_replicas
  labels            = local.labels
  secrets           = { "sealpost-keyset" = { holds = "the keyset that seals endpoints' keys" } }

  depends_on = [module.apis]
}

resource "google_service_account" "build" {
  project      = var.project_id
  account_id   = "sealpost-build"
  display_name = "Sealpost: builds, tests and deploys"

  depends_on = [module.apis]
}

# To build: read the source, write logs, push the image and what is said of it.
resource "google_project_iam_member" "build" {
  for_each = toset(concat(
    ["roles/logging.logWriter", "roles/containeranalysis.occurrences.editor", "roles/containeranalysis.notes.editor"],
    # To deploy: what the root's resources take, each the narrowest that Google defines.
    var.deploy ? [
      "roles/certificatemanager.editor",
      "roles/cloudscheduler.admin",
      "roles/cloudtasks.queueAdmin",
      "roles/compute.networkAdmin",
      "roles/compute.loadBalancerAdmin",
      "roles/compute.securityAdmin",
      "roles/dns.admin",
      "roles/eventarc.admin",
      "roles/iam.roleAdmin",
      "roles/iam.serviceAccountAdmin",
      "roles/logging.configWriter",
      "roles/monitoring.alertPolicyEditor",
      "roles/monitoring.dashboardEditor",
      "roles/monitoring.notificationChannelEditor",
      "roles/pubsub.admin",
      "roles/run.admin",
      "roles/secretmanager.admin",
      "roles/serviceusage.serviceUsageAdmin",
      "roles/spanner.admin",
    ] : [],
  ))

  project = var.project_id
  role    = each.value
  member  = "serviceAccount:${local.build}"

  depends_on = [google_service_account.build]
}

# It may bind our own roles and Cloud Scheduler's and Eventarc's, and no others: it
# cannot make itself owner.
resource "google_project_iam_member" "bind" {
  count = var.deploy ? 1 : 0

  project = var.project_id
  role    = "roles/resourcemanager.projectIamAdmin"
  member  = "serviceAccount:${local.build}"

  condition {
    title       = "only-sealpost-roles"
    description = "Roles of Sealpost's services, and to receive events."
    expression  = "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly(['projects/${var.project_id}/roles/sealpostTaskScheduler', 'projects/${var.project_id}/roles/sealpostQueuePauser', 'projects/${var.project_id}/roles/sealpostQueueAllocator', 'roles/eventarc.eventReceiver'])"
  }

  depends_on = [google_service_account.build]
}

# To have Cloud Run run as the services' accounts.
resource "google_project_iam_member" "act_as" {
  count = var.deploy ? 1 : 0

  project = var.project_id
  role    = "roles/iam.serviceAccountUser"
  member  = "serviceAccount:${local.build}"

  depends_on = [google_service_account.build]
}

resource "google_artifact_registry_repository_iam_member" "build" {
  project    = var.project_id
  location   = var.region
  repository = google_artifact_registry_repository.this.name
  role       = "roles/artifactregistry.writer"
  member     = "serviceAccount:${local.build}"

  depends_on = [google_service_account.build]
}

resource "google_storage_bucket_iam_member" "builds" {
  bucket = google_storage_bucket.builds.name
  role   = "roles/storage.objectAdmin"
  member = "serviceAccount:${local.build}"

  depends_on = [google_service_account.build]
}

resource "google_storage_bucket_iam_member" "state" {
  count = var.deploy ? 1 : 0

  bucket = google_storage_bucket.state.name
  role   = "roles/storage.objectAdmin"
  member = "serviceAccount:${local.build}"

  depends_on = [google_service_account.build]
}

# Builds of a branch, if the repository is connected to Cloud Build.
resource "google_cloudbuild_trigger" "branch" {
  count = var.trigger == null ? 0 : 1

  project         = var.project_id
  location        = var.region
  name            = "sealpost"
  description     = "Tests, builds and deploys what lands on ${var.trigger.branch}."
  filename        = "cloudbuild.yaml"
  service_account = "projects/${var.project_id}/serviceAccounts/${local.build}"

  repository_event_config {
    repository = var.trigger.repository
    push {
      branch = var.trigger.branch
    }
  }

  substitutions = {
    _REGION = var.region
    _DEPLOY = tostring(var.deploy)
  }

  approval_config {
    approval_required = var.trigger.approval
  }

  depends_on = [google_project_iam_member.build]
}
