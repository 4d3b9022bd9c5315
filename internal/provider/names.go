package provider

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
)

// Identities and types that places cannot say, in the order of the table.

// stripeObject is the preset stripe-object: the same kind of event about the same
// object is the same event.
func stripeObject(m *message, id *Identity) {
	if object := str(pick(m.req.Body, path{"data", "object", "id"})[0]); object != "" && id.Type != "" {
		id.ID = object + ":" + id.Type
	}
}

// batchType is what all items of a batch are, or "<scheme>.batch" if they differ:
// a filter of types must not judge a batch by one item. Each item's type is at the
// first of the paths that has one.
func batchType(scheme string, items [][]byte, paths ...path) string {
	typ := ""
	for _, item := range items {
		values := pick(item, paths...)
		one := ""
		for i := range paths {
			one = first(one, str(values[i]))
		}
		if typ != "" && one != typ {
			return scheme + ".batch"
		}
		typ = one
	}
	return typ
}

const maxBatch = 100_000 // items looked at for their types; batches are bounded by their bytes

// batchTypes names a body that is a JSON array of events.
func batchTypes(at path) func(*message, *Identity) {
	return func(m *message, id *Identity) {
		if items, ok := elements(m.req.Body, maxBatch); ok {
			id.Type = batchType(m.scheme.name, items, at)
		}
	}
}

// twilioType: https://www.twilio.com/docs/usage/webhooks
func twilioType(m *message, id *Identity) {
	read := func(name string) string {
		if m.req.Method == http.MethodGet {
			v, _ := m.param(name)
			return v
		}
		return formValue(m.req.Body, name)
	}
	for _, f := range []struct{ field, prefix string }{{"MessageStatus", "message."}, {"SmsStatus", "message."}, {"CallStatus", "call."}} {
		if v := read(f.field); v != "" {
			id.Type = f.prefix + v
			return
		}
	}
	batchTypes(path{"type"})(m, id)
}

// adyenIdentity: Adyen's duplicates have the same pspReference and eventCode;
// success may differ, and is then news.
// https://docs.adyen.com/development-resources/webhooks/best-practices
func adyenIdentity(m *message, id *Identity) {
	values := pick(m.req.Body, path{"notificationItems"})
	items, _ := elements(values[0], maxItems)
	id.Type = batchType(m.scheme.name, items, path{"NotificationRequestItem", "eventCode"})
	if len(items) != 1 {
		return
	}
	const outer = "NotificationRequestItem"
	values = pick(items[0], path{outer, "pspReference"}, path{outer, "eventCode"}, path{outer, "success"}, path{outer, "eventDate"})
	success, _ := field(values[2])
	if psp := str(values[0]); psp != "" {
		id.ID = strings.Join([]string{psp, str(values[1]), success}, "/")
	}
	id.OccurredAt = m.time(place{}, str(values[3]))
}

// mailgunType: forms name the event in a field, except forwarded messages, which
// have none.
func mailgunType(m *message, id *Identity) { id.Type = first(id.Type, m.event) }

// zendeskID: the body of an event subscription has the event's id; that of a
// trigger is anyone's, so that an id in it may be a ticket's.
// https://developer.zendesk.com/api-reference/webhooks/event-types/webhook-event-types/
func zendeskID(m *message, id *Identity) {
	values := pick(m.req.Body, path{"id"}, path{"zendesk_event_version"})
	if len(values[1]) > 0 && str(values[0]) != "" {
		id.ID = str(values[0])
	}
}

var attemptNumber = regexp.MustCompile(`"attemptNumber"\s*:\s*\d+`)

// hubspotIdentity: a batch has no id, and its retries differ in attemptNumber. A
// string cannot hold the pattern, since its quotes would be escaped.
func hubspotIdentity(m *message, id *Identity) {
	work(len(m.req.Body))
	same := attemptNumber.ReplaceAll(m.req.Body, []byte(`"attemptNumber":0`))
	c := content{body: same}
	if m.scheme.NeedsURL() {
		c.head = []byte(m.req.Method + m.req.URL)
	}
	id.ID = first(id.ID, c.sum())
	batchTypes(path{"subscriptionType"})(m, id)
	id.Type = first(id.Type, str(pick(m.req.Body, path{"subscriptionType"})[0]))
}

func linearType(m *message, id *Identity) {
	values := pick(m.req.Body, path{"type"}, path{"action"})
	id.Type = str(values[0])
	if action := str(values[1]); id.Type != "" && action != "" {
		id.Type += "." + action
	}
}

// asanaType: https://developers.asana.com/reference/events
func asanaType(m *message, id *Identity) {
	events, ok := elements(pick(m.req.Body, path{"events"})[0], maxBatch)
	if !ok {
		return
	}
	if len(events) == 0 {
		id.Type = "heartbeat"
		return
	}
	resource := batchType(m.scheme.name, events, path{"resource", "resource_type"}, path{"type"})
	action := batchType(m.scheme.name, events, path{"action"})
	batch := m.scheme.name + ".batch"
	switch {
	case resource == batch || action == batch:
		id.Type = batch
	case resource != "" && action != "":
		id.Type = resource + "." + action
	}
}

func discordType(m *message, id *Identity) {
	values := pick(m.req.Body, path{"type"}, path{"event", "type"})
	if typ := str(values[1]); typ != "" {
		id.Type = typ
	} else if kind := scalar(values[0]); kind != "" {
		id.Type = "interaction." + kind
	}
}

// metaType: https://developers.facebook.com/docs/graph-api/webhooks/getting-started
func metaType(m *message, id *Identity) {
	values := pick(m.req.Body, path{"object"}, path{"entry"})
	id.Type = str(values[0])
	entries, _ := elements(values[1], maxBatch)
	var changes [][]byte
	for _, e := range entries {
		list, _ := elements(pick(e, path{"changes"})[0], maxBatch)
		changes = append(changes, list...)
	}
	field := batchType(m.scheme.name, changes, path{"field"})
	switch {
	case field == m.scheme.name+".batch":
		id.Type = field
	case id.Type != "" && field != "":
		id.Type += "." + field
	}
}

// xType: https://docs.x.com/x-api/account-activity/introduction
func xType(m *message, id *Identity) {
	names := []string{"tweet_create_events", "tweet_delete_events", "favorite_events", "follow_events", "unfollow_events",
		"block_events", "unblock_events", "mute_events", "unmute_events", "user_event", "direct_message_events",
		"direct_message_indicate_typing_events", "direct_message_mark_read_events"}
	paths := make([]path, len(names))
	for i, name := range names {
		paths[i] = path{name}
	}
	values := pick(m.req.Body, paths...)
	for i, name := range names {
		if values[i] != nil {
			id.Type = name
			return
		}
	}
}

// docusignID: a retry counts itself in the body, so that the body's hash would be
// another each time.
// https://developers.docusign.com/platform/webhooks/connect/json-sim-event-reference/
func docusignID(m *message, id *Identity) {
	values := pick(m.req.Body, path{"data", "envelopeId"}, path{"event"}, path{"data", "recipientId"}, path{"generatedDateTime"})
	if envelope, at := str(values[0]), str(values[3]); envelope != "" && at != "" {
		id.ID = strings.Join([]string{envelope, str(values[1]), str(values[2]), at}, "/")
	}
}

// graphIdentity: without an id, equal notifications are different changes.
func graphIdentity(m *message, id *Identity) {
	items, _ := elements(pick(m.req.Body, path{"value"})[0], maxItems)
	id.Type = batchType(m.scheme.name, items, path{"changeType"}, path{"lifecycleEvent"})
	if len(items) == 1 {
		id.ID = str(pick(items[0], path{"id"})[0])
	}
	if id.ID == "" {
		id.ID, _ = m.read(place{arrival: true}, "")
	}
	id.ID = string(bytes.TrimSpace([]byte(id.ID)))
}
