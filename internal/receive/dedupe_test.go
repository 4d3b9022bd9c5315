package receive

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/webhook"
)

func TestDedupeExpressions(t *testing.T) {
	t.Parallel()
	type pair struct{ event, body string }
	for _, c := range []struct {
		name, scheme, expression string
		sent                     []pair
		ids                      []string
		unsigned                 bool
	}{
		{"by a business id and the type", "github", `type + "/" + string(body.order_id)`, []pair{{"order-paid", `{"order_id":"A1"}`}, {"order-shipped", `{"order_id":"A1"}`}, {"order-paid", `{"order_id":"A1","again":true}`}},
			[]string{"order-paid/A1", "order-shipped/A1", "order-paid/A1"}, true},
		{"exact beyond a double", "github", `string(body.n)`, []pair{{"a", `{"n":9007199254740993}`}, {"a", `{"n":9007199254740992}`}}, []string{"9007199254740993", "9007199254740992"}, false},
		{"the scheme's own id", "github", `source + ":" + id`, []pair{{"a", `{}`}}, []string{"gh:d-0"}, true},
		{"a header", "github", `headers["x-event"]`, []pair{{"a", `{}`}}, []string{"x-0"}, true},
		{"a header in lower case only", "github", `headers.?nope.orValue(headers["x-event"])`, []pair{{"a", `{}`}}, []string{"x-0"}, true},
		{"the time", "stripe", `string(time) + body.id`, []pair{{"", `{"id":"e","created":1777900000}`}}, []string{"2026-05-04T13:06:40Ze"}, false},
		{"signed with a time", "stripe", `headers["x-event"] + type`, []pair{{"", `{"id":"e","type":"t"}`}}, []string{"x-0t"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, c.scheme, func(_ *Config, s *Source) { s.ID, s.Dedupe = "gh", celPrefix+c.expression })
			for i, p := range c.sent {
				r := b.sign(t, provider.Sample{Body: []byte(p.body)}, noon)
				r.Header.Set("X-Event", fmt.Sprint("x-", i))
				if c.scheme == "github" {
					r.Header.Set("X-GitHub-Event", p.event)
					r.Header.Set("X-GitHub-Delivery", fmt.Sprint("d-", i))
				}
				r.URL = strings.Replace(r.URL, "/in/src", "/in/gh", 1)
				if w := b.send(r); w.Code != 200 {
					t.Fatal(w.Code)
				}
				ev := b.fake.events[i]
				if ev.PublisherID != c.ids[i] || ev.Key != webhook.KeyOf("gh", webhook.DefaultTenant, c.ids[i]) || ev.UnsignedID != c.unsigned || ev.Flags != nil {
					t.Errorf("%d: %s unsigned %t flags %v, want %s", i, ev.PublisherID, ev.UnsignedID, ev.Flags, c.ids[i])
				}
			}
		})
	}
}

// An event that the expression cannot name is kept, under its scheme's identity,
// and everybody can see it.
func TestDedupeFallsBackVisibly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ expression, body string }{
		"absent field":    {"body.order_id", `{}`},
		"empty":           {"body.order_id", `{"order_id":""}`},
		"blank":           {"body.order_id", `{"order_id":" "}`},
		"another kind":    {"body.order_id", `{"order_id":7}`},
		"no JSON":         {"body.order_id", `order_id=7`},
		"ambiguous":       {"body.order_id", `{"order_id":"a","order_id":"b"}`},
		"half a pair":     {"body.order_id", `{"order_id":"\ud800"}`},
		"absent header":   {`headers["x-none"]`, `{}`},
		"credential":      {`headers["authorization"]`, `{}`},
		"signature":       {`headers["x-hub-signature-256"]`, `{}`},
		"too much work":   {`body.l.all(x, body.l.all(y, x == y)) ? "a" : "b"`, `{"l":[` + strings.Repeat("1,", 5000) + `1]}`},
		"division by nil": {`string(1 / size(body))`, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			f := &fake{}
			rc := newReceiver(t, Config{Publisher: f, Logger: slog.New(slog.NewJSONHandler(&log, nil)), Sources: []Source{githubSource(func(s *Source) { s.Dedupe = celPrefix + c.expression })}})
			for range 2 {
				if w := post(rc, "/in/gh", c.body, "X-GitHub-Delivery", "d1", "Authorization", "hush"); w.Code != 200 || w.Body.String() != "ok\n" {
					t.Fatalf("%d %q", w.Code, w.Body)
				}
			}
			for _, ev := range f.events {
				if ev.PublisherID != "d1" || ev.Key != webhook.KeyOf("gh", "default", "d1") || fmt.Sprint(ev.Flags) != "[dedupe_fallback]" || !ev.UnsignedID {
					t.Errorf("%s %v", ev.PublisherID, ev.Flags)
				}
			}
			if got := f.counted(rc, t); got["gh accepted"] != 2 || got["gh accepted_dedupe_fallback"] != 2 || len(got) != 3 {
				t.Errorf("counted %v", got)
			}
			var line map[string]any
			if err := json.Unmarshal([]byte(strings.SplitN(log.String(), "\n", 2)[0]), &line); err != nil || line["dedupe_fallback"] == nil || line["msg"] != "event accepted" {
				t.Errorf("%v: %s", err, log.String())
			}
		})
	}
}

// Every version that verifies is counted as used: the first listed of equal ones,
// and nothing for a request that none verifies.
func TestSecretUses(t *testing.T) {
	t.Parallel()
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, Sources: []Source{githubSource(func(s *Source) {
		s.Keys = []provider.Secret{provider.NewSecret("a", 3, []byte("new")), provider.NewSecret("a", 2, []byte("key")), provider.NewSecret("b", 1, []byte("key"))}
		s.AllowTypes = []string{"push"}
	})}})
	send := func(key, event string) {
		post(rc, "/in/gh", "{}", "X-GitHub-Event", event, "X-Hub-Signature-256", "sha256="+mac(key, "{}"))
	}
	send("new", "push")
	send("key", "push")
	send("key", "push")
	send("key", "star") // authentic: its provider still signs with this secret
	send("none", "push")
	want := map[string]int64{"gh accepted": 3, "gh unwanted_type": 1, "gh mismatch": 1, "gh secret_used a/3": 1, "gh secret_used a/2": 3}
	if got := f.counted(rc, t); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// A duplicate's answer is the first's: status, headers and body, of events and of
// handshakes. A provider that repeats itself is told nothing new.
func TestDuplicatesAreAnsweredAlike(t *testing.T) {
	t.Parallel()
	type exchange struct {
		scheme string
		r      provider.Request
		edit   func(*Config, *Source)
	}
	get := func(query string) provider.Request {
		return provider.Request{Method: http.MethodGet, URL: sampleURL + "?" + query, Header: http.Header{}}
	}
	asana := provider.Request{Method: http.MethodPost, URL: sampleURL, Header: http.Header{"X-Hook-Secret": {"s"}}}
	graph := provider.Request{Method: http.MethodPost, URL: sampleURL + "?validationToken=abc", Header: http.Header{}}
	list := []exchange{
		{scheme: "dropbox", r: get("challenge=abc")},
		{scheme: "meta", r: get("hub.mode=subscribe&hub.verify_token=sample-verify-token&hub.challenge=42")},
		{scheme: "x-twitter", r: get("crc_token=abc")},
		{scheme: "x-twitter-crc", r: get("crc_token=abc")},
		{scheme: "microsoft-graph", r: graph},
		{scheme: "asana", r: asana, edit: func(_ *Config, s *Source) { s.AsanaHandshake = true }},
	}
	bodies := map[string][]string{
		"slack":   {`{"type":"url_verification","challenge":"abc"}`},
		"zoom":    {`{"event":"endpoint.url_validation","payload":{"plainToken":"abc"}}`},
		"discord": {`{"type":1}`, `{"type":0}`},
		"github":  {`{"zen":"Design for failure.","hook_id":1}`},
	}
	check := func(t *testing.T, b *bench, r provider.Request) {
		t.Helper()
		first, second := b.send(r), b.send(r)
		if first.Code > 299 || first.Code < 200 || first.Code != second.Code || first.Body.String() != second.Body.String() || fmt.Sprint(first.Header()) != fmt.Sprint(second.Header()) {
			t.Errorf("%s: %d %v %q, then %d %v %q", b.scheme, first.Code, first.Header(), first.Body, second.Code, second.Header(), second.Body)
		}
		if n := len(b.fake.events); n%2 != 0 || n > 0 && b.fake.events[n-1].Key != b.fake.events[n-2].Key {
			t.Errorf("%s: %d events of one request twice", b.scheme, n)
		}
	}
	for _, e := range list {
		check(t, newBench(t, e.scheme, e.edit), e.r)
	}
	for _, in := range provider.Schemes() {
		if in.Name == "x-twitter-crc" {
			continue // no events
		}
		// The clock stands still between the two: some schemes name each request anew.
		b := newBench(t, in.Name, func(c *Config, _ *Source) { c.Now = func() time.Time { return noon } })
		check(t, b, b.sign(t, provider.Sample{ID: "e1"}, noon))
		for _, body := range bodies[in.Name] {
			check(t, b, b.sign(t, provider.Sample{Body: []byte(body)}, noon))
		}
	}
	confirm := newBench(t, "aws-sns", func(c *Config, _ *Source) {
		c.Confirm = func(context.Context, string) error { return nil }
	})
	check(t, confirm, confirm.sign(t, provider.Sample{Type: "SubscriptionConfirmation"}, noon))
}

// GitHub's ping, sent when a webhook is made, is an event: it is recorded, and
// reaches only who subscribes to "ping".
func TestGitHubPingIsRecorded(t *testing.T) {
	t.Parallel()
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, Sources: []Source{githubSource()}})
	w := post(rc, "/in/gh", `{"zen":"Keep it logically awesome.","hook_id":1}`, "X-GitHub-Event", "ping", "X-GitHub-Delivery", "d1")
	if w.Code != 200 || len(f.events) != 1 || f.events[0].Type != "ping" || f.events[0].PublisherID != "d1" {
		t.Errorf("%d, %+v", w.Code, f.events)
	}
}

// An idempotency key without the event's type dropped order-shipped as a duplicate of
// order-paid (automagik-dev/omni#1193): two events that share a business id are two,
// and so is one delivery id at two tenants.
func TestEventsThatShareABusinessID(t *testing.T) {
	t.Parallel()
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, Sources: []Source{githubSource(), githubSource(func(s *Source) { s.ID, s.Tenant = "gh2", "t2" })}})
	post(rc, "/in/gh", `{"type":"order-paid","order_id":"A1"}`, "X-GitHub-Delivery", "d1")
	post(rc, "/in/gh", `{"type":"order-shipped","order_id":"A1"}`, "X-GitHub-Delivery", "d2")
	post(rc, "/in/gh2", `{"type":"order-paid","order_id":"A1"}`, "X-GitHub-Delivery", "d1")
	keys := map[webhook.EventKey]bool{}
	for _, ev := range f.events {
		keys[ev.Key] = true
	}
	if len(keys) != 3 {
		t.Errorf("%d events", len(keys))
	}
}

// After days of refusals it turned out that the server's clock was months behind
// (slackapi/bolt-python#195): the reasons are counted apart, the answer is the same.
func TestClockSkewIsCountedApart(t *testing.T) {
	t.Parallel()
	now := noon
	b := newBench(t, "slack", func(c *Config, _ *Source) { c.Now = func() time.Time { return now } })
	good := b.sign(t, provider.Sample{}, noon)
	forged := newBench(t, "slack", nil).sign(t, provider.Sample{}, noon)
	var answers []string
	send := func(r provider.Request, at time.Time) {
		now = at
		w := b.send(r)
		answers = append(answers, fmt.Sprint(w.Code, w.Header(), w.Body))
	}
	for range 3 {
		send(good, noon.Add(-30*24*time.Hour))
	}
	for range 2 {
		send(good, noon.Add(30*24*time.Hour))
	}
	send(forged, noon)
	send(forged, noon.Add(-30*24*time.Hour)) // a forgery says nothing about a clock
	if got := b.reasons(t); got != "future:3 mismatch:2 stale:2" {
		t.Errorf("counted %s", got)
	}
	for _, a := range answers {
		if a != answers[0] || !strings.HasPrefix(a, "401") {
			t.Errorf("%s, and %s", a, answers[0])
		}
	}
}

// Senders that fill memory and then stall: each gets as much as the budget has left,
// then 503; small bodies go on.
func TestMemoryIsBoundedUnderManyLargePosts(t *testing.T) {
	t.Parallel()
	const senders, size, max = 200, 1 << 20, 64 << 20
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, ByteBudget: max, Sources: []Source{githubSource()}})
	reached, release := make(chan struct{}), make(chan struct{})
	answers := make(chan *httptest.ResponseRecorder, senders)
	for range senders {
		go func() {
			r := httptest.NewRequest(http.MethodPost, "/in/gh", &blocked{size, reached, release})
			r.ContentLength = DefaultBodyLimit // what it declares; it sends a part and stalls
			w := httptest.NewRecorder()
			rc.Routes().ServeHTTP(w, r)
			answers <- w
		}()
	}
	stalled, refused := 0, 0
	for stalled+refused < senders {
		select {
		case <-reached:
			stalled++
		case w := <-answers:
			if refused++; w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
				t.Fatalf("%d %v", w.Code, w.Header())
			}
		}
		if held := rc.budget.used.Load(); held > max {
			t.Fatalf("%d bytes are held, the budget is %d", held, max)
		}
	}
	if stalled < max/size/4 || refused == 0 {
		t.Errorf("%d stalled, %d refused", stalled, refused)
	}
	if w := post(rc, "/in/gh", "{}"); w.Code != 200 {
		t.Errorf("a small body: %d", w.Code)
	}
	close(release)
	for range stalled {
		<-answers
	}
	if held := rc.budget.used.Load(); held != 0 {
		t.Errorf("%d bytes still held", held)
	}
}
