-- The optional properties of an endpoint, as JSON: see webhook.EndpointSettings. NULL
-- means none is set.
ALTER TABLE Endpoints ADD COLUMN Settings STRING(MAX);

-- Its credentials for authenticating to the destination, sealed.
ALTER TABLE Endpoints ADD COLUMN AuthSealed BYTES(65536);

ALTER TABLE Endpoints ADD COLUMN AuthSealedBy STRING(256);

ALTER TABLE EndpointHealth ADD COLUMN OpenedAt TIMESTAMP;

ALTER TABLE EndpointHealth ADD COLUMN Trips INT64;

ALTER TABLE EndpointHealth ADD COLUMN ThrottledUntil TIMESTAMP;

ALTER TABLE EndpointHealth ADD COLUMN ThrottleStep INT64;

ALTER TABLE EndpointHealth ADD COLUMN Warned INT64;

ALTER TABLE EndpointHealth ADD COLUMN Epoch INT64;

ALTER TABLE EndpointHealth ADD COLUMN ReleasedEpoch INT64;

ALTER TABLE EndpointHealth ADD COLUMN ReleaseAll BOOL;

ALTER TABLE EndpointHealth ADD COLUMN LeftAt TIMESTAMP;

-- True while the breaker is not closed or a release is under way, else NULL.
ALTER TABLE EndpointHealth ADD COLUMN Troubled BOOL;

-- Few at any time: whoever stores events looks here which endpoints to ask about.
CREATE NULL_FILTERED INDEX EndpointHealthTroubled ON EndpointHealth (Troubled, Tenant, EndpointId)
  STORING (Breaker);

-- What an endpoint's owner is to be told, written with the change that it is about.
-- SentAt is when it was published. Unsent is true until then, and NULL after.
CREATE TABLE Notices (
  NoticeId BYTES(16) NOT NULL,
  Tenant STRING(63) NOT NULL,
  EndpointId STRING(63) NOT NULL,
  Kind STRING(64) NOT NULL,
  Detail STRING(MAX) NOT NULL,
  CreatedAt TIMESTAMP NOT NULL,
  SentAt TIMESTAMP,
  Unsent BOOL,
  ExpireAt TIMESTAMP NOT NULL
) PRIMARY KEY (NoticeId),
  ROW DELETION POLICY (OLDER_THAN(ExpireAt, INTERVAL 0 DAY));

CREATE INDEX NoticesByTenant ON Notices (Tenant, CreatedAt DESC, NoticeId);

-- What is to be published of an endpoint, and of all: it holds nothing else.
CREATE NULL_FILTERED INDEX NoticesUnsent ON Notices (Tenant, EndpointId, Unsent, CreatedAt, NoticeId);

-- The whole exchange of a test event's attempt, as JSON, credentials masked.
ALTER TABLE Attempts ADD COLUMN Exchange STRING(MAX);
