package webhook

import (
	"crypto/sha256"
	"strings"
	"time"
)

// Header is one header line that is kept with an event.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// EventState is the fate of an event as a whole.
type EventState string

// Event states. A duplicate has no state: it is counted on the event it repeats.
const (
	EventAccepted  EventState = "accepted"  // has deliveries
	EventUnmatched EventState = "unmatched" // no endpoint subscribes
	EventRejected  EventState = "rejected"  // breaks its type's schema, or is a replay that its source refuses
)

// Event is one thing that happened, as its publisher sent it. Body holds the
// exact bytes; nothing in Sealpost re-encodes them.
type Event struct {
	Key         EventKey
	Tenant      string
	Source      string
	PublisherID string // the provider's or publisher's id, canonical
	Type        string
	Subject     string
	OrderingKey string
	// Sequence grows among the events of an ordering key: their places for an ordered
	// endpoint, else the microsecond in which they were stored. It is set where an event
	// is to be sent, and 0 without an ordering key.
	Sequence    int64
	ContentType string // as received
	Headers     []Header
	Body        []byte
	BodyHash    [sha256.Size]byte
	OccurredAt  time.Time // the publisher's time; zero if it gave none
	ReceivedAt  time.Time // when the first hop of ours took it
	// Receipt identifies one accepted request or one published message. A repeat
	// with the receipt of the first is a redelivery by Pub/Sub; with another, it
	// is the publisher's own repeat and is counted.
	Receipt string
	// Rejection, when not empty, says how the event breaks its type's schema: it
	// is stored as rejected and delivered to nobody.
	Rejection string
	// UnsignedID says that the provider's signature covers the body but not the id
	// (GitHub, Shopify): whoever holds one authentic request can send its body again
	// under any id. Such an event is compared by its body with earlier ones of its
	// source and tenant, see [FlagSuspectedReplay]. Neither this nor RefuseReplay is
	// kept once the event is stored.
	UnsignedID bool
	// RefuseReplay makes a suspected replay a rejected event. Without UnsignedID it
	// means nothing.
	RefuseReplay bool
	// Flags are what the first hop found worth marking: constants Flag…. The store
	// adds its own; those of a stored event stand in its row.
	Flags []string
}

// FlagInvalidSchema marks an event that breaks its type's schema at a source that
// takes such events.
const FlagInvalidSchema = "invalid_schema"

// FlagDedupeFallback marks an event that its source's dedupe expression could not
// name: it has the identity that its scheme gives.
const FlagDedupeFallback = "dedupe_fallback"

// Reasons of counts that are no refusals. Accepted counts every accepted event, and
// with the name of a flag behind it those of them that carry the flag.
const (
	CountAccepted  = "accepted"
	CountHandshake = "handshake"
)

// Reasons of reports about the versions of a source's secrets: that one verified
// requests, and that one is configured. They are kept apart from the counts.
const (
	CountSecretUsed   = "secret_used"
	CountSecretListed = "secret_listed"
)

// CountOfFlag is the reason under which accepted events with a flag are counted.
func CountOfFlag(flag string) string { return CountAccepted + "_" + flag }

// CountsRefusal reports whether a reason of a count says that requests were refused
// or ignored.
func CountsRefusal(reason string) bool {
	return reason != CountHandshake && reason != CountAccepted && !strings.HasPrefix(reason, CountAccepted+"_")
}

// FlagSuspectedReplay marks an event whose signature does not cover its id and
// whose body came before, within the retention, under another id from the same
// source and tenant. Some providers do send equal bodies, so it is a suspicion.
const FlagSuspectedReplay = "suspected_replay"

// Seal fills Key and BodyHash from the other fields.
func (e *Event) Seal() {
	e.Key = KeyOf(e.Source, e.Tenant, e.PublisherID)
	e.BodyHash = sha256.Sum256(e.Body)
}
