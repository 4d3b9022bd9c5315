package webhook

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// seen is one attempt, as a line of a story: after is the time since the attempt
// before, lasted how long it took.
type seen struct {
	after  time.Duration
	status int // 0: timeout
	retry  time.Duration
	probe  bool
	lasted time.Duration
}

func (s seen) outcome() Outcome {
	switch {
	case s.status == 0:
		return Outcome{Class: ClassTimeout}
	case s.status < 300:
		return Outcome{Class: ClassOK, Status: s.status}
	}
	return Outcome{Class: ClassStatus, Status: s.status, RetryAfter: s.retry}
}

func times(n int, s seen) []seen { return slices.Repeat([]seen{s}, n) }

// says renders what matters of a change.
func says(c HealthChange, now time.Time) string {
	var out []string
	h := c.Health
	out = append(out, fmt.Sprintf("%s f%d e%d", h.breaker(), h.ConsecutiveFailures, h.Epoch))
	if c.Opened {
		out = append(out, "opened")
	}
	if c.Closed {
		out = append(out, "closed")
	}
	if c.Disable != "" {
		out = append(out, "disable: "+c.Disable)
	}
	for _, n := range c.Notices {
		out = append(out, string(n))
	}
	if h.Throttled(now) {
		out = append(out, fmt.Sprintf("wait %s", h.ThrottledUntil.Sub(now).Round(time.Second)))
	}
	return strings.Join(out, ", ")
}

func (h *Health) breaker() Breaker {
	if h.Closed() {
		return BreakerClosed
	}
	return h.Breaker
}

func TestObserve(t *testing.T) {
	t.Parallel()
	fail, ok := seen{after: time.Second, status: 500}, seen{after: time.Second, status: 200}
	probe := func(status int) seen { return seen{after: time.Hour, status: status, probe: true} }
	day := 24 * time.Hour
	policy := func(p HealthPolicy) Endpoint {
		return Endpoint{Tenant: "t", ID: "e", EndpointSettings: EndpointSettings{Health: p},
			Retry: RetryPolicy{Delays: []time.Duration{0, 10 * time.Second, 60 * time.Second, 40 * time.Hour}}}
	}
	std := policy(HealthPolicy{})
	for _, c := range []struct {
		name string
		ep   Endpoint
		did  []seen
		want string // of the last
	}{
		{"one success", std, []seen{ok}, "closed f0 e0"},
		{"one failure", std, []seen{fail}, "closed f1 e0"},
		{"nine failures", std, times(9, fail), "closed f9 e0"},
		{"the tenth opens", std, times(10, fail), "open f10 e1, opened, endpoint.breaker_opened"},
		{"a success between", std, slices.Concat(times(9, fail), []seen{ok}, times(9, fail)), "closed f9 e0"},
		{"an eleventh, already under way", std, times(11, fail), "open f11 e1"},
		{"timeouts count", std, times(10, seen{}), "open f10 e1, opened, endpoint.breaker_opened"},
		{"own threshold", policy(HealthPolicy{FailuresToOpen: 1}), []seen{fail}, "open f1 e1, opened, endpoint.breaker_opened"},
		{"no breaker", policy(HealthPolicy{FailuresToOpen: -1}), times(100, fail), "closed f100 e0"},
		{"a failed probe opens again, silently", std, append(times(10, fail), probe(500)), "open f11 e3, opened"},
		{"a good probe closes", std, append(times(10, fail), probe(204)), "closed f0 e3, closed, endpoint.breaker_closed"},
		{"a good attempt from before it opened closes nothing", std, append(times(10, fail), seen{after: time.Second, status: 200, lasted: 2 * time.Second}), "open f10 e1"},
		{"one that began after it opened closes", std, append(times(10, fail), seen{after: 2 * time.Second, status: 200, lasted: time.Second}), "closed f0 e2, closed, endpoint.breaker_closed"},
		{"it opens anew after closing", std, slices.Concat(times(10, fail), []seen{probe(200)}, times(10, fail)), "open f10 e4, opened, endpoint.breaker_opened"},
		{"410 disables", std, []seen{{status: 410}}, "closed f1 e1, disable: " + ReasonGone + ", endpoint.disabled"},
		{"410 of a probe disables", std, append(times(10, fail), probe(410)), "closed f11 e3, disable: " + ReasonGone + ", endpoint.disabled"},

		{"a day of failures warns", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, {after: day, status: 500}}, "closed f2 e0, endpoint.failing"},
		{"a nanosecond less does not", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, {after: day - 1, status: 500}}, "closed f2 e0"},
		{"once only", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, {after: day, status: 500}, fail}, "closed f3 e0"},
		{"three days warn again", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, {after: day, status: 500}, {after: 2 * day, status: 500}}, "closed f3 e0, endpoint.failing"},
		{"both at once are one", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, {after: 3 * day, status: 500}}, "closed f2 e0, endpoint.failing"},
		{"five days disable", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, fail, {after: 5*day - time.Second, status: 500}}, "closed f3 e1, disable: " + ReasonFailingForDays + ", endpoint.disabled"},
		{"a nanosecond less does not disable", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, fail, {after: 5*day - time.Second - 1, status: 500}}, "closed f3 e0, endpoint.failing"},
		{"two failures are too few", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, {after: 9 * day, status: 500}}, "closed f2 e0, endpoint.failing"},
		{"a success starts the count anew", policy(HealthPolicy{FailuresToOpen: -1}), []seen{fail, fail, fail, ok, fail, fail, {after: 5*day - 2*time.Second, status: 500}}, "closed f3 e0, endpoint.failing"},
		{"never disabled, yet warned", policy(HealthPolicy{FailuresToOpen: -1, DisableAfter: -1}), []seen{fail, fail, {after: 90 * day, status: 500}}, "closed f3 e0, endpoint.failing"},
		{"disabled before any warning", policy(HealthPolicy{FailuresToOpen: -1, DisableAfter: time.Hour}), []seen{fail, fail, {after: time.Hour, status: 500}}, "closed f3 e1, disable: " + ReasonFailingForDays + ", endpoint.disabled"},

		{"503 waits for the next step", std, []seen{{status: 503}}, "closed f1 e0, wait 10s"},
		{"429 too", std, []seen{{status: 429}}, "closed f1 e0, wait 10s"},
		{"502 and 504 too", std, []seen{{status: 502}, {after: 12 * time.Second, status: 504}}, "closed f2 e0, wait 1m0s"},
		{"500 does not", std, []seen{{status: 500, retry: time.Hour}}, "closed f1 e0"},
		{"Retry-After beyond it", std, []seen{{status: 503, retry: time.Hour}}, "closed f1 e0, wait 1h0m0s"},
		{"Retry-After below it", std, []seen{{status: 503, retry: time.Second}}, "closed f1 e0, wait 10s"},
		{"Retry-After beyond a day", std, []seen{{status: 503, retry: math.MaxInt64}}, "closed f1 e0, wait 24h0m0s"},
		{"a step beyond a day", std, []seen{{status: 503}, {after: time.Minute, status: 503}, {after: time.Hour, status: 503}}, "closed f3 e0, wait 24h0m0s"},
		{"many at once are one step", std, []seen{{status: 503}, {after: time.Second, status: 503, lasted: time.Second}, {status: 503, lasted: time.Second}}, "closed f3 e0, wait 9s"},
		{"of many the longest counts", std, []seen{{status: 503}, {after: time.Second, status: 503, lasted: time.Second, retry: 50 * time.Second}}, "closed f2 e0, wait 50s"},
		{"a success after the wait ends it", std, []seen{{status: 503}, {after: 12 * time.Second, status: 200}, {after: time.Second, status: 503}}, "closed f1 e0, wait 10s"},
		{"a success within it does not", std, []seen{{status: 503}, {after: time.Second, status: 200}}, "closed f0 e0, wait 9s"},
		{"an open breaker waits for the throttle too", policy(HealthPolicy{FailuresToOpen: 1}), []seen{{status: 503, retry: 7 * time.Hour}}, "open f1 e1, opened, endpoint.breaker_opened, wait 7h0m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			now := t0
			var h Health
			var got HealthChange
			for _, s := range c.did {
				now = now.Add(s.after)
				if s.probe {
					var ok bool
					if h, ok = h.Probe(now); !ok {
						t.Fatalf("no probe is due in %+v", h)
					}
				}
				got = h.Observe(&c.ep, Observation{Outcome: s.outcome(), StartedAt: now.Add(-s.lasted), Probe: s.probe}, now)
				h = got.Health
			}
			if s := says(got, now); s != c.want {
				t.Errorf("says %q, want %q", s, c.want)
			}
			if !h.Closed() && h.OpenUntil.Before(h.ThrottledUntil) {
				t.Errorf("the probe is due at %s, within the throttle until %s", h.OpenUntil, h.ThrottledUntil)
			}
		})
	}
}

// A policy that has come to know no breaker ends one at the next probe, whatever it
// brings.
func TestBreakerSwitchedOffWhileOpen(t *testing.T) {
	t.Parallel()
	ep := Endpoint{EndpointSettings: EndpointSettings{Health: HealthPolicy{FailuresToOpen: 1}}}
	h := Health{}.Observe(&ep, Observation{StartedAt: t0}, t0).Health
	h, _ = h.Probe(t0.Add(time.Hour))
	ep.Health.FailuresToOpen = -1
	c := h.Observe(&ep, Observation{StartedAt: t0.Add(time.Hour), Probe: true}, t0.Add(time.Hour))
	if !c.Health.Closed() || !c.Closed || c.Opened {
		t.Errorf("%+v", c)
	}
}

func TestCoolDownGrowsToItsMaximum(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy HealthPolicy
		want   []time.Duration // before the jitter
	}{
		{HealthPolicy{}, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour}},
		{HealthPolicy{CoolDown: time.Second, MaxCoolDown: 3 * time.Second}, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second}},
		{HealthPolicy{CoolDown: 2 * time.Hour}, []time.Duration{2 * time.Hour, 2 * time.Hour}},
		{HealthPolicy{CoolDown: 24 * time.Hour, MaxCoolDown: 24 * time.Hour}, slices.Repeat([]time.Duration{24 * time.Hour}, 100)},
	} {
		c.policy.FailuresToOpen, c.policy.DisableAfter = 1, -1
		ep := Endpoint{Tenant: "t", ID: "e", EndpointSettings: EndpointSettings{Health: c.policy}}
		now, h, waits := t0, Health{}, map[time.Duration]bool{}
		for i, want := range c.want {
			o := Observation{StartedAt: now, Probe: i > 0}
			if i > 0 {
				h, _ = h.Probe(now)
			}
			h = h.Observe(&ep, o, now).Health
			got := h.OpenUntil.Sub(now)
			if got < want || got > want+want/5 || h.Trips != int64(i+1) {
				t.Errorf("%+v: trip %d waits %s, want %s to 20%% more", c.policy, h.Trips, got, want)
			}
			waits[got-want] = true
			now = h.OpenUntil
		}
		if len(waits) < 2 {
			t.Errorf("%+v: no jitter", c.policy)
		}
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		h    Health
		ok   bool
	}{
		{"closed", Health{}, false},
		{"open, cooling down", Health{Breaker: BreakerOpen, OpenUntil: t0.Add(1)}, false},
		{"open, cool-down over", Health{Breaker: BreakerOpen, OpenUntil: t0}, true},
		{"waiting for a delivery", Health{Breaker: BreakerOpen, OpenUntil: t0.Add(time.Hour)}.Await(), true},
		{"a probe under way", Health{Breaker: BreakerHalfOpen, OpenUntil: t0.Add(1)}, false},
		{"a probe given up", Health{Breaker: BreakerHalfOpen, OpenUntil: t0}, true},
	} {
		got, ok := c.h.Probe(t0)
		if ok != c.ok || !ok && got != c.h || ok && (got.Breaker != BreakerHalfOpen || got.Epoch != 1 || !got.OpenUntil.Equal(t0.Add(ProbeTime))) {
			t.Errorf("%s: %+v, %v", c.name, got, ok)
		}
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	open := Health{Breaker: BreakerOpen, OpenUntil: t0.Add(1)}
	half := Health{Breaker: BreakerHalfOpen, OpenUntil: t0.Add(1)}
	throttled := Health{ThrottledUntil: t0.Add(1)}
	both := Health{Breaker: BreakerOpen, OpenUntil: t0.Add(2), ThrottledUntil: t0.Add(1)}
	for _, c := range []struct {
		state   EndpointState
		h       Health
		trigger Trigger
		want    Admission
		reason  string
	}{
		{EndpointActive, Health{}, TriggerAutomatic, AdmitRun, ""},
		{EndpointActive, Health{Breaker: BreakerClosed}, TriggerReplay, AdmitRun, ""},
		{EndpointActive, open, TriggerAutomatic, AdmitHeld, ReasonBreakerOpen},
		{EndpointActive, open, TriggerProbe, AdmitHeld, ReasonBreakerOpen},
		{EndpointActive, open, TriggerTest, AdmitRun, ""},
		{EndpointActive, Health{Breaker: BreakerOpen, OpenUntil: t0}, TriggerAutomatic, AdmitProbe, ""},
		{EndpointActive, open.Await(), TriggerAutomatic, AdmitProbe, ""},
		{EndpointActive, half, TriggerAutomatic, AdmitHeld, ReasonBreakerOpen},
		{EndpointActive, half, TriggerProbe, AdmitRun, ""},
		{EndpointActive, Health{Breaker: BreakerHalfOpen, OpenUntil: t0}, TriggerAutomatic, AdmitProbe, ""},
		{EndpointActive, throttled, TriggerAutomatic, AdmitLater, ReasonThrottled},
		{EndpointActive, Health{ThrottledUntil: t0}, TriggerAutomatic, AdmitRun, ""},
		{EndpointActive, throttled, TriggerTest, AdmitRun, ""},
		{EndpointActive, both, TriggerAutomatic, AdmitHeld, ReasonBreakerOpen},
		{EndpointPaused, Health{}, TriggerAutomatic, AdmitHeld, ReasonEndpointPaused},
		{EndpointPaused, half, TriggerProbe, AdmitHeld, ReasonEndpointPaused},
		{EndpointPaused, open, TriggerTest, AdmitRun, ""},
		{EndpointDisabled, Health{}, TriggerAutomatic, AdmitHeld, ReasonEndpointDisabled},
		{EndpointDisabled, Health{}, TriggerTest, AdmitRun, ""},
		{EndpointDeleted, Health{}, TriggerTest, AdmitCancel, ReasonEndpointDeleted},
		{EndpointDeleted, open, TriggerAutomatic, AdmitCancel, ReasonEndpointDeleted},
	} {
		a, reason := Admit(&Endpoint{State: c.state}, &c.h, c.trigger, t0)
		if a != c.want || reason != c.reason {
			t.Errorf("%s endpoint, %+v, %s: %s (%s), want %s (%s)", c.state, c.h, c.trigger, a, reason, c.want, c.reason)
		}
	}
}

func TestAfterThrottleSpreads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ wait, spread time.Duration }{
		{time.Second, time.Second}, {5 * time.Second, time.Second}, {time.Minute, 12 * time.Second}, {24 * time.Hour, time.Minute},
	} {
		h := Health{ThrottledUntil: t0.Add(c.wait)}
		low, high := time.Duration(math.MaxInt64), time.Duration(0)
		for i := range 1000 {
			d := h.AfterThrottle(AttemptKey{Event: KeyOf("s", "t", fmt.Sprint(i))}, t0).Sub(h.ThrottledUntil)
			low, high = min(low, d), max(high, d)
		}
		if low < 0 || high > c.spread || high-low < c.spread*9/10 {
			t.Errorf("a wait of %s spreads from %s to %s, want 0 to %s", c.wait, low, high, c.spread)
		}
	}
}

func TestDecideTriggered(t *testing.T) {
	t.Parallel()
	ok, fail, gone := Outcome{Class: ClassOK, Status: 200}, Outcome{Class: ClassStatus, Status: 500}, Outcome{Class: ClassStatus, Status: 410}
	p := RetryPolicy{Delays: []time.Duration{0, time.Second}}
	for _, c := range []struct {
		trigger Trigger
		attempt int64
		o       Outcome
		want    DeliveryState
		next    int64
		disable bool
	}{
		{TriggerAutomatic, 1, fail, DeliveryScheduled, 2, false},
		{TriggerAutomatic, 2, fail, DeliveryDead, 0, false},
		{TriggerProbe, 1, fail, DeliveryScheduled, 2, false},
		{TriggerProbe, 2, fail, DeliveryScheduled, 3, false},
		{TriggerProbe, 9, fail, DeliveryScheduled, 10, false},
		{TriggerProbe, 9, ok, DeliveryDelivered, 0, false},
		{TriggerProbe, 9, gone, DeliveryHeld, 0, true},
		{TriggerTest, 1, ok, DeliveryDelivered, 0, false},
		{TriggerTest, 1, fail, DeliveryDead, 0, false},
		{TriggerTest, 1, gone, DeliveryDead, 0, false},
	} {
		d := DecideTriggered(Delivery{Trigger: c.trigger, Generation: 1, Attempt: c.attempt}, c.o, p, t0)
		if d.State != c.want || d.NextAttempt != c.next || d.Disable != c.disable || (c.next > 0) == d.NextAttemptAt.IsZero() {
			t.Errorf("%s, attempt %d, %+v: %+v", c.trigger, c.attempt, c.o, d)
		}
	}
}

func TestOutstanding(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state EndpointState
		h     Health
		want  []ControlKind
	}{
		{EndpointActive, Health{}, nil},
		{EndpointActive, Health{Epoch: 3, ReleasedEpoch: 3}, nil},
		{EndpointActive, Health{Epoch: 3, ReleasedEpoch: 1}, []ControlKind{ControlRelease}},
		{EndpointActive, Health{Breaker: BreakerOpen, Epoch: 3}, []ControlKind{ControlHold, ControlProbe}},
		{EndpointActive, Health{Breaker: BreakerHalfOpen, Epoch: 3}, []ControlKind{ControlHold, ControlProbe}},
		{EndpointPaused, Health{Breaker: BreakerOpen, Epoch: 3}, []ControlKind{ControlHold}},
		{EndpointDisabled, Health{Epoch: 3}, []ControlKind{ControlHold}},
		{EndpointDeleted, Health{Epoch: 3}, []ControlKind{ControlCancel}},
	} {
		var got []ControlKind
		for _, o := range Outstanding(&Endpoint{Tenant: "t", ID: "e", State: c.state}, &c.h) {
			if got = append(got, o.Kind); o.Epoch != 3 || o.Tenant != "t" || o.Endpoint != "e" || o.Kind == ControlProbe && !o.At.Equal(c.h.OpenUntil) {
				t.Errorf("%+v", o)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, %+v: %v, want %v", c.state, c.h, got, c.want)
		}
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	h := Health{Breaker: BreakerOpen, ConsecutiveFailures: 12, FailingSince: t0, LastSuccessAt: t0.Add(-time.Hour), LastFailureAt: t0, OpenedAt: t0,
		OpenUntil: t0.Add(time.Hour), Trips: 4, ThrottledUntil: t0.Add(time.Hour), ThrottleStep: 2, Warned: 1, Epoch: 7, ReleasedEpoch: 5}
	if got, want := h.Reset(false, t0), (Health{LastSuccessAt: h.LastSuccessAt, LastFailureAt: t0, Epoch: 8, ReleasedEpoch: 5}); got != want || !got.Releasing() {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := h.Reset(true, t0), (Health{LastSuccessAt: h.LastSuccessAt, LastFailureAt: t0, Epoch: 8, ReleasedEpoch: 5, LeftAt: t0}); got != want || !got.Releasing() {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Whatever happens in whatever order, some things always hold.
func TestHealthUnderRandomSequences(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		ep := Endpoint{Tenant: "t", ID: fmt.Sprint(seed), EndpointSettings: EndpointSettings{Health: HealthPolicy{
			FailuresToOpen: []int64{0, 1, 3, -1}[r.IntN(4)], DisableAfter: []time.Duration{0, -1, time.Hour}[r.IntN(3)]}}}
		good := r.Float64()
		h, now, open := Health{}, t0, false
		for range 300 {
			now = now.Add(time.Duration(r.ExpFloat64() * float64(20*time.Minute)))
			before := h
			if r.IntN(3) == 0 {
				if h, _ = h.Probe(now); r.IntN(4) == 0 && !h.Closed() {
					h = h.Await()
				}
			}
			s := seen{status: []int{0, 410, 429, 500, 503}[min(r.IntN(40), 4)], retry: time.Duration(r.Int64N(math.MaxInt64))}
			if r.Float64() < good {
				s.status = 200
			}
			o := Observation{Outcome: s.outcome(), StartedAt: now.Add(-time.Duration(r.Int64N(int64(time.Minute)))), Probe: h.Breaker == BreakerHalfOpen && r.IntN(2) == 0}
			was := h
			c := h.Observe(&ep, o, now)
			if again := was.Observe(&ep, o, now); again.Health != c.Health || !slices.Equal(again.Notices, c.Notices) {
				t.Fatalf("seed %d: equal states give different changes", seed)
			}
			h = c.Health
			opened, closed := slices.Contains(c.Notices, NoticeBreakerOpened), slices.Contains(c.Notices, NoticeBreakerClosed)
			for _, rule := range []struct {
				name string
				held bool
			}{
				{"the epoch never falls", h.Epoch >= before.Epoch},
				{"a transition has an epoch of its own", h.Breaker == was.Breaker || h.Epoch > was.Epoch || h.Closed() && was.Closed()},
				{"opened and closed are changes of the state", c.Opened == (!h.Closed() && h.Epoch > was.Epoch) && (!c.Closed || was.breaker() != BreakerClosed && h.Closed())},
				{"the owner is told once of an opening", !opened || !open},
				{"and of a closing only after one", closed == c.Closed && (!closed || open)},
				{"no notice twice", len(c.Notices) == len(slices.Compact(slices.Sorted(slices.Values(c.Notices))))},
				{"no breaker where there is to be none", ep.Health.FailuresToOpen >= 0 || h.Closed()},
				{"open has an end, for a day and a fifth at most", h.Closed() || h.OpenUntil.Before(now.Add(29*time.Hour))},
				{"a throttle ends within a day", !h.ThrottledUntil.After(now.Add(MaxThrottle))},
				{"a success leaves a closed breaker without failures", !o.Outcome.OK() || !h.Closed() || h.ConsecutiveFailures == 0 && h.FailingSince.IsZero()},
				{"a failure is counted", o.Outcome.OK() || h.ConsecutiveFailures == was.ConsecutiveFailures+1 && !h.FailingSince.IsZero()},
				{"what is disabled says so once", (c.Disable != "") == slices.Contains(c.Notices, NoticeDisabled) && (c.Disable == "" || len(c.Notices) == 1)},
				{"a closed breaker is at no trip", !h.Closed() || h.Trips == 0 && h.OpenUntil.IsZero()},
			} {
				if !rule.held {
					t.Fatalf("seed %d: %s\nfrom %+v\nby   %+v\nto   %+v", seed, rule.name, was, o, c)
				}
			}
			open = (open || opened) && !closed
			if c.Disable != "" {
				h, open = h.Reset(r.IntN(2) == 0, now), false
			}
		}
	}
}

func TestHealthPolicyValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p   HealthPolicy
		bad string
	}{
		{HealthPolicy{}, ""},
		{HealthPolicy{FailuresToOpen: -1, DisableAfter: -1}, ""},
		{HealthPolicy{FailuresToOpen: 1_000_000}, ""},
		{HealthPolicy{FailuresToOpen: 1_000_001}, "failures to open"},
		{HealthPolicy{CoolDown: time.Second}, ""},
		{HealthPolicy{CoolDown: time.Second - 1}, "cool-down"},
		{HealthPolicy{CoolDown: -1}, "cool-down"},
		{HealthPolicy{CoolDown: 24 * time.Hour}, ""},
		{HealthPolicy{CoolDown: 24*time.Hour + 1}, "cool-down"},
		{HealthPolicy{CoolDown: time.Minute, MaxCoolDown: time.Minute}, ""},
		{HealthPolicy{CoolDown: time.Minute, MaxCoolDown: time.Minute - 1}, "maximum cool-down"},
		{HealthPolicy{MaxCoolDown: 24*time.Hour + 1}, "maximum cool-down"},
		{HealthPolicy{DisableAfter: time.Minute}, ""},
		{HealthPolicy{DisableAfter: time.Minute - 1}, "disable after"},
		{HealthPolicy{DisableAfter: 90 * 24 * time.Hour}, ""},
		{HealthPolicy{DisableAfter: 90*24*time.Hour + 1}, "disable after"},
	} {
		if err := c.p.Validate(); (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%+v: %v, want %q", c.p, err, c.bad)
		}
	}
}
