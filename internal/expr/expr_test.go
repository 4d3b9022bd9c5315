package expr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func compile(t testing.TB, text string, kind Kind) *Program {
	t.Helper()
	p, err := Compile(text, kind)
	if err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
	return p
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		kind Kind
		want string
	}{
		{"", String, "is empty"},
		{" \n", String, "is empty"},
		{"id\xff", String, "not valid UTF-8"},
		{"'" + strings.Repeat("x", MaxBytes-1) + "'", String, "4097 bytes, at most 4096"},
		{"id +", String, "line 1, column 5: Syntax error"},
		{"id\n+ nope", String, "line 2, column 3: undeclared reference to 'nope'"},
		{"raw", String, "undeclared reference to 'raw'"},
		{"event.id", String, "undeclared reference"},
		{"now()", String, "undeclared reference"},
		{"1", String, "gives a int, a string is wanted"},
		{"id == type", String, "gives a bool, a string is wanted"},
		{"id", Bool, "gives a string, a bool is wanted"},
		{"headers", String, "gives a map(string, string)"},
		{"body.?id", String, "gives a optional_type(dyn)"},
		{"null", String, "gives a null_type"},
		{"headers.x + 1", String, "no matching overload"},
		{"id.matches('(')", Bool, "line 1, column 12"},
		{"id.matches(type)", Bool, "line 1, column 12: the regular expression must be a literal"},
		{"matches(id, body.pattern)", Bool, "line 1, column 17: the regular expression must be a literal"},
		{"id.matches('(?i)a{1000}{1000}')", Bool, "line 1"},
		{"id.matches('((a{100}){10}){2}')", Bool, "line 1"},
		{"id.matches('[a-z]{500}')", Bool, "line 1"},
		{"timestamp('yesterday') < time", Bool, "line 1"},
		{"duration('1 day') == duration('1s')", Bool, "line 1"},
		{"[1].all(a, [1].all(b, [1].all(c, c == a)))", Bool, "nesting limit"},
		{strings.Repeat("(", 60) + "true" + strings.Repeat(")", 60), Bool, "recursion"},
		{"[" + strings.Repeat("1,", 2000) + "1].size() > 0", Bool, "line 1"},
		{"true; false", Bool, "Syntax error"},
	} {
		_, err := Compile(c.text, c.kind)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %q", c.text, err, c.want)
		} else if strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 2000 {
			t.Errorf("%.60q: no one line: %q", c.text, err)
		}
	}
	if _, err := Compile("'"+strings.Repeat("x", MaxBytes-2)+"'", String); err != nil {
		t.Errorf("4096 bytes: %v", err)
	}
}

func TestString(t *testing.T) {
	t.Parallel()
	in := Input{ID: "i", Type: "order.paid", Source: "shop", Subject: "s", Time: noon, Headers: map[string]string{"x-a": "1", "content-type": "application/json"},
		Body: []byte(`{"id":"b1","n":9007199254740993,"u":18446744073709551615,"f":1.50,"e":1e3,"neg":-9223372036854775808,"t":true,"z":null,"l":[1,"a"],"o":{"k.x":"v"},"esc":"a\u00e9\ud83d\ude00\\","empty":""}`)}
	for _, c := range []struct{ text, want, err string }{
		{"id", "i", ""},
		{"source + '/' + type + '/' + subject", "shop/order.paid/s", ""},
		{"string(time)", "2026-05-04T12:00:00Z", ""},
		{"time.getHours() == 12 ? 'noon' : 'other'", "noon", ""},
		{"headers['x-a'] + headers[\"content-type\"]", "1application/json", ""},
		{"headers['x-b']", "", "no such key: x-b"},
		{"headers.?nope.orValue('none')", "none", ""},
		{"body.id", "b1", ""},
		{"body['id']", "b1", ""},
		{"body.empty", "", ""},
		{"string(body.n)", "9007199254740993", ""},
		{"string(body.u)", "18446744073709551615", ""},
		{"string(body.neg)", "-9223372036854775808", ""},
		{"string(body.f) + string(body.e)", "1.51000", ""},
		{"body.n > 5 && body.u > body.n && body.f < 2 ? 'yes' : 'no'", "yes", ""},
		{"body.l[0] == 1 && body.l[1] == 'a' && body.z == null && body.t ? 'yes' : 'no'", "yes", ""},
		{"body.o['k.x']", "v", ""},
		{"body.esc", "aé😀\\", ""},
		{"has(body.x) ? 'x' : type(body.n) == int ? 'int' : 'other'", "int", ""},
		{"type(body.u) == uint && type(body.f) == double && type(body.e) == double ? 'yes' : 'no'", "yes", ""},
		{"body.?o.?none.orValue('d')", "d", ""},
		{"body.n", "", "gives a int, a string is wanted"},
		{"body.z", "", "gives a null_type"},
		{"body.missing", "", "no such key: missing"},
		{"body.l[7]", "", "index out of bounds: 7"},
		{"body.id.x", "", "no such key: x"},
		{"string(body.id + 1)", "", "no such overload"},
		{"string(1 / (size(subject) - 1))", "", "division by zero"},
		{"body.l.filter(x, x != 1)[0]", "a", ""},
		{"body.o.map(k, k)[0]", "k.x", ""},
		{"id.matches('^[a-z]$') ? 'm' : 'n'", "m", ""},
	} {
		got, err := compile(t, c.text, String).String(t.Context(), in)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v, want %q, %q", c.text, got, err, c.want, c.err)
		}
	}
	if got, err := compile(t, "string(time) + string(size(headers))", String).String(t.Context(), Input{}); got != "1970-01-01T00:00:00Z0" || err != nil {
		t.Errorf("nothing known: %q, %v", got, err)
	}
}

// Whatever the payload is, its absence shows as null and not as a fault of its own.
func TestBodies(t *testing.T) {
	t.Parallel()
	isNull := compile(t, "body == null", Bool)
	for body, want := range map[string]bool{
		"": true, "null": true, "no": true, "{": true, "{} {}": true, "a=b": true, "\xff": true, "{\"a\":\"\xff\"}": true, "'a'": true, "01": true, "+1": true, "1.": true, "1e": true, ".5": true, "-": true, "NaN": true,
		"\"\t\"": true, `"\x"`: true, `"\ud800"`: true, `"\ud800\ud83d\ude00"`: true, `"\udc00"`: true, `{"a":1,"a":1}`: true, `{"a":1,"\u0061":1}`: true, `[1,]`: true, `{"a":1,}`: true, `{1:1}`: true, "1e999": true,
		strings.Repeat("[", maxNesting+2) + strings.Repeat("]", maxNesting+2): true,
		"[" + strings.Repeat("1,", maxValues) + "1]":                          true,
		"\ufeff{}": true,

		"{}": false, " [ ] ": false, "1": false, `""`: false, "true": false, "-0": false, "\"\ufffd\"": false, `"\ufffd\uFFFD\\ufffd"`: false, `{"a":{"a":1}}`: false,
		strings.Repeat("[", maxNesting+1) + strings.Repeat("]", maxNesting+1): false,
		"[" + strings.Repeat("1,", maxValues-2) + "1]":                        false,
		"123456789012345678901234567890":                                      false,
	} {
		if got, err := isNull.Bool(t.Context(), Input{Body: []byte(body)}); err != nil || got != want {
			t.Errorf("%.40q (%d bytes): null is %t, %v", body, len(body), got, err)
		}
	}
}

// The payload is read only for an expression that looks at it.
func TestBodyIsReadWhenAskedFor(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"id": false, "id == '' ? type : body.x": false, "id != '' ? type : body.x": true, "body.x": true} {
		a := &activation{in: &Input{Body: []byte(`{"x":"y"}`)}}
		if _, _, err := compile(t, text, String).program.Eval(a); err != nil || a.read != want {
			t.Errorf("%s: read %t, %v", text, a.read, err)
		}
	}
	for text, want := range map[string]string{"id + type": "id type", "body.headers": "body", "headers.body": "headers", "body.l.map(x, string(x))[0]": "body"} {
		p := compile(t, text, String)
		var used []string
		for _, v := range []string{"id", "type", "source", "subject", "time", "headers", "body"} {
			if p.Uses(v) {
				used = append(used, v)
			}
		}
		if got := strings.Join(used, " "); got != want {
			t.Errorf("%s uses %s, want %s", text, got, want)
		}
	}
}

// No expression runs long, whatever the payload: each of these would run for
// seconds or minutes if only CEL's own prices counted.
func TestCostIsBounded(t *testing.T) {
	t.Parallel()
	payloads := map[string][]byte{
		"lists":   []byte("[" + strings.Repeat("[1,2,3,4,5,6,7,8,9,10],", 6000) + "1]"),
		"numbers": []byte("[" + strings.Repeat("1,", 60000) + "1]"),
		"texts":   []byte(`["` + strings.Repeat("1", 900000) + `",` + strings.Repeat(`"abc",`, 20000) + "1]"),
		"object":  []byte(`{"` + strings.Repeat("k", 900000) + `":1` + strings.Repeat(" ", 900000) + `}`),
	}
	for _, text := range []string{
		"body.all(x, body == body)",
		"body.all(x, body != [body] || true)",
		"body.all(x, [body] == [body])",
		"body.all(x, {'a': body} == {'a': body})",
		"body.all(x, optional.of(body) == optional.of(body))",
		"body.all(x, dyn(body) == dyn(body + []) || true)",
		"body.all(x, body.all(y, x == y || true))",
		"body.all(x, x in body)",
		"body.all(x, body in [body])",
		"body.all(x, body[0].size() > 1 || true)",
		"body.all(x, size(body[0]) > 1 || true)",
		"body.all(x, body[0] + body[0] != '' || true)",
		"body.all(x, body[0] < body[0] || true)",
		"body.all(x, timestamp(body[0]) > time || true)",
		"body.all(x, duration(body[0]) > duration('1s') || true)",
		"body.all(x, time.getHours(body[0]) >= 0 || true)",
		"body.all(x, time.getHours('America/New_York') >= 0)",
		"body.all(x, int(body[0]) > 1 || true)",
		"body.all(x, double(body[0]) > 1.0 || true)",
		"body.all(x, bytes(body[0]) != b'' || true)",
		"body.all(x, string(bytes(body[0])) != '' || true)",
		"body.all(x, body[0].contains('2') || true)",
		"body.all(x, body[0].endsWith(body[0]) || true)",
		"body.all(x, body[0].matches('(1+1+)+2') || true)",
		"body.all(x, matches(string(x), '((a|b|c|1){1,30}){2}2') || true)",
		"body.all(x, {body[0]: x}.size() > 0 || true)",
		"body.all(x, body[0] in headers || true)",
		"body.map(x, body.map(y, body)).size() > 0",
		"body.filter(x, true) == body",
		"body.all(k, body[k] == body[k])",
	} {
		p := compile(t, text, Bool)
		for name, payload := range payloads {
			began := time.Now()
			_, err := p.Bool(t.Context(), Input{Body: payload})
			// A fiftieth is usual; the rest is for busy machines and the race detector.
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s over %s took %s: %v", text, name, took, err)
			}
		}
	}
	_, err := compile(t, "body.all(x, body == body)", Bool).Bool(t.Context(), Input{Body: payloads["numbers"]})
	if !errors.Is(err, ErrCost) {
		t.Errorf("stopped by %v", err)
	}
	for _, text := range []string{"body[0].matches('x*y')", "matches(body[0], 'x*y')", "string(body[0]).matches('x*y')"} {
		p := compile(t, text, Bool)
		if got, err := p.Bool(t.Context(), Input{Body: []byte(`["` + strings.Repeat("x", maxMatched-1) + `y"]`)}); err != nil || !got {
			t.Errorf("%s: %t, %v", text, got, err)
		}
		if _, err := p.Bool(t.Context(), Input{Body: []byte(`["` + strings.Repeat("x", maxMatched) + `y"]`)}); err == nil || !strings.Contains(err.Error(), "32769 bytes is not matched, at most 32768 are") {
			t.Errorf("%s of more: %v", text, err)
		}
		if _, err := p.Bool(t.Context(), Input{Body: []byte(`[1]`)}); (err == nil) != strings.HasPrefix(text, "string") {
			t.Errorf("%s of a number: %v", text, err)
		}
	}
	if _, err := compile(t, "body[0] + body[0]", String).String(t.Context(), Input{Body: []byte(`["` + strings.Repeat("1", maxResult/2) + `1"]`)}); err == nil || !strings.Contains(err.Error(), "at most 65536") {
		t.Errorf("a long text: %v", err)
	}
}

func TestEndOfContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := compile(t, "body.all(x, x == 1)", Bool).Bool(ctx, Input{Body: []byte("[" + strings.Repeat("1,", 5000) + "1]")})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrCost) {
		t.Errorf("%v", err)
	}
}

func TestWrongKind(t *testing.T) {
	t.Parallel()
	if _, err := compile(t, "body.x", Bool).String(t.Context(), Input{}); err == nil || !strings.Contains(err.Error(), "compiled for a bool") {
		t.Error(err)
	}
	if _, err := compile(t, "body.x", String).Bool(t.Context(), Input{}); err == nil || !strings.Contains(err.Error(), "compiled for a string") {
		t.Error(err)
	}
	if _, err := compile(t, "body", Bool).Bool(t.Context(), Input{Body: []byte("1")}); err == nil || !strings.Contains(err.Error(), "gives a int, a bool is wanted") {
		t.Error(err)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	p := compile(t, "body.l.map(x, string(x))[int(id)] + type", String)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 50 {
				n := (i + j) % 4
				got, err := p.String(t.Context(), Input{ID: fmt.Sprint(n), Type: "t", Body: []byte(fmt.Sprintf(`{"l":[%d,1%d,2%d,3%d]}`, j, j, j, j))})
				want := fmt.Sprintf("%d%dt", n, j)
				if n == 0 {
					want = fmt.Sprintf("%dt", j)
				}
				if err != nil || got != want {
					t.Errorf("%q, %v, want %q", got, err, want)
				}
			}
		})
	}
	wg.Wait()
}

// What is read is what encoding/json reads, wherever that repairs nothing.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-2.5e3,"x\u00e9",true,null,{}]}`, `"\ud83d\ude00"`, `[1e400]`, `{"a":1,"a":2}`, "\xff", `18446744073709551615`, `-0`, `"\\ufffd"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parse(b)
		var want any
		theirs := json.Unmarshal(b, &want)
		if err != nil {
			return // stricter on purpose
		}
		if theirs != nil {
			t.Fatalf("%q was read as %v, but %v", b, got, theirs)
		}
		if !reflect.DeepEqual(widen(got), want) {
			t.Fatalf("%q was read as %#v, not %#v", b, got, want)
		}
	})
}

// widen makes all numbers what encoding/json makes of them.
func widen(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	case []any:
		for i := range v {
			v[i] = widen(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = widen(v[k])
		}
	}
	return v
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{"id", "body.a.b[0] + type", "headers.all(k, k != '')", "body.?x.orValue('')", "id.matches('a+')", "{", "'\\'"} {
		f.Add(seed, []byte(`{"a":{"b":["x"]}}`))
	}
	f.Fuzz(func(t *testing.T, text string, body []byte) {
		p, err := Compile(text, String)
		if err != nil {
			return
		}
		a, err1 := p.String(t.Context(), Input{ID: "i", Type: "t", Body: body})
		b, err2 := p.String(t.Context(), Input{ID: "i", Type: "t", Body: body})
		if a != b || (err1 == nil) != (err2 == nil) {
			t.Errorf("%q gave %q, %v and then %q, %v", text, a, err1, b, err2)
		}
	})
}

func BenchmarkString(b *testing.B) {
	p := compile(b, `type + "/" + body.data.object.id`, String)
	in := Input{Type: "invoice.paid", Body: []byte(`{"id":"evt_1","data":{"object":{"id":"in_1","lines":[{"amount":1},{"amount":2}],"paid":true}}}`)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.String(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
