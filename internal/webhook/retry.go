package webhook

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a retry policy may ask for. Cloud Tasks schedules at most 30 days
// ahead (https://cloud.google.com/tasks/docs/quotas): the longest wait that any
// policy can come to, MaxDelay with its jitter and a Retry-After, is well within.
const (
	// MaxAttempts is the greatest number of attempts in a generation.
	MaxAttempts = 50
	// MaxDelay is the longest wait before one attempt, jitter not counted.
	MaxDelay = 7 * 24 * time.Hour
	// MaxMaxAge is the greatest maximum age.
	MaxMaxAge = 365 * 24 * time.Hour
	// RetryAfterAllowance is how far a Retry-After may push an attempt beyond its
	// schedule.
	RetryAfterAllowance = 2 * time.Hour
	// ListJitter is the greatest part of a listed delay that is added to it.
	ListJitter = 0.2

	// MinBase and MaxFactor bound exponential backoff.
	MinBase   = time.Millisecond
	MaxFactor = 100
	// DefaultExponentialAttempts is the number of attempts where none is said.
	DefaultExponentialAttempts = 10
)

// Names of the schedules that come with Sealpost. What a name means never changes:
// policies are stored by name.
const (
	PresetDefault = "default"
	Preset41h     = "41h"
)

// DefaultDelays are Standard Webhooks' example schedule: the waits before
// attempts 1 to 10, about 75 hours in all.
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
var DefaultDelays = []time.Duration{
	0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
	5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// presets are the waits before each attempt, by name.
var presets = map[string][]time.Duration{
	PresetDefault: DefaultDelays,
	Preset41h: {
		0, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour,
		4 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	},
}

// Jitter is how the waits of exponential backoff are spread. Lists have a jitter
// of their own, see [ListJitter].
type Jitter string

// Jitters, for a computed wait d.
const (
	JitterFull  Jitter = "full"  // 0 to d; the default
	JitterEqual Jitter = "equal" // d/2 to d
	JitterNone  Jitter = "none"  // d
)

// Exponential is backoff that grows by a factor. The first attempt is made at
// once; the wait before attempt n is Base × Factor^(n−2), at most Cap, and then
// spread by Jitter.
type Exponential struct {
	Base   time.Duration // at least [MinBase]
	Factor float64       // 1 to [MaxFactor]; 0 means 2
	Cap    time.Duration // at least Base; 0 means a day, or Base if that is longer
	// Attempts is how many there are, the first included; 0 means
	// [DefaultExponentialAttempts]. RetryPolicy.MaxAttempts overrules it.
	Attempts int64
	Jitter   Jitter // empty means full
}

func (e Exponential) withDefaults() Exponential {
	if e.Factor == 0 {
		e.Factor = 2
	}
	if e.Cap == 0 {
		e.Cap = max(24*time.Hour, e.Base)
	}
	if e.Attempts == 0 {
		e.Attempts = DefaultExponentialAttempts
	}
	if e.Jitter == "" {
		e.Jitter = JitterFull
	}
	return e
}

// RetryPolicy says when to try again and when to stop. The zero value is the
// default schedule. At most one of Preset, Delays and Exponential is set.
type RetryPolicy struct {
	// Preset names a schedule: [PresetDefault], [Preset41h]; empty means the default,
	// unless Delays or Exponential is set.
	Preset string
	// Delays are the waits before attempt 1, 2, …; their number is the number of
	// attempts.
	Delays []time.Duration
	// Exponential computes the waits.
	Exponential *Exponential
	// MaxAttempts replaces the schedule's own number of attempts; those beyond a
	// list wait as long as its last. Zero keeps the schedule's.
	MaxAttempts int64
	// MaxAge ends a generation whose next attempt would start later than this
	// after its start. Zero means no limit but the number of attempts.
	MaxAge time.Duration
	// Permanent are the answers after which trying again is pointless: they end a
	// delivery at once.
	Permanent StatusSet
}

// Attempts is the number of attempts in a generation.
func (p RetryPolicy) Attempts() int64 {
	switch {
	case p.MaxAttempts > 0:
		return p.MaxAttempts
	case p.Exponential != nil:
		return p.Exponential.withDefaults().Attempts
	}
	return int64(len(p.delays()))
}

func (p RetryPolicy) delays() []time.Duration {
	if len(p.Delays) > 0 {
		return p.Delays
	}
	if ds := presets[p.Preset]; ds != nil {
		return ds
	}
	return DefaultDelays
}

// Validate reports everything that makes the policy unusable, by field.
func (p RetryPolicy) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("retry policy: "+format, args...)) }
	set := 0
	for _, is := range []bool{p.Preset != "", len(p.Delays) > 0, p.Exponential != nil} {
		if is {
			set++
		}
	}
	if set > 1 {
		fault("preset, delays and exponential: only one can be set")
	}
	if p.Preset != "" && presets[p.Preset] == nil {
		fault("preset %q is neither %s nor %s", p.Preset, PresetDefault, Preset41h)
	}
	if len(p.Delays) > MaxAttempts {
		fault("delays: %d attempts, at most %d are allowed", len(p.Delays), MaxAttempts)
	}
	for i, d := range p.Delays {
		if d < 0 || d > MaxDelay {
			fault("delays: number %d is %s, want 0 to %s", i+1, d, MaxDelay)
		}
	}
	if p.Exponential != nil {
		p.Exponential.validate(fault)
	}
	if p.MaxAttempts < 0 || p.MaxAttempts > MaxAttempts {
		fault("max_attempts is %d, want 1 to %d, or 0 for the schedule's own number", p.MaxAttempts, MaxAttempts)
	}
	if p.MaxAge < 0 || p.MaxAge > MaxMaxAge {
		fault("max_age is %s, want 0 to %s", p.MaxAge, MaxMaxAge)
	}
	if err := p.Permanent.validate(); err != nil {
		fault("permanent_statuses: %w", err)
	}
	return errors.Join(errs...)
}

func (e Exponential) validate(fault func(string, ...any)) {
	d := e.withDefaults()
	if d.Base < MinBase || d.Base > MaxDelay {
		fault("exponential.base is %s, want %s to %s", d.Base, MinBase, MaxDelay)
	}
	if !(d.Factor >= 1 && d.Factor <= MaxFactor) { // not for NaN
		fault("exponential.factor is %g, want 1 to %d", d.Factor, MaxFactor)
	}
	if d.Cap < d.Base || d.Cap > MaxDelay {
		fault("exponential.cap is %s, want the base, %s, to %s", d.Cap, d.Base, MaxDelay)
	}
	if d.Attempts < 1 || d.Attempts > MaxAttempts {
		fault("exponential.attempts is %d, want 1 to %d", d.Attempts, MaxAttempts)
	}
	switch d.Jitter {
	case JitterFull, JitterEqual, JitterNone:
	default:
		fault("exponential.jitter is %q, want full, equal or none", d.Jitter)
	}
}

// Bounds are the shortest and the longest wait before an attempt, Retry-After
// aside. The longest is exclusive unless the two are equal. Attempts below 1 count
// as 1.
func (p RetryPolicy) Bounds(attempt int64) (shortest, longest time.Duration) {
	attempt = max(attempt, 1)
	if p.Exponential == nil {
		ds := p.delays()
		d := clampDelay(ds[min(attempt, int64(len(ds)))-1])
		return d, d + time.Duration(float64(d)*ListJitter)
	}
	if attempt == 1 {
		return 0, 0
	}
	e := p.Exponential.withDefaults()
	d := e.wait(attempt)
	switch e.Jitter {
	case JitterNone:
		return d, d
	case JitterEqual:
		return d / 2, d
	}
	return 0, d
}

// wait is the computed wait before attempt n ≥ 2. Numbers too large for a float64
// become infinite there and the cap here.
func (e Exponential) wait(n int64) time.Duration {
	most := clampDelay(e.Cap)
	w := float64(e.Base) * math.Pow(e.Factor, float64(n-2))
	if !(w < float64(most)) { // NaN too
		return most
	}
	return clampDelay(time.Duration(w))
}

// clampDelay keeps a policy that nobody has validated from scheduling in the past
// or beyond what Cloud Tasks can.
func clampDelay(d time.Duration) time.Duration { return min(max(d, 0), MaxDelay) }

// Delay is the wait before the attempt k names. Its jitter is drawn from the key,
// so that the same attempt always waits equally long while many deliveries spread
// out. It is never negative and never longer than 1.2 × [MaxDelay].
func (p RetryPolicy) Delay(k AttemptKey) time.Duration {
	shortest, longest := p.Bounds(k.Attempt)
	return shortest + time.Duration(float64(longest-shortest)*fraction(k))
}

// PlannedAttempt is one line of a retry plan.
type PlannedAttempt struct {
	Attempt int64
	// Earliest and Latest are the bounds over all deliveries, At is this delivery's
	// time.
	Earliest, Latest, At time.Time
}

// Plan lists the attempts of the generation that k names, should each fail at once
// and none with a Retry-After. It starts at from.
func (p RetryPolicy) Plan(k AttemptKey, from time.Time) []PlannedAttempt {
	var plan []PlannedAttempt
	last := PlannedAttempt{Earliest: from, Latest: from, At: from}
	for n := int64(1); n <= p.Attempts(); n++ {
		k.Attempt = n
		shortest, longest := p.Bounds(n)
		last = PlannedAttempt{Attempt: n, Earliest: last.Earliest.Add(shortest), Latest: last.Latest.Add(longest), At: last.At.Add(p.Delay(k))}
		if n > 1 && p.MaxAge > 0 && last.At.Sub(from) > p.MaxAge {
			break
		}
		plan = append(plan, last)
	}
	return plan
}

// fraction is a number in [0, 1) that depends on the attempt and nothing else;
// the task number is left out, so that a re-created task keeps its time.
func fraction(k AttemptKey) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%x|%s|%s|%d|%d", k.Event[:], k.Tenant, k.Endpoint, k.Generation, k.Attempt)
	return unit(h.Sum64())
}

// unit makes a number in [0, 1) of an FNV hash. Its high bits mix poorly for inputs
// that differ in the last byte only: finish with the 64-bit avalanche of
// MurmurHash3.
func unit(x uint64) float64 { return float64(avalanche(x)>>11) / (1 << 53) }

func avalanche(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}

// ParseRetryAfter reads the Retry-After lines of an answer (RFC 9110, section
// 10.2.3): whole seconds or an HTTP date. Of several lines the longest valid wait
// counts. Anything else, and waits that are not positive, count as absent and
// give 0. A number of seconds beyond what a Duration holds gives the greatest
// Duration: callers cap it.
func ParseRetryAfter(lines []string, now time.Time) time.Duration {
	var longest time.Duration
	for _, line := range lines {
		longest = max(longest, parseRetryAfter(strings.Trim(line, " \t"), now))
	}
	return longest
}

func parseRetryAfter(v string, now time.Time) time.Duration {
	if v == "" {
		return 0
	}
	if strings.Trim(v, "0123456789") == "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64 // digits only: an error can only mean too large
		}
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	return max(0, at.Sub(now))
}
