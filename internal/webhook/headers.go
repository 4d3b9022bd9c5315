package webhook

import (
	"errors"
	"fmt"
	"strings"
)

// Limits of the headers that an endpoint's settings add to each attempt.
const (
	MaxHeaders          = 20
	MaxHeaderName       = 128  // bytes
	MaxHeaderValue      = 2048 // bytes
	MaxHeadersBytes     = 8 << 10
	MaxLegacySignatures = 5
)

// reservedHeaders are the names that Sealpost, HTTP itself or what stands on the way
// give a meaning, in lower case; one that ends in '*' stands for a prefix.
var reservedHeaders = []struct{ name, why string }{
	// RFC 9110 section 7.6.1 and what old proxies take for hop-by-hop as well.
	{"connection", "it belongs to one connection"},
	{"keep-alive", "it belongs to one connection"},
	{"proxy-*", "it is for proxies"},
	{"te", "it belongs to one connection"},
	{"trailer", "it frames the message"},
	{"transfer-encoding", "it frames the message"},
	{"upgrade", "it belongs to one connection"},
	{"http2-settings", "it belongs to one connection"},
	{"host", "it is taken from the URL"},
	{"content-*", "it describes the body"},
	{"digest", "it describes the body"},
	{"repr-digest", "it describes the body"},
	{"expect", "it changes how the request is sent"},
	{"accept-encoding", "answers are kept as they are sent"},
	{"range", "it asks for a part of something"},
	{"if-*", "it makes the request conditional"},
	{"max-forwards", "it is for proxies"},
	{"via", "it is for proxies"},
	{"forwarded", "it tells who a request came from"},
	{"x-forwarded*", "it tells who a request came from"},
	{"x-real-ip", "it tells who a request came from"},
	{"x-http-method*", "it changes the method"},
	{"x-method-override", "it changes the method"},
	{"cookie*", "Sealpost keeps no cookies"},
	{"set-cookie*", "it is for answers"},
	{"user-agent", "it names Sealpost"},
	{"webhook-*", "it is part of the signature"},
	{"svix-*", "libraries take it for the signature"},
	{"x-sealpost*", "Sealpost sets it"},
	{"sealpost*", "Sealpost sets it"},
	// What Google's front ends and Cloud Tasks tell services to be trusted.
	{"x-cloudtasks-*", "receivers trust it as Cloud Tasks' own"},
	{"x-appengine-*", "receivers trust it as Google's own"},
	{"x-google-*", "receivers trust it as Google's own"},
	{"x-goog-*", "receivers trust it as Google's own"},
	{"x-serverless-*", "receivers trust it as Google's own"},
	{"x-cloud-trace-context", "it belongs to tracing"},
	{"traceparent", "it belongs to tracing"},
	{"tracestate", "it belongs to tracing"},
	{"baggage", "it belongs to tracing"},
	{"b3", "it belongs to tracing"},
	{"x-b3-*", "it belongs to tracing"},
	{"priority", "it belongs to HTTP"},
	{"early-data", "it belongs to HTTP"},
	{"date", "it belongs to HTTP"},
}

// ValidHeaders reports every fault of the header lines that the settings would add
// to a request, with its place: the extra headers and the names of the legacy
// signatures (whose templates are package signing's to check). A name is a token of
// RFC 9110 section 5.6.2 that neither Sealpost nor HTTP gives a meaning, and occurs
// once; Authorization is free unless the endpoint's authentication sets it. A value
// is visible ASCII with spaces or tabs inside. Names are compared without regard to
// case. There are at most [MaxHeaders] of at most [MaxHeadersBytes] in all, and
// [MaxLegacySignatures] signatures. Errors never hold a value: it may be a secret.
func (s *EndpointSettings) ValidHeaders() error {
	var errs []error
	if n := len(s.Headers); n > MaxHeaders {
		errs = append(errs, fmt.Errorf("%d headers, at most %d are allowed", n, MaxHeaders))
	}
	if n := len(s.Legacy); n > MaxLegacySignatures {
		errs = append(errs, fmt.Errorf("%d legacy signatures, at most %d are allowed", n, MaxLegacySignatures))
	}
	seen := map[string]string{}
	name := func(n, place string) bool {
		err := s.validHeaderName(n)
		if err == nil {
			lower := strings.ToLower(n)
			if first, twice := seen[lower]; twice {
				err = fmt.Errorf("name %q is that of %s", n, first)
			}
			seen[lower] = place
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", place, err))
		}
		return err == nil
	}
	size := 0
	for i, h := range s.Headers {
		size += len(h.Name) + len(h.Value)
		place := fmt.Sprintf("header %d", i+1)
		if !name(h.Name, place) {
			continue
		}
		if err := validHeaderValue(h.Value); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", place, h.Name, err))
		}
	}
	if size > MaxHeadersBytes {
		errs = append(errs, fmt.Errorf("headers of %d bytes, at most %d are allowed", size, MaxHeadersBytes))
	}
	for i, l := range s.Legacy {
		name(l.Header, fmt.Sprintf("legacy signature %d", i+1))
	}
	return errors.Join(errs...)
}

func (s *EndpointSettings) validHeaderName(name string) error {
	if name == "" {
		return errors.New("name is empty")
	}
	if len(name) > MaxHeaderName {
		return fmt.Errorf("name has %d bytes, at most %d are allowed", len(name), MaxHeaderName)
	}
	for i := range len(name) {
		if !tokenByte(name[i]) {
			return fmt.Errorf("name %q: byte %d is not one of a-z, A-Z, 0-9 and !#$%%&'*+-.^_`|~", name, i+1)
		}
	}
	// An underscore is a hyphen to CGI, WSGI and others: X_Sealpost_Attempt would
	// arrive as the real one there.
	lower := strings.ReplaceAll(strings.ToLower(name), "_", "-")
	for _, r := range reservedHeaders {
		prefix, wild := strings.CutSuffix(r.name, "*")
		if lower == r.name || wild && strings.HasPrefix(lower, prefix) {
			return fmt.Errorf("name %q is reserved: %s", name, r.why)
		}
	}
	if lower == "authorization" && s.Auth.Kind != AuthNone && s.Auth.Kind != AuthMTLS {
		return fmt.Errorf("name %q is reserved: the endpoint's authentication (%s) sets it", name, s.Auth.Kind)
	}
	return nil
}

func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func validHeaderValue(v string) error {
	if len(v) > MaxHeaderValue {
		return fmt.Errorf("value has %d bytes, at most %d are allowed", len(v), MaxHeaderValue)
	}
	if strings.Trim(v, " \t") != v {
		return errors.New("value has white space around it")
	}
	for i := range len(v) {
		if c := v[i]; (c < ' ' && c != '\t') || c > '~' {
			return fmt.Errorf("value: byte %d is not visible ASCII, a space or a tab", i+1)
		}
	}
	return nil
}
