package receive

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/sealpost/sealpost/internal/provider"
)

// Reasons of the receiver's own; those of verification are [provider.Reason].
// They are codes in counts and logs, stable like those.
const (
	reasonTooLarge      = "too_large"      // body beyond the source's limit, or message beyond Pub/Sub's
	reasonBodyTimeout   = "body_timeout"   // body did not arrive within the read deadline
	reasonBodyRead      = "body_read"      // body broken off or badly framed
	reasonOverloaded    = "overloaded"     // byte budget of the instance spent
	reasonPublishFailed = "publish_failed" // no publish result, or a bad one
	reasonUnwantedType  = "unwanted_type"  // authentic, but not of an allowed type
	reasonWrongMethod   = "wrong_method"
	reasonNoKeys        = "keys_unavailable" // the provider's certificate or keys could not be fetched
	reasonUnconfirmed   = "unconfirmed"      // the subscription's URL could not be visited
	reasonAddress       = "address"          // not from the source's allow_cidrs
	reasonCertificate   = "client_cert"      // without the client certificate that the source asks for
	reasonContentType   = "content_type"     // authentic, but of a media type that is not wanted
	reasonEncoding      = "content_encoding" // authentic, but in a content coding that the source does not take
	reasonUndecodable   = "undecodable"      // so encoded that there is nothing to verify
	reasonInvalidSchema = "invalid_schema"   // authentic, but breaks its type's schema
)

// statuses maps every reason to an answer, here and nowhere else. What is not
// listed is a signature that was not good: 401, whichever check failed.
var statuses = map[string]int{
	string(provider.BadBody): http.StatusBadRequest,
	reasonInvalidSchema:      http.StatusBadRequest,
	reasonContentType:        http.StatusUnsupportedMediaType,
	reasonEncoding:           http.StatusUnsupportedMediaType,
	reasonBodyRead:           http.StatusBadRequest,
	reasonBodyTimeout:        http.StatusRequestTimeout,
	reasonTooLarge:           http.StatusRequestEntityTooLarge,
	reasonOverloaded:         http.StatusServiceUnavailable,
	reasonPublishFailed:      http.StatusServiceUnavailable,
	reasonNoKeys:             http.StatusServiceUnavailable,
	reasonUnconfirmed:        http.StatusServiceUnavailable,
	reasonUnwantedType:       http.StatusNoContent,
	reasonWrongMethod:        http.StatusMethodNotAllowed,
}

// retryAfter is what 503 asks for, in seconds.
const retryAfter = "5"

// refusal is why a request was not published.
type refusal struct {
	reason string
	detail string // for logs; never a payload, a secret or a query
}

func refused(reason, format string, args ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

func (r *refusal) status() int {
	if s, ok := statuses[r.reason]; ok {
		return s
	}
	return http.StatusUnauthorized
}

// answer writes a constant for each status, so that nobody learns which check
// failed. ack is the body of 200, or empty for ours.
func answer(w http.ResponseWriter, status int, unread bool, ack string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if unread {
		// The rest of the body is neither wanted nor waited for.
		h.Set("Connection", "close")
	}
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", retryAfter)
	}
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return
	}
	text := or(ack, "ok\n")
	if status != http.StatusOK {
		text = strings.ToLower(http.StatusText(status)) + "\n"
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the sender may be gone
}

// shake writes a handshake's exact answer.
func shake(w http.ResponseWriter, r *provider.Response) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if r.ContentType != "" {
		h.Set("Content-Type", r.ContentType)
	}
	for _, e := range r.Header {
		h.Set(e.Name, e.Value)
	}
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(r.Status)
	if len(r.Body) > 0 {
		_, _ = w.Write(r.Body)
	}
}
