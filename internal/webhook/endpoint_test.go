package webhook

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestEndpointSettingsValidate(t *testing.T) {
	t.Parallel()
	headers := func(n int) (hs []Header) {
		for i := range n {
			hs = append(hs, Header{fmt.Sprint("X-", i), "v"})
		}
		return hs
	}
	entries := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint(i)] = "v"
		}
		return m
	}
	sealed := EndpointAuth{Kind: AuthBasic, Summary: "user", Sealed: []byte{1}, SealedBy: "1"}
	for _, c := range []struct {
		s   EndpointSettings
		bad string // a part of the error; empty: accepted
	}{
		{EndpointSettings{}, ""},
		{EndpointSettings{Filter: strings.Repeat("x", MaxFilter)}, ""},
		{EndpointSettings{Filter: strings.Repeat("x", MaxFilter+1)}, "filter has 4097 bytes"},
		{EndpointSettings{Filter: "a\n\t&& b"}, ""},
		{EndpointSettings{Filter: "a\x00"}, "filter holds a control character"},
		{EndpointSettings{Filter: "\xff"}, "filter is not valid UTF-8"},
		{EndpointSettings{PayloadMode: PayloadThin, Ordering: OrderingParkKey}, ""},
		{EndpointSettings{PayloadMode: "Thin"}, `payload_mode: "Thin"`},
		{EndpointSettings{Ordering: "fifo"}, `ordering: "fifo"`},
		{EndpointSettings{Headers: headers(20)}, ""},
		{EndpointSettings{Headers: headers(21)}, "21 headers"},
		{EndpointSettings{Headers: []Header{{"X-A", "a\tb c"}}}, ""},
		{EndpointSettings{Headers: []Header{{"X A", "b"}}}, "header 1"},
		{EndpointSettings{Headers: []Header{{"", "b"}}}, "header 1"},
		{EndpointSettings{Headers: []Header{{"X-Ä", "b"}}}, "header 1"},
		{EndpointSettings{Headers: []Header{{"X-A", "b\r\nX-B: c"}}}, "byte 2"},
		{EndpointSettings{Headers: []Header{{"X-A", " b"}}}, "white space"},
		{EndpointSettings{Headers: []Header{{"X-A", strings.Repeat("b", MaxHeaderValue)}}}, ""},
		{EndpointSettings{Headers: []Header{{"X-A", strings.Repeat("b", MaxHeaderValue+1)}}}, "header 1 (X-A): value has 2049 bytes"},
		{EndpointSettings{Headers: []Header{{"X-A", "b"}, {"x-a", "c"}}}, "is that of header 1"},
		{EndpointSettings{Legacy: []SignatureTemplate{{"X-Signature", "sha256={hex}"}}}, ""},
		{EndpointSettings{Legacy: []SignatureTemplate{{"X-Signature", ""}}}, "legacy signature 1"},
		{EndpointSettings{Legacy: make([]SignatureTemplate, 6)}, "6 legacy signatures"},
		{EndpointSettings{Auth: sealed}, ""},
		{EndpointSettings{Auth: EndpointAuth{Kind: "digest", Sealed: []byte{1}, SealedBy: "1"}}, `auth.kind: "digest"`},
		{EndpointSettings{Auth: EndpointAuth{Kind: AuthBearer}}, "auth: the credentials"},
		{EndpointSettings{Auth: EndpointAuth{Sealed: []byte{1}}}, "auth: there are credentials"},
		{EndpointSettings{Auth: EndpointAuth{Kind: AuthMTLS, Sealed: make([]byte, MaxAuthSealed+1), SealedBy: "1"}}, "auth: the sealed credentials"},
		{EndpointSettings{Health: HealthPolicy{CoolDown: 1}}, "health: cool-down"},
		{EndpointSettings{Owner: "ops@example.com"}, ""},
		{EndpointSettings{Owner: "https://example.com/alerts?x=1"}, ""},
		{EndpointSettings{Owner: "http://example.com/alerts"}, "owner: not an https URL"},
		{EndpointSettings{Owner: "https://user@example.com/"}, "owner: not an https URL"},
		{EndpointSettings{Owner: "https:///x"}, "owner: not an https URL"},
		{EndpointSettings{Owner: "Ops <ops@example.com>"}, "owner:"},
		{EndpointSettings{Owner: "ops"}, "owner:"},
		{EndpointSettings{Metadata: entries(50)}, ""},
		{EndpointSettings{Metadata: entries(51)}, "metadata: there are 51"},
		{EndpointSettings{Metadata: map[string]string{"": "v"}}, "metadata: a key is empty"},
		{EndpointSettings{Metadata: map[string]string{strings.Repeat("k", 65): "v"}}, "metadata: key has 65"},
		{EndpointSettings{Metadata: map[string]string{"k": strings.Repeat("v", 513)}}, `metadata: value of "k" has 513`},
		{EndpointSettings{APIVersion: "2026-03-01"}, ""},
		{EndpointSettings{APIVersion: "v1\n"}, "api_version"},
		{EndpointSettings{APIVersion: strings.Repeat("1", 65)}, "api_version has 65"},
		{EndpointSettings{ManagedBy: ManagedByTerraform}, ""},
		{EndpointSettings{ManagedBy: "pulumi"}, `managed_by: "pulumi"`},
	} {
		if err := c.s.Validate(); (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%+v: %v, want %q", c.s, err, c.bad)
		}
	}
	all := EndpointSettings{PayloadMode: "x", Owner: "x", ManagedBy: "x"}
	if err := all.Validate(); strings.Count(fmt.Sprint(err), "\n") != 2 {
		t.Errorf("not every fault is reported: %v", err)
	}
}

func TestValidURL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, bad string }{
		{"https://example.com/hook?a=1", ""},
		{"http://127.0.0.1:8080", ""},
		{"https://[2001:db8::1]/", ""},
		{"", "empty"},
		{"example.com", "scheme"},
		{"ftp://example.com", "scheme"},
		{"https://", "no host"},
		{"https://:443/", "no host"},
		{"https://user:secret@example.com/", "credentials"},
		{"https://user@example.com/", "credentials"},
		{"https://exa mple.com/", "parsed"},
		{"pubsub://my-topic", ""},
		{"pubsub://A.b_c~d+e%f0", ""},
		{"pubsub://ab", "2 characters"},
		{"pubsub://abc", ""},
		{"pubsub://" + strings.Repeat("a", 255), ""},
		{"pubsub://" + strings.Repeat("a", 256), "256 characters"},
		{"pubsub://1abc", "character 1"},
		{"pubsub://abc/def", "character 4"},
		{"pubsub://abc?x", "character 4"},
		{"pubsub://goog-topic", "goog"},
	} {
		err := ValidURL(c.url)
		if (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%q: %v, want %q", c.url, err, c.bad)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v tells the secret", err)
		}
	}
}

// "*" does not select Sealpost's own events: they tell of other endpoints.
func TestReservedTypesAreAskedForByName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, kind string
		want          bool
	}{
		{"*", "invoice.paid", true},
		{"*", "sealpost.test", false},
		{"*", "sealpost.endpoint.disabled", false},
		{"*", "sealpostal.order", true},
		{"sealpost.*", "sealpost.endpoint.disabled", true},
		{"sealpost.endpoint.*", "sealpost.endpoint.disabled", true},
		{"sealpost.endpoint.disabled", "sealpost.endpoint.disabled", true},
		{"sealpost.endpoint.*", "sealpost.test", false},
	} {
		ep := Endpoint{Tenant: "t", EventTypes: []string{c.pattern}}
		if got := ep.Subscribes(&Event{Tenant: "t", Type: c.kind}); got != c.want {
			t.Errorf("%q selects %s: %v", c.pattern, c.kind, got)
		}
	}
}

func TestEndpointSettingsInJSON(t *testing.T) {
	t.Parallel()
	s := EndpointSettings{Filter: `data.amount > 5`, RecordFiltered: true, PayloadMode: PayloadThin, Ordering: OrderingBlock,
		Headers: []Header{{"X-A", "b"}}, Legacy: []SignatureTemplate{{"X-S", "t"}}, Auth: EndpointAuth{Kind: AuthBasic, Summary: "u", Sealed: []byte("no"), SealedBy: "3"},
		Health: HealthPolicy{FailuresToOpen: 3, CoolDown: time.Second}, Owner: "o@example.com", Metadata: map[string]string{"k": "v"}, APIVersion: "1", ManagedBy: ManagedByTerraform}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var got EndpointSettings
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	s.Auth.Sealed, s.Auth.SealedBy = nil, "" // never in there
	if !reflect.DeepEqual(got, s) {
		t.Errorf("%s\n got %+v\nwant %+v", b, got, s)
	}
	if b, _ := json.Marshal(EndpointSettings{}); string(b) != "{}" {
		t.Errorf("nothing set is %s", b)
	}
}

func TestControlTasks(t *testing.T) {
	t.Parallel()
	c := Control{Kind: ControlRelease, Tenant: "t", Endpoint: "e", Epoch: 3, Page: KeyOf("s", "t", "1").ID()}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseControl(b); err != nil || got != c {
		t.Errorf("%s: %+v, %v", b, got, err)
	}
	later := c
	later.At = t0
	if later.TaskID() != c.TaskID() {
		t.Error("the time is part of the name")
	}
	names := map[string]bool{c.TaskID(): true}
	for _, edit := range []func(*Control){
		func(c *Control) { c.Kind = ControlHold }, func(c *Control) { c.Tenant = "u" }, func(c *Control) { c.Endpoint = "f" },
		func(c *Control) { c.Epoch++ }, func(c *Control) { c.Page = "" },
		func(c *Control) { c.Tenant, c.Endpoint = "t-e", "f" }, func(c *Control) { c.Tenant, c.Endpoint = "t", "e-f" },
	} {
		other := c
		edit(&other)
		if names[other.TaskID()] {
			t.Errorf("%+v has the name of another", other)
		}
		names[other.TaskID()] = true
	}
	for _, bad := range []string{"", "{}", `{"kind":"x","tenant":"t","endpoint":"e"}`, `{"kind":"hold","endpoint":"e"}`, `{"kind":"hold","tenant":"t"}`,
		`{"kind":"hold","tenant":"t","endpoint":"e","epoch":-1}`, `{"kind":"release","tenant":"t","endpoint":"e","page":"x"}`} {
		if c, err := ParseControl([]byte(bad)); err == nil {
			t.Errorf("%s is taken for %+v", bad, c)
		}
	}
}
