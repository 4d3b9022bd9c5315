package store

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/sealpost/sealpost/internal/payload"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Spanner's limits (https://cloud.google.com/spanner/quotas), and ours below them.
const (
	maxMutations = 80_000
	maxCell      = 10 << 20
	// maxCommitBytes leaves a third of Spanner's 100 MB for indexes and framing.
	maxCommitBytes = 64 << 20
	// maxGroup bounds the events or records of one transaction, and with it how
	// long its locks are held.
	maxGroup = 150
	// maxBody bounds what a stored body may unpack to: more than any front door of
	// ours takes in (25 MB).
	maxBody = 64 << 20
	// defaultMaxEndpoints keeps an event and its deliveries deletable: each closed
	// delivery has at most four index entries, and 10,000 of them with their entries
	// stay below two thirds of the mutations that the deletion's one commit may have.
	defaultMaxEndpoints = 10_000
)

// What a change counts against maxMutations. Spanner counts the columns written
// and the index entries touched; here an index entry counts as many as it has
// columns, which is never less. A test recomputes these from the DDL.
const (
	costEvent     = 27 + 18
	costPayload   = 4
	costDelivery  = 24 + 55
	costDuplicate = 4
	// costOrdered is the row of a delivery's ordering key with its index entry.
	costOrdered = 11 + 7
	// costReplay is the index entry that an event of unsigned id takes from an
	// earlier one: that row's update, and the entry's removal.
	costReplay = 2 + 3
	// costReopen is the update of a delivery with all its index entries removed and
	// written anew.
	costReopen = costDelivery + 55 + costOrdered
	// costRecord is one recorded attempt: its row, the delivery's update with all
	// its index entries removed and written anew, the closing of the event, what may
	// follow for its endpoint (health with its index entry, the endpoint's row, audit,
	// the set's version and two notices), and the delivery that follows in an order.
	costRecord = 19 + costDelivery + 55 + 8 + costHealth + 20 + 8 + 4 + 2*costNotice + 2*costOrdered + costDelivery + 55
	costHealth = 19 + 2*6
	costNotice = 9 + 4 + 6

	// costCancel is a delivery that is closed without an attempt.
	costCancel = costDelivery + 55 + 8

	maxChunk = (maxMutations - costEvent - costPayload - costReplay) / (costDelivery + costOrdered)
)

// Sizes in bytes that the commit estimate adds for one row and its index entries.
const (
	sizeEvent    = 4 << 10
	sizeDelivery = 2 << 10
)

const (
	maxHeaders = 1 << 20
	maxExcerpt = 64 << 10
)

// checkEvent reports why an event cannot be stored. The body is checked apart,
// in its stored form.
func checkEvent(e *webhook.Event) error {
	if err := webhook.ValidName(e.Tenant); err != nil {
		return invalid("tenant: %v", err)
	}
	if err := webhook.ValidType(e.Type); err != nil {
		return invalid("%v", err)
	}
	switch {
	case e.Source == "":
		return invalid("source is empty")
	case e.PublisherID == "":
		return invalid("publisher's id is empty")
	case e.Key != webhook.KeyOf(e.Source, e.Tenant, e.PublisherID):
		return invalid("key is not the hash of source, tenant and id: the event was not sealed")
	case e.ReceivedAt.IsZero():
		return invalid("time of receipt is missing")
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"source", e.Source, 2048},
		{"publisher's id", e.PublisherID, webhook.MaxIDBytes},
		{"subject", e.Subject, 2048},
		{"ordering key", e.OrderingKey, 1024},
		{"content type", e.ContentType, 2048},
		{"receipt", e.Receipt, 256},
	} {
		if len(f.value) > f.limit {
			return tooLarge("%s has %d bytes, at most %d are allowed", f.name, len(f.value), f.limit)
		}
		if !utf8.ValidString(f.value) {
			return invalid("%s is not valid UTF-8", f.name)
		}
	}
	return nil
}

// packed is a body as its cell holds it.
type packed struct {
	body     []byte
	encoding string
}

func pack(b []byte) (packed, error) {
	p := packed{body: b}
	if len(b) > maxBody {
		return packed{}, tooLarge("body has %d bytes, at most %d are allowed", len(b), maxBody)
	}
	if len(b) > maxCell {
		p = packed{payload.Pack(b), payload.Encoding}
	} else if out, ok := payload.Compress(b); ok {
		p = packed{out, payload.Encoding}
	}
	if len(p.body) > maxCell {
		return packed{}, tooLarge("body needs %d bytes in its stored form, a cell holds %d", len(p.body), maxCell)
	}
	if p.body == nil {
		p.body = []byte{} // an empty body is not a missing one
	}
	return p, nil
}

func unpack(p packed) ([]byte, error) {
	if p.encoding == "" {
		return p.body, nil
	}
	return payload.Decompress(p.body, maxBody)
}

func headersText(hs []webhook.Header) (string, error) {
	if len(hs) == 0 {
		return "[]", nil
	}
	b, err := json.Marshal(hs)
	if err != nil {
		return "", err
	}
	if len(b) > maxHeaders {
		return "", tooLarge("headers have %d bytes, at most %d are allowed", len(b), maxHeaders)
	}
	return string(b), nil
}

// clip makes text that only people read fit its column: never a reason to lose
// the row that carries it.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
