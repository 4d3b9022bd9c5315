output "email" {
  description = "E-mail of the service's account; known once its roles stand."
  value       = local.email
  depends_on = [
    google_service_account.this,
    google_project_iam_member.this,
    google_service_account_iam_member.acts_as,
  ]
}

output "name" {
  description = "Name in Cloud Run."
  value       = local.is_pool ? google_cloud_run_v2_worker_pool.this[0].name : google_cloud_run_v2_service.this[0].name
  depends_on  = [google_cloud_run_v2_service_iam_member.invoker]
}

output "url" {
  description = "Base URL, which follows from the name; null for a worker pool."
  value       = local.is_pool ? null : local.url
  depends_on  = [google_cloud_run_v2_service_iam_member.invoker, google_cloud_run_v2_service.this]
}
