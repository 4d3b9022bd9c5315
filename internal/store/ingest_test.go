package store

import (
	"testing"

	"github.com/sealpost/sealpost/internal/webhook"
)

func TestIngestMatchesAndPlans(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	f.endpoint("default", "all")
	f.endpoint("default", "invoices", "invoice.*")
	f.endpoint("default", "orders", "order.*")
	f.endpoint("other", "all")
	rejected := event("default", "s", "3", "invoice.paid")
	rejected.Rejection = "no amount"
	got := f.ingest(event("default", "s", "1", "invoice.paid"), event("other", "s", "1", "x"), event("nobody", "s", "1", "x"), rejected)
	for i, want := range []struct {
		state webhook.EventState
		tasks []string
	}{
		{webhook.EventAccepted, []string{"all", "invoices"}},
		{webhook.EventAccepted, []string{"all"}},
		{webhook.EventUnmatched, nil},
		{webhook.EventRejected, nil},
	} {
		r := got[i]
		if r.State != want.state || r.Duplicate || r.More || len(r.Tasks) != len(want.tasks) {
			t.Errorf("event %d: %+v, want %+v", i, r, want)
			continue
		}
		for j, task := range r.Tasks {
			if task.Key.Endpoint != want.tasks[j] || !task.At.Equal(t0) || task.Queue.Own != "q-"+want.tasks[j] ||
				task.Key.Generation != 1 || task.Key.Attempt != 1 || task.Key.Task != 1 {
				t.Errorf("event %d: task %+v", i, task)
			}
		}
	}
	again := f.ingest(event("default", "s", "1", "invoice.paid"))[0]
	if !again.Duplicate || !again.Redelivery || len(again.Tasks) != 2 || again.Tasks[0] != got[0].Tasks[0] {
		t.Errorf("again: %+v", again)
	}
}
