package fanout_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/webhook"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	ev := &webhook.Event{Type: "invoice.paid", Source: "app", PublisherID: "i-1", Subject: "acme",
		Body:    []byte(`{"amount": 1999, "currency": "eur", "lines": [{"sku": "a"}, {"sku": "b"}]}`),
		Headers: []webhook.Header{{Name: "X-Region", Value: "eu"}, {Name: "x-region", Value: "us"}}}
	text := &webhook.Event{Type: "note.added", Body: []byte("not JSON")}
	for _, c := range []struct {
		filter string
		event  *webhook.Event
		want   bool
		fault  string
	}{
		{`body.amount > 1000`, ev, true, ""},
		{`body.amount > 1999`, ev, false, ""},
		{`body.amount > 1998.5 && body.currency == "eur"`, ev, true, ""},
		{`type.startsWith("invoice.") && subject == "acme" && id == "i-1" && source == "app"`, ev, true, ""},
		{`headers["x-region"] == "eu, us"`, ev, true, ""},
		{`body.lines.exists(l, l.sku == "b")`, ev, true, ""},
		{`has(body.missing) && body.missing > 1`, ev, false, ""},
		{`body.missing > 1`, ev, false, "missing"},
		{`body.amount`, ev, false, "a bool is wanted"},
		{`body == null`, text, true, ""},
		{`body.amount >`, ev, false, "line 1"},
	} {
		t.Run(c.filter, func(t *testing.T) {
			t.Parallel()
			var f fanout.Filters
			for range 2 { // compiled, then remembered
				got, err := f.Match(&webhook.Endpoint{EndpointSettings: webhook.EndpointSettings{Filter: c.filter}}, c.event)
				if got != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
					t.Errorf("%v, %v; want %v, %q", got, err, c.want, c.fault)
				}
			}
		})
	}
}

func TestCheckFilter(t *testing.T) {
	t.Parallel()
	for filter, ok := range map[string]bool{"": true, `body.a == 1`: true, `body.a ==`: false, `"text"`: false, `nothing == 1`: false} {
		if err := fanout.CheckFilter(filter); (err == nil) != ok {
			t.Errorf("%q: %v", filter, err)
		}
	}
}

// However many endpoints have however costly filters, one event's work is bounded.
func TestFiltersOfOneEventAreBoundedTogether(t *testing.T) {
	t.Parallel()
	ev := &webhook.Event{Body: []byte("[" + strings.Repeat("1,", 20_000) + "1]")}
	var f fanout.Filters
	refused := 0
	for i := range 2_000 {
		filter := fmt.Sprintf("body.exists(x, x == %d)", i+2)
		if _, err := f.Match(&webhook.Endpoint{EndpointSettings: webhook.EndpointSettings{Filter: filter}}, ev); err != nil {
			refused++
		}
	}
	if refused < 1_000 {
		t.Errorf("%d of 2000 costly filters were refused", refused)
	}
	if ok, err := f.Match(&webhook.Endpoint{EndpointSettings: webhook.EndpointSettings{Filter: "true"}}, &webhook.Event{}); err != nil || !ok {
		t.Errorf("the next event: %v, %v", ok, err)
	}
}

func TestFiltersConcurrently(t *testing.T) {
	t.Parallel()
	var f fanout.Filters
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ev := &webhook.Event{Body: fmt.Appendf(nil, `{"n": %d}`, i)}
			for j := range 100 {
				ok, err := f.Match(&webhook.Endpoint{EndpointSettings: webhook.EndpointSettings{Filter: fmt.Sprintf("body.n == %d", j%8)}}, ev)
				if err != nil || ok != (i == j%8) {
					t.Errorf("event %d, filter %d: %v, %v", i, j%8, ok, err)
				}
			}
		})
	}
	wg.Wait()
}
