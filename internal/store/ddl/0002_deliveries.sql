CREATE TABLE Deliveries (
  EventKey BYTES(16) NOT NULL,
  EndpointId STRING(63) NOT NULL,
  Tenant STRING(63) NOT NULL,
  Shard INT64 NOT NULL,
  EventType STRING(256) NOT NULL,
  State STRING(16) NOT NULL,
  Reason STRING(1024) NOT NULL,
  Generation INT64 NOT NULL,
  Attempt INT64 NOT NULL,
  Task INT64 NOT NULL,
  NextTrigger STRING(32) NOT NULL,
  NextAttemptAt TIMESTAMP,
  StartedAt TIMESTAMP NOT NULL,
  LastStatus INT64 NOT NULL,
  LastClass STRING(16) NOT NULL,
  CreatedAt TIMESTAMP NOT NULL,
  UpdatedAt TIMESTAMP NOT NULL,
  DueShard INT64,
  OpenState STRING(16),
  DeadAt TIMESTAMP
) PRIMARY KEY (EventKey, EndpointId),
  INTERLEAVE IN PARENT Events ON DELETE CASCADE;

CREATE TABLE Attempts (
  EventKey BYTES(16) NOT NULL,
  EndpointId STRING(63) NOT NULL,
  Generation INT64 NOT NULL,
  Attempt INT64 NOT NULL,
  Task INT64 NOT NULL,
  StartTrigger STRING(32) NOT NULL,
  StartedAt TIMESTAMP NOT NULL,
  DurationMs INT64 NOT NULL,
  Status INT64 NOT NULL,
  Class STRING(16) NOT NULL,
  RetryAfterMs INT64 NOT NULL,
  Error STRING(4096) NOT NULL,
  Url STRING(4096) NOT NULL,
  RemoteAddr STRING(128) NOT NULL,
  KeyIds ARRAY<STRING(128)> NOT NULL,
  Excerpt BYTES(65536) NOT NULL,
  Truncated BOOL NOT NULL,
  WroteRequest BOOL NOT NULL
) PRIMARY KEY (EventKey, EndpointId, Generation, Attempt),
  INTERLEAVE IN PARENT Deliveries ON DELETE CASCADE;

-- What is to be sent by when. Sharded because it starts with a time.
CREATE NULL_FILTERED INDEX DeliveriesDue ON Deliveries (DueShard, NextAttemptAt)
  STORING (Tenant, Generation, Attempt, Task);

-- Is anything of this event still open? Lives beside the event's own rows.
CREATE NULL_FILTERED INDEX DeliveriesOpenByEvent ON Deliveries (EventKey, OpenState, EndpointId),
  INTERLEAVE IN Events;

-- To cancel, hold or release everything of one endpoint.
CREATE NULL_FILTERED INDEX DeliveriesOpenByEndpoint ON Deliveries (Tenant, EndpointId, OpenState, EventKey);

CREATE INDEX DeliveriesByEndpoint ON Deliveries (Tenant, EndpointId, CreatedAt DESC, EventKey)
  STORING (State, EventType);

CREATE INDEX DeliveriesByTenant ON Deliveries (Tenant, Shard, CreatedAt DESC, EventKey, EndpointId)
  STORING (State, EventType);

CREATE NULL_FILTERED INDEX DeliveriesDeadByTenant ON Deliveries (Tenant, Shard, DeadAt DESC, EventKey, EndpointId)
  STORING (EventType);
