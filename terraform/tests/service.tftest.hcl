# Services and functions, each with its account, its roles and who may call it.

mock_provider "google" {}

variables {
  project_id     = "my-project"
  project_number = "123456789012"
  region         = "europe-west1"
  image          = "europe-west1-docker.pkg.dev/my-project/sealpost/sealpost@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  name           = "relay"
  description    = "Publishes rows of the outbox."
  command        = ["/relay"]
  env            = { GOOGLE_CLOUD_PROJECT = "my-project" }
}

run "private" {
  command = plan
  module {
    source = "./modules/service"
  }
  variables {
    invokers = { tasks = "serviceAccount:sealpost-tasks@my-project.iam.gserviceaccount.com" }
    roles = {
      project  = { tasks = "projects/my-project/roles/sealpostTaskScheduler" }
      database = { rows = { instance = "sealpost", database = "sealpost", role = "projects/my-project/roles/sealpostDatabaseUser" } }
      publish  = { events = "sealpost-events" }
      secrets  = { keyset = "sealpost-keyset" }
      acts_as  = { tasks = "sealpost-tasks@my-project.iam.gserviceaccount.com" }
    }
    vpc = { network = "n", subnetwork = "s" }
  }

  assert {
    condition     = google_cloud_run_v2_service.this[0].invoker_iam_disabled == false && google_cloud_run_v2_service.this[0].ingress == "INGRESS_TRAFFIC_INTERNAL_ONLY"
    error_message = "A service is private unless it says otherwise."
  }
  assert {
    condition     = google_cloud_run_v2_service_iam_member.invoker["tasks"].role == "roles/run.invoker" && length(google_cloud_run_v2_service_iam_member.invoker) == 1
    error_message = "Only its invokers may call it."
  }
  assert {
    condition     = one(google_cloud_run_v2_service.this[0].template).service_account == "sealpost-relay@my-project.iam.gserviceaccount.com" && google_service_account.this.account_id == "sealpost-relay"
    error_message = "It must run as its own account."
  }
  assert {
    condition     = one(one(google_cloud_run_v2_service.this[0].template).vpc_access).egress == "ALL_TRAFFIC"
    error_message = "In the network, all traffic goes through it."
  }
  assert {
    condition     = one(one(one(google_cloud_run_v2_service.this[0].template).containers).startup_probe[*].http_get[0]).path == "/health/ready" && one(one(one(google_cloud_run_v2_service.this[0].template).containers).liveness_probe[*].http_get[0]).path == "/health/live"
    error_message = "Probes are missing."
  }
  assert {
    condition     = !endswith("/health/ready", "z") && one(one(one(google_cloud_run_v2_service.this[0].template).containers).resources).startup_cpu_boost && one(google_cloud_run_v2_service.this[0].template).execution_environment == "EXECUTION_ENVIRONMENT_GEN2"
    error_message = "Second generation, with a boost at the start."
  }
  assert {
    condition     = length(google_project_iam_member.this) + length(google_spanner_database_iam_member.this) + length(google_pubsub_topic_iam_member.this) + length(google_pubsub_subscription_iam_member.this) + length(google_secret_manager_secret_iam_member.this) + length(google_service_account_iam_member.acts_as) == 5
    error_message = "The account has roles that nobody listed."
  }
  assert {
    condition     = google_cloud_run_v2_service.this[0].custom_audiences == tolist(["https://sealpost-relay-123456789012.europe-west1.run.app"])
    error_message = "Callers' tokens are for the address that follows from the name."
  }
}

run "public" {
  command = plan
  module {
    source = "./modules/service"
  }
  variables {
    public  = true
    ingress = "INGRESS_TRAFFIC_ALL"
  }
  assert {
    condition     = google_cloud_run_v2_service.this[0].invoker_iam_disabled && length(google_cloud_run_v2_service_iam_member.invoker) == 0
    error_message = "Public is without a check, not with allUsers: organisations forbid that."
  }
}

run "public_with_invokers" {
  command = plan
  module {
    source = "./modules/service"
  }
  variables {
    public   = true
    invokers = { tasks = "serviceAccount:sealpost-tasks@my-project.iam.gserviceaccount.com" }
  }
  expect_failures = [google_cloud_run_v2_service.this]
}

run "invoked_by_everybody" {
  command = plan
  module {
    source = "./modules/service"
  }
  variables {
    invokers = { everybody = "allUsers" }
  }
  expect_failures = [var.invokers]
}

run "settings_too_large" {
  command = plan
  module {
    source = "./modules/service"
  }
  variables {
    env = { SOURCES = join("", [for i in range(1000) : "012345678901234567890123456789"]) }
  }
  expect_failures = [google_cloud_run_v2_service.this]
}

run "name_too_long" {
  command = plan
  module {
    source = "./modules/service"
  }
  variables {
    name = "abcdefghijklmnopqrstu"
  }
  expect_failures = [var.name]
}

run "worker_pool" {
  command = plan
  module {
    source = "./modules/service"
  }
  variables {
    kind          = "worker_pool"
    min_instances = 0
  }
  assert {
    condition     = length(google_cloud_run_v2_service.this) == 0 && one(google_cloud_run_v2_worker_pool.this[0].scaling).manual_instance_count == 1
    error_message = "A worker pool has at least one instance, and no address."
  }
  assert {
    condition     = output.url == null
    error_message = "A worker pool has no address."
  }
}

run "scheduled_function" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    name     = "sweep"
    schedule = { cron = "* * * * *" }
  }
  assert {
    condition     = one(google_cloud_scheduler_job.this[0].http_target).headers == tomap({ "Content-Type" = "application/cloudevents+json" }) && jsondecode(base64decode(one(google_cloud_scheduler_job.this[0].http_target).body)).specversion == "1.0"
    error_message = "Scheduler knows no CloudEvents: it must post a structured one."
  }
  assert {
    condition     = one(one(google_cloud_scheduler_job.this[0].http_target).oidc_token) == { service_account_email = "sealpost-sweep-call@my-project.iam.gserviceaccount.com", audience = "https://sealpost-sweep-123456789012.europe-west1.run.app" }
    error_message = "Scheduler must call in the trigger's name."
  }
}

run "function_of_eventarc" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    name     = "deadletter"
    eventarc = { criteria = { type = "google.cloud.pubsub.topic.v1.messagePublished" }, topic = "projects/my-project/topics/sealpost-inbound-dead" }
  }
  assert {
    condition     = google_eventarc_trigger.this[0].service_account == "sealpost-deadletter-call@my-project.iam.gserviceaccount.com" && google_project_iam_member.eventarc[0].role == "roles/eventarc.eventReceiver"
    error_message = "Eventarc must call in the trigger's name, which may receive events."
  }
}

run "function_of_eventarc_without_a_type" {
  command = plan
  module {
    source = "./modules/function"
  }
  variables {
    name     = "deadletter"
    eventarc = { criteria = { source = "x" } }
  }
  expect_failures = [var.eventarc]
}
