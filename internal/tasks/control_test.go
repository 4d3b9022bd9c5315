package tasks_test

import (
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/localcloud/cloudtasks"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// A control runs once however often it is asked for, at its time, in its own queue.
func TestControlIsMadeOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{})
	c := webhook.Control{Kind: webhook.ControlProbe, Tenant: "t", Endpoint: "e", Epoch: 2, At: b.clock.Now().Add(time.Hour)}
	for range 3 {
		if err := b.q.Control(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.Advance(time.Hour - time.Second)
	if got := b.take(); len(got) != 0 {
		t.Errorf("before its time: %+v", got)
	}
	b.clock.Advance(2 * time.Second)
	got := b.take()
	if len(got) != 1 || got[0].path != tasks.ControlPath || got[0].queue != "pool-0" { // no queue of controls is configured
		t.Fatalf("%+v", got)
	}
	if back, err := webhook.ParseControl([]byte(got[0].body)); err != nil || back.Kind != c.Kind || back.Epoch != 2 || back.Tenant != "t" || back.Endpoint != "e" {
		t.Errorf("%s: %+v, %v", got[0].body, back, err)
	}
	if err := b.q.Control(t.Context(), c); err != nil { // done, and still known by name
		t.Error(err)
	}
	c.Epoch++
	if err := b.q.Control(t.Context(), c); err != nil {
		t.Error(err)
	}
	b.clock.Advance(2 * time.Hour)
	if got := b.take(); len(got) != 1 {
		t.Errorf("another epoch: %+v", got)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	b := newBench(t, cloudtasks.Options{})
	ep := &webhook.Endpoint{Tenant: "t", ID: "e", Queue: "ep-e", RatePerSecond: 500, MaxConcurrency: 100}
	if err := b.q.CreateQueue(t.Context(), ep); err != nil {
		t.Fatal(err)
	}
	b.clock.Advance(10 * time.Minute)
	b.take()
	task := func(n int64, direct bool) {
		t.Helper()
		if err := b.q.Schedule(t.Context(), webhook.Task{Direct: direct, Planned: b.clock.Now(), Queue: webhook.QueueRef{Tenant: "t", Endpoint: "e", Own: "ep-e", ReadyAt: start},
			Key: webhook.AttemptKey{Event: webhook.KeyOf("s", "t", "1"), Tenant: "t", Endpoint: "e", Generation: 1, Attempt: n, Task: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := b.q.Pause(t.Context(), "ep-e"); err != nil {
			t.Fatal(err)
		}
	}
	task(1, false)
	task(2, true)
	b.clock.Advance(time.Hour)
	if got := b.take(); len(got) != 1 || got[0].queue == "ep-e" {
		t.Errorf("while paused: %+v; want the direct one, through a pool", got)
	}
	for range 2 {
		if err := b.q.Resume(t.Context(), "ep-e"); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.Advance(time.Minute)
	if got := b.take(); len(got) != 1 || got[0].queue != "ep-e" {
		t.Errorf("resumed: %+v", got)
	}
	for _, name := range []string{"pool-0", "pool-1"} {
		if err := b.q.Pause(t.Context(), name); err == nil {
			t.Errorf("%s is paused, which serves others", name)
		}
	}
	if err := b.q.Pause(t.Context(), "ep-none"); err != nil {
		t.Errorf("a queue that is not there: %v", err)
	}
	if err := b.q.Resume(t.Context(), "ep-none"); err != nil {
		t.Errorf("a queue that is not there: %v", err)
	}
}
