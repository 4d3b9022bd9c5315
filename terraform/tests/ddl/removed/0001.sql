-- A comment is a whole line; it may hold a semicolon;
CREATE TABLE A (
  Id INT64 NOT NULL,
) PRIMARY KEY (Id);

