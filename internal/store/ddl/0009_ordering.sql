-- The place of a delivery among those of its endpoint and ordering key: see ordering.go.
-- NULL where the endpoint is not ordered, or the event has no key.
ALTER TABLE Deliveries ADD COLUMN OrderKey BYTES(16);

ALTER TABLE Deliveries ADD COLUMN OrderSeq INT64;

-- Its place in the line while it is open, else NULL: OrderSeq, unless it joined the
-- line again.
ALTER TABLE Deliveries ADD COLUMN OrderWait INT64;

-- Until when a dispatcher alone may attempt it.
ALTER TABLE Deliveries ADD COLUMN LeasedUntil TIMESTAMP;

-- Who is next?
CREATE NULL_FILTERED INDEX DeliveriesInOrder ON Deliveries (Tenant, EndpointId, OrderKey, OrderWait);

-- Head is the event whose delivery alone may be attempted, NULL if there is none.
-- LastSeq is the highest place given, LastAt the time that it was given for.
CREATE TABLE OrderedKeys (
  Tenant STRING(63) NOT NULL,
  EndpointId STRING(63) NOT NULL,
  OrderKey BYTES(16) NOT NULL,
  OrderingKey STRING(1024) NOT NULL,
  LastSeq INT64 NOT NULL,
  LastAt INT64 NOT NULL,
  Head BYTES(16),
  Stop STRING(16) NOT NULL,
  StoppedAt TIMESTAMP,
  UpdatedAt TIMESTAMP NOT NULL,
  ExpireAt TIMESTAMP
) PRIMARY KEY (Tenant, EndpointId, OrderKey),
  ROW DELETION POLICY (OLDER_THAN(ExpireAt, INTERVAL 0 DAY));

-- Which keys of an endpoint stand still behind a dead delivery?
CREATE NULL_FILTERED INDEX OrderedKeysStopped ON OrderedKeys (Tenant, EndpointId, StoppedAt DESC, OrderKey);
