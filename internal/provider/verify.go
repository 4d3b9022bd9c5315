package provider

import (
	"slices"
	"strings"
	"time"
)

// message is a request while it is being verified.
type message struct {
	scheme    *Scheme
	req       *Request
	now       time.Time
	keys      []key
	claims    []claim // every one must match
	sigs      []candidate
	signed    content  // what names an event without an id
	params    string   // {params}
	event     string   // the type that a form names
	payload   []byte   // a token's claims
	payloads  [][]byte // of every token, where there may be several
	timestamp string   // as written
	at        time.Time
	id        string // as signed
	key       key    // that matched
	confirm   string // see Identity.Confirm
}

// claim is one assertion of a request: any of the signatures over any of the
// contents. Several contents are spellings of the same, such as a URL with and
// without its port.
type claim struct {
	contents []content
	sigs     []candidate
}

// Verify decides in this order: every secret is usable; a handshake that comes
// before anything can be signed is answered; the signature's parts are there, once
// each, and well written; a secret matches; the timestamp is fresh; whatever else
// the scheme demands holds; the body is one that it sends. Every error is a
// [*Refusal].
func (s *Scheme) Verify(r Request, secrets []Secret, now time.Time) (Identity, error) {
	keys, err := s.keys(secrets)
	if err != nil {
		return Identity{}, err
	}
	m := message{scheme: s, req: &r, now: now, keys: keys}
	if s.open != nil {
		if res, err := s.open(&m); err != nil || res != nil {
			return asIdentity(s, res, err)
		}
	}
	if err := s.locate(&m); err != nil {
		return Identity{}, err
	}
	which, err := m.match()
	if err != nil {
		return Identity{}, err
	}
	if err := s.valid(&m); err != nil {
		return Identity{}, err
	}
	if s.needBody && len(r.Body) == 0 {
		return Identity{}, refuse(BadBody, "the body is empty")
	}
	id, err := s.identity(&m, m.signed)
	if err != nil {
		return Identity{}, err
	}
	if s.reply != nil {
		if id.Response, err = s.reply(&m); err != nil {
			return Identity{}, err
		}
	}
	id.Secret = which
	return id, nil
}

// valid judges what a matching signature alone does not show. The scheme's own
// check is about the bytes that were signed; a timestamp that stands in the body is
// read when that is decoded.
func (s *Scheme) valid(m *message) *Refusal {
	if s.stamp == nil {
		if err := s.timely(m); err != nil {
			return err
		}
	}
	if s.check != nil {
		if err := s.check(m); err != nil {
			return err
		}
	}
	if err := s.decode(m); err != nil {
		return err
	}
	if s.stamp != nil {
		return s.timely(m)
	}
	return nil
}

// decode replaces the signed body by what it stands for. An event without an id is
// then named by that: the same content may be compressed in two ways.
func (s *Scheme) decode(m *message) *Refusal {
	if m.req.Decode == nil {
		return nil
	}
	if !s.SignsAsSent() {
		return refuse(BadBody, "scheme %s reads the body to verify it, which must not be encoded", s.name)
	}
	body, err := m.req.Decode(m.req.Body)
	if err != nil {
		return refuse(BadBody, "%s", err)
	}
	m.req.Body = body
	if m.signed = (content{body: body}); s.claims == nil {
		m.signed = s.fill(m)[0]
	}
	return nil
}

// asIdentity names a handshake that is answered before authentication: it is no
// event, whatever it says.
func asIdentity(s *Scheme, res *Response, err *Refusal) (Identity, error) {
	if err != nil {
		return Identity{}, err
	}
	return Identity{ID: "handshake", Type: s.name + ".handshake", Secret: -1, Response: res}, nil
}

// timely judges the signed timestamp.
func (s *Scheme) timely(m *message) *Refusal {
	if s.clock == noClock {
		return nil
	}
	if s.stamp != nil {
		m.timestamp = scalar(pick(m.req.Body, s.stamp)[0])
		if err := s.readClock(m); err != nil {
			return err
		}
	}
	return s.clock.fresh(m.at, m.now, s.tolerance)
}

func (s *Scheme) readClock(m *message) *Refusal {
	var bad error
	if m.at, bad = s.clock.parse(m.timestamp); bad != nil {
		return refuse(Malformed, "%s", bad)
	}
	return nil
}

// locate finds what is claimed, timestamp and id.
func (s *Scheme) locate(m *message) *Refusal {
	if s.claims != nil {
		m.signed = content{body: m.req.Body}
		if err := s.claims(m); err != nil {
			return err
		}
		if len(m.claims) == 0 { // a scheme that claims nothing proves nothing
			return refuse(MissingSignature, "nothing is signed")
		}
		if s.clock == noClock || s.stamp != nil {
			return nil
		}
		return s.readClock(m)
	}
	h := s.brand(m)
	value, err := m.required(h.signature)
	if err != nil {
		return err
	}
	if len(value) > maxHeaderBytes {
		return refuse(Malformed, "header %s has %d bytes, at most %d are read", h.signature, len(value), maxHeaderBytes)
	}
	if h.timestamp != "" {
		if m.timestamp, err = m.required(h.timestamp); err != nil {
			return err
		}
	}
	if h.id != "" && s.signed.has["id"] {
		if m.id, err = m.required(h.id); err != nil {
			return err
		}
		if s.signed.guard != "" && strings.Contains(m.id, s.signed.guard) {
			return refuse(Ambiguous, "the id holds %q, which separates it from what follows", s.signed.guard)
		}
	}
	f, err := s.syntax.parse(value, s.encoding)
	if err != nil {
		return err
	}
	m.sigs = f.sigs
	if s.clock != noClock && s.stamp == nil {
		if h.timestamp == "" {
			m.timestamp = f.timestamp
		}
		if err := s.readClock(m); err != nil {
			return err
		}
	}
	if s.prepare != nil {
		if err := s.prepare(m); err != nil {
			return err
		}
	}
	contents := s.fill(m)
	m.signed = contents[0]
	m.claims = []claim{{contents, f.sigs}}
	return nil
}

// fill gives the content, in every spelling of the URL that the provider may have
// signed.
func (s *Scheme) fill(m *message) []content {
	urls := []string{m.req.URL}
	if s.urls != nil {
		urls = s.urls(m.req.URL)
	}
	contents := make([]content, len(urls))
	for i, u := range urls {
		contents[i] = s.signed.fill(m, u)
	}
	return contents
}

// brand is the set of header names that the request uses; the first one if it
// uses none.
func (s *Scheme) brand(m *message) headers {
	for _, h := range s.headers {
		for _, name := range []string{h.signature, h.timestamp, h.id} {
			if name != "" && len(m.req.Header[name]) > 0 {
				return h
			}
		}
	}
	return s.headers[0]
}

// keys makes the secrets ready. One that is unusable refuses everything: it would
// otherwise go unnoticed until the others are retired.
func (s *Scheme) keys(secrets []Secret) ([]key, *Refusal) {
	if len(secrets) == 0 {
		return nil, refuse(NoSecret, "the source has no secret")
	}
	keys, aside := make([]key, len(secrets)), 0
	for i, secret := range secrets {
		k, err := s.keyOf(secret)
		if err != nil {
			return nil, refuse(NoSecret, "secret %s: %s", secret, err)
		}
		if keys[i] = k; k.alg == noSignature {
			aside++
		}
	}
	if aside == len(keys) {
		return nil, refuse(NoSecret, "every secret of the source is for verify_token")
	}
	return keys, nil
}

// isAside reports whether a secret is a setting's, and verifies no signature.
func (s *Scheme) isAside(secret Secret) bool { return s.setAside != "" && secret.name == s.setAside }

// keyOf makes a secret a key: by the entry's rule, or as what the provider publishes,
// where the scheme wants both.
func (s *Scheme) keyOf(secret Secret) (key, error) {
	if s.isAside(secret) {
		return textKey(noSignature)(secret.value)
	}
	if s.published != nil && isKeySet(secret.value) {
		return s.published(secret.value)
	}
	return s.key(secret.value)
}

// match compares every claim with every key, whichever matches first. A key that
// matches the first claim names the secret.
func (m *message) match() (int, *Refusal) {
	which := -1
	for n, c := range m.claims {
		matched := -1
		for i, k := range m.keys {
			if c.matches(k) && matched < 0 {
				matched = i
			}
		}
		if matched < 0 {
			if len(m.claims) > 1 {
				return 0, refuse(Mismatch, "item %d of %d matches none of %d secrets", n+1, len(m.claims), len(m.keys))
			}
			return 0, refuse(Mismatch, "none of %d signatures matches any of %d secrets", len(c.sigs), len(m.keys))
		}
		if n == 0 {
			which = matched
		}
	}
	m.key = m.keys[which]
	return which, nil
}

func (c claim) matches(k key) bool {
	matched := false
	for i, s := range c.sigs {
		earlier := func(o candidate) bool { return o.alg == s.alg }
		if !s.alg.takes(k.alg) || slices.ContainsFunc(c.sigs[:i], earlier) {
			continue
		}
		var room [maxCandidates][]byte
		sigs := room[:0]
		for _, s := range c.sigs[i:] {
			if s.alg == c.sigs[i].alg {
				sigs = append(sigs, s.sig)
			}
		}
		for _, content := range c.contents {
			matched = s.alg.match(k, content, sigs) || matched
		}
	}
	return matched
}

// header is the one value of a header without the optional space around it, or
// nothing. Two lines are ambiguous, whatever they hold.
func (m *message) header(name string) (string, *Refusal) {
	lines := m.req.Header[name]
	if len(lines) > 1 {
		return "", refuse(Ambiguous, "header %s occurs %d times", name, len(lines))
	}
	if len(lines) == 0 {
		return "", nil
	}
	return strings.Trim(lines[0], " \t"), nil
}

func (m *message) required(name string) (string, *Refusal) {
	v, err := m.header(name)
	if err == nil && v == "" {
		err = refuse(MissingSignature, "header %s is missing", name)
	}
	return v, err
}
