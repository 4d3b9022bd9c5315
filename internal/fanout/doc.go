// Package fanout owns the way of an event from a Pub/Sub message to its tasks:
// decode, check against the type's schema, commit with its deliveries, create a
// task for each. Push and pull share it, and so do the topics: what the receiver
// verified, what the team's own systems publish, and what providers publish past
// the receiver.
//
// It refuses to acknowledge before all of that is done; to try again what cannot
// succeed, which becomes a dead message with its reason instead; to count a
// message twice; and to look at what endpoints do.
package fanout
