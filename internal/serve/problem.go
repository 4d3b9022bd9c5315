package serve

import (
	"encoding/json"
	"net/http"
)

// Problem is an error as API clients see it (RFC 9457): a safe sentence, never an
// internal error.
type Problem struct {
	Type   string `json:"type,omitempty"` // a URI; "about:blank" if empty
	Title  string `json:"title"`          // the status's text if empty
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Code is an extension member: a stable code for programs.
	Code string `json:"code,omitempty"`
	// Faults is an extension member: every fault of the request at once.
	Faults []Fault `json:"errors,omitempty"`
}

// Fault is one thing that is wrong with a request.
type Fault struct {
	Pointer string `json:"pointer,omitempty"` // JSON Pointer into the request's body
	Detail  string `json:"detail"`
}

// WriteProblem answers with the problem. Nothing may have been written to w.
func WriteProblem(w http.ResponseWriter, p Problem) {
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	b, err := json.Marshal(p)
	if err != nil { // texts only: not reached
		b = []byte(`{"title":"Internal Server Error","status":500}`)
		p.Status = http.StatusInternalServerError
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}
