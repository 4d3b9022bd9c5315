output "vpc" {
  description = "What a service needs to sit in this network; known once everything that guards the way out stands."
  value = {
    network    = google_compute_network.this.id
    subnetwork = google_compute_subnetwork.egress.id
  }
  depends_on = [
    google_compute_firewall.allow,
    google_compute_firewall.deny_special,
    google_compute_firewall.deny_rest,
    google_compute_router_nat.this,
    google_dns_record_set.googleapis,
  ]
}

output "nat_addresses" {
  description = "The fixed addresses, by number, for customers' allow-lists."
  value       = { for n, a in google_compute_address.nat : n => a.address }
}

output "addresses" {
  description = "The reserved addresses as they are, by number."
  value       = { for n, a in google_compute_address.nat : n => { id = a.id, address = a.address } }
}

output "nat" {
  description = "The gateway and its router."
  value       = { id = google_compute_router_nat.this.id, gateway = google_compute_router_nat.this.name, router = google_compute_router.this.name }
}
