-- Statements are append-only: ddl.go says why, landed.sum keeps watch. A comment is
-- a whole line, a statement ends in a semicolon at the end of a line, and there is
-- none anywhere else, comments included.

CREATE TABLE Events (
  EventKey BYTES(16) NOT NULL,
  Tenant STRING(63) NOT NULL,
  Shard INT64 NOT NULL,
  Source STRING(2048) NOT NULL,
  PublisherId STRING(512) NOT NULL,
  EventType STRING(256) NOT NULL,
  Subject STRING(2048) NOT NULL,
  OrderingKey STRING(1024) NOT NULL,
  ContentType STRING(2048) NOT NULL,
  Headers STRING(MAX) NOT NULL,
  BodyHash BYTES(32) NOT NULL,
  BodySize INT64 NOT NULL,
  OccurredAt TIMESTAMP,
  ReceivedAt TIMESTAMP NOT NULL,
  CommittedAt TIMESTAMP NOT NULL OPTIONS (allow_commit_timestamp = true),
  Receipt STRING(256) NOT NULL,
  State STRING(16) NOT NULL,
  Rejection STRING(4096) NOT NULL,
  Duplicates INT64 NOT NULL,
  LastDuplicateAt TIMESTAMP,
  LastDuplicateReceipt STRING(256),
  FanoutAfter STRING(63),
  ExpungedAt TIMESTAMP,
  ExpireAt TIMESTAMP
) PRIMARY KEY (EventKey),
  ROW DELETION POLICY (OLDER_THAN(ExpireAt, INTERVAL 0 DAY));

CREATE TABLE Payloads (
  EventKey BYTES(16) NOT NULL,
  Body BYTES(MAX) NOT NULL,
  Encoding STRING(16) NOT NULL,
  ExpireAt TIMESTAMP
) PRIMARY KEY (EventKey),
  INTERLEAVE IN PARENT Events ON DELETE CASCADE,
  ROW DELETION POLICY (OLDER_THAN(ExpireAt, INTERVAL 0 DAY));

CREATE INDEX EventsByTenant ON Events (Tenant, Shard, ReceivedAt DESC, EventKey)
  STORING (EventType, State);

CREATE INDEX EventsBySource ON Events (Tenant, Source, Shard, ReceivedAt DESC, EventKey)
  STORING (EventType, State);
