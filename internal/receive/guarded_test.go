package receive

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sealpost/sealpost/internal/safedial"
)

func TestGuarded(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		switch r.URL.Path {
		case "/cert":
			_, _ = w.Write([]byte("PEM"))
		case "/moved":
			http.Redirect(w, r, "/cert", http.StatusFound)
		case "/huge":
			_, _ = w.Write([]byte(strings.Repeat("x", guardedLimit+1)))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(srv.Close)
	fetch, confirm := Guarded(safedial.Dev())
	for path, want := range map[string]string{"/cert": "PEM", "/moved": "", "/huge": "", "/none": ""} {
		got, err := fetch(t.Context(), srv.URL+path)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if err := confirm(t.Context(), srv.URL+"/cert"); err != nil {
		t.Error(err)
	}
	if n := hits.Load(); n != 5 {
		t.Errorf("%d requests, want 5: a redirect is not followed", n)
	}
	strict, _ := Guarded(safedial.Policy{})
	for _, url := range []string{srv.URL + "/cert", "https://169.254.169.254/", "://"} {
		if _, err := strict(context.Background(), url); safedial.Classify(err) != safedial.KindBlocked {
			t.Errorf("%s: %v, want blocked", url, err)
		}
	}
	if n := hits.Load(); n != 5 {
		t.Errorf("a blocked URL was visited")
	}
}
