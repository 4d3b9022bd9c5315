package schema_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/schema"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	s, err := schema.Parse([]byte(`[
		{"type":"invoice.paid","schema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["id","total"],"additionalProperties":false,
			"properties":{"id":{"type":"string","pattern":"^in_"},"total":{"type":"number","minimum":0,"multipleOf":0.01},"lines":{"type":"array","items":{"$ref":"#/$defs/line"}},"big":{"const":1152921504606846977}},
			"$defs":{"line":{"type":"object","required":["sku"]}}}},
		{"type":"never","schema":false},
		{"type":"any","schema":true}
	]`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ typ, body, want string }{
		{"invoice.paid", `{"id":"in_1","total":0.0}`, ""},
		{"invoice.paid", `{"id":"in_1","total":10.25,"lines":[{"sku":"a"}],"big":1152921504606846977}`, ""},
		{"invoice.paid", `{"id":"in_1","total":1,"big":1152921504606846976}`, `/big breaks "const"`},
		{"invoice.paid", `{"id":"in_1","total":0.001}`, `/total breaks "multipleOf"`},
		{"invoice.paid", `{"id":"x","total":-1}`, `/id breaks "pattern"; /total breaks "minimum"`},
		{"invoice.paid", `{"id":"in_1"}`, `/ lacks total`},
		{"invoice.paid", `{}`, `/ lacks id, total`},
		{"invoice.paid", `{"id":"in_1","total":1,"lines":[{},{"sku":1},{}]}`, `/lines/0 lacks sku; /lines/2 lacks sku`},
		{"invoice.paid", `{"id":"in_1","total":1,"lines":[{},{},{},{},{},{},{}]}`, `/lines/0 lacks sku; /lines/1 lacks sku; /lines/2 lacks sku; /lines/3 lacks sku; /lines/4 lacks sku; and 2 more`},
		{"invoice.paid", `{"id":"in_1","total":1,"other":1}`, `/ breaks "additionalProperties"`},
		{"invoice.paid", `[]`, `/ breaks "type"`},
		{"invoice.paid", ``, `payload is not one JSON value`},
		{"invoice.paid", `{} {}`, `payload is not one JSON value`},
		{"invoice.paid", `{"id":`, `payload is not one JSON value`},
		{"invoice.paid", `{"id":"in_1","total":1e1000}`, ``},
		{"invoice.paid", `{"id":"in_1","total":1e1001}`, `payload: a number is too large or too precise to be checked`},
		{"invoice.paid", `{"id":"in_1","total":1e99999999999999999999}`, `payload: a number is too large or too precise to be checked`},
		{"invoice.paid", `{"id":"in_1","total":1E-1001}`, `payload: a number is too large or too precise to be checked`},
		{"invoice.paid", `{"id":"in_1","total":1` + strings.Repeat("0", 1000) + `}`, `payload: a number is too large or too precise to be checked`},
		{"never", `1`, `/ breaks ""`},
		{"any", `{"x":[1]}`, ""},
		{"any", `no`, `payload is not one JSON value`},
		{"any", "[" + strings.Repeat("1,", 499_999) + "1]", ""},
		{"any", "[" + strings.Repeat("1,", 500_000) + "1]", "payload holds more than 500000 values"},
		{"any", `{"a":"` + strings.Repeat(`,\",[`, 500_000) + `"}`, ""},
		{"invoice.paid.late", `no`, ""},
	} {
		if got := s.Check(c.typ, []byte(c.body)); got != c.want {
			t.Errorf("%s %.80s: got %q, want %q", c.typ, c.body, got, c.want)
		}
	}
	var none *schema.Set
	if got := none.Check("any", nil); got != "" {
		t.Errorf("no schemas: %q", got)
	}
}

// Hostile payloads cost little.
func TestCheckIsBounded(t *testing.T) {
	t.Parallel()
	s, err := schema.Parse([]byte(`[{"type":"a","schema":{"items":{"multipleOf":0.01},"uniqueItems":true}}]`))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, body := range []string{
		"[" + strings.Repeat("1e1000000,", 100_000) + "1]",
		strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000),
		strings.Repeat("[", 1_000_000),
	} {
		if s.Check("a", []byte(body)) == "" && strings.HasPrefix(body, "[1e") {
			t.Error("accepted")
		}
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("took %s", d)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ config, want string }{
		{` `, ""},
		{`[]`, ""},
		{`{}`, "event schemas"},
		{`[] []`, "something follows"},
		{`[{"type":"a","schema":{},"x":1}]`, "unknown field"},
		{`[{"type":"a"}]`, "schema is missing"},
		{`[{"type":"a.*","schema":{}}]`, "'*'"},
		{`[{"type":"a","schema":{}},{"type":"a","schema":{}}]`, "has one already"},
		{`[{"type":"a","schema":{"type":"objekt"}}]`, "event schema of a"},
		{`[{"type":"a","schema":5}]`, "event schema of a"},
		{`[{"type":"a","schema":{"pattern":"("}}]`, "event schema of a"},
		{`[{"type":"a","schema":{"$ref":"https://example.com/s.json"}}]`, "only references within"},
		{`[{"type":"a","schema":{"$ref":"file:///etc/passwd"}}]`, "only references within"},
		{`[{"type":"a","schema":{"$schema":"https://example.com/meta"}}]`, "only references within"},
		{`[{"type":"a","schema":{"$ref":"#/$defs/none"}}]`, "event schema of a"},
		{`[{"type":"a","schema":{"minimum":1e999999}}]`, "too large"},
		{`[{"type":"a b","schema":{}},{"type":"c","schema":5}]`, "event schema of c"},
	} {
		_, err := schema.Parse([]byte(c.config))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.config, err, c.want)
		}
	}
}

func ExampleParse() {
	s, err := schema.Parse([]byte(`[{"type":"invoice.paid","schema":{"type":"object","required":["total"],"properties":{"total":{"minimum":0}}}}]`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q\n", s.Check("invoice.paid", []byte(`{"total": 10.0}`)))
	fmt.Printf("%q\n", s.Check("invoice.paid", []byte(`{"total": -1}`)))
	fmt.Printf("%q\n", s.Check("invoice.sent", []byte(`anything`)))
	// Output:
	// ""
	// "/total breaks \"minimum\""
	// ""
}

func FuzzCheck(f *testing.F) {
	s, err := schema.Parse([]byte(`[{"type":"a","schema":{"properties":{"n":{"multipleOf":0.01,"minimum":-5},"s":{"minLength":2},"l":{"uniqueItems":true,"contains":{"const":1.0}}},"unevaluatedProperties":{"enum":[1,"x",null,{"a":1e3}]}}}]`))
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{`{"n":0.0}`, `{"l":[1,1.0,1e0]}`, `{"s":"é","z":{"a":1000}}`, `{"n":1e9999999}`, `[`, ``} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if r := s.Check("a", body); len(r) > 4096 {
			t.Fatalf("rejection of %d bytes", len(r))
		}
	})
}
