// Package console owns what people look at. So far it is one read-only page and
// its data as JSON, over the same queries as the command line, for `sealpost dev`; and
// the public keys of endpoints, for everybody.
//
// It refuses to change anything, and the page has no authentication of its own: it is
// served on loopback only.
package console

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

//go:embed page.html
var pageHTML string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"time": func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
	"full": func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
}).Parse(pageHTML))

// shown is how many rows of each kind the page has.
const shown = 50

// Console serves the page.
type Console struct {
	store *store.Store
	log   *slog.Logger
	now   func() time.Time
}

// New makes a Console over the store. A nil clock is time.Now.
func New(st *store.Store, log *slog.Logger, now func() time.Time) *Console {
	if now == nil {
		now = time.Now
	}
	return &Console{st, log, now}
}

// Routes are the page at / and its data at /overview.json. Both take ?tenant=.
func (c *Console) Routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", c.serve(writePage))
	mux.HandleFunc("GET /overview.json", c.serve(writeJSON))
	return mux
}

// overview is everything on the page.
type overview struct {
	Tenant     string      `json:"tenant"`
	At         time.Time   `json:"at"`
	Endpoints  []endpoint  `json:"endpoints"`
	Events     []event     `json:"events"`
	Deliveries []delivery  `json:"deliveries"`
	Refusals   []refusal   `json:"refusals"`
	Dead       []undecoded `json:"dead_messages"`
}

type endpoint struct {
	ID     string   `json:"id"`
	URL    string   `json:"url"`
	Events []string `json:"events"`
	State  string   `json:"state"`
}

type event struct {
	ID         string    `json:"id"`
	Source     string    `json:"source"`
	Type       string    `json:"type"`
	State      string    `json:"state"`
	Duplicates int64     `json:"duplicates"`
	ReceivedAt time.Time `json:"received_at"`
}

type delivery struct {
	Event     string     `json:"event"`
	Endpoint  string     `json:"endpoint"`
	Type      string     `json:"type"`
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Attempt   int64      `json:"attempt"`
	Class     string     `json:"class,omitempty"`
	Status    int        `json:"status,omitempty"`
	UpdatedAt time.Time  `json:"updated_at"`
	NextAt    *time.Time `json:"next_attempt_at,omitempty"`
}

type refusal struct {
	Source string    `json:"source"`
	Reason string    `json:"reason"`
	Minute time.Time `json:"minute"`
	Count  int64     `json:"count"`
}

type undecoded struct {
	Topic    string    `json:"topic"`
	ID       string    `json:"message_id"`
	Reason   string    `json:"reason"`
	StoredAt time.Time `json:"stored_at"`
}

func (c *Console) serve(write func(http.ResponseWriter, overview) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !local(r.Host) {
			// A page elsewhere whose name was made to resolve to this machine.
			http.Error(w, "the console is served to this machine's own names only", http.StatusMisdirectedRequest)
			return
		}
		tenant := r.URL.Query().Get("tenant")
		if tenant == "" {
			tenant = webhook.DefaultTenant
		}
		if err := webhook.ValidName(tenant); err != nil {
			http.Error(w, "tenant: "+err.Error(), http.StatusBadRequest)
			return
		}
		o, err := c.overview(r, tenant)
		if err == nil {
			h := w.Header()
			h.Set("Cache-Control", "no-store")
			h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			err = write(w, o)
		}
		if err != nil {
			c.log.ErrorContext(r.Context(), "console page failed", slog.String("event", "console"), slog.String("error", err.Error()))
			http.Error(w, "the overview is not available now", http.StatusServiceUnavailable)
		}
	}
}

// local reports whether the host that a browser asked for is this machine.
func local(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return name == "localhost" || (err == nil && addr.IsLoopback())
}

func writeJSON(w http.ResponseWriter, o overview) error {
	b, err := json.Marshal(o)
	if err == nil {
		w.Header().Set("Content-Type", "application/json")
		_, err = w.Write(b)
	}
	return err
}

func writePage(w http.ResponseWriter, o overview) error {
	var b bytes.Buffer
	if err := page.Execute(&b, o); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, err := w.Write(b.Bytes())
	return err
}

func (c *Console) overview(r *http.Request, tenant string) (overview, error) {
	ctx, at := r.Context(), store.Page{Size: shown}
	o := overview{Tenant: tenant, At: c.now().UTC(), Endpoints: []endpoint{}, Events: []event{}, Deliveries: []delivery{}, Refusals: []refusal{}, Dead: []undecoded{}}
	eps, _, err := c.store.ListEndpoints(ctx, tenant, at)
	if err != nil {
		return o, err
	}
	for _, ep := range eps {
		o.Endpoints = append(o.Endpoints, endpoint{ep.ID, safedial.MaskURL(ep.URL), ep.EventTypes, string(ep.State)})
	}
	events, _, err := c.store.ListEvents(ctx, store.EventFilter{Tenant: tenant}, at)
	if err != nil {
		return o, err
	}
	for _, e := range events {
		o.Events = append(o.Events, event{e.Key.ID(), e.Source, e.Type, string(e.State), e.Duplicates, e.ReceivedAt})
	}
	ds, _, err := c.store.ListDeliveries(ctx, store.DeliveryFilter{Tenant: tenant}, at)
	if err != nil {
		return o, err
	}
	for _, d := range ds {
		v := delivery{Event: d.Event.ID(), Endpoint: d.Endpoint, Type: d.EventType, State: string(d.State), Reason: d.Reason, Attempt: d.Attempt,
			Class: string(d.LastClass), Status: d.LastStatus, UpdatedAt: d.UpdatedAt}
		if !d.NextAttemptAt.IsZero() {
			v.NextAt = &d.NextAttemptAt
		}
		o.Deliveries = append(o.Deliveries, v)
	}
	counts, _, err := c.store.ListSourceCounts(ctx, store.SourceCountFilter{Tenant: tenant}, at)
	if err != nil {
		return o, err
	}
	for _, n := range counts {
		if !webhook.CountsRefusal(n.Reason) {
			continue
		}
		o.Refusals = append(o.Refusals, refusal{n.Source, n.Reason, n.Minute, n.Count})
	}
	dead, _, err := c.store.ListDeadMessages(ctx, tenant, at)
	if err != nil {
		return o, err
	}
	for _, m := range dead {
		o.Dead = append(o.Dead, undecoded{m.Topic, m.MessageID, m.Reason, m.StoredAt})
	}
	return o, nil
}
