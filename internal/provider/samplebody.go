package provider

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// sampleTypes are the default types, best first, of schemes whose type a sample
// chooses.
var sampleTypes = map[string][]string{
	"standard-webhooks": {"order.paid"}, "standard-webhooks-v1a": {"order.paid"}, "svix": {"invoice.paid"},
	"stripe": {"invoice.paid", "checkout.session.completed", "customer.subscription.deleted"}, "github": {"push", "ping", "pull_request"},
	"shopify": {"orders/create"}, "slack": {"app_mention"}, "gitlab-token": {"push"}, "gitlab-signing-token": {"push"},
	"bitbucket": {"repo:push"}, "twilio": {"message.delivered"}, "sendgrid": {"delivered"}, "square": {"payment.updated"},
	"paypal": {"PAYMENT.CAPTURE.COMPLETED"}, "adyen": {"AUTHORISATION"}, "paddle": {"transaction.completed"}, "mailgun": {"delivered"},
	"zendesk": {"zen:event-type:ticket.created"}, "intercom": {"conversation.user.created"}, "hubspot-v1": {"contact.creation"},
	"hubspot-v2": {"contact.creation"}, "hubspot-v3": {"contact.creation"}, "linear": {"Issue.create"}, "asana": {"task.changed"},
	"dropbox": {"dropbox.unknown"}, "pagerduty": {"incident.triggered"}, "zoom": {"meeting.started", "endpoint.url_validation"},
	"discord": {"APPLICATION_AUTHORIZED"}, "meta": {"page.feed"}, "x-twitter": {"tweet_create_events"}, "typeform": {"form_response"},
	"docusign": {"envelope-completed"}, "aws-sns": {"Notification", "SubscriptionConfirmation"}, "microsoft-graph": {"updated"},
	genericHMAC: {"order.paid"}, genericToken: {"order.paid"}, "basic": {"basic.unknown"}, jwtScheme: {"order.paid"}, googleOIDC: {"order.paid"},
}

// fillIn makes the body and the provider's headers. Names and numbers are made up.
func (b *signing) fillIn() error {
	s := &b.sample
	if types := sampleTypes[b.scheme.name]; s.Type == "" && len(types) > 0 {
		s.Type = types[0]
	}
	id, typ, at := s.ID, s.Type, s.At.UTC()
	stamp := at.Format(time.RFC3339)
	kind, action, _ := strings.Cut(typ, ".")
	var v any
	switch b.scheme.name {
	case "twilio":
		return b.form(url.Values{"MessageSid": {"SM" + id}, "AccountSid": {"AC0001"}, "From": {"+15005550006"}, "To": {"+15005550009"}, kindField(kind): {action}}, id)
	case "x-twitter-crc":
		b.request.Method, b.request.Header = http.MethodGet, http.Header{}
		b.request.URL += "?crc_token=" + url.QueryEscape(id)
		return nil
	case "slack":
		v = map[string]any{"type": "event_callback", "team_id": "T0001", "api_app_id": "A0001", "event_id": id, "event_time": at.Unix(),
			"event": map[string]any{"type": typ, "user": "U0001", "text": "is build 218 out?", "channel": "C0001"}}
		if typ == "url_verification" {
			v = map[string]any{"type": typ, "challenge": id}
		}
	case "stripe":
		v = map[string]any{"id": id, "object": "event", "type": typ, "created": at.Unix(), "livemode": false, "pending_webhooks": 1,
			"data": map[string]any{"object": map[string]any{"id": "in_0001", "object": "invoice", "amount_paid": 4200, "currency": "eur", "customer": "cus_0001", "status": "paid"}}}
	case "github":
		b.set("X-GitHub-Event", typ)
		b.set("X-GitHub-Delivery", id)
		v = map[string]any{"ref": "refs/heads/main", "repository": map[string]any{"full_name": "acme/shop"}, "pusher": map[string]any{"name": "ada"}, "head_commit": map[string]any{"timestamp": stamp}}
		if typ == "ping" {
			v = map[string]any{"zen": "Ship small.", "hook_id": 1, "repository": map[string]any{"full_name": "acme/shop"}}
		}
	case "shopify":
		b.set("X-Shopify-Topic", typ)
		b.set("X-Shopify-Webhook-Id", id)
		b.set("X-Shopify-Event-Id", id+"-event")
		b.set("X-Shopify-Triggered-At", at.Format(time.RFC3339Nano))
		v = map[string]any{"id": 1042, "name": "#1042", "total_price": "42.00", "currency": "EUR"}
	case "gitlab-token", "gitlab-signing-token":
		b.set("X-Gitlab-Event", "Push Hook")
		b.set("Idempotency-Key", id)
		v = map[string]any{"object_kind": typ, "ref": "refs/heads/main", "user_username": "ada", "project": map[string]any{"path_with_namespace": "acme/shop"}, "sample": id}
	case "bitbucket":
		b.set("X-Event-Key", typ)
		b.set("X-Request-UUID", id)
		v = map[string]any{"repository": map[string]any{"full_name": "acme/shop"}, "push": map[string]any{"changes": []any{}}}
	case "paypal":
		b.set("PAYPAL-AUTH-ALGO", "SHA256withRSA")
		b.set("PAYPAL-CERT-URL", "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-sample")
		v = map[string]any{"id": id, "event_type": typ, "create_time": stamp, "resource_type": "capture", "resource": map[string]any{"amount": map[string]any{"value": "42.00", "currency_code": "EUR"}}}
	case "zendesk":
		b.set("X-Zendesk-Webhook-Invocation-Id", id)
		v = map[string]any{"id": id, "type": typ, "time": stamp, "zendesk_event_version": "2022-11-06", "subject": "zen:ticket:1042", "detail": map[string]any{"status": "NEW"}}
	case "linear":
		b.set("Linear-Delivery", id)
		b.set("Linear-Event", kind)
		v = map[string]any{"type": kind, "action": action, "createdAt": stamp, "webhookTimestamp": b.now.UnixMilli(), "data": map[string]any{"title": "Webhooks arrive twice"}}
	case "mailgun", "adyen", "aws-sns", "microsoft-graph":
		return b.signedBody(id, typ, stamp)
	case googleOIDC:
		v = map[string]any{"subscription": "projects/acme/subscriptions/orders",
			"message": map[string]any{"messageId": id, "publishTime": stamp, "attributes": map[string]any{"ce-type": typ}, "data": "eyJvcmRlciI6MTA0Mn0="}}
	default:
		v = b.plainBody(id, typ, stamp)
	}
	return b.json(v)
}

// plainBody are bodies that need no headers.
func (b *signing) plainBody(id, typ, stamp string) any {
	kind, action, _ := strings.Cut(typ, ".")
	millis := b.sample.At.UnixMilli()
	switch b.scheme.name {
	case "sendgrid":
		return []any{map[string]any{"email": "ada@example.com", "event": typ, "sg_event_id": id, "timestamp": b.sample.At.Unix()}}
	case "square":
		return map[string]any{"event_id": id, "type": typ, "created_at": stamp, "merchant_id": "M0001", "data": map[string]any{"type": "payment", "id": "P0001"}}
	case "paddle":
		return map[string]any{"event_id": id, "event_type": typ, "occurred_at": stamp, "notification_id": "ntf_" + id, "data": map[string]any{"status": "completed"}}
	case "intercom":
		return map[string]any{"type": "notification_event", "id": id, "topic": typ, "created_at": b.sample.At.Unix(), "data": map[string]any{"item": map[string]any{"type": "conversation"}}}
	case "hubspot-v1", "hubspot-v2", "hubspot-v3":
		return []any{map[string]any{"eventId": id, "subscriptionId": 1, "portalId": 1, "occurredAt": millis, "subscriptionType": typ, "attemptNumber": 0, "objectId": 1042}}
	case "asana":
		return map[string]any{"events": []any{map[string]any{"action": action, "created_at": stamp, "resource": map[string]any{"gid": id, "resource_type": kind}, "user": map[string]any{"gid": "1"}}}}
	case "dropbox":
		return map[string]any{"list_folder": map[string]any{"accounts": []any{"dbid:" + id}}, "delta": map[string]any{"users": []any{1042}}}
	case "pagerduty":
		return map[string]any{"event": map[string]any{"id": id, "event_type": typ, "occurred_at": stamp, "resource_type": "incident", "data": map[string]any{"title": "Queue grows"}}}
	case "zoom":
		payload := map[string]any{"account_id": "A0001", "object": map[string]any{"id": id, "topic": "Stand-up"}}
		if typ == "endpoint.url_validation" {
			payload = map[string]any{"plainToken": id}
		}
		return map[string]any{"event": typ, "event_ts": millis, "payload": payload}
	case "discord":
		return map[string]any{"version": 1, "application_id": "1", "type": 1, "event": map[string]any{"type": typ, "timestamp": stamp, "data": map[string]any{"user": map[string]any{"id": id}}}}
	case "meta":
		return map[string]any{"object": kind, "entry": []any{map[string]any{"id": id, "time": b.sample.At.Unix(), "changes": []any{map[string]any{"field": action, "value": map[string]any{"item": "comment"}}}}}}
	case "x-twitter":
		return map[string]any{"for_user_id": "1", typ: []any{map[string]any{"id_str": id, "created_at": stamp, "text": "out now"}}}
	case "typeform":
		return map[string]any{"event_id": id, "event_type": typ, "form_response": map[string]any{"form_id": "F0001", "submitted_at": stamp}}
	case "docusign":
		return map[string]any{"event": typ, "apiVersion": "v2.1", "generatedDateTime": stamp, "retryCount": 0, "data": map[string]any{"accountId": "1", "envelopeId": id}}
	}
	return map[string]any{"id": id, "type": typ, "timestamp": stamp, "data": map[string]any{"order": 1042, "total": "42.00"}}
}

// signedBody are bodies that hold their signature.
func (b *signing) signedBody(id, typ, stamp string) error {
	mac := func(key []byte, text string) []byte { return hmacSHA256.sum(key, content{head: []byte(text)}) }
	switch b.scheme.name {
	case "mailgun":
		ts := unixSeconds.write(b.now)
		return b.json(map[string]any{
			"signature":  map[string]any{"timestamp": ts, "token": id, "signature": lowerHex.encode(mac([]byte(b.secret), ts+id))},
			"event-data": map[string]any{"event": typ, "timestamp": b.sample.At.Unix(), "recipient": "ada@example.com"},
		})
	case "adyen":
		k, err := hexKey([]byte(b.secret))
		if err != nil {
			return err
		}
		text := strings.Join([]string{id, "", "AcmeECOM", "order:1042", "4200", "EUR", typ, "true"}, ":")
		return b.json(map[string]any{"live": "false", "notificationItems": []any{map[string]any{"NotificationRequestItem": map[string]any{
			"pspReference": id, "merchantAccountCode": "AcmeECOM", "merchantReference": "order:1042", "amount": map[string]any{"value": 4200, "currency": "EUR"},
			"eventCode": typ, "eventDate": stamp, "success": "true", "additionalData": map[string]any{"hmacSignature": stdBase64.encode(mac(k.bytes, text))},
		}}}})
	case "aws-sns":
		body, err := b.snsSample()
		if err != nil {
			return err
		}
		b.set("Content-Type", "text/plain; charset=UTF-8")
		b.set("X-Amz-Sns-Message-Type", body["Type"].(string)) // snsSample makes it a text
		return b.json(body)
	}
	return b.json(map[string]any{"value": []any{map[string]any{"id": id, "subscriptionId": "1", "clientState": b.secret, "changeType": typ, "resource": "users/1/messages/1042"}}})
}

func kindField(kind string) string {
	if kind == "call" {
		return "CallStatus"
	}
	return "MessageStatus"
}

func (b *signing) form(v url.Values, id string) error {
	b.set("Content-Type", "application/x-www-form-urlencoded")
	b.set("I-Twilio-Idempotency-Token", id)
	b.request.Body = []byte(v.Encode())
	return nil
}

func (b *signing) json(v any) error {
	var err error
	b.request.Body, err = json.Marshal(v)
	return err
}
