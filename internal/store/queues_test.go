package store

import (
	"errors"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

func TestMarkQueueReady(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	other := f.open(Options{})
	ready := func(id string) bool {
		r, err := other.Ingest(f.ctx, []webhook.Event{event("default", "s", id, "x")})
		if err != nil {
			t.Fatal(err)
		}
		return r[0].Tasks[0].InOwnQueue()
	}
	if ready("1") {
		t.Error("ready from the start")
	}
	for _, queue := range []string{"q-old", "q-a", "q-a"} { // the first is an announcement of a queue that was given up
		if err := f.MarkQueueReady(f.ctx, "default", "a", queue); err != nil {
			t.Fatal(err)
		}
		if ep, err := f.Endpoint(f.ctx, "default", "a"); err != nil || ep.QueueReadyAt.IsZero() == (queue == "q-a") {
			t.Fatalf("after %s: %+v, %v", queue, ep, err)
		}
	}
	if ready("2") {
		t.Error("planned while others may not know it yet")
	}
	f.clock.move(queueSettle)
	if !ready("3") {
		t.Error("a process with an older list does not see it")
	}
	if err := f.MarkQueueReady(f.ctx, "default", "none", "q"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
}

// Everybody puts an attempt into the same queue, whatever they knew of the endpoint
// when they began, around the moment at which its queue comes into use, and around
// the one at which it is left.
func TestQueueOfAnAttemptIsPlannedOnce(t *testing.T) {
	t.Parallel()
	for _, change := range []struct {
		name  string
		known time.Duration // how long the planner has known the endpoint at the change
		do    func(f *fixture) error
		own   bool // afterwards
	}{
		{"its queue serves", 0, func(f *fixture) error { return f.MarkQueueReady(f.ctx, "default", "a", "q-a") }, true},
		{"its queue is left", time.Hour, func(f *fixture) error { return f.LeaveQueue(f.ctx, "default", "a") }, false},
	} {
		for _, after := range []time.Duration{0, cardAge - 1, queueSettle - 1, queueSettle, time.Minute} {
			f := newFixture(t, Options{})
			f.endpoint("default", "a")
			if !change.own {
				if err := f.MarkQueueReady(f.ctx, "default", "a", "q-a"); err != nil {
					t.Fatal(err)
				}
			}
			f.clock.move(change.known)
			key := f.ingest(event("default", "s", "1", "x"))[0].Tasks[0].Key
			recorder, later := f.open(Options{}), f.open(Options{})
			claim := func(s *Store) *Claim {
				c, err := s.Claim(f.ctx, key)
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			begun := claim(recorder)
			if err := change.do(f); err != nil {
				t.Fatal(err)
			}
			f.clock.move(after)
			rec := f.attempt(begun.Delivery, failing)
			rec.Queue = begun.Endpoint.QueueRef()
			out, err := recorder.Record(f.ctx, []AttemptRecord{rec})
			if err != nil {
				t.Fatal(err)
			}
			f.clock.move(time.Hour)
			own := out[0].Next.InOwnQueue()
			if again := claim(later).Current; again.Key != out[0].Next.Key || again.InOwnQueue() != own || own != (change.own == (after >= queueSettle)) {
				t.Errorf("planned %s after %s: own queue at first %v, when made anew %v", after, change.name, own, again.InOwnQueue())
			}
		}
	}
}

// An endpoint's queue can be left, dropped, and another one given; names that are not
// the endpoint's change nothing.
func TestQueueOfAnEndpoint(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "a")
	f.endpoint("default", "gone")
	if _, err := f.DeleteEndpoint(f.ctx, "default", "gone", "tester"); err != nil {
		t.Fatal(err)
	}
	look := func() webhook.Endpoint {
		t.Helper()
		ep, err := f.Endpoint(f.ctx, "default", "a")
		if err != nil {
			t.Fatal(err)
		}
		return ep
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ready := func(queue string) { t.Helper(); do(f.MarkQueueReady(f.ctx, "default", "a", queue)) }

	do(f.DropQueue(f.ctx, "default", "a", "q-other"))
	if ep := look(); ep.Queue != "q-a" {
		t.Errorf("another queue was dropped: %+v", ep)
	}
	do(f.LeaveQueue(f.ctx, "default", "a")) // it never served
	if ep := look(); ep.Queue != "" {
		t.Errorf("left before it served: %+v", ep)
	}
	if ep, err := f.AssignQueue(f.ctx, "default", "a", "q-2"); err != nil || ep.Queue != "q-2" || !ep.QueueReadyAt.IsZero() {
		t.Fatalf("%+v, %v", ep, err)
	}
	if ep, err := f.AssignQueue(f.ctx, "default", "a", "q-3"); err != nil || ep.Queue != "q-2" {
		t.Errorf("a second queue: %+v, %v", ep, err)
	}
	ready("q-a")
	if ep := look(); !ep.QueueReadyAt.IsZero() {
		t.Errorf("a queue of before is ready: %+v", ep)
	}
	ready("q-2")
	do(f.LeaveQueue(f.ctx, "default", "a"))
	left := look()
	if left.Queue != "q-2" || left.QueueLeftAt.IsZero() {
		t.Errorf("left: %+v", left)
	}
	f.clock.move(time.Hour)
	do(f.LeaveQueue(f.ctx, "default", "a"))
	if ep := look(); !ep.QueueLeftAt.Equal(left.QueueLeftAt) {
		t.Errorf("left twice: %+v", ep)
	}
	do(f.LostQueue(f.ctx, left.QueueRef()))
	if ep := look(); ep.Queue != "" || !ep.QueueReadyAt.IsZero() || !ep.QueueLeftAt.IsZero() {
		t.Errorf("dropped: %+v", ep)
	}
	if ep, err := f.AssignQueue(f.ctx, "default", "gone", "q-4"); err != nil || ep.Queue != "q-gone" {
		t.Errorf("a deleted endpoint: %+v, %v", ep, err)
	}
	if _, err := f.AssignQueue(f.ctx, "default", "none", "q-5"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
}
