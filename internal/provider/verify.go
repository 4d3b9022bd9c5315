package provider

import (
	"strings"
	"time"
)

// message is a request while it is being verified.
type message struct {
	req       *Request
	sigs      []candidate
	timestamp string // as written
	at        time.Time
	id        string // as signed
}

// Verify decides in this order: every secret is usable; the signature's parts
// are there, once each, and well written; a secret matches; the timestamp is fresh; the body is one that
// the scheme sends. Every error is a [*Refusal].
func (s *Scheme) Verify(r Request, secrets []Secret, now time.Time) (Identity, error) {
	keys, err := s.keys(secrets)
	if err != nil {
		return Identity{}, err
	}
	m := message{req: &r}
	if err := s.locate(&m); err != nil {
		return Identity{}, err
	}
	c := s.signed.fill(&m)
	which, err := m.match(c, keys)
	if err != nil {
		return Identity{}, err
	}
	if s.clock != noClock {
		if err := s.clock.fresh(m.at, now, s.tolerance); err != nil {
			return Identity{}, err
		}
	}
	if s.needBody && len(r.Body) == 0 {
		return Identity{}, refuse(BadBody, "the body is empty")
	}
	id, err := s.identity(&m, c)
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

// locate finds signature, timestamp and id.
func (s *Scheme) locate(m *message) *Refusal {
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
	if s.clock == noClock {
		return nil
	}
	if h.timestamp == "" {
		m.timestamp = f.timestamp
	}
	var bad error
	if m.at, bad = s.clock.parse(m.timestamp); bad != nil {
		return refuse(Malformed, "%s", bad)
	}
	return nil
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
	keys := make([]key, len(secrets))
	for i, secret := range secrets {
		k, err := s.key(secret.value)
		if err != nil {
			return nil, refuse(NoSecret, "secret %s: %s", secret, err)
		}
		keys[i] = k
	}
	return keys, nil
}

// match compares every candidate with every key, whichever matches first.
func (m *message) match(c content, keys []key) (int, *Refusal) {
	which := -1
	for i, k := range keys {
		var room [maxCandidates][]byte
		sigs := room[:0]
		for _, s := range m.sigs {
			if s.alg == k.alg {
				sigs = append(sigs, s.sig)
			}
		}
		if len(sigs) > 0 && k.alg.match(k.bytes, c, sigs) && which < 0 {
			which = i
		}
	}
	if which < 0 {
		return 0, refuse(Mismatch, "none of %d signatures matches any of %d secrets", len(m.sigs), len(keys))
	}
	return which, nil
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
