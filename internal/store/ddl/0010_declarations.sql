-- Which revision of a service has last applied what Terraform declares, so that an older
-- one which still runs does not undo it.
CREATE TABLE Declarations (
  Kind STRING(32) NOT NULL,
  Serial INT64 NOT NULL,
  Revision STRING(128) NOT NULL,
  AppliedAt TIMESTAMP NOT NULL
) PRIMARY KEY (Kind);
