package webhook

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// DefaultTenant is the tenant of everything that names none.
const DefaultTenant = "default"

// SourceApp is the source of events that the team's own systems publish without
// a CloudEvents source. With one, the source is "app:" followed by it. No
// configured inbound source can be named so.
const SourceApp = "app"

// Limits of what an event may carry. Longer publisher ids are hashed by
// [CanonicalID]; a longer type is an error.
const (
	MaxIDBytes   = 512
	MaxTypeBytes = 256
)

// ValidName reports why s cannot name a tenant, a source or an endpoint: 1–63
// characters of a–z, 0–9, '-' and '_', the first a letter or digit.
func ValidName(s string) error {
	if s == "" {
		return fmt.Errorf("name is empty")
	}
	if len(s) > 63 {
		return fmt.Errorf("name has %d characters, at most 63 are allowed", len(s))
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case (c == '-' || c == '_') && i > 0:
		default:
			return fmt.Errorf("name %q: character %d is not one of a-z, 0-9, '-' or '_' (the first must be a letter or digit)", s, i+1)
		}
	}
	return nil
}

// ValidSource reports why s cannot name a configured inbound source: the rules
// of [ValidName], and [SourceApp] is taken.
func ValidSource(s string) error {
	if err := ValidName(s); err != nil {
		return err
	}
	if s == SourceApp {
		return fmt.Errorf("name %q is kept for events that applications publish", s)
	}
	return nil
}

// ValidType reports why s cannot be an event type: 1–256 bytes of printable
// UTF-8 without spaces and without '*'. Dots, slashes and colons separate
// segments ("invoice.paid", "orders/create").
func ValidType(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("event type is empty")
	case len(s) > MaxTypeBytes:
		return fmt.Errorf("event type has %d bytes, at most %d are allowed", len(s), MaxTypeBytes)
	case !utf8.ValidString(s):
		return fmt.Errorf("event type is not valid UTF-8")
	}
	for _, r := range s {
		if r == '*' || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return fmt.Errorf("event type %q holds %q", s, r)
		}
	}
	return nil
}

// ValidPattern reports why p cannot select event types. A pattern is "*" (all),
// an exact type, or a prefix that ends in a separator and '*': "invoice.*",
// "orders/*", "com.example:*".
func ValidPattern(p string) error {
	if p == "*" {
		return nil
	}
	prefix, wild := strings.CutSuffix(p, "*")
	if wild && (prefix == "" || !strings.ContainsRune("./:", rune(prefix[len(prefix)-1]))) {
		return fmt.Errorf("pattern %q: '*' must stand alone or follow '.', '/' or ':' at the end", p)
	}
	if wild {
		prefix = prefix[:len(prefix)-1]
	}
	if err := ValidType(prefix); err != nil {
		return fmt.Errorf("pattern %q: %w", p, err)
	}
	return nil
}

// ProviderSource reports whether source is a configured inbound source: not "app",
// and not "app:" and a CloudEvents source.
func ProviderSource(source string) bool { return ValidSource(source) == nil }

// MatchType reports whether an event type is selected by any of the patterns.
// "invoice.*" selects "invoice.paid" and "invoice.paid.late", not "invoice".
// However many patterns match, the answer is one yes: overlapping patterns never
// mean two deliveries.
func MatchType(patterns []string, eventType string) bool {
	for _, p := range patterns {
		if p == "*" || p == eventType {
			return true
		}
		if prefix, wild := strings.CutSuffix(p, "*"); wild && prefix != "" &&
			len(eventType) > len(prefix) && strings.HasPrefix(eventType, prefix) {
			return true
		}
	}
	return false
}
