package provider

import (
	"fmt"
	"io"
	"strings"
)

// WriteTerraform writes the value of the Terraform variable sources with one
// source for each scheme, named after it, with every setting that the scheme needs.
// The README holds it; a test keeps it true.
func WriteTerraform(w io.Writer) error {
	var b strings.Builder
	b.WriteString("sources = {\n")
	for _, in := range Schemes() {
		o := SampleOptions(in.Name)
		s, err := New(in.Name, o)
		if err != nil {
			return err
		}
		settings := []string{fmt.Sprintf("scheme = %q", in.Name)}
		if s.NeedsSecret() {
			settings = append(settings, "secret_versions = [1]")
		}
		settings = append(settings, o.terraform()...)
		fmt.Fprintf(&b, "  %s = { %s }\n", in.Name, strings.Join(settings, ", "))
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// terraform lists the options that are set, as attributes of an object.
func (o Options) terraform() []string {
	var out []string
	text := func(name, value string) {
		if value != "" {
			out = append(out, fmt.Sprintf("%s = %q", name, value))
		}
	}
	object := func(name string, pairs ...string) {
		var in []string
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] != "" {
				in = append(in, fmt.Sprintf("%s = %q", pairs[i], pairs[i+1]))
			}
		}
		if len(in) > 0 {
			out = append(out, name+" = { "+strings.Join(in, ", ")+" }")
		}
	}
	text("webhook_id", o.WebhookID)
	text("verify_token", o.VerifyToken)
	if len(o.Topics) > 0 {
		out = append(out, fmt.Sprintf("topics = [\"%s\"]", strings.Join(o.Topics, `", "`)))
	}
	if h := o.HMAC; h != nil {
		object("hmac", "header", h.Header, "id_header", h.IDHeader, "type_path", h.TypePath, "timestamp_header", h.TimestampHeader, "signed_content", h.SignedContent)
	}
	if t := o.Token; t != nil {
		object("token", "header", t.Header, "id_path", t.IDPath, "type_path", t.TypePath)
	}
	if j := o.JWT; j != nil {
		object("jwt", "issuer", j.Issuer, "audience", j.Audience, "email", j.Email, "body_claim", j.BodyClaim, "id_path", j.IDPath, "type_path", j.TypePath)
	}
	return out
}
