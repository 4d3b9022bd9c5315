package provider

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
)

// template says what is signed: literal text and fields. {body} stands at most
// once. Beside the fields that sources may use there are {params} (the form's
// parameters, sorted), {webhook_id} (a setting of the source) and {crc32} (of the
// body, in decimal).
type template struct {
	parts []part
	has   map[string]bool
	// guard is the text that follows {id}: an id that held it would make the
	// boundary ambiguous (the same signed bytes, read another way).
	guard string
}

type part struct{ literal, field string }

// settable are the fields that a source's settings may use.
var settable = []string{"id", "timestamp", "method", "url", "body"}

func parseTemplate(s string) (template, error) { return parseFields(s, settable...) }

func parseFields(s string, fields ...string) (template, error) {
	t := template{has: map[string]bool{}}
	for s != "" {
		before, rest, found := strings.Cut(s, "{")
		if before != "" {
			if n := len(t.parts); n > 0 && t.parts[n-1].field == "id" {
				t.guard = before
			}
			t.parts = append(t.parts, part{literal: before})
		}
		if !found {
			break
		}
		field, after, closed := strings.Cut(rest, "}")
		switch {
		case !closed:
			return t, fmt.Errorf("'{' is never closed")
		case !slices.Contains(fields, field):
			return t, fmt.Errorf("{%s} is not one of {id}, {timestamp}, {method}, {url} and {body}", clip(field))
		case t.has[field]:
			return t, fmt.Errorf("{%s} occurs twice", field)
		}
		t.has[field] = true
		t.parts = append(t.parts, part{field: field})
		s = after
	}
	return t, nil
}

// fill gives the content for a request: everything before the body, the body
// itself, uncopied, and everything after it.
func (t template) fill(m *message, url string) content {
	var c content
	piece := &c.head
	for _, p := range t.parts {
		switch p.field {
		case "":
			*piece = append(*piece, p.literal...)
		case "id":
			*piece = append(*piece, m.id...)
		case "timestamp":
			*piece = append(*piece, m.timestamp...)
		case "method":
			*piece = append(*piece, m.req.Method...)
		case "url":
			*piece = append(*piece, url...)
		case "params":
			*piece = append(*piece, m.params...)
		case "webhook_id":
			*piece = append(*piece, m.scheme.webhookID...)
		case "crc32":
			*piece = strconv.AppendUint(*piece, uint64(crc32.ChecksumIEEE(m.req.Body)), 10)
		case "body":
			c.body = m.req.Body
			piece = &c.tail
		}
	}
	return c
}
