package receive

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/webhook"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func mac(key, content string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(content))
	return hex.EncodeToString(h.Sum(nil))
}

func slackCapture(key string, body []byte) CapturedRequest {
	stamp := strconv.FormatInt(noon.Unix(), 10)
	return CapturedRequest{
		Name: "slack", Scheme: "slack", Secrets: []string{key}, Body: body, Now: noon,
		Header: []webhook.Header{{Name: "X-Slack-Request-Timestamp", Value: stamp}, {Name: "X-Slack-Signature", Value: "v0=" + mac(key, "v0:"+stamp+":"+string(body))}},
	}
}

// fake is a publisher that records what it is given.
type fake struct {
	mu     sync.Mutex
	events []webhook.Event
	counts [][]Count
	fail   []error // one for each call to come; nil succeeds
	wait   bool    // until ctx is done
}

func (f *fake) next() error {
	if len(f.fail) == 0 {
		return nil
	}
	err := f.fail[0]
	f.fail = f.fail[1:]
	return err
}

func (f *fake) PublishInbound(ctx context.Context, ev webhook.Event, _ string) error {
	if f.wait {
		<-ctx.Done()
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.next(); err != nil {
		return err
	}
	ev.Body = bytes.Clone(ev.Body)
	f.events = append(f.events, ev)
	return nil
}

func (f *fake) PublishCounts(_ context.Context, counts []Count) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.next(); err != nil {
		return err
	}
	f.counts = append(f.counts, slices.Clone(counts))
	return nil
}

func (f *fake) reports() [][]Count {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.counts)
}

// counted is everything counted so far, by source and reason, those of secrets by
// name and version too.
func (f *fake) counted(rc *Receiver, t testing.TB) map[string]int64 {
	t.Helper()
	if err := rc.Flush(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, report := range f.reports() {
		for _, c := range report {
			name := c.Source + " " + c.Reason
			if c.Secret != "" {
				name += fmt.Sprintf(" %s/%d", c.Secret, c.Version)
			}
			got[name] += c.Count
		}
	}
	return got
}

// refusals are the counts of requests that were refused or ignored, by reason.
func (f *fake) refusals(rc *Receiver, t testing.TB) string {
	t.Helper()
	var list []string
	for name, n := range f.counted(rc, t) {
		if parts := strings.Split(name, " "); len(parts) == 2 && webhook.CountsRefusal(parts[1]) {
			list = append(list, fmt.Sprintf("%s:%d", parts[1], n))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func githubSource(edit ...func(*Source)) Source {
	s := Source{ID: "gh", Scheme: "github", Keys: []provider.Secret{provider.NewSecret("s", 1, []byte("key"))}}
	for _, e := range edit {
		e(&s)
	}
	return s
}

func newReceiver(t testing.TB, c Config) *Receiver {
	t.Helper()
	if c.Now == nil {
		c.Now = func() time.Time { return noon }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	rc, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return rc
}

// post sends a body signed for githubSource, with further header pairs.
func post(rc *Receiver, path, body string, pairs ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("X-Hub-Signature-256", "sha256="+mac("key", body))
	for i := 0; i < len(pairs); i += 2 {
		r.Header.Set(pairs[i], pairs[i+1])
	}
	w := httptest.NewRecorder()
	rc.Routes().ServeHTTP(w, r)
	return w
}

func TestAcceptedEvent(t *testing.T) {
	t.Parallel()
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, Sources: []Source{githubSource(func(s *Source) { s.Tenant = "acme" })}})
	body := "{\"a\":0.0,\"b\":1152921506151679042,\"c\":\"\\u001B\xff\"}\n"
	w := post(rc, "/in/gh", body, "X-GitHub-Delivery", "d1", "X-GitHub-Event", "push", "Content-Type", "APPLICATION/JSON; x=y")
	if w.Code != 200 || w.Body.String() != "ok\n" {
		t.Fatalf("%d %q", w.Code, w.Body)
	}
	ev := f.events[0]
	if string(ev.Body) != body {
		t.Errorf("body %q", ev.Body)
	}
	if ev.Tenant != "acme" || ev.Source != "gh" || ev.PublisherID != "d1" || ev.Type != "push" || ev.ContentType != "APPLICATION/JSON; x=y" || !ev.ReceivedAt.Equal(noon) {
		t.Errorf("%+v", ev)
	}
	if ev.Key != webhook.KeyOf("gh", "acme", "d1") || len(ev.Receipt) != 36 || ev.Receipt[14] != '7' {
		t.Errorf("key %s receipt %s", ev.Key, ev.Receipt)
	}
	if len(ev.Headers) != 3 {
		t.Errorf("headers %v", ev.Headers)
	}
	if rc.budget.used.Load() != 0 {
		t.Errorf("%d bytes still held", rc.budget.used.Load())
	}
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, method, path string
		edit               func(*Source)
		header             []string
		body               string
		fail               error
		status             int
		reason             string
		want               map[string]string // response headers
	}{
		{name: "good", body: "{}", status: 200},
		{name: "unknown source", path: "/in/other", status: 404},
		{name: "no source", path: "/in/", status: 404},
		{name: "below a source", path: "/in/gh/x", status: 404},
		{name: "elsewhere", path: "/", status: 404},
		{name: "GET", method: "GET", status: 405, reason: "wrong_method", want: map[string]string{"Allow": "POST"}},
		{name: "HEAD", method: "HEAD", status: 405, reason: "wrong_method", want: map[string]string{"Allow": "POST"}},
		{name: "OPTIONS", method: "OPTIONS", status: 405, reason: "wrong_method", want: map[string]string{"Allow": "POST"}},
		{name: "PUT", method: "PUT", status: 405, reason: "wrong_method", want: map[string]string{"Allow": "POST"}},
		{name: "wrong signature", header: []string{"X-Hub-Signature-256", "sha256=" + mac("other", "{}")}, body: "{}", status: 401, reason: "mismatch"},
		{name: "no signature", header: []string{"X-Hub-Signature-256", ""}, body: "{}", status: 401, reason: "missing_signature"},
		{name: "malformed signature", header: []string{"X-Hub-Signature-256", "x"}, body: "{}", status: 401, reason: "malformed"},
		{name: "authentic, bad body", edit: shopifyKey, header: []string{"X-Shopify-Hmac-Sha256", base64MAC("key", "")}, status: 400, reason: "bad_body"},
		{name: "unwanted type", edit: func(s *Source) { s.AllowTypes = []string{"push"} }, header: []string{"X-GitHub-Event", "star"}, body: "{}", status: 204, reason: "unwanted_type"},
		{name: "wanted type", edit: func(s *Source) { s.AllowTypes = []string{"push"} }, header: []string{"X-GitHub-Event", "push"}, body: "{}", status: 200},
		{name: "unwanted and forged", edit: func(s *Source) { s.AllowTypes = []string{"push"} }, header: []string{"X-Hub-Signature-256", "x"}, body: "{}", status: 401, reason: "malformed"},
		{name: "too large", edit: func(s *Source) { s.BodyLimit = 1 }, body: "{}", status: 413, reason: "too_large"},
		{name: "publish fails", body: "{}", fail: errors.New("unavailable"), status: 503, reason: "publish_failed", want: map[string]string{"Retry-After": "5"}},
		{name: "message too large", body: "{}", fail: fmt.Errorf("publish: %w", tooLarge{}), status: 413, reason: "too_large"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := &fake{fail: []error{c.fail}}
			s := githubSource()
			if c.edit != nil {
				c.edit(&s)
			}
			rc := newReceiver(t, Config{Publisher: f, Sources: []Source{s}})
			r := httptest.NewRequest(or(c.method, "POST"), or(c.path, "/in/gh"), strings.NewReader(c.body))
			r.Header.Set("X-Hub-Signature-256", "sha256="+mac("key", c.body))
			for i := 0; i < len(c.header); i += 2 {
				r.Header.Set(c.header[i], c.header[i+1])
			}
			w := httptest.NewRecorder()
			rc.Routes().ServeHTTP(w, r)
			if w.Code != c.status {
				t.Errorf("status %d, want %d", w.Code, c.status)
			}
			for name, value := range c.want {
				if w.Header().Get(name) != value {
					t.Errorf("%s: %q, want %q", name, w.Header().Get(name), value)
				}
			}
			f.fail = nil
			want := c.reason
			if want != "" {
				want += ":1"
			}
			if got := f.refusals(rc, t); got != want {
				t.Errorf("counted %q, want %q", got, want)
			}
			if (len(f.events) == 1) != (c.status == 200) {
				t.Errorf("%d events published", len(f.events))
			}
		})
	}
}

func shopifyKey(s *Source) { s.Scheme = "shopify" }

func base64MAC(key, content string) string {
	b, _ := hex.DecodeString(mac(key, content))
	return base64.StdEncoding.EncodeToString(b)
}

type tooLarge struct{}

func (tooLarge) Error() string  { return "12 MB" }
func (tooLarge) TooLarge() bool { return true }

// A provider's review demands exactly 401 for a bad signature (Shopify/quilt#2144),
// and refused senders learn nothing but that.
func TestRefusalsLookAlike(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, Config{Publisher: &fake{}, Sources: []Source{githubSource()}})
	var first *httptest.ResponseRecorder
	for _, signature := range []string{"", "x", "sha256=" + mac("other", "{}"), "sha256=" + strings.Repeat("0", 64), "sha1=" + mac("key", "{}")} {
		w := post(rc, "/in/gh", "{}", "X-Hub-Signature-256", signature)
		if first == nil {
			first = w
		}
		if w.Code != 401 || w.Body.String() != first.Body.String() || fmt.Sprint(w.Header()) != fmt.Sprint(first.Header()) {
			t.Errorf("%q: %d %q %v", signature, w.Code, w.Body, w.Header())
		}
	}
}

// The bytes count, not what they say: JSON that was written anew
// (octokit/webhooks.js#71), a form that was made JSON (frain-dev/convoy#2392) or parsed
// (slackapi/java-slack-sdk#1306), and bodies that are no JSON at all
// (tektoncd/triggers#1152). The rest of those cases are vectors.
func TestRawBytes(t *testing.T) {
	t.Parallel()
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, Sources: []Source{githubSource()}})
	form := "payload=%7B%22zen%22%3A%22a+b%22%7D"
	cases := []struct {
		name, body, signed, contentType string
		status                          int
	}{
		{"form as sent", form, form, "application/x-www-form-urlencoded", 200},
		{"form signed as JSON", form, `{"zen":"a b"}`, "application/x-www-form-urlencoded", 401},
		{"odd content type", "{}", "{}", "text/plain; charset=iso-8859-1", 200},
		{"content type in capitals", "{}", "{}", "APPLICATION/JSON", 200},
		{"no content type", "{}", "{}", "", 200},
		{"no JSON at all", "\x00\xff", "\x00\xff", "application/json", 200},
	}
	for _, c := range cases {
		w := post(rc, "/in/gh", c.body, "X-Hub-Signature-256", "sha256="+mac("key", c.signed), "Content-Type", c.contentType)
		if w.Code != c.status {
			t.Errorf("%s: %d", c.name, w.Code)
		}
		if c.status == 200 {
			if ev := f.events[len(f.events)-1]; string(ev.Body) != c.body || ev.ContentType != c.contentType {
				t.Errorf("%s: published %q as %q", c.name, ev.Body, ev.ContentType)
			}
		}
	}
}

// A gateway's base64 is decoded by the explicit adapter only
// (slackapi/java-slack-sdk#1015).
func TestGatewayBase64(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, Config{Publisher: &fake{}, Sources: []Source{githubSource()}})
	text := base64.StdEncoding.EncodeToString([]byte("{}"))
	for _, c := range []struct {
		flag   bool
		status int
	}{{true, 200}, {false, 401}} {
		body, err := provider.GatewayBody([]byte(text), c.flag)
		if err != nil {
			t.Fatal(err)
		}
		if w := post(rc, "/in/gh", string(body), "X-Hub-Signature-256", "sha256="+mac("key", "{}")); w.Code != c.status {
			t.Errorf("flag %t: %d", c.flag, w.Code)
		}
	}
}

// A source's limit is its own, whatever the defaults of libraries are
// (argoproj/argo-events#3861): to the byte, with and without Content-Length, and no
// failure of a signature.
func TestBodyLimit(t *testing.T) {
	t.Parallel()
	const limit = 2 << 20
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, Sources: []Source{
		githubSource(func(s *Source) { s.BodyLimit = limit }), githubSource(func(s *Source) { s.ID = "wide" }),
	}})
	srv := httptest.NewServer(rc.Routes())
	defer srv.Close()
	for _, c := range []struct {
		source string
		size   int
		status int
	}{{"gh", limit - 1, 200}, {"gh", limit, 200}, {"gh", limit + 1, 413}, {"wide", limit + 1, 200}, {"wide", DefaultBodyLimit, 200}, {"wide", DefaultBodyLimit + 1, 413}} {
		body := strings.Repeat("x", c.size)
		for _, chunked := range []bool{false, true} {
			var reader io.Reader = strings.NewReader(body)
			if chunked {
				reader = io.MultiReader(reader) // hides the length
			}
			req, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/in/"+c.source, reader)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Hub-Signature-256", "sha256="+mac("key", body))
			res, err := srv.Client().Do(req)
			if err != nil {
				t.Fatalf("%d bytes: %v", c.size, err)
			}
			_ = res.Body.Close()
			if res.StatusCode != c.status {
				t.Errorf("%s, %d bytes, chunked %t: %d, want %d", c.source, c.size, chunked, res.StatusCode, c.status)
			}
			if c.status == 200 && string(f.events[len(f.events)-1].Body) != body {
				t.Errorf("%d bytes: body changed", c.size)
			}
		}
	}
	if got := fmt.Sprint(f.counted(rc, t)); got != "map[gh accepted:4 gh secret_used s/1:4 gh too_large:2 wide accepted:4 wide secret_used s/1:4 wide too_large:2]" {
		t.Error(got)
	}
}

// Nothing is remembered of a failed publish, so that the provider's retry is no
// duplicate (ColeMurray/background-agents#1806), and the key holds tenant and source.
func TestNothingIsRemembered(t *testing.T) {
	t.Parallel()
	f := &fake{fail: []error{errors.New("down")}}
	rc := newReceiver(t, Config{Publisher: f, Sources: []Source{
		githubSource(), githubSource(func(s *Source) { s.ID = "gh2"; s.Tenant = "t2" }),
	}})
	var codes []int
	for range 3 {
		codes = append(codes, post(rc, "/in/gh", "{}", "X-GitHub-Delivery", "a").Code)
	}
	codes = append(codes, post(rc, "/in/gh2", "{}", "X-GitHub-Delivery", "a").Code)
	if !slices.Equal(codes, []int{503, 200, 200, 200}) || len(f.events) != 3 {
		t.Fatalf("%v, %d events", codes, len(f.events))
	}
	if f.events[0].Key != f.events[1].Key || f.events[1].Key == f.events[2].Key || f.events[0].Receipt == f.events[1].Receipt {
		t.Errorf("keys %v %v %v", f.events[0].Key, f.events[1].Key, f.events[2].Key)
	}
}

func TestPublishDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rc := newReceiver(t, Config{Publisher: &fake{wait: true}, Now: time.Now, Sources: []Source{githubSource()}})
		start := time.Now()
		if w := post(rc, "/in/gh", "{}"); w.Code != 503 || time.Since(start) != DefaultPublishDeadline {
			t.Errorf("%d after %s", w.Code, time.Since(start))
		}
	})
}

// A clock that is off shows as such (slackapi/bolt-python#195).
func TestClockSkewHasItsOwnReason(t *testing.T) {
	t.Parallel()
	for skew, want := range map[time.Duration]string{-30 * 24 * time.Hour: "future", 30 * 24 * time.Hour: "stale", 0: "ok"} {
		c := slackCapture("key", []byte("command=x"))
		c.Now = noon.Add(skew)
		if v := VerifyRequests(t.Context(), []CapturedRequest{c})[0]; v.Reason != want {
			t.Errorf("clock off by %s: %+v", skew, v)
		}
	}
}

// pipes is a listener of in-memory connections, which live in synctest's time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.IPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// Slow senders hold little, end in time and leave others alone
// (sunfmin/inhouse-aikido#47).
func TestSlowSenders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow = 200
		f := &fake{}
		rc := newReceiver(t, Config{Publisher: f, Now: time.Now, Sources: []Source{githubSource(), githubSource(func(s *Source) { s.ID = "ok" })}})
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		srv := &http.Server{Handler: rc.Routes(), ReadHeaderTimeout: 5 * time.Second}
		go func() { _ = srv.Serve(l) }()
		defer func() { // connections linger for half a second, senders for one
			_ = srv.Close()
			<-time.After(2 * time.Second)
		}()

		heads := []string{
			"POST /in/gh HTTP/1.1\r\nHost: h\r\nContent-Length: 26214400\r\n\r\n",
			"POST /in/gh HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
		}
		start := time.Now()
		answers := make(chan int, slow)
		for i := range slow {
			go func() {
				c := l.dial()
				defer c.Close()
				if _, err := io.WriteString(c, heads[i%2]); err != nil {
					answers <- 0
					return
				}
				go func() {
					for text := []string{"x", "1\r\nx\r\n"}[i%2]; ; <-time.After(time.Second) {
						if _, err := io.WriteString(c, text); err != nil {
							return
						}
					}
				}()
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					answers <- 0
					return
				}
				answers <- res.StatusCode
			}()
		}
		<-time.After(5 * time.Second)
		synctest.Wait()
		if held := rc.budget.used.Load(); held == 0 || held > slow*firstBuffer {
			t.Errorf("%d slow senders hold %d bytes", slow, held)
		}
		for range 100 {
			before := time.Now()
			if w := post(rc, "/in/ok", "{}"); w.Code != 200 || time.Since(before) != 0 {
				t.Fatalf("healthy source: %d after %s", w.Code, time.Since(before))
			}
		}
		for range slow {
			if code := <-answers; code != http.StatusRequestTimeout {
				t.Fatalf("slow sender was answered %d", code)
			}
		}
		if took := time.Since(start); took < DefaultReadTimeout || took > DefaultReadTimeout+2*time.Second {
			t.Errorf("slow senders lasted %s", took)
		}
		if rc.budget.used.Load() != 0 {
			t.Errorf("%d bytes still held", rc.budget.used.Load())
		}
	})
}

// A declared length beyond the limit is refused before anything is read.
func TestHugeDeclaredLength(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, Config{Publisher: &fake{}, Sources: []Source{githubSource()}})
	r := httptest.NewRequest("POST", "/in/gh", nil)
	r.ContentLength = 10 << 30
	r.Body = io.NopCloser(iotestFail{t})
	w := httptest.NewRecorder()
	rc.Routes().ServeHTTP(w, r)
	if w.Code != 413 || w.Header().Get("Connection") != "close" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

type iotestFail struct{ t testing.TB }

func (f iotestFail) Read([]byte) (int, error) {
	f.t.Error("body was read")
	return 0, io.EOF
}

// blocked delivers n bytes, says so, and waits.
type blocked struct {
	n       int
	reached chan<- struct{}
	release <-chan struct{}
}

func (b *blocked) Read(p []byte) (int, error) {
	if b.n == 0 {
		b.reached <- struct{}{}
		<-b.release
		return 0, io.EOF
	}
	n := min(len(p), b.n)
	b.n -= n
	return n, nil
}

// The byte budget refuses large bodies first, and everything is given back.
func TestByteBudget(t *testing.T) {
	t.Parallel()
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, ByteBudget: 16 << 20, Sources: []Source{githubSource(func(s *Source) { s.BodyLimit = 8 << 20 })}})
	reached, release, done := make(chan struct{}), make(chan struct{}), make(chan int)
	large := func(r io.Reader) {
		req := httptest.NewRequest("POST", "/in/gh", r)
		req.ContentLength = 7 << 20
		w := httptest.NewRecorder()
		rc.Routes().ServeHTTP(w, req)
		done <- w.Code
	}
	for range 2 {
		go large(&blocked{7 << 20, reached, release})
		<-reached
	}
	w := post(rc, "/in/gh", strings.Repeat("x", 1<<20))
	if w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("a megabyte: %d", w.Code)
	}
	if w := post(rc, "/in/gh", "{}"); w.Code != 200 {
		t.Errorf("a small body: %d", w.Code)
	}
	close(release)
	for range 2 {
		if code := <-done; code != 401 {
			t.Errorf("large body: %d", code)
		}
	}
	if rc.budget.used.Load() != 0 {
		t.Errorf("%d bytes still held", rc.budget.used.Load())
	}
	if w := post(rc, "/in/gh", strings.Repeat("x", 1<<20)); w.Code != 200 {
		t.Errorf("a megabyte later: %d", w.Code)
	}
}

func TestBrokenBodies(t *testing.T) {
	t.Parallel()
	rc := newReceiver(t, Config{Publisher: &fake{}, Sources: []Source{githubSource()}})
	for name, tail := range map[string]string{
		"cut short": "Content-Length: 5\r\n\r\nab",
		"bad chunk": "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
	} {
		client, server := net.Pipe()
		l := &oneConn{conn: make(chan net.Conn, 1), done: make(chan struct{}), addr: server.LocalAddr()}
		l.conn <- halfOpen{server}
		srv := &http.Server{Handler: rc.Routes()}
		go func() { _ = srv.Serve(l) }()
		go func() { _, _ = io.WriteString(client, "POST /in/gh HTTP/1.1\r\nHost: h\r\n"+tail+"END") }()
		res, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil || res.StatusCode != 400 {
			t.Errorf("%s: %v %v", name, res, err)
		}
		_ = srv.Close()
	}
}

// halfOpen is a connection whose sender hangs up after "END", but still reads.
type halfOpen struct{ net.Conn }

func (h halfOpen) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if text, found := bytes.CutSuffix(p[:n], []byte("END")); found {
		return len(text), io.EOF
	}
	return n, err
}

func TestCounts(t *testing.T) {
	t.Parallel()
	now := noon
	f := &fake{}
	rc := newReceiver(t, Config{Publisher: f, Now: func() time.Time { return now }, Reporter: "i1", Sources: []Source{githubSource(), githubSource(func(s *Source) { s.ID = "b" })}})
	bad := func(source string) { post(rc, "/in/"+source, "{}", "X-Hub-Signature-256", "x") }
	bad("gh")
	bad("gh")
	bad("b")
	now = noon.Add(61 * time.Second)
	bad("gh")
	flush := func(all bool) error { return rc.Flush(t.Context(), all) }
	if err := flush(false); err != nil || len(f.counts) != 0 {
		t.Fatalf("a second after its end a minute is still open: %v %v", f.counts, err)
	}
	now = noon.Add(66 * time.Second)
	f.fail = []error{errors.New("down")}
	if err := flush(false); err == nil {
		t.Fatal("failure not reported")
	}
	if err := flush(false); err != nil {
		t.Fatal(err)
	}
	want := "[{default b malformed 2026-05-04 12:00:00 +0000 UTC 1 i1-1  0 github} {default gh malformed 2026-05-04 12:00:00 +0000 UTC 2 i1-1  0 github}]"
	if len(f.counts) != 1 || fmt.Sprint(f.counts[0]) != want {
		t.Errorf("got %v, want %s", f.counts, want)
	}
	if err := errors.Join(flush(true), flush(true)); err != nil {
		t.Fatal(err)
	}
	if want := "[{default gh malformed 2026-05-04 12:01:00 +0000 UTC 1 i1-2  0 github}]"; len(f.counts) != 2 || fmt.Sprint(f.counts[1]) != want {
		t.Errorf("got %v, want %s", f.counts, want)
	}
}

func TestRunPublishesEachMinuteAndAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		rc := newReceiver(t, Config{Publisher: f, Now: time.Now, Sources: []Source{githubSource()}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rc.Run(ctx) }()
		bad := func() { post(rc, "/in/gh", "{}", "X-Hub-Signature-256", "x") }
		bad()
		<-time.After(64 * time.Second)
		synctest.Wait()
		if got := f.reports(); len(got) != 1 || len(got[0]) != 1 || got[0][0].Reason != webhook.CountSecretListed || got[0][0].Secret != "s" || got[0][0].Version != 1 || got[0][0].Scheme != "github" {
			t.Errorf("at the start: %+v", got)
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if len(f.reports()) != 2 {
			t.Errorf("after the minute: %v", f.reports())
		}
		<-time.After(24 * time.Hour)
		synctest.Wait()
		if got := f.reports(); len(got) != 3 || got[2][0].Reason != webhook.CountSecretListed {
			t.Errorf("after a day: %v", got)
		}
		bad()
		cancel()
		if err := <-done; err != nil || len(f.reports()) != 4 {
			t.Errorf("at the end: %v %v", f.reports(), err)
		}
	})
}

// The log line says what happened and nothing that is secret.
func TestLogLine(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	rc := newReceiver(t, Config{Publisher: &fake{}, Logger: slog.New(slog.NewJSONHandler(&log, nil)), Sources: []Source{githubSource()}})
	post(rc, "/in/gh?token=q5ery", `{"p":"pay1oad"}`, "X-GitHub-Delivery", "d1", "X-GitHub-Event", "push", "Authorization", "hush")
	post(rc, "/in/gh?token=q5ery", `{"p":"pay1oad"}`, "X-Hub-Signature-256", "sha256="+mac("other", "x"))
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, want := range []map[string]any{
		{"msg": "event accepted", "source": "gh", "tenant": "default", "scheme": "github", "status": 200.0, "bytes": 15.0, "secret": "s/1", "publisher_id": "d1", "type": "push", "event": webhook.KeyOf("gh", "default", "d1").ID()},
		{"msg": "request refused", "source": "gh", "status": 401.0, "reason": "mismatch"},
	} {
		var got map[string]any
		if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
			t.Fatal(err)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("line %d: %s = %v, want %v", i, k, got[k], v)
			}
		}
	}
	for _, secret := range []string{"q5ery", "pay1oad", "hush", mac("other", "x")} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%q is logged", secret)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	zero := time.Duration(0)
	cases := []struct {
		name string
		edit func(*Source)
		want string
	}{
		{"no secret", func(s *Source) { s.Keys = nil }, "secrets: none"},
		{"blank secret", func(s *Source) { s.Keys = append(s.Keys, provider.NewSecret("s", 2, []byte(" "))) }, "secrets: secret s/2: secret is blank"},
		{"scheme", func(s *Source) { s.Scheme = "x" }, "scheme"},
		{"id", func(s *Source) { s.ID = "A" }, "id"},
		{"reserved id", func(s *Source) { s.ID = "app" }, "id"},
		{"tenant", func(s *Source) { s.Tenant = "T" }, "tenant"},
		{"pattern", func(s *Source) { s.AllowTypes = []string{"a*"} }, "allow_types"},
		{"tolerance", func(s *Source) { s.Scheme = "stripe"; s.Tolerance = &zero }, "tolerance"},
		{"limit", func(s *Source) { s.BodyLimit = MaxBodyLimit + 1 }, "body_limit"},
		{"deadline", func(s *Source) { s.PublishDeadline = time.Hour }, "publish_deadline"},
		{"url", func(s *Source) { s.PublicURL = "https://u:p@h/" }, "public_url"},
		{"url needed", func(s *Source) {
			s.Scheme = "generic-hmac"
			s.HMAC = &provider.HMAC{Header: "S", SignedContent: "{url}{body}"}
		}, "public_url"},
	}
	for _, c := range cases {
		_, err := New(Config{Publisher: &fake{}, Sources: []Source{githubSource(c.edit), {ID: "also-bad"}}})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "also-bad") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := New(Config{Publisher: &fake{}, ByteBudget: 1 << 20, Sources: []Source{githubSource()}}); err == nil || !strings.Contains(err.Error(), "byte budget") {
		t.Errorf("budget: %v", err)
	}
	if _, err := New(Config{Publisher: &fake{}, Sources: []Source{githubSource(), githubSource()}}); err == nil || !strings.Contains(err.Error(), "used twice") {
		t.Errorf("twice: %v", err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no publisher")
	}
}

func BenchmarkAccept(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			rc := newReceiver(b, Config{Publisher: &memory{}, Now: time.Now, Sources: []Source{githubSource()}})
			h := rc.Routes()
			body := `{"a":"` + strings.Repeat("x", size-8) + `"}`
			signature := "sha256=" + mac("key", body)
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				r := httptest.NewRequest("POST", "/in/gh", strings.NewReader(body))
				r.Header["X-Hub-Signature-256"] = []string{signature}
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, r); w.Code != 200 {
					b.Fatal(w.Code)
				}
			}
		})
	}
}
