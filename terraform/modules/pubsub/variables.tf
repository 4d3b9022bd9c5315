variable "project_id" {
  description = "The project."
  type        = string
}

variable "project_number" {
  description = "The project's number, which the Pub/Sub agent's address holds."
  type        = string
}

variable "topology" {
  description = "The decoded topology file: topics and subscriptions."
  type        = any
}

variable "push" {
  description = "The worker's URL and the service account whose token pushes carry; null: subscriptions are pulled."
  type        = object({ url = string, service_account = optional(string) })
  default     = null
}

variable "direct_sources" {
  description = "Providers that publish to a topic of this project themselves, by id: who may publish."
  type        = map(object({ publisher = optional(string) }))
  default     = {}
}

variable "event_publishers" {
  description = "Who may publish to sealpost-events: serviceAccount:…, group:…, user:… or a principal of a workload identity pool."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for m in var.event_publishers : can(regex("^(serviceAccount|group|user|principal|principalSet):.+", m))])
    error_message = "event_publishers must be named one by one, as serviceAccount:…, group:…, user:…, principal:… or principalSet:…; never allUsers or a whole domain."
  }
}

variable "max_delivery_attempts" {
  description = "How often a message is tried before it is dead; null: as the topology has it."
  type        = number
  default     = null

  validation {
    condition     = var.max_delivery_attempts == null || try(var.max_delivery_attempts >= 5 && var.max_delivery_attempts <= 100 && floor(var.max_delivery_attempts) == var.max_delivery_attempts, false)
    error_message = "pubsub.max_delivery_attempts must be a whole number from 5 to 100, as Pub/Sub has it; few attempts make dead letters of a backlog that only waits for us."
  }
}

variable "topic_retention_days" {
  description = "How far back a subscription can be sought, 1 to 31 days."
  type        = number
  default     = 7

  validation {
    condition     = var.topic_retention_days >= 1 && var.topic_retention_days <= 31
    error_message = "pubsub.topic_retention_days must be from 1 to 31."
  }
}

variable "storage_regions" {
  description = "Regions that messages may be stored in; empty: wherever the organisation permits."
  type        = set(string)
  default     = []
}

variable "kms_key" {
  description = "Key that encrypts messages; null: Google's."
  type        = string
  default     = null
}

variable "events_schema" {
  description = "Pub/Sub schema that messages to sealpost-events must follow."
  type        = object({ type = string, definition = string })
  default     = null
}

variable "archive" {
  description = "BigQuery dataset and table that get a copy of every message; the table has Pub/Sub's columns."
  type        = object({ dataset = string, table = string })
  default     = null
}

variable "labels" {
  description = "Labels of topics and subscriptions."
  type        = map(string)
  default     = {}
}

variable "emulator" {
  description = "Leave out what the Pub/Sub emulator does not know: IAM, and retention of more than 7 days."
  type        = bool
  default     = false
}
