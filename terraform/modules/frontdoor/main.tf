# The way in, where a domain of one's own, rate limits per client and allow-lists of
# addresses are wanted. Only the receiver stands behind it.
#
# Cloud Armor takes five subexpressions in a rule, so addresses come in rules of four
# and less. Priorities: 1000–1999 rules of sources' own addresses, from here;
# 100000–899999 those that a scheduled function keeps equal to providers' published
# ranges, which Terraform neither makes nor removes; 900000 the limit per client.

variable "project_id" {
  description = "The project."
  type        = string
}

variable "region" {
  description = "Where the receiver runs."
  type        = string
}

variable "domains" {
  description = "Domain names of the certificate."
  type        = list(string)
}

variable "service" {
  description = "The Cloud Run service behind it."
  type        = string
}

variable "requests_per_minute" {
  description = "What one client address may send in a minute before it is told 429."
  type        = number
}

variable "allow_ranges" {
  description = "Address ranges that may post to a source, by the source's id; sources that are not named take all."
  type        = map(list(string))
  default     = {}

  validation {
    condition     = alltrue(flatten([for ranges in values(var.allow_ranges) : concat([length(ranges) > 0], [for r in ranges : can(cidrhost(r, 0))])]))
    error_message = "front_door.allow_ranges: each source needs at least one range such as 192.0.2.0/24; leave the source out to admit all."
  }
}

variable "client_ca" {
  description = "PEM of the authority that signs providers' client certificates; null: none is asked for."
  type        = string
  default     = null
}

variable "client_cert_header" {
  description = "Header in which a verified client certificate reaches the service."
  type        = string
  default     = "X-Client-Cert-Leaf"
}

locals {
  # At most 100 sources of at most 9 rules each.
  allow = merge([
    for i, id in sort(keys(var.allow_ranges)) : {
      for j, chunk in chunklist(var.allow_ranges[id], 4) : "${id}-${j}" => { id = id, priority = 1000 + i * 10 + j, ranges = chunk }
    }
  ]...)
  deny = { for i, id in sort(keys(var.allow_ranges)) : id => 1000 + i * 10 + 9 }
}

resource "google_compute_global_address" "this" {
  project = var.project_id
  name    = "sealpost-inbound"
}

resource "google_compute_security_policy" "this" {
  project     = var.project_id
  name        = "sealpost-inbound"
  description = "Before Sealpost's receiver."
  type        = "CLOUD_ARMOR"

  lifecycle {
    # The rules are resources of their own, below, and the scheduled function's.
    ignore_changes = [rule]
  }
}

resource "google_compute_security_policy_rule" "allow" {
  for_each = local.allow

  project         = var.project_id
  security_policy = google_compute_security_policy.this.name
  priority        = each.value.priority
  action          = "allow"
  description     = "Source ${each.value.id}: its own addresses."

  match {
    expr {
      expression = "request.path == '/in/${each.value.id}' && (${join(" || ", [for r in each.value.ranges : "inIpRange(origin.ip, '${r}')"])})"
    }
  }

  lifecycle {
    precondition {
      condition     = each.value.priority % 10 < 9
      error_message = "front_door.allow_ranges: source ${each.value.id} has more than 36 ranges."
    }
  }
}

resource "google_compute_security_policy_rule" "deny" {
  for_each = local.deny

  project         = var.project_id
  security_policy = google_compute_security_policy.this.name
  priority        = each.value
  action          = "deny(403)"
  description     = "Source ${each.key}: nobody else."

  match {
    expr {
      expression = "request.path == '/in/${each.key}'"
    }
  }
}

resource "google_compute_security_policy_rule" "limit" {
  project         = var.project_id
  security_policy = google_compute_security_policy.this.name
  priority        = 900000
  action          = "throttle"
  description     = "What one client address may send."

  match {
    versioned_expr = "SRC_IPS_V1"
    config {
      src_ip_ranges = ["*"]
    }
  }

  rate_limit_options {
    conform_action = "allow"
    exceed_action  = "deny(429)"
    enforce_on_key = "IP"
    rate_limit_threshold {
      count        = var.requests_per_minute
      interval_sec = 60
    }
  }
}

resource "google_compute_region_network_endpoint_group" "receiver" {
  project               = var.project_id
  name                  = "sealpost-receiver"
  region                = var.region
  network_endpoint_type = "SERVERLESS"

  cloud_run {
    service = var.service
  }
}

resource "google_compute_backend_service" "receiver" {
  project               = var.project_id
  name                  = "sealpost-receiver"
  load_balancing_scheme = "EXTERNAL_MANAGED"
  protocol              = "HTTPS"
  security_policy       = google_compute_security_policy.this.id

  # Set on every request, empty where there is no certificate: what a client sends in
  # this header never arrives.
  custom_request_headers = var.client_ca == null ? null : ["${var.client_cert_header}:{client_cert_leaf}"]

  backend {
    group = google_compute_region_network_endpoint_group.receiver.id
  }

  log_config {
    enable      = true
    sample_rate = 0.1
  }
}

resource "google_compute_url_map" "this" {
  project         = var.project_id
  name            = "sealpost-inbound"
  default_service = google_compute_backend_service.receiver.id
}

# A certificate's domains cannot change: the name follows them, and the new one
# stands before the old one goes.
resource "google_compute_managed_ssl_certificate" "this" {
  project = var.project_id
  name    = "sealpost-${substr(sha256(join(",", sort(var.domains))), 0, 12)}"

  managed {
    domains = var.domains
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "google_compute_ssl_policy" "this" {
  project         = var.project_id
  name            = "sealpost-inbound"
  profile         = "MODERN"
  min_tls_version = "TLS_1_2"
}

# Certificates are checked where clients show one; which source needs one the receiver
# decides.
resource "google_certificate_manager_trust_config" "clients" {
  count = var.client_ca == null ? 0 : 1

  project  = var.project_id
  name     = "sealpost-clients"
  location = "global"

  trust_stores {
    trust_anchors {
      pem_certificate = var.client_ca
    }
  }
}

resource "google_network_security_server_tls_policy" "clients" {
  count = var.client_ca == null ? 0 : 1

  project  = var.project_id
  name     = "sealpost-clients"
  location = "global"

  mtls_policy {
    client_validation_mode         = "ALLOW_INVALID_OR_MISSING_CLIENT_CERT"
    client_validation_trust_config = google_certificate_manager_trust_config.clients[0].id
  }
}

resource "google_compute_target_https_proxy" "this" {
  project          = var.project_id
  name             = "sealpost-inbound"
  url_map          = google_compute_url_map.this.id
  ssl_certificates = [google_compute_managed_ssl_certificate.this.id]
  ssl_policy       = google_compute_ssl_policy.this.id

  server_tls_policy = one(google_network_security_server_tls_policy.clients[*].id)
}

resource "google_compute_global_forwarding_rule" "this" {
  project               = var.project_id
  name                  = "sealpost-inbound"
  load_balancing_scheme = "EXTERNAL_MANAGED"
  ip_address            = google_compute_global_address.this.id
  port_range            = "443"
  target                = google_compute_target_https_proxy.this.id
}

output "address" {
  description = "The address that the domains' A records must name."
  value       = google_compute_global_address.this.address
}

output "security_policy" {
  description = "Name of the Cloud Armor policy, whose rules from 100000 to 899999 are the scheduled function's."
  value       = google_compute_security_policy.this.name
}
