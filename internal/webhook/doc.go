// Package webhook owns Sealpost's domain: events, endpoints, deliveries and
// attempts, their ids and states, and every decision taken about them as pure
// functions of (state, input, now).
//
// It refuses all I/O: nothing here knows Spanner, Pub/Sub, Cloud Tasks or a
// socket, and nothing reads the clock. It imports the standard library only and
// is imported by everything else.
package webhook
