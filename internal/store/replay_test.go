package store

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	"github.com/sealpost/sealpost/internal/webhook"
)

// unsigned is an event whose id its provider did not sign.
func unsigned(tenant, source, id, body string, received time.Time) webhook.Event {
	e := event(tenant, source, id, "push")
	e.Body, e.ReceivedAt, e.UnsignedID = []byte(body), received, true
	e.Seal()
	return e
}

func flagged(r Ingested) bool {
	return reflect.DeepEqual(r.Flags, []string{webhook.FlagSuspectedReplay})
}

func TestSuspectedReplays(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.endpoint("other", "a")
	signed := event("default", "github", "signed", "push")
	signed.Body = []byte("body")
	signed.Seal()
	schema := unsigned("default", "github", "schema", "body", t0)
	schema.Rejection, schema.RefuseReplay = "no amount", true
	refuse := func(e webhook.Event) webhook.Event {
		e.RefuseReplay = true
		return e
	}
	for _, c := range []struct {
		name  string
		e     webhook.Event
		flag  bool
		state webhook.EventState
		why   string // part of the rejection
	}{
		{"the first", unsigned("default", "github", "1", "body", t0), false, webhook.EventAccepted, ""},
		{"itself again", unsigned("default", "github", "1", "body", t0), false, webhook.EventAccepted, ""},
		{"under another id", unsigned("default", "github", "2", "body", t0), true, webhook.EventAccepted, ""},
		{"under a third", unsigned("default", "github", "3", "body", t0), true, webhook.EventAccepted, ""},
		{"that one again", unsigned("default", "github", "3", "body", t0), true, webhook.EventAccepted, ""},
		{"refused", refuse(unsigned("default", "github", "4", "body", t0)), true, webhook.EventRejected, "suspected replay: the body came before, as evt_"},
		{"refused, though the one before was", refuse(unsigned("default", "github", "5", "body", t0)), true, webhook.EventRejected, "suspected replay"},
		{"breaks its schema as well", schema, true, webhook.EventRejected, "no amount"},
		{"another body where replays are refused", refuse(unsigned("default", "github", "6", "body ", t0)), false, webhook.EventAccepted, ""},
		{"another source", refuse(unsigned("default", "shop", "1", "body", t0)), false, webhook.EventAccepted, ""},
		{"another tenant", refuse(unsigned("other", "github", "1", "body", t0)), false, webhook.EventAccepted, ""},
		{"an id that is signed", signed, false, webhook.EventAccepted, ""},
		{"an empty body", unsigned("default", "github", "7", "", t0), false, webhook.EventAccepted, ""},
		{"an empty body again", unsigned("default", "github", "8", "", t0), true, webhook.EventAccepted, ""},
	} {
		got := f.ingest(c.e)[0]
		row, err := f.Event(f.ctx, c.e.Tenant, c.e.Key)
		if err != nil {
			t.Fatal(err)
		}
		if flagged(got) != c.flag || got.State != c.state || !reflect.DeepEqual(row.Flags, got.Flags) || row.State != c.state || !strings.Contains(row.Rejection, c.why) || (row.Rejection == "") != (c.why == "") {
			t.Errorf("%s: %+v, stored %s %q %v", c.name, got, row.State, row.Rejection, row.Flags)
		}
		if (len(got.Tasks) == 0) != (c.state == webhook.EventRejected) {
			t.Errorf("%s: %d tasks", c.name, len(got.Tasks))
		}
	}
	list, _, err := f.ListEvents(f.ctx, EventFilter{Tenant: "default", Source: "github"}, Page{})
	n := 0
	for _, row := range list {
		n += len(row.Flags)
	}
	if err != nil || n != 6 {
		t.Errorf("the list shows %d flags, %v", n, err)
	}
}

// entries counts the index's entries.
func (f *fixture) entries() int {
	f.t.Helper()
	n := 0
	err := f.client.Single().ReadUsingIndex(f.ctx, "Events", "EventsByReplayKey", spanner.AllKeys(), []string{"EventKey"}).Do(func(*spanner.Row) error {
		n++
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// In one group the later is the replay; only such events are in the index, once per body.
func TestSuspectedReplaysInOneGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.ingest(events(5)...)
	if n := f.entries(); n != 0 {
		t.Errorf("%d entries for events whose ids are signed", n)
	}
	got := f.ingest(unsigned("default", "s", "1", "x", t0), unsigned("default", "s", "2", "x", t0), unsigned("default", "s", "3", "y", t0),
		unsigned("default", "s", "1", "x", t0), unsigned("default", "s", "4", "x", t0))
	for i, want := range []bool{false, true, false, false, true} {
		if flagged(got[i]) != want {
			t.Errorf("%d: %+v", i, got[i])
		}
	}
	if n := f.entries(); n != 2 {
		t.Errorf("%d entries for two bodies", n)
	}
	for i := range 3 {
		if r := f.ingest(unsigned("default", "s", fmt.Sprint("later", i), "x", t0.Add(time.Duration(i))))[0]; !flagged(r) {
			t.Errorf("%+v", r)
		}
	}
	if n := f.entries(); n != 2 {
		t.Errorf("%d entries for two bodies", n)
	}
}

// A body is remembered for the retention of the last event that had it, in
// whatever order they came.
func TestBodiesAreRememberedForTheRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	keep := DefaultRowRetention
	for _, step := range []struct {
		at       time.Duration // since t0
		received time.Duration
		want     bool
	}{
		{0, 0, false},
		{keep - time.Nanosecond, keep - time.Nanosecond, true},
		{keep, keep, true},                         // the first is over, the second is not
		{keep + time.Hour, keep - time.Hour, true}, // came late: the newest stays the one before
		{2*keep - time.Nanosecond, 2 * keep, true},
		{3 * keep, 3 * keep, false},
		{3*keep + 1, 3*keep + 1, true},
	} {
		f.clock.set(t0.Add(step.at))
		r := f.ingest(unsigned("default", "s", fmt.Sprint(step.at), "x", t0.Add(step.received)))[0]
		if flagged(r) != step.want {
			t.Errorf("at %s: %+v", step.at, r)
		}
		if n := f.entries(); n != 1 {
			t.Errorf("at %s: %d entries", step.at, n)
		}
	}
}

// Of equal bodies that come at once, through several processes, one is the first.
func TestConcurrentReplays(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	var firsts, refused atomic.Int64
	var wg sync.WaitGroup
	for p, s := range []*Store{f.Store, f.open(Options{})} {
		b := NewBatcher(BatcherOptions[webhook.Event]{MaxItems: 5, Concurrency: 2}, s.Ingest)
		t.Cleanup(b.Close)
		for i := range 20 {
			e := unsigned("default", "s", fmt.Sprint(p, "-", i), "x", t0)
			e.RefuseReplay = true
			wg.Go(func() {
				switch r, err := b.Do(f.ctx, e); {
				case err != nil:
					t.Error(err)
				case r.State == webhook.EventAccepted && r.Flags == nil:
					firsts.Add(1)
				case r.State == webhook.EventRejected && flagged(r):
					refused.Add(1)
				default:
					t.Errorf("%+v", r)
				}
			})
		}
	}
	wg.Wait()
	if firsts.Load() != 1 || refused.Load() != 39 || f.entries() != 1 || f.count("Deliveries") != 1 {
		t.Errorf("%d accepted, %d refused, %d entries", firsts.Load(), refused.Load(), f.entries())
	}
}
