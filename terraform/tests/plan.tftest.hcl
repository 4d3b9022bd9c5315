# The minimal installation, as planned. The provider is a mock: no cloud and no
# credentials are needed.

mock_provider "google" {}

variables {
  project_id     = "my-project"
  project_number = "123456789012"
  region         = "europe-west1"
  image          = "europe-west1-docker.pkg.dev/my-project/sealpost/sealpost@sha256:0000000000000000000000000000000000000000000000000000000000000000"
  sources = {
    stripe = { scheme = "stripe", secret_versions = [1] }
    github = { scheme = "github" }
  }
}

run "minimal" {
  command = plan

  # Services
  assert {
    condition     = module.receiver.url == "https://sealpost-receiver-123456789012.europe-west1.run.app"
    error_message = "The receiver's address does not follow from its name."
  }
  assert {
    condition     = output.source_urls == { stripe = "https://sealpost-receiver-123456789012.europe-west1.run.app/in/stripe" }
    error_message = "A source without versions is served, or one with versions is not: ${jsonencode(output.source_urls)}"
  }
  assert {
    condition     = output.unserved_sources == tolist(["github"])
    error_message = "github is not told to be unserved."
  }
  assert {
    condition     = output.source_secrets == { github = "sealpost-source-github", stripe = "sealpost-source-stripe" }
    error_message = "Each source needs a secret, served or not."
  }
  assert {
    condition     = [for u in values(output.service_urls) : u] == [for s in ["dispatcher", "receiver", "worker"] : "https://sealpost-${s}-123456789012.europe-west1.run.app"]
    error_message = "Services are missing."
  }
  assert {
    condition     = local.served_sources.stripe.scheme == "stripe" && !contains(keys(local.served_sources), "github")
    error_message = "What is served is wrong."
  }
  assert {
    condition = jsondecode(local.sources_json) == [{
      id         = "stripe"
      scheme     = "stripe"
      public_url = "https://sealpost-receiver-123456789012.europe-west1.run.app/in/stripe"
      secrets    = [{ name = "sealpost-source-stripe", versions = [1] }]
    }]
    error_message = "SOURCES is ${local.sources_json}"
  }

  # Narrow roles
  assert {
    condition     = alltrue([for r in values(google_project_iam_custom_role.this) : alltrue([for p in r.permissions : !strcontains(p, "*")])])
    error_message = "A role with a wildcard."
  }
  assert {
    condition     = google_project_iam_custom_role.this["sealpostTaskScheduler"].permissions == toset(["cloudtasks.queues.delete", "cloudtasks.queues.get", "cloudtasks.tasks.create"])
    error_message = "The scheduler's role changed: is that needed?"
  }
  assert {
    condition     = alltrue([for p in google_project_iam_custom_role.this["sealpostDatabaseUser"].permissions : !strcontains(p, "updateDdl") && !strcontains(p, "drop")])
    error_message = "Services must not change the schema."
  }
  assert {
    condition     = google_service_account_iam_member.tasks_agent.member == "serviceAccount:service-123456789012@gcp-sa-cloudtasks.iam.gserviceaccount.com"
    error_message = "Cloud Tasks' agent is wrong."
  }

  # Queues have room in the dispatcher
  assert {
    condition     = terraform_data.capacity.input == 1610
    error_message = "Queues reserve ${terraform_data.capacity.input} dispatches."
  }
}

run "image_by_tag" {
  command = plan
  variables {
    image = "europe-west1-docker.pkg.dev/my-project/sealpost/sealpost:latest"
  }
  expect_failures = [var.image]
}

run "project_by_number" {
  command = plan
  variables {
    project_id = "123456789012"
  }
  expect_failures = [var.project_id]
}

run "zone_for_region" {
  command = plan
  variables {
    region = "europe-west1-b"
  }
  expect_failures = [var.region]
}

run "misspelt_setting" {
  command = plan
  variables {
    sources = { stripe = { scheme = "stripe", secret_versions = [1], allow_type = ["invoice.*"] } }
  }
  expect_failures = [var.sources]
}

run "setting_of_another_kind" {
  command = plan
  variables {
    sources = { stripe = { scheme = "stripe", secret_versions = [1], body_limit = "1048576" } }
  }
  expect_failures = [var.sources]
}

run "source_without_scheme" {
  command = plan
  variables {
    sources = { stripe = { secret_versions = [1] } }
  }
  expect_failures = [var.sources]
}

run "version_latest" {
  command = plan
  variables {
    sources = { stripe = { scheme = "stripe", secret_versions = ["latest"] } }
  }
  expect_failures = [var.sources]
}

run "version_twice" {
  command = plan
  variables {
    sources = { stripe = { scheme = "stripe", secret_versions = [1, 1] } }
  }
  expect_failures = [var.sources]
}

run "tolerance_without_unit" {
  command = plan
  variables {
    sources = { stripe = { scheme = "stripe", secret_versions = [1], tolerance = "300" } }
  }
  expect_failures = [var.sources]
}

run "id_of_applications" {
  command = plan
  variables {
    sources = { app = { scheme = "stripe", secret_versions = [1] } }
  }
  expect_failures = [var.sources]
}

run "id_in_capitals" {
  command = plan
  variables {
    sources = { Stripe = { scheme = "stripe", secret_versions = [1] } }
  }
  expect_failures = [var.sources]
}

# Settings are passed on under their own names, without the nulls that the receiver
# refuses; providers that publish their keys need no secret.
run "settings_of_sources" {
  command = plan
  variables {
    sources = {
      sns = { scheme = "aws-sns", topics = ["arn:aws:sns:eu-west-1:123456789012:events"] }
      crm = {
        scheme          = "generic-hmac"
        secret_versions = [3, 2]
        tenant          = null
        tolerance       = "10m"
        allow_types     = ["deal.*"]
        allow_cidrs     = ["192.0.2.0/24"]
        hmac            = { header = "X-Signature", hash = "sha256", encoding = "hex", prefix = null }
      }
    }
  }
  assert {
    condition = jsondecode(local.sources_json) == [
      {
        id          = "crm"
        scheme      = "generic-hmac"
        tolerance   = "10m"
        allow_types = ["deal.*"]
        allow_cidrs = ["192.0.2.0/24"]
        hmac        = { header = "X-Signature", hash = "sha256", encoding = "hex" }
        public_url  = "https://sealpost-receiver-123456789012.europe-west1.run.app/in/crm"
        secrets     = [{ name = "sealpost-source-crm", versions = [3, 2] }]
      },
      {
        id         = "sns"
        scheme     = "aws-sns"
        topics     = ["arn:aws:sns:eu-west-1:123456789012:events"]
        public_url = "https://sealpost-receiver-123456789012.europe-west1.run.app/in/sns"
      },
    ]
    error_message = "SOURCES is ${local.sources_json}"
  }
  assert {
    condition     = keys(output.source_secrets) == ["crm"]
    error_message = "Only crm has a secret of its own."
  }
}

run "no_sources" {
  command = plan
  variables {
    sources = {}
  }
  assert {
    condition     = local.sources_json == "[]"
    error_message = "No sources are written []."
  }
}

run "endpoint_settings" {
  command = plan
  variables {
    endpoints = {
      billing = { url = "https://billing.example.com/hook", event_types = ["invoice.*"], rate_per_second = 5, max_concurrency = 2, retry = "0s,5m", owner = null }
    }
  }
  assert {
    condition     = local.endpoints.billing == { id = "billing", tenant = "default", url = "https://billing.example.com/hook", event_types = ["invoice.*"], rate_per_second = 5, max_concurrency = 2, retry = "0s,5m" }
    error_message = "Endpoint is ${jsonencode(local.endpoints)}"
  }
  assert {
    condition     = terraform_data.capacity.input == 1612
    error_message = "The endpoint's queue is not counted."
  }
}

run "endpoint_over_http" {
  command = plan
  variables {
    endpoints = { billing = { url = "http://billing.example.com/hook" } }
  }
  expect_failures = [var.endpoints]
}

run "endpoint_with_password" {
  command = plan
  variables {
    endpoints = { billing = { url = "https://user:pass@billing.example.com/hook" } }
  }
  expect_failures = [var.endpoints]
}

run "endpoint_too_fast" {
  command = plan
  variables {
    endpoints = { billing = { url = "https://billing.example.com/hook", rate_per_second = 501 } }
  }
  expect_failures = [var.endpoints]
}

run "endpoints_with_one_queue_name" {
  command = plan
  variables {
    endpoints = { a-b = { url = "https://a.example.com/" }, a_b = { url = "https://b.example.com/" } }
  }
  expect_failures = [var.endpoints]
}

run "endpoint_misspelt" {
  command = plan
  variables {
    endpoints = { billing = { url = "https://billing.example.com/hook", rate = 5 } }
  }
  expect_failures = [var.endpoints]
}

run "more_than_the_dispatcher_takes" {
  command = plan
  variables {
    endpoints = { bulk = { url = "https://bulk.example.com/hook", max_concurrency = 691 } } # 1610 + 691 + 200 > 10 × 250
  }
  expect_failures = [terraform_data.capacity]
}

run "just_what_the_dispatcher_takes" {
  command = plan
  variables {
    endpoints = { bulk = { url = "https://bulk.example.com/hook", max_concurrency = 690 } }
  }
}

run "operator_is_everybody" {
  command = plan
  variables {
    operators = ["allUsers"]
  }
  expect_failures = [var.operators]
}

run "operator_is_a_domain" {
  command = plan
  variables {
    operators = ["domain:example.com"]
  }
  expect_failures = [var.operators]
}

run "operators" {
  command = plan
  variables {
    operators = ["group:oncall@example.com"]
  }
  assert {
    condition     = length(google_project_iam_member.operator) == 2 && length(google_service_account_iam_member.operator) == 1
    error_message = "An operator needs what the command line does, and no more."
  }
}

run "no_standby_dispatcher" {
  command = plan
  variables {
    dispatcher = { min_instances = 0 }
  }
  expect_failures = [var.dispatcher]
}

run "keyset_without_versions" {
  command = plan
  variables {
    keyset = { versions = [] }
  }
  expect_failures = [var.keyset]
}

run "probe_at_google" {
  command = plan
  variables {
    egress = { probe_url = "https://www.google.com/" }
  }
  expect_failures = [var.egress]
}

run "destination_of_our_own" {
  command = plan
  variables {
    destination_topics = ["sealpost-inbound"]
  }
  expect_failures = [var.destination_topics]
}

run "pull" {
  command = plan
  variables {
    worker         = { mode = "pull", min_instances = 2 }
    direct_sources = { shop = { format = "shopify", publisher = "serviceAccount:delivery@shopify-pubsub-webhooks.iam.gserviceaccount.com" } }
  }
  assert {
    condition     = !contains(keys(output.service_urls), "worker")
    error_message = "A worker pool has no address."
  }
  assert {
    condition     = jsondecode(local.direct_sources_json) == [{ id = "shop", format = "shopify", subscription = "sealpost-direct-shop-worker" }]
    error_message = "DIRECT_SOURCES is ${local.direct_sources_json}"
  }
}

run "front_door" {
  command = plan
  variables {
    front_door = { domains = ["hooks.example.com"], allow_ranges = { stripe = ["3.18.12.63/32", "3.130.192.231/32", "13.235.14.237/32", "13.235.122.149/32", "18.211.135.69/32"] } }
  }
  assert {
    condition     = output.source_urls == { stripe = "https://hooks.example.com/in/stripe" }
    error_message = "Behind a front door its domain is the address."
  }
}

run "front_door_for_unknown_source" {
  command = plan
  variables {
    front_door = { domains = ["hooks.example.com"], allow_ranges = { stripes = ["192.0.2.0/24"] } }
  }
  expect_failures = [var.front_door]
}

run "client_certificates_without_a_load_balancer" {
  command = plan
  variables {
    sources = { bank = { scheme = "generic-token", secret_versions = [1], mtls_san = ["dns:client.example.com"] } }
  }
  expect_failures = [terraform_data.inbound]
}
