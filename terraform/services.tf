# Each service with all that its account may do. Settings are those of `SERVICE
# --help`; what is left at its default is not set.

locals {
  # The load balancer sets it on every request, so that nobody else can.
  client_cert_header = "X-Client-Cert-Leaf"

  # What two of them need alike.
  task_settings = {
    LOCATION       = var.region
    DISPATCHER_URL = local.urls.dispatcher
    INVOKER        = local.callers.tasks
    POOL_QUEUES    = join(",", module.queues.pools)
  }
  retention_settings = { for k, v in { PAYLOAD_RETENTION = var.retention.payloads, ROW_RETENTION = var.retention.rows } : k => v if v != null }
}

# No role that Google defines is as narrow as what the services do.
resource "google_project_iam_custom_role" "this" {
  for_each = {
    sealpostDatabaseUser = {
      title = "Sealpost: read and write rows"
      permissions = [
        "spanner.databases.beginOrRollbackReadWriteTransaction",
        "spanner.databases.beginReadOnlyTransaction",
        "spanner.databases.read",
        "spanner.databases.select",
        "spanner.databases.write",
        "spanner.sessions.create",
        "spanner.sessions.delete",
        "spanner.sessions.get",
      ]
    }
    # Of endpoints added at run time too, whose queues Terraform does not know: so it
    # can be no narrower than the project.
    sealpostTaskScheduler = {
      title = "Sealpost: create tasks, give up queues that are gone"
      permissions = [
        "cloudtasks.queues.delete",
        "cloudtasks.queues.get",
        "cloudtasks.tasks.create",
      ]
    }
    sealpostQueuePauser = {
      title = "Sealpost: pause and resume queues of endpoints that fail"
      permissions = [
        "cloudtasks.queues.get",
        "cloudtasks.queues.pause",
        "cloudtasks.queues.resume",
      ]
    }
    # Whoever adds endpoints: operators, by the command line.
    sealpostQueueAllocator = {
      title = "Sealpost: manage the queues of endpoints"
      permissions = [
        "cloudtasks.queues.create",
        "cloudtasks.queues.delete",
        "cloudtasks.queues.get",
        "cloudtasks.queues.list",
        "cloudtasks.queues.pause",
        "cloudtasks.queues.resume",
        "cloudtasks.queues.update",
      ]
    }
  }

  project     = var.project_id
  role_id     = each.key
  title       = each.value.title
  permissions = each.value.permissions

  depends_on = [module.apis]
}

locals {
  custom_roles = { for k in ["sealpostDatabaseUser", "sealpostTaskScheduler", "sealpostQueuePauser", "sealpostQueueAllocator"] : k => "projects/${var.project_id}/roles/${google_project_iam_custom_role.this[k].role_id}" }
  database     = { instance = module.spanner.instance, database = module.spanner.database }
}

module "receiver" {
  source = "./modules/service"

  name           = "receiver"
  description    = "Verifies what providers post and hands it to Pub/Sub."
  project_id     = var.project_id
  project_number = local.project_number
  region         = var.region
  image          = var.image
  command        = ["/receiver"]
  env = merge(
    {
      GOOGLE_CLOUD_PROJECT = var.project_id
      INBOUND_TOPIC        = module.pubsub.topics["sealpost-inbound"]
      SOURCES              = local.sources_json
      BYTE_BUDGET          = tostring(var.receiver.byte_budget)
    },
    # Cloud Run appends the client's address to X-Forwarded-For; the load balancer appends
    # its own as well.
    { TRUSTED_HOPS = var.front_door == null ? "1" : "2" },
    var.front_door == null ? {} : { BEHIND_LOAD_BALANCER = "true" },
    try(var.front_door.client_ca, null) == null ? {} : { CLIENT_CERT_HEADER = local.client_cert_header },
  )
  roles = {
    publish = { inbound = module.pubsub.topics["sealpost-inbound"] }
    secrets = { for id, s in local.served_sources : id => module.secrets.ids["sealpost-source-${id}"] if contains(keys(local.secret_sources), id) }
  }

  public               = true
  ingress              = var.front_door == null ? "INGRESS_TRAFFIC_ALL" : "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"
  vpc                  = var.receiver.in_vpc ? module.network.vpc : null
  min_instances        = var.receiver.min_instances
  max_instances        = var.receiver.max_instances
  concurrency          = var.receiver.concurrency
  cpu                  = var.receiver.cpu
  memory               = var.receiver.memory
  timeout_seconds      = 60
  binary_authorization = var.binary_authorization
  labels               = local.labels
}

module "worker" {
  source = "./modules/service"

  kind           = var.worker.mode == "pull" ? "worker_pool" : "service"
  name           = "worker"
  description    = "Turns messages into deliveries, once, and schedules their attempts."
  project_id     = var.project_id
  project_number = local.project_number
  region         = var.region
  image          = var.image
  command        = ["/worker"]
  env = merge(local.task_settings, local.retention_settings,
    {
      GOOGLE_CLOUD_PROJECT = var.project_id
      SPANNER_DATABASE     = module.spanner.path
      MODE                 = var.worker.mode
      INBOUND_TOPIC        = module.pubsub.topics["sealpost-inbound"]
      EVENTS_TOPIC         = module.pubsub.topics["sealpost-events"]
      COMMIT_EVENTS        = tostring(var.worker.commit_events)
      COMMIT_CONCURRENCY   = tostring(var.worker.commit_concurrency)
      TASK_CONCURRENCY     = tostring(var.worker.task_concurrency)
    },
    var.worker.mode == "push" ? {
      AUTH         = "iam" # Cloud Run checks the caller: invokers, below
      AUDIENCE     = local.urls.worker
      PUSH_INVOKER = local.callers.push
      } : {
      INBOUND_SUBSCRIPTION = module.pubsub.subscriptions["sealpost-inbound-worker"]
      EVENTS_SUBSCRIPTION  = module.pubsub.subscriptions["sealpost-events-worker"]
    },
    length(var.direct_sources) == 0 ? {} : { DIRECT_SOURCES = local.direct_sources_json },
    length(var.event_schemas) == 0 ? {} : { EVENT_SCHEMAS = local.schemas_json },
  )
  roles = {
    project  = { tasks = local.custom_roles.sealpostTaskScheduler }
    database = { rows = merge(local.database, { role = local.custom_roles.sealpostDatabaseUser }) }
    subscribe = var.worker.mode == "push" ? {} : merge(
      { inbound = module.pubsub.subscriptions["sealpost-inbound-worker"], events = module.pubsub.subscriptions["sealpost-events-worker"] },
      { for id, name in module.pubsub.direct_subscriptions : "direct-${id}" => name },
    )
    acts_as = { tasks = local.callers.tasks }
  }

  invokers             = var.worker.mode == "push" ? { push = "serviceAccount:${local.callers.push}" } : {}
  min_instances        = var.worker.min_instances
  max_instances        = var.worker.max_instances
  concurrency          = var.worker.concurrency
  cpu                  = var.worker.cpu
  memory               = var.worker.memory
  timeout_seconds      = 600 # as long as Pub/Sub waits for an acknowledgement
  binary_authorization = var.binary_authorization
  labels               = local.labels

  depends_on = [google_service_account.caller]
}

module "dispatcher" {
  source = "./modules/service"

  name           = "dispatcher"
  description    = "Makes the attempts: claims, signs, sends, decides, records."
  project_id     = var.project_id
  project_number = local.project_number
  region         = var.region
  image          = var.image
  command        = ["/dispatcher"]
  env = merge(local.task_settings, local.retention_settings,
    {
      GOOGLE_CLOUD_PROJECT = var.project_id
      SPANNER_DATABASE     = module.spanner.path
      CONTROL_QUEUE        = module.queues.control
      EVENTS_TOPIC         = module.pubsub.topics["sealpost-events"]
      MAX_IN_FLIGHT        = tostring(var.dispatcher.concurrency)
      KEYSET_SECRET        = var.keyset.secret
      KEYSET_VERSIONS      = join(",", [for v in var.keyset.versions : tostring(v)])
      EGRESS_PORTS         = join(",", sort([for p in var.egress.ports : tostring(p)]))
      EGRESS_PROBE_URL     = var.egress.probe_url
      AUTH                 = "iam"
      AUDIENCE             = local.urls.dispatcher
      CALLERS              = local.callers.tasks
    },
    length(var.egress.allow_hosts) == 0 ? {} : { EGRESS_ALLOW_HOSTS = join(",", sort(var.egress.allow_hosts)) },
    length(var.egress.allow_prefixes) == 0 ? {} : { EGRESS_ALLOW_PREFIXES = join(",", sort(var.egress.allow_prefixes)) },
    var.egress.proxy == null ? {} : { EGRESS_PROXY = var.egress.proxy.url },
    length(var.destination_topics) == 0 ? {} : { DESTINATION_TOPICS = join(",", sort(var.destination_topics)) },
    var.max_queues == null ? {} : { MAX_QUEUES = tostring(var.max_queues) },
    length(var.endpoints) == 0 ? {} : { ENDPOINTS = local.endpoints_json },
  )
  roles = {
    project = {
      tasks  = local.custom_roles.sealpostTaskScheduler
      queues = local.custom_roles.sealpostQueuePauser
    }
    database = { rows = merge(local.database, { role = local.custom_roles.sealpostDatabaseUser }) }
    secrets  = { keyset = var.keyset.secret }
    publish  = merge({ events = module.pubsub.topics["sealpost-events"] }, { for t in var.destination_topics : t => t })
    acts_as  = { tasks = local.callers.tasks }
  }

  invokers             = { tasks = "serviceAccount:${local.callers.tasks}" }
  vpc                  = module.network.vpc
  min_instances        = var.dispatcher.min_instances
  max_instances        = var.dispatcher.max_instances
  concurrency          = var.dispatcher.concurrency
  cpu                  = var.dispatcher.cpu
  memory               = var.dispatcher.memory
  timeout_seconds      = 180 # a task's dispatch deadline
  startup_seconds      = 240 # the way out may take more than a minute to open
  binary_authorization = var.binary_authorization
  labels               = local.labels

  depends_on = [google_service_account.caller]
}

# Dispatching beyond what the dispatcher can take makes Cloud Tasks throttle queues.
resource "terraform_data" "capacity" {
  input = module.queues.concurrency

  lifecycle {
    precondition {
      condition     = module.queues.concurrency + var.runtime_concurrency <= var.dispatcher.max_instances * var.dispatcher.concurrency
      error_message = "The queues may have ${module.queues.concurrency} dispatches under way, and runtime_concurrency leaves room for ${var.runtime_concurrency} more, but dispatcher.max_instances × dispatcher.concurrency is ${var.dispatcher.max_instances * var.dispatcher.concurrency}: raise those, or lower limits of endpoints."
    }
  }
}

# What the command line needs: the same as the dispatcher, in the operator's own name.
resource "google_project_iam_member" "operator" {
  for_each = { for pair in setproduct(var.operators, ["sealpostTaskScheduler", "sealpostQueueAllocator"]) : "${pair[0]} ${pair[1]}" => { member = pair[0], role = local.custom_roles[pair[1]] } }

  project = var.project_id
  role    = each.value.role
  member  = each.value.member
}

resource "google_spanner_database_iam_member" "operator" {
  for_each = var.operators

  project  = var.project_id
  instance = module.spanner.instance
  database = module.spanner.database
  role     = local.custom_roles.sealpostDatabaseUser
  member   = each.key
}

resource "google_secret_manager_secret_iam_member" "operator" {
  for_each = var.operators

  project   = var.project_id
  secret_id = var.keyset.secret
  role      = "roles/secretmanager.secretAccessor"
  member    = each.key
}

resource "google_service_account_iam_member" "operator" {
  for_each = var.operators

  service_account_id = "projects/${var.project_id}/serviceAccounts/${local.callers.tasks}"
  role               = "roles/iam.serviceAccountUser"
  member             = each.key

  depends_on = [google_service_account.caller]
}

resource "google_pubsub_topic_iam_member" "operator" {
  for_each = var.operators

  project = var.project_id
  topic   = module.pubsub.topics["sealpost-events"]
  role    = "roles/pubsub.publisher"
  member  = each.key
}
