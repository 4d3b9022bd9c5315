package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// bury stores a message that can never become an event, with the reason. Once
// that is done, the message is done with.
func (in *Ingester) bury(ctx context.Context, m bus.Message, kind Kind, why *bus.DecodeError) error {
	err := in.o.Store.PutDeadMessages(ctx, []store.DeadMessage{{
		Tenant:           in.tenant(m, kind),
		Topic:            in.o.Topics[kind],
		Subscription:     m.Subscription,
		MessageID:        m.ID,
		Reason:           why.Error(),
		Attributes:       m.Attributes,
		OrderingKey:      m.OrderingKey,
		Body:             m.Data,
		DeliveryAttempts: int64(m.DeliveryAttempt),
		PublishedAt:      m.PublishTime,
	}})
	if err != nil {
		return in.again(ctx, m, fmt.Errorf("store message %s, which is dead (%s): %w", m.ID, why.Reason, err))
	}
	in.o.Log.LogAttrs(ctx, slog.LevelWarn, "message is dead",
		slog.String("event", "dead_message"),
		slog.String("topic", in.o.Topics[kind]),
		slog.String("message_id", m.ID),
		slog.String("tenant", in.tenant(m, kind)),
		slog.String("reason", string(why.Reason)),
		slog.String("detail", why.Detail),
		slog.Int("bytes", len(m.Data)))
	return nil
}

// tenant is whose the message says it is, or its source, which knows better.
func (in *Ingester) tenant(m bus.Message, kind Kind) string {
	if source, ok := in.direct[kind]; ok {
		return source.Tenant
	}
	return m.Tenant()
}

// BuryEnvelope stores a push request that holds no message: once, however often
// it comes. Requests too large to be read leave a log line only.
func (in *Ingester) BuryEnvelope(ctx context.Context, e *bus.EnvelopeError, kind Kind) error {
	if e.TooLarge() {
		in.o.Log.LogAttrs(ctx, slog.LevelWarn, "message is dead", slog.String("event", "dead_message"),
			slog.String("topic", in.o.Topics[kind]), slog.String("reason", string(bus.CodeTooLarge)), slog.String("detail", e.Detail))
		return nil
	}
	return in.bury(ctx, bus.Message{Data: e.Body}, kind, &bus.DecodeError{Reason: bus.CodeBadEnvelope, Detail: e.Detail})
}

// sorted tells counts of requests from what is said about secrets.
func sorted(counts []bus.Count) (rows []store.SourceCount, uses []store.SecretUse) {
	for _, c := range counts {
		if !c.AboutSecret() {
			rows = append(rows, store.SourceCount{Tenant: c.Tenant, Source: c.Source, Minute: c.Minute, Reason: c.Reason, Reporter: c.Reporter, Count: c.Count})
			continue
		}
		u := store.SecretUse{Tenant: c.Tenant, Source: c.Source, Secret: c.Secret, Version: int64(c.Version), Scheme: c.Scheme}
		if c.Reason == webhook.CountSecretUsed {
			u.UsedAt = c.Minute
		} else {
			u.ListedAt = c.Minute
		}
		uses = append(uses, u)
	}
	return rows, uses
}

// counts stores a receiver's report.
func (in *Ingester) counts(ctx context.Context, m bus.Message) error {
	counts, err := bus.DecodeCounts(m)
	if refused := (*bus.DecodeError)(nil); errors.As(err, &refused) {
		return in.bury(ctx, m, Inbound, refused)
	} else if err != nil {
		return in.again(ctx, m, fmt.Errorf("decode counts of message %s: %w", m.ID, err))
	}
	rows, uses := sorted(counts)
	if err = in.o.Store.PutSourceCounts(ctx, rows); err == nil {
		err = in.o.Store.PutSecretUses(ctx, uses)
	}
	if permanent(err) != "" {
		return in.bury(ctx, m, Inbound, &bus.DecodeError{Reason: bus.CodeBadCounts, Detail: err.Error()})
	}
	if err != nil {
		return in.again(ctx, m, fmt.Errorf("store counts of message %s: %w", m.ID, err))
	}
	in.o.Log.LogAttrs(ctx, slog.LevelInfo, "counts stored", slog.String("event", "counts"), slog.String("message_id", m.ID), slog.Int("counts", len(counts)))
	return nil
}
