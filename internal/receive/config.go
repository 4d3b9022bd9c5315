package receive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/schema"
)

// ParseSources reads a JSON array of sources:
//
//	[{"id": "billing", "scheme": "stripe", "tenant": "default",
//	  "secrets": [{"name": "source-billing", "versions": [2, 1]}],
//	  "allow_types": ["invoice.*"], "tolerance": "5m", "body_limit": 1048576,
//	  "publish_deadline": "2s", "public_url": "https://hooks.example.com/in/billing",
//	  "hmac": {"header": "X-Signature", "hash": "sha256", "encoding": "hex", "prefix": "",
//	           "id_header": "", "id_path": "", "type_header": "", "type_path": "",
//	           "timestamp_header": "", "timestamp_format": "unix", "signed_content": "{body}"},
//	  "token": {"header": "X-Token", "prefix": "", "id_header": "", "id_path": "", "type_header": "", "type_path": ""},
//	  "jwt": {"header": "Authorization", "issuer": "…", "audience": "…", "email": "", "body_claim": "", "id_header": "",
//	          "id_path": "", "type_header": "", "type_path": ""},
//	  "webhook_id": "…", "topics": ["arn:…"], "verify_token": "…", "asana_handshake": false,
//	  "dedupe": "cel:type + '/' + body.order.id", "on_replay": "flag",
//	  "content_types": ["application/json", ""], "content_encoding": "refuse",
//	  "schemas": [{"type": "invoice.paid", "schema": {"type": "object"}}], "schema_mode": "reject",
//	  "allow_cidrs": ["192.0.2.0/24", "2001:db8::1"],
//	  "mtls_subject": "CN=client,O=Example", "mtls_san": ["dns:client.example.com", "uri:spiffe://example.com/client"]}]
//
// Only id, scheme and secrets are needed; hmac, token, jwt, webhook_id, topics,
// verify_token and asana_handshake belong to single schemes (see
// [provider.Options]), the rest to any: [Source] says what each means. A list that is
// given must hold something. Secrets may be left out where the provider's keys are fetched ([provider.Scheme.NeedsSecret]). Unknown
// and repeated fields, nulls, values of another kind and contradictory settings
// are errors, all reported at once, each with its source and field.
func ParseSources(b []byte) ([]Source, error) {
	elements, err := arrayOf(b)
	if err != nil {
		return nil, fmt.Errorf("sources: %w", err)
	}
	var all []error
	sources := make([]Source, len(elements))
	for i, raw := range elements {
		s, faults := parseSource(raw)
		for _, err := range faults {
			all = append(all, fmt.Errorf("source %s: %w", label(s.ID, i), err))
		}
		sources[i] = s
	}
	noSecrets := func(s *Source) []error {
		if v, err := s.verifier(); len(s.Secrets) == 0 && (err != nil || v.NeedsSecret()) {
			return []error{errors.New("secrets: none is listed, so nothing could be accepted")}
		}
		return nil
	}
	if err := errors.Join(append(all, checkSources(sources, noSecrets))...); err != nil {
		return nil, err
	}
	return sources, nil
}

func parseSource(raw json.RawMessage) (Source, []error) {
	var s Source
	var secrets, hmac, token, jwt, schemas json.RawMessage
	tolerance := duration(-1)
	var limit *int64
	deadline := duration(-1)
	faults := fields(raw, "", map[string]any{
		"id": &s.ID, "scheme": &s.Scheme, "tenant": &s.Tenant, "secrets": &secrets, "allow_types": &s.AllowTypes,
		"tolerance": &tolerance, "body_limit": &limit, "publish_deadline": &deadline, "public_url": &s.PublicURL, "hmac": &hmac,
		"token": &token, "jwt": &jwt, "webhook_id": &s.WebhookID, "topics": &s.Topics, "verify_token": &s.VerifyToken,
		"asana_handshake": &s.AsanaHandshake, "dedupe": &s.Dedupe, "on_replay": &s.OnReplay,
		"content_types": &s.ContentTypes, "content_encoding": &s.ContentEncoding, "schemas": &schemas, "schema_mode": &s.SchemaMode,
		"allow_cidrs": &s.AllowCIDRs, "mtls_subject": &s.MTLSSubject, "mtls_san": &s.MTLSSANs,
	})
	for name, list := range map[string][]string{"content_types": s.ContentTypes, "allow_cidrs": s.AllowCIDRs, "mtls_san": s.MTLSSANs} {
		if list != nil && len(list) == 0 {
			faults = append(faults, fmt.Errorf("%s: is empty: leave it out to admit all", name))
		}
	}
	if schemas != nil {
		var err error
		if s.Schemas, err = schema.Parse(schemas); err != nil {
			faults = append(faults, fmt.Errorf("schemas: %w", err))
		}
	}
	// A setting that is given as zero is not a setting that is left out.
	if tolerance != -1 {
		d := time.Duration(tolerance)
		s.Tolerance = &d
	}
	if deadline != -1 {
		s.PublishDeadline = time.Duration(deadline)
		if deadline == 0 {
			faults = append(faults, errors.New("publish_deadline: is zero"))
		}
	}
	if limit != nil {
		s.BodyLimit = *limit
		if *limit == 0 {
			faults = append(faults, errors.New("body_limit: is zero"))
		}
	}
	if hmac != nil {
		var h provider.HMAC
		s.HMAC = &h
		faults = append(faults, fields(hmac, "hmac.", hmacFields(&h))...)
	}
	if token != nil {
		s.Token = new(provider.Token)
		faults = append(faults, fields(token, "token.", tokenFields(s.Token))...)
	}
	if jwt != nil {
		s.JWT = new(provider.JWT)
		faults = append(faults, fields(jwt, "jwt.", jwtFields(s.JWT))...)
	}
	if secrets == nil {
		return s, faults
	}
	list, err := arrayOf(secrets)
	if err != nil {
		return s, append(faults, fmt.Errorf("secrets: %w", err))
	}
	for _, raw := range list {
		var ref SecretRef
		faults = append(faults, fields(raw, "secrets.", map[string]any{"name": &ref.Name, "versions": &ref.Versions})...)
		s.Secrets = append(s.Secrets, ref)
	}
	return s, faults
}

func hmacFields(h *provider.HMAC) map[string]any {
	return map[string]any{
		"header": &h.Header, "hash": &h.Hash, "encoding": &h.Encoding, "prefix": &h.Prefix,
		"id_header": &h.IDHeader, "id_path": &h.IDPath, "type_header": &h.TypeHeader, "type_path": &h.TypePath,
		"timestamp_header": &h.TimestampHeader, "timestamp_format": &h.TimestampFormat, "signed_content": &h.SignedContent,
	}
}

func tokenFields(t *provider.Token) map[string]any {
	return map[string]any{
		"header": &t.Header, "prefix": &t.Prefix,
		"id_header": &t.IDHeader, "id_path": &t.IDPath, "type_header": &t.TypeHeader, "type_path": &t.TypePath,
	}
}

func jwtFields(j *provider.JWT) map[string]any {
	return map[string]any{
		"header": &j.Header, "issuer": &j.Issuer, "audience": &j.Audience, "email": &j.Email, "body_claim": &j.BodyClaim,
		"id_header": &j.IDHeader, "id_path": &j.IDPath, "type_header": &j.TypeHeader, "type_path": &j.TypePath,
	}
}

// fields decodes an object into targets by exact name and reports unknown and
// repeated names, nulls and values of the wrong kind under the given prefix.
func fields(raw json.RawMessage, prefix string, targets map[string]any) []error {
	var faults []error
	fault := func(name, format string, args ...any) {
		faults = append(faults, fmt.Errorf(prefix+name+": "+format, args...))
	}
	seen := map[string]bool{}
	err := members(raw, func(name string, value json.RawMessage) {
		target, known := targets[name]
		switch {
		case !known:
			faults = append(faults, fmt.Errorf("%s%.64q: is no field", prefix, name))
		case seen[name]:
			fault(name, "is given twice")
		case string(value) == "null":
			fault(name, "is null")
		default:
			if err := json.Unmarshal(value, target); err != nil {
				fault(name, "%s", kindError(err))
			}
		}
		seen[name] = true
	})
	if err != nil {
		faults = append(faults, fmt.Errorf("%s%w", prefix, err))
	}
	return faults
}

// kindError says what was expected in terms of JSON, not of Go.
func kindError(err error) string {
	var t *json.UnmarshalTypeError
	if !errors.As(err, &t) {
		return err.Error()
	}
	switch t.Type.Kind().String() {
	case "slice":
		return "wants an array, not a " + t.Value
	case "int", "int64":
		return "wants a whole number, not a " + t.Value
	}
	return "wants a " + t.Type.Kind().String() + ", not a " + t.Value
}

// members calls f for every member of a JSON object, in order, repeated ones too.
func members(raw json.RawMessage, f func(name string, value json.RawMessage)) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("is no JSON object")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		f(name.(string), value) // in an object, the decoder gives keys as strings
	}
	_, err := d.Token()
	return err
}

func arrayOf(b []byte) ([]json.RawMessage, error) {
	var list []json.RawMessage
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&list); err != nil {
		var t *json.UnmarshalTypeError
		if errors.As(err, &t) {
			return nil, errors.New("is no JSON array")
		}
		return nil, fmt.Errorf("is no JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the JSON array")
	}
	if list == nil {
		return nil, errors.New("is no JSON array")
	}
	return list, nil
}

// duration is written as Go writes it: "90s", "5m".
type duration time.Duration

// UnmarshalJSON refuses numbers, whose unit would be anyone's guess.
func (d *duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errors.New(`wants a duration such as "90s"`)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`%.64q is no duration such as "90s"`, s)
	}
	if v < 0 {
		return fmt.Errorf("%s is negative", v)
	}
	*d = duration(v)
	return nil
}
