// Package provider owns the verification of inbound webhooks: who signed a
// request, whether it is fresh and unambiguous, what it is called, and the
// handshakes that providers ask for before they send anything.
//
// Every scheme is one entry of a table (table.go): header, algorithm, encoding,
// signed content, timestamp rule, identity, type, handshake, and the page it was
// written from. The engine reads entries; it knows no provider by name.
//
// It fails closed. No code path accepts a request without a comparison that
// matched. It refuses blank secrets, missing or repeated signature, id and
// timestamp headers, timestamps and signatures in any spelling but the one the
// provider writes, and it never falls back to a weaker header. Signatures are
// computed over the bytes as received, never over a parsed form of them.
//
// It refuses all I/O: it reads no socket and no clock, and cost is linear in
// the size of the request. Where a provider publishes its certificate or keys, the
// package says from which URL, on a pinned host, and takes what the caller fetched
// ([Scheme.Fetch], [Scheme.Fetched]).
//
// [Sign] makes correctly signed samples of every scheme, for tests and
// demonstrations.
package provider
