package safedial

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

// last returns the highest address of p.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := range b {
		if host := 8*(i+1) - p.Bits(); host >= 8 {
			b[i] = 0xff
		} else if host > 0 {
			b[i] |= 1<<host - 1
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// The verdict one address before and one after each row: "ok", or the prefix of
// the row that refuses it, or "-" where the address space ends.
func TestEveryRow(t *testing.T) {
	t.Parallel()
	tests := []struct {
		prefix, before, after string
		reason                Reason
	}{
		{"0.0.0.0/8", "-", "ok", Unspecified},
		{"0.0.0.0/32", "-", "0.0.0.0/8", Unspecified},
		{"10.0.0.0/8", "ok", "ok", Private},
		{"100.64.0.0/10", "ok", "ok", Private},
		{"100.100.100.200/32", "100.64.0.0/10", "100.64.0.0/10", Metadata},
		{"127.0.0.0/8", "ok", "ok", Loopback},
		{"168.63.129.16/32", "ok", "ok", Metadata},
		{"169.254.0.0/16", "ok", "ok", LinkLocal},
		{"169.254.169.254/32", "169.254.0.0/16", "169.254.0.0/16", Metadata},
		{"169.254.170.2/32", "169.254.0.0/16", "169.254.0.0/16", Metadata},
		{"172.16.0.0/12", "ok", "ok", Private},
		{"192.0.0.0/24", "ok", "ok", Special},
		{"192.0.0.0/29", "ok", "192.0.0.8/32", Special},
		{"192.0.0.8/32", "192.0.0.0/29", "192.0.0.9/32", Special},
		{"192.0.0.9/32", "192.0.0.8/32", "192.0.0.10/32", Special},
		{"192.0.0.10/32", "192.0.0.9/32", "192.0.0.0/24", Special},
		{"192.0.0.170/31", "192.0.0.0/24", "192.0.0.0/24", Special},
		{"192.0.0.192/32", "192.0.0.0/24", "192.0.0.0/24", Metadata},
		{"192.0.2.0/24", "ok", "ok", Special},
		{"192.31.196.0/24", "ok", "ok", Special},
		{"192.52.193.0/24", "ok", "ok", Special},
		{"192.88.99.0/24", "ok", "ok", Special},
		{"192.88.99.2/32", "192.88.99.0/24", "192.88.99.0/24", Special},
		{"192.168.0.0/16", "ok", "ok", Private},
		{"192.175.48.0/24", "ok", "ok", Special},
		{"198.18.0.0/15", "ok", "ok", Special},
		{"198.51.100.0/24", "ok", "ok", Special},
		{"203.0.113.0/24", "ok", "ok", Special},
		{"224.0.0.0/4", "ok", "240.0.0.0/4", Multicast},
		{"240.0.0.0/4", "224.0.0.0/4", "-", Special},
		{"255.255.255.255/32", "240.0.0.0/4", "-", Special},

		{"::/128", "-", "::1/128", Unspecified},
		{"::1/128", "::/128", "::/96", Loopback},
		{"::/96", "-", "::/0", Special},
		{"64:ff9b::/96", "::/0", "::/0", Special},
		{"64:ff9b:1::/48", "::/0", "::/0", Special},
		{"100::/64", "::/0", "100:0:0:1::/64", Special},
		{"100:0:0:1::/64", "100::/64", "::/0", Special},
		{"2001::/23", "ok", "ok", Special},
		{"2001::/32", "ok", "2001::/23", Special},
		{"2001:1::1/128", "2001::/23", "2001:1::2/128", Special},
		{"2001:1::2/128", "2001:1::1/128", "2001:1::3/128", Special},
		{"2001:1::3/128", "2001:1::2/128", "2001::/23", Special},
		{"2001:2::/48", "2001::/23", "2001::/23", Special},
		{"2001:3::/32", "2001::/23", "2001::/23", Special},
		{"2001:4:112::/48", "2001::/23", "2001::/23", Special},
		{"2001:10::/28", "2001::/23", "2001:20::/28", Special},
		{"2001:20::/28", "2001:10::/28", "2001:30::/28", Special},
		{"2001:30::/28", "2001:20::/28", "2001::/23", Special},
		{"2001:db8::/32", "ok", "ok", Special},
		{"2002::/16", "ok", "ok", Special},
		{"2620:4f:8000::/48", "ok", "ok", Special},
		{"3fff::/20", "ok", "ok", Special},
		{"5f00::/16", "::/0", "::/0", Special},
		{"fc00::/7", "::/0", "::/0", Private},
		{"fd00:ec2::254/128", "fc00::/7", "fc00::/7", Metadata},
		{"fd20:ce::254/128", "fc00::/7", "fc00::/7", Metadata},
		{"fe80::/10", "::/0", "fec0::/10", LinkLocal},
		{"fec0::/10", "fe80::/10", "ff00::/8", Private},
		{"ff00::/8", "fec0::/10", "-", Multicast},
		{"2000::/3", "::/0", "::/0", ""}, // not a row: the edges of global unicast
	}
	rows := map[string]Network{}
	for _, n := range Networks() {
		if rows[n.Prefix.String()].Name != "" || n.Prefix != n.Prefix.Masked() || n.Name == "" || n.RFC == "" {
			t.Errorf("bad or repeated row %v", n)
		}
		rows[n.Prefix.String()] = n
	}
	for _, tt := range tests {
		p := netip.MustParsePrefix(tt.prefix)
		if tt.reason != "" {
			if rows[tt.prefix].Reason != tt.reason {
				t.Errorf("%s: reason %q, want %q", tt.prefix, rows[tt.prefix].Reason, tt.reason)
			}
			delete(rows, tt.prefix)
			for _, a := range []netip.Addr{p.Addr(), last(p)} {
				if got := verdict(t, Policy{}, a); got == "ok" || !p.Overlaps(netip.MustParsePrefix(got)) {
					t.Errorf("%s within %s: %s", a, p, got)
				}
			}
		}
		for where, c := range map[string]struct {
			a    netip.Addr
			want string
		}{"before": {p.Addr().Prev(), tt.before}, "after": {last(p).Next(), tt.after}} {
			if c.want == "-" {
				if c.a.IsValid() {
					t.Errorf("%s: %s is an address: %s", p, where, c.a)
				}
				continue
			}
			if got := verdict(t, Policy{}, c.a); got != c.want {
				t.Errorf("%s, one %s (%s): %s, want %s", p, where, c.a, got, c.want)
			}
		}
	}
	for p := range rows {
		t.Errorf("row %s has no test", p)
	}
}

func verdict(t *testing.T, p Policy, a netip.Addr) string {
	t.Helper()
	err := p.CheckAddr(a)
	if err == nil {
		return "ok"
	}
	b, ok := errors.AsType[*BlockedError](err)
	if !ok {
		t.Fatalf("%s: %T is no *BlockedError", a, err)
	}
	return b.Network.Prefix.String()
}

func TestCheckAddr(t *testing.T) {
	t.Parallel()
	metadataOpen := Policy{AllowPrefixes: []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fd00::/8")}}
	mapped := Policy{AllowPrefixes: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}}
	tests := []struct {
		name   string
		policy Policy
		addr   string
		want   Reason
	}{
		{"public IPv4", Policy{}, "93.184.216.34", ""},
		{"public IPv6", Policy{}, "2606:4700::1111", ""},
		{"mapped public is public", Policy{}, "::ffff:93.184.216.34", ""},
		{"mapped loopback", Policy{}, "::ffff:127.0.0.1", Loopback},
		{"mapped loopback in hex", Policy{}, "::ffff:7f00:1", Loopback},
		{"mapped metadata", Policy{}, "::ffff:a9fe:a9fe", Metadata},
		{"mapped private", Policy{}, "::ffff:10.1.2.3", Private},
		{"NAT64 of a public address", Policy{}, "64:ff9b::5db8:d822", Special},
		{"NAT64 of loopback", Policy{}, "64:ff9b::7f00:1", Special},
		{"6to4 of a public address", Policy{}, "2002:5db8:d822::1", Special},
		{"6to4 of loopback", Policy{}, "2002:7f00:1::", Special},
		{"Teredo", Policy{}, "2001:0:4136:e378:8000:63bf:3fff:fdd2", Special},
		{"compatible loopback", Policy{}, "::127.0.0.1", Special},
		{"translated", Policy{}, "::ffff:0:7f00:1", Special},
		{"ISATAP in link-local", Policy{}, "fe80::5efe:7f00:1", LinkLocal},
		{"ISATAP in global unicast", Policy{}, "2606:4700::5efe:7f00:1", ""},
		{"a zone", Policy{}, "fe80::1%eth0", Zone},
		{"a zone on a public address", Policy{}, "2606:4700::1%eth0", Zone},
		{"a zone on a mapped address", Policy{}, "::ffff:127.0.0.1%lo", Zone},
		{"dev loopback", Dev(), "127.0.0.2", ""},
		{"dev mapped loopback", Dev(), "::ffff:127.0.0.2", ""},
		{"dev ::1", Dev(), "::1", ""},
		{"dev 0.0.0.0", Dev(), "0.0.0.0", Unspecified},
		{"dev ::", Dev(), "::", Unspecified},
		{"dev private", Dev(), "192.168.1.1", Private},
		{"dev metadata", Dev(), "169.254.169.254", Metadata},
		{"link-local permitted", metadataOpen, "169.254.1.1", ""},
		{"metadata never", metadataOpen, "169.254.169.254", Metadata},
		{"mapped metadata never", metadataOpen, "::ffff:169.254.169.254", Metadata},
		{"IPv6 metadata never", metadataOpen, "fd00:ec2::254", Metadata},
		{"a mapped prefix permits nothing", mapped, "10.0.0.1", Private},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := tt.policy.CheckAddr(netip.MustParseAddr(tt.addr))
			if got := reasonOf(err); got != tt.want {
				t.Errorf("CheckAddr(%s) = %v, want %q", tt.addr, err, tt.want)
			}
		})
	}
	if got := reasonOf((Policy{}).CheckAddr(netip.Addr{})); got != InvalidHost {
		t.Errorf("the zero address: %q", got)
	}
}

// reasonOf returns the reason of a *BlockedError, "" for nil.
func reasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	if b, ok := errors.AsType[*BlockedError](err); ok {
		return b.Reason
	}
	return Reason(fmt.Sprintf("%T", err))
}

func TestValidate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		policy Policy
		faults int
	}{
		{"zero", Policy{}, 0},
		{"dev", Dev(), 0},
		{"operator's", Policy{AllowHosts: []string{"Hook-abc.a.run.app.", "*.corp.example"}, Ports: []int{443}, AllowPrefixes: []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")}}, 0},
		{"everything wrong", Policy{
			Schemes:       []string{"ftp"},
			Ports:         []int{0, 65536},
			AllowHosts:    []string{"a b", "*"},
			AllowPrefixes: []netip.Prefix{{}, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::ffff:10.0.0.0/104")},
		}, 8},
	}
	for _, tt := range tests {
		err := tt.policy.Validate()
		got := 0
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			got = len(joined.Unwrap())
		}
		if got != tt.faults {
			t.Errorf("%s: %d faults, want %d: %v", tt.name, got, tt.faults, err)
		}
	}
}

func BenchmarkCheckAddr(b *testing.B) {
	for _, text := range []string{"93.184.216.34", "2606:4700::1111", "169.254.169.254"} {
		a := netip.MustParseAddr(text)
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = Policy{}.CheckAddr(a)
			}
		})
	}
}
