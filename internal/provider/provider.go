package provider

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// DefaultTolerance is how far a signed timestamp may lie from our clock, both
// ways, the limit included.
const DefaultTolerance = 5 * time.Minute

// Bounds of a configured tolerance. Zero is refused rather than read as "off".
const (
	MinTolerance = time.Second
	MaxTolerance = 24 * time.Hour
)

// Request is what arrived. Header keys are in the canonical form that net/http
// gives them; a header under another key is not seen, which refuses.
type Request struct {
	Method string
	Header http.Header
	// URL is the source's configured public URL with the query as received. It is
	// never taken from the request's Host or forwarding headers.
	URL   string
	Body  []byte // exactly as received
	Query url.Values
}

// Identity is what an authentic request is.
type Identity struct {
	// ID is the provider's id of the event in its storable form
	// ([webhook.CanonicalID]). A request without one gets "sha256:" and the hash of
	// what was signed; where a timestamp is signed, equal bodies at different
	// times are thereby different events.
	ID string
	// Type always passes [webhook.ValidType]: characters that cannot be in a type
	// become '_', an overlong type is cut, and a request that names no type gets
	// the scheme's name and ".unknown". An authentic event is never lost for it.
	Type string
	// OccurredAt is the provider's time of the event, zero if it gives none.
	OccurredAt time.Time
	// Secret is the index of the secret that matched; the first if several did.
	Secret int
	// Response, if set, is a handshake's exact answer: it is sent, and nothing is
	// published.
	Response *Response
	// Headers are the provider's own headers, kept with the event. Credentials are
	// never among them.
	Headers []webhook.Header
}

// Response is the answer that a handshake wants.
type Response struct {
	Status      int
	ContentType string
	Body        []byte
}

// Verifier decides whether a request is authentic, fresh and unambiguous, and
// what it is. Errors are of type [*Refusal].
type Verifier interface {
	Verify(r Request, secrets []Secret, now time.Time) (Identity, error)
}

// Options adjust a scheme for one source.
type Options struct {
	// Tolerance replaces [DefaultTolerance]; nil keeps it. It must be between
	// [MinTolerance] and [MaxTolerance], and the scheme must sign a timestamp.
	Tolerance *time.Duration
	// HMAC describes the scheme generic-hmac and is refused with any other.
	HMAC *HMAC
}

// Scheme is one entry of the table, ready for use by any number of goroutines.
type Scheme struct {
	entry
	signed    template
	tolerance time.Duration
	kept      []string // canonical names; a trailing '*' stands for any rest
	paths     []path   // every value that the body is read for, in the order of id, typ, at
}

var _ Verifier = (*Scheme)(nil)

// New makes a verifier. Unknown schemes and unusable or contradictory options
// are errors that name the setting, all at once.
func New(name string, o Options) (*Scheme, error) {
	e, ok := lookup(name)
	if !ok {
		return nil, fmt.Errorf("scheme: %q is unknown; known are %s", clip(name), strings.Join(names(), ", "))
	}
	var faults []string
	switch {
	case e.name == genericHMAC && o.HMAC == nil:
		return nil, fmt.Errorf("hmac: scheme %s needs these settings", genericHMAC)
	case e.name == genericHMAC:
		e, faults = o.HMAC.entry(e)
	case o.HMAC != nil:
		faults = append(faults, fmt.Sprintf("hmac: these settings are for scheme %s only, not %s", genericHMAC, e.name))
	}
	s := &Scheme{entry: e, tolerance: DefaultTolerance}
	if t := o.Tolerance; t != nil {
		s.tolerance = *t
		switch {
		case *t < MinTolerance || *t > MaxTolerance:
			faults = append(faults, fmt.Sprintf("tolerance: %s is not between %s and %s (it cannot be switched off)", *t, MinTolerance, MaxTolerance))
		case len(faults) == 0 && e.clock == noClock:
			faults = append(faults, fmt.Sprintf("tolerance: scheme %s signs no timestamp, so there is no age to limit", name))
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(faults, "; "))
	}
	var err error
	if s.signed, err = parseTemplate(e.content); err != nil {
		return nil, fmt.Errorf("signed_content: %w", err)
	}
	s.compile()
	return s, nil
}

// compile brings header names into the form in which requests hold them.
func (s *Scheme) compile() {
	s.headers = slices.Clone(s.headers)
	for i, h := range s.headers {
		s.headers[i] = headers{canonical(h.signature), canonical(h.timestamp), canonical(h.id)}
		for _, name := range []string{h.signature, h.timestamp, h.id} {
			if name != "" && !s.credential {
				s.kept = append(s.kept, canonical(name))
			}
		}
	}
	for _, places := range []*[]place{&s.id, &s.typ, &s.at} {
		*places = slices.Clone(*places)
		for i := range *places {
			(*places)[i].header = canonical((*places)[i].header)
			if h := (*places)[i].header; h != "" {
				s.kept = append(s.kept, h)
			}
			if p := (*places)[i].body; p != nil {
				s.paths = append(s.paths, p)
			}
		}
	}
	for _, name := range s.keep {
		s.kept = append(s.kept, canonical(name))
	}
	s.kept = append(s.kept, "Content-Encoding") // without it a compressed body could not be read later
}

func canonical(name string) string { return http.CanonicalHeaderKey(name) }

// Name is the scheme's name in the table.
func (s *Scheme) Name() string { return s.name }

// SignsTime reports whether the scheme signs a timestamp, so that a tolerance
// applies.
func (s *Scheme) SignsTime() bool { return s.clock != noClock }

// Methods are the HTTP methods that the provider uses.
func (s *Scheme) Methods() []string {
	if len(s.methods) == 0 {
		return []string{http.MethodPost}
	}
	return s.methods
}

// NeedsURL reports whether the source's public URL is part of what is signed.
func (s *Scheme) NeedsURL() bool { return s.signed.has["url"] }

// CheckSecret reports why a secret cannot be used with the scheme. The error
// does not show the secret.
func (s *Scheme) CheckSecret(secret Secret) error {
	if _, err := s.key(secret.value); err != nil {
		return fmt.Errorf("secret %s: %w", secret, err)
	}
	return nil
}

// Info describes a scheme for documentation.
type Info struct {
	Name           string
	Docs           string // the page that the entry was written from
	CheckedAgainst string
	Signature      string // header and form
	Algorithm      string
	Encoding       string
	SignedContent  string
	Freshness      string
	ID, Type       string
	Handshake      string // empty if there is none
}

// Schemes describes every scheme, in the order of the table.
func Schemes() []Info {
	infos := make([]Info, len(table))
	for i, e := range table {
		infos[i] = e.info()
	}
	return infos
}

func (e entry) info() Info {
	in := Info{
		Name: e.name, Docs: e.docs, CheckedAgainst: e.checked, Algorithm: e.algorithm, Encoding: string(e.encoding),
		SignedContent: e.content, Handshake: e.handshake,
		ID: describe(e.id, "hash of the signed content"), Type: describe(e.typ, e.name+".unknown"),
		Freshness: "none signed; the durable id alone",
	}
	if e.name == genericHMAC {
		return in
	}
	in.Signature = e.headers[0].signature + ": " + e.syntax.String()
	if e.clock != noClock {
		in.Freshness = fmt.Sprintf("signed timestamp (%s), %s", e.clock, DefaultTolerance)
	}
	return in
}

func describe(places []place, otherwise string) string {
	var words []string
	for _, p := range places {
		words = append(words, p.String())
	}
	return strings.Join(append(words, otherwise), ", else ")
}
