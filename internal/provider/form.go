package provider

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"slices"
	"strings"
)

// Limits of reading forms.
const (
	maxFields     = 10_000 // of one form
	maxFieldBytes = 1 << 10
)

// formFields reads single fields of a body that is a form by its Content-Type,
// urlencoded or multipart. isForm is false for any other body. A field that occurs
// twice is ambiguous, and so is one that is a file too: readers disagree about which
// is meant. Names count as they are once decoded, as every reader takes them.
func (m *message) formFields(names ...string) (values map[string]string, isForm bool, refusal *Refusal) {
	v, refusal := m.header("Content-Type")
	if refusal != nil {
		return nil, false, refusal
	}
	kind, params, err := mime.ParseMediaType(v)
	if err != nil {
		return nil, false, nil
	}
	work(len(m.req.Body))
	f := fields{wanted: names, values: map[string]string{}}
	switch kind {
	case "application/x-www-form-urlencoded":
		return f.values, true, f.urlencoded(m.req.Body)
	case "multipart/form-data":
		return f.values, true, f.multipart(m.req.Body, params["boundary"])
	}
	return nil, false, nil
}

// fields gathers the wanted fields of one form.
type fields struct {
	wanted []string
	values map[string]string
	n      int
}

// take notes one field; value gives it, or says that it cannot be read.
func (f *fields) take(name string, value func() (string, bool)) *Refusal {
	work(len(name) * len(f.wanted))
	if f.n++; f.n > maxFields {
		return refuse(Malformed, "a form of more than %d fields", maxFields)
	}
	for _, w := range f.wanted {
		if w != name {
			continue
		}
		if _, twice := f.values[w]; twice {
			return refuse(Ambiguous, "the field %s occurs more than once", w)
		}
		text, ok := value()
		if !ok {
			return refuse(Malformed, "the field %s cannot be read", w)
		}
		f.values[w] = text
	}
	return nil
}

func (f *fields) urlencoded(body []byte) *Refusal {
	for len(body) > 0 {
		item, rest, _ := bytes.Cut(body, []byte("&"))
		body = rest
		if len(item) == 0 {
			continue
		}
		raw, value, _ := bytes.Cut(item, []byte("="))
		if len(raw) > maxFieldBytes {
			raw = nil // no field that anyone wants
		}
		name, err := url.QueryUnescape(string(raw))
		if err != nil {
			return refuse(Malformed, "the form is badly escaped")
		}
		if refusal := f.take(name, func() (string, bool) {
			if len(value) > maxFieldBytes {
				return "", false
			}
			text, err := url.QueryUnescape(string(value))
			return text, err == nil
		}); refusal != nil {
			return refusal
		}
	}
	return nil
}

// multipart reads RFC 7578 and its boundaries of 1 to 70 characters (RFC 2046,
// section 5.1.1). A form that is cut off is malformed, wherever the fields stand.
func (f *fields) multipart(body []byte, boundary string) *Refusal {
	if boundary == "" || len(boundary) > 70 {
		return refuse(Malformed, "the form has no usable boundary")
	}
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := r.NextRawPart()
		if err == io.EOF { // bare after the last boundary only; wrapped where that is missing
			return nil
		}
		if err != nil {
			return refuse(Malformed, "the form is no multipart form")
		}
		if refusal := f.take(part.FormName(), func() (string, bool) {
			b, err := io.ReadAll(io.LimitReader(part, maxFieldBytes+1))
			return string(b), err == nil && len(b) <= maxFieldBytes && part.FileName() == "" && asItIs(part.Header.Get("Content-Transfer-Encoding"))
		}); refusal != nil {
			return refusal
		}
	}
}

// asItIs reports whether a transfer encoding is none (RFC 2045, section 6.2).
func asItIs(encoding string) bool {
	return slices.Contains([]string{"", "7bit", "8bit", "binary"}, strings.ToLower(encoding))
}
