output "url" {
  description = "Base URL."
  value       = module.service.url
}

output "email" {
  description = "E-mail of the function's account."
  value       = module.service.email
}

output "trigger" {
  description = "E-mail of the account in whose name it is called."
  value       = local.trigger
  depends_on  = [google_service_account.trigger]
}
