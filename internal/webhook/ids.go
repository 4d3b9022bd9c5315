package webhook

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// EventKey identifies an event for as long as its row is kept. It is a hash, so
// that monotonic provider ids make no hot spot in Spanner, and it is the unique
// constraint that makes a repeat a repeat.
type EventKey [16]byte

// idText is lower-case base32 without padding: 26 characters for a key, safe in
// headers, URLs and task names, and never with a '.'.
var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// KeyOf is the first 16 bytes of SHA-256(source 0x00 tenant 0x00 id). Ids are
// scoped, never assumed globally unique. Neither source nor tenant can hold a
// zero byte ([ValidName]; published sources are checked at decoding), so no two
// different triples give the same input.
func KeyOf(source, tenant, id string) EventKey {
	h := sha256.New()
	h.Write([]byte(source))
	h.Write([]byte{0})
	h.Write([]byte(tenant))
	h.Write([]byte{0})
	h.Write([]byte(id))
	var k EventKey
	copy(k[:], h.Sum(nil))
	return k
}

// ID is the event's public id and the webhook-id that every endpoint sees on
// every attempt and replay: "evt_" and 26 characters.
func (k EventKey) ID() string { return "evt_" + idText.EncodeToString(k[:]) }

// String is [EventKey.ID].
func (k EventKey) String() string { return k.ID() }

// MarshalText makes a key its ID in JSON.
func (k EventKey) MarshalText() ([]byte, error) { return []byte(k.ID()), nil }

// UnmarshalText is the inverse of MarshalText.
func (k *EventKey) UnmarshalText(b []byte) error {
	v, err := ParseEventID(string(b))
	if err == nil {
		*k = v
	}
	return err
}

// ParseEventID reads what [EventKey.ID] wrote. Only the canonical spelling is
// accepted.
func ParseEventID(s string) (EventKey, error) {
	var k EventKey
	text, ok := strings.CutPrefix(s, "evt_")
	b, err := idText.DecodeString(text)
	if !ok || err != nil || len(b) != len(k) {
		return k, fmt.Errorf("event id %q: want evt_ and 26 characters of a-z and 2-7", s)
	}
	copy(k[:], b)
	if k.ID() != s {
		return EventKey{}, fmt.Errorf("event id %q is not in its canonical spelling", s)
	}
	return k, nil
}

// OrderKey stands for an ordering key in primary keys and indexes.
type OrderKey [16]byte

// OrderKeyOf is the first 16 bytes of the key's SHA-256.
func OrderKeyOf(orderingKey string) (k OrderKey) {
	sum := sha256.Sum256([]byte(orderingKey))
	copy(k[:], sum[:])
	return k
}

// EndpointID is the id of an endpoint that was given none: "ep_" and the text
// form of 16 bytes, for which a UUIDv7 serves.
func EndpointID(u [16]byte) string { return "ep_" + idText.EncodeToString(u[:]) }

// KeyID is the id of a signing key made from 16 bytes: "key_" and their text.
func KeyID(u [16]byte) string { return "key_" + idText.EncodeToString(u[:]) }

// CanonicalID makes a publisher's event id storable: ids longer than
// [MaxIDBytes], and ids with invalid UTF-8 or control characters, are replaced
// by "sha256:" and the hash of their bytes. Equal ids stay equal and, but for a
// hash collision, different ones different.
func CanonicalID(id string) string {
	ok := len(id) <= MaxIDBytes && utf8.ValidString(id)
	for _, r := range id {
		ok = ok && !unicode.IsControl(r)
	}
	if ok {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// AttemptKey names one planned attempt. The dispatcher receives it as the body
// of a Cloud Task and checks it against the delivery's row.
type AttemptKey struct {
	Event    EventKey `json:"event"`
	Tenant   string   `json:"tenant"`
	Endpoint string   `json:"endpoint"`
	// Generation is the delivery's: it starts at 1, and each replay starts a new one.
	Generation int64 `json:"generation"`
	// Attempt counts from 1 within the generation.
	Attempt int64 `json:"attempt"`
	// Task counts how often a task was made anew for a delivery (a lost timer, a
	// release, a replay). It makes task names unique where Cloud Tasks still
	// remembers the old name; it never changes the attempt number.
	Task int64 `json:"task"`
	// Bounce counts how often the dispatcher put the task back for later, because
	// the endpoint's limits or shares were used up. Like Task it makes names unique
	// and never changes the attempt; unlike Task it is not in the delivery's row.
	Bounce int64 `json:"bounce,omitempty"`
}

// TaskID is the deterministic Cloud Tasks name of the attempt's task: creating
// it twice is harmless. Its prefix is a hash, as Cloud Tasks advises for named
// tasks, so that sequential ids do not slow the queue down.
func (k AttemptKey) TaskID() string {
	name := fmt.Sprintf("%s-%s-%s-%d-%d-%d", k.Event.ID(), k.Tenant, k.Endpoint, k.Generation, k.Attempt, k.Task)
	if k.Bounce > 0 {
		name += fmt.Sprintf("-b%d", k.Bounce)
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:6]) + "-" + name
}

// String names the attempt in logs and errors.
func (k AttemptKey) String() string {
	return fmt.Sprintf("%s to %s/%s generation %d attempt %d", k.Event.ID(), k.Tenant, k.Endpoint, k.Generation, k.Attempt)
}

// ParseAttemptKey reads the JSON body of a task. Every field is needed.
func ParseAttemptKey(b []byte) (AttemptKey, error) {
	var k AttemptKey
	if err := json.Unmarshal(b, &k); err != nil {
		return k, fmt.Errorf("attempt key: %w", err)
	}
	if k.Event == (EventKey{}) || ValidName(k.Tenant) != nil || ValidName(k.Endpoint) != nil ||
		k.Generation < 1 || k.Attempt < 1 || k.Task < 1 || k.Bounce < 0 {
		return k, fmt.Errorf("attempt key is incomplete: %s", k)
	}
	return k, nil
}
