package fanout

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

// Schemas are the JSON Schemas (https://json-schema.org/draft/2020-12/schema) of
// event types. They are compiled once and safe for concurrent use. nil has none.
type Schemas struct {
	byType map[string]*jsonschema.Schema
}

// noRemote refuses everything that a schema does not contain itself.
type noRemote struct{}

func (noRemote) Load(url string) (any, error) {
	return nil, fmt.Errorf("schema refers to %s: only references within the schema are allowed", url)
}

// ParseSchemas reads [{"type": "invoice.paid", "schema": {…}}, …]. Each type may
// be listed once; patterns are not types. Every fault is reported. Empty input has
// no schemas.
func ParseSchemas(config []byte) (*Schemas, error) {
	s := &Schemas{byType: map[string]*jsonschema.Schema{}}
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

// Check says how the event breaks its type's schema; "" if it does not, or if its
// type has none. The text names places and rules, never values of the payload.
func (s *Schemas) Check(ev *webhook.Event) (rejection string) {
	if s == nil || s.byType[ev.Type] == nil {
		return ""
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(ev.Body))
	if err != nil {
		return "payload is not one JSON value"
	}
	if err := checkNumbers(doc); err != nil {
		return "payload: " + err.Error()
	}
	var broken *jsonschema.ValidationError
	switch err := s.byType[ev.Type].Validate(doc); {
	case err == nil:
		return ""
	case errors.As(err, &broken):
		return explain(broken)
	default:
		return "payload cannot be checked against its schema"
	}
}

// Bounds of what numbers may ask of the exact arithmetic of a schema check.
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
