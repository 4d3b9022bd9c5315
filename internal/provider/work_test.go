package provider

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// hostile are bodies of about n bytes that cost most where something is not linear.
var hostile = []struct {
	name string
	body func(n int) string
}{
	{"one text", func(n int) string { return `{"type":"` + strings.Repeat("a", n) + `"}` }},
	{"escapes", func(n int) string { return `{"type":"` + strings.Repeat(`\u0061`, n/6) + `"}` }},
	{"escaped keys", func(n int) string { return `{` + strings.Repeat(`"\u0069d":1,`, n/12) + `"x":1}` }},
	{"open quotes", func(n int) string { return strings.Repeat(`{"a`, n/3) }},
	{"arrays in arrays", func(n int) string { return strings.Repeat("[", n/2) + strings.Repeat("]", n/2) }},
	{"objects in objects", func(n int) string { return strings.Repeat(`{"event":`, n/10) + "1" + strings.Repeat("}", n/10) }},
	{"many keys", func(n int) string { return `{` + strings.Repeat(`"type":"a",`, n/11) + `"id":1}` }},
	{"many items", func(n int) string { return `[` + strings.Repeat(`{"event":"a"},`, n/14) + `{}]` }},
	{"attempts", func(n int) string { return `[` + strings.Repeat(`{"attemptNumber":1},`, n/20) + `{}]` }},
	{"near attempts", func(n int) string { return strings.Repeat(`"attemptNumber" `, n/16) }},
	{"events", func(n int) string {
		return `{"events":[` + strings.Repeat(`{"action":"a","resource":{"resource_type":"t"}},`, n/48) + `{}]}`
	}},
	{"entries of changes", func(n int) string {
		return `{"object":"o","entry":[` + strings.Repeat(`{"changes":[{"field":"f"},{"field":"f"}]},`, n/42) + `{}]}`
	}},
	{"notifications", func(n int) string {
		return `{"value":[` + strings.Repeat(`{"clientState":"s"},`, n/20) + `{}],"validationTokens":[` + strings.Repeat(`"a.b.c",`, 20) + `""]}`
	}},
	{"notification items", func(n int) string {
		return `{"notificationItems":[` + strings.Repeat(`{"NotificationRequestItem":{"pspReference":"p","additionalData":{"hmacSignature":"AAAA"}}},`, n/90) + `{}]}`
	}},
	{"message", func(n int) string {
		return `{"Type":"Notification","Message":"` + strings.Repeat(`\n`, n/2) + `","MessageId":"i","Signature":"AAAA"}`
	}},
	{"fields", func(n int) string { return strings.Repeat("payload=&", n/9) }},
	{"different fields", func(n int) string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			fmt.Fprintf(&b, "f%d=%d&", n-i, i)
		}
		return b.String()
	}},
	{"escaped fields", func(n int) string { return strings.Repeat("%61=%62&", n/8) }},
	{"boundaries", func(n int) string { return strings.Repeat("--b1\r\n\r\n", n/8) }},
	{"near boundaries", func(n int) string { return "--b1\r\n\r\n" + strings.Repeat("\r\n--b", n/5) }},
}

// What a request costs is proportional to its size, whatever it holds and whether its
// signature matches. It is not run in parallel: worked is for all.
func TestWorkIsLinear(t *testing.T) {
	const small, factor, each = 6_000, 8, 16 // bytes; times; work for a byte at most
	total := 0
	worked = func(n int) { total += n }
	defer func() { worked = nil }()
	for _, name := range names() {
		k := kitOf(t, name)
		secrets := []Secret{one(k.other.Verification)[0], one(k.keys.Verification)[0]}
		kinds := []string{"application/json"}
		if name == "twilio" || name == "mailgun" { // the others do not look at it
			kinds = append(kinds, "application/x-www-form-urlencoded", "multipart/form-data; boundary=b1")
		}
		for _, kind := range kinds {
			for _, b := range hostile {
				cost := func(n int) (spent, sent int) {
					body := []byte(b.body(n))
					r := k.sign(t, Sample{ID: "e1"}, noon)
					if signed, err := Sign(name, k.o, k.keys.Signing, Sample{ID: "e1", Body: body}, noon); err == nil {
						r = signed
					}
					r.Header.Set("Content-Type", kind)
					r.Body = body
					total = 0
					_, _ = k.scheme.Fetch(r)
					_, _ = k.scheme.Verify(r, secrets, noon)
					return total, len(body) + 2000 // headers and URL
				}
				few, sent := cost(small)
				if few > each*sent {
					t.Errorf("%s, %s as %s: %d bytes of work for %d", name, b.name, kind, few, sent)
				}
				if many, sent := cost(factor * small); many > each*sent || (many > 2*factor*few && many > 8*sent) {
					t.Errorf("%s, %s as %s: %d bytes of work, and %d for %d times the size", name, b.name, kind, few, many, factor)
				}
			}
		}
	}
}

// Headers are bounded before they are read: more of them cost nothing.
func TestWorkOnHeadersIsBounded(t *testing.T) {
	total := 0
	worked = func(n int) { total += n }
	defer func() { worked = nil }()
	for _, name := range names() {
		k := kitOf(t, name)
		for _, item := range []string{"v1,AAAA ", "v1=00,", "h1=00;", "a", ",", " ", "AAAA", "v1a,AAAA "} {
			r := k.sign(t, Sample{ID: "e1"}, noon)
			size := len(r.Body) + len(r.URL)
			for _, n := range k.scheme.SignatureHeaders() {
				r.Header[n] = []string{strings.Repeat(item, 1<<20/len(item))}
			}
			if len(k.scheme.SignatureHeaders()) == 0 {
				r.Header = http.Header{"Authorization": {"Basic " + strings.Repeat(item, 1<<20/len(item))}, "X-Docusign-Signature-1": {strings.Repeat(item, 1<<20/len(item))}}
			}
			total = 0
			_, err := k.scheme.Verify(r, one(k.keys.Verification), noon)
			if header := len(k.scheme.headers) > 0; header && err == nil || total > 200*(size+2000) {
				t.Errorf("%s, %q: %d bytes of work for a body of %d, %v", name, item, total, size, err)
			}
		}
	}
}

// Nor does what is only looked at cost memory: keys and fields by the thousand, of
// which a sender needs no signature to send them.
func TestLookingAllocatesNothing(t *testing.T) {
	keys := []byte("{" + strings.Repeat(`"\u0069d":1,`, 5000) + `"x":1}`)
	form := []byte(strings.Repeat("payloaf=1&", 5000))
	for name, look := range map[string]func(){
		"escaped keys": func() { pick(keys, path{"id"}, path{"type"}) },
		"signed keys":  func() { pickSigned(keys, path{"id"}, path{"type"}) },
		"fields":       func() { formValue(form, "payload") },
	} {
		if n := testing.AllocsPerRun(10, look); n > 20 {
			t.Errorf("%s: %.0f allocations", name, n)
		}
	}
}
