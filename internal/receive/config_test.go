package receive

import (
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
)

func TestParseSources(t *testing.T) {
	t.Parallel()
	got, err := ParseSources([]byte(`[
		{"id":"billing","scheme":"stripe","tenant":"acme","secrets":[{"name":"source-billing","versions":[2,1]}],
		 "allow_types":["invoice.*"],"tolerance":"90s","body_limit":1024,"publish_deadline":"1s","public_url":"https://h.example/in/billing"},
		{"id":"own","scheme":"generic-hmac","secrets":[{"name":"a","versions":[1]},{"name":"b","versions":[1]}],
		 "hmac":{"header":"X-Sig","hash":"sha512","encoding":"base64","prefix":"v=","id_header":"X-Id","type_path":"/type",
		         "timestamp_header":"X-Ts","timestamp_format":"unix-ms","signed_content":"{timestamp}.{body}"}}
	]`))
	if err != nil {
		t.Fatal(err)
	}
	a, b := got[0], got[1]
	if a.ID != "billing" || a.Scheme != "stripe" || a.Tenant != "acme" || *a.Tolerance != 90*time.Second || a.BodyLimit != 1024 ||
		a.PublishDeadline != time.Second || a.PublicURL != "https://h.example/in/billing" || a.AllowTypes[0] != "invoice.*" ||
		a.Secrets[0].Name != "source-billing" || a.Secrets[0].Versions[1] != 1 || a.HMAC != nil {
		t.Errorf("%+v", a)
	}
	want := provider.HMAC{Header: "X-Sig", Hash: "sha512", Encoding: "base64", Prefix: "v=", IDHeader: "X-Id", TypePath: "/type",
		TimestampHeader: "X-Ts", TimestampFormat: "unix-ms", SignedContent: "{timestamp}.{body}"}
	if *b.HMAC != want || len(b.Secrets) != 2 || b.Tolerance != nil || b.BodyLimit != 0 {
		t.Errorf("%+v", b)
	}
	if got, err := ParseSources([]byte(" [] ")); err != nil || len(got) != 0 {
		t.Errorf("no sources: %v %v", got, err)
	}
}

func TestParseSourcesRefuses(t *testing.T) {
	t.Parallel()
	const secrets = `"secrets":[{"name":"s","versions":[1]}]`
	cases := []struct {
		name, in string
		want     []string
	}{
		{"no JSON", `[{]`, []string{"sources:"}},
		{"object", `{}`, []string{"is no JSON array"}},
		{"null", `null`, []string{"is no JSON array"}},
		{"something after", `[] []`, []string{"something follows"}},
		{"element no object", `[5]`, []string{"source #1: is no JSON object"}},
		{"empty", `[{}]`, []string{"source #1: id:", "source #1: scheme:", "source #1: secrets: none"}},
		{"unknown field", `[{"id":"a","scheme":"github",` + secrets + `,"secret":"x"}]`, []string{`source "a": "secret": is no field`}},
		{"field in other case", `[{"ID":"a","scheme":"github",` + secrets + `}]`, []string{`"ID": is no field`}},
		{"repeated field", `[{"id":"a","id":"b","scheme":"github",` + secrets + `}]`, []string{`source "a": id: is given twice`}},
		{"null field", `[{"id":"a","scheme":"github","tenant":null,` + secrets + `}]`, []string{"tenant: is null"}},
		{"wrong kinds", `[{"id":5,"scheme":"github","allow_types":"x","body_limit":"1","tolerance":5,"secrets":{}}]`, []string{"id: wants a string, not a number", "allow_types: wants an array", "body_limit: wants a whole number", "tolerance: wants a duration", "secrets: is no JSON array"}},
		{"fraction of a byte", `[{"id":"a","scheme":"github","body_limit":1.5,` + secrets + `}]`, []string{"body_limit: wants a whole number"}},
		{"zeros", `[{"id":"a","scheme":"stripe","body_limit":0,"publish_deadline":"0s","tolerance":"0s",` + secrets + `}]`, []string{"body_limit: is zero", "publish_deadline: is zero", "tolerance: 0s"}},
		{"negative", `[{"id":"a","scheme":"stripe","body_limit":-2,"publish_deadline":"-1s","tolerance":"-1s",` + secrets + `}]`, []string{"body_limit: -2", "publish_deadline: -1s is negative", "tolerance: -1s is negative"}},
		{"tolerance without time", `[{"id":"a","scheme":"github","tolerance":"5m",` + secrets + `}]`, []string{"tolerance: scheme github signs no timestamp"}},
		{"hmac elsewhere", `[{"id":"a","scheme":"github","hmac":{"header":"X"},` + secrets + `}]`, []string{"hmac:"}},
		{"hmac fields", `[{"id":"a","scheme":"generic-hmac","hmac":{"headers":"X","hash":"md5"},` + secrets + `}]`, []string{`hmac."headers": is no field`, "hmac.hash", "hmac.header: is missing"}},
		{"version latest", `[{"id":"a","scheme":"github","secrets":[{"name":"s","versions":["latest"]}]}]`, []string{"secrets.versions: wants a whole number"}},
		{"versions", `[{"id":"a","scheme":"github","secrets":[{"name":"s","versions":[0,2,2]},{"name":"s","versions":[]},{"name":"p/s","versions":[1]}]}]`, []string{"version 0", "version 2", "listed twice", "lists no version", `name "p/s"`}},
		{"too many versions", `[{"id":"a","scheme":"github","secrets":[{"name":"s","versions":[1,2,3,4,5,6,7,8,9]}]}]`, []string{"9 versions, at most 8"}},
		{"same id", `[{"id":"a","scheme":"github",` + secrets + `},{"id":"a","scheme":"github",` + secrets + `}]`, []string{`source "a": id: is used twice`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseSources([]byte(c.in))
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not say %q", err, want)
				}
			}
		})
	}
}
