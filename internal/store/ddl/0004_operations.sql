-- Tenant is empty where a message does not say whose it is.
CREATE TABLE DeadMessages (
  DeadKey BYTES(16) NOT NULL,
  Tenant STRING(63) NOT NULL,
  Shard INT64 NOT NULL,
  Topic STRING(512) NOT NULL,
  Subscription STRING(512) NOT NULL,
  MessageId STRING(256) NOT NULL,
  Reason STRING(4096) NOT NULL,
  Attributes STRING(MAX) NOT NULL,
  OrderingKey STRING(1024) NOT NULL,
  Body BYTES(MAX) NOT NULL,
  Encoding STRING(16) NOT NULL,
  BodySize INT64 NOT NULL,
  Truncated BOOL NOT NULL,
  DeliveryAttempts INT64 NOT NULL,
  PublishedAt TIMESTAMP,
  StoredAt TIMESTAMP NOT NULL,
  ExpireAt TIMESTAMP NOT NULL
) PRIMARY KEY (DeadKey),
  ROW DELETION POLICY (OLDER_THAN(ExpireAt, INTERVAL 0 DAY));

CREATE INDEX DeadMessagesByTime ON DeadMessages (Shard, StoredAt DESC, DeadKey);

CREATE INDEX DeadMessagesByTenant ON DeadMessages (Tenant, StoredAt DESC, DeadKey);

CREATE TABLE SourceCounts (
  Tenant STRING(63) NOT NULL,
  Source STRING(2048) NOT NULL,
  Minute TIMESTAMP NOT NULL,
  Reason STRING(128) NOT NULL,
  Reporter STRING(256) NOT NULL,
  Total INT64 NOT NULL,
  UpdatedAt TIMESTAMP NOT NULL,
  ExpireAt TIMESTAMP NOT NULL
) PRIMARY KEY (Tenant, Source, Minute DESC, Reason, Reporter),
  ROW DELETION POLICY (OLDER_THAN(ExpireAt, INTERVAL 0 DAY));

CREATE TABLE AuditLog (
  Tenant STRING(63) NOT NULL,
  HappenedAt TIMESTAMP NOT NULL,
  AuditId BYTES(16) NOT NULL,
  Actor STRING(512) NOT NULL,
  Action STRING(64) NOT NULL,
  Target STRING(512) NOT NULL,
  Detail STRING(MAX) NOT NULL,
  ExpireAt TIMESTAMP NOT NULL
) PRIMARY KEY (Tenant, HappenedAt DESC, AuditId),
  ROW DELETION POLICY (OLDER_THAN(ExpireAt, INTERVAL 0 DAY));
