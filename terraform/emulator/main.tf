# Only Pub/Sub and Spanner, against Google's emulators: what of this Terraform can
# be applied without a cloud, by the real provider. A second plan finds nothing to
# change. With emulators that answer REST on these ports:
#
#   terraform -chdir=terraform/emulator init
#   terraform -chdir=terraform/emulator apply \
#     -var pubsub_endpoint=http://127.0.0.1:8085/v1/ -var spanner_endpoint=http://127.0.0.1:9020/v1/

terraform {
  required_version = ">= 1.9"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 7.0.0, < 8.0.0"
    }
  }
}

variable "project_id" {
  description = "Any project's id: emulators take all."
  type        = string
  default     = "sealpost-local"
}

variable "pubsub_endpoint" {
  description = "Base URL of the Pub/Sub emulator's REST interface, with /v1/."
  type        = string
}

variable "spanner_endpoint" {
  description = "Base URL of the Spanner emulator's REST interface (its second port), with /v1/."
  type        = string
}

variable "worker_url" {
  description = "Where messages are pushed to; null: they are pulled."
  type        = string
  default     = null
}

provider "google" {
  project                 = var.project_id
  region                  = "us-central1"
  access_token            = "emulators-ask-for-none"
  pubsub_custom_endpoint  = var.pubsub_endpoint
  spanner_custom_endpoint = var.spanner_endpoint

  # Neither emulator gives labels back.
  add_terraform_attribution_label = false
}

module "pubsub" {
  source = "../modules/pubsub"

  project_id     = var.project_id
  project_number = "0"
  topology       = jsondecode(file("${path.module}/../../internal/localcloud/topology.json"))
  push           = var.worker_url == null ? null : { url = var.worker_url }
  emulator       = true
}

module "spanner" {
  source = "../modules/spanner"

  project_id          = var.project_id
  config              = "emulator-config"
  ddl                 = "${path.module}/../../internal/store/ddl"
  backup              = null
  deletion_protection = false
  emulator            = true
}

output "database" {
  description = "projects/P/instances/I/databases/D"
  value       = module.spanner.path
}

output "topics" {
  description = "Names of the topics."
  value       = module.pubsub.topics
}
