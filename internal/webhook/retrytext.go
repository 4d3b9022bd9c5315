package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// retryPolicyJSON is the stored form, and the API's: seconds, fractions allowed.
// Fields are only ever added; what an old row lacks has its zero value's meaning.
type retryPolicyJSON struct {
	Preset      string           `json:"preset,omitempty"`
	DelaysS     []float64        `json:"delays_s,omitempty"`
	Exponential *exponentialJSON `json:"exponential,omitempty"`
	MaxAttempts int64            `json:"max_attempts,omitempty"`
	MaxAgeS     float64          `json:"max_age_s,omitempty"`
	Permanent   string           `json:"permanent_statuses,omitempty"`
}

type exponentialJSON struct {
	BaseS    float64 `json:"base_s"`
	Factor   float64 `json:"factor,omitempty"`
	CapS     float64 `json:"cap_s,omitempty"`
	Attempts int64   `json:"attempts,omitempty"`
	Jitter   Jitter  `json:"jitter,omitempty"`
}

// MarshalJSON writes waits in seconds.
func (p RetryPolicy) MarshalJSON() ([]byte, error) {
	j := retryPolicyJSON{Preset: p.Preset, MaxAttempts: p.MaxAttempts, MaxAgeS: p.MaxAge.Seconds(), Permanent: p.Permanent.String()}
	for _, d := range p.Delays {
		j.DelaysS = append(j.DelaysS, d.Seconds())
	}
	if e := p.Exponential; e != nil {
		j.Exponential = &exponentialJSON{e.Base.Seconds(), e.Factor, e.Cap.Seconds(), e.Attempts, e.Jitter}
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote and validates it. Fields it does not
// know are those of a later version and are passed over.
func (p *RetryPolicy) UnmarshalJSON(b []byte) error {
	var j retryPolicyJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("retry policy: %w", err)
	}
	q := RetryPolicy{Preset: j.Preset, MaxAttempts: j.MaxAttempts}
	var errs []error
	seconds := func(field string, s float64, most time.Duration) time.Duration {
		if !(s >= 0 && s <= most.Seconds()) { // before the conversion, which could wrap around
			errs = append(errs, fmt.Errorf("retry policy: %s is %gs, want 0 to %gs", field, s, most.Seconds()))
			return 0
		}
		return time.Duration(math.Round(s * 1e9))
	}
	for i, s := range j.DelaysS {
		q.Delays = append(q.Delays, seconds(fmt.Sprintf("delays: number %d", i+1), s, MaxDelay))
	}
	if e := j.Exponential; e != nil {
		q.Exponential = &Exponential{Base: seconds("exponential.base", e.BaseS, MaxDelay), Factor: e.Factor,
			Cap: seconds("exponential.cap", e.CapS, MaxDelay), Attempts: e.Attempts, Jitter: e.Jitter}
	}
	q.MaxAge = seconds("max_age", j.MaxAgeS, MaxMaxAge)
	var err error
	if q.Permanent, err = ParseStatusSet(j.Permanent); err != nil {
		errs = append(errs, fmt.Errorf("retry policy: permanent_statuses: %w", err))
	}
	if len(errs) == 0 {
		errs = append(errs, q.Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	*p = q
	return nil
}

// ParseRetryPolicy reads a policy as people write it, and validates it:
//
//	default                        Standard Webhooks' ten attempts over 75 h
//	41h                            eight attempts over 41 h
//	0s,30s,5m,2h                   the waits before each attempt
//	exponential                    backoff; parts that may follow, with their defaults:
//	  ;base=10s;factor=2;cap=24h;attempts=10;jitter=full
//
// After any of these, separated by ";", may follow attempts=N, max-age=48h and
// permanent=400-499,!404. JSON as it is stored is read as well.
func ParseRetryPolicy(text string) (RetryPolicy, error) {
	text = strings.TrimSpace(text)
	var p RetryPolicy
	if strings.HasPrefix(text, "{") {
		err := json.Unmarshal([]byte(text), &p)
		return p, err
	}
	schedule, options, _ := strings.Cut(text, ";")
	switch schedule = strings.TrimSpace(schedule); {
	case presets[schedule] != nil:
		p.Preset = schedule
	case schedule == "exponential":
		p.Exponential = &Exponential{Base: 10 * time.Second}
	default:
		for part := range strings.SplitSeq(schedule, ",") {
			d, err := time.ParseDuration(strings.TrimSpace(part))
			if err != nil {
				return p, fmt.Errorf("retry policy %q: want default, 41h, exponential, or waits such as 0s,30s,5m: %q is none of these", text, strings.TrimSpace(part))
			}
			p.Delays = append(p.Delays, d)
		}
	}
	if options != "" {
		for option := range strings.SplitSeq(options, ";") {
			name, value, _ := strings.Cut(option, "=")
			if err := p.setOption(strings.TrimSpace(name), strings.TrimSpace(value)); err != nil {
				return p, fmt.Errorf("retry policy: %w", err)
			}
		}
	}
	return p, p.Validate()
}

func (p *RetryPolicy) setOption(name, value string) (err error) {
	e := p.Exponential
	switch {
	case name == "max-age":
		p.MaxAge, err = time.ParseDuration(value)
	case name == "permanent":
		p.Permanent, err = ParseStatusSet(value)
	case name == "attempts" && e != nil:
		e.Attempts, err = positive(value)
	case name == "attempts":
		p.MaxAttempts, err = positive(value)
	case name == "base" && e != nil:
		e.Base, err = time.ParseDuration(value)
	case name == "cap" && e != nil:
		e.Cap, err = time.ParseDuration(value)
	case name == "factor" && e != nil:
		e.Factor, err = strconv.ParseFloat(value, 64)
		if err == nil && e.Factor == 0 {
			err = errors.New("is 0")
		}
	case name == "jitter" && e != nil:
		e.Jitter = Jitter(value)
	default:
		return fmt.Errorf("option %q is unknown, or not one of this schedule", name)
	}
	if err != nil {
		return fmt.Errorf("option %s=%s: %w", name, value, err)
	}
	return nil
}

func positive(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil && n < 1 {
		err = errors.New("want 1 or more")
	}
	return n, err
}

// String is the form that ParseRetryPolicy reads.
func (p RetryPolicy) String() string {
	var b strings.Builder
	switch {
	case p.Exponential != nil:
		e := p.Exponential.withDefaults()
		fmt.Fprintf(&b, "exponential;base=%s;factor=%s;cap=%s;attempts=%d;jitter=%s", short(e.Base), strconv.FormatFloat(e.Factor, 'g', -1, 64), short(e.Cap), p.Attempts(), e.Jitter)
	case len(p.Delays) > 0:
		for i, d := range p.Delays {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(short(d))
		}
	case p.Preset != "":
		b.WriteString(p.Preset)
	default:
		b.WriteString(PresetDefault)
	}
	if p.MaxAttempts > 0 && p.Exponential == nil {
		fmt.Fprintf(&b, ";attempts=%d", p.MaxAttempts)
	}
	if p.MaxAge > 0 {
		fmt.Fprintf(&b, ";max-age=%s", short(p.MaxAge))
	}
	if len(p.Permanent) > 0 {
		fmt.Fprintf(&b, ";permanent=%s", p.Permanent)
	}
	return b.String()
}

// short is a duration without the units that are zero: 24h rather than 24h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
