package webhook

import (
	"errors"
	"fmt"
	"hash/fnv"
	"time"
)

// Breaker is the state of an endpoint's circuit breaker.
type Breaker string

// Breaker states.
const (
	BreakerClosed   Breaker = "closed"    // attempts are made
	BreakerOpen     Breaker = "open"      // deliveries are held until the cool-down's end
	BreakerHalfOpen Breaker = "half-open" // one probe is under way
)

// Defaults and bounds of a [HealthPolicy].
const (
	DefaultFailuresToOpen = 10
	DefaultCoolDown       = time.Minute
	DefaultMaxCoolDown    = time.Hour
	DefaultDisableAfter   = 5 * 24 * time.Hour
	MinCoolDown           = time.Second
	MaxCoolDown           = 24 * time.Hour
	MaxDisableAfter       = 90 * 24 * time.Hour
	// MaxThrottle bounds how long one answer can keep an endpoint's dispatches back.
	MaxThrottle = 24 * time.Hour
	// ProbeTime is how long a probe may take to report before another is made.
	ProbeTime = 5 * time.Minute
)

// warnAfter are the times of nothing but failures after which the owner is
// warned.
var warnAfter = []time.Duration{24 * time.Hour, 3 * 24 * time.Hour}

// HealthPolicy says when an endpoint is left alone. A zero field means its default,
// a negative one never.
type HealthPolicy struct {
	// FailuresToOpen is how many failures in a row open the breaker.
	FailuresToOpen int64 `json:"failures_to_open,omitempty"`
	// CoolDown is the wait before the first probe; each probe that fails doubles it,
	// up to MaxCoolDown, and 0–20 % are added.
	CoolDown    time.Duration `json:"cool_down_ns,omitempty"`
	MaxCoolDown time.Duration `json:"max_cool_down_ns,omitempty"`
	// DisableAfter is how long nothing but failures are borne.
	DisableAfter time.Duration `json:"disable_after_ns,omitempty"`
}

func (p HealthPolicy) withDefaults() HealthPolicy {
	if p.FailuresToOpen == 0 {
		p.FailuresToOpen = DefaultFailuresToOpen
	}
	if p.CoolDown == 0 {
		p.CoolDown = DefaultCoolDown
	}
	if p.MaxCoolDown == 0 {
		p.MaxCoolDown = max(DefaultMaxCoolDown, p.CoolDown)
	}
	if p.DisableAfter == 0 {
		p.DisableAfter = DefaultDisableAfter
	}
	return p
}

// Validate reports every fault of the policy.
func (p HealthPolicy) Validate() error {
	var errs []error
	d := p.withDefaults()
	if d.FailuresToOpen > 1_000_000 {
		errs = append(errs, fmt.Errorf("failures to open: %d is more than a million", d.FailuresToOpen))
	}
	if d.CoolDown < MinCoolDown || d.CoolDown > MaxCoolDown {
		errs = append(errs, fmt.Errorf("cool-down: %s is not between %s and %s", d.CoolDown, MinCoolDown, MaxCoolDown))
	}
	if d.MaxCoolDown < d.CoolDown || d.MaxCoolDown > MaxCoolDown {
		errs = append(errs, fmt.Errorf("maximum cool-down: %s is not between the cool-down %s and %s", d.MaxCoolDown, d.CoolDown, MaxCoolDown))
	}
	if d.DisableAfter > 0 && (d.DisableAfter < time.Minute || d.DisableAfter > MaxDisableAfter) {
		errs = append(errs, fmt.Errorf("disable after: %s is not between 1m and %s", d.DisableAfter, MaxDisableAfter))
	}
	return errors.Join(errs...)
}

// Health is what is known of an endpoint's recent behaviour. The zero value is an
// endpoint that was never called.
type Health struct {
	Breaker             Breaker // empty means closed
	ConsecutiveFailures int64
	// FailingSince is the first failure after the last success; zero while healthy.
	FailingSince  time.Time
	LastSuccessAt time.Time
	LastFailureAt time.Time
	OpenedAt      time.Time // when the breaker last left closed
	// OpenUntil is, while open, the cool-down's end; while half-open, when the probe
	// is given up.
	OpenUntil time.Time
	// Trips counts the openings since the breaker was last closed.
	Trips int64
	// ThrottledUntil is until when dispatches wait, for the endpoint asked for fewer.
	ThrottledUntil time.Time
	ThrottleStep   int64 // throttling answers in a row, each after the last one's wait
	Warned         int64 // warnings given since FailingSince
	// Epoch grows whenever deliveries are to be held or released from now on. It names
	// control tasks, so that one of an earlier epoch is known to be late.
	Epoch int64
}

// Closed reports whether ordinary attempts may be made as far as the breaker goes.
func (h *Health) Closed() bool { return h.Breaker == "" || h.Breaker == BreakerClosed }

// Throttled reports whether dispatches must wait at now.
func (h *Health) Throttled(now time.Time) bool { return h.ThrottledUntil.After(now) }

// Notice is a change that an endpoint's owner is told of, once.
type Notice string

// Notices, as event types under "sealpost.".
const (
	NoticeBreakerOpened   Notice = "endpoint.breaker_opened"
	NoticeBreakerClosed   Notice = "endpoint.breaker_closed"
	NoticeEndpointFailing Notice = "endpoint.failing" // nothing but failures for a day, and for three
	NoticeDisabled        Notice = "endpoint.disabled"
	NoticeEnabled         Notice = "endpoint.enabled"
)

// Observation is one finished attempt as the breaker sees it.
type Observation struct {
	Outcome Outcome
	// StartedAt is when the attempt began: what began before the breaker opened says
	// nothing about the endpoint since.
	StartedAt time.Time
	Probe     bool
}

// HealthChange is what an observation changes.
type HealthChange struct {
	Health  Health
	Notices []Notice
	// Disable says why the endpoint is to be disabled; empty if it is not.
	Disable string
	// Opened and Closed say that deliveries are to be held, or released, from now on.
	Opened, Closed bool
}

// Reasons for which an endpoint is disabled or its deliveries are held.
const (
	ReasonFailingForDays = "nothing but failures for too long"
	ReasonBreakerOpen    = "circuit open"
	ReasonEndpointPaused = "endpoint paused"
)

// Observe says what the attempt o of ep changes in h at now.
//
//   - A success ends the row of failures. It closes the breaker if it was the
//     probe's, or began after the breaker opened.
//   - A failure counts. In a closed breaker, the last of p.FailuresToOpen in a row
//     opens it. A failed probe opens it again for longer. Other failures that end
//     while it is open are those of attempts already under way and change no state.
//   - 429, 502, 503 and 504 have dispatches wait: for the policy's next delay, one
//     step further each time that the endpoint, after having been left alone for
//     that long, still asks for it, or for Retry-After where that is longer; never
//     longer than [MaxThrottle].
//   - 410 disables. So does p.DisableAfter of nothing but failures, of which the
//     owner is warned after one day and after three.
func (h Health) Observe(ep *Endpoint, o Observation, now time.Time) HealthChange {
	p := ep.Health.withDefaults()
	c := HealthChange{Health: h}
	if o.Outcome.OK() {
		c.succeeded(o, now)
		return c
	}
	n := &c.Health
	n.ConsecutiveFailures++
	n.LastFailureAt = now
	if n.FailingSince.IsZero() {
		n.FailingSince = now
	}
	if throttles(o.Outcome) {
		n.throttle(ep, o, now)
	}
	switch {
	case o.Outcome.Class == ClassStatus && o.Outcome.Status == 410:
		c.Disable = ReasonGone
	case p.DisableAfter > 0 && now.Sub(n.FailingSince) >= p.DisableAfter:
		c.Disable = ReasonFailingForDays
	}
	if c.Disable != "" {
		c.Notices = append(c.Notices, NoticeDisabled)
		n.Epoch++
		n.Breaker, n.OpenUntil, n.Trips = BreakerClosed, time.Time{}, 0 // the state holds now
		return c
	}
	for n.Warned < int64(len(warnAfter)) && now.Sub(n.FailingSince) >= warnAfter[n.Warned] && p.DisableAfter > warnAfter[n.Warned] {
		if n.Warned++; len(c.Notices) == 0 {
			c.Notices = append(c.Notices, NoticeEndpointFailing)
		}
	}
	switch {
	case h.Closed() && p.FailuresToOpen > 0 && n.ConsecutiveFailures >= p.FailuresToOpen:
		c.Notices = append(c.Notices, NoticeBreakerOpened)
		n.OpenedAt, n.Trips = now, 0
		c.open(ep, p, now)
	case h.Breaker == BreakerHalfOpen && o.Probe:
		c.open(ep, p, now)
	}
	return c
}

func (c *HealthChange) succeeded(o Observation, now time.Time) {
	h := &c.Health
	h.LastSuccessAt = now
	if !h.Closed() {
		if !o.Probe && o.StartedAt.Before(h.OpenedAt) {
			return
		}
		c.Closed = true
		c.Notices = append(c.Notices, NoticeBreakerClosed)
		h.Breaker, h.OpenUntil, h.OpenedAt, h.Trips = BreakerClosed, time.Time{}, time.Time{}, 0
		h.Epoch++
	}
	h.ConsecutiveFailures, h.FailingSince, h.Warned = 0, time.Time{}, 0
	if !h.Throttled(now) {
		h.ThrottledUntil, h.ThrottleStep = time.Time{}, 0
	}
}

func (c *HealthChange) open(ep *Endpoint, p HealthPolicy, now time.Time) {
	h := &c.Health
	h.Breaker = BreakerOpen
	h.Trips++
	h.Epoch++
	h.OpenUntil = now.Add(coolDown(ep, p, h.Trips, h.Epoch))
	c.Opened = true
}

// coolDown is the wait after the trips-th opening in a row. Its jitter is drawn
// from the endpoint and the epoch, so that equal states give equal times.
func coolDown(ep *Endpoint, p HealthPolicy, trips, epoch int64) time.Duration {
	d := p.MaxCoolDown
	if shift := min(trips-1, 40); p.CoolDown < p.MaxCoolDown>>shift {
		d = p.CoolDown << shift
	}
	f := fnv.New64a()
	fmt.Fprintf(f, "%s|%s|%d", ep.Tenant, ep.ID, epoch)
	return d + time.Duration(float64(d)*ListJitter*unit(f.Sum64()))
}

// throttle keeps the endpoint's next dispatches back.
func (h *Health) throttle(ep *Endpoint, o Observation, now time.Time) {
	if o.StartedAt.Before(h.ThrottledUntil) {
		// It began before the endpoint was left alone: one of many under way at once.
		h.ThrottledUntil = later(h.ThrottledUntil, now.Add(min(o.Outcome.RetryAfter, MaxThrottle)))
		return
	}
	h.ThrottleStep++
	wait := ep.Retry.Delay(AttemptKey{Tenant: ep.Tenant, Endpoint: ep.ID, Generation: 1, Attempt: h.ThrottleStep + 1})
	h.ThrottledUntil = now.Add(min(max(wait, o.Outcome.RetryAfter), MaxThrottle))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Probe starts a probe if one is due: the breaker is open and its cool-down over,
// or half-open and the last probe was given up. ok is false, and nothing changes,
// otherwise.
func (h Health) Probe(now time.Time) (next Health, ok bool) {
	if h.Closed() || now.Before(h.OpenUntil) {
		return h, false
	}
	h.Breaker = BreakerHalfOpen
	h.OpenUntil = now.Add(ProbeTime)
	return h, true
}

// Reset is the health of an endpoint that somebody has switched on again: the past
// does not count, and deliveries held before are of an earlier epoch.
func (h Health) Reset() Health {
	return Health{LastSuccessAt: h.LastSuccessAt, LastFailureAt: h.LastFailureAt, Epoch: h.Epoch + 1}
}
