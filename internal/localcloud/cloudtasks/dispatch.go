package cloudtasks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
)

// errDeadline is why an attempt's context ends at its dispatch deadline.
var errDeadline = errors.New("dispatch deadline exceeded")

const userAgent = "Google-Cloud-Tasks"

// outcome is what came of an attempt.
type outcome struct {
	status     int           // HTTP status, 0 if no complete answer came
	retryAfter time.Duration // of 429 and 503 only
	deadline   bool          // no answer before the dispatch deadline
	err        error         // why status is 0
}

func (o outcome) ok() bool { return o.status >= 200 && o.status <= 299 }

// rpcStatus is the outcome as Attempt.response_status.
func (o outcome) rpcStatus() *status.Status {
	code := codes.Unknown
	switch {
	case o.ok():
		code = codes.OK
	case o.deadline:
		code = codes.DeadlineExceeded
	default:
		if c, ok := httpCodes[o.status]; ok {
			code = c
		} else if o.status >= 500 {
			code = codes.Internal
		} else if o.status >= 400 {
			code = codes.FailedPrecondition
		}
	}
	return &status.Status{Code: int32(code), Message: fmt.Sprintf("HTTP status code %d", o.status)}
}

// httpCodes is the usual correspondence of google/rpc/code.proto.
var httpCodes = map[int]codes.Code{
	400: codes.InvalidArgument, 401: codes.Unauthenticated, 403: codes.PermissionDenied, 404: codes.NotFound,
	409: codes.Aborted, 416: codes.OutOfRange, 429: codes.ResourceExhausted, 499: codes.Canceled,
	500: codes.Internal, 501: codes.Unimplemented, 503: codes.Unavailable, 504: codes.DeadlineExceeded,
}

// maxDrain bounds how much of an answer is read so that its connection can be
// used again. The content is discarded.
const maxDrain = 1 << 20

// send makes the HTTP request of an attempt. An answer counts only once its
// body has been read within the deadline.
func (e *engine) send(ctx context.Context, a *attempt) outcome {
	if err := ctx.Err(); err != nil { // closed between launch and here
		return outcome{err: err}
	}
	req, err := a.httpRequest(ctx, e.clock.Now())
	if err != nil {
		return outcome{err: err}
	}
	resp, err := e.transport.RoundTrip(req)
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrain))
		err = errors.Join(err, resp.Body.Close())
	}
	if cause := context.Cause(ctx); cause != nil {
		return outcome{err: cause, deadline: errors.Is(cause, errDeadline)}
	}
	if err != nil {
		return outcome{err: err}
	}
	o := outcome{status: resp.StatusCode}
	if o.status == http.StatusTooManyRequests || o.status == http.StatusServiceUnavailable {
		o.retryAfter = retryAfter(resp.Header.Get("Retry-After"), e.clock.Now())
	}
	return o
}

// retryAfter reads the header's two forms (RFC 9110, section 10.2.3); 0 if
// absent, malformed or past.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(v, 10, 32); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// httpRequest builds the request that a handler sees: the task's, changed by
// the queue's http_target, then the headers of the service.
func (a *attempt) httpRequest(ctx context.Context, now time.Time) (*http.Request, error) {
	r := a.t.request
	rawURL, err := overrideURL(r.GetUrl(), a.target.GetUriOverride())
	if err != nil {
		return nil, err
	}
	method := r.GetHttpMethod()
	if m := a.target.GetHttpMethod(); m != cloudtaskspb.HttpMethod_HTTP_METHOD_UNSPECIFIED {
		method = m
	}
	var body io.Reader
	if len(r.GetBody()) > 0 && bodyAllowed(method) {
		body = bytes.NewReader(r.GetBody())
	}
	req, err := http.NewRequestWithContext(ctx, method.String(), rawURL, body)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(r.GetHeaders())) {
		if !reserved(name) {
			req.Header.Set(name, r.GetHeaders()[name])
		}
	}
	for _, h := range a.target.GetHeaderOverrides() {
		if !reserved(h.GetHeader().GetKey()) {
			req.Header.Set(h.GetHeader().GetKey(), h.GetHeader().GetValue())
		}
	}
	if auth := authorization(r, a.target, rawURL, now); auth != "" {
		req.Header.Set("Authorization", auth)
	}
	a.serviceHeaders(req.Header)
	return req, nil
}

// serviceHeaders sets what Cloud Tasks says about the task. The two headers on
// the previous answer are there only on a retry after an answer, and for HTTP
// targets the reason is always empty.
func (a *attempt) serviceHeaders(h http.Header) {
	_, queueID, _ := strings.Cut(a.t.q.name, "/queues/")
	h.Set("User-Agent", userAgent)
	h.Set("X-CloudTasks-QueueName", queueID)
	h.Set("X-CloudTasks-TaskName", a.t.id)
	h.Set("X-CloudTasks-TaskRetryCount", strconv.Itoa(int(a.number-1)))
	h.Set("X-CloudTasks-TaskExecutionCount", strconv.Itoa(int(a.executions)))
	h.Set("X-CloudTasks-TaskETA", fmt.Sprintf("%d.%06d", a.scheduled.Unix(), a.scheduled.Nanosecond()/1000))
	if a.previous != 0 {
		h.Set("X-CloudTasks-TaskPreviousResponse", strconv.Itoa(a.previous))
		h.Set("X-CloudTasks-TaskRetryReason", "")
	}
}

// reserved tells the headers that a task cannot set: those that the reference
// of HttpRequest.headers names, and those that frame the message or belong to
// the connection.
func reserved(name string) bool {
	name = strings.ToLower(name)
	for _, prefix := range []string{"x-cloudtasks-", "x-google-", "x-appengine-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	switch name {
	case "host", "content-length", "user-agent", "connection", "keep-alive", "proxy-connection",
		"te", "trailer", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

func bodyAllowed(m cloudtaskspb.HttpMethod) bool {
	return m == cloudtaskspb.HttpMethod_POST || m == cloudtaskspb.HttpMethod_PUT || m == cloudtaskspb.HttpMethod_PATCH
}

// overrideURL applies a queue's URI override to a task's URL.
func overrideURL(raw string, o *cloudtaskspb.UriOverride) (string, error) {
	if o == nil {
		return raw, nil
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", err
	}
	// A task's URL always has a scheme and a host.
	always := o.GetUriOverrideEnforceMode() != cloudtaskspb.UriOverride_IF_NOT_EXISTS
	host, port := u.Hostname(), u.Port()
	if always {
		switch o.GetScheme() {
		case cloudtaskspb.UriOverride_HTTP:
			u.Scheme = "http"
		case cloudtaskspb.UriOverride_HTTPS:
			u.Scheme = "https"
		}
		if o.Host != nil {
			host = o.GetHost()
		}
	}
	if o.Port != nil && (always || port == "") {
		port = strconv.FormatInt(o.GetPort(), 10)
		if o.GetPort() == 0 {
			port = ""
		}
	}
	u.Host = host
	if strings.Contains(host, ":") {
		u.Host = "[" + host + "]"
	}
	if port != "" {
		u.Host += ":" + port
	}
	if o.PathOverride != nil && (always || strings.Trim(u.Path, "/") == "") {
		u.Path, u.RawPath = o.GetPathOverride().GetPath(), ""
	}
	if o.QueryOverride != nil && (always || u.RawQuery == "") {
		u.RawQuery = o.GetQueryOverride().GetQueryParams()
	}
	return u.String(), nil
}

// authorization is the value of the header of that name, "" for the task's
// own. The queue's setting wins.
func authorization(r *cloudtaskspb.HttpRequest, t *cloudtaskspb.HttpTarget, rawURL string, now time.Time) string {
	oidc, oauth := r.GetOidcToken(), r.GetOauthToken()
	if t.GetAuthorizationHeader() != nil {
		oidc, oauth = t.GetOidcToken(), t.GetOauthToken()
	}
	switch {
	case oidc != nil:
		audience := oidc.GetAudience()
		if audience == "" {
			audience = rawURL
		}
		return "Bearer " + oidcToken(oidc.GetServiceAccountEmail(), audience, now)
	case oauth != nil:
		return "Bearer " + oauthToken(oauth, now)
	}
	return ""
}

// oidcToken is a Google ID token as a service behind Cloud Run's IAM check
// sees it: header and payload of a valid token, the signature replaced.
func oidcToken(email, audience string, now time.Time) string {
	sum := sha256.Sum256([]byte(email))
	encode := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // maps of strings, numbers and booleans
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	subject := fmt.Sprintf("1%020d", binary.BigEndian.Uint64(sum[:8]))
	return encode(map[string]any{"alg": "RS256", "kid": hex.EncodeToString(sum[8:28]), "typ": "JWT"}) + "." +
		encode(map[string]any{
			"iss": "https://accounts.google.com", "aud": audience, "azp": subject, "sub": subject,
			"email": email, "email_verified": true, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		}) + ".SIGNATURE_REMOVED_BY_GOOGLE"
}

// oauthToken is an opaque stub: one for each account, scope and time.
func oauthToken(t *cloudtaskspb.OAuthToken, now time.Time) string {
	scope := t.GetScope()
	if scope == "" {
		scope = "https://www.googleapis.com/auth/cloud-platform"
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d", t.GetServiceAccountEmail(), scope, now.Unix()))
	return "ya29.emulated." + base64.RawURLEncoding.EncodeToString(sum[:])
}

// HandlerTransport is a RoundTripper that calls h in process, whatever the
// URL's host. h runs on the attempt's own goroutine and must return when the
// request's context ends. A panic with http.ErrAbortHandler looks to the
// emulator like a connection that broke before the answer, the way to let a
// handler "crash"; other panics go through.
func HandlerTransport(h http.Handler) http.RoundTripper { return handlerTransport{h} }

type handlerTransport struct{ h http.Handler }

func (t handlerTransport) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	in := req.Clone(req.Context())
	in.RequestURI, in.Host = req.URL.RequestURI(), req.URL.Host
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &recorder{header: make(http.Header)}
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			resp, err = nil, io.ErrUnexpectedEOF
		default:
			panic(p)
		}
	}()
	t.h.ServeHTTP(w, in)
	w.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: req,
	}, nil
}

// recorder is the ResponseWriter of a handlerTransport.
type recorder struct {
	header, sent http.Header
	status       int
	body         bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status, w.sent = status, w.header.Clone()
	}
}

func (w *recorder) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
