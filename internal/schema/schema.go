package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Set holds the JSON Schemas (https://json-schema.org/draft/2020-12/schema) of event
// types. They are compiled once and safe for concurrent use. nil has none.
type Set struct {
	byType map[string]*jsonschema.Schema
}

// noRemote refuses everything that a schema does not contain itself.
type noRemote struct{}

func (noRemote) Load(url string) (any, error) {
	return nil, fmt.Errorf("schema refers to %s: only references within the schema are allowed", url)
}

// Parse reads [{"type": "invoice.paid", "schema": {…}}, …]. Each type may be listed
// once; patterns are not types. Every fault is reported. Empty input has no schemas.
func Parse(config []byte) (*Set, error) {
	s := &Set{byType: map[string]*jsonschema.Schema{}}
	if len(bytes.TrimSpace(config)) == 0 {
		return s, nil
	}
	var list []struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"schema"`
	}
	dec := json.NewDecoder(bytes.NewReader(config))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&list); err != nil {
		return nil, fmt.Errorf("event schemas: %w", err)
	}
	if dec.More() {
		return nil, errors.New("event schemas: something follows the list")
	}
	var errs []error
	for i, e := range list {
		compiled, err := compile(i, e.Schema)
		switch {
		case webhook.ValidType(e.Type) != nil:
			errs = append(errs, fmt.Errorf("event schema %d: %w", i+1, webhook.ValidType(e.Type)))
		case s.byType[e.Type] != nil:
			errs = append(errs, fmt.Errorf("event schema %d: %s has one already", i+1, e.Type))
		case err != nil:
			errs = append(errs, fmt.Errorf("event schema of %s: %w", e.Type, err))
		default:
			s.byType[e.Type] = compiled
		}
	}
	return s, errors.Join(errs...)
}

func compile(i int, text json.RawMessage) (*jsonschema.Schema, error) {
	if len(text) == 0 {
		return nil, errors.New("schema is missing")
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if err := checkNumbers(doc); err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noRemote{})
	// An absolute name of our own, so that messages name no directory.
	name := "urn:sealpost:event-schema:" + strconv.Itoa(i+1)
	if err := c.AddResource(name, doc); err != nil {
		return nil, err
	}
	return c.Compile(name)
}

// Check says how a payload breaks the schema of its type; "" if it does not, or if
// the type has none. The text names places and rules, never values of the payload.
// A payload that is not one JSON value breaks every schema, and so does one that
// would take more memory or arithmetic than a check is worth.
func (s *Set) Check(eventType string, payload []byte) (fault string) {
	if s == nil || s.byType[eventType] == nil {
		return ""
	}
	if crowded(payload) {
		return fmt.Sprintf("payload holds more than %d values", maxValues)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return "payload is not one JSON value"
	}
	if err := checkNumbers(doc); err != nil {
		return "payload: " + err.Error()
	}
	var broken *jsonschema.ValidationError
	switch err := s.byType[eventType].Validate(doc); {
	case err == nil:
		return ""
	case errors.As(err, &broken):
		return explain(broken)
	default:
		return "payload cannot be checked against its schema"
	}
}

// maxValues bounds the values of a payload that is checked. Each takes some fifty
// bytes of memory, however few it takes on the wire.
const maxValues = 500_000

// crowded reports whether a JSON text may hold more values than are checked: every
// value but the first follows a bracket, a brace or a comma.
func crowded(payload []byte) bool {
	n, inText := 0, false
	for i := 0; i < len(payload); i++ {
		switch c := payload[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case !inText && (c == ',' || c == '[' || c == '{'):
			if n++; n > maxValues {
				return true
			}
		}
	}
	return false
}

// Bounds of what numbers may ask of the exact arithmetic of a check.
const (
	maxDigits   = 1000
	maxExponent = 1000
)

// checkNumbers refuses numbers whose exact value takes much longer to compute
// than to write.
func checkNumbers(v any) error {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			if err := checkNumbers(e); err != nil {
				return err
			}
		}
	case []any:
		for _, e := range v {
			if err := checkNumbers(e); err != nil {
				return err
			}
		}
	case json.Number:
		digits, exponent, _ := strings.Cut(strings.ToLower(v.String()), "e")
		n, err := strconv.Atoi(or(exponent, "0"))
		if len(digits) > maxDigits || err != nil || n > maxExponent || n < -maxExponent {
			return errors.New("a number is too large or too precise to be checked")
		}
	}
	return nil
}

// maxFaults bounds the faults that a rejection names, maxPlace what it tells of
// each.
const (
	maxFaults = 5
	maxPlace  = 120
)

func explain(e *jsonschema.ValidationError) string {
	var faults []string
	collect(e, &faults)
	slices.Sort(faults)
	faults = slices.Compact(faults)
	if more := len(faults) - maxFaults; more > 0 {
		faults = append(faults[:maxFaults], fmt.Sprintf("and %d more", more))
	}
	return or(strings.Join(faults, "; "), "payload breaks its schema")
}

// collect lists the innermost faults.
func collect(e *jsonschema.ValidationError, faults *[]string) {
	for _, cause := range e.Causes {
		collect(cause, faults)
	}
	if len(e.Causes) > 0 {
		return
	}
	place := "/" + strings.Join(e.InstanceLocation, "/")
	fault := fmt.Sprintf("%s breaks %q", cut(place), strings.Join(e.ErrorKind.KeywordPath(), "/"))
	if r, ok := e.ErrorKind.(*kind.Required); ok {
		fault = fmt.Sprintf("%s lacks %s", cut(place), cut(strings.Join(r.Missing, ", ")))
	}
	*faults = append(*faults, fault)
}

func cut(s string) string {
	if len(s) <= maxPlace {
		return s
	}
	return strings.ToValidUTF8(s[:maxPlace], "") + "…"
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
