# Secrets without values: those never enter Terraform's state. Versions are added
# with gcloud and named by number where they are used.

variable "project_id" {
  description = "The project."
  type        = string
}

variable "secrets" {
  description = "Secrets by id, with a word on what they hold."
  type        = map(object({ holds = string }))

  validation {
    condition     = alltrue([for id in keys(var.secrets) : can(regex("^[A-Za-z0-9_-]{1,255}$", id))])
    error_message = "A secret's id has letters, digits, - and _ only, at most 255."
  }
}

variable "replica_locations" {
  description = "Regions that hold the values; empty: Google chooses."
  type        = list(string)
  default     = []
}

variable "labels" {
  description = "Labels of the secrets."
  type        = map(string)
  default     = {}
}

resource "google_secret_manager_secret" "this" {
  for_each = var.secrets

  project     = var.project_id
  secret_id   = each.key
  labels      = var.labels
  annotations = { holds = each.value.holds }

  # A version that is destroyed by mistake can be had back for a day.
  version_destroy_ttl = "86400s"

  replication {
    dynamic "auto" {
      for_each = length(var.replica_locations) == 0 ? [1] : []
      content {}
    }
    dynamic "user_managed" {
      for_each = length(var.replica_locations) == 0 ? [] : [1]
      content {
        dynamic "replicas" {
          for_each = var.replica_locations
          content {
            location = replicas.value
          }
        }
      }
    }
  }
}

output "ids" {
  description = "Ids of the secrets that exist."
  value       = { for id, s in google_secret_manager_secret.this : id => s.secret_id }
}
