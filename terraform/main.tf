# The shared parts. The services stand in services.tf, each with its roles.

locals {
  topology = jsondecode(file("${path.module}/../internal/localcloud/topology.json"))
  ddl      = "${path.module}/../internal/store/ddl"
  labels   = merge({ app = "sealpost" }, var.labels)
}

data "google_project" "this" {
  count = var.project_number == null ? 1 : 0

  project_id = var.project_id
}

locals {
  project_number = coalesce(var.project_number, try(data.google_project.this[0].number, null))

  # A service's address follows from its name, so that services can know each other's
  # before any exists.
  urls = { for s in ["receiver", "worker", "dispatcher"] : s => "https://sealpost-${s}-${local.project_number}.${var.region}.run.app" }

  # Where providers post to.
  inbound_url = var.front_door == null ? local.urls.receiver : "https://${var.front_door.domains[0]}"
}

module "apis" {
  source = "./modules/apis"
  count  = var.enable_apis ? 1 : 0

  project_id = var.project_id
}

module "network" {
  source = "./modules/network"

  project_id     = var.project_id
  region         = var.region
  subnet_cidr    = var.network.subnet_cidr
  instances      = var.dispatcher.max_instances + (var.receiver.in_vpc ? var.receiver.max_instances : 0)
  nat_addresses  = var.network.nat_addresses
  nat_draining   = var.network.nat_draining
  nat_min_ports  = var.network.nat_min_ports
  nat_max_ports  = var.network.nat_max_ports
  nat_log        = var.network.nat_log
  ports          = var.egress.ports
  allow_prefixes = var.egress.allow_prefixes
  proxy = var.egress.proxy == null ? null : {
    cidr = var.egress.proxy.cidr
    port = tonumber(regex(":([0-9]+)$", var.egress.proxy.url)[0])
  }

  depends_on = [module.apis]
}

module "spanner" {
  source = "./modules/spanner"

  project_id               = var.project_id
  config                   = coalesce(var.spanner.config, "regional-${var.region}")
  edition                  = var.spanner.edition
  processing_units         = var.spanner.processing_units
  autoscaling              = var.spanner.autoscaling
  version_retention_period = var.spanner.version_retention_period
  backup                   = var.spanner.backup
  kms_key                  = var.spanner.kms_key
  ddl                      = local.ddl
  deletion_protection      = var.spanner.deletion_protection
  labels                   = local.labels

  depends_on = [module.apis]
}

# In whose names Pub/Sub and Cloud Tasks call our services. They may call, and
# nothing else.
resource "google_service_account" "caller" {
  for_each = {
    push  = "Pub/Sub's pushes to the worker"
    tasks = "Cloud Tasks' calls of the dispatcher"
  }

  project      = var.project_id
  account_id   = "sealpost-${each.key}"
  display_name = "Sealpost: ${each.value}"

  depends_on = [module.apis]
}

locals {
  callers = { for name in ["push", "tasks"] : name => "sealpost-${name}@${var.project_id}.iam.gserviceaccount.com" }
}

module "pubsub" {
  source = "./modules/pubsub"

  project_id     = var.project_id
  project_number = local.project_number
  topology       = local.topology
  push = var.worker.mode == "pull" ? null : {
    url             = local.urls.worker
    service_account = local.callers.push
  }
  direct_sources        = { for id, s in var.direct_sources : id => { publisher = s.publisher } }
  event_publishers      = var.event_publishers
  max_delivery_attempts = var.pubsub.max_delivery_attempts
  topic_retention_days  = var.pubsub.topic_retention_days
  storage_regions       = var.pubsub.storage_regions
  kms_key               = var.pubsub.kms_key
  events_schema         = var.pubsub.events_schema
  archive               = var.pubsub.archive
  labels                = local.labels

  depends_on = [module.apis, google_service_account.caller]
}

module "queues" {
  source = "./modules/queues"

  project_id = var.project_id
  location   = var.region
  topology   = local.topology
  generation = var.queue_generation
  endpoints  = { for id, e in local.endpoints : id => { rate_per_second = e.rate_per_second, max_concurrency = e.max_concurrency } }

  depends_on = [module.apis]
}

# Cloud Tasks' agent makes the tokens that tasks carry; it exists once a queue does.
resource "google_service_account_iam_member" "tasks_agent" {
  service_account_id = "projects/${var.project_id}/serviceAccounts/${local.callers.tasks}"
  role               = "roles/iam.serviceAccountOpenIdTokenCreator"
  member             = "serviceAccount:service-${local.project_number}@gcp-sa-cloudtasks.iam.gserviceaccount.com"

  depends_on = [google_service_account.caller, module.queues]
}

module "secrets" {
  source = "./modules/secrets"

  project_id        = var.project_id
  replica_locations = var.secret_replicas
  labels            = local.labels
  secrets           = { for id, s in local.secret_sources : "sealpost-source-${id}" => { holds = "the secret of source ${id} (${s.scheme})" } }

  depends_on = [module.apis]
}

module "front_door" {
  source = "./modules/frontdoor"
  count  = var.front_door == null ? 0 : 1

  project_id          = var.project_id
  region              = var.region
  domains             = var.front_door.domains
  service             = module.receiver.name
  requests_per_minute = var.front_door.requests_per_minute
  allow_ranges        = var.front_door.allow_ranges
  client_ca           = var.front_door.client_ca
  client_cert_header  = local.client_cert_header

  depends_on = [module.apis]
}

# What a source asks of the way in must be there.
resource "terraform_data" "inbound" {
  lifecycle {
    precondition {
      condition     = try(var.front_door.client_ca, null) != null || !anytrue([for s in values(var.sources) : try(s.mtls_subject, null) != null || try(s.mtls_san, null) != null])
      error_message = "A source with mtls_subject or mtls_san needs front_door.client_ca: only a load balancer checks client certificates."
    }
  }
}

module "monitoring" {
  source = "./modules/monitoring"
  count  = var.monitoring.enabled ? 1 : 0

  project_id            = var.project_id
  region                = var.region
  notification_channels = var.monitoring.notification_channels
  emails                = var.monitoring.emails
  spanner_instance      = module.spanner.instance
  nat_gateway           = module.network.nat.gateway
  labels                = local.labels

  depends_on = [module.apis]
}
