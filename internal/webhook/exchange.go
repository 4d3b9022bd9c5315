package webhook

import "time"

// Exchange is everything that went over the wire in one attempt, as far as it may be
// shown: credentials are masked. It is kept for attempts that a person asked for (a
// test event), not for automatic ones.
type Exchange struct {
	Request  ExchangeRequest   `json:"request"`
	Response *ExchangeResponse `json:"response,omitempty"` // nil if none was seen
	// Error is the attempt's.
	Error      string `json:"error,omitempty"`
	RemoteAddr string `json:"remote_addr,omitempty"`
	// Protocol is "HTTP/1.1", "HTTP/2.0", or "Pub/Sub".
	Protocol string `json:"protocol,omitempty"`
	// TLS is the version, such as "TLS 1.3"; empty without TLS.
	TLS string `json:"tls,omitempty"`
	// Reused says that the connection had served a request before.
	Reused  bool            `json:"reused"`
	Timings ExchangeTimings `json:"timings"`
}

// ExchangeRequest is the request as it was sent.
type ExchangeRequest struct {
	Method string `json:"method"`
	// URL has its query values masked.
	URL     string   `json:"url"`
	Headers []Header `json:"headers"` // in alphabetical order
	// BodySize is in bytes; Body is the start of it, at most [MaxExchangeBody] bytes.
	BodySize  int64  `json:"body_size"`
	Body      []byte `json:"body,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
}

// ExchangeResponse is what the endpoint answered.
type ExchangeResponse struct {
	Status  int      `json:"status"`
	Headers []Header `json:"headers"` // at most [MaxExchangeHeaders], in alphabetical order
	// Body is the attempt's excerpt, at most [MaxExchangeBody] bytes of it.
	Body      []byte `json:"body,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
}

// ExchangeTimings are milliseconds since the attempt began; 0 where a step was not
// reached, or not needed since a connection was open.
type ExchangeTimings struct {
	DNS       float64 `json:"dns_ms,omitempty"`
	Connected float64 `json:"connected_ms,omitempty"`
	TLS       float64 `json:"tls_ms,omitempty"`
	Sent      float64 `json:"sent_ms,omitempty"`
	FirstByte float64 `json:"first_byte_ms,omitempty"`
	Done      float64 `json:"done_ms"`
}

// Bounds of what an exchange holds, so that it fits its column many times over.
const (
	MaxExchangeBody    = 4 << 10
	MaxExchangeHeaders = 50
	MaxExchangeHeader  = 1024 // bytes of one value
)

// Masked stands for what an exchange does not show.
const Masked = "***"

// Milliseconds is d as timings have it.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
