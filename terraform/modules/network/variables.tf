variable "project_id" {
  description = "The project."
  type        = string
}

variable "region" {
  description = "Region of the subnet, the router and the addresses."
  type        = string
}

variable "subnet_cidr" {
  description = "IPv4 range of the subnet that Direct VPC egress takes its addresses from; at least four per instance, and at least /26."
  type        = string

  validation {
    condition     = can(cidrhost(var.subnet_cidr, 0)) && try(tonumber(split("/", var.subnet_cidr)[1]) <= 26, false)
    error_message = "network.subnet_cidr must be an IPv4 range of /26 or more: Cloud Run refuses smaller ones."
  }
}

variable "instances" {
  description = "How many instances at most use the subnet, all services together."
  type        = number
}

variable "nat_addresses" {
  description = "How many fixed addresses to send from."
  type        = number

  validation {
    condition     = var.nat_addresses >= 1 && var.nat_addresses <= 100 && floor(var.nat_addresses) == var.nat_addresses
    error_message = "network.nat_addresses must be a whole number from 1 to 100."
  }
}

variable "nat_draining" {
  description = "Numbers of addresses that take no new connections, before they are removed."
  type        = list(number)
  default     = []
}

variable "nat_min_ports" {
  description = "Ports of each address that an instance always has: a power of two."
  type        = number
  default     = 256

  validation {
    condition     = contains([for e in range(5, 16) : pow(2, e)], var.nat_min_ports)
    error_message = "network.nat_min_ports must be a power of two from 32 to 32768."
  }
}

variable "nat_max_ports" {
  description = "Ports that an instance may grow to: a power of two, more than nat_min_ports."
  type        = number
  default     = 8192

  validation {
    condition     = contains([for e in range(6, 17) : pow(2, e)], var.nat_max_ports) && var.nat_max_ports > var.nat_min_ports
    error_message = "network.nat_max_ports must be a power of two from 64 to 65536, and more than network.nat_min_ports."
  }
}

variable "nat_log" {
  description = "What Cloud NAT logs."
  type        = string
  default     = "ERRORS_ONLY"

  validation {
    condition     = contains(["ERRORS_ONLY", "TRANSLATIONS_ONLY", "ALL"], var.nat_log)
    error_message = "network.nat_log must be ERRORS_ONLY, TRANSLATIONS_ONLY or ALL."
  }
}

variable "ports" {
  description = "TCP ports that endpoints may have."
  type        = set(number)
  default     = [443, 8443]
}

variable "allow_prefixes" {
  description = "Ranges permitted although they are not public."
  type        = set(string)
  default     = []
}

variable "proxy" {
  description = "Where the egress proxy is, if all traffic is to go through one."
  type        = object({ cidr = string, port = number })
  default     = null
}
