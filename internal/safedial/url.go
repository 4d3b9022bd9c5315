package safedial

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxURL is the longest URL accepted, in bytes.
const maxURL = 2048

// CheckURL judges raw without any network access: its syntax, scheme, port and
// host, and its address if the host is one. It returns the URL in the only form
// that a [Client] sends: lower-case host without trailing dot, addresses in
// canonical form (an IPv4-mapped one as IPv4), no default port. Checking the
// result again gives the same result. The error is a *BlockedError.
//
// A host whose last label is a number must be a canonical dotted quad, as in
// the WHATWG URL standard's "ends in a number" rule, since libraries disagree
// on what 127.1 or 0x7f000001 mean.
func (p Policy) CheckURL(raw string) (*url.URL, error) {
	u, err := parseURL(raw)
	if err != nil {
		return nil, err
	}
	if schemes := p.schemes(); !slices.Contains(schemes, u.Scheme) {
		return nil, &BlockedError{Reason: Scheme, detail: "use " + strings.Join(schemes, " or ")}
	}
	if u.Opaque != "" {
		return nil, &BlockedError{Reason: InvalidURL, detail: "two slashes must follow the scheme"}
	}
	if u.User != nil && !p.AllowUserinfo {
		return nil, &BlockedError{Reason: Userinfo}
	}
	host, err := parseHost(u.Hostname())
	if err != nil {
		return nil, err
	}
	port, err := p.checkPort(host, u)
	if err != nil {
		return nil, err
	}
	if u.Fragment != "" || strings.Contains(raw, "#") {
		return nil, &BlockedError{Reason: Fragment, Host: host}
	}
	if err := p.checkHost(host); err != nil {
		return nil, err
	}
	return &url.URL{
		Scheme: u.Scheme, User: u.User, Host: joinHostPort(u.Scheme, host, port),
		Path: u.Path, RawPath: u.RawPath, RawQuery: escapeNonASCII(u.RawQuery), ForceQuery: u.ForceQuery,
	}, nil
}

// escapeNonASCII percent-encodes what net/http would send as it is in a query;
// paths are encoded by net/url.
func escapeNonASCII(query string) string {
	var b strings.Builder
	for i := range len(query) {
		if c := query[i]; c < utf8.RuneSelf {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func parseURL(raw string) (*url.URL, error) {
	if len(raw) > maxURL {
		return nil, &BlockedError{Reason: InvalidURL, detail: "longer than " + strconv.Itoa(maxURL) + " bytes"}
	}
	if !utf8.ValidString(raw) {
		return nil, &BlockedError{Reason: InvalidURL, detail: "not UTF-8"}
	}
	for _, r := range raw {
		// Parsers disagree on a backslash: browsers take it for a slash.
		if r == ' ' || r == '\\' || !unicode.IsPrint(r) {
			return nil, &BlockedError{Reason: InvalidURL, detail: "it has a space, a backslash or a control character"}
		}
	}
	u, err := url.Parse(raw)
	if err != nil {
		// The parser's own error quotes the URL, password and all.
		return nil, &BlockedError{Reason: InvalidURL}
	}
	return u, nil
}

// parseHost returns host in canonical form: an address, or a valid lower-case
// name without trailing dot. It decides what the host is, never whether it may
// be dialled.
func parseHost(host string) (string, error) {
	if host == "" {
		return "", &BlockedError{Reason: EmptyHost}
	}
	for i := range len(host) {
		if host[i] >= utf8.RuneSelf {
			return "", &BlockedError{Reason: NonASCII}
		}
	}
	// A colon can only come from a bracketed IPv6 address.
	if strings.Contains(host, ":") {
		a, err := netip.ParseAddr(host)
		switch {
		case err != nil:
			return "", &BlockedError{Reason: InvalidHost}
		case a.Zone() != "":
			return "", &BlockedError{Reason: Zone}
		}
		return a.Unmap().String(), nil
	}
	name := canonicalName(host)
	if endsInNumber(name) {
		a, err := netip.ParseAddr(host)
		if err != nil || a.String() != host {
			return "", &BlockedError{Reason: NumericHost}
		}
		return host, nil
	}
	if !validName(name) {
		return "", &BlockedError{Reason: InvalidHost}
	}
	return name, nil
}

func canonicalName(host string) string {
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// endsInNumber is the WHATWG URL standard's test of the same name.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return false
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// validName accepts the names that Go's resolver would look up: labels of
// letters, digits, hyphens and underscores, 1 to 63 bytes, no hyphen at either
// end, 253 bytes in all (RFC 1123 section 2.1, underscores as in practice).
func validName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			c := label[i]
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

func (p Policy) checkPort(host string, u *url.URL) (uint16, error) {
	text := u.Port()
	if text == "" {
		text = "443"
		if u.Scheme == "http" {
			text = "80"
		}
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || !p.allowsPort(uint16(port)) {
		return 0, p.blockedPort(host)
	}
	return uint16(port), nil
}

func (p Policy) blockedPort(host string) error {
	ports := p.Ports
	if ports == nil {
		ports = []int{443, 8443}
	}
	var list []string
	for _, n := range ports {
		if n == AnyPort {
			return &BlockedError{Reason: Port, Host: host, detail: "use 1 to 65535"}
		}
		list = append(list, strconv.Itoa(n))
	}
	return &BlockedError{Reason: Port, Host: host, detail: "use " + strings.Join(list, " or ")}
}

// Names that resolve within this machine or network, and names that Google
// serves: Cloud NAT does not translate traffic to Google's own addresses, so
// such an endpoint would not see the fixed sender addresses, and calls into the
// operator's own project would count as internal.
var (
	localSuffixes  = []string{"localhost", "local"}
	googleSuffixes = []string{"run.app", "cloudfunctions.net", "googleapis.com", "internal"}
)

// checkHost judges a canonical host: an address by the table, a name by the
// name rules.
func (p Policy) checkHost(host string) error {
	if a, err := netip.ParseAddr(host); err == nil {
		return withHost(p.CheckAddr(a), host)
	}
	if p.allowsHost(host) {
		return nil
	}
	switch {
	case underAny(host, localSuffixes):
		return &BlockedError{Reason: LocalName, Host: host}
	case host == "metadata.google.internal":
		return &BlockedError{Reason: Metadata, Host: host, detail: "the metadata service"}
	case underAny(host, googleSuffixes):
		return &BlockedError{Reason: GoogleHost, Host: host}
	case !strings.Contains(host, "."):
		return &BlockedError{Reason: Unqualified, Host: host}
	}
	return nil
}

func underAny(host string, suffixes []string) bool {
	return slices.ContainsFunc(suffixes, func(s string) bool {
		return host == s || strings.HasSuffix(host, "."+s)
	})
}

// joinHostPort leaves the scheme's default port out.
func joinHostPort(scheme, host string, port uint16) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if scheme == "https" && port == 443 || scheme == "http" && port == 80 {
		return host
	}
	return host + ":" + strconv.Itoa(int(port))
}

// Mask is what [MaskURL] puts in the place of a value.
const Mask = "***"

// MaskURL returns raw fit for logs and pages: without userinfo and fragment,
// with every query value masked. The path stays as it is. What does not parse
// as a URL with a host becomes a fixed text, since nobody can say where its
// secrets are.
func MaskURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "(unreadable URL)"
	}
	masked := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if u.RawQuery != "" {
		params := strings.Split(u.RawQuery, "&")
		for i, param := range params {
			// Without an equals sign the whole parameter may be the secret.
			if key, _, ok := strings.Cut(param, "="); ok {
				params[i] = key + "=" + Mask
			} else if param != "" {
				params[i] = Mask
			}
		}
		masked.RawQuery = strings.Join(params, "&")
	}
	return masked.String()
}
