# The way out.

mock_provider "google" {}

variables {
  project_id    = "my-project"
  region        = "europe-west1"
  subnet_cidr   = "10.80.0.0/24"
  instances     = 10
  nat_addresses = 2
}

run "applied" {
  module {
    source = "./modules/network"
  }

  assert {
    condition     = google_compute_router_nat.this.nat_ip_allocate_option == "MANUAL_ONLY" && length(google_compute_router_nat.this.nat_ips) == 2 && length(google_compute_router_nat.this.drain_nat_ips) == 0
    error_message = "NAT must send from the reserved addresses and no others."
  }
  assert {
    condition     = google_compute_router_nat.this.enable_dynamic_port_allocation == true && google_compute_router_nat.this.enable_endpoint_independent_mapping == false
    error_message = "Ports must be allocated as they are needed; endpoint-independent mapping excludes that."
  }
  assert {
    condition     = google_compute_router_nat.this.source_subnetwork_ip_ranges_to_nat == "LIST_OF_SUBNETWORKS" && one(google_compute_router_nat.this.log_config).enable
    error_message = "NAT serves this subnet only, and logs."
  }
  assert {
    condition     = alltrue([for a in values(google_compute_address.nat) : a.address_type == "EXTERNAL" && a.network_tier == "PREMIUM"])
    error_message = "Addresses must be external."
  }
  assert {
    condition     = google_compute_subnetwork.egress.private_ip_google_access && google_compute_subnetwork.egress.stack_type == "IPV4_ONLY"
    error_message = "The subnet needs Private Google Access, and IPv4 only."
  }

  # The firewall, in the order in which it is asked
  assert {
    condition     = google_compute_firewall.allow["google-apis"].priority < google_compute_firewall.deny_special.priority && google_compute_firewall.allow["google-apis"].destination_ranges == toset(["199.36.153.8/30"])
    error_message = "Google's APIs must stay reachable, on their private addresses only."
  }
  assert {
    condition     = google_compute_firewall.deny_special.priority < google_compute_firewall.allow["internet"].priority && google_compute_firewall.allow["internet"].priority < google_compute_firewall.deny_rest.priority
    error_message = "Special ranges must be denied before the internet is allowed, and everything else after."
  }
  assert {
    condition     = alltrue([for r in ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"] : contains(google_compute_firewall.deny_special.destination_ranges, r)])
    error_message = "A special range is not denied."
  }
  assert {
    condition     = one(google_compute_firewall.deny_special.deny).protocol == "all" && one(google_compute_firewall.deny_rest.deny).protocol == "all" && google_compute_firewall.deny_rest.destination_ranges == toset(["0.0.0.0/0"])
    error_message = "Denied is every protocol."
  }
  assert {
    condition     = one(google_compute_firewall.allow["internet"].allow).protocol == "tcp" && toset(one(google_compute_firewall.allow["internet"].allow).ports) == toset(["443", "8443"])
    error_message = "Only TCP 443 and 8443 go out."
  }
  assert {
    condition     = alltrue([for f in concat(values(google_compute_firewall.allow), [google_compute_firewall.deny_special, google_compute_firewall.deny_rest]) : f.direction == "EGRESS" && f.target_tags == null && f.target_service_accounts == null])
    error_message = "The rules hold for everything in the network."
  }
  assert {
    condition     = google_compute_firewall.deny_ingress.direction == "INGRESS" && google_compute_firewall.deny_ingress.source_ranges == toset(["0.0.0.0/0"])
    error_message = "Nothing comes in."
  }
  assert {
    condition     = google_dns_managed_zone.googleapis.visibility == "private" && google_dns_record_set.googleapis["*.googleapis.com."].rrdatas == tolist(["private.googleapis.com."])
    error_message = "googleapis.com must resolve to the private addresses."
  }
}

# The same addresses by name and key as before, and one more.
run "one_address_more" {
  module {
    source = "./modules/network"
  }
  variables {
    nat_addresses = 3
  }

  assert {
    condition     = alltrue([for n in ["1", "2"] : google_compute_address.nat[n].id == run.applied.addresses[n].id && google_compute_address.nat[n].address == run.applied.addresses[n].address])
    error_message = "Adding an address made another one anew."
  }
  assert {
    condition     = google_compute_router_nat.this.id == run.applied.nat.id && length(google_compute_router_nat.this.nat_ips) == 3
    error_message = "Adding an address made the gateway anew."
  }
}

run "one_address_drains" {
  module {
    source = "./modules/network"
  }
  variables {
    nat_addresses = 3
    nat_draining  = [1]
  }

  assert {
    condition     = google_compute_router_nat.this.drain_nat_ips == toset([google_compute_address.nat["1"].self_link]) && length(google_compute_router_nat.this.nat_ips) == 2
    error_message = "The draining address still takes connections."
  }
}

run "exceptions" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    allow_prefixes = ["10.20.0.0/16"]
    ports          = [443]
  }

  assert {
    condition     = google_compute_firewall.allow["exceptions"].priority < google_compute_firewall.deny_special.priority && google_compute_firewall.allow["exceptions"].destination_ranges == toset(["10.20.0.0/16"]) && one(google_compute_firewall.allow["exceptions"].allow).ports == tolist(["443"])
    error_message = "What the operator permits must come before the denial."
  }
}

run "behind_a_proxy" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    proxy = { cidr = "10.90.0.0/28", port = 4750 }
  }

  assert {
    condition     = !contains(keys(google_compute_firewall.allow), "internet") && google_compute_firewall.allow["proxy"].destination_ranges == toset(["10.90.0.0/28"]) && one(google_compute_firewall.allow["proxy"].allow).ports == tolist(["4750"])
    error_message = "Behind a proxy, only the proxy is reached."
  }
}

run "subnet_too_small_for_the_instances" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    subnet_cidr = "10.80.0.0/26" # 60 addresses
    instances   = 16             # need 64
  }
  expect_failures = [google_compute_subnetwork.egress]
}

run "subnet_just_large_enough" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    subnet_cidr = "10.80.0.0/26"
    instances   = 15
  }
}

run "subnet_too_small_for_cloud_run" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    subnet_cidr = "10.80.0.0/27"
    instances   = 1
  }
  expect_failures = [var.subnet_cidr]
}

run "no_address" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    nat_addresses = 0
  }
  expect_failures = [var.nat_addresses]
}

run "all_drain" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    nat_draining = [1, 2]
  }
  expect_failures = [google_compute_router_nat.this]
}

run "ports_no_power_of_two" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    nat_min_ports = 100
  }
  expect_failures = [var.nat_min_ports]
}
