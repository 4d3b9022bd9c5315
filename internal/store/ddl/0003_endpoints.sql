CREATE TABLE Endpoints (
  Tenant STRING(63) NOT NULL,
  EndpointId STRING(63) NOT NULL,
  Url STRING(2048) NOT NULL,
  Description STRING(1024) NOT NULL,
  EventTypes ARRAY<STRING(260)> NOT NULL,
  State STRING(16) NOT NULL,
  StateReason STRING(1024) NOT NULL,
  StateSince TIMESTAMP NOT NULL,
  RatePerSecond FLOAT64 NOT NULL,
  MaxConcurrency INT64 NOT NULL,
  TimeoutMs INT64 NOT NULL,
  Retry STRING(MAX) NOT NULL,
  Queue STRING(512) NOT NULL,
  QueueReadyAt TIMESTAMP,
  CreatedAt TIMESTAMP NOT NULL,
  UpdatedAt TIMESTAMP NOT NULL
) PRIMARY KEY (Tenant, EndpointId);

-- One row per tenant. Endpoints counts those not deleted. Version grows with every change of the tenant's endpoints,
-- in the same commit, so that a cached list can be proven current by one read.
CREATE TABLE EndpointSets (
  Tenant STRING(63) NOT NULL,
  Version INT64 NOT NULL,
  Endpoints INT64 NOT NULL,
  UpdatedAt TIMESTAMP NOT NULL
) PRIMARY KEY (Tenant);

CREATE TABLE EndpointKeys (
  Tenant STRING(63) NOT NULL,
  EndpointId STRING(63) NOT NULL,
  KeyId STRING(128) NOT NULL,
  Kind STRING(16) NOT NULL,
  Sealed BYTES(8192) NOT NULL,
  SealedBy STRING(256) NOT NULL,
  NotBefore TIMESTAMP NOT NULL,
  NotAfter TIMESTAMP,
  CreatedAt TIMESTAMP NOT NULL
) PRIMARY KEY (Tenant, EndpointId, KeyId),
  INTERLEAVE IN PARENT Endpoints ON DELETE CASCADE;

CREATE TABLE EndpointHealth (
  Tenant STRING(63) NOT NULL,
  EndpointId STRING(63) NOT NULL,
  Breaker STRING(16) NOT NULL,
  ConsecutiveFailures INT64 NOT NULL,
  FailingSince TIMESTAMP,
  LastSuccessAt TIMESTAMP,
  LastFailureAt TIMESTAMP,
  OpenUntil TIMESTAMP,
  UpdatedAt TIMESTAMP NOT NULL
) PRIMARY KEY (Tenant, EndpointId),
  INTERLEAVE IN PARENT Endpoints ON DELETE CASCADE;
