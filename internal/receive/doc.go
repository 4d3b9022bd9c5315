// Package receive owns the receiving half of Sealpost: POST /in/{source} is
// verified over its raw bytes, published, and only then answered with 2xx.
//
// The order of work never changes: where the request comes from (address, client
// certificate), bounded read, verification, handshake, content coding, identity,
// allowed types, media type, schema, publish, wait for the publish result, answer.
// What the source thinks of an event is thereby told to its provider only: all that
// is judged before or by the signature is answered 401, except a body's size and
// pace. Where the provider signs a body before it compresses it, decoding comes before
// verification, within the same limit and budget. Nothing is remembered: if
// publishing fails, the answer is 503 and the provider's retry starts anew.
// Whether an event is a duplicate, and in which order events come, is not decided
// here.
//
// Two things happen before a body is authentic or instead of publishing it.
// Handshakes are answered exactly as the provider wants, without revealing anything
// to whoever else asks. Published certificates and keys are fetched, from pinned
// hosts, through the client that the service wires in, and bounded in number.
//
// It refuses what could make one sender everyone's problem: bodies beyond the
// source's limit before any other work, bodies that arrive too slowly, and more
// bytes in flight than the instance's budget. It never touches Spanner, never
// guesses an encoding, and tells a refused sender nothing but the status.
package receive
