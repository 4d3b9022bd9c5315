// Package store owns Sealpost's state in Spanner: the schema (ddl/), every query,
// and each transaction as one verb. Spanner is the one source of truth; queues,
// caches and logs can all be lost and made anew from it.
//
// It refuses to decide: what becomes of a delivery is [webhook.Decide]'s answer,
// which [Store.Record] applies if the row is still where the decision was taken.
// It refuses unscoped access: every read and write names its tenant, and another
// tenant's row is answered like an absent one. It holds signing keys only sealed.
//
// Three rules shape the code. Writes are safe to repeat, because the outcome of a
// commit can be unknown. Hot paths and lists use the read API and mutations, not
// SQL. Limits that Spanner sets (80,000 mutations and 100 MB a commit, 10 MiB a
// cell) are enforced here, before Spanner would, since a group that breaks them
// can be split and a single value cannot.
package store
