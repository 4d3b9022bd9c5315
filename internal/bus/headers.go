package bus

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sealpost/sealpost/internal/webhook"
)

// header is a header line in an attribute. A value that is not UTF-8 (HTTP allows
// it, Pub/Sub's attributes do not) travels in base64.
type header struct {
	Name   string `json:"name"`
	Value  string `json:"value,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
}

// putHeaders spreads the header lines over attributes small enough for Pub/Sub.
func putHeaders(attrs map[string]string, lines []webhook.Header) error {
	if len(lines) == 0 {
		return nil
	}
	out := make([]header, len(lines))
	for i, l := range lines {
		out[i].Name = l.Name
		if utf8.ValidString(l.Value) {
			out[i].Value = l.Value
		} else {
			out[i].Base64 = []byte(l.Value)
		}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return invalid("headers: %v", err)
	}
	pieces := split(strings.TrimSuffix(buf.String(), "\n"), MaxAttributeValue)
	if len(pieces) > maxHeaderAttributes {
		return &TooLargeError{What: "kept headers", Size: buf.Len(), Limit: maxHeaderAttributes * MaxAttributeValue}
	}
	for i, p := range pieces {
		attrs[attrHeaders+strconv.Itoa(i)] = p
	}
	return nil
}

// split cuts s into pieces of at most size bytes, between characters.
func split(s string, size int) []string {
	var pieces []string
	for len(s) > size {
		n := size
		for !utf8.RuneStart(s[n]) {
			n--
		}
		pieces, s = append(pieces, s[:n]), s[n:]
	}
	return append(pieces, s)
}

// takeHeaders is the inverse of putHeaders.
func takeHeaders(attrs map[string]string) ([]webhook.Header, error) {
	var text strings.Builder
	found := 0
	for {
		p, ok := attrs[attrHeaders+strconv.Itoa(found)]
		if !ok {
			break
		}
		text.WriteString(p)
		found++
	}
	for k := range attrs {
		n, err := strconv.Atoi(strings.TrimPrefix(k, attrHeaders))
		if strings.HasPrefix(k, attrHeaders) && err == nil && n >= found {
			return nil, refuse(CodeBadHeaders, "piece %d is missing", found)
		}
	}
	if found == 0 {
		return nil, nil
	}
	var in []header
	if err := json.Unmarshal([]byte(text.String()), &in); err != nil {
		return nil, refuse(CodeBadHeaders, "%v", err)
	}
	lines := make([]webhook.Header, len(in))
	for i, h := range in {
		lines[i] = webhook.Header{Name: h.Name, Value: h.Value}
		if h.Base64 != nil {
			lines[i].Value = string(h.Base64)
		}
	}
	return lines, nil
}
