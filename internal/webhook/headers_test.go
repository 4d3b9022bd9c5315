package webhook

import (
	"strings"
	"testing"
)

func TestValidHeaders(t *testing.T) {
	t.Parallel()
	one := func(name, value string) EndpointSettings {
		return EndpointSettings{Headers: []Header{{name, value}}}
	}
	many := func(n int) (s EndpointSettings) {
		for i := range n {
			s.Headers = append(s.Headers, Header{"X-" + strings.Repeat("a", i+1), "v"})
		}
		return s
	}
	legacy := func(names ...string) (s EndpointSettings) {
		for _, n := range names {
			s.Legacy = append(s.Legacy, SignatureTemplate{Header: n})
		}
		return s
	}
	with := func(kind AuthKind, s EndpointSettings) EndpointSettings {
		s.Auth.Kind = kind
		return s
	}
	for _, c := range []struct {
		name string
		s    EndpointSettings
		bad  string // part of the error; empty: accepted
	}{
		{"none", EndpointSettings{}, ""},
		{"plain", one("X-Tenant", "acme corp"), ""},
		{"every token character", one("!#$%&'*+-.^_`|~09azAZ", "v"), ""},
		{"empty value", one("X-A", ""), ""},
		{"tab inside", one("X-A", "a\tb"), ""},
		{"accept", one("Accept", "application/json"), ""},
		{"begins like a reserved name", one("Hostname", "v"), ""},
		{"begins like another", one("Viaduct", "v"), ""},
		{"content is a prefix", one("Contents", "v"), ""},
		{"no name", one("", "v"), "header 1: name is empty"},
		{"space in name", one("X A", "v"), "byte 2"},
		{"colon in name", one("X:A", "v"), "byte 2"},
		{"not ASCII", one("X-Ä", "v"), "byte 3"},
		{"a second header in the name", one("X-A: 1\r\nHost", "v"), "byte 4"},
		{"name of 128", one(strings.Repeat("x", 128), "v"), ""},
		{"name of 129", one(strings.Repeat("x", 129), "v"), "129 bytes"},
		{"a second header in the value", one("X-A", "v\r\nHost: evil"), "byte 2"},
		{"line feed", one("X-A", "v\nw"), "byte 2"},
		{"zero byte", one("X-A", "v\x00w"), "byte 2"},
		{"delete", one("X-A", "v\x7fw"), "byte 2"},
		{"Latin-1", one("X-A", "v\xe4w"), "byte 2"},
		{"space around", one("X-A", " v"), "white space around"},
		{"value of 2048", one("X-A", strings.Repeat("v", 2048)), ""},
		{"value of 2049", one("X-A", strings.Repeat("v", 2049)), "2049 bytes"},
		{"twenty", many(20), ""},
		{"twenty-one", many(21), "21 headers"},
		{"twice", EndpointSettings{Headers: []Header{{"X-A", "1"}, {"x-a", "2"}}}, `header 2: name "x-a" is that of header 1`},
		{"too much in all", EndpointSettings{Headers: []Header{{"A", strings.Repeat("v", 2048)}, {"B", strings.Repeat("v", 2048)},
			{"C", strings.Repeat("v", 2048)}, {"D", strings.Repeat("v", 2048)}}}, "8196 bytes"},
		{"legacy", legacy("X-Hub-Signature-256", "Stripe-Signature"), ""},
		{"legacy takes ours", legacy("Webhook-Signature"), "legacy signature 1"},
		{"legacy twice", legacy("X-A", "X-A"), "legacy signature 2"},
		{"legacy and extra", EndpointSettings{Headers: []Header{{"X-A", "1"}}, Legacy: []SignatureTemplate{{Header: "x-a"}}}, "is that of header 1"},
		{"five legacy", legacy("A", "B", "C", "D", "E"), ""},
		{"six legacy", legacy("A", "B", "C", "D", "E", "F"), "6 legacy signatures"},
		{"authorization", one("Authorization", "ApiKey x"), ""},
		{"authorization and basic", with(AuthBasic, one("authorization", "ApiKey x")), "authentication (basic)"},
		{"authorization and bearer", with(AuthBearer, one("Authorization", "ApiKey x")), "authentication (bearer)"},
		{"authorization and oauth2", with(AuthOAuth2, one("Authorization", "ApiKey x")), "authentication (oauth2)"},
		{"authorization and a certificate", with(AuthMTLS, one("Authorization", "ApiKey x")), ""},
	} {
		err := c.s.ValidHeaders()
		if (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%s: %v, want %q", c.name, err, c.bad)
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade",
		"Host", "Content-Length", "content-type", "Content-Encoding", "Expect", "Accept-Encoding", "Range", "If-Match", "Via", "Forwarded",
		"X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "X-HTTP-Method-Override", "Cookie", "Set-Cookie", "User-Agent", "Webhook-Id", "webhook-new",
		"Svix-Id", "X-Sealpost-Attempt", "X_Sealpost_Attempt", "Sealpost-X", "X-CloudTasks-TaskName", "X-AppEngine-QueueName", "X-Goog-IAP-JWT-Assertion",
		"X-Serverless-Authorization", "X-Cloud-Trace-Context", "traceparent", "tracestate", "baggage", "HTTP2-Settings", "Max-Forwards", "Transfer_Encoding"} {
		s := one(name, "v")
		if err := s.ValidHeaders(); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("%s: %v, want that it is reserved", name, err)
		}
	}
	// Every fault in one go, and no value in it.
	s := EndpointSettings{Headers: []Header{{"Host", "s3cret"}, {"X-A", "s3cret\n"}, {"X B", "s3cret"}}}
	err := s.ValidHeaders()
	for _, part := range []string{"header 1", "header 2 (X-A)", "header 3"} {
		if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v, want %s", err, part)
		}
	}
}

func TestTopic(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url   string
		topic string
		is    bool
		bad   string
	}{
		{"pubsub://billing-events", "billing-events", true, ""},
		{"PubSub://billing", "billing", true, ""},
		{"pubsub://a.b~c+d%20_e", "a.b~c+d%20_e", true, ""},
		{"https://example.com/pubsub://x", "", false, ""},
		{"pubsub:/billing", "", false, ""},
		{"pubsub://", "", true, "0 characters"},
		{"pubsub://ab", "ab", true, "2 characters"},
		{"pubsub://abc", "abc", true, ""},
		{"pubsub://" + strings.Repeat("a", 255), strings.Repeat("a", 255), true, ""},
		{"pubsub://" + strings.Repeat("a", 256), strings.Repeat("a", 256), true, "256 characters"},
		{"pubsub://1abc", "1abc", true, "character 1"},
		{"pubsub://abc/def", "abc/def", true, "character 4"},
		{"pubsub://projects/p/topics/t", "projects/p/topics/t", true, "character 9"},
		{"pubsub://user@topic", "user@topic", true, "character 5"},
		{"pubsub://topic?x=1", "topic?x=1", true, "character 6"},
		{"pubsub://google", "google", true, "taken"},
		{"pubsub://sealpost-events", "sealpost-events", true, "taken"},
		{"pubsub://Sealpost-Inbound", "Sealpost-Inbound", true, "taken"},
		{"pubsub://seal%70ost-inbound", "seal%70ost-inbound", true, "taken"},
		{"pubsub://sealposted", "sealposted", true, ""},
	} {
		topic, is := (&Endpoint{URL: c.url}).Topic()
		if topic != c.topic || is != c.is {
			t.Errorf("%s: topic %q, %v", c.url, topic, is)
		}
		if !is {
			continue
		}
		if err := ValidTopic(topic); (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%s: %v, want %q", c.url, err, c.bad)
		}
	}
}
