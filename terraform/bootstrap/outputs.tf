output "repository" {
  description = "Where images are pushed to."
  value       = "${var.region}-docker.pkg.dev/${var.project_id}/${google_artifact_registry_repository.this.repository_id}"
}

output "state_bucket" {
  description = "Bucket of the root's state."
  value       = google_storage_bucket.state.name
}

output "build_account" {
  description = "E-mail of the account that builds and deploys."
  value       = local.build
}

output "keyset_secret" {
  description = "Secret to put a keyset into, once: sealpost keyset new | gcloud secrets versions add NAME --data-file=-"
  value       = module.keyset.ids["sealpost-keyset"]
}
