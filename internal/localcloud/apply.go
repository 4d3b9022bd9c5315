package localcloud

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// ApplyOptions say where and how a topology is applied.
type ApplyOptions struct {
	Project  string // DefaultProject where empty
	Location string // of the queues; DefaultLocation where empty
	// Services are the base URLs of the services that messages are pushed to, by the
	// name in the topology. It is an error if one is missing.
	Services map[string]string
	// Pull leaves out all push endpoints: the workers pull (mode=pull).
	Pull bool
	// RetryBackoff, where positive, replaces every minimum backoff; the maximum becomes
	// at most ten times as long. The real minimum of 10 s is long for a test.
	RetryBackoff time.Duration
}

// Change is what Apply did to one thing.
type Change struct {
	Name   string // of the topic, subscription or queue
	Action Action
}

// Action is a kind of change.
type Action string

// Apply names nothing that was already as it should be.
const (
	Created  Action = "created"
	Updated  Action = "updated"
	Replaced Action = "replaced" // an immutable setting differed: deleted and made anew
)

// Apply makes the topics, subscriptions and queues of t exist on emulators with
// exactly the settings of t (Terraform does it in the real cloud), and returns what
// it changed, sorted by kind and name. Idempotent: a second Apply changes nothing.
// What exists with other settings is brought back (drift, or an older version's
// settings), what t does not name is left alone.
//
// A nil client leaves its part out. Several Apply at once are safe; one of them
// then reports the change.
func (t Topology) Apply(ctx context.Context, pub *pubsub.Client, tasks *cloudtasks.Client, opts ApplyOptions) ([]Change, error) {
	if opts.Project == "" {
		opts.Project = DefaultProject
	}
	if opts.Location == "" {
		opts.Location = DefaultLocation
	}
	a := applier{pub: pub, tasks: tasks, opts: opts}
	if pub != nil {
		for _, name := range slices.Sorted(maps.Keys(t.Topics)) {
			a.note(name, "topic", a.topic(ctx, name))
		}
		for _, name := range slices.Sorted(maps.Keys(t.Subscriptions)) {
			a.note(name, "subscription", a.subscription(ctx, name, t.Subscriptions[name]))
		}
	}
	if tasks != nil {
		for _, name := range slices.Sorted(maps.Keys(t.Queues)) {
			a.note(name, "queue", a.queue(ctx, name, t.Queues[name]))
		}
	}
	return a.changes, errors.Join(a.errs...)
}

type applier struct {
	pub     *pubsub.Client
	tasks   *cloudtasks.Client
	opts    ApplyOptions
	changes []Change
	errs    []error
}

// result is what became of one thing; an empty action means that it was right.
type result struct {
	action Action
	err    error
}

func (a *applier) note(name, kind string, r result) {
	switch {
	case r.err != nil:
		a.errs = append(a.errs, fmt.Errorf("apply %s %s: %w", kind, name, r.err))
	case r.action != "":
		a.changes = append(a.changes, Change{name, r.action})
	}
}

// created is the result of a create call. Somebody else's creation a moment before
// ours is as good.
func created(err error) result {
	if status.Code(err) == codes.AlreadyExists {
		return result{}
	}
	return result{Created, err}
}

func (a *applier) topic(ctx context.Context, name string) result {
	full := a.topicName(name)
	_, err := a.pub.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: full})
	if status.Code(err) != codes.NotFound {
		return result{err: err}
	}
	_, err = a.pub.TopicAdminClient.CreateTopic(ctx, &pubsubpb.Topic{Name: full})
	return created(err)
}

func (a *applier) topicName(name string) string {
	return fmt.Sprintf("projects/%s/topics/%s", a.opts.Project, name)
}

func (a *applier) subscription(ctx context.Context, name string, s Subscription) result {
	want, err := a.wantedSubscription(name, s)
	if err != nil {
		return result{err: err}
	}
	admin := a.pub.SubscriptionAdminClient
	have, err := admin.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{Subscription: want.Name})
	switch {
	case status.Code(err) == codes.NotFound:
		_, err = admin.CreateSubscription(ctx, want)
		return created(err)
	case err != nil:
		return result{err: err}
	}
	if !updatable(have, want) {
		err := admin.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: want.Name})
		if err != nil {
			return result{err: err}
		}
		_, err = admin.CreateSubscription(ctx, want)
		return result{Replaced, err}
	}
	paths := subscriptionDrift(have, want)
	if len(paths) == 0 {
		return result{}
	}
	_, err = admin.UpdateSubscription(ctx, &pubsubpb.UpdateSubscriptionRequest{
		Subscription: want, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}})
	return result{Updated, err}
}

// emulatorRetention is the most that the Pub/Sub emulator accepts, in seconds (0.8.20
// still has the service's former limit of 7 days).
const emulatorRetention = int64(7 * 24 * time.Hour / time.Second)

func (a *applier) wantedSubscription(name string, s Subscription) (*pubsubpb.Subscription, error) {
	minimum, maximum := a.backoff(s.Retry.MinimumBackoffSeconds, s.Retry.MaximumBackoffSeconds)
	want := &pubsubpb.Subscription{
		Name:                     fmt.Sprintf("projects/%s/subscriptions/%s", a.opts.Project, name),
		Topic:                    a.topicName(s.Topic),
		PushConfig:               &pubsubpb.PushConfig{},
		AckDeadlineSeconds:       s.AckDeadlineSeconds,
		MessageRetentionDuration: seconds(min(s.RetentionSeconds, emulatorRetention)),
		ExpirationPolicy:         &pubsubpb.ExpirationPolicy{}, // present without a TTL: never
		RetryPolicy:              &pubsubpb.RetryPolicy{MinimumBackoff: minimum, MaximumBackoff: maximum},
	}
	if d := s.DeadLetter; d != nil {
		want.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{
			DeadLetterTopic: a.topicName(d.Topic), MaxDeliveryAttempts: d.MaxDeliveryAttempts}
	}
	if s.Push == nil || a.opts.Pull {
		return want, nil
	}
	base, ok := a.opts.Services[s.Push.Service]
	if !ok {
		return nil, fmt.Errorf("no URL for service %s, which it pushes to", s.Push.Service)
	}
	want.PushConfig = &pubsubpb.PushConfig{
		PushEndpoint: strings.TrimSuffix(base, "/") + s.Push.Path,
		AuthenticationMethod: &pubsubpb.PushConfig_OidcToken_{OidcToken: &pubsubpb.PushConfig_OidcToken{
			ServiceAccountEmail: fmt.Sprintf("%s@%s.iam.gserviceaccount.com", s.Push.ServiceAccount, a.opts.Project),
			Audience:            base,
		}},
	}
	return want, nil
}

// backoff applies RetryBackoff.
func (a *applier) backoff(minimum, maximum int64) (lo, hi *durationpb.Duration) {
	if a.opts.RetryBackoff <= 0 {
		return seconds(minimum), seconds(maximum)
	}
	longest := min(10*a.opts.RetryBackoff, time.Duration(maximum)*time.Second)
	return durationpb.New(a.opts.RetryBackoff), durationpb.New(max(longest, a.opts.RetryBackoff))
}

func seconds(n int64) *durationpb.Duration { return &durationpb.Duration{Seconds: n} }

// subscriptionDrift lists the settings that differ, as paths of an update mask.
func subscriptionDrift(have, want *pubsubpb.Subscription) []string {
	var paths []string
	differ := func(path string, same bool) {
		if !same {
			paths = append(paths, path)
		}
	}
	differ("push_config", samePush(have.GetPushConfig(), want.GetPushConfig()))
	differ("ack_deadline_seconds", have.GetAckDeadlineSeconds() == want.GetAckDeadlineSeconds())
	differ("message_retention_duration", proto.Equal(have.GetMessageRetentionDuration(), want.GetMessageRetentionDuration()))
	differ("retry_policy", proto.Equal(have.GetRetryPolicy(), want.GetRetryPolicy()))
	differ("dead_letter_policy", proto.Equal(have.GetDeadLetterPolicy(), want.GetDeadLetterPolicy()))
	return paths
}

// updatable tells whether have can become want by an update. Topic and ordering can't
// be changed anywhere, the expiration not in the emulator.
func updatable(have, want *pubsubpb.Subscription) bool {
	// An absent policy means the default of 31 days; present without a TTL, never.
	expires := have.GetExpirationPolicy() == nil || have.GetExpirationPolicy().GetTtl() != nil
	return have.GetTopic() == want.GetTopic() && have.GetEnableMessageOrdering() == want.GetEnableMessageOrdering() && !expires
}

// samePush compares what we set; the service adds attributes of its own.
func samePush(have, want *pubsubpb.PushConfig) bool {
	return have.GetPushEndpoint() == want.GetPushEndpoint() && proto.Equal(have.GetOidcToken(), want.GetOidcToken())
}

func (a *applier) queue(ctx context.Context, name string, q Queue) result {
	parent := fmt.Sprintf("projects/%s/locations/%s", a.opts.Project, a.opts.Location)
	minimum, maximum := a.backoff(q.MinBackoffSeconds, q.MaxBackoffSeconds)
	want := &cloudtaskspb.Queue{
		Name: parent + "/queues/" + name,
		RateLimits: &cloudtaskspb.RateLimits{
			MaxDispatchesPerSecond:  q.MaxDispatchesPerSecond,
			MaxConcurrentDispatches: q.MaxConcurrentDispatches,
		},
		RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: q.MaxAttempts, MinBackoff: minimum, MaxBackoff: maximum, MaxDoublings: q.MaxDoublings},
	}
	have, err := a.tasks.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: want.Name})
	switch {
	case status.Code(err) == codes.NotFound:
		_, err = a.tasks.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: parent, Queue: want})
		return created(err)
	case err != nil:
		return result{err: err}
	}
	paths := queueDrift(have, want)
	if len(paths) == 0 {
		return result{}
	}
	_, err = a.tasks.UpdateQueue(ctx, &cloudtaskspb.UpdateQueueRequest{
		Queue: want, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}})
	return result{Updated, err}
}

// queueDrift lists the settings that differ, as paths of an update mask. Only the
// settings that we make are compared: the service fills in others (burst size).
func queueDrift(have, want *cloudtaskspb.Queue) []string {
	var paths []string
	differ := func(path string, same bool) {
		if !same {
			paths = append(paths, path)
		}
	}
	hr, wr := have.GetRateLimits(), want.GetRateLimits()
	differ("rate_limits.max_dispatches_per_second", hr.GetMaxDispatchesPerSecond() == wr.GetMaxDispatchesPerSecond())
	differ("rate_limits.max_concurrent_dispatches", hr.GetMaxConcurrentDispatches() == wr.GetMaxConcurrentDispatches())
	hc, wc := have.GetRetryConfig(), want.GetRetryConfig()
	differ("retry_config.max_attempts", hc.GetMaxAttempts() == wc.GetMaxAttempts())
	differ("retry_config.min_backoff", proto.Equal(hc.GetMinBackoff(), wc.GetMinBackoff()))
	differ("retry_config.max_backoff", proto.Equal(hc.GetMaxBackoff(), wc.GetMaxBackoff()))
	differ("retry_config.max_doublings", hc.GetMaxDoublings() == wc.GetMaxDoublings())
	return paths
}
