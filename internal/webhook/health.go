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
	// MinFailuresToDisable is how many failures at least make "nothing but failures":
	// two events a week apart say little.
	MinFailuresToDisable = 3
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
	// DisableAfter is how long nothing but failures, and at least
	// [MinFailuresToDisable] of them, are borne.
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
	// is given up. Zero while open means that the cool-down is over and there was no
	// delivery to probe with: the next one is the probe.
	OpenUntil time.Time
	// Trips counts the openings since the breaker was last closed.
	Trips int64
	// ThrottledUntil is until when dispatches wait, for the endpoint asked for fewer.
	ThrottledUntil time.Time
	ThrottleStep   int64 // throttling answers in a row, each after the last one's wait
	Warned         int64 // warnings given since FailingSince
	// Epoch grows whenever deliveries are to be held, probed with or released from now
	// on. It names control tasks, so that one of an earlier epoch is known to be late.
	Epoch int64
	// ReleasedEpoch is the epoch whose release has ended: while it is less than Epoch
	// and nothing is to be held, a release is under way.
	ReleasedEpoch int64
	// ReleaseAll says that the release under way was asked for by somebody and leaves
	// nothing out.
	ReleaseAll bool
	// LeftAt is when somebody switched the endpoint on and left what was held: what
	// was held by then waits until somebody releases it. Zero means that nothing was
	// left.
	LeftAt time.Time
}

// Closed reports whether ordinary attempts may be made as far as the breaker goes.
func (h *Health) Closed() bool { return h.Breaker == "" || h.Breaker == BreakerClosed }

// Holds reports whether ordinary deliveries are to be held at now as far as the
// breaker goes. Once a cool-down is over, or a probe given up, it does not: what
// comes then becomes the probe.
func (h *Health) Holds(now time.Time) bool { return !h.Closed() && now.Before(h.OpenUntil) }

// Releasing reports whether a release is to be carried through.
func (h *Health) Releasing() bool { return h.Closed() && h.ReleasedEpoch < h.Epoch }

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

// Reasons for which a delivery is scheduled as it is.
const (
	ReasonThrottled = "throttled"
	ReasonReleased  = "released"
)

// ReasonFilterFailed begins the reason of a delivery that is held because its
// endpoint's filter could not say yes or no.
const ReasonFilterFailed = "filter failed: "

// Observe says what the attempt o of ep changes in h at now.
//
//   - A success ends the row of failures. It closes the breaker if it was the
//     probe's, or began after the breaker opened.
//   - A failure counts. In a closed breaker, the last of p.FailuresToOpen in a row
//     opens it, until the cool-down is over and no throttle is left. A failed probe
//     opens it again for longer, or closes it where the policy has come to know no
//     breaker. Other failures that end while it is open are those of attempts already
//     under way and change no state.
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
	case p.DisableAfter > 0 && now.Sub(n.FailingSince) >= p.DisableAfter && n.ConsecutiveFailures >= MinFailuresToDisable:
		c.Disable = ReasonFailingForDays
	}
	if c.Disable != "" {
		c.Notices = append(c.Notices, NoticeDisabled)
		n.Epoch++
		n.Breaker, n.OpenUntil, n.Trips = BreakerClosed, time.Time{}, 0 // the state holds now
		return c
	}
	for n.Warned < int64(len(warnAfter)) && now.Sub(n.FailingSince) >= warnAfter[n.Warned] &&
		(p.DisableAfter < 0 || p.DisableAfter > warnAfter[n.Warned]) {
		if n.Warned++; len(c.Notices) == 0 {
			c.Notices = append(c.Notices, NoticeEndpointFailing)
		}
	}
	switch {
	case h.Breaker == BreakerHalfOpen && o.Probe && p.FailuresToOpen < 0:
		c.close()
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
		c.close()
	}
	h.ConsecutiveFailures, h.FailingSince, h.Warned = 0, time.Time{}, 0
	if !h.Throttled(now) {
		h.ThrottledUntil, h.ThrottleStep = time.Time{}, 0
	}
}

func (c *HealthChange) close() {
	h := &c.Health
	c.Closed = true
	c.Notices = append(c.Notices, NoticeBreakerClosed)
	h.Breaker, h.OpenUntil, h.OpenedAt, h.Trips = BreakerClosed, time.Time{}, time.Time{}, 0
	h.Epoch++
}

func (c *HealthChange) open(ep *Endpoint, p HealthPolicy, now time.Time) {
	h := &c.Health
	h.Breaker = BreakerOpen
	h.Trips++
	h.Epoch++
	h.OpenUntil = later(now.Add(coolDown(ep, p, h.Trips, h.Epoch)), h.ThrottledUntil)
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
	shortest, longest := ep.Retry.Bounds(h.ThrottleStep + 2)
	// The delivery that was answered so waits at least as long by its own schedule,
	// unless full jitter draws it a short wait.
	wait := max(shortest, longest/2)
	if o.StartedAt.Before(h.ThrottledUntil) {
		// It began before the endpoint was left alone: one of many under way at once.
		h.ThrottledUntil = later(h.ThrottledUntil, now.Add(min(o.Outcome.RetryAfter, MaxThrottle)))
		return
	}
	h.ThrottleStep++
	h.ThrottledUntil = now.Add(min(max(wait, o.Outcome.RetryAfter), MaxThrottle))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Probe starts a probe if one is due: the breaker is open and its cool-down over,
// or half-open and the last probe was given up. Each has an epoch of its own. ok is
// false, and nothing changes, otherwise.
func (h Health) Probe(now time.Time) (next Health, ok bool) {
	if h.Closed() || now.Before(h.OpenUntil) {
		return h, false
	}
	h.Breaker = BreakerHalfOpen
	h.OpenUntil = now.Add(ProbeTime)
	h.Epoch++
	return h, true
}

// Await is the health of an endpoint whose cool-down is over: until there is a
// probe, the next delivery that comes is it.
func (h Health) Await() Health {
	h.Breaker, h.OpenUntil = BreakerOpen, time.Time{}
	return h
}

// Reset is the health of an endpoint that somebody has switched on again: the past
// does not count, and deliveries held before are of an earlier epoch. The release
// that follows takes them up, or, with leave, passes by what was held by now: that
// waits until somebody says so.
func (h Health) Reset(leave bool, now time.Time) Health {
	r := Health{LastSuccessAt: h.LastSuccessAt, LastFailureAt: h.LastFailureAt, Epoch: h.Epoch + 1, ReleasedEpoch: h.ReleasedEpoch}
	if leave {
		r.LeftAt = now
	}
	return r
}

// Admission is what is to become of a scheduled delivery whose time has come.
type Admission string

// Admissions.
const (
	AdmitRun    Admission = "run"    // make the attempt
	AdmitProbe  Admission = "probe"  // make it the probe
	AdmitHeld   Admission = "held"   // keep it until the endpoint is released
	AdmitLater  Admission = "later"  // not before Health.ThrottledUntil
	AdmitCancel Admission = "cancel" // the endpoint is deleted
)

// Admit says whether an attempt that trigger asks for may be made to ep at now, and
// why not.
//
//   - A test is made whatever the state, so that somebody can see whether an
//     endpoint works before switching it on; only not to a deleted one.
//   - A paused or disabled endpoint, and one whose breaker is open, is sent nothing.
//     A probe under way is an exception to the latter. Once the cool-down is over,
//     whatever comes first becomes the probe.
//   - A throttled endpoint's deliveries wait, probes excepted, which wait already.
func Admit(ep *Endpoint, h *Health, trigger Trigger, now time.Time) (a Admission, reason string) {
	switch {
	case ep.State == EndpointDeleted:
		return AdmitCancel, ReasonEndpointDeleted
	case trigger == TriggerTest:
		return AdmitRun, ""
	case ep.State == EndpointPaused:
		return AdmitHeld, ReasonEndpointPaused
	case ep.State != EndpointActive:
		return AdmitHeld, ReasonEndpointDisabled
	case trigger == TriggerProbe && h.Breaker == BreakerHalfOpen:
		return AdmitRun, ""
	case h.Holds(now):
		return AdmitHeld, ReasonBreakerOpen
	case !h.Closed():
		return AdmitProbe, ""
	case h.Throttled(now):
		return AdmitLater, ReasonThrottled
	}
	return AdmitRun, ""
}

// AfterThrottle is when the attempt k, which a throttle keeps back at now, is to be
// made: at the throttle's end, and up to a fifth of the wait later, at least a
// second and at most a minute, so that not all come back at once.
func (h *Health) AfterThrottle(k AttemptKey, now time.Time) time.Time {
	spread := min(max(h.ThrottledUntil.Sub(now)/5, time.Second), time.Minute)
	return h.ThrottledUntil.Add(time.Duration(float64(spread) * fraction(k)))
}

// DecideTriggered is [Decide] with regard to what the attempt was made for. A test
// is made once: it is delivered or dead. A probe's failure never makes its delivery
// dead: the probe was our choice, and the delivery has one attempt more.
func DecideTriggered(d Delivery, o Outcome, p RetryPolicy, now time.Time) Decision {
	if d.Trigger == TriggerTest {
		if o.OK() {
			return Decision{State: DeliveryDelivered}
		}
		return Decision{State: DeliveryDead, Reason: ReasonTestFailed}
	}
	dec := Decide(d, o, p, now)
	if d.Trigger == TriggerProbe && dec.State == DeliveryDead {
		next := d.Key()
		next.Attempt++
		return Decision{State: DeliveryScheduled, Reason: failure(o), NextAttempt: next.Attempt, NextAttemptAt: now.Add(p.Delay(next))}
	}
	return dec
}

// Outstanding are the controls that an endpoint's state calls for, the publication
// of its notices apart: whoever finds them missing makes them.
func Outstanding(ep *Endpoint, h *Health) []Control {
	c := Control{Tenant: ep.Tenant, Endpoint: ep.ID, Epoch: h.Epoch}
	as := func(kind ControlKind, at time.Time) Control {
		c.Kind, c.At = kind, at
		return c
	}
	switch {
	case ep.State == EndpointDeleted:
		return []Control{as(ControlCancel, time.Time{})}
	case ep.State != EndpointActive:
		return []Control{as(ControlHold, time.Time{})}
	case !h.Closed():
		return []Control{as(ControlHold, time.Time{}), as(ControlProbe, h.OpenUntil)}
	case h.Releasing():
		return []Control{as(ControlRelease, time.Time{})}
	}
	return nil
}
