package system_test

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/system"
)

// Every service as its own process, as in production: an event each way arrives, and
// each service ends when it is told to.
func TestServicesAsProcesses(t *testing.T) {
	t.Parallel()
	w, d := newFront(t), newFront(t)
	r := start(t, system.Options{Elsewhere: map[string]string{system.Worker: w.url, system.Dispatcher: d.url}})
	hook := newCustomer(t, failing(1))
	secret := r.endpoint("ep", hook.url, nil)
	src := r.source("shopify")
	receiver := r.serve(system.Receiver, r.receiverEnv(src))
	worker := r.serve(system.Worker, workerEnv)
	dispatcher := r.serve(system.Dispatcher, dispatcherEnv(d.url))
	w.lead(t, worker.url)
	d.lead(t, dispatcher.url)

	in := signed(t, src, "1")
	in.url = receiver.url + "/in/" + src.Name
	r.accepted(in)
	out := []byte("{" + awkward)
	r.publish(map[string]string{"ce-id": "1", "ce-type": "invoice.paid"}, out)
	r.arrived(hook, secret, []sent{{in.key, in.body}, {app("1"), out}}, 2, 2)

	// Nobody but Cloud Tasks is let in.
	if code, _, err := post(t.Context(), dispatcher.url+"/attempt", http.Header{}, []byte("{}")); err != nil || code != http.StatusUnauthorized {
		t.Errorf("a stranger's task is answered %d, %v", code, err)
	}
	for _, p := range []*process{receiver, worker, dispatcher} {
		p.stop(terminate, 10*time.Second)
	}
}

// A service that is told nothing says at once all that it misses.
func TestServicesWithoutSettings(t *testing.T) {
	t.Parallel()
	for service, missing := range map[string][]string{
		system.Receiver:   {"GOOGLE_CLOUD_PROJECT", "SOURCES"},
		system.Worker:     {"GOOGLE_CLOUD_PROJECT", "SPANNER_DATABASE", "DISPATCHER_URL", "INVOKER", "POOL_QUEUES", "AUTH", "AUDIENCE", "PUSH_INVOKER"},
		system.Dispatcher: {"GOOGLE_CLOUD_PROJECT", "SPANNER_DATABASE", "DISPATCHER_URL", "INVOKER", "POOL_QUEUES", "KEYSET_SECRET", "KEYSET_VERSIONS", "AUTH", "AUDIENCE"},
	} {
		cmd := exec.Command(binary(t, service))
		cmd.Env = []string{}
		p := run(t, cmd)
		p.ended(patience)
		if code := cmd.ProcessState.ExitCode(); code != 1 {
			t.Errorf("%s exits with %d", service, code)
		}
		for _, name := range missing {
			if !strings.Contains(p.errs.String(), name) {
				t.Errorf("%s does not say that %s is missing:\n%s", service, name, p.errs.String())
			}
		}
		if p.out.String() != "" {
			t.Errorf("%s writes to standard output: %s", service, p.out.String())
		}
	}
}
