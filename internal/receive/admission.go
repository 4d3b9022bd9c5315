package receive

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/sealpost/sealpost/internal/webhook"
)

// typesOf is a source's content_types: media types in lower case, "type/*" for any
// subtype, "" for requests that name none.
type typesOf []string

func parseTypes(list []string) (typesOf, []error) {
	var out typesOf
	var faults []error
	for _, s := range list {
		t, sub, _ := strings.Cut(s, "/")
		if s != "" && (!mediaToken(t) || sub != "*" && !mediaToken(sub)) {
			faults = append(faults, fmt.Errorf("content_types: %.64q is neither a media type without parameters, nor one like application/*, nor empty", s))
			continue
		}
		out = append(out, strings.ToLower(s))
	}
	return out, faults
}

// mediaToken reports whether s is a token (RFC 9110, section 5.6.2) without '*'.
func mediaToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("!#$&-^_.+", r)
	})
}

// admits compares the request's media type, whatever its case and parameters. Two
// Content-Type lines are none of the listed.
func (l typesOf) admits(h http.Header) bool {
	lines := h["Content-Type"]
	if len(lines) > 1 {
		return false
	}
	name := ""
	if len(lines) == 1 {
		name = mediaType(lines[0])
	}
	for _, want := range l {
		if prefix, any := strings.CutSuffix(want, "*"); name == want || any && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// mediaType is the type of a Content-Type header without its parameters, which
// some senders write badly.
func mediaType(header string) string {
	name, _, err := mime.ParseMediaType(header)
	if err != nil {
		name, _, _ = strings.Cut(header, ";")
	}
	return strings.ToLower(strings.TrimSpace(name))
}

// admitted judges what an authentic event is: its type, its media type, and its
// payload against the schema of its type. Nobody else learns what a source takes.
func (rc *Receiver) admitted(o *outcome, req *http.Request) *refusal {
	src, ev := o.source, &o.event
	if len(src.AllowTypes) > 0 && !webhook.MatchType(src.AllowTypes, ev.Type) {
		return refused(reasonUnwantedType, "type %q is not among allow_types", ev.Type)
	}
	if len(src.types) > 0 && !src.types.admits(req.Header) {
		return refused(reasonContentType, "its media type is not among content_types")
	}
	if fault := src.Schemas.Check(ev.Type, ev.Body); fault != "" {
		if src.SchemaMode == SchemaReject {
			return refused(reasonInvalidSchema, "%s", fault)
		}
		o.mark(webhook.FlagInvalidSchema, fault)
	}
	return nil
}
