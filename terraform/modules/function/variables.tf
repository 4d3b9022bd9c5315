variable "name" {
  description = "Name of the function as in functions/."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,15}$", var.name))
    error_message = "A function's name has 2 to 16 lower-case letters, digits and hyphens, since sealpost-NAME-call is an account's id."
  }
}

variable "description" {
  description = "What the function does, in one sentence."
  type        = string
}

variable "project_id" {
  description = "The project."
  type        = string
}

variable "project_number" {
  description = "The project's number."
  type        = string
}

variable "region" {
  description = "Where it runs."
  type        = string
}

variable "image" {
  description = "The product's image."
  type        = string
}

variable "env" {
  description = "The function's settings."
  type        = map(string)
  default     = {}
}

variable "roles" {
  description = "All that the function's account may do, as in modules/service."
  type        = any
  default     = {}
}

variable "invokers" {
  description = "Who else may call it, such as the account of a push subscription."
  type        = map(string)
  default     = {}
}

variable "schedule" {
  description = "When Cloud Scheduler calls it, and with what data."
  type = object({
    cron      = string
    time_zone = optional(string, "Etc/UTC")
    retries   = optional(number, 1)
    data      = optional(map(string), {})
  })
  default = null
}

variable "eventarc" {
  description = "Which events call it: criteria by attribute, and the topic where those are Pub/Sub's."
  type = object({
    criteria = map(string)
    topic    = optional(string)
  })
  default = null

  validation {
    condition     = var.eventarc == null || try(contains(keys(var.eventarc.criteria), "type"), false)
    error_message = "eventarc.criteria needs a type."
  }
}

variable "vpc" {
  description = "Network and subnetwork, for functions that dial URLs which somebody supplied."
  type        = object({ network = string, subnetwork = string })
  default     = null
}

variable "max_instances" {
  description = "Instances at most."
  type        = number
  default     = 3
}

variable "concurrency" {
  description = "Calls at once in an instance."
  type        = number
  default     = 10
}

variable "memory" {
  description = "Memory of an instance."
  type        = string
  default     = "512Mi"
}

variable "timeout_seconds" {
  description = "How long a call may take."
  type        = number
  default     = 300
}

variable "binary_authorization" {
  description = "Whether the project's Binary Authorization policy is asked."
  type        = bool
  default     = false
}

variable "labels" {
  description = "Labels."
  type        = map(string)
  default     = {}
}
