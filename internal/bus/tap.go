package bus

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Bounds of a tap's subscription, the least that Pub/Sub has: should Tap not get
// to delete it, it goes by itself after a day.
const (
	tapRetention = 10 * time.Minute
	tapExpiry    = 24 * time.Hour
	tapDeadline  = 10 * time.Second
)

// Tap hands the messages that are published to the topic from now on, and whose
// ce-source is source, to handle, until ctx is done; then it returns nil. It does
// so through a subscription of its own, which it deletes at the end: whoever else
// reads the topic notices nothing. A message counts as read whatever handle makes
// of it. ready is called once the subscription stands.
//
// The caller's account needs to create and delete subscriptions in the project.
func Tap(ctx context.Context, project, topic, source string, o SubscribeOptions, ready func(), handle func(context.Context, Message)) (err error) {
	client, err := pubsub.NewClient(ctx, project, o.ClientOptions...)
	if err != nil {
		return fmt.Errorf("tap %s: %w", topic, err)
	}
	defer client.Close()
	id := topic + "-tap-" + uuid.NewString()
	name := fmt.Sprintf("projects/%s/subscriptions/%s", project, id)
	_, err = client.SubscriptionAdminClient.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name:                     name,
		Topic:                    fmt.Sprintf("projects/%s/topics/%s", project, topic),
		Filter:                   fmt.Sprintf("attributes.%q = %q", attrSource, source),
		AckDeadlineSeconds:       int32(tapDeadline / time.Second),
		MessageRetentionDuration: durationpb.New(tapRetention),
		ExpirationPolicy:         &pubsubpb.ExpirationPolicy{Ttl: durationpb.New(tapExpiry)},
		Labels:                   map[string]string{"sealpost": "tap"},
	})
	if err != nil {
		return fmt.Errorf("tap %s: create subscription: %w", topic, err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if gone := client.SubscriptionAdminClient.DeleteSubscription(end, &pubsubpb.DeleteSubscriptionRequest{Subscription: name}); err == nil && gone != nil {
			err = fmt.Errorf("tap %s: delete subscription %s (it goes by itself within a day): %w", topic, id, gone)
		}
	}()
	ready()
	return Subscribe(ctx, project, id, o, func(ctx context.Context, m Message) error {
		// Pub/Sub's emulator knows no filters.
		if m.Attributes[attrSource] == source {
			handle(ctx, m)
		}
		return nil
	})
}
