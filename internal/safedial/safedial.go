// Package safedial owns the answer to one question: may Sealpost open a
// connection to this URL? Every dial to a URL that somebody supplied goes
// through it.
//
// It refuses by name before anything is looked up ([Policy.CheckURL]), by
// address after the lookup ([Policy.Resolve]) and by address again at the
// socket. A [Client] dials only addresses that it has just checked, so a DNS
// answer that changes between check and dial changes nothing. If one address of
// an answer is refused the whole answer is: an answer that mixes public and
// internal addresses is an attack or a mistake, and picking the harmless half
// would hide it.
//
// It follows no redirect, uses no proxy, keeps no cookie, and its errors carry
// neither userinfo nor query values.
//
// What it cannot see: a public name of the customer's that is an alias for a
// Google-hosted service, and what lies behind a public address.
package safedial

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// AnyPort in [Policy.Ports] permits every port from 1 to 65535.
const AnyPort = -1

// Policy says which URLs and addresses may be dialled. The zero value is the
// production default: https, ports 443 and 8443, no userinfo, public addresses
// only, no host name that is local or served by Google. Methods do not modify
// it; a Policy may be shared once its fields are set.
type Policy struct {
	// Schemes are the permitted schemes, in lower case. Nil means https only.
	Schemes []string

	// Ports are the permitted ports. Nil means 443 and 8443.
	Ports []int

	// AllowHosts are names exempt from the rules for local, unqualified and
	// Google-hosted names: an exact name, or *.example.com for every name below
	// example.com. Their addresses are judged like all others.
	AllowHosts []string

	// AllowPrefixes are networks permitted although the table refuses them. They
	// open no metadata service. A prefix of IPv4-mapped addresses has no effect:
	// list the IPv4 prefix.
	AllowPrefixes []netip.Prefix

	// AllowUserinfo permits user:password@ in a URL, which is then sent as basic
	// authentication.
	AllowUserinfo bool

	// Resolver looks names up. Nil means Go's own resolver, asked for the
	// absolute name, so that no search domain is appended; only a name without
	// any dot, which AllowHosts must list, is looked up as the machine would.
	// localhost and the names below it are loopback without asking.
	Resolver Resolver
}

// Resolver is the one method of *net.Resolver that the package uses. It is
// called with network "ip" and a lower-case name without trailing dot.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Dev returns the policy for one machine: besides the production default it
// permits http, every port, localhost and the names below it, and the loopback
// addresses. Private networks and metadata services stay refused.
func Dev() Policy {
	return Policy{
		Schemes:       []string{"http", "https"},
		Ports:         []int{AnyPort},
		AllowHosts:    []string{"localhost", "*.localhost"},
		AllowPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	}
}

// Validate reports every setting that makes no sense, joined into one error.
// A policy that fails it still fails closed.
func (p Policy) Validate() error {
	var errs []error
	for _, s := range p.Schemes {
		if s != "http" && s != "https" {
			errs = append(errs, fmt.Errorf("scheme %q: only http and https can be permitted", s))
		}
	}
	for _, port := range p.Ports {
		if port != AnyPort && (port < 1 || port > 65535) {
			errs = append(errs, fmt.Errorf("port %d: must be 1 to 65535", port))
		}
	}
	for _, h := range p.AllowHosts {
		if !validName(strings.TrimPrefix(canonicalName(h), "*.")) {
			errs = append(errs, fmt.Errorf("host %q: must be a name, or *. and a name", h))
		}
	}
	for _, n := range p.AllowPrefixes {
		switch {
		case !n.IsValid():
			errs = append(errs, errors.New("network: empty prefix"))
		case n.Bits() == 0:
			errs = append(errs, fmt.Errorf("network %s: would permit every address", n))
		case n.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("network %s: write the IPv4 prefix", n))
		}
	}
	return errors.Join(errs...)
}

func (p Policy) schemes() []string {
	if p.Schemes == nil {
		return []string{"https"}
	}
	return p.Schemes
}

func (p Policy) allowsPort(port uint16) bool {
	if port == 0 {
		return false
	}
	if p.Ports == nil {
		return port == 443 || port == 8443
	}
	return slices.Contains(p.Ports, AnyPort) || slices.Contains(p.Ports, int(port))
}

// allowsHost reports whether the operator listed host, which is canonical.
func (p Policy) allowsHost(host string) bool {
	return slices.ContainsFunc(p.AllowHosts, func(pattern string) bool {
		pattern = canonicalName(pattern)
		if parent, ok := strings.CutPrefix(pattern, "*."); ok {
			return strings.HasSuffix(host, "."+parent)
		}
		return host == pattern
	})
}
