package receive

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/sealpost/sealpost/internal/provider"
)

// Where a request comes from, as far as the platform in front of us vouches for it:
// the client's address and its certificate. Both are judged before the body is
// read, and whoever does not pass is answered as for a bad signature: that a source
// has such rules is nobody else's business.
//
// Neither replaces a signature. Addresses can be shared, and a load balancer's
// headers are worth what keeps others from setting them.

// parsePrefix reads a network in CIDR notation or a single address. A network must be
// written without host bits: 192.0.2.0/24, not 192.0.2.7/24. IPv4 written as IPv6
// is IPv4.
func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%.64q is neither an address nor a network such as 192.0.2.0/24", s)
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%.64q is neither an address nor a network such as 192.0.2.0/24", s)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%.64q holds more than IPv4 addresses; write those as IPv4", s)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%.64q has host bits; write %s", s, p.Masked())
	}
	return p, nil
}

func parsePrefixes(list []string) ([]netip.Prefix, []error) {
	var out []netip.Prefix
	var faults []error
	for _, s := range list {
		p, err := parsePrefix(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("allow_cidrs: %w", err))
			continue
		}
		out = append(out, p)
	}
	return out, faults
}

// clientAddr is the address that the request came from: with no trusted hop the
// connection's peer, else the hops-th address from the right of X-Forwarded-For,
// which the outermost trusted hop wrote. What stands left of it was sent by the
// client and is not looked at. All lines of the header are one list, in order
// (RFC 9110, section 5.2).
func clientAddr(r *http.Request, hops int) (netip.Addr, error) {
	text := r.RemoteAddr
	if hops > 0 {
		list := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
		if len(list) < hops || len(r.Header["X-Forwarded-For"]) == 0 {
			return netip.Addr{}, fmt.Errorf("X-Forwarded-For holds fewer than %d addresses", hops)
		}
		text = strings.Trim(list[len(list)-hops], " \t")
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return a.Unmap(), nil
	}
	if a, err := netip.ParseAddrPort(text); err == nil { // proxies of others add the port
		return a.Addr().Unmap().WithZone(""), nil
	}
	return netip.Addr{}, errors.New("the client's address is not where the trusted hops should have written it")
}

// clientCertificate is the client certificate that the load balancer has verified, out
// of its header: the leaf's DER in base64 between colons (RFC 9440, section 2.1;
// Google's {client_cert_leaf}, which is empty for a certificate that did not pass).
func clientCertificate(h http.Header, name string) (*x509.Certificate, error) {
	lines := h[http.CanonicalHeaderKey(name)]
	if len(lines) != 1 {
		return nil, fmt.Errorf("the client certificate's header occurs %d times", len(lines))
	}
	text := strings.Trim(lines[0], " \t")
	if text == "" {
		return nil, errors.New("the client presented no certificate that the load balancer accepts")
	}
	inner, ok := strings.CutPrefix(text, ":")
	if ok {
		inner, ok = strings.CutSuffix(inner, ":")
	}
	der, err := base64.StdEncoding.Strict().DecodeString(inner)
	if !ok || err != nil {
		return nil, errors.New("the client certificate's header is not base64 between colons")
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.New("the client certificate cannot be parsed")
	}
	return c, nil
}

// subject is a certificate's subject as RFC 4514 writes it, in the order of the RFC:
// the last attribute first, "CN=client,O=Example".
func subject(c *x509.Certificate) (string, error) {
	var names pkix.RDNSequence
	if rest, err := asn1.Unmarshal(c.RawSubject, &names); err != nil || len(rest) > 0 {
		return "", errors.New("the client certificate's subject cannot be parsed")
	}
	return names.String(), nil
}

// Forms of a name in mtls_san.
const (
	sanDNS = "dns:"
	sanURI = "uri:"
)

func checkSAN(s string) error {
	name, isDNS := strings.CutPrefix(s, sanDNS)
	if !isDNS {
		var isURI bool
		if name, isURI = strings.CutPrefix(s, sanURI); !isURI {
			return fmt.Errorf("mtls_san: %.64q begins with neither dns: nor uri: as it should", s)
		}
	}
	if name == "" || strings.ContainsAny(name, "* \t") {
		return fmt.Errorf("mtls_san: %.64q names nothing; there are no patterns", s)
	}
	return nil
}

// named reports whether the certificate has one of the wanted alternative names.
func named(c *x509.Certificate, wanted []string) bool {
	return slices.ContainsFunc(wanted, func(want string) bool {
		if name, ok := strings.CutPrefix(want, sanDNS); ok {
			return slices.ContainsFunc(c.DNSNames, func(have string) bool { return strings.EqualFold(have, name) })
		}
		name := strings.TrimPrefix(want, sanURI)
		for _, have := range c.URIs {
			if have.String() == name {
				return true
			}
		}
		return false
	})
}

// asksForCertificate reports whether only holders of a certain certificate may post.
func (s *Source) asksForCertificate() bool { return s.MTLSSubject != "" || len(s.MTLSSANs) > 0 }

// origin judges where a request comes from.
func (rc *Receiver) origin(src *source, r *http.Request) *refusal {
	if len(src.prefixes) > 0 {
		addr, err := clientAddr(r, *rc.hops)
		if err != nil {
			return refused(reasonAddress, "%s", err)
		}
		if !slices.ContainsFunc(src.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return refused(reasonAddress, "%s is not in allow_cidrs", addr)
		}
	}
	if !src.asksForCertificate() {
		return nil
	}
	c, err := clientCertificate(r.Header, rc.certHeader)
	if err != nil {
		return refused(reasonCertificate, "%s", err)
	}
	name, err := subject(c)
	switch {
	case err != nil:
		return refused(reasonCertificate, "%s", err)
	case src.MTLSSubject != "" && name != src.MTLSSubject:
		return refused(reasonCertificate, "the client certificate's subject is %.200q, not mtls_subject", name)
	case len(src.MTLSSANs) > 0 && !named(c, src.MTLSSANs):
		return refused(reasonCertificate, "the client certificate has none of the names in mtls_san")
	}
	return nil
}

// secretHeaders are never shown to an expression, beside the scheme's own.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie"}

// visible are the headers that an expression may look at, by lower-case name, the
// lines of one joined as RFC 9110, section 5.3 says. Credentials and signatures are
// not among them.
func visible(h http.Header, scheme *provider.Scheme) map[string]string {
	out := make(map[string]string, len(h))
	hidden := scheme.SignatureHeaders()
	for name, lines := range h {
		if !slices.Contains(hidden, name) && !slices.Contains(secretHeaders, name) {
			out[strings.ToLower(name)] = strings.Join(lines, ", ")
		}
	}
	return out
}
