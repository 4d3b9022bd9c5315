package system_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// stopper stops the first one who comes to its step.
type stopper struct {
	mu   sync.Mutex
	step string
	done bool
}

func (s *stopper) at(_ context.Context, step string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if step != s.step || s.done {
		return nil
	}
	s.done = true
	return errors.New("stopped when " + step)
}

// Steps of the worker and the dispatcher, and for the latter how often a stop there
// has the endpoint called, and how many attempts are recorded, if the endpoint says
// yes at once or no first.
var (
	workerSteps     = []string{fanout.StepDecoded, fanout.StepCommitted, fanout.StepTaskCreated, fanout.StepScheduled}
	dispatcherSteps = []struct {
		step            string
		failures        int
		calls, recorded int
	}{
		{deliver.StepClaimed, 0, 1, 1},
		{deliver.StepSent, 0, 2, 1}, // the answer was seen by nobody who could note it
		{deliver.StepRecorded, 0, 1, 1},
		{deliver.StepScheduled, 0, 1, 1},
		{deliver.StepClaimed, 1, 2, 2},
		{deliver.StepSent, 1, 2, 1},
		{deliver.StepRecorded, 1, 2, 2},
		{deliver.StepScheduled, 1, 2, 2},
	}
)

// sent is an event under way.
type sent struct {
	key  webhook.EventKey
	body []byte
}

// both sends one event each way.
func (r *rig) both() []sent {
	r.t.Helper()
	in := signed(r.t, r.source("stripe"), "1")
	r.accepted(in)
	out := []byte("{" + awkward)
	r.publish(map[string]string{"ce-id": "1", "ce-type": "invoice.paid"}, out)
	return []sent{{in.key, in.body}, {app("1"), out}}
}

// arrived holds each event to have reached the endpoint, under one id, calls times,
// and what is stored to be whole.
func (r *rig) arrived(hook *customer, secret signing.Secret, events []sent, calls, recorded int) {
	r.t.Helper()
	for _, e := range events {
		_, attempts := r.inState(e.key, "ep", webhook.DeliveryDelivered)
		if len(attempts) != recorded {
			r.t.Errorf("%d attempts are recorded, want %d", len(attempts), recorded)
		}
	}
	r.drained()
	for _, e := range events {
		if got := hook.verified(r.t, e.key, secret, e.body); len(got) != calls {
			r.t.Errorf("the endpoint was called %d times for %s, want %d", len(got), e.key, calls)
		}
	}
	if n := len(hook.requests(webhook.EventKey{})); n != calls*len(events) {
		r.t.Errorf("the endpoint was called %d times in all, want %d: an event changed its id", n, calls*len(events))
	}
	if n := len(r.events()); n != len(events) {
		r.t.Errorf("%d events are stored, want %d", n, len(events))
	}
	r.consistent("ep")
}

// The worker stops between two steps: the message comes again, and nothing happens
// twice.
func TestWorkerStops(t *testing.T) {
	t.Parallel()
	for _, step := range workerSteps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			stop := &stopper{step: step}
			r := start(t, system.Options{WorkerStep: stop.at})
			hook := newCustomer(t, nil)
			secret := r.endpoint("ep", hook.url, nil)
			r.arrived(hook, secret, r.both(), 1, 1)
			if !stop.done {
				t.Error("it has not stopped")
			}
		})
	}
}

// The dispatcher stops between two steps: the task runs again, what was recorded is
// not sent again, and the next attempt is made.
func TestDispatcherStops(t *testing.T) {
	t.Parallel()
	for _, c := range dispatcherSteps {
		t.Run(fmt.Sprintf("%s after %d failures", c.step, c.failures), func(t *testing.T) {
			t.Parallel()
			stop := &stopper{step: c.step}
			r := start(t, system.Options{DispatcherStep: stop.at})
			hook := newCustomer(t, failing(c.failures))
			secret := r.endpoint("ep", hook.url, nil)
			in := signed(t, r.source("github"), "1")
			r.accepted(in)
			r.arrived(hook, secret, []sent{{in.key, in.body}}, c.calls, c.recorded)
			if !stop.done {
				t.Error("it has not stopped")
			}
		})
	}
}

// SIGKILL ends the worker's process between two steps, and another takes its place.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	for _, step := range workerSteps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s := newSocket(t)
			r := start(t, system.Options{Elsewhere: map[string]string{system.Worker: s.url}})
			r.workerKilled("push", step, s)
		})
	}
}

func (r *rig) workerKilled(mode, step string, s *socket) {
	r.t.Helper()
	hook := newCustomer(r.t, nil)
	secret := r.endpoint("ep", hook.url, nil)
	marker := filepath.Join(r.t.TempDir(), "killed")
	first := r.play(system.Worker, mode, step, marker, s)
	events := r.both()
	first.killed()
	if _, err := os.Stat(marker); err != nil {
		r.t.Fatalf("it was not at the step that it ended: %v", err)
	}
	second := r.play(system.Worker, mode, "", marker, s)
	r.arrived(hook, secret, events, 1, 1)
	second.stop(syscall.SIGTERM, 10*time.Second)
}

// SIGKILL ends the dispatcher's process between two steps, and another takes its
// place.
func TestDispatcherKilled(t *testing.T) {
	t.Parallel()
	for _, c := range dispatcherSteps {
		t.Run(fmt.Sprintf("%s after %d failures", c.step, c.failures), func(t *testing.T) {
			t.Parallel()
			s := newSocket(t)
			r := start(t, system.Options{Elsewhere: map[string]string{system.Dispatcher: s.url}})
			hook := newCustomer(t, failing(c.failures))
			// The second attempt waits until the first process is certainly gone.
			secret := r.endpoint("ep", hook.url, func(ep *webhook.Endpoint) { ep.Retry.Delays = []time.Duration{0, time.Second, time.Hour} })
			marker := filepath.Join(t.TempDir(), "killed")
			first := r.play(system.Dispatcher, "", c.step, marker, s)
			in := signed(t, r.source("github"), "1")
			r.accepted(in)
			first.killed()
			if _, err := os.Stat(marker); err != nil {
				t.Fatalf("it was not at the step that it ended: %v", err)
			}
			second := r.play(system.Dispatcher, "", "", marker, s)
			r.arrived(hook, secret, []sent{{in.key, in.body}}, c.calls, c.recorded)
			second.stop(syscall.SIGTERM, 10*time.Second)
		})
	}
}

// Both ends fall over again and again while events come: none is lost, none is left
// behind.
func TestKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	w, d := newSocket(t), newSocket(t)
	r := start(t, system.Options{Elsewhere: map[string]string{system.Worker: w.url, system.Dispatcher: d.url}})
	hook := newCustomer(t, failing(1))
	secret := r.endpoint("ep", hook.url, nil)
	var events []sent
	src := r.source("shopify")
	for round, steps := range [][2]string{
		{fanout.StepCommitted, deliver.StepSent}, {fanout.StepTaskCreated, deliver.StepRecorded},
		{fanout.StepScheduled, deliver.StepClaimed}, {fanout.StepDecoded, deliver.StepScheduled},
	} {
		dir := t.TempDir()
		worker := r.play(system.Worker, "push", steps[0], filepath.Join(dir, "worker"), w)
		dispatcher := r.play(system.Dispatcher, "", steps[1], filepath.Join(dir, "dispatcher"), d)
		for i := range 10 {
			c := signed(t, src, fmt.Sprintf("%d-%d", round, i))
			r.accepted(c)
			events = append(events, sent{c.key, c.body})
		}
		worker.killed()
		// What it has left behind comes through the next worker; only then is there
		// certainly something that kills the dispatcher.
		worker = r.play(system.Worker, "push", "", "", w)
		dispatcher.killed()
		worker.stop(syscall.SIGTERM, 15*time.Second)
	}
	r.play(system.Worker, "push", "", "", w)
	r.play(system.Dispatcher, "", "", "", d)
	for _, e := range events {
		r.inState(e.key, "ep", webhook.DeliveryDelivered)
	}
	r.drained()
	for _, e := range events {
		hook.verified(t, e.key, secret, e.body)
	}
	if n := len(r.events()); n != len(events) {
		t.Errorf("%d events are stored, want %d", n, len(events))
	}
	r.consistent("ep")
}
