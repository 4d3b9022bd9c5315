-- What marks an event apart: see the constants Flag… of package webhook.
ALTER TABLE Events ADD COLUMN Flags ARRAY<STRING(32)>;

-- The receipts of those repeats by the provider that re-opened dead deliveries, so
-- that none does so twice. Bounded in number by the code.
ALTER TABLE Events ADD COLUMN ReopenedBy ARRAY<STRING(256)>;

-- A hash over source, tenant and body, of events whose id nobody signed, and of the
-- newest one only of those with equal bodies: all others are NULL.
ALTER TABLE Events ADD COLUMN ReplayKey BYTES(16);

-- Has this body come before? Holds no entry for events whose id is signed. A hash
-- leads, so that entries spread, however many are of one source.
CREATE NULL_FILTERED INDEX EventsByReplayKey ON Events (ReplayKey)
  STORING (ReceivedAt);

-- Which of an event's deliveries are dead, and since when? Lives beside the event's
-- own rows.
CREATE NULL_FILTERED INDEX DeliveriesDeadByEvent ON Deliveries (EventKey, DeadAt, EndpointId),
  INTERLEAVE IN Events;
