package fanout

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sealpost/sealpost/internal/expr"
	"github.com/sealpost/sealpost/internal/webhook"
)

// maxPrograms bounds the compiled filters that are kept.
const maxPrograms = 10_000

// Filters evaluates endpoints' payload filters, for store.Options.Filter. It keeps
// what it compiled, and what it read of the last event: an event is put to the
// filters of many endpoints in a row. The zero value is ready, and safe for
// concurrent use.
type Filters struct {
	mu       sync.Mutex
	programs map[string]compiled
	last     atomic.Pointer[prepared]
}

type compiled struct {
	program *expr.Program
	err     error
}

type prepared struct {
	mu    sync.Mutex
	event *webhook.Event
	in    *expr.Prepared
}

// CheckFilter reports why a filter cannot be an endpoint's: for whoever saves one.
func CheckFilter(filter string) error {
	if filter == "" {
		return nil
	}
	_, err := expr.Compile(filter, expr.Bool)
	return err // whose filter it is, the caller knows
}

// Match says whether the endpoint's filter lets the event through. An error means
// that it cannot say, and is fit for the endpoint's owner to read. For the same
// arguments it is the same, but for the bound on what all filters of one event may
// cost together.
func (f *Filters) Match(ep *webhook.Endpoint, ev *webhook.Event) (bool, error) {
	p, err := f.program(ep.Filter)
	if err != nil {
		return false, err
	}
	in := f.last.Load()
	if in == nil || in.event != ev {
		in = &prepared{event: ev, in: expr.Prepare(input(ev))}
		f.last.Store(in)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return p.Choose(context.Background(), in.in)
}

func (f *Filters) program(text string) (*expr.Program, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, known := f.programs[text]
	if !known {
		c.program, c.err = expr.Compile(text, expr.Bool)
		if f.programs == nil || len(f.programs) >= maxPrograms {
			f.programs = map[string]compiled{}
		}
		f.programs[text] = c
	}
	return c.program, c.err
}

// input is an event as expressions see it.
func input(ev *webhook.Event) expr.Input {
	in := expr.Input{ID: ev.PublisherID, Type: ev.Type, Source: ev.Source, Subject: ev.Subject, Time: ev.OccurredAt, Body: ev.Body,
		Headers: make(map[string]string, len(ev.Headers))}
	for _, h := range ev.Headers {
		name := strings.ToLower(h.Name)
		if v, twice := in.Headers[name]; twice {
			h.Value = v + ", " + h.Value
		}
		in.Headers[name] = h.Value
	}
	return in
}
