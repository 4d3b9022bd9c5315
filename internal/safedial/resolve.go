package safedial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Resolve judges raw as the dialler would at this moment: [Policy.CheckURL],
// one lookup of the host, and the verdict on every address. It opens no
// connection. It returns the addresses, unmapped, in the resolver's order. The
// error is a *BlockedError, or an *Error of KindDNS or KindTimeout.
func (p Policy) Resolve(ctx context.Context, raw string) ([]netip.Addr, error) {
	u, err := p.CheckURL(raw)
	if err != nil {
		return nil, err
	}
	host := u.Hostname()
	addrs, err := p.lookup(ctx, host)
	if err != nil {
		if _, blocked := errors.AsType[*BlockedError](err); blocked {
			return nil, err
		}
		kind := KindDNS
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			kind = KindCanceled
		case ctx.Err() != nil:
			kind = KindTimeout
		}
		return nil, &Error{Kind: kind, Phase: PhaseDNS, Host: host, err: err}
	}
	return addrs, nil
}

// lookup resolves a canonical host once and checks every answer. One refused
// answer refuses them all.
func (p Policy) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		return []netip.Addr{a}, withHost(p.CheckAddr(a), host)
	}
	resolver := p.Resolver
	if resolver == nil {
		resolver = absolute{&net.Resolver{PreferGo: true}}
	}
	answers, err := resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("look up %s: %w", host, &net.DNSError{Err: "no address", Name: host, IsNotFound: true})
	}
	addrs := make([]netip.Addr, len(answers))
	for i, a := range answers {
		if err := withHost(p.CheckAddr(a), host); err != nil {
			return nil, err
		}
		addrs[i] = a.Unmap()
	}
	return addrs, nil
}

// withHost names the host in a blocked error.
func withHost(err error, host string) error {
	if b, ok := errors.AsType[*BlockedError](err); ok {
		named := *b
		named.Host = host
		return &named
	}
	return err
}

// absolute asks for the name with a trailing dot, which keeps the resolver from
// trying the search domains of the machine. A name without any dot, which only
// the operator can have permitted, is asked for as it is: with a dot it would
// miss the hosts file. localhost and the names below it are loopback by
// definition (RFC 6761 section 6.3); nobody is asked for them.
type absolute struct{ *net.Resolver }

func (r absolute) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if underAny(host, []string{"localhost"}) {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	if strings.Contains(host, ".") {
		host += "."
	}
	return r.Resolver.LookupNetIP(ctx, network, host)
}
