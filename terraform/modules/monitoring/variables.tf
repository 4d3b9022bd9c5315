variable "project_id" {
  description = "The project."
  type        = string
}

variable "region" {
  description = "Where the services run."
  type        = string
}

variable "notification_channels" {
  description = "Full names of channels that exist: projects/P/notificationChannels/N."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for c in var.notification_channels : can(regex("^projects/[^/]+/notificationChannels/[0-9]+$", c))])
    error_message = "monitoring.notification_channels must be full names such as projects/my-project/notificationChannels/123."
  }
}

variable "emails" {
  description = "Addresses that get a channel of their own."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for e in var.emails : can(regex("^[^@ ]+@[^@ ]+$", e))])
    error_message = "monitoring.emails must be e-mail addresses."
  }
}

variable "spanner_instance" {
  description = "Name of the Spanner instance."
  type        = string
}

variable "nat_gateway" {
  description = "Name of the NAT gateway."
  type        = string
}

variable "labels" {
  description = "Labels of alerts and channels."
  type        = map(string)
  default     = {}
}
