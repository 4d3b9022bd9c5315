package console_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/console"
	"github.com/sealpost/sealpost/internal/localcloud/localtest"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

func TestMain(m *testing.M) { localtest.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOverview(t *testing.T) {
	t.Parallel()
	var ddl []string
	for _, s := range store.Statements() {
		ddl = append(ddl, s.SQL)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	st, err := store.Open(t.Context(), localtest.Database(t, ddl), store.Options{Now: func() time.Time { return now }})
	must(t, err)
	t.Cleanup(st.Close)
	const evil = `<script>alert(1)</script>`
	for _, tenant := range []string{"default", "acme"} {
		_, err := st.CreateEndpoint(t.Context(), webhook.Endpoint{Tenant: tenant, ID: "ep-1", URL: "https://" + tenant + ".example/hook?token=s3cret", EventTypes: []string{"*"}, Queue: "ep-" + tenant}, nil, "test")
		must(t, err)
		ev := webhook.Event{Tenant: tenant, Source: "app", PublisherID: "1", Type: evil, Body: []byte("payload of " + tenant), ReceivedAt: now, Receipt: "r"}
		ev.Seal()
		_, err = st.Ingest(t.Context(), []webhook.Event{ev})
		must(t, err)
	}
	must(t, st.PutSourceCounts(t.Context(), []store.SourceCount{{Tenant: "default", Source: "stripe", Reason: "mismatch", Minute: now, Reporter: "r", Count: 7}}))
	must(t, st.PutDeadMessages(t.Context(), []store.DeadMessage{{Tenant: "default", Topic: "sealpost-events", MessageID: "m1", Reason: "no_type: " + evil, Body: []byte("x")}}))

	routes := console.New(st, slog.New(slog.DiscardHandler), func() time.Time { return now }).Routes()
	get := func(path string) (int, string, string) {
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost:8080"+path, nil))
		b, _ := io.ReadAll(w.Result().Body)
		return w.Code, string(b), w.Header().Get("Content-Security-Policy")
	}
	code, page, csp := get("/")
	if code != 200 || !strings.Contains(csp, "default-src 'none'") {
		t.Fatalf("%d, policy %q: %s", code, csp, page)
	}
	for _, want := range []string{"default.example", "mismatch", "<td>7</td>", "m1", webhook.KeyOf("app", "default", "1").ID(), "scheduled", "&lt;script&gt;"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not show %q", want)
		}
	}
	for _, never := range []string{evil, "s3cret", "acme", "payload of", webhook.KeyOf("app", "acme", "1").ID()} {
		if strings.Contains(page, never) {
			t.Errorf("the page shows %q", never)
		}
	}
	_, page, _ = get("/?tenant=acme")
	if !strings.Contains(page, "acme.example") || strings.Contains(page, "default.example") || strings.Contains(page, "mismatch") || strings.Contains(page, "m1") {
		t.Error("the page of another tenant is mixed up")
	}
	_, page, _ = get("/?tenant=nobody")
	if !strings.Contains(page, "sealpost endpoints add") {
		t.Error("an empty page does not teach")
	}
	code, text, _ := get("/overview.json")
	var o struct {
		Endpoints, Events, Deliveries, Refusals []json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil || code != 200 || len(o.Endpoints) != 1 || len(o.Events) != 1 || len(o.Deliveries) != 1 || len(o.Refusals) != 1 {
		t.Errorf("%d, %v: %s", code, err, text)
	}
	w := httptest.NewRecorder()
	if routes.ServeHTTP(w, httptest.NewRequest("GET", "http://evil.example/", nil)); w.Code != 421 {
		t.Errorf("another name: %d", w.Code)
	}
	for path, want := range map[string]int{"/?tenant=../x": 400, "/overview.json?tenant=A": 400, "/other": 404} {
		if code, _, _ := get(path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
}
