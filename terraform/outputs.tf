output "source_urls" {
  description = "Where each provider posts to, by source; those without secret_versions are not served yet."
  value       = { for id in keys(local.served_sources) : id => "${local.inbound_url}/in/${id}" }
  depends_on  = [module.receiver]
}

output "unserved_sources" {
  description = "Sources whose secret has no version in use: add one with gcloud, then list its number."
  value       = sort(setsubtract(keys(var.sources), keys(local.served_sources)))
}

output "source_secrets" {
  description = "Secrets to fill, by source: printf %s \"$SECRET\" | gcloud secrets versions add NAME --data-file=-"
  value       = { for id in keys(local.secret_sources) : id => module.secrets.ids["sealpost-source-${id}"] }
}

output "nat_addresses" {
  description = "The fixed addresses that endpoints are called from, by number, for customers' allow-lists. Endpoints that Google serves see others."
  value       = module.network.nat_addresses
}

output "topics" {
  description = "Names of the topics."
  value       = module.pubsub.topics
}

output "direct_topics" {
  description = "Topics that direct sources publish to, by source."
  value       = module.pubsub.direct_topics
}

output "queues" {
  description = "Names of the queues: control, pools, declared endpoints."
  value = {
    control   = module.queues.control
    pools     = module.queues.pools
    endpoints = module.queues.endpoints
  }
}

output "service_urls" {
  description = "Base URLs of the services, by name."
  value       = { for name, url in { receiver = module.receiver.url, worker = module.worker.url, dispatcher = module.dispatcher.url } : name => url if url != null }
}

output "service_accounts" {
  description = "E-mails of the services' accounts and of those that call them."
  value = merge(
    { receiver = module.receiver.email, worker = module.worker.email, dispatcher = module.dispatcher.email },
    local.callers,
  )
}

output "database" {
  description = "projects/P/instances/I/databases/D"
  value       = module.spanner.path
}

output "image" {
  description = "What runs. Plan with -var image=\"$(terraform output -raw image)\" to change anything but the image."
  value       = var.image
}

output "cli" {
  description = "Environment for the command line (sealpost --help) against this installation."
  value = {
    GOOGLE_CLOUD_PROJECT = var.project_id
    LOCATION             = var.region
    SPANNER_DATABASE     = module.spanner.path
    DISPATCHER_URL       = local.urls.dispatcher
    RECEIVER_URL         = local.inbound_url
    INVOKER              = local.callers.tasks
    POOL_QUEUES          = join(",", module.queues.pools)
    KEYSET_SECRET        = var.keyset.secret
    KEYSET_VERSIONS      = join(",", [for v in var.keyset.versions : tostring(v)])
    EVENTS_TOPIC         = module.pubsub.topics["sealpost-events"]
    INBOUND_TOPIC        = module.pubsub.topics["sealpost-inbound"]
  }
}

output "front_door_address" {
  description = "The address that the domains' A records must name; null without a front door."
  value       = one(module.front_door[*].address)
}

output "dashboards" {
  description = "Links to the dashboards."
  value       = one(module.monitoring[*].dashboards)
}
