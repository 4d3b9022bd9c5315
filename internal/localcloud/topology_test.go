package localcloud

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

func ExampleLoadTopology() {
	t, err := LoadTopology()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(t.SubscriptionsOf("sealpost-inbound"), t.Subscriptions["sealpost-inbound-worker"].Push.Path)
	fmt.Println(t.ControlQueue(), len(t.PoolQueues()), "pool queues, first", t.PoolQueues()[0])
	// Output:
	// [sealpost-inbound-worker] /push/inbound
	// sealpost-control 16 pool queues, first sealpost-pool-00
}

// What the real cloud asks of the topology; each line was learnt the hard way.
func TestTopologyIsFitForProduction(t *testing.T) {
	t.Parallel()
	top, err := LoadTopology()
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range top.Subscriptions {
		if s.DeadLetter == nil {
			if s.RetentionSeconds != secondsOf31Days {
				t.Errorf("%s: dead letters are kept for %d s, want 31 days", name, s.RetentionSeconds)
			}
			continue
		}
		if s.DeadLetter.MaxDeliveryAttempts != 100 || s.Retry != (Retry{10, 600}) {
			t.Errorf("%s: an outage of hours must not dead-letter the backlog: %+v, %+v", name, *s.DeadLetter, s.Retry)
		}
		if s.Push == nil || s.Push.Service != "worker" || s.AckDeadlineSeconds != 600 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	for name, q := range top.Queues {
		if q.MaxAttempts != -1 || q.MinBackoffSeconds != 5 || q.MaxBackoffSeconds != 300 {
			t.Errorf("%s: %+v", name, q)
		}
	}
}

func TestTopologyFaults(t *testing.T) {
	t.Parallel()
	edit := func(f func(t *Topology)) func() []byte {
		return func() []byte {
			top, err := LoadTopology()
			if err != nil {
				t.Fatal(err)
			}
			f(&top)
			data, err := json.Marshal(top)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
	subscription := func(f func(*Subscription)) func() []byte {
		return edit(func(t *Topology) {
			s := t.Subscriptions["sealpost-inbound-worker"]
			f(&s)
			t.Subscriptions["sealpost-inbound-worker"] = s
		})
	}
	queue := func(f func(*Queue)) func() []byte {
		return edit(func(t *Topology) {
			q := t.Queues["sealpost-pool-00"]
			f(&q)
			t.Queues["sealpost-pool-00"] = q
		})
	}
	for _, c := range []struct {
		data func() []byte
		want string // "" where it is right
	}{
		{edit(func(*Topology) {}), ""},
		{func() []byte { return []byte(`{"topics": {}, "subscription": {}}`) }, "unknown field"},
		{func() []byte { return append(slices.Clone(topologyJSON), '{') }, "more than one"},
		{edit(func(t *Topology) { delete(t.Queues, "sealpost-control") }), "0 with role control"},
		{edit(func(t *Topology) { delete(t.Topics, "sealpost-inbound") }), `topic "sealpost-inbound" is not in topics`},
		{edit(func(t *Topology) { delete(t.Subscriptions, "sealpost-inbound-dead-letter") }), "dead letters would be lost"},
		{subscription(func(s *Subscription) { s.AckDeadlineSeconds = 9 }), "ack_deadline_seconds 9"},
		{subscription(func(s *Subscription) { s.AckDeadlineSeconds = 10 }), ""},
		{subscription(func(s *Subscription) { s.AckDeadlineSeconds = 601 }), "ack_deadline_seconds 601"},
		{subscription(func(s *Subscription) { s.RetentionSeconds = secondsOf31Days + 1 }), "retention_seconds"},
		{subscription(func(s *Subscription) { s.Retry.MaximumBackoffSeconds = 601 }), "retry"},
		{subscription(func(s *Subscription) { s.DeadLetter = nil }), "no dead_letter"},
		{subscription(func(s *Subscription) { s.DeadLetter.MaxDeliveryAttempts = 101 }), "max_delivery_attempts 101"},
		{subscription(func(s *Subscription) { s.DeadLetter.MaxDeliveryAttempts = 5 }), ""},
		{subscription(func(s *Subscription) { s.Push.Path = "push" }), "push needs"},
		{edit(func(t *Topology) {
			s := t.Subscriptions["sealpost-inbound-dead-letter"]
			s.DeadLetter = &DeadLetter{Topic: "sealpost-events-dead", MaxDeliveryAttempts: 5}
			t.Subscriptions["sealpost-inbound-dead-letter"] = s
		}), "a dead letter of a dead letter"},
		{queue(func(q *Queue) { q.Role = "pol" }), `role "pol"`},
		{queue(func(q *Queue) { q.MaxAttempts = 100 }), "max_attempts 100"},
		{queue(func(q *Queue) { q.MaxDispatchesPerSecond = 501 }), "max_dispatches_per_second 501"},
		{queue(func(q *Queue) { q.MinBackoffSeconds = 301 }), "backoff 301 to 300"},
	} {
		_, err := ParseTopology(c.data())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// applied is a cloud with the parts that a topology needs; its JVM makes it the one
// slow start of this package.
type applied struct {
	cloud *Cloud
	pub   *pubsub.Client
	tasks *cloudtasks.Client
}

func newApplied(t *testing.T) applied {
	t.Helper()
	// Of this run alone: the emulator may be shared.
	project := "drift-" + rand.Text()
	opts := Options{Parts: PubSub | CloudTasks, Project: project, EmulatorOptions: EmulatorOptions{Grace: -1}}
	c, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	a := applied{cloud: c}
	env := c.Env()
	if a.pub, err = pubsub.NewClient(t.Context(), project, emulatorClient(env[PubSubVariable])...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.pub.Close() })
	if a.tasks, err = cloudtasks.NewClient(t.Context(), emulatorClient(env[CloudTasksVariable])...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.tasks.Close() })
	return a
}

// apply expects these changes.
func (a applied) apply(t *testing.T, opts ApplyOptions, want ...Change) {
	t.Helper()
	got, err := a.cloud.ApplyTopology(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("changed %v, want %v", got, want)
	}
}

func TestApplyReconciles(t *testing.T) {
	t.Parallel()
	a := newApplied(t)
	ctx := t.Context()
	opts := ApplyOptions{Services: map[string]string{"worker": "http://127.0.0.1:1/"}}
	changes, err := a.cloud.ApplyTopology(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) != 4+4+17 || changes[0] != (Change{"sealpost-events", Created}) {
		t.Errorf("first: %v", changes)
	}
	a.apply(t, opts) // nothing

	worker := "projects/" + a.cloud.Project() + "/subscriptions/sealpost-inbound-worker"
	a.drift(t, worker)
	a.apply(t, opts, Change{"sealpost-inbound-worker", Updated}, Change{"sealpost-pool-03", Updated})
	a.apply(t, opts)
	got, err := a.pub.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: worker})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetAckDeadlineSeconds() != 600 || got.GetDeadLetterPolicy().GetMaxDeliveryAttempts() != 100 ||
		got.GetRetryPolicy().GetMaximumBackoff().GetSeconds() != 600 || got.GetExpirationPolicy().GetTtl() != nil ||
		got.GetPushConfig().GetPushEndpoint() != "http://127.0.0.1:1/push/inbound" {
		t.Errorf("after drift: %v", got)
	}

	// What can't be changed is made anew.
	if err := a.pub.SubscriptionAdminClient.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: worker}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.pub.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: worker, Topic: "projects/" + a.cloud.Project() + "/topics/sealpost-inbound", EnableMessageOrdering: true}); err != nil {
		t.Fatal(err)
	}
	a.apply(t, opts, Change{"sealpost-inbound-worker", Replaced})
	a.apply(t, opts)

	// From push to pull and back, with short retries.
	both := func(action Action) []Change {
		return []Change{{"sealpost-events-worker", action}, {"sealpost-inbound-worker", action}}
	}
	a.apply(t, ApplyOptions{Pull: true}, both(Updated)...)
	a.apply(t, opts, both(Updated)...)
	if _, err := a.cloud.ApplyTopology(ctx, ApplyOptions{}); err == nil || !strings.Contains(err.Error(), "no URL for service worker") {
		t.Errorf("push without a URL: %v", err)
	}
	short := opts
	short.RetryBackoff = 100 * time.Millisecond
	if _, err := a.cloud.ApplyTopology(ctx, short); err != nil {
		t.Fatal(err)
	}
	a.apply(t, short)
}

// drift gives a subscription the settings of an old installation, and a queue too.
func (a applied) drift(t *testing.T, name string) {
	t.Helper()
	if _, err := a.pub.SubscriptionAdminClient.UpdateSubscription(t.Context(), &pubsubpb.UpdateSubscriptionRequest{
		Subscription: &pubsubpb.Subscription{
			Name: name, AckDeadlineSeconds: 10,
			RetryPolicy:      &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(time.Second), MaximumBackoff: durationpb.New(time.Minute)},
			DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "projects/" + a.cloud.Project() + "/topics/sealpost-inbound-dead", MaxDeliveryAttempts: 5},
			PushConfig:       &pubsubpb.PushConfig{PushEndpoint: "http://127.0.0.1:2/old"},
		},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"ack_deadline_seconds", "retry_policy", "dead_letter_policy", "push_config"}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.tasks.UpdateQueue(t.Context(), &cloudtaskspb.UpdateQueueRequest{
		Queue: &cloudtaskspb.Queue{
			Name:        "projects/" + a.cloud.Project() + "/locations/us-central1/queues/sealpost-pool-03",
			RateLimits:  &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1, MaxConcurrentDispatches: 1},
			RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 3},
		},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"rate_limits", "retry_config"}},
	}); err != nil {
		t.Fatal(err)
	}
}

func TestWholeCloud(t *testing.T) {
	t.Parallel()
	c, err := Start(t.Context(), Options{EmulatorOptions: EmulatorOptions{Grace: -1, Getenv: withoutEmulators}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	env := c.Env()
	for _, name := range []string{SpannerVariable, PubSubVariable, CloudTasksVariable, SecretManagerVariable, "GOOGLE_CLOUD_PROJECT"} {
		if env[name] == "" {
			t.Errorf("%s is empty", name)
		}
	}
	// Another cloud in the same environment starts nothing, and goes through the same
	// proxy instead of a second one.
	second, err := Start(t.Context(), Options{EmulatorOptions: EmulatorOptions{Getenv: func(name string) string { return env[name] }}})
	if err != nil {
		t.Fatal(err)
	}
	if second.Spanner().Pid() != 0 || second.PubSub().Pid() != 0 || second.Spanner().Proxy() != nil || second.Tasks() != nil || second.Secrets() != nil {
		t.Error("the second cloud runs something of its own")
	}
	if got := second.Env()[SpannerVariable]; got != env[SpannerVariable] {
		t.Errorf("second: %s, want %s", got, env[SpannerVariable])
	}
	name, err := second.NewDatabase(t.Context(), countersDDL)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if err := c.DropDatabase(t.Context(), name); err != nil {
		t.Errorf("after the second cloud's end: %v", err)
	}
	if err := c.Err(); err != nil {
		t.Errorf("before the end: %v", err)
	}
	pids := []int{c.Spanner().Pid(), c.PubSub().Pid()}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		waitGone(t, pid)
	}
	<-c.Done()
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = StartSpanner(ctx, EmulatorOptions{Getenv: func(string) string { return addr }})
	if err == nil || !strings.Contains(err.Error(), SpannerVariable+"="+addr+" does not answer") {
		t.Errorf("nobody there: %v", err)
	}
}
