variable "name" {
  description = "Name of the service as in services/: the Cloud Run service and its account are called sealpost-NAME."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,19}$", var.name))
    error_message = "A service's name has 2 to 20 lower-case letters, digits and hyphens, since sealpost-NAME is an account's id too."
  }
}

variable "description" {
  description = "What the service does, in one sentence."
  type        = string
}

variable "project_id" {
  description = "The project."
  type        = string
}

variable "project_number" {
  description = "The project's number, part of the service's URL."
  type        = string
}

variable "region" {
  description = "Where it runs."
  type        = string
}

variable "kind" {
  description = "service (called over HTTP) or worker_pool (pulls, always on)."
  type        = string
  default     = "service"

  validation {
    condition     = contains(["service", "worker_pool"], var.kind)
    error_message = "kind must be service or worker_pool."
  }
}

variable "image" {
  description = "The product's image."
  type        = string
}

variable "command" {
  description = "Which of the image's binaries runs."
  type        = list(string)
}

variable "env" {
  description = "The service's settings."
  type        = map(string)
}

variable "roles" {
  description = "All that the service's account may do. Keys only tell bindings apart."
  type = object({
    project   = optional(map(string), {}) # role names, for what has no narrower place
    database  = optional(map(object({ instance = string, database = string, role = string })), {})
    publish   = optional(map(string), {}) # topics
    subscribe = optional(map(string), {}) # subscriptions
    secrets   = optional(map(string), {}) # secrets to read
    acts_as   = optional(map(string), {}) # e-mails of service accounts
  })
  default = {}
}

variable "public" {
  description = "Whether anybody may call it. The invoker check is then off, since organisations forbid allUsers."
  type        = bool
  default     = false
}

variable "invokers" {
  description = "Who may call it."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for m in values(var.invokers) : can(regex("^(serviceAccount|group|user):.+@.+", m))])
    error_message = "invokers must be named one by one; never allUsers or allAuthenticatedUsers."
  }
}

variable "ingress" {
  description = "INGRESS_TRAFFIC_ALL, INGRESS_TRAFFIC_INTERNAL_ONLY or INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER."
  type        = string
  default     = "INGRESS_TRAFFIC_INTERNAL_ONLY"

  validation {
    condition     = contains(["INGRESS_TRAFFIC_ALL", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER"], var.ingress)
    error_message = "ingress must be INGRESS_TRAFFIC_ALL, INGRESS_TRAFFIC_INTERNAL_ONLY or INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER."
  }
}

variable "vpc" {
  description = "Network and subnetwork for all outgoing traffic; null: Google's own way out."
  type        = object({ network = string, subnetwork = string })
  default     = null
}

variable "min_instances" {
  description = "Instances that are always there."
  type        = number
  default     = 0
}

variable "max_instances" {
  description = "Instances at most."
  type        = number
  default     = 10

  validation {
    condition     = var.max_instances >= 1 && var.max_instances >= var.min_instances
    error_message = "max_instances must be at least 1 and at least min_instances."
  }
}

variable "concurrency" {
  description = "Requests at once in an instance."
  type        = number
  default     = 80

  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 1000
    error_message = "concurrency must be from 1 to 1000."
  }
}

variable "cpu" {
  description = "CPUs of an instance."
  type        = string
  default     = "1"
}

variable "memory" {
  description = "Memory of an instance."
  type        = string
  default     = "512Mi"
}

variable "cpu_idle" {
  description = "Whether the CPU is taken away between requests, and not paid for."
  type        = bool
  default     = true
}

variable "timeout_seconds" {
  description = "How long a request may take."
  type        = number
  default     = 60

  validation {
    condition     = var.timeout_seconds >= 1 && var.timeout_seconds <= 3600
    error_message = "timeout_seconds must be from 1 to 3600."
  }
}

variable "startup_seconds" {
  description = "How long a new instance may take until it is ready."
  type        = number
  default     = 60

  validation {
    condition     = var.startup_seconds >= 5 && var.startup_seconds <= 240
    error_message = "startup_seconds must be from 5 to 240, as Cloud Run has it."
  }
}

variable "binary_authorization" {
  description = "Whether the project's Binary Authorization policy is asked."
  type        = bool
  default     = false
}

variable "deletion_protection" {
  description = "Whether Terraform refuses to delete it."
  type        = bool
  default     = false
}

variable "labels" {
  description = "Labels."
  type        = map(string)
  default     = {}
}
