# The load balancer with Cloud Armor.

mock_provider "google" {}

variables {
  project_id          = "my-project"
  region              = "europe-west1"
  domains             = ["hooks.example.com"]
  service             = "sealpost-receiver"
  requests_per_minute = 6000
  allow_ranges        = { github = ["192.30.252.0/22", "185.199.108.0/22", "140.82.112.0/20", "143.55.64.0/20", "2a0a:a440::/29"], stripe = ["3.18.12.63/32"] }
}

run "rules" {
  command = plan
  module {
    source = "./modules/frontdoor"
  }
  assert {
    condition     = [for k, r in google_compute_security_policy_rule.allow : r.priority] == [1000, 1001, 1010] && google_compute_security_policy_rule.deny["github"].priority == 1009 && google_compute_security_policy_rule.deny["stripe"].priority == 1019
    error_message = "A source's addresses come before the denial of all others."
  }
  assert {
    condition     = alltrue([for r in values(google_compute_security_policy_rule.allow) : length(split("inIpRange", one(one(r.match).expr).expression)) - 1 <= 4])
    error_message = "Cloud Armor takes five subexpressions in a rule: the path and four ranges."
  }
  assert {
    condition     = google_compute_security_policy_rule.limit.action == "throttle" && google_compute_security_policy_rule.limit.priority > 899999
    error_message = "The limit per client comes after the rules of the scheduled function."
  }
  assert {
    condition     = google_compute_global_forwarding_rule.this.port_range == "443" && google_compute_ssl_policy.this.min_tls_version == "TLS_1_2"
    error_message = "Only TLS 1.2 and newer, on 443."
  }
}

run "too_many_ranges" {
  command = plan
  module {
    source = "./modules/frontdoor"
  }
  variables {
    allow_ranges = { github = [for i in range(37) : "192.0.2.${i}/32"] }
  }
  expect_failures = [google_compute_security_policy_rule.allow]
}

run "no_range" {
  command = plan
  module {
    source = "./modules/frontdoor"
  }
  variables {
    allow_ranges = { github = [] }
  }
  expect_failures = [var.allow_ranges]
}

run "client_certificates" {
  command = plan
  module {
    source = "./modules/frontdoor"
  }
  variables {
    client_ca = "-----BEGIN CERTIFICATE-----"
  }
  assert {
    condition     = google_compute_backend_service.receiver.custom_request_headers == toset(["X-Client-Cert-Leaf:{client_cert_leaf}"]) && length(google_network_security_server_tls_policy.clients) == 1
    error_message = "The header must be set on every request, whatever the client sends in it."
  }
}
