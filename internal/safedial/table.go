package safedial

import (
	"net/netip"
	"slices"
)

// Network is one row of the verdict table: a range of addresses that no
// delivery may reach.
type Network struct {
	Prefix netip.Prefix
	Name   string // the registry's name for it
	RFC    string // where it is defined: "RFC 1918", or the vendor for metadata services
	Reason Reason
}

func network(prefix, name, rfc string, reason Reason) Network {
	return Network{netip.MustParsePrefix(prefix), name, rfc, reason}
}

// registry is the verdict table. It holds every row of the IANA IPv4 and IPv6
// Special-Purpose Address Registries (RFC 6890, RFC 8190), those marked
// "globally reachable" included, since they are anycast and translation
// services and never somebody's webhook endpoint; the multicast and reserved
// ranges of the two address-space registries; and the metadata services of the
// cloud vendors. What embeds an IPv4 address (NAT64, 6to4, Teredo,
// IPv4-compatible) is refused whole, whatever the embedded address.
//
// IPv4-mapped addresses have no row: they are judged as the IPv4 address that
// they map. IPv6 outside 2000::/3 has none either, since only 2000::/3 is
// global unicast (RFC 4291 section 2.4) and everything else is refused.
var registry = []Network{
	network("0.0.0.0/8", "this network", "RFC 791", Unspecified),
	network("0.0.0.0/32", "this host on this network", "RFC 1122", Unspecified),
	network("10.0.0.0/8", "private use", "RFC 1918", Private),
	network("100.64.0.0/10", "shared address space", "RFC 6598", Private),
	network("127.0.0.0/8", "loopback", "RFC 1122", Loopback),
	network("168.63.129.16/32", "metadata service", "Azure", Metadata),
	network("169.254.0.0/16", "link-local", "RFC 3927", LinkLocal),
	network("169.254.169.254/32", "metadata service", "Google Cloud, AWS, Azure", Metadata),
	network("169.254.170.2/32", "container credentials service", "AWS", Metadata),
	network("172.16.0.0/12", "private use", "RFC 1918", Private),
	network("192.0.0.0/24", "IETF protocol assignments", "RFC 6890", Special),
	network("192.0.0.0/29", "IPv4 service continuity prefix", "RFC 7335", Special),
	network("192.0.0.8/32", "IPv4 dummy address", "RFC 7600", Special),
	network("192.0.0.9/32", "port control protocol anycast", "RFC 7723", Special),
	network("192.0.0.10/32", "TURN anycast", "RFC 8155", Special),
	network("192.0.0.170/31", "NAT64/DNS64 discovery", "RFC 8880", Special),
	network("192.0.0.192/32", "metadata service", "Oracle Cloud", Metadata),
	network("192.0.2.0/24", "documentation, TEST-NET-1", "RFC 5737", Special),
	network("192.31.196.0/24", "AS112-v4", "RFC 7535", Special),
	network("192.52.193.0/24", "automatic multicast tunnelling", "RFC 7450", Special),
	network("192.88.99.0/24", "6to4 relay anycast, deprecated", "RFC 7526", Special),
	network("192.88.99.2/32", "6a44 relay anycast", "RFC 6751", Special),
	network("192.168.0.0/16", "private use", "RFC 1918", Private),
	network("192.175.48.0/24", "direct delegation AS112 service", "RFC 7534", Special),
	network("198.18.0.0/15", "benchmarking", "RFC 2544", Special),
	network("198.51.100.0/24", "documentation, TEST-NET-2", "RFC 5737", Special),
	network("203.0.113.0/24", "documentation, TEST-NET-3", "RFC 5737", Special),
	network("224.0.0.0/4", "multicast", "RFC 5771", Multicast),
	network("240.0.0.0/4", "reserved, class E", "RFC 1112", Special),
	network("255.255.255.255/32", "limited broadcast", "RFC 919", Special),
	network("100.100.100.200/32", "metadata service", "Alibaba Cloud", Metadata),

	network("::/128", "unspecified", "RFC 4291", Unspecified),
	network("::1/128", "loopback", "RFC 4291", Loopback),
	network("::/96", "IPv4-compatible, deprecated", "RFC 4291", Special),
	network("64:ff9b::/96", "IPv4/IPv6 translation, NAT64", "RFC 6052", Special),
	network("64:ff9b:1::/48", "IPv4/IPv6 translation, local use", "RFC 8215", Special),
	network("100::/64", "discard only", "RFC 6666", Special),
	network("100:0:0:1::/64", "dummy prefix", "RFC 9780", Special),
	network("2001::/23", "IETF protocol assignments", "RFC 2928", Special),
	network("2001::/32", "Teredo", "RFC 4380", Special),
	network("2001:1::1/128", "port control protocol anycast", "RFC 7723", Special),
	network("2001:1::2/128", "TURN anycast", "RFC 8155", Special),
	network("2001:1::3/128", "DNS-SD service registration anycast", "RFC 9665", Special),
	network("2001:2::/48", "benchmarking", "RFC 5180", Special),
	network("2001:3::/32", "automatic multicast tunnelling", "RFC 7450", Special),
	network("2001:4:112::/48", "AS112-v6", "RFC 7535", Special),
	network("2001:10::/28", "ORCHID, deprecated", "RFC 4843", Special),
	network("2001:20::/28", "ORCHIDv2", "RFC 7343", Special),
	network("2001:30::/28", "drone remote identification", "RFC 9374", Special),
	network("2001:db8::/32", "documentation", "RFC 3849", Special),
	network("2002::/16", "6to4", "RFC 3056", Special),
	network("2620:4f:8000::/48", "direct delegation AS112 service", "RFC 7534", Special),
	network("3fff::/20", "documentation", "RFC 9637", Special),
	network("5f00::/16", "segment routing SIDs", "RFC 9602", Special),
	network("fc00::/7", "unique local", "RFC 4193", Private),
	network("fd00:ec2::254/128", "metadata service", "AWS", Metadata),
	network("fd20:ce::254/128", "metadata service", "Google Cloud", Metadata),
	network("fe80::/10", "link-local", "RFC 4291", LinkLocal),
	network("fec0::/10", "site-local, deprecated", "RFC 3879", Private),
	network("ff00::/8", "multicast", "RFC 4291", Multicast),
}

// globalUnicast is the only part of IPv6 from which public addresses are
// assigned; notGlobal names all the rest.
var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	notGlobal     = network("::/0", "outside global unicast 2000::/3", "RFC 4291", Special)
)

// byLength holds the table per family, longest prefix first, so that the first
// match is the most specific one.
var byLength4, byLength6 = sortRegistry()

func sortRegistry() (v4, v6 []Network) {
	for _, n := range registry {
		if n.Prefix.Addr().Is4() {
			v4 = append(v4, n)
		} else {
			v6 = append(v6, n)
		}
	}
	longest := func(a, b Network) int { return b.Prefix.Bits() - a.Prefix.Bits() }
	slices.SortStableFunc(v4, longest)
	slices.SortStableFunc(v6, longest)
	return v4, v6
}

// Networks returns a copy of the verdict table, for documentation and tests.
func Networks() []Network { return slices.Clone(registry) }

// refusedNetwork returns the most specific row that holds a, which must be
// unmapped and without zone.
func refusedNetwork(a netip.Addr) (Network, bool) {
	rows := byLength4
	if a.Is6() {
		rows = byLength6
	}
	for _, n := range rows {
		if n.Prefix.Contains(a) {
			return n, true
		}
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return notGlobal, true
	}
	return Network{}, false
}

// CheckAddr says whether p permits a connection to a. An IPv4-mapped address
// is judged as the IPv4 address it maps. An address with a zone is refused.
// AllowPrefixes permits what the table refuses, except metadata services,
// which no setting opens. The error is a *BlockedError.
func (p Policy) CheckAddr(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return &BlockedError{Reason: InvalidHost}
	case a.Zone() != "":
		return &BlockedError{Reason: Zone}
	}
	a = a.Unmap()
	n, refused := refusedNetwork(a)
	if !refused {
		return nil
	}
	if n.Reason != Metadata {
		for _, allowed := range p.AllowPrefixes {
			if allowed.Contains(a) {
				return nil
			}
		}
	}
	return &BlockedError{Reason: n.Reason, Addr: a, Network: n}
}
