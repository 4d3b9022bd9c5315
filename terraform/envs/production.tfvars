# A production installation: two fixed addresses, an own domain with rate limits,
# backups kept for five weeks, whoever is on call told.
project_id = "my-project"
region     = "europe-west1"

sources = {
  stripe = {
    scheme          = "stripe"
    secret_versions = [2, 1] # rotating: both are accepted
    allow_types     = ["invoice.*", "customer.*"]
  }
  github = {
    scheme          = "github"
    secret_versions = [1]
    body_limit      = 26214400
  }
  slack = {
    scheme           = "slack"
    secret_versions  = [1]
    publish_deadline = "1s"
  }
  aws = {
    scheme = "aws-sns" # verified by the provider's certificates: no secret
    topics = ["arn:aws:sns:eu-west-1:123456789012:orders"]
  }
}

direct_sources = {
  shop = {
    format    = "shopify"
    publisher = "serviceAccount:delivery@shopify-pubsub-webhooks.iam.gserviceaccount.com"
  }
}

endpoints = {
  ledger = {
    url             = "https://ledger.example.com/hooks"
    event_types     = ["invoice.*"]
    rate_per_second = 20
    max_concurrency = 5
    retry           = "41h"
    ordering        = "block"
  }
}

event_publishers = ["serviceAccount:billing@my-project.iam.gserviceaccount.com"]
operators        = ["group:oncall@example.com"]

receiver   = { min_instances = 1, max_instances = 50, memory = "1Gi", byte_budget = 536870912 }
worker     = { max_instances = 20 }
dispatcher = { min_instances = 2, max_instances = 20 }

network = { subnet_cidr = "10.80.0.0/23", nat_addresses = 2 }

spanner = {
  edition     = "ENTERPRISE"
  autoscaling = { min_processing_units = 1000, max_processing_units = 5000 }
  backup      = { retention_days = 35 }
}

front_door = {
  domains      = ["hooks.example.com"]
  allow_ranges = { github = ["192.30.252.0/22", "185.199.108.0/22", "140.82.112.0/20", "143.55.64.0/20"] }
}

binary_authorization = true
monitoring           = { emails = ["oncall@example.com"] }
