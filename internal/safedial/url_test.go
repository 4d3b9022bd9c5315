package safedial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// stripe/smokescreen#158 and #151, hookdeck/outpost#739: check and dial disagreed on the
// host for [name], trailing dots and upper case, and userinfo and any port were let
// through. documenso/documenso#2901, OneUptime/oneuptime#2578: IPv4-mapped addresses in
// forms that a filter did not know. p2pool-starter-stack/pithead#1321: numeric hosts.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	listed := Policy{AllowHosts: []string{"hook-x.a.run.app", "*.corp.internal", "intranet"}}
	userinfo := Policy{AllowUserinfo: true}
	tests := []struct {
		policy Policy
		raw    string
		want   string // the canonical URL, or a Reason
	}{
		// What is permitted, and its one form.
		{Policy{}, "https://good.example/hook", "https://good.example/hook"},
		{Policy{}, "https://good.example", "https://good.example"},
		{Policy{}, "https://good.example:443/", "https://good.example/"},
		{Policy{}, "https://good.example:8443/", "https://good.example:8443/"},
		{Policy{}, "https://good.example:/", "https://good.example/"},
		{Policy{}, "https://good.example:0443/", "https://good.example/"},
		{Policy{}, "HTTPS://GOOD.example.:443/Path?Q=1", "https://good.example/Path?Q=1"},
		{Policy{}, "https://good.example/a%2Fb%20c?x=%0A", "https://good.example/a%2Fb%20c?x=%0A"},
		{Policy{}, "https://good.example/é?ü", "https://good.example/%C3%A9?%C3%BC"},
		{Policy{}, "https://good.example/?", "https://good.example/?"},
		{Policy{}, "https://good.example//x@y:z", "https://good.example//x@y:z"},
		{Policy{}, "https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"},
		{Policy{}, "https://under_score.good.example/", "https://under_score.good.example/"},
		{Policy{}, "https://1.good.example/", "https://1.good.example/"},
		{Policy{}, "https://0x1.good.example/", "https://0x1.good.example/"},
		{Policy{}, "https://93.184.216.34/", "https://93.184.216.34/"},
		{Policy{}, "https://[2606:4700:0:0::1111]:8443/", "https://[2606:4700::1111]:8443/"},
		{Policy{}, "https://[::ffff:5db8:d822]/", "https://93.184.216.34/"},
		{Policy{}, "https://run.app.good.example/", "https://run.app.good.example/"},
		{Policy{}, "https://notrun.app/", "https://notrun.app/"},
		{Policy{}, "https://" + strings.Repeat("a", 63) + ".example/", "https://" + strings.Repeat("a", 63) + ".example/"},
		{Policy{}, "https://good.example/" + strings.Repeat("a", maxURL-21), "https://good.example/" + strings.Repeat("a", maxURL-21)},

		// Schemes, opaque and relative URLs.
		{Policy{}, "http://good.example/", "scheme"},
		{Policy{}, "ftp://x/", "scheme"},
		{Policy{}, "file:///etc/passwd", "scheme"},
		{Policy{}, "gopher://good.example/", "scheme"},
		{Policy{}, "good.example/hook", "scheme"},
		{Policy{}, "//good.example/", "scheme"},
		{Policy{}, "/hook", "scheme"},
		{Policy{}, "", "scheme"},
		{Policy{}, "https:good.example", "invalid_url"},
		{Policy{}, "https:/good.example/", "empty_host"},
		{Policy{}, "https:///good.example/", "empty_host"},
		{Policy{}, "https://", "empty_host"},
		{Policy{}, "https://:443/", "empty_host"},

		// Characters.
		{Policy{}, "https://good.example/a b", "invalid_url"},
		{Policy{}, " https://good.example/", "invalid_url"},
		{Policy{}, "https://good.example/ ", "invalid_url"},
		{Policy{}, "https://good.example/\t", "invalid_url"},
		{Policy{}, "https://good.example/\r\nHost: x", "invalid_url"},
		{Policy{}, "https://good.example/\x00", "invalid_url"},
		{Policy{}, "https://good.example/\x7f", "invalid_url"},
		{Policy{}, "https://good.example/\u200b", "invalid_url"},
		{Policy{}, "https://good.example/\u202etxt", "invalid_url"},
		{Policy{}, "https://good.example/\u00a0", "invalid_url"},
		{Policy{}, "https://good.example/\xff", "invalid_url"},
		{Policy{}, `https://good.example\@10.0.0.1/`, "invalid_url"},
		{Policy{}, `https:\\good.example/`, "invalid_url"},
		{Policy{}, "https://good.example/" + strings.Repeat("a", maxURL-20), "invalid_url"},
		{Policy{}, "https://good.example/%zz", "invalid_url"},

		// Userinfo and fragments.
		{Policy{}, "https://u:p4ss@good.example/", "userinfo"},
		{Policy{}, "https://good.example@10.0.0.1/", "userinfo"},
		{Policy{}, "https://@good.example/", "userinfo"},
		{userinfo, "https://u:p4ss@good.example/", "https://u:p4ss@good.example/"},
		{userinfo, "https://good.example@10.0.0.1/", "private"},
		{Policy{}, "https://good.example/#x", "fragment"},
		{Policy{}, "https://good.example/#", "fragment"},
		{Policy{}, "https://10.0.0.1#@good.example/", "fragment"},

		// Hosts.
		{Policy{}, "https://[good.example]/", "invalid_url"},
		{Policy{}, "https://[127.0.0.1]/", "invalid_url"},
		{Policy{}, "https://[::1/", "invalid_url"},
		{Policy{}, "https://::1/", "invalid_url"},
		{Policy{}, "https://good.example:80:443/", "invalid_url"},
		{Policy{}, "https://./", "invalid_host"},
		{Policy{}, "https://good..example/", "invalid_host"},
		{Policy{}, "https://good.example../", "invalid_host"},
		{Policy{}, "https://.good.example/", "invalid_host"},
		{Policy{}, "https://-good.example/", "invalid_host"},
		{Policy{}, "https://good-.example/", "invalid_host"},
		{Policy{}, "https://go*od.example/", "invalid_host"},
		{Policy{}, "https://good.example,evil.example/", "invalid_host"},
		{Policy{}, "https://" + strings.Repeat("a", 64) + ".example/", "invalid_host"},
		{Policy{}, "https://" + strings.Repeat("a.", 124) + "example/", "invalid_host"},
		{Policy{}, "https://%67ood.example/", "invalid_url"},
		{Policy{}, "https://bücher.example/", "non_ascii_host"},
		{Policy{}, "https://b%C3%BCcher.example/", "non_ascii_host"},
		{Policy{}, "https://127。0。0。1/", "non_ascii_host"},
		{Policy{}, "https://１２７.0.0.1/", "non_ascii_host"},
		{Policy{}, "https://intranet/", "unqualified_host"},
		{Policy{}, "https://metadata/", "unqualified_host"},

		// Numbers that libraries read in different ways.
		{Policy{}, "https://127.1/", "numeric_host"},
		{Policy{}, "https://2130706433/", "numeric_host"},
		{Policy{}, "https://0x7f000001/", "numeric_host"},
		{Policy{}, "https://0X7F.1/", "numeric_host"},
		{Policy{}, "https://0x7f.0.0.1/", "numeric_host"},
		{Policy{}, "https://0177.0.0.1/", "numeric_host"},
		{Policy{}, "https://127.0.0.01/", "numeric_host"},
		{Policy{}, "https://127.0.0.1./", "numeric_host"},
		{Policy{}, "https://169.254.169.254./", "numeric_host"},
		{Policy{}, "https://93.184.216.34./", "numeric_host"},
		{Policy{}, "https://0/", "numeric_host"},
		{Policy{}, "https://0x/", "numeric_host"},
		{Policy{}, "https://1.2.3.4.5/", "numeric_host"},
		{Policy{}, "https://1.2.3.256/", "numeric_host"},
		{Policy{}, "https://good.example.1/", "numeric_host"},
		{Policy{}, "https://good.example.0x1f/", "numeric_host"},

		// Addresses.
		{Policy{}, "https://127.0.0.1/", "loopback"},
		{Policy{}, "https://127.0.0.2/", "loopback"},
		{Policy{}, "https://0.0.0.0/", "unspecified"},
		{Policy{}, "https://10.0.0.1/", "private"},
		{Policy{}, "https://100.64.0.1/", "private"},
		{Policy{}, "https://198.18.0.1/", "special"},
		{Policy{}, "https://192.0.0.192/", "metadata"},
		{Policy{}, "https://255.255.255.255/", "special"},
		{Policy{}, "https://169.254.169.254/latest/meta-data/", "metadata"},
		{Policy{}, "https://[::1]/", "loopback"},
		{Policy{}, "https://[::]/", "unspecified"},
		{Policy{}, "https://[::ffff:127.0.0.1]/", "loopback"},
		{Policy{}, "https://[::ffff:7f00:1]/", "loopback"},
		{Policy{}, "https://[::FFFF:7F00:1]/", "loopback"},
		{Policy{}, "https://[0:0:0:0:0:ffff:169.254.169.254]/", "metadata"},
		{Policy{}, "https://[::ffff:a9fe:a9fe]/", "metadata"},
		{Policy{}, "https://[fd00:ec2::254]/", "metadata"},
		{Policy{}, "https://[fe80::1%25eth0]/", "zone"},
		{Policy{}, "https://[2606:4700::1%25eth0]/", "zone"},
		{Policy{}, "https://[64:ff9b::7f00:1]/", "special"},

		// Ports.
		{Policy{}, "https://good.example:22/", "port"},
		{Policy{}, "https://good.example:80/", "port"},
		{Policy{}, "https://good.example:0/", "port"},
		{Policy{}, "https://good.example:65979/", "port"}, // 443 modulo 65,536
		{Policy{}, "https://good.example:-443/", "invalid_url"},
		{Policy{}, "https://good.example:+443/", "invalid_url"},
		{Policy{}, "https://good.example:443x/", "invalid_url"},

		// Names.
		{Policy{}, "https://localhost/", "local_name"},
		{Policy{}, "https://LOCALHOST./", "local_name"},
		{Policy{}, "https://a.localhost/", "local_name"},
		{Policy{}, "https://printer.local/", "local_name"},
		{Policy{}, "https://svc-abc.run.app/", "google_host"},
		{Policy{}, "https://svc-abc-uc.A.Run.App./", "google_host"},
		{Policy{}, "https://us-central1-p.cloudfunctions.net/f", "google_host"},
		{Policy{}, "https://pubsub.googleapis.com/", "google_host"},
		{Policy{}, "https://vm.c.project.internal/", "google_host"},
		{Policy{}, "https://metadata.google.internal/", "metadata"},
		{listed, "https://hook-x.a.run.app/", "https://hook-x.a.run.app/"},
		{listed, "https://x.hook-x.a.run.app/", "google_host"},
		{listed, "https://a.b.corp.internal/", "https://a.b.corp.internal/"},
		{listed, "https://corp.internal/", "google_host"},
		{listed, "https://intranet/", "https://intranet/"},

		// One machine.
		{Dev(), "http://localhost:8080/hook", "http://localhost:8080/hook"},
		{Dev(), "http://a.localhost:80/", "http://a.localhost/"},
		{Dev(), "http://127.0.0.1:9/", "http://127.0.0.1:9/"},
		{Dev(), "http://[::1]:65535/", "http://[::1]:65535/"},
		{Dev(), "https://good.example:22/", "https://good.example:22/"},
		{Dev(), "http://localhost:0/", "port"},
		{Dev(), "http://localhost:65536/", "port"},
		{Dev(), "http://127.1/", "numeric_host"},
		{Dev(), "http://10.0.0.1/", "private"},
		{Dev(), "http://169.254.169.254/", "metadata"},
		{Dev(), "http://u:p@localhost/", "userinfo"},
		{Dev(), "ws://localhost/", "scheme"},
		{Dev(), "https://x.run.app/", "google_host"},
	}
	for _, tt := range tests {
		u, err := tt.policy.CheckURL(tt.raw)
		got := string(reasonOf(err))
		if err == nil {
			got = u.String()
		}
		if got != tt.want {
			t.Errorf("CheckURL(%.80q) = %s (%v), want %s", tt.raw, got, err, tt.want)
		}
	}
}

// No message of a refusal may carry what could be a secret.
func TestBlockedErrorLeaksNothing(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"https://u:p4ss@good.example/",
		"https://p4ss@10.0.0.1/?p4ss",
		"https://u:p4ss@good.example:22/",
		"https://u:p4ss@[good.example]/",
		"https://u:p4ss@good.example\\x/",
		"https://u:p4ss@127.1/?token=p4ss",
		"p4ss:good.example",
		"https:p4ss",
		"https://10.0.0.1/p4ss?token=p4ss#p4ss",
		"https://localhost/p4ss?p4ss",
	} {
		_, err := Policy{}.CheckURL(raw)
		if err == nil {
			t.Errorf("CheckURL(%q) permitted", raw)
			continue
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			for _, verb := range []string{"%v", "%+v", "%#v"} {
				if text := fmt.Sprintf(verb, e); strings.Contains(text, "p4ss") {
					t.Errorf("CheckURL(%q): %s", raw, text)
				}
			}
		}
		if s := MaskURL(raw); strings.Contains(strings.Replace(s, "/p4ss", "", 1), "p4ss") {
			t.Errorf("MaskURL(%q) = %s", raw, s)
		}
	}
}

func TestMaskURL(t *testing.T) {
	t.Parallel()
	tests := []struct{ raw, want string }{
		{"https://good.example/hook", "https://good.example/hook"},
		{"https://good.example:8443", "https://good.example:8443"},
		{"https://u:p4ss@good.example/a%2Fb?token=s&x=1", "https://good.example/a%2Fb?token=***&x=***"},
		{"https://good.example/?s3cret", "https://good.example/?***"},
		{"https://good.example/?a=b=c&&=d", "https://good.example/?a=***&&=***"},
		{"https://good.example/#access_token=s", "https://good.example/"},
		{"https:s3cret", "(unreadable URL)"},
		{"https://good.example/\n", "(unreadable URL)"},
		{"not a url", "(unreadable URL)"},
		{"", "(unreadable URL)"},
	}
	for _, tt := range tests {
		if got := MaskURL(tt.raw); got != tt.want {
			t.Errorf("MaskURL(%q) = %s, want %s", tt.raw, got, tt.want)
		}
	}
}

func ExamplePolicy_CheckURL() {
	for _, raw := range []string{
		"https://Hooks.Example.com.:443/orders",
		"https://user:secret@hooks.example.com/",
		"https://0x7f000001/",
		"https://[::ffff:169.254.169.254]/latest/meta-data",
	} {
		u, err := Policy{}.CheckURL(raw)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("permitted:", u)
	}
	// Output:
	// permitted: https://hooks.example.com/orders
	// blocked: a user name or password in the URL is not permitted
	// blocked: the host is a number but not an IPv4 address in its usual form (four decimal numbers, no leading zeros)
	// blocked 169.254.169.254: 169.254.169.254 is in 169.254.169.254/32 (metadata service, Google Cloud, AWS, Azure)
}

func ExampleMaskURL() {
	fmt.Println(MaskURL("https://user:secret@hooks.example.com/orders?token=abc&v=2"))
	// Output: https://hooks.example.com/orders?token=***&v=***
}

// FuzzCheckURL holds that a permitted URL is already in its final form, and
// that net/http would dial exactly the host and port that were checked.
func FuzzCheckURL(f *testing.F) {
	for _, raw := range []string{
		"https://good.example/", "https://GOOD.example.:443/?q=1", "https://[::ffff:7f00:1]/", "http://localhost:8080/x",
		"https://good.example@10.0.0.1/", "https://10.0.0.1#@good.example/", "https://[good.example]/", `https://good.example\@10.0.0.1/`,
		"https://127.1/", "https://0x7f000001/", "https://0177.0.0.1/", "https://1.2.3.4.5/", "https://b%C3%BCcher.example/",
		"https://[fe80::1%25eth0]/", "https:good.example", "https://good.example:22/", "//good.example", "https://a.b:0443/é?ü#", "http://0.0b0",
	} {
		f.Add(raw)
	}
	var dialled string
	stop := errors.New("not dialled in this test")
	record := func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = address
		return nil, stop
	}
	transport := &http.Transport{DialContext: record, DialTLSContext: record}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, p := range []Policy{{}, Dev()} {
			u, err := p.CheckURL(raw)
			if err != nil {
				if reasonOf(err) == "" || strings.HasPrefix(string(reasonOf(err)), "*") {
					t.Fatalf("%q: %T %v", raw, err, err)
				}
				continue
			}
			again, err := p.CheckURL(u.String())
			if err != nil || again.String() != u.String() {
				t.Fatalf("%q: %s, checked again: %v %v", raw, u, again, err)
			}
			host := u.Hostname()
			if loose, ok := inetAton(host); ok && loose.String() != host {
				t.Fatalf("%q: host %s is %s to a C library", raw, host, loose)
			}
			req, err := http.NewRequest(http.MethodPost, u.String(), nil)
			if err != nil {
				t.Fatalf("%q: %s: %v", raw, u, err)
			}
			if _, err := transport.RoundTrip(req); !errors.Is(err, stop) {
				t.Fatalf("%q: %s: %v", raw, u, err)
			}
			port := u.Port()
			if port == "" {
				port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
			}
			if want := net.JoinHostPort(host, port); dialled != want {
				t.Fatalf("%q: net/http dials %s, checked was %s", raw, dialled, want)
			}
			if parsed, err := url.Parse(raw); err == nil && !sameHost(parsed.Hostname(), host) {
				t.Fatalf("%q: host %s became %s", raw, parsed.Hostname(), host)
			}
		}
	})
}

func sameHost(raw, canonical string) bool {
	if a, err := netip.ParseAddr(raw); err == nil {
		return a.Unmap().String() == canonical
	}
	return strings.EqualFold(strings.TrimSuffix(raw, "."), canonical)
}

// inetAton reads a host as C libraries do: one to four numbers, each decimal,
// octal or hexadecimal, the last filling what is left.
func inetAton(host string) (netip.Addr, bool) {
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var v uint64
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 0, 32)
		if err != nil || strings.Contains(p, "_") || strings.HasPrefix(p, "0b") || strings.HasPrefix(p, "0o") { // Go's own spellings
			return netip.Addr{}, false
		}
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (5 - len(parts))
		}
		if n >= 1<<bits {
			return netip.Addr{}, false
		}
		v = v<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}
