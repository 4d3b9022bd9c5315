# The one source of truth. Nothing here is ever replaced or destroyed by Terraform:
# prevent_destroy stops such a plan, the provider's and Spanner's own protection
# stop what gets past it, and the schema is checked against the list of what has
# landed, since the provider re-creates a database whose landed statements differ.

locals {
  # As internal/store/ddl.go reads the files: a comment is a whole line, a statement
  # ends with a semicolon at the end of a line.
  ddl = flatten([
    for name in sort(fileset(var.ddl, "*.sql")) : [
      for i, sql in [
        for part in split(";\n", "${join("\n", [
          for line in split("\n", replace(file("${var.ddl}/${name}"), "\r\n", "\n")) : line if !startswith(line, "--")
        ])}\n") : trimspace(part) if trimspace(part) != ""
      ] : { sql = sql, sum = "${sha256(sql)} ${name}#${i}" }
    ]
  ])
  statements = [for s in local.ddl : s.sql]
  sums       = [for s in local.ddl : s.sum]
  landed     = [for l in split("\n", replace(file("${var.ddl}/landed.sum"), "\r\n", "\n")) : trimspace(l) if trimspace(l) != ""]
}

resource "google_spanner_instance" "this" {
  project                      = var.project_id
  name                         = var.instance
  config                       = var.config
  display_name                 = "Sealpost"
  edition                      = var.emulator ? null : var.edition
  processing_units             = var.autoscaling == null ? var.processing_units : null
  default_backup_schedule_type = var.emulator ? null : "NONE" # ours is below
  labels                       = var.labels
  force_destroy                = false

  dynamic "autoscaling_config" {
    for_each = var.autoscaling == null ? [] : [var.autoscaling]
    content {
      autoscaling_limits {
        min_processing_units = autoscaling_config.value.min_processing_units
        max_processing_units = autoscaling_config.value.max_processing_units
      }
      autoscaling_targets {
        high_priority_cpu_utilization_percent = autoscaling_config.value.cpu_percent
        storage_utilization_percent           = autoscaling_config.value.storage_percent
      }
    }
  }

  lifecycle {
    prevent_destroy = true

    precondition {
      condition     = var.autoscaling == null || var.edition != "STANDARD"
      error_message = "spanner.autoscaling needs spanner.edition ENTERPRISE or ENTERPRISE_PLUS; with STANDARD set spanner.processing_units instead."
    }
  }
}

resource "google_spanner_database" "this" {
  project                  = var.project_id
  instance                 = google_spanner_instance.this.name
  name                     = var.database
  version_retention_period = var.emulator ? null : var.version_retention_period
  ddl                      = local.statements
  deletion_protection      = var.deletion_protection
  enable_drop_protection   = var.emulator ? null : var.deletion_protection

  dynamic "encryption_config" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      kms_key_name = encryption_config.value
    }
  }

  lifecycle {
    prevent_destroy = true

    precondition {
      # The landed statements, in order and unchanged, come first: what remains is appended.
      condition     = length(local.sums) >= length(local.landed) && slice(local.sums, 0, min(length(local.sums), length(local.landed))) == local.landed
      error_message = "A landed statement of the schema was edited, moved or removed (compare with ${var.ddl}/landed.sum). Undo that and append a new statement: Terraform would re-create the database."
    }
  }
}

resource "google_spanner_backup_schedule" "full" {
  count = var.emulator || var.backup == null ? 0 : 1

  project            = var.project_id
  instance           = google_spanner_instance.this.name
  database           = google_spanner_database.this.name
  name               = "sealpost-full"
  retention_duration = "${var.backup.retention_days * 86400}s"

  spec {
    cron_spec {
      text = var.backup.cron
    }
  }
  full_backup_spec {}
}
