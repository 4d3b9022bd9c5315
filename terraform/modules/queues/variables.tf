variable "project_id" {
  description = "The project."
  type        = string
}

variable "location" {
  description = "Region of the queues."
  type        = string
}

variable "topology" {
  description = "The decoded topology file: queues."
  type        = any
}

variable "endpoints" {
  description = "Declared endpoints by id, with the limits that their queues enforce."
  type        = map(object({ rate_per_second = number, max_concurrency = number }))
  default     = {}
}

variable "generation" {
  description = "Change it to have every queue made anew, under a new name."
  type        = string
  default     = ""
}

variable "log_sampling" {
  description = "Which part of the queues' operations Cloud Tasks logs, 0 to 1."
  type        = number
  default     = 0

  validation {
    condition     = var.log_sampling >= 0 && var.log_sampling <= 1
    error_message = "queues.log_sampling must be from 0 to 1."
  }
}
