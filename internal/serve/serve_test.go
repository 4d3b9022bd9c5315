package serve

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/api/idtoken"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func token(claims string) string {
	return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".SIGNATURE_REMOVED_BY_GOOGLE"
}

func TestAuth(t *testing.T) {
	t.Parallel()
	good := token(`{"email":"push@p.iam","email_verified":true,"aud":"https://worker"}`)
	validate := func(_ context.Context, tok, aud string) (*idtoken.Payload, error) {
		if tok != "signed" {
			return nil, errors.New("bad signature")
		}
		return &idtoken.Payload{Audience: aud, Claims: map[string]any{"email": "push@p.iam", "email_verified": true}}, nil
	}
	for _, tt := range []struct {
		name   string
		mode   AuthMode
		header []string
		want   int
	}{
		{"iam: the caller", AuthIAM, []string{"Bearer " + good}, 200},
		{"iam: nothing", AuthIAM, nil, 401},
		{"iam: two headers", AuthIAM, []string{"Bearer " + good, "Bearer " + good}, 401},
		{"iam: other scheme", AuthIAM, []string{"Basic " + good}, 401},
		{"iam: no token", AuthIAM, []string{"Bearer x"}, 401},
		{"iam: not base64", AuthIAM, []string{"Bearer a.*.c"}, 401},
		{"iam: not JSON", AuthIAM, []string{"Bearer " + token(`nope`)}, 401},
		{"iam: somebody else", AuthIAM, []string{"Bearer " + token(`{"email":"evil@p.iam","email_verified":true,"aud":"https://worker"}`)}, 403},
		{"iam: for somebody else", AuthIAM, []string{"Bearer " + token(`{"email":"push@p.iam","email_verified":true,"aud":"https://other"}`)}, 403},
		{"iam: email not verified", AuthIAM, []string{"Bearer " + token(`{"email":"push@p.iam","aud":"https://worker"}`)}, 403},
		{"verify: signed", AuthVerify, []string{"Bearer signed"}, 200},
		{"verify: stripped", AuthVerify, []string{"Bearer " + good}, 401},
		{"none", AuthNone, nil, 200},
		{"no mode", "", []string{"Bearer " + good}, 401},
	} {
		a := Auth{Mode: tt.mode, Audience: "https://worker", Emails: []string{"push@p.iam"}, Validate: validate}
		r := httptest.NewRequest("POST", "/", nil)
		r.Header["Authorization"] = tt.header
		w := httptest.NewRecorder()
		a.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
		if w.Code != tt.want || w.Body.Len() != 0 {
			t.Errorf("%s: %d %q, want %d and nothing said", tt.name, w.Code, w.Body, tt.want)
		}
	}
}

func TestAuthFromEnv(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		env  []string
		bad  []string
	}{
		{"iam", []string{"AUTH", "iam", "AUDIENCE", "a", "CALLERS", "x@p, y@p"}, nil},
		{"none beside an emulator", []string{"AUTH", "none", "PUBSUB_EMULATOR_HOST", "h:1"}, nil},
		{"none in earnest", []string{"AUTH", "none"}, []string{"AUTH=none"}},
		{"nothing", nil, []string{"AUTH is", "AUDIENCE", "CALLERS"}},
		{"half", []string{"AUTH", "verify", "AUDIENCE", "a"}, []string{"CALLERS"}},
	} {
		_, err := AuthFromEnv(env(tt.env...), "CALLERS", "")
		if (err == nil) != (tt.bad == nil) {
			t.Errorf("%s: %v", tt.name, err)
		}
		for _, want := range tt.bad {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %s", tt.name, err, want)
			}
		}
	}
}

func TestLogLinesHaveCloudFields(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	log, err := NewLogger(&b, "worker", env("GOOGLE_CLOUD_PROJECT", "p"))
	if err != nil {
		t.Fatal(err)
	}
	h := WithHealth(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		log.WarnContext(r.Context(), "hello", slog.Group("g", slog.String("level", "kept")))
	}), nil, log)
	r := httptest.NewRequest("GET", "/x", nil)
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	h.ServeHTTP(httptest.NewRecorder(), r)
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("%v in %q", err, b.String())
	}
	for k, want := range map[string]any{"severity": "WARNING", "message": "hello", "service": "worker",
		"logging.googleapis.com/trace": "projects/p/traces/0af7651916cd43dd8448eb211c80319c", "logging.googleapis.com/spanId": "b7ad6b7169203331"} {
		if line[k] != want {
			t.Errorf("%s is %v, want %v", k, line[k], want)
		}
	}
	for _, bad := range []func(string) string{env("LOG_LEVEL", "loud"), env("LOG_FORMAT", "xml")} {
		if _, err := NewLogger(&b, "worker", bad); err == nil {
			t.Error("unusable settings are accepted")
		}
	}
}

func TestHealthAndPanics(t *testing.T) {
	t.Parallel()
	ready := errors.New("not yet")
	var logged bytes.Buffer
	h := WithHealth(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("secret detail")
		}
	}), func(context.Context) error { return ready }, slog.New(slog.NewTextHandler(&logged, nil)))
	for _, tt := range []struct {
		path string
		want int
	}{{LivePath, 204}, {ReadyPath, 503}, {"/panic", 500}, {"/", 200}} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", tt.path, nil))
		if w.Code != tt.want || strings.Contains(w.Body.String(), "secret detail") {
			t.Errorf("%s: %d %q, want %d", tt.path, w.Code, w.Body, tt.want)
		}
	}
	if !strings.Contains(logged.String(), "secret detail") {
		t.Error("the panic is not in the log")
	}
	ready = nil
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, httptest.NewRequest("GET", ReadyPath, nil)); w.Code != 204 {
		t.Errorf("once ready: %d", w.Code)
	}
}

// Asked to stop, a server answers what it has begun, and only that.
func TestRunFinishesRequests(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	begun := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		stop()
		<-ctx.Done()
		if r.Context().Err() != nil {
			t.Error("the request is cancelled by the stop")
		}
		w.WriteHeader(http.StatusTeapot)
	})
	done := make(chan error, 1)
	go func() { done <- Run(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	res, err := http.Get("http://" + l.Addr().String())
	if err != nil || res.StatusCode != http.StatusTeapot {
		t.Fatalf("%v, %v", res, err)
	}
	res.Body.Close()
	<-begun
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}
