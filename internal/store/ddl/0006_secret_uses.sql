-- Which versions of which secrets a source has, and when each last verified a request,
-- so that an old one can be retired with confidence. Outlives the counts by far: a row
-- goes when no receiver has listed or used its version for 400 days.
CREATE TABLE SecretUses (
  Tenant STRING(63) NOT NULL,
  Source STRING(63) NOT NULL,
  Secret STRING(256) NOT NULL,
  Version INT64 NOT NULL,
  Scheme STRING(64) NOT NULL,
  ListedAt TIMESTAMP,
  UsedAt TIMESTAMP,
  UpdatedAt TIMESTAMP NOT NULL
) PRIMARY KEY (Tenant, Source, Secret, Version),
  ROW DELETION POLICY (OLDER_THAN(UpdatedAt, INTERVAL 400 DAY));
