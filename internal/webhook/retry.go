package webhook

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a retry policy may ask for.
const (
	MaxAttempts = 50
	// MaxDelay is the longest wait before one attempt. Cloud Tasks schedules at
	// most 30 days ahead; jitter and Retry-After must fit as well.
	MaxDelay = 7 * 24 * time.Hour
	// RetryAfterAllowance is how far a Retry-After may push an attempt beyond its
	// schedule.
	RetryAfterAllowance = 2 * time.Hour
	// ListJitter is the greatest part of a listed delay that is added to it.
	ListJitter = 0.2
)

// DefaultDelays are Standard Webhooks' example schedule: the waits before
// attempts 1 to 10, about 75 hours in all.
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
var DefaultDelays = []time.Duration{
	0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
	5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// RetryPolicy says when to try again and when to stop. The zero value is the
// default schedule without a maximum age.
type RetryPolicy struct {
	// Delays are the waits before attempt 1, 2, …; their number is the number of
	// attempts. Empty means [DefaultDelays].
	Delays []time.Duration
	// MaxAge ends a generation whose next attempt would start later than this
	// after its start. Zero means no limit but the number of attempts.
	MaxAge time.Duration
}

// Attempts is the number of attempts in a generation.
func (p RetryPolicy) Attempts() int64 { return int64(len(p.delays())) }

func (p RetryPolicy) delays() []time.Duration {
	if len(p.Delays) == 0 {
		return DefaultDelays
	}
	return p.Delays
}

// Validate reports what makes the policy unusable.
func (p RetryPolicy) Validate() error {
	if len(p.Delays) > MaxAttempts {
		return fmt.Errorf("retry policy has %d attempts, at most %d are allowed", len(p.Delays), MaxAttempts)
	}
	for i, d := range p.Delays {
		if d < 0 || d > MaxDelay {
			return fmt.Errorf("retry policy: delay %d is %s, want 0 to %s", i+1, d, MaxDelay)
		}
	}
	if p.MaxAge < 0 {
		return fmt.Errorf("retry policy: maximum age %s is negative", p.MaxAge)
	}
	return nil
}

// Delay is the wait before the attempt k names: the listed delay plus 0–20 % of
// it. The jitter is drawn from the key, so that the same attempt always waits
// equally long while many deliveries spread out. Attempts beyond the last wait
// as long as the last.
func (p RetryPolicy) Delay(k AttemptKey) time.Duration {
	ds := p.delays()
	i := min(max(k.Attempt, 1), int64(len(ds))) - 1
	return ds[i] + time.Duration(float64(ds[i])*ListJitter*fraction(k))
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
func unit(x uint64) float64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
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

// retryPolicyJSON is the stored form: seconds, fractions allowed.
type retryPolicyJSON struct {
	DelaysS []float64 `json:"delays_s,omitempty"`
	MaxAgeS float64   `json:"max_age_s,omitempty"`
}

// MarshalJSON writes delays in seconds.
func (p RetryPolicy) MarshalJSON() ([]byte, error) {
	j := retryPolicyJSON{MaxAgeS: p.MaxAge.Seconds()}
	for _, d := range p.Delays {
		j.DelaysS = append(j.DelaysS, d.Seconds())
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote and validates it.
func (p *RetryPolicy) UnmarshalJSON(b []byte) error {
	var j retryPolicyJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("retry policy: %w", err)
	}
	q := RetryPolicy{}
	for i, s := range j.DelaysS {
		if s > MaxDelay.Seconds() || s < 0 {
			return fmt.Errorf("retry policy: delay %d is %gs, want 0 to %gs", i+1, s, MaxDelay.Seconds())
		}
		q.Delays = append(q.Delays, time.Duration(math.Round(s*1e9)))
	}
	if j.MaxAgeS < 0 || j.MaxAgeS > 365*24*3600 {
		return fmt.Errorf("retry policy: maximum age %gs is not between 0 and a year", j.MaxAgeS)
	}
	q.MaxAge = time.Duration(math.Round(j.MaxAgeS * 1e9))
	if err := q.Validate(); err != nil {
		return err
	}
	*p = q
	return nil
}
