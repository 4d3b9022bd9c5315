package receive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Reasons of [VerifyRequests] for requests that never reach a source.
const (
	ReasonBadRequest    = "bad_request"    // the captured request itself is unusable
	ReasonBadOption     = "bad_option"     // unknown scheme, or an option that cannot be used
	ReasonWrongResponse = "wrong_response" // a handshake's answer is not the expected one
)

// CapturedRequest is one request with everything needed to judge it.
type CapturedRequest struct {
	Name    string
	Scheme  string
	Secrets []string // the keys active at the time; several = rotation
	Header  []webhook.Header
	Method  string // POST if empty
	URL     string // the public URL that the provider posts to, where it is signed
	Body    []byte
	Now     time.Time
	// Options are a source's settings by their names in [ParseSources], with
	// tolerance_s for the tolerance in seconds; the fields of hmac, token and jwt stand
	// without their group. timestamp_in_body is known and says nothing new.
	Options map[string]json.RawMessage
	// ExpectedResponse is what a handshake must answer: a JSON string is the body's
	// text, anything else is compared as JSON. Empty: no handshake is expected.
	ExpectedResponse json.RawMessage
	// Others are secrets of other endpoints by name, for the explanation.
	Others map[string]string

	fault string // why the element cannot be used
}

// Verdict is the receiver's judgement of one captured request.
type Verdict struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"` // accept or reject
	Reason  string `json:"reason"`  // "ok", or the refusal's code
	Detail  string `json:"detail,omitempty"`
	// Explanation says in words what a person can do about a refusal. Each cause was
	// tested, not guessed. It is given where one request alone is judged.
	Explanation []string `json:"explanation,omitempty"`
}

// The two verdicts.
const (
	Accept = "accept"
	Reject = "reject"
)

// UnmarshalJSON reads an object with name, scheme, secret (a text, or a list of
// texts), headers (name → value or list of values), method, url, body_base64,
// now_unix, options, expected_response and other_secrets (as secret, or name →
// text). Other fields are ignored.
//
// It never fails: what cannot be used is kept, for [VerifyRequests] to reject it
// and say why, so that one bad element does not hide the verdict on the others.
func (c *CapturedRequest) UnmarshalJSON(b []byte) error {
	*c = readCaptured(b)
	return nil
}

func readCaptured(raw json.RawMessage) CapturedRequest {
	var c CapturedRequest
	fault := func(name string, err error) {
		if err != nil && c.fault == "" {
			c.fault = name + ": " + err.Error()
		}
	}
	err := members(raw, func(name string, value json.RawMessage) {
		switch name {
		case "name":
			fault(name, json.Unmarshal(value, &c.Name))
		case "scheme":
			fault(name, json.Unmarshal(value, &c.Scheme))
		case "method":
			fault(name, json.Unmarshal(value, &c.Method))
		case "url":
			fault(name, json.Unmarshal(value, &c.URL))
		case "body_base64":
			fault(name, json.Unmarshal(value, &c.Body))
		case "options":
			fault(name, json.Unmarshal(value, &c.Options))
		case "expected_response":
			if string(value) != "null" {
				c.ExpectedResponse = value
			}
		case "secret":
			var err error
			c.Secrets, err = textOrList(value)
			fault(name, err)
		case "other_secrets":
			var err error
			c.Others, err = namedTexts(value)
			fault(name, err)
		case "now_unix":
			var err error
			c.Now, err = unixTime(value)
			fault(name, err)
		case "headers":
			fault(name, members(value, func(name string, value json.RawMessage) {
				lines, err := textOrList(value)
				fault("header "+name, err)
				for _, l := range lines {
					c.Header = append(c.Header, webhook.Header{Name: name, Value: l})
				}
			}))
		}
	})
	fault("request", err)
	return c
}

func textOrList(raw json.RawMessage) ([]string, error) {
	var one string
	if json.Unmarshal(raw, &one) == nil && raw[0] == '"' {
		return []string{one}, nil
	}
	var list []*string
	if err := json.Unmarshal(raw, &list); err != nil || slices.Contains(list, nil) || list == nil {
		return nil, fmt.Errorf("want a text or a list of texts")
	}
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = *s
	}
	return texts, nil
}

// namedTexts reads an object of texts, or texts that are then called by number.
func namedTexts(raw json.RawMessage) (map[string]string, error) {
	var named map[string]string
	if err := json.Unmarshal(raw, &named); err == nil && named != nil {
		return named, nil
	}
	list, err := textOrList(raw)
	named = map[string]string{}
	for i, text := range list {
		named[fmt.Sprintf("other-%d", i+1)] = text
	}
	return named, err
}

// unixTime reads seconds, fractions allowed.
func unixTime(raw json.RawMessage) (time.Time, error) {
	var n json.Number
	if err := json.Unmarshal(raw, &n); err != nil {
		return time.Time{}, fmt.Errorf("want a number of seconds")
	}
	if s, err := n.Int64(); err == nil {
		return time.Unix(s, 0), nil
	}
	f, err := n.Float64()
	if err != nil || math.Abs(f) > 1<<53 {
		return time.Time{}, fmt.Errorf("want a number of seconds")
	}
	whole, frac := math.Modf(f)
	return time.Unix(int64(whole), int64(frac*1e9)), nil
}

// VerifyRequests judges captured requests by the receiver itself. Each is written
// as the HTTP/1.1 bytes that it was on the wire, so that repeated and odd header
// lines arrive as such, and served by a net/http server through the Routes of a
// receiver with one source, an in-memory publisher and the request's own clock.
//
// A request is accepted if the answer is 2xx and, where a handshake is expected,
// the expected one. Whatever cannot be judged is rejected with a reason; nothing
// panics. A refused request that is judged alone is also explained.
func VerifyRequests(ctx context.Context, captured []CapturedRequest) []Verdict {
	verdicts := make([]Verdict, len(captured))
	for i := range captured {
		v, src, o := judge(ctx, &captured[i])
		if len(captured) == 1 && v.Verdict == Reject && o != nil && o.request.Method != "" {
			v.Explanation = explain(&captured[i], src, o)
		}
		verdicts[i] = v
	}
	return verdicts
}

// explain looks for the cause of a refusal.
func explain(c *CapturedRequest, src Source, o *outcome) []string {
	scheme, err := src.verifier()
	if err != nil { // not reached: a receiver was made with it
		return nil
	}
	var others []provider.Secret
	for _, name := range slices.Sorted(maps.Keys(c.Others)) {
		others = append(others, provider.NewSecret(name, 1, []byte(c.Others[name])))
	}
	return provider.Explain(scheme, o.request, src.Keys, others, c.Now).Causes
}

// judge never fails: what goes wrong is the verdict.
func judge(ctx context.Context, c *CapturedRequest) (Verdict, Source, *outcome) {
	reject := func(reason, format string, args ...any) Verdict {
		return Verdict{Name: c.Name, Verdict: Reject, Reason: reason, Detail: fmt.Sprintf(format, args...)}
	}
	if c.fault != "" {
		return reject(ReasonBadRequest, "%s", c.fault), Source{}, nil
	}
	src, err := c.source()
	if err != nil {
		return reject(ReasonBadOption, "%s", err), src, nil
	}
	var seen *outcome
	memory := new(memory)
	rc, err := New(Config{
		Sources: []Source{src}, Publisher: memory, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return c.Now }, observe: func(o *outcome) { seen = o },
		Confirm: func(context.Context, string) error { return nil }, // whoever judges a capture does not subscribe
	})
	if err != nil {
		if why := unusableSecret(&src); why != nil {
			return reject(string(provider.NoSecret), "%s", why), src, nil
		}
		return reject(ReasonBadOption, "%s", err), src, nil
	}
	wire, err := c.wire(src.ID)
	if err != nil {
		return reject(ReasonBadRequest, "%s", err), src, nil
	}
	res, body, err := exchange(ctx, rc.Routes(), or(c.Method, http.MethodPost), wire)
	switch {
	case err != nil:
		return reject(ReasonBadRequest, "no answer: %s", err), src, seen
	case seen == nil:
		return reject(ReasonBadRequest, "answered %d before any source saw it", res.StatusCode), src, nil
	case res.StatusCode < 200 || res.StatusCode > 299:
		return reject(seen.reason, "%s", seen.detail), src, seen
	case c.ExpectedResponse != nil && !sameResponse(c.ExpectedResponse, res.Header, body):
		return reject(ReasonWrongResponse, "answered %d with another body than expected", res.StatusCode), src, seen
	case c.ExpectedResponse == nil && !seen.shaken && seen.body == nil && !bytes.Equal(memory.body, c.Body):
		return reject(ReasonBadRequest, "published %d bytes that are not the %d posted", len(memory.body), len(c.Body)), src, seen
	}
	return Verdict{Name: c.Name, Verdict: Accept, Reason: "ok"}, src, seen
}

// source is what would have been configured.
func (c *CapturedRequest) source() (Source, error) {
	s := Source{ID: "captured", Scheme: c.Scheme, BodyLimit: MaxBodyLimit}
	for i, text := range c.Secrets {
		s.Keys = append(s.Keys, provider.NewSecret("captured", i+1, []byte(text)))
	}
	if err := c.settings(&s); err != nil {
		return s, err
	}
	v, err := s.verifier()
	if err != nil {
		return s, err
	}
	if !v.SignsTime() && s.Tolerance != nil {
		s.Tolerance = nil // harmless here: there is no age to judge
	}
	if v.NeedsURL() {
		s.PublicURL, _, _ = strings.Cut(c.URL, "?")
	}
	return s, nil
}

// settings reads the options: a source's settings by their names, those of
// generic-hmac, generic-token and jwt without the group's name.
func (c *CapturedRequest) settings(s *Source) error {
	targets := map[string]any{
		"webhook_id": &s.WebhookID, "topics": &s.Topics, "verify_token": &s.VerifyToken, "asana_handshake": &s.AsanaHandshake, "dedupe": &s.Dedupe,
		"content_encoding": &s.ContentEncoding,
	}
	switch c.Scheme {
	case "generic-token":
		s.Token = new(provider.Token)
		maps.Copy(targets, tokenFields(s.Token))
	case "jwt", "google-oidc", "microsoft-graph":
		jwt := new(provider.JWT)
		maps.Copy(targets, jwtFields(jwt))
		if _, rich := c.Options["audience"]; rich || c.Scheme != "microsoft-graph" {
			s.JWT = jwt
		}
	default:
		h := new(provider.HMAC)
		if c.Scheme == "generic-hmac" {
			s.HMAC = h
		}
		maps.Copy(targets, hmacFields(h))
	}
	var tolerance *time.Duration
	for name, raw := range c.Options {
		target, known := targets[name]
		switch {
		case name == "tolerance_s":
			d, err := seconds(raw)
			if err != nil {
				return err
			}
			if d <= 0 {
				return fmt.Errorf("option tolerance_s: %s cannot be a tolerance", d)
			}
			tolerance = &d
		case name == "timestamp_in_body": // says where the scheme has it anyway
		case !known:
			return fmt.Errorf("option %.64q is unknown", name)
		default:
			if err := json.Unmarshal(raw, target); err != nil {
				return fmt.Errorf("option %.64s: %s", name, kindError(err))
			}
		}
	}
	c.assume(s)
	if v, err := s.verifier(); err == nil && v.SignsTime() {
		s.Tolerance = tolerance
	}
	return nil
}

// assume fills in what a captured request does not tell of its source, so that it
// can be judged: it was received for the right topic, a handshake that is
// expected to be answered was expected to come, and so was an encoded body.
func (c *CapturedRequest) assume(s *Source) {
	switch {
	case c.Scheme == "aws-sns" && len(s.Topics) == 0:
		s.Topics = []string{"*"}
	case c.Scheme == "asana" && c.ExpectedResponse != nil:
		s.AsanaHandshake = true
	case c.Scheme == "meta" && s.VerifyToken == "" && c.ExpectedResponse != nil && len(c.Secrets) > 0:
		s.VerifyToken = c.Secrets[0]
	}
	if v, err := s.verifier(); err == nil && s.ContentEncoding == "" {
		s.ContentEncoding = EncodingSigned
		if !v.SignsAsSent() {
			s.ContentEncoding = EncodingDecoded
		}
	}
}

func seconds(raw json.RawMessage) (time.Duration, error) {
	var n float64
	if err := json.Unmarshal(raw, &n); err != nil || string(raw) == "null" || math.Abs(n) > 1e9 {
		return 0, fmt.Errorf("option tolerance_s: want a number of seconds")
	}
	return time.Duration(n * float64(time.Second)), nil
}

func unusableSecret(s *Source) error {
	v, err := s.verifier()
	if err != nil {
		return nil
	}
	if len(s.Keys) == 0 {
		return fmt.Errorf("no secret is given")
	}
	for _, k := range s.Keys {
		if err := v.CheckSecret(k); err != nil {
			return err
		}
	}
	return nil
}

// framing headers are written for the bytes at hand, not as captured.
var framing = []string{"Connection", "Content-Length", "Expect", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// wire is the request as HTTP/1.1 bytes. It refuses what no request can hold.
func (c *CapturedRequest) wire(source string) ([]byte, error) {
	method := or(c.Method, http.MethodPost)
	if strings.ContainsAny(method, " \t\r\n\x00") {
		return nil, fmt.Errorf("method %.32q is none", method)
	}
	target, host := "/in/"+source, "receiver.example"
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil {
			return nil, fmt.Errorf("url cannot be parsed")
		}
		host = or(u.Host, host)
		if _, query, ok := strings.Cut(c.URL, "?"); ok {
			target += "?" + query
		}
	}
	if strings.ContainsAny(target, " \t\r\n\x00#") {
		return nil, fmt.Errorf("url holds characters that no request line can")
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\n", method, target)
	hosts := 0
	for _, h := range c.Header {
		if strings.ContainsAny(h.Name, "\r\n:") || h.Name == "" || strings.ContainsAny(h.Value, "\r\n\x00") {
			return nil, fmt.Errorf("header %.64q cannot be written as a header line", h.Name)
		}
		if slices.Contains(framing, http.CanonicalHeaderKey(h.Name)) {
			continue
		}
		if strings.EqualFold(h.Name, "Host") {
			hosts++
		}
		fmt.Fprintf(&b, "%s: %s\r\n", h.Name, h.Value)
	}
	if hosts == 0 {
		fmt.Fprintf(&b, "Host: %s\r\n", host)
	}
	if len(c.Body) > 0 || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		b.WriteString("Content-Length: " + strconv.Itoa(len(c.Body)) + "\r\n")
	}
	b.WriteString("Connection: close\r\n\r\n")
	b.Write(c.Body)
	return b.Bytes(), nil
}

// exchange sends raw bytes to a net/http server that runs h and reads the answer.
func exchange(ctx context.Context, h http.Handler, method string, wire []byte) (*http.Response, []byte, error) {
	client, conn := net.Pipe()
	defer client.Close()
	l := &oneConn{conn: make(chan net.Conn, 1), done: make(chan struct{}), addr: conn.LocalAddr()}
	l.conn <- conn
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		_ = server.Close()
		<-served
	}()
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer stop()
	go func() { _, _ = client.Write(wire) }() // ends with the connection, at the latest
	res, err := http.ReadResponse(bufio.NewReader(client), &http.Request{Method: method})
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res, body, err
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn chan net.Conn
	done chan struct{}
	addr net.Addr
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close is called once, by the server.
func (l *oneConn) Close() error {
	close(l.done)
	return nil
}

func (l *oneConn) Addr() net.Addr { return l.addr }

// sameResponse compares a handshake's answer with the expected one. Providers
// that take the challenge as text or as JSON may be expected either way, and one
// that takes it in a header as {name: value}.
func sameResponse(want json.RawMessage, header http.Header, got []byte) bool {
	var text string
	if json.Unmarshal(want, &text) == nil {
		return string(got) == text
	}
	var w, g any
	if json.Unmarshal(want, &w) != nil {
		return false
	}
	if json.Unmarshal(got, &g) == nil && fmt.Sprint(w) == fmt.Sprint(g) {
		return true
	}
	m, ok := w.(map[string]any)
	if !ok || len(m) != 1 {
		return false
	}
	for name, value := range m {
		if v := header.Get(name); v != "" && v == value {
			return true
		}
	}
	return m["challenge"] == string(got)
}

// memory is a publisher that keeps the last event.
type memory struct{ body []byte }

// PublishInbound keeps the body.
func (m *memory) PublishInbound(_ context.Context, ev webhook.Event, _ string) error {
	m.body = bytes.Clone(ev.Body)
	return nil
}

// PublishCounts has nobody to tell.
func (m *memory) PublishCounts(context.Context, []Count) error { return nil }
