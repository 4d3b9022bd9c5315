# Topics and subscriptions. Settings that are wrong on what exists already must be
# put right by the next apply: so all are stated, none is left to the defaults of
# new subscriptions.

mock_provider "google" {}

variables {
  project_id     = "my-project"
  project_number = "123456789012"
  push           = { url = "https://worker.example.com", service_account = "sealpost-push@my-project.iam.gserviceaccount.com" }
  topology = {
    topics = {
      sealpost-inbound      = {}
      sealpost-events       = {}
      sealpost-inbound-dead = {}
      sealpost-events-dead  = {}
    }
    subscriptions = {
      sealpost-inbound-worker = {
        topic                = "sealpost-inbound"
        push                 = { service = "worker", path = "/push/inbound", service_account = "sealpost-push" }
        ack_deadline_seconds = 600
        retention_seconds    = 604800
        retry                = { minimum_backoff_seconds = 10, maximum_backoff_seconds = 600 }
        dead_letter          = { topic = "sealpost-inbound-dead", max_delivery_attempts = 100 }
      }
      sealpost-inbound-dead-letter = {
        topic                = "sealpost-inbound-dead"
        push                 = null
        ack_deadline_seconds = 60
        retention_seconds    = 2678400
        retry                = { minimum_backoff_seconds = 10, maximum_backoff_seconds = 600 }
        dead_letter          = null
      }
    }
  }
}

run "push" {
  command = plan
  module {
    source = "./modules/pubsub"
  }

  assert {
    condition     = google_pubsub_subscription.this["sealpost-inbound-worker"].ack_deadline_seconds == 600 && one(google_pubsub_subscription.this["sealpost-inbound-worker"].retry_policy) == { minimum_backoff = "10s", maximum_backoff = "600s" }
    error_message = "Ack deadline and backoff must be stated."
  }
  assert {
    condition     = alltrue([for s in values(google_pubsub_subscription.this) : one(s.expiration_policy).ttl == "" && s.enable_message_ordering == false])
    error_message = "No subscription may expire when idle; none is ordered, for that cannot be changed."
  }
  assert {
    condition     = one(google_pubsub_subscription.this["sealpost-inbound-worker"].dead_letter_policy).max_delivery_attempts == 100
    error_message = "An outage of hours must not make dead letters."
  }
  assert {
    condition     = google_pubsub_subscription.this["sealpost-inbound-dead-letter"].message_retention_duration == "2678400s" && length(google_pubsub_subscription.this["sealpost-inbound-dead-letter"].dead_letter_policy) == 0 && length(google_pubsub_subscription.this["sealpost-inbound-dead-letter"].push_config) == 0
    error_message = "Dead letters are kept for 31 days, are not pushed, and have no dead letter of their own."
  }
  assert {
    condition     = one(google_pubsub_subscription.this["sealpost-inbound-worker"].push_config).push_endpoint == "https://worker.example.com/push/inbound" && one(one(google_pubsub_subscription.this["sealpost-inbound-worker"].push_config).oidc_token) == { service_account_email = "sealpost-push@my-project.iam.gserviceaccount.com", audience = "https://worker.example.com" }
    error_message = "Pushes must carry the caller's token."
  }
  # The agent forwards dead letters only with both rights.
  assert {
    condition     = google_pubsub_topic_iam_member.agent["sealpost-inbound-dead"].role == "roles/pubsub.publisher" && google_pubsub_subscription_iam_member.agent["sealpost-inbound-worker"].role == "roles/pubsub.subscriber" && google_pubsub_subscription_iam_member.agent["sealpost-inbound-worker"].member == "serviceAccount:service-123456789012@gcp-sa-pubsub.iam.gserviceaccount.com"
    error_message = "The Pub/Sub agent lacks a right, so that dead letters would go nowhere."
  }
  assert {
    condition     = google_service_account_iam_member.agent[0].role == "roles/iam.serviceAccountOpenIdTokenCreator"
    error_message = "The agent must make the tokens of pushes."
  }
  assert {
    condition     = google_pubsub_topic.this["sealpost-inbound"].message_retention_duration == "604800s"
    error_message = "A week must be there to seek back to."
  }
}

run "pull" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    push = null
  }
  assert {
    condition     = alltrue([for s in values(google_pubsub_subscription.this) : length(s.push_config) == 0]) && length(google_service_account_iam_member.agent) == 0
    error_message = "Pulled subscriptions are not pushed."
  }
}

run "direct_source" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    direct_sources = { shop = { publisher = "serviceAccount:delivery@shopify-pubsub-webhooks.iam.gserviceaccount.com" } }
  }
  assert {
    condition     = one(google_pubsub_subscription.direct["sealpost-direct-shop"].push_config).push_endpoint == "https://worker.example.com/push/direct/shop" && one(google_pubsub_subscription.direct["sealpost-direct-shop"].dead_letter_policy).max_delivery_attempts == 100
    error_message = "A direct source needs its own way to the worker, with a dead letter."
  }
  assert {
    condition     = google_pubsub_topic_iam_member.direct_publisher["sealpost-direct-shop"].member == "serviceAccount:delivery@shopify-pubsub-webhooks.iam.gserviceaccount.com" && length(google_pubsub_topic_iam_member.direct_publisher) == 1
    error_message = "Only the provider may publish to a direct source's topic."
  }
  assert {
    condition     = contains(keys(google_pubsub_subscription_iam_member.agent), "sealpost-direct-shop-worker")
    error_message = "The agent must be able to forward a direct source's dead letters."
  }
}

run "archive" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    archive = { dataset = "webhooks", table = "messages" }
  }
  assert {
    condition     = keys(google_pubsub_subscription.archive) == ["sealpost-events", "sealpost-inbound"] && alltrue([for s in values(google_pubsub_subscription.archive) : length(s.dead_letter_policy) == 1 && one(s.bigquery_config).table == "my-project.webhooks.messages"])
    error_message = "Both topics are archived, and what cannot be is kept."
  }
}

# The emulators know no IAM, and keep messages for 7 days at most.
run "emulator" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    emulator = true
    push     = { url = "http://127.0.0.1:8080" }
  }
  assert {
    condition     = length(google_pubsub_topic_iam_member.agent) == 0 && length(google_pubsub_subscription_iam_member.agent) == 0 && length(one(google_pubsub_subscription.this["sealpost-inbound-worker"].push_config).oidc_token) == 0
    error_message = "IAM is planned for an emulator."
  }
  assert {
    condition     = google_pubsub_subscription.this["sealpost-inbound-dead-letter"].message_retention_duration == "604800s"
    error_message = "The emulator refuses a retention of more than 7 days."
  }
}

run "four_attempts" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    max_delivery_attempts = 4
  }
  expect_failures = [var.max_delivery_attempts]
}

run "five_attempts" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    max_delivery_attempts = 5
  }
  assert {
    condition     = one(google_pubsub_subscription.this["sealpost-inbound-worker"].dead_letter_policy).max_delivery_attempts == 5
    error_message = "The variable goes before the topology."
  }
}

run "a_hundred_and_one_attempts" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    max_delivery_attempts = 101
  }
  expect_failures = [var.max_delivery_attempts]
}

run "dead_letters_without_a_subscription" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    topology = {
      topics = { sealpost-events = {}, sealpost-inbound = {}, sealpost-inbound-dead = {} }
      subscriptions = {
        sealpost-inbound-worker = {
          topic                = "sealpost-inbound"
          push                 = null
          ack_deadline_seconds = 600
          retention_seconds    = 604800
          retry                = { minimum_backoff_seconds = 10, maximum_backoff_seconds = 600 }
          dead_letter          = { topic = "sealpost-inbound-dead", max_delivery_attempts = 100 }
        }
      }
    }
  }
  expect_failures = [google_pubsub_subscription.this]
}

run "anybody_publishes" {
  command = plan
  module {
    source = "./modules/pubsub"
  }
  variables {
    event_publishers = ["allAuthenticatedUsers"]
  }
  expect_failures = [var.event_publishers]
}
