package fanout_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// die makes the delivery's attempt the last one.
func (b *bench) die(k webhook.EventKey, endpoint string) {
	b.t.Helper()
	d, _, err := b.store.Delivery(context.Background(), "default", k, endpoint)
	if err != nil {
		b.t.Fatal(err)
	}
	got, err := b.store.Record(context.Background(), []store.AttemptRecord{{
		Attempt:  webhook.Attempt{Key: d.Key(), Trigger: d.Trigger, StartedAt: time.Now(), Outcome: webhook.Outcome{Class: webhook.ClassStatus, Status: 500}},
		Decision: webhook.Decision{State: webhook.DeliveryDead},
	}})
	if err != nil || !got[0].Applied {
		b.t.Fatalf("%+v, %v", got, err)
	}
}

// github is a message of the receiver's about one event, received now.
func github(receipt string, kv ...string) bus.Message {
	return message("message of "+receipt, "push", exact, append([]string{"ce-source", "github", "ce-id", "1", "sealpost-receipt", receipt,
		"sealpost-received", time.Now().UTC().Format(time.RFC3339Nano)}, kv...)...)
}

// A provider's repeat of an event whose delivery is dead is delivered, be the worker
// stopped at whichever step: Pub/Sub brings the repeat again, and there is one
// generation and one task more, not two.
func TestProviderRedelivery(t *testing.T) {
	t.Parallel()
	for _, stopAt := range []string{"", fanout.StepDecoded, fanout.StepCommitted, fanout.StepTaskCreated, fanout.StepScheduled} {
		t.Run("stopped at "+stopAt, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, store.Options{})
			b.endpoint("default", "all", "*")
			k := key("github", "default", "1")
			if err := b.ingester(fanout.Options{}).Handle(t.Context(), github("r1"), fanout.Inbound); err != nil {
				t.Fatal(err)
			}
			b.die(k, "all")
			b.tasks()
			again := github("r2")
			if stopAt != "" {
				in := b.ingester(fanout.Options{Step: func(_ context.Context, step string) error {
					if step == stopAt {
						return errStop
					}
					return nil
				}})
				if err := in.Handle(t.Context(), again, fanout.Inbound); err == nil {
					t.Fatal("not stopped")
				}
			}
			var logged bytes.Buffer
			in := b.ingester(fanout.Options{Log: slog.New(slog.NewJSONHandler(&logged, nil))})
			for range 2 { // Pub/Sub delivers at least once
				if err := in.Handle(t.Context(), again, fanout.Inbound); err != nil {
					t.Fatal(err)
				}
			}
			ran := b.tasks()
			if len(ran) != 2 || ran[1].Generation != 2 || ran[1].Attempt != 1 {
				t.Errorf("tasks that ran: %v", ran)
			}
			if row := b.event("default", k); row.Duplicates != 1 || !row.ExpireAt.IsZero() {
				t.Errorf("%+v", row)
			}
			if early := stopAt == "" || stopAt == fanout.StepDecoded; strings.Contains(logged.String(), `"reopened":1`) != early {
				t.Errorf("log: %s", &logged)
			}
		})
	}
}

// The message says whose id is unsigned and whose replays are refused.
func TestSuspectedReplay(t *testing.T) {
	t.Parallel()
	b := newBench(t, store.Options{})
	b.endpoint("default", "all", "*")
	var logged bytes.Buffer
	in := b.ingester(fanout.Options{Log: slog.New(slog.NewJSONHandler(&logged, nil))})
	for _, c := range []struct {
		id    string
		kv    []string
		state webhook.EventState
		flags int
		tasks int
	}{
		{"1", []string{"sealpost-unsigned-id", "1"}, webhook.EventAccepted, 0, 1},
		{"2", []string{"sealpost-unsigned-id", "1"}, webhook.EventAccepted, 1, 1},
		{"3", []string{"sealpost-unsigned-id", "1", "sealpost-on-replay", "refuse"}, webhook.EventRejected, 1, 0},
		{"4", []string{"sealpost-on-replay", "refuse"}, webhook.EventAccepted, 0, 1},
	} {
		before := len(b.tasks())
		m := github("r"+c.id, c.kv...)
		m.Attributes["ce-id"] = c.id
		if err := in.Handle(t.Context(), m, fanout.Inbound); err != nil {
			t.Fatal(err)
		}
		row := b.event("default", key("github", "default", c.id))
		if row.State != c.state || len(row.Flags) != c.flags || len(b.tasks())-before != c.tasks || (row.Rejection != "") != (c.state == webhook.EventRejected) {
			t.Errorf("%s: %s %v %q, %d tasks", c.id, row.State, row.Flags, row.Rejection, len(b.tasks())-before)
		}
	}
	if n := strings.Count(logged.String(), `"suspected_replay":true`); n != 2 {
		t.Errorf("%d log lines tell of a replay: %s", n, &logged)
	}
}
