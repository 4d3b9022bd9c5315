// Package bus owns the use of Pub/Sub: how an event becomes a message and a
// message an event again, byte for byte, publishing with a confirmed result, the
// two forms of a push request, and streaming pull. It is the only user of the
// Pub/Sub client.
//
// It enforces Pub/Sub's limits itself, before anything is sent. It refuses to
// store, match or deliver; to guess at what cannot be decoded (a [DecodeError]
// says why instead); and to use Pub/Sub's ordering keys, since a key whose
// publishing failed once is paused by the client, and subscriptions keep no
// order: the order of events lives in Spanner, and an event's ordering key
// travels as an attribute.
//
// # Messages
//
// An event travels in binary mode of the Pub/Sub binding for CloudEvents
// (https://github.com/googleapis/google-cloudevents/blob/main/docs/spec/pubsub.md):
// the payload is the message's data, everything else an attribute. The topics of
// inbound and of published events, and those that a provider publishes to itself,
// are told apart by the subscription, never by what a message says of itself: see
// [DecodeInbound], [DecodeEvent] and [DecodeDirect].
package bus
