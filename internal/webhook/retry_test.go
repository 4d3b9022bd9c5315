package webhook

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// hour and so on keep the tables narrow.
const (
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
)

func exponential(base, most time.Duration, factor float64, attempts int64, j Jitter) RetryPolicy {
	return RetryPolicy{Exponential: &Exponential{Base: base, Factor: factor, Cap: most, Attempts: attempts, Jitter: j}}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name              string
		p                 RetryPolicy
		attempts          int64
		attempt           int64
		shortest, longest time.Duration
	}{
		{"default, first", RetryPolicy{}, 10, 1, 0, 0},
		{"default, below the first", RetryPolicy{}, 10, 0, 0, 0},
		{"default, second", RetryPolicy{}, 10, 2, 5 * second, 6 * second},
		{"default, last", RetryPolicy{}, 10, 10, 24 * hour, 24*hour + 288*minute},
		{"default, beyond the last", RetryPolicy{}, 10, 11, 24 * hour, 24*hour + 288*minute},
		{"default by name", RetryPolicy{Preset: "default"}, 10, 2, 5 * second, 6 * second},
		{"41h, first", RetryPolicy{Preset: "41h"}, 8, 1, 0, 0},
		{"41h, second", RetryPolicy{Preset: "41h"}, 8, 2, 30 * second, 36 * second},
		{"41h, last", RetryPolicy{Preset: "41h"}, 8, 8, 24 * hour, 24*hour + 288*minute},
		{"list", RetryPolicy{Delays: []time.Duration{minute, hour}}, 2, 1, minute, 72 * second},
		{"list, more attempts", RetryPolicy{Delays: []time.Duration{minute, hour}, MaxAttempts: 5}, 5, 5, hour, 72 * minute},
		{"list, fewer attempts", RetryPolicy{Delays: []time.Duration{minute, hour}, MaxAttempts: 1}, 1, 1, minute, 72 * second},
		{"exponential, first", exponential(second, hour, 2, 5, JitterNone), 5, 1, 0, 0},
		{"exponential, second", exponential(second, hour, 2, 5, JitterNone), 5, 2, second, second},
		{"exponential, fifth", exponential(second, hour, 2, 5, JitterNone), 5, 5, 8 * second, 8 * second},
		{"exponential, capped", exponential(second, 7*second, 2, 5, JitterNone), 5, 5, 7 * second, 7 * second},
		{"exponential, full", exponential(second, hour, 3, 5, JitterFull), 5, 4, 0, 9 * second},
		{"exponential, equal", exponential(second, hour, 3, 5, JitterEqual), 5, 4, 4500 * time.Millisecond, 9 * second},
		{"exponential, defaults", RetryPolicy{Exponential: &Exponential{Base: second}}, 10, 4, 0, 4 * second},
		{"exponential, default cap", RetryPolicy{Exponential: &Exponential{Base: second, Jitter: JitterNone}}, 10, 40, 24 * hour, 24 * hour},
		{"exponential, more attempts", RetryPolicy{Exponential: &Exponential{Base: second}, MaxAttempts: 50}, 50, 50, 0, 24 * hour},
		{"exponential, number beyond a float", exponential(second, MaxDelay, 100, 50, JitterNone), 50, math.MaxInt64, MaxDelay, MaxDelay},
		{"exponential, factor 1", exponential(second, hour, 1, 50, JitterNone), 50, 50, second, second},
		{"unvalidated: negative", RetryPolicy{Delays: []time.Duration{-hour}}, 1, 1, 0, 0},
		{"unvalidated: endless", RetryPolicy{Delays: []time.Duration{math.MaxInt64}}, 1, 1, MaxDelay, MaxDelay + MaxDelay/5},
		{"unvalidated: no number", exponential(second, hour, math.NaN(), 5, JitterNone), 5, 4, hour, hour},
	} {
		shortest, longest := tt.p.Bounds(tt.attempt)
		if shortest != tt.shortest || longest != tt.longest || tt.p.Attempts() != tt.attempts {
			t.Errorf("%s: %s to %s with %d attempts, want %s to %s with %d", tt.name, shortest, longest, tt.p.Attempts(), tt.shortest, tt.longest, tt.attempts)
		}
	}
}

// Jitter fills its bounds, differs between deliveries, and is drawn from nothing but
// the attempt: the same one always waits equally long.
func TestJitterFillsItsBounds(t *testing.T) {
	t.Parallel()
	for _, p := range []RetryPolicy{
		{}, {Preset: Preset41h}, {Delays: []time.Duration{minute, hour, 0}},
		exponential(second, hour, 2, 10, JitterFull), exponential(second, hour, 2, 10, JitterEqual), exponential(second, hour, 2, 10, JitterNone),
	} {
		for n := int64(1); n <= p.Attempts(); n++ {
			shortest, longest := p.Bounds(n)
			lo, hi := time.Duration(math.MaxInt64), time.Duration(-1)
			for e := range 1000 {
				k := attemptKey(n)
				k.Event = KeyOf("s", "t", fmt.Sprint(e))
				d := p.Delay(k)
				lo, hi = min(lo, d), max(hi, d)
				k.Task, k.Bounce = 9, 3
				if p.Delay(k) != d {
					t.Fatal("a task made again changes the delay")
				}
			}
			if lo < shortest || hi > longest {
				t.Errorf("%s: attempt %d waits %s to %s, want %s to %s", p, n, lo, hi, shortest, longest)
			}
			if width := longest - shortest; hi-lo < width*97/100 {
				t.Errorf("%s: attempt %d spreads over %s of %s", p, n, hi-lo, width)
			}
		}
	}
}

// No policy that is valid, and none that is not, ever waits beyond what Cloud Tasks
// can schedule, whatever an endpoint says with it.
func TestNoWaitBeyondTheHorizon(t *testing.T) {
	t.Parallel()
	const horizon = 30 * 24 * hour
	for _, p := range []RetryPolicy{
		{}, {Preset: Preset41h}, {Delays: []time.Duration{MaxDelay, MaxDelay}, MaxAttempts: MaxAttempts},
		exponential(MaxDelay, MaxDelay, MaxFactor, MaxAttempts, JitterNone),
		{Delays: []time.Duration{math.MaxInt64, math.MinInt64}, MaxAttempts: MaxAttempts},
		exponential(math.MaxInt64, math.MaxInt64, math.Inf(1), MaxAttempts, JitterFull),
	} {
		for n := int64(1); n < p.Attempts(); n++ {
			d := Decide(delivery(n), Outcome{Class: ClassStatus, Status: 503, RetryAfter: math.MaxInt64}, p, t0)
			if wait := d.NextAttemptAt.Sub(t0); d.State != DeliveryScheduled || wait < 0 || wait > horizon-24*hour {
				t.Errorf("%s: attempt %d waits %s", p, n+1, wait)
			}
		}
	}
}

// Retry-After on answers that throttle: the greater of it and the schedule, in both
// its forms, at most two hours beyond the schedule; junk counts as absent (H29);
// no number overflows into an attempt at once (H30).
func TestRetryAfterForEveryPolicy(t *testing.T) {
	t.Parallel()
	for _, p := range []RetryPolicy{
		{Delays: []time.Duration{0, 30 * second, 30 * second}}, {Preset: Preset41h}, {},
		exponential(30*second, hour, 2, 5, JitterNone), exponential(30*second, hour, 2, 5, JitterEqual), exponential(30*second, hour, 2, 5, JitterFull),
	} {
		scheduled := p.Delay(attemptKey(2))
		most := scheduled + RetryAfterAllowance
		for _, tt := range []struct {
			lines []string
			want  time.Duration
		}{
			{[]string{"120"}, 120 * second},
			{[]string{"Wed, 21 Oct 2015 07:28:00 GMT"}, scheduled},
			{[]string{"Sun, 01 Mar 2026 12:10:00 GMT"}, 600 * second},
			{[]string{"86400"}, most},
			{[]string{"-5"}, scheduled}, {[]string{"abc"}, scheduled}, {[]string{"1e9"}, scheduled}, {[]string{""}, scheduled}, {[]string{"0"}, scheduled},
			{[]string{"5", "120"}, 120 * second}, // the longest of several
			{[]string{"9223372036"}, most}, {[]string{"9223372037"}, most}, {[]string{"9999999999"}, most},
			{[]string{"99999999999999999999999"}, most}, {[]string{"1" + strings.Repeat("0", 30)}, most},
			{[]string{"Fri, 31 Dec 9999 23:59:59 GMT"}, most},
		} {
			for _, status := range []int{429, 503} {
				d := Decide(delivery(1), Outcome{Class: ClassStatus, Status: status, RetryAfter: ParseRetryAfter(tt.lines, t0)}, p, t0)
				if got := d.NextAttemptAt.Sub(t0); got != max(tt.want, scheduled) || d.NextAttempt != 2 {
					t.Errorf("%s, %d with Retry-After %q: attempt %d after %s, want 2 after %s", p, status, tt.lines, d.NextAttempt, got, max(tt.want, scheduled))
				}
			}
		}
	}
}

// A limit of L attempts is exactly L attempts, with any schedule (H32).
func TestExactlyAsManyAttempts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		p             RetryPolicy
		attempts      int
		least, atMost time.Duration
	}{
		{RetryPolicy{}, 10, 75 * hour, 91 * hour},
		{RetryPolicy{Preset: Preset41h}, 8, 41 * hour, 50 * hour},
		{RetryPolicy{Delays: []time.Duration{0, second, second}}, 3, 2 * second, 3 * second},
		{RetryPolicy{Delays: []time.Duration{0, second}, MaxAttempts: 4}, 4, 3 * second, 4 * second},
		{RetryPolicy{MaxAttempts: 1}, 1, 0, 0},
		{exponential(second, hour, 2, 5, JitterNone), 5, 15 * second, 15 * second},
		{exponential(second, hour, 2, 5, JitterEqual), 5, 7500 * time.Millisecond, 15 * second},
	} {
		d, now, attempts := delivery(1), t0, 0
		for d.State == DeliveryScheduled {
			attempts++
			dec := Decide(d, Outcome{Class: ClassStatus, Status: 403}, tt.p, now)
			d.State, d.Reason = dec.State, dec.Reason
			if dec.State == DeliveryScheduled {
				d.Attempt, now = dec.NextAttempt, dec.NextAttemptAt
			}
		}
		if total := now.Sub(t0); attempts != tt.attempts || d.Reason != ReasonAttemptsExhausted || total < tt.least || total > tt.atMost {
			t.Errorf("%s: %d attempts over %s, %s", tt.p, attempts, total, d.Reason)
		}
	}
}

func TestPermanentStatuses(t *testing.T) {
	t.Parallel()
	all, err := ParseStatusSet("300-599")
	if err != nil {
		t.Fatal(err)
	}
	client, err := ParseStatusSet("400-499,!404,!408")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		set   StatusSet
		o     Outcome
		state DeliveryState
	}{
		{nil, Outcome{Class: ClassStatus, Status: 400}, DeliveryScheduled},
		{client, Outcome{Class: ClassStatus, Status: 399}, DeliveryScheduled},
		{client, Outcome{Class: ClassStatus, Status: 400}, DeliveryDead},
		{client, Outcome{Class: ClassStatus, Status: 404}, DeliveryScheduled},
		{client, Outcome{Class: ClassStatus, Status: 405}, DeliveryDead},
		{client, Outcome{Class: ClassStatus, Status: 499}, DeliveryDead},
		{client, Outcome{Class: ClassStatus, Status: 500}, DeliveryScheduled},
		{client, Outcome{Class: ClassStatus, Status: 429}, DeliveryScheduled},
		{client, Outcome{Class: ClassStatus, Status: 410}, DeliveryHeld},
		{all, Outcome{Class: ClassStatus, Status: 500}, DeliveryDead},
		{all, Outcome{Class: ClassStatus, Status: 502}, DeliveryScheduled},
		{all, Outcome{Class: ClassStatus, Status: 503}, DeliveryScheduled},
		{all, Outcome{Class: ClassStatus, Status: 504}, DeliveryScheduled},
		{all, Outcome{Class: ClassStatus, Status: 301}, DeliveryDead},
		{all, Outcome{Class: ClassOK, Status: 200}, DeliveryDelivered},
		{all, Outcome{Class: ClassTimeout}, DeliveryScheduled},
		{all, Outcome{Class: ClassBody, Status: 500}, DeliveryScheduled},
	} {
		d := Decide(delivery(1), tt.o, RetryPolicy{Permanent: tt.set}, t0)
		if d.State != tt.state || d.State == DeliveryDead && d.Reason != fmt.Sprint(ReasonPermanent, "status ", tt.o.Status) {
			t.Errorf("%q, %+v: %+v", tt.set, tt.o, d)
		}
	}
}

func TestParseStatusSet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want, err string }{
		{"", "", ""},
		{" ", "", ""},
		{"404", "404", ""},
		{"404-404", "404", ""},
		{"400-499,!404", "400-403,405-499", ""},
		{"!404, 400-499", "400-403,405-499", ""},
		{"401,400,403,402", "400-403", ""},
		{"300-599", "300-599", ""},
		{"429-430", "429-430", ""},
		{"429", "", "never permanent"},
		{"502-504", "", "never permanent"},
		{"410", "", "disables"},
		{"299", "", "want 300 to 599"},
		{"600", "", "want 300 to 599"},
		{"200-299", "", "want 300 to 599"},
		{"499-400", "", "backwards"},
		{"4xx", "", "want 300 to 599"},
		{"0404", "", "want 300 to 599"},
		{"+404", "", "want 300 to 599"},
		{"400,", "", "empty"},
		{"404,!404", "", "nothing is left"},
		{"-404", "", "want 300 to 599"},
	} {
		s, err := ParseStatusSet(tt.in)
		if s.String() != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q gives %q, %v", tt.in, s, err)
		}
		if again, err := ParseStatusSet(s.String()); err != nil || again.String() != s.String() {
			t.Errorf("%q read again: %q, %v", s, again, err)
		}
	}
}

func TestPolicyValidationNamesTheField(t *testing.T) {
	t.Parallel()
	ok := func(change func(*RetryPolicy)) RetryPolicy {
		p := exponential(second, hour, 2, 5, JitterFull)
		change(&p)
		return p
	}
	for _, tt := range []struct {
		p    RetryPolicy
		want string // empty: valid
	}{
		{RetryPolicy{}, ""},
		{ok(func(*RetryPolicy) {}), ""},
		{RetryPolicy{Preset: "42h"}, `preset "42h"`},
		{RetryPolicy{Preset: "41h", Delays: []time.Duration{0}}, "only one"},
		{ok(func(p *RetryPolicy) { p.Preset = "41h" }), "only one"},
		{RetryPolicy{Delays: []time.Duration{0, MaxDelay}}, ""},
		{RetryPolicy{Delays: []time.Duration{0, MaxDelay + 1}}, "delays: number 2"},
		{RetryPolicy{Delays: []time.Duration{-1}}, "delays: number 1"},
		{RetryPolicy{Delays: make([]time.Duration, MaxAttempts)}, ""},
		{RetryPolicy{Delays: make([]time.Duration, MaxAttempts+1)}, "51 attempts"},
		{RetryPolicy{MaxAttempts: MaxAttempts}, ""},
		{RetryPolicy{MaxAttempts: MaxAttempts + 1}, "max_attempts is 51"},
		{RetryPolicy{MaxAttempts: -1}, "max_attempts is -1"},
		{RetryPolicy{MaxAge: MaxMaxAge}, ""},
		{RetryPolicy{MaxAge: MaxMaxAge + 1}, "max_age"},
		{RetryPolicy{MaxAge: -1}, "max_age"},
		{RetryPolicy{Permanent: StatusSet{{429, 429}}}, "permanent_statuses"},
		{RetryPolicy{Permanent: StatusSet{{400, 404}, {405, 406}}}, "permanent_statuses"},
		{RetryPolicy{Permanent: StatusSet{{0, 9999}}}, "permanent_statuses"},
		{ok(func(p *RetryPolicy) { p.Exponential.Base = 0 }), "exponential.base"},
		{ok(func(p *RetryPolicy) { p.Exponential.Base = MinBase }), ""},
		{ok(func(p *RetryPolicy) { p.Exponential.Base = MaxDelay + 1; p.Exponential.Cap = 0 }), "exponential.base"},
		{ok(func(p *RetryPolicy) { p.Exponential.Factor = 1 }), ""},
		{ok(func(p *RetryPolicy) { p.Exponential.Factor = 0.99 }), "exponential.factor"},
		{ok(func(p *RetryPolicy) { p.Exponential.Factor = 100.1 }), "exponential.factor"},
		{ok(func(p *RetryPolicy) { p.Exponential.Factor = math.NaN() }), "exponential.factor"},
		{ok(func(p *RetryPolicy) { p.Exponential.Factor = math.Inf(1) }), "exponential.factor"},
		{ok(func(p *RetryPolicy) { p.Exponential.Cap = second - 1 }), "exponential.cap"},
		{ok(func(p *RetryPolicy) { p.Exponential.Cap = MaxDelay }), ""},
		{ok(func(p *RetryPolicy) { p.Exponential.Cap = MaxDelay + 1 }), "exponential.cap"},
		{ok(func(p *RetryPolicy) { p.Exponential.Attempts = 51 }), "exponential.attempts"},
		{ok(func(p *RetryPolicy) { p.Exponential.Attempts = -1 }), "exponential.attempts"},
		{ok(func(p *RetryPolicy) { p.Exponential.Jitter = "some" }), "exponential.jitter"},
	} {
		err := tt.p.Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.p, err, tt.want)
		}
	}
	err := RetryPolicy{MaxAge: -1, MaxAttempts: -1}.Validate()
	if err == nil || !strings.Contains(err.Error(), "max_age") || !strings.Contains(err.Error(), "max_attempts") {
		t.Errorf("not every fault is named: %v", err)
	}
}

// What is stored reads back as it was, rows of earlier versions included, and in the
// words that people write.
func TestPolicyForms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, json string }{
		{"default", `{"preset":"default"}`},
		{"41h;attempts=5;max-age=24h;permanent=400-403,405", `{"preset":"41h","max_attempts":5,"max_age_s":86400,"permanent_statuses":"400-403,405"}`},
		{"0s,1.5s,168h;max-age=3h", `{"delays_s":[0,1.5,604800],"max_age_s":10800}`},
		{"exponential;base=30s;factor=1.5;cap=6h;attempts=12;jitter=equal", `{"exponential":{"base_s":30,"factor":1.5,"cap_s":21600,"attempts":12,"jitter":"equal"}}`},
	} {
		p, err := ParseRetryPolicy(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		if got := p.String(); got != tt.text {
			t.Errorf("%s is written %s", tt.text, got)
		}
		b, err := json.Marshal(p)
		if err != nil || string(b) != tt.json {
			t.Errorf("%s is stored as %s, %v", tt.text, b, err)
		}
		for _, form := range []string{tt.json, string(b)} {
			again, err := ParseRetryPolicy(form)
			if err != nil || again.String() != tt.text {
				t.Errorf("%s gives %s, %v", form, again, err)
			}
		}
	}
	for _, same := range [][2]string{
		{`{}`, "default"}, // stored by the first version for the default
		{`{"max_age_s":3600}`, "default;max-age=1h"}, // likewise
		{`{"delays_s":[5],"from_later":1}`, "5s"},    // a field of a later version
		{" 0s, 5m ", "0s,5m"},                        //
		{"exponential", "exponential;base=10s;factor=2;cap=24h;attempts=10;jitter=full"},
		{"exponential;base=30h", "exponential;base=30h;factor=2;cap=30h;attempts=10;jitter=full"},
	} {
		if p, err := ParseRetryPolicy(same[0]); err != nil || p.String() != same[1] {
			t.Errorf("%s gives %s, %v", same[0], p, err)
		}
	}
	for _, bad := range [][2]string{
		{"", "want default"}, {"40h,", "want default"}, {"daily", "want default"}, {"0s;base=1s", `"base"`}, {"0s;attempts=0", "attempts"},
		{"0s;attempts=x", "attempts"}, {"0s;;", `""`}, {"exponential;factor=0", "factor"}, {"exponential;factor=NaN", "factor"}, {"exponential;jitter=", ""},
		{"exponential;cap=1s", "cap"}, {"169h", "number 1"}, {"9999999h", "want default"}, {"0s;permanent=429", "permanent"},
		{`{"delays_s":[-1]}`, "delays"}, {`{"delays_s":[1e300]}`, "delays"}, {`{"max_age_s":1e300}`, "max_age"}, {`{"exponential":{}}`, "base"},
		{`{"exponential":{"base_s":1e30}}`, "exponential.base"}, {`{"exponential":{"base_s":1,"cap_s":-1}}`, "exponential.cap"},
		{`{"preset":"x"}`, "preset"}, {`{"permanent_statuses":"200"}`, "permanent_statuses"}, {`{"delays_s":"x"}`, "retry policy"},
	} {
		if bad[1] == "" {
			continue
		}
		if p, err := ParseRetryPolicy(bad[0]); err == nil || !strings.Contains(err.Error(), bad[1]) {
			t.Errorf("%s gives %s, %v, want an error that says %s", bad[0], p, err, bad[1])
		}
	}
}

// Whatever text is taken as a policy is valid and reads back as itself.
func FuzzParseRetryPolicy(f *testing.F) {
	for _, s := range []string{"default", "41h;max-age=1h", "0s,5s;attempts=3", "exponential;base=1s;jitter=none", `{"delays_s":[0,1e9]}`, "0s;permanent=400-499,!404"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseRetryPolicy(s)
		if err != nil {
			return
		}
		again, err := ParseRetryPolicy(p.String())
		if err != nil || again.String() != p.String() {
			t.Errorf("%q is %s, which gives %s, %v", s, p, again, err)
		}
		for _, l := range p.Plan(attemptKey(1), t0) {
			if l.At.Before(l.Earliest) || l.At.After(l.Latest) {
				t.Errorf("%s: %+v", p, l)
			}
		}
	})
}

func TestPlanStopsAtMaximumAge(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{Preset: Preset41h, MaxAge: 2 * hour}
	plan := p.Plan(attemptKey(1), t0)
	if n := len(plan); n != 5 || plan[0].At != t0 || plan[4].At.Sub(t0) > 2*hour || plan[4].Earliest != t0.Add(hour+12*minute+30*second) {
		t.Errorf("%+v", plan)
	}
}
