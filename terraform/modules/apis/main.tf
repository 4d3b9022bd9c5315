# The APIs of the product. None is ever disabled by a destroy: others in the
# project may use them by then, and disabling one deletes what it holds.

variable "project_id" {
  description = "The project."
  type        = string
}

locals {
  services = toset([
    "artifactregistry.googleapis.com",
    "binaryauthorization.googleapis.com",
    "certificatemanager.googleapis.com",
    "cloudbuild.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "cloudscheduler.googleapis.com",
    "cloudtasks.googleapis.com",
    "compute.googleapis.com",
    "containeranalysis.googleapis.com",
    "dns.googleapis.com",
    "eventarc.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "networksecurity.googleapis.com",
    "pubsub.googleapis.com",
    "run.googleapis.com",
    "secretmanager.googleapis.com",
    "serviceusage.googleapis.com",
    "spanner.googleapis.com",
  ])
}

resource "google_project_service" "this" {
  for_each = local.services

  project                    = var.project_id
  service                    = each.key
  disable_on_destroy         = false
  disable_dependent_services = false
}

output "services" {
  description = "What is enabled; depend on it before using an API."
  value       = keys(google_project_service.this)
}
