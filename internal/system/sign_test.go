package system_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// call is a provider's signed request.
type call struct {
	url    string
	id     string // of the event, as the provider names it
	typ    string // of the event
	header http.Header
	body   []byte
	key    webhook.EventKey
}

// awkward is the end of a JSON object that no JSON library gives back: an escape
// that need not be one, a number that is not its shortest spelling, one that a
// float64 cannot hold, a name that occurs twice, bytes that are not UTF-8, and a
// new line after the object.
const awkward = `"esc":"\u001B","zero":0.0,"big":1152921504606846977,"dup":1,"dup":2,"raw":"` + "\xff\xfe" + `" }` + "\n"

// signed is what the source's provider sends for its event n, signed by the words of
// the provider's documentation, without any code of the product's.
func signed(t testing.TB, src system.Source, n string) call {
	t.Helper()
	now := time.Now()
	unix := fmt.Sprint(now.Unix())
	c := call{url: src.URL, id: "id-" + n, typ: "invoice.paid", header: http.Header{"Content-Type": {"application/json"}}}
	switch src.Scheme {
	case "standard-webhooks", "svix", "standard-webhooks-v1a":
		c.body = fmt.Appendf(nil, `{"type":"invoice.paid","timestamp":%q,%s`, now.UTC().Format(time.RFC3339Nano), awkward)
		brand := "webhook-"
		if src.Scheme == "svix" {
			brand = "svix-"
		}
		c.header.Set(brand+"id", c.id)
		c.header.Set(brand+"timestamp", unix)
		c.header.Set(brand+"signature", standardSignature(t, src, c.id+"."+unix+"."+string(c.body)))
	case "stripe":
		c.body = fmt.Appendf(nil, `{"id":%q,"object":"event","created":%s,"type":"invoice.paid",%s`, c.id, unix, awkward)
		c.header.Set("Stripe-Signature", "t="+unix+",v1="+hex.EncodeToString(sum(src.Secret, unix+"."+string(c.body))))
	case "github":
		c.typ, c.body = "push", []byte(`{"action":"opened",`+awkward)
		c.header.Set("X-GitHub-Delivery", c.id)
		c.header.Set("X-GitHub-Event", c.typ)
		c.header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum(src.Secret, string(c.body))))
	case "shopify":
		c.typ, c.body = "orders/create", []byte(`{"order":1,`+awkward)
		c.header.Set("X-Shopify-Webhook-Id", c.id)
		c.header.Set("X-Shopify-Topic", c.typ)
		c.header.Set("X-Shopify-Hmac-SHA256", base64.StdEncoding.EncodeToString(sum(src.Secret, string(c.body))))
	case "slack":
		c.typ = "message"
		c.body = fmt.Appendf(nil, `{"type":"event_callback","event_id":%q,"event_time":%s,"event":{"type":"message"},%s`, c.id, unix, awkward)
		c.header.Set("X-Slack-Request-Timestamp", unix)
		c.header.Set("X-Slack-Signature", "v0="+hex.EncodeToString(sum(src.Secret, "v0:"+unix+":"+string(c.body))))
	case "generic-hmac":
		c.body = []byte(`{"n":1,` + awkward)
		c.header.Set("X-Event-Id", c.id)
		c.header.Set("X-Event-Type", c.typ)
		c.header.Set("X-Signature", "sha256="+hex.EncodeToString(sum(src.Secret, string(c.body))))
	default:
		t.Fatalf("this test cannot sign like %s", src.Scheme)
	}
	c.key = webhook.KeyOf(src.Name, webhook.DefaultTenant, c.id)
	return c
}

// standardSignature is an entry of the signature header of
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
func standardSignature(t testing.TB, src system.Source, content string) string {
	t.Helper()
	text, prefix := src.Secret, "whsec_"
	if src.SigningKey != "" {
		text, prefix = src.SigningKey, "whsk_"
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, prefix))
	must(t, err)
	if src.SigningKey != "" {
		return "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(ed25519.PrivateKey(key), []byte(content)))
	}
	return "v1," + base64.StdEncoding.EncodeToString(sum(string(key), content))
}

func sum(key, content string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(content))
	return mac.Sum(nil)
}

// handSigned are the sources that this file signs for on its own; the samples of
// the product's own making are tested apart.
func handSigned(sources []system.Source) []system.Source {
	var out []system.Source
	for _, s := range sources {
		switch s.Scheme {
		case "standard-webhooks", "standard-webhooks-v1a", "svix", "stripe", "github", "shopify", "slack", "generic-hmac":
			out = append(out, s)
		}
	}
	return out
}
