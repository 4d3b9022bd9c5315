# Queues. Case: a deleted queue's name stays unusable for days; so a queue that is
# made anew has a new name, and an apply after a destroy works at once.

mock_provider "google" {}

variables {
  project_id = "my-project"
  location   = "europe-west1"
  topology = {
    queues = {
      sealpost-control = { role = "control", max_dispatches_per_second = 50, max_concurrent_dispatches = 10, max_attempts = -1, min_backoff_seconds = 5, max_backoff_seconds = 300, max_doublings = 6 }
      sealpost-pool-0  = { role = "pool", max_dispatches_per_second = 50, max_concurrent_dispatches = 20, max_attempts = -1, min_backoff_seconds = 5, max_backoff_seconds = 300, max_doublings = 6 }
      sealpost-pool-1  = { role = "pool", max_dispatches_per_second = 50, max_concurrent_dispatches = 20, max_attempts = -1, min_backoff_seconds = 5, max_backoff_seconds = 300, max_doublings = 6 }
    }
  }
  endpoints = { big_one = { rate_per_second = 2.5, max_concurrency = 3 } }
}

run "first" {
  module {
    source = "./modules/queues"
  }

  assert {
    condition     = alltrue([for q in values(google_cloud_tasks_queue.this) : can(regex("^sealpost-[a-z0-9-]+-[0-9]{12}$", q.name))])
    error_message = "Names must end in the time of their planning."
  }
  assert {
    condition     = length(output.pools) == 2 && startswith(output.pools[0], "sealpost-pool-0-") && startswith(output.control, "sealpost-control-") && startswith(output.endpoints["big_one"], "sealpost-ep-big-one-")
    error_message = "The code is told wrong names."
  }
  assert {
    condition     = one(google_cloud_tasks_queue.this["sealpost-ep-big-one"].rate_limits).max_dispatches_per_second == 2.5 && one(google_cloud_tasks_queue.this["sealpost-ep-big-one"].rate_limits).max_concurrent_dispatches == 3
    error_message = "A declared endpoint's limits are its queue's."
  }
  assert {
    condition     = alltrue([for q in values(google_cloud_tasks_queue.this) : one(q.retry_config).max_attempts == -1 && one(q.retry_config).min_backoff == "5s" && one(q.retry_config).max_backoff == "300s"])
    error_message = "A run that failed by our fault comes again, for ever; Spanner decides when to give up."
  }
  assert {
    condition     = output.concurrency == 53
    error_message = "Reserved concurrency is ${output.concurrency}."
  }
}

run "again" {
  module {
    source = "./modules/queues"
  }
  assert {
    condition     = output.pools == run.first.pools && output.control == run.first.control && output.endpoints == run.first.endpoints
    error_message = "Queues must keep their names from apply to apply."
  }
}

run "limits_change" {
  module {
    source = "./modules/queues"
  }
  variables {
    endpoints = { big_one = { rate_per_second = 5, max_concurrency = 3 }, other = { rate_per_second = 1, max_concurrency = 1 } }
  }
  assert {
    condition     = output.endpoints["big_one"] == run.first.endpoints["big_one"] && output.pools == run.first.pools
    error_message = "A changed limit must not make a queue anew."
  }
}

run "another_generation" {
  command = plan
  module {
    source = "./modules/queues"
  }
  variables {
    generation = "2"
  }
  assert {
    condition     = alltrue([for k, g in terraform_data.generation : g.triggers_replace[0] == "2"])
    error_message = "A new generation must replace the names."
  }
}
