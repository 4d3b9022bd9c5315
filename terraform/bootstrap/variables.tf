variable "project_id" {
  description = "The Google Cloud project, with billing."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be a project's id (6 to 30 lower-case letters, digits and hyphens), not its name or number."
  }
}

variable "region" {
  description = "Where the image and the state lie; the root's region."
  type        = string
  default     = "us-central1"
}

variable "deploy" {
  description = "Whether the build account may deploy too, not only build."
  type        = bool
  default     = true
}

variable "trigger" {
  description = "A connected repository (projects/P/locations/R/connections/C/repositories/N) and the branch, as a regular expression, whose pushes are built."
  type = object({
    repository = string
    branch     = optional(string, "^main$")
    approval   = optional(bool, true)
  })
  default = null
}

variable "secret_replicas" {
  description = "Regions that hold the keyset; empty: Google chooses."
  type        = list(string)
  default     = []
}

variable "labels" {
  description = "Labels."
  type        = map(string)
  default     = {}
}
