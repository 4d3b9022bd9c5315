# The way out for everything that dials a URL which somebody supplied: a VPC of its
# own, addresses that customers can put on an allow-list, and a firewall that
# repeats what the dial guard in the code refuses. The rules name no targets:
# nothing else lives in this network.

resource "google_compute_network" "this" {
  project                 = var.project_id
  name                    = "sealpost"
  auto_create_subnetworks = false
  routing_mode            = "REGIONAL"
}

resource "google_compute_subnetwork" "egress" {
  project                  = var.project_id
  name                     = "sealpost-egress"
  region                   = var.region
  network                  = google_compute_network.this.id
  ip_cidr_range            = var.subnet_cidr
  private_ip_google_access = true
  stack_type               = "IPV4_ONLY"

  lifecycle {
    precondition {
      # Cloud Run takes up to two addresses per instance, and keeps those of instances
      # that are ending for some minutes; Google keeps four of every subnet.
      condition     = pow(2, 32 - tonumber(split("/", var.subnet_cidr)[1])) - 4 >= 4 * var.instances
      error_message = "network.subnet_cidr ${var.subnet_cidr} is too small: ${var.instances} instances at most (dispatcher.max_instances and others in this network) need four addresses each."
    }
  }
}

resource "google_compute_router" "this" {
  project = var.project_id
  name    = "sealpost"
  region  = var.region
  network = google_compute_network.this.id
}

# Keyed by number, so that adding the next one touches none of those before.
resource "google_compute_address" "nat" {
  for_each = local.addresses

  project      = var.project_id
  name         = "sealpost-nat-${each.key}"
  region       = var.region
  address_type = "EXTERNAL"
  network_tier = "PREMIUM"
  description  = "Customers may have this address on their allow-lists: announce a change before making it."
}

locals {
  addresses = toset([for n in range(1, var.nat_addresses + 1) : tostring(n)])
  draining  = setintersection(local.addresses, toset([for n in var.nat_draining : tostring(n)]))
}

resource "google_compute_router_nat" "this" {
  project = var.project_id
  name    = "sealpost"
  region  = var.region
  router  = google_compute_router.this.name

  nat_ip_allocate_option = "MANUAL_ONLY"
  nat_ips                = [for n in setsubtract(local.addresses, local.draining) : google_compute_address.nat[n].self_link]
  drain_nat_ips          = [for n in local.draining : google_compute_address.nat[n].self_link]

  source_subnetwork_ip_ranges_to_nat = "LIST_OF_SUBNETWORKS"
  subnetwork {
    name                    = google_compute_subnetwork.egress.self_link
    source_ip_ranges_to_nat = ["ALL_IP_RANGES"]
  }

  # Many short connections to many hosts: ports come as they are needed and are free
  # again soon. Dynamic allocation and endpoint-independent mapping exclude each other.
  enable_dynamic_port_allocation      = true
  enable_endpoint_independent_mapping = false
  min_ports_per_vm                    = var.nat_min_ports
  max_ports_per_vm                    = var.nat_max_ports
  tcp_established_idle_timeout_sec    = 300
  tcp_transitory_idle_timeout_sec     = 30
  tcp_time_wait_timeout_sec           = 30
  udp_idle_timeout_sec                = 30

  log_config {
    enable = true
    filter = var.nat_log
  }

  lifecycle {
    precondition {
      condition     = length(setsubtract(local.addresses, local.draining)) > 0
      error_message = "network.nat_draining holds every address: nothing could go out."
    }
  }
}

locals {
  special_ranges = [for r in jsondecode(file("${path.module}/special-ranges.json")) : r.range]

  # private.googleapis.com; https://cloud.google.com/vpc/docs/configure-private-google-access
  google_apis = "199.36.153.8/30"

  ports = [for p in var.ports : tostring(p)]

  # The lower the number, the earlier a rule is asked.
  allowed = merge(
    {
      "google-apis" = { priority = 1000, ranges = [local.google_apis], ports = ["443"], why = "Google's APIs by Private Google Access." }
    },
    var.proxy == null ? {} : {
      "proxy" = { priority = 1100, ranges = [var.proxy.cidr], ports = [tostring(var.proxy.port)], why = "The egress proxy." }
    },
    length(var.allow_prefixes) == 0 ? {} : {
      "exceptions" = { priority = 1200, ranges = sort(var.allow_prefixes), ports = local.ports, why = "What the operator permits although it is not public (egress.allow_prefixes)." }
    },
    # Behind a proxy, the proxy alone talks to the world.
    var.proxy != null ? {} : {
      "internet" = { priority = 3000, ranges = ["0.0.0.0/0"], ports = local.ports, why = "Customers' endpoints." }
    },
  )
}

resource "google_compute_firewall" "allow" {
  for_each = local.allowed

  project            = var.project_id
  name               = "sealpost-egress-allow-${each.key}"
  description        = each.value.why
  network            = google_compute_network.this.id
  direction          = "EGRESS"
  priority           = each.value.priority
  destination_ranges = each.value.ranges

  allow {
    protocol = "tcp"
    ports    = each.value.ports
  }
}

resource "google_compute_firewall" "deny_special" {
  project            = var.project_id
  name               = "sealpost-egress-deny-special"
  description        = "Private, link-local, shared, metadata and special ranges: no customer's endpoint is there."
  network            = google_compute_network.this.id
  direction          = "EGRESS"
  priority           = 2000
  destination_ranges = local.special_ranges

  deny {
    protocol = "all"
  }
}

resource "google_compute_firewall" "deny_rest" {
  project            = var.project_id
  name               = "sealpost-egress-deny-rest"
  description        = "Whatever no rule before permits."
  network            = google_compute_network.this.id
  direction          = "EGRESS"
  priority           = 65000
  destination_ranges = ["0.0.0.0/0"]

  deny {
    protocol = "all"
  }
}

# Nothing listens here; Cloud Run's instances are reached through Google's front ends.
resource "google_compute_firewall" "deny_ingress" {
  project       = var.project_id
  name          = "sealpost-ingress-deny"
  description   = "Nothing in this network is reached from it."
  network       = google_compute_network.this.id
  direction     = "INGRESS"
  priority      = 65000
  source_ranges = ["0.0.0.0/0"]

  deny {
    protocol = "all"
  }
}

# With these names on private addresses, Google's APIs need no way to the internet.
resource "google_dns_managed_zone" "googleapis" {
  project     = var.project_id
  name        = "sealpost-googleapis"
  dns_name    = "googleapis.com."
  description = "Google's APIs on the addresses of private.googleapis.com."
  visibility  = "private"

  private_visibility_config {
    networks {
      network_url = google_compute_network.this.id
    }
  }
}

resource "google_dns_record_set" "googleapis" {
  for_each = {
    "private.googleapis.com." = { type = "A", rrdatas = ["199.36.153.8", "199.36.153.9", "199.36.153.10", "199.36.153.11"] }
    "*.googleapis.com."       = { type = "CNAME", rrdatas = ["private.googleapis.com."] }
  }

  project      = var.project_id
  managed_zone = google_dns_managed_zone.googleapis.name
  name         = each.key
  type         = each.value.type
  ttl          = 300
  rrdatas      = each.value.rrdatas
}
