package deliver

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/serve"
)

// PolicyFromEnv is the egress policy that the environment asks for:
//
//	EGRESS_POLICY          strict (default), or dev: also http, every port and loopback;
//	                       dev is refused unless an emulator's variable is set
//	EGRESS_PORTS           permitted ports, comma-separated (default 443,8443)
//	EGRESS_ALLOW_HOSTS     names exempt from the rules for local and Google-hosted names
//	EGRESS_ALLOW_PREFIXES  networks permitted although they are not public
//
// EGRESS_PROXY is [ProxyFromEnv]'s.
// Every fault is reported, with the name of its variable.
func PolicyFromEnv(getenv func(string) string) (safedial.Policy, error) {
	var p safedial.Policy
	switch v := getenv("EGRESS_POLICY"); v {
	case "", "strict":
	case "dev":
		if getenv("SPANNER_EMULATOR_HOST") == "" && getenv("CLOUD_TASKS_EMULATOR_HOST") == "" {
			return p, fmt.Errorf("EGRESS_POLICY=dev is for emulators only, and no emulator's variable is set")
		}
		p = safedial.Dev()
	default:
		return p, fmt.Errorf("EGRESS_POLICY is %q, want strict or dev", v)
	}
	for _, s := range serve.SplitList(getenv("EGRESS_PORTS")) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 65535 {
			return p, fmt.Errorf("EGRESS_PORTS: %q is not a port", s)
		}
		p.Ports = append(p.Ports, n)
	}
	p.AllowHosts = append(p.AllowHosts, serve.SplitList(getenv("EGRESS_ALLOW_HOSTS"))...)
	for _, s := range serve.SplitList(getenv("EGRESS_ALLOW_PREFIXES")) {
		prefix, err := netip.ParsePrefix(s)
		if err != nil {
			return p, fmt.Errorf("EGRESS_ALLOW_PREFIXES: %w", err)
		}
		p.AllowPrefixes = append(p.AllowPrefixes, prefix)
	}
	if err := p.Validate(); err != nil {
		return p, fmt.Errorf("egress policy: %w", err)
	}
	return p, nil
}

// ProxyFromEnv is the HTTP proxy that EGRESS_PROXY names, http://HOST:PORT or
// https://HOST:PORT, with user and password if need be; nil if it is empty. The usual
// HTTPS_PROXY is not heeded: what goes out to strangers is not what libraries fetch.
func ProxyFromEnv(getenv func(string) string) (*safedial.Proxy, error) {
	v := getenv("EGRESS_PROXY")
	if v == "" {
		return nil, nil
	}
	p, err := safedial.ParseProxy(v)
	if err != nil {
		return nil, fmt.Errorf("EGRESS_PROXY: %w", err)
	}
	return p, nil
}
