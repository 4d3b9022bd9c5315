# The database. Case: an edited statement makes the provider destroy and re-create
# it; so only appending plans at all.

mock_provider "google" {}

variables {
  project_id = "my-project"
  config     = "regional-europe-west1"
  ddl        = "../internal/store/ddl"
}

run "ours" {
  command = plan
  module {
    source = "./modules/spanner"
  }

  assert {
    condition     = google_spanner_database.this.deletion_protection && google_spanner_database.this.enable_drop_protection && google_spanner_instance.this.force_destroy == false
    error_message = "Both kinds of protection must be on."
  }
  assert {
    condition     = google_spanner_database.this.version_retention_period == "7d" && one(google_spanner_backup_schedule.full).retention_duration == "1209600s"
    error_message = "The database must be readable a week back, and backed up."
  }
  assert {
    condition     = startswith(google_spanner_database.this.ddl[0], "CREATE TABLE Events (") && alltrue([for s in google_spanner_database.this.ddl : !strcontains(s, "--") && !endswith(s, ";") && trimspace(s) == s])
    error_message = "Statements must be bare."
  }
  assert {
    condition     = length(google_spanner_database.this.ddl) == length(local.landed)
    error_message = "Not every statement has landed."
  }
  assert {
    condition     = google_spanner_instance.this.processing_units == 100 && google_spanner_instance.this.edition == "STANDARD" && google_spanner_instance.this.default_backup_schedule_type == "NONE"
    error_message = "The default is the smallest instance, and no backups but ours."
  }
}

run "before" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    ddl = "tests/ddl/landed"
  }
}

# What has landed comes first, as it was: the provider then updates in place.
run "appended" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    ddl = "tests/ddl/appended"
  }

  assert {
    condition     = slice(google_spanner_database.this.ddl, 0, length(run.before.ddl)) == run.before.ddl && length(google_spanner_database.this.ddl) == length(run.before.ddl) + 1
    error_message = "Appending must leave what was there as it is."
  }
  assert {
    condition     = google_spanner_database.this.name == run.before.database
    error_message = "Appending must change nothing else."
  }
}

run "edited" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    ddl = "tests/ddl/edited"
  }
  expect_failures = [google_spanner_database.this]
}

run "removed" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    ddl = "tests/ddl/removed"
  }
  expect_failures = [google_spanner_database.this]
}

run "autoscaling_in_the_standard_edition" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    autoscaling = { max_processing_units = 5000 }
  }
  expect_failures = [google_spanner_instance.this]
}

run "autoscaling" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    edition     = "ENTERPRISE"
    autoscaling = { max_processing_units = 5000 }
  }
  assert {
    condition     = one(one(google_spanner_instance.this.autoscaling_config).autoscaling_limits).min_processing_units == 1000
    error_message = "Autoscaling starts at a node."
  }
}

run "odd_size" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    processing_units = 150
  }
  expect_failures = [var.processing_units]
}

run "size_between_nodes" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    processing_units = 1100
  }
  expect_failures = [var.processing_units]
}

run "versions_kept_too_long" {
  command = plan
  module {
    source = "./modules/spanner"
  }
  variables {
    version_retention_period = "8d"
  }
  expect_failures = [var.version_retention_period]
}
