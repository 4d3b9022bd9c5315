variable "project_id" {
  description = "The project."
  type        = string
}

variable "instance" {
  description = "Name of the instance."
  type        = string
  default     = "sealpost"
}

variable "database" {
  description = "Name of the database."
  type        = string
  default     = "sealpost"
}

variable "config" {
  description = "Where the instance lives: regional-REGION, or a multi-region such as nam-eur-asia1."
  type        = string
}

variable "edition" {
  description = "STANDARD, ENTERPRISE or ENTERPRISE_PLUS."
  type        = string
  default     = "STANDARD"

  validation {
    condition     = contains(["STANDARD", "ENTERPRISE", "ENTERPRISE_PLUS"], var.edition)
    error_message = "spanner.edition must be STANDARD, ENTERPRISE or ENTERPRISE_PLUS."
  }
}

variable "processing_units" {
  description = "Size without autoscaling: multiples of 100 up to 1000, then of 1000."
  type        = number
  default     = 100

  validation {
    condition     = var.processing_units >= 100 && var.processing_units % (var.processing_units < 1000 ? 100 : 1000) == 0
    error_message = "spanner.processing_units must be a multiple of 100 up to 1000, and of 1000 above."
  }
}

variable "autoscaling" {
  description = "Bounds and targets of Spanner's own autoscaler, which needs at least the Enterprise edition."
  type = object({
    min_processing_units = optional(number, 1000)
    max_processing_units = number
    cpu_percent          = optional(number, 65)
    storage_percent      = optional(number, 90)
  })
  default = null

  validation {
    condition     = var.autoscaling == null || try(var.autoscaling.min_processing_units >= 1000 && var.autoscaling.max_processing_units > var.autoscaling.min_processing_units && var.autoscaling.max_processing_units <= 10 * var.autoscaling.min_processing_units, false)
    error_message = "spanner.autoscaling needs min_processing_units of 1000 or more, and max_processing_units above it, at most ten times as much."
  }
}

variable "version_retention_period" {
  description = "How far back the database can be read or restored to, 1h to 7d."
  type        = string
  default     = "7d"

  validation {
    condition     = can(regex("^([1-9][0-9]*h|[1-7]d)$", var.version_retention_period))
    error_message = "spanner.version_retention_period must be hours or days from 1h to 7d, such as 3d."
  }
}

variable "backup" {
  description = "Full backups: when (UTC), and how long they are kept. null: none."
  type = object({
    cron           = optional(string, "30 2 * * *")
    retention_days = optional(number, 14)
  })
  default = {}

  validation {
    condition     = var.backup == null || try(var.backup.retention_days >= 1 && var.backup.retention_days <= 366, false)
    error_message = "spanner.backup.retention_days must be from 1 to 366."
  }
}

variable "kms_key" {
  description = "Key that encrypts the database; null: Google's. It cannot be changed later."
  type        = string
  default     = null
}

variable "ddl" {
  description = "Folder with the schema's files and landed.sum."
  type        = string
}

variable "deletion_protection" {
  description = "Terraform's and Spanner's own protection against deletion."
  type        = bool
  default     = true
}

variable "labels" {
  description = "Labels of the instance."
  type        = map(string)
  default     = {}
}

variable "emulator" {
  description = "Leave out what the Spanner emulator does not know: editions, version retention, drop protection, backups."
  type        = bool
  default     = false
}
