package webhook

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestKeyOfIsScoped(t *testing.T) {
	t.Parallel()
	base := KeyOf("stripe", "default", "evt_1")
	for name, k := range map[string]EventKey{
		"other source":        KeyOf("stripe2", "default", "evt_1"),
		"other tenant":        KeyOf("stripe", "default2", "evt_1"),
		"other id":            KeyOf("stripe", "default", "evt_2"),
		"boundary moved":      KeyOf("strip", "edefault", "evt_1"),
		"boundary moved back": KeyOf("stripe", "defaul", "tevt_1"),
	} {
		if k == base {
			t.Errorf("%s: same key", name)
		}
	}
	if KeyOf("stripe", "default", "evt_1") != base {
		t.Error("equal ids give different keys")
	}
}

func TestEventID(t *testing.T) {
	t.Parallel()
	k := KeyOf("stripe", "default", "evt_1")
	id := k.ID()
	if len(id) != 30 || strings.Contains(id, ".") || id != strings.ToLower(id) {
		t.Errorf("ID = %q, want evt_ and 26 lower-case characters without a dot", id)
	}
	if got, err := ParseEventID(id); err != nil || got != k {
		t.Errorf("ParseEventID(%q) = %v, %v", id, got, err)
	}
	last := id[:len(id)-1] + "7" // other discarded bits in the last character
	for _, bad := range []string{"", "evt_", id[:29], id + "a", strings.ToUpper(id), "msg_" + id[4:], last, "evt_" + strings.Repeat("1", 26)} {
		if got, err := ParseEventID(bad); err == nil {
			t.Errorf("ParseEventID(%q) = %v, want an error", bad, got)
		}
	}
}

func TestCanonicalID(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxIDBytes)
	for _, tt := range []struct {
		in   string
		kept bool
	}{
		{"evt_1", true}, {"ünï", true}, {long, true},
		{long + "x", false}, {"a\x00b", false}, {"a\nb", false}, {"\xff", false}, {"a\u0085b", false},
	} {
		got := CanonicalID(tt.in)
		if (got == tt.in) != tt.kept {
			t.Errorf("CanonicalID(%.20q) = %.20q, kept should be %v", tt.in, got, tt.kept)
		}
		if !tt.kept && (len(got) != 71 || got != CanonicalID(tt.in)) {
			t.Errorf("CanonicalID(%.20q) = %q, want a stable hash", tt.in, got)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for s, ok := range map[string]bool{
		"a": true, "stripe": true, "9-a_b": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, "_a": false, "A": false, "a.b": false, "a:b": false, "a/b": false, "ä": false, "a\x00": false, strings.Repeat("a", 64): false,
	} {
		if err := ValidName(s); (err == nil) != ok {
			t.Errorf("ValidName(%q) = %v, want ok=%v", s, err, ok)
		}
	}
	if ValidSource("app") == nil || ValidSource("apps") != nil {
		t.Error("only the name app is reserved")
	}
	for s, ok := range map[string]bool{
		"invoice.paid": true, "orders/create": true, "a:b": true, "ünï": true, strings.Repeat("a", 256): true,
		"": false, "a b": false, "a\tb": false, "a*": false, "\xff": false, "a\x00": false, strings.Repeat("a", 257): false,
	} {
		if err := ValidType(s); (err == nil) != ok {
			t.Errorf("ValidType(%.20q) = %v, want ok=%v", s, err, ok)
		}
	}
}

func TestMatchType(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, eventType string
		valid, want        bool
	}{
		{"*", "anything", true, true},
		{"invoice.paid", "invoice.paid", true, true},
		{"invoice.paid", "invoice.paid.late", true, false},
		{"invoice.paid", "Invoice.paid", true, false},
		{"invoice.*", "invoice.paid", true, true},
		{"invoice.*", "invoice.paid.late", true, true},
		{"invoice.*", "invoice", true, false},
		{"invoice.*", "invoice.", true, false},
		{"invoice.*", "invoices.paid", true, false},
		{"orders/*", "orders/create", true, true},
		{"com.example:*", "com.example:x", true, true},
		{"invoice*", "invoices", false, true},
		{"*.paid", "invoice.paid", false, false},
		{"", "x", false, false},
		{".*", "x", false, false},
		{"a.*.b", "a.x.b", false, false},
		{"**", "x", false, false},
	} {
		if err := ValidPattern(tt.pattern); (err == nil) != tt.valid {
			t.Errorf("ValidPattern(%q) = %v, want valid=%v", tt.pattern, err, tt.valid)
		}
		if got := MatchType([]string{tt.pattern}, tt.eventType); tt.valid && got != tt.want {
			t.Errorf("MatchType(%q, %q) = %v", tt.pattern, tt.eventType, got)
		}
	}
}

func attemptKey(attempt int64) AttemptKey {
	return AttemptKey{Event: KeyOf("s", "t", "1"), Tenant: "t", Endpoint: "ep-1", Generation: 1, Attempt: attempt, Task: 1}
}

func TestTaskID(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, k := range []AttemptKey{attemptKey(1), attemptKey(2), attemptKey(11)} {
		for _, task := range []int64{1, 2} {
			for _, gen := range []int64{1, 11} {
				k.Task, k.Generation = task, gen
				id := k.TaskID()
				if seen[id] || len(id) > 500 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
					t.Errorf("TaskID %q is not new, valid and short", id)
				}
				seen[id] = true
			}
		}
	}
	again := attemptKey(3)
	if attemptKey(3).TaskID() != again.TaskID() {
		t.Error("task ids are not deterministic")
	}
}

func TestAttemptKeyJSON(t *testing.T) {
	t.Parallel()
	want := attemptKey(3)
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseAttemptKey(b); err != nil || got != want {
		t.Errorf("ParseAttemptKey = %+v, %v", got, err)
	}
	for _, bad := range []string{``, `{}`, `[]`, strings.Replace(string(b), `"attempt":3`, `"attempt":0`, 1), strings.Replace(string(b), `"ep-1"`, `"../x"`, 1), strings.Replace(string(b), "evt_", "evt-", 1)} {
		if got, err := ParseAttemptKey([]byte(bad)); err == nil {
			t.Errorf("ParseAttemptKey(%s) = %+v, want an error", bad, got)
		}
	}
}

func TestRetryAfterParsing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		lines []string
		want  time.Duration
	}{
		{nil, 0},
		{[]string{""}, 0},
		{[]string{"120"}, 120 * time.Second},
		{[]string{" 120 "}, 120 * time.Second},
		{[]string{"0"}, 0},
		{[]string{"-5"}, 0},
		{[]string{"+5"}, 0},
		{[]string{"abc"}, 0},
		{[]string{"1e9"}, 0},
		{[]string{"1.5"}, 0},
		{[]string{"5", "120"}, 120 * time.Second},
		{[]string{"120", "junk"}, 120 * time.Second},
		{[]string{"Sun, 01 Mar 2026 12:10:00 GMT"}, 600 * time.Second},
		{[]string{"Sunday, 01-Mar-26 12:10:00 GMT"}, 600 * time.Second},
		{[]string{"Wed, 21 Oct 2015 07:28:00 GMT"}, 0},
		{[]string{"9223372036"}, 9223372036 * time.Second},
		{[]string{"9223372037"}, math.MaxInt64},
		{[]string{"9999999999"}, math.MaxInt64},
		{[]string{"99999999999999999999999"}, math.MaxInt64},
		{[]string{"1" + strings.Repeat("0", 30)}, math.MaxInt64},
	} {
		if got := ParseRetryAfter(tt.lines, t0); got != tt.want {
			t.Errorf("ParseRetryAfter(%q) = %s, want %s", tt.lines, got, tt.want)
		}
	}
}

func delivery(attempt int64) Delivery {
	k := attemptKey(attempt)
	return Delivery{Event: k.Event, Tenant: k.Tenant, Endpoint: k.Endpoint, State: DeliveryScheduled, Generation: 1, Attempt: attempt, Task: 1, StartedAt: t0}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	ok := func(s int) Outcome { return Outcome{Class: ClassOK, Status: s} }
	st := func(s int) Outcome { return Outcome{Class: ClassStatus, Status: s} }
	for _, tt := range []struct {
		name    string
		attempt int64
		o       Outcome
		state   DeliveryState
		next    int64
		disable bool
	}{
		{"200", 1, ok(200), DeliveryDelivered, 0, false},
		{"299", 1, ok(299), DeliveryDelivered, 0, false},
		{"204 at the last attempt", 10, ok(204), DeliveryDelivered, 0, false},
		{"300", 1, st(300), DeliveryScheduled, 2, false},
		{"301", 1, st(301), DeliveryScheduled, 2, false},
		{"400", 1, st(400), DeliveryScheduled, 2, false},
		{"410", 1, st(410), DeliveryHeld, 0, true},
		{"410 at the last attempt", 10, st(410), DeliveryHeld, 0, true},
		{"500", 9, st(500), DeliveryScheduled, 10, false},
		{"500 at the last attempt", 10, st(500), DeliveryDead, 0, false},
		{"500 beyond the last attempt", 11, st(500), DeliveryDead, 0, false},
		{"timeout", 1, Outcome{Class: ClassTimeout}, DeliveryScheduled, 2, false},
		{"ambiguous", 1, Outcome{Class: ClassAmbiguous}, DeliveryScheduled, 2, false},
		{"blocked", 1, Outcome{Class: ClassBlocked}, DeliveryScheduled, 2, false},
		{"body cut after 200", 1, Outcome{Class: ClassBody, Status: 200}, DeliveryScheduled, 2, false},
		{"nothing known", 1, Outcome{}, DeliveryScheduled, 2, false},
	} {
		d := Decide(delivery(tt.attempt), tt.o, RetryPolicy{}, t0)
		if d.State != tt.state || d.NextAttempt != tt.next || d.Disable != tt.disable {
			t.Errorf("%s: %+v", tt.name, d)
		}
		if (d.State == DeliveryScheduled) != d.NextAttemptAt.After(t0.Add(-1)) {
			t.Errorf("%s: state %s with next attempt at %s", tt.name, d.State, d.NextAttemptAt)
		}
	}
}

func TestDecideRetryAfter(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{Delays: []time.Duration{0, 30 * time.Second, 30 * time.Second}}
	k := attemptKey(2)
	scheduled := p.Delay(k)
	limit := scheduled + RetryAfterAllowance
	for _, tt := range []struct {
		status int
		header string
		want   time.Duration
	}{
		{503, "120", 120 * time.Second},
		{429, "120", 120 * time.Second},
		{502, "120", 120 * time.Second},
		{504, "120", 120 * time.Second},
		{500, "120", scheduled},
		{400, "120", scheduled},
		{503, "1", scheduled},
		{503, "Wed, 21 Oct 2015 07:28:00 GMT", scheduled},
		{503, "Sun, 01 Mar 2026 12:10:00 GMT", 600 * time.Second},
		{503, "86400", limit},
		{503, "-5", scheduled},
		{503, "abc", scheduled},
		{503, "1e9", scheduled},
		{503, "", scheduled},
		{503, "9223372036", limit},
		{503, "9223372037", limit},
		{503, "9999999999", limit},
		{503, "1" + strings.Repeat("0", 30), limit},
	} {
		o := Outcome{Class: ClassStatus, Status: tt.status, RetryAfter: ParseRetryAfter([]string{tt.header}, t0)}
		d := Decide(delivery(1), o, p, t0)
		if got := d.NextAttemptAt.Sub(t0); got != tt.want || d.NextAttempt != 2 {
			t.Errorf("%d with Retry-After %q: attempt %d after %s, want 2 after %s", tt.status, tt.header, d.NextAttempt, got, tt.want)
		}
	}
}

func TestMaxAge(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{Delays: []time.Duration{0, time.Hour, time.Hour}, MaxAge: 90 * time.Minute}
	d := Decide(delivery(1), Outcome{Class: ClassTimeout}, p, t0)
	if d.State != DeliveryScheduled {
		t.Fatalf("after the first attempt: %+v", d)
	}
	if d = Decide(delivery(2), Outcome{Class: ClassTimeout}, p, d.NextAttemptAt); d.State != DeliveryDead || d.Reason != ReasonAgeExhausted {
		t.Errorf("next attempt beyond the maximum age: %+v", d)
	}
}

func TestSubscribes(t *testing.T) {
	t.Parallel()
	ev := &Event{Tenant: "t", Type: "invoice.paid"}
	for _, tt := range []struct {
		ep   Endpoint
		want bool
	}{
		{Endpoint{Tenant: "t", EventTypes: []string{"*"}, State: EndpointActive}, true},
		{Endpoint{Tenant: "t", EventTypes: []string{"invoice.*", "invoice.paid"}, State: EndpointActive}, true},
		{Endpoint{Tenant: "t", EventTypes: []string{"*"}, State: EndpointDisabled}, true},
		{Endpoint{Tenant: "t", EventTypes: []string{"*"}, State: EndpointDeleted}, false},
		{Endpoint{Tenant: "u", EventTypes: []string{"*"}, State: EndpointActive}, false},
		{Endpoint{Tenant: "t", EventTypes: []string{"user.*"}, State: EndpointActive}, false},
		{Endpoint{Tenant: "t", State: EndpointActive}, false},
	} {
		if got := tt.ep.Subscribes(ev); got != tt.want {
			t.Errorf("%+v subscribes: %v", tt.ep, got)
		}
	}
}
