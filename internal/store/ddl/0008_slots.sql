-- From when on an endpoint's own queue gets no new tasks, because the endpoint leaves
-- it. NULL means that there is no such time.
ALTER TABLE Endpoints ADD COLUMN QueueLeftAt TIMESTAMP;

-- What the rate limits of endpoints in shared queues have allotted: NextSlot is the
-- time of the next attempt in the endpoint's row of equally spaced ones. Holders are
-- the dispatcher instances that have attempts under way, each until its HeldUntil.
CREATE TABLE EndpointSlots (
  Tenant STRING(63) NOT NULL,
  EndpointId STRING(63) NOT NULL,
  NextSlot TIMESTAMP NOT NULL,
  Holders ARRAY<STRING(64)> NOT NULL,
  HeldUntil ARRAY<TIMESTAMP> NOT NULL,
  UpdatedAt TIMESTAMP NOT NULL
) PRIMARY KEY (Tenant, EndpointId),
  ROW DELETION POLICY (OLDER_THAN(UpdatedAt, INTERVAL 30 DAY));
