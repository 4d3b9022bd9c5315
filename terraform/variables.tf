# What an installation is. Only project_id and image are needed; sources and
# endpoints are what most people write.

variable "project_id" {
  description = "The Google Cloud project. One installation per project: names in it start with sealpost."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be a project's id (6 to 30 lower-case letters, digits and hyphens), not its name or number."
  }
}

variable "project_number" {
  description = "The project's number; looked up where it is left out."
  type        = string
  default     = null

  validation {
    condition     = var.project_number == null || can(regex("^[0-9]{6,20}$", var.project_number))
    error_message = "project_number must be digits; project_id is for the id."
  }
}

variable "region" {
  description = "Where everything runs: Cloud Run, Cloud Tasks, the network."
  type        = string
  default     = "us-central1"

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region such as europe-west1, not a zone or a multi-region."
  }
}

variable "image" {
  description = "The product's image, by digest: what cloudbuild.yaml pushed. Terraform alone decides what runs."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9.-]+(:[0-9]+)?/[^@]+@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image must name a digest (HOST/PATH@sha256:…), so that what was tested is what runs, and so that two plans of the same commit agree."
  }
}

variable "enable_apis" {
  description = "Whether the APIs are enabled here too (the bootstrap has done it)."
  type        = bool
  default     = true
}

variable "labels" {
  description = "Labels of everything that can have some."
  type        = map(string)
  default     = {}
}

variable "sources" {
  description = <<-EOT
    Providers that post to us, by id; the address is …/in/ID. Each is an object of
      scheme           how requests are verified (needed; the README's table has them all)
      secret_versions  numbers of the versions of the secret sealpost-source-ID that are in use;
                       while there are none, the secret is made and the source not yet served
    and any other setting of the receiver's SOURCES under its own name: tenant, allow_types,
    tolerance, body_limit, publish_deadline, public_url (default: the address), on_replay, dedupe,
    content_types, content_encoding, schemas, schema_mode, allow_cidrs, mtls_subject, mtls_san, hmac,
    token, jwt, webhook_id, topics, verify_token, asana_handshake.
  EOT
  type        = any
  default     = {}

  validation {
    condition     = can(keys(var.sources)) && alltrue([for s in try(values(var.sources), []) : can(keys(s))])
    error_message = "sources must be a map from a source's id to an object, such as { stripe = { scheme = \"stripe\", secret_versions = [1] } }."
  }
  validation {
    condition     = alltrue([for id in try(keys(var.sources), []) : can(regex("^[a-z0-9][a-z0-9_-]{0,62}$", id)) && id != "app"])
    error_message = "sources: an id has 1 to 63 of a-z, 0-9, - and _, starting with a letter or digit; app is kept for what applications publish. Faulty: ${join(", ", [for id in try(keys(var.sources), []) : id if !can(regex("^[a-z0-9][a-z0-9_-]{0,62}$", id)) || id == "app"])}."
  }
  validation {
    condition     = length(flatten([for id, s in try({ for k, v in var.sources : k => v }, {}) : [for name, v in try({ for k, v in s : k => v }, {}) : "${id}.${name}" if !contains(keys(local.source_settings), name)]])) == 0
    error_message = "sources: no setting of a source is called ${join(", ", flatten([for id, s in try({ for k, v in var.sources : k => v }, {}) : [for name, v in try({ for k, v in s : k => v }, {}) : "${id}.${name}" if !contains(keys(local.source_settings), name)]]))}; there are ${join(", ", keys(local.source_settings))}."
  }
  validation {
    condition     = length(flatten([for id, s in try({ for k, v in var.sources : k => v }, {}) : [for name, v in try({ for k, v in s : k => v }, {}) : "${id}.${name} (a ${try(local.source_settings[name], "")})" if v != null && can(local.source_settings[name]) && !can(regex(try(local.kinds[local.source_settings[name]], "^"), jsonencode(v)))]])) == 0
    error_message = "sources: a value of another kind is wanted by ${join(", ", flatten([for id, s in try({ for k, v in var.sources : k => v }, {}) : [for name, v in try({ for k, v in s : k => v }, {}) : "${id}.${name} (a ${try(local.source_settings[name], "")})" if v != null && can(local.source_settings[name]) && !can(regex(try(local.kinds[local.source_settings[name]], "^"), jsonencode(v)))]]))}."
  }
  validation {
    condition     = length([for id, s in try({ for k, v in var.sources : k => v }, {}) : id if !(try(s.scheme, null) != null)]) == 0
    error_message = "sources: scheme is missing in ${join(", ", [for id, s in try({ for k, v in var.sources : k => v }, {}) : id if !(try(s.scheme, null) != null)])}."
  }
  validation {
    condition     = length([for id, s in try({ for k, v in var.sources : k => v }, {}) : id if !(try(s.secret_versions, null) == null || try(alltrue([for n in s.secret_versions : n >= 1 && floor(n) == n]) && length(distinct(s.secret_versions)) == length(s.secret_versions), false))]) == 0
    error_message = "sources: secret_versions must be different whole numbers from 1, in ${join(", ", [for id, s in try({ for k, v in var.sources : k => v }, {}) : id if !(try(s.secret_versions, null) == null || try(alltrue([for n in s.secret_versions : n >= 1 && floor(n) == n]) && length(distinct(s.secret_versions)) == length(s.secret_versions), false))])}."
  }
  validation {
    condition     = length([for id, s in try({ for k, v in var.sources : k => v }, {}) : id if !(alltrue([for name in ["tolerance", "publish_deadline"] : try(s[name], null) == null || can(regex("^([0-9.]+(ms|s|m|h))+$", s[name]))]))]) == 0
    error_message = "sources: tolerance and publish_deadline must be times such as 90s or 5m, in ${join(", ", [for id, s in try({ for k, v in var.sources : k => v }, {}) : id if !(alltrue([for name in ["tolerance", "publish_deadline"] : try(s[name], null) == null || can(regex("^([0-9.]+(ms|s|m|h))+$", s[name]))]))])}."
  }
}

variable "direct_sources" {
  description = "Providers that publish to a topic of this project themselves (Shopify, Eventarc), by id; the topic is sealpost-direct-ID. publisher is who may publish to it: all that its authenticity rests on."
  type = map(object({
    format    = string
    publisher = optional(string)
    tenant    = optional(string)
    dedupe    = optional(string)
  }))
  default = {}

  validation {
    condition     = alltrue([for s in values(var.direct_sources) : contains(["shopify", "cloudevents"], s.format)])
    error_message = "direct_sources: format must be shopify or cloudevents."
  }
  validation {
    condition     = alltrue([for s in values(var.direct_sources) : s.publisher == null || can(regex("^(serviceAccount|principal):.+", s.publisher))])
    error_message = "direct_sources: publisher must be one serviceAccount:… (or principal:…)."
  }
  validation {
    condition     = alltrue([for id in keys(var.direct_sources) : can(regex("^[a-z0-9][a-z0-9_-]{0,62}$", id))])
    error_message = "direct_sources: an id has 1 to 63 of a-z, 0-9, - and _, starting with a letter or digit."
  }
}

variable "endpoints" {
  description = <<-EOT
    Endpoints that are declared here rather than through API or CLI, where they are read-only then, by
    id. Each has a queue with its limits. Each is an object of
      url              https://… or pubsub://TOPIC (needed)
      event_types      patterns of what it is sent (default ["*"])
      rate_per_second  deliveries per second at most (default 50)
      max_concurrency  deliveries under way at once at most (default 20)
    and, where wanted: tenant, description, timeout ("15s"), retry ("41h", "0s,5m,1h;max-age=72h", or
    "exponential;base=10s;attempts=10", as sealpost endpoints add --retry), filter, record_filtered,
    payload_mode, ordering, headers ([{ name, value }]), legacy_signatures ([{ header, template }]), health
    ({ failures_to_open, cool_down, max_cool_down, disable_after }), owner, metadata, api_version.
    Credentials do not belong here: they would be in the state. One that is taken out is disabled, and what
    is sent to it held, until somebody removes it.
  EOT
  type        = any
  default     = {}

  validation {
    condition     = can(keys(var.endpoints)) && alltrue([for e in try(values(var.endpoints), []) : can(keys(e))])
    error_message = "endpoints must be a map from an endpoint's id to an object, such as { billing = { url = \"https://billing.example.com/hook\" } }."
  }
  validation {
    condition     = alltrue([for id in try(keys(var.endpoints), []) : can(regex("^[a-z0-9][a-z0-9_-]{0,62}$", id))])
    error_message = "endpoints: an id has 1 to 63 of a-z, 0-9, - and _, starting with a letter or digit."
  }
  validation {
    condition     = length(distinct([for id in try(keys(var.endpoints), []) : replace(id, "_", "-")])) == length(try(keys(var.endpoints), []))
    error_message = "endpoints: two ids differ in - and _ only; their queues would have one name."
  }
  validation {
    condition     = length(flatten([for id, s in try({ for k, v in var.endpoints : k => v }, {}) : [for name, v in try({ for k, v in s : k => v }, {}) : "${id}.${name}" if !contains(keys(local.endpoint_settings), name)]])) == 0
    error_message = "endpoints: no setting of an endpoint is called ${join(", ", flatten([for id, s in try({ for k, v in var.endpoints : k => v }, {}) : [for name, v in try({ for k, v in s : k => v }, {}) : "${id}.${name}" if !contains(keys(local.endpoint_settings), name)]]))}; there are ${join(", ", keys(local.endpoint_settings))}."
  }
  validation {
    condition     = length(flatten([for id, s in try({ for k, v in var.endpoints : k => v }, {}) : [for name, v in try({ for k, v in s : k => v }, {}) : "${id}.${name} (a ${try(local.endpoint_settings[name], "")})" if v != null && can(local.endpoint_settings[name]) && !can(regex(try(local.kinds[local.endpoint_settings[name]], "^"), jsonencode(v)))]])) == 0
    error_message = "endpoints: a value of another kind is wanted by ${join(", ", flatten([for id, s in try({ for k, v in var.endpoints : k => v }, {}) : [for name, v in try({ for k, v in s : k => v }, {}) : "${id}.${name} (a ${try(local.endpoint_settings[name], "")})" if v != null && can(local.endpoint_settings[name]) && !can(regex(try(local.kinds[local.endpoint_settings[name]], "^"), jsonencode(v)))]]))}."
  }
  validation {
    condition     = length([for id, s in try({ for k, v in var.endpoints : k => v }, {}) : id if !(can(regex("^(https://[^/@]+(/.*)?|pubsub://[A-Za-z][A-Za-z0-9._~+%-]{2,254})$", s.url)))]) == 0
    error_message = "endpoints: url must be https://… (without user and password) or pubsub://TOPIC, in ${join(", ", [for id, s in try({ for k, v in var.endpoints : k => v }, {}) : id if !(can(regex("^(https://[^/@]+(/.*)?|pubsub://[A-Za-z][A-Za-z0-9._~+%-]{2,254})$", s.url)))])}."
  }
  validation {
    condition     = length([for id, s in try({ for k, v in var.endpoints : k => v }, {}) : id if !(try(s.rate_per_second, null) == null || try(s.rate_per_second >= 0.001 && s.rate_per_second <= 500, false))]) == 0
    error_message = "endpoints: rate_per_second must be from 0.001 to 500, in ${join(", ", [for id, s in try({ for k, v in var.endpoints : k => v }, {}) : id if !(try(s.rate_per_second, null) == null || try(s.rate_per_second >= 0.001 && s.rate_per_second <= 500, false))])}."
  }
  validation {
    condition     = length([for id, s in try({ for k, v in var.endpoints : k => v }, {}) : id if !(try(s.max_concurrency, null) == null || try(s.max_concurrency >= 1 && s.max_concurrency <= 5000 && floor(s.max_concurrency) == s.max_concurrency, false))]) == 0
    error_message = "endpoints: max_concurrency must be a whole number from 1 to 5000, in ${join(", ", [for id, s in try({ for k, v in var.endpoints : k => v }, {}) : id if !(try(s.max_concurrency, null) == null || try(s.max_concurrency >= 1 && s.max_concurrency <= 5000 && floor(s.max_concurrency) == s.max_concurrency, false))])}."
  }
}

variable "event_schemas" {
  description = "JSON Schemas (2020-12) of event types that applications publish, by type."
  type        = any
  default     = {}

  validation {
    condition     = can(keys(var.event_schemas))
    error_message = "event_schemas must be a map from an event type to its schema."
  }
}

variable "event_publishers" {
  description = "Who may publish events to the topic sealpost-events."
  type        = set(string)
  default     = []
}

variable "destination_topics" {
  description = "Topics of this project that endpoints may name as pubsub://TOPIC. The dispatcher may publish to them."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for t in var.destination_topics : can(regex("^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$", t)) && !startswith(t, "sealpost-") && !startswith(t, "goog")])
    error_message = "destination_topics must be names of topics other than Sealpost's own, without projects/…/topics/."
  }
}

variable "operators" {
  description = "Who may use the command line against the installation: user:…, group:… or serviceAccount:…."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for m in var.operators : can(regex("^(user|group|serviceAccount):[^@]+@[^@]+$", m))])
    error_message = "operators must be named one by one, as user:…, group:… or serviceAccount:…; never allUsers or a whole domain."
  }
}

variable "keyset" {
  description = "The secret with the keyset that seals endpoints' keys, and its version numbers in use; the bootstrap makes the secret. Rotation: add a number."
  type = object({
    secret   = optional(string, "sealpost-keyset")
    versions = optional(list(number), [1])
  })
  default = {}

  validation {
    condition     = length(var.keyset.versions) > 0 && alltrue([for v in var.keyset.versions : v >= 1 && floor(v) == v])
    error_message = "keyset.versions must list at least one version number, from 1."
  }
}

variable "receiver" {
  description = "The public service that providers post to. memory must hold byte_budget and about 256 MiB beside it."
  type = object({
    min_instances = optional(number, 0)
    max_instances = optional(number, 20)
    concurrency   = optional(number, 80)
    cpu           = optional(string, "1")
    memory        = optional(string, "512Mi")
    byte_budget   = optional(number, 134217728)
    in_vpc        = optional(bool, false)
  })
  default = {}
}

variable "worker" {
  description = "What turns messages into deliveries. mode push scales to zero; pull is a worker pool of min_instances under steady load."
  type = object({
    mode               = optional(string, "push")
    min_instances      = optional(number, 0)
    max_instances      = optional(number, 10)
    concurrency        = optional(number, 80)
    cpu                = optional(string, "1")
    memory             = optional(string, "512Mi")
    commit_events      = optional(number, 50)
    commit_concurrency = optional(number, 1)
    task_concurrency   = optional(number, 64)
  })
  default = {}

  validation {
    condition     = contains(["push", "pull"], var.worker.mode)
    error_message = "worker.mode must be push or pull."
  }
}

variable "dispatcher" {
  description = "What sends to endpoints. At least one instance is always there: a fresh one may wait a minute for its way out."
  type = object({
    min_instances = optional(number, 1)
    max_instances = optional(number, 10)
    concurrency   = optional(number, 250)
    cpu           = optional(string, "1")
    memory        = optional(string, "1Gi")
  })
  default = {}

  validation {
    condition     = var.dispatcher.min_instances >= 1
    error_message = "dispatcher.min_instances must be at least 1: a fresh instance's connections may take a minute to work."
  }
}

variable "runtime_concurrency" {
  description = "Dispatches at once to leave room for, of endpoints that are added at run time."
  type        = number
  default     = 200
}

variable "max_queues" {
  description = "Cloud Tasks queues that the region may have in all; null: the usual quota of 1000."
  type        = number
  default     = null
}

variable "queue_generation" {
  description = "Change it to have every queue made anew, under a new name."
  type        = string
  default     = ""
}

variable "network" {
  description = "The network of everything that dials supplied URLs. nat_addresses is the number of fixed addresses; nat_draining lists those about to be removed."
  type = object({
    subnet_cidr   = optional(string, "10.80.0.0/24")
    nat_addresses = optional(number, 2)
    nat_draining  = optional(list(number), [])
    nat_min_ports = optional(number, 256)
    nat_max_ports = optional(number, 8192)
    nat_log       = optional(string, "ERRORS_ONLY")
  })
  default = {}
}

variable "egress" {
  description = "What may be dialled: ports, hosts exempt from the rules for Google-hosted names, ranges permitted though not public, a URL outside Google that must answer before failures count as an endpoint's, and an HTTP CONNECT proxy to go out through."
  type = object({
    ports          = optional(set(number), [443, 8443])
    allow_hosts    = optional(set(string), [])
    allow_prefixes = optional(set(string), [])
    probe_url      = optional(string, "https://example.com/")
    proxy          = optional(object({ url = string, cidr = string }))
  })
  default = {}

  validation {
    condition     = length(var.egress.ports) > 0 && alltrue([for p in var.egress.ports : p >= 1 && p <= 65535 && floor(p) == p])
    error_message = "egress.ports must list ports from 1 to 65535."
  }
  validation {
    condition     = alltrue([for p in var.egress.allow_prefixes : can(cidrhost(p, 0)) && !can(regex(":", p))])
    error_message = "egress.allow_prefixes must be IPv4 ranges such as 10.20.0.0/16; only IPv4 goes out."
  }
  validation {
    condition     = startswith(var.egress.probe_url, "https://") && !can(regex("^https://[^/]*(google|googleapis|gstatic|run\\.app|cloudfunctions)", var.egress.probe_url))
    error_message = "egress.probe_url must be an https URL that Google does not serve: traffic to Google does not pass the NAT whose working it is to prove."
  }
  validation {
    condition     = var.egress.proxy == null || try(can(regex("^https?://[^/]+:[0-9]+$", var.egress.proxy.url)) && can(cidrhost(var.egress.proxy.cidr, 0)), false)
    error_message = "egress.proxy needs url (http://HOST:PORT, without a password: that would be in the state) and cidr, the range that the proxy's addresses are in."
  }
}

variable "spanner" {
  description = "Size and safety of the database; see modules/spanner. 100 processing units are the floor, about $65 a month."
  type = object({
    config                   = optional(string)
    edition                  = optional(string, "STANDARD")
    processing_units         = optional(number, 100)
    autoscaling              = optional(object({ min_processing_units = optional(number, 1000), max_processing_units = number, cpu_percent = optional(number, 65), storage_percent = optional(number, 90) }))
    version_retention_period = optional(string, "7d")
    backup                   = optional(object({ cron = optional(string, "30 2 * * *"), retention_days = optional(number, 14) }), {})
    kms_key                  = optional(string)
    deletion_protection      = optional(bool, true)
  })
  default = {}
}

variable "pubsub" {
  description = "What goes beyond the topology file: see modules/pubsub."
  type = object({
    max_delivery_attempts = optional(number)
    topic_retention_days  = optional(number, 7)
    storage_regions       = optional(set(string), [])
    kms_key               = optional(string)
    events_schema         = optional(object({ type = string, definition = string }))
    archive               = optional(object({ dataset = string, table = string }))
  })
  default = {}
}

variable "retention" {
  description = "How long payloads and event rows (the memory of duplicates) are kept, as PAYLOAD_RETENTION and ROW_RETENTION; null: 720h and 1080h."
  type = object({
    payloads = optional(string)
    rows     = optional(string)
  })
  default = {}

  validation {
    condition     = alltrue([for v in values(var.retention) : v == null || can(regex("^[1-9][0-9]*h$", v))])
    error_message = "retention.payloads and retention.rows must be hours such as 720h."
  }
}

variable "secret_replicas" {
  description = "Regions that hold the sources' secrets; empty: Google chooses."
  type        = list(string)
  default     = []
}

variable "binary_authorization" {
  description = "Whether Cloud Run asks the project's Binary Authorization policy before it runs an image."
  type        = bool
  default     = false
}

variable "front_door" {
  description = "A global load balancer with a managed certificate and Cloud Armor before the receiver; null: providers post to its run.app address."
  type = object({
    domains             = list(string)
    requests_per_minute = optional(number, 6000) # per client address
    allow_ranges        = optional(map(list(string)), {})
    client_ca           = optional(string) # PEM: who signs the client certificates that mtls_subject and mtls_san speak of
  })
  default = null

  validation {
    condition     = var.front_door == null || try(length(var.front_door.domains) > 0 && alltrue([for d in var.front_door.domains : can(regex("^([a-z0-9-]+\\.)+[a-z]{2,}$", d))]), false)
    error_message = "front_door.domains must list at least one domain name such as hooks.example.com."
  }
  validation {
    condition     = alltrue([for id in keys(try(var.front_door.allow_ranges, {})) : can(var.sources[id])])
    error_message = "front_door.allow_ranges: each key must be the id of a source."
  }
}

variable "monitoring" {
  description = "Alerts and whom they reach: notification_channels are full names (projects/P/notificationChannels/N), emails make channels of their own."
  type = object({
    enabled               = optional(bool, true)
    notification_channels = optional(set(string), [])
    emails                = optional(set(string), [])
  })
  default = {}
}
