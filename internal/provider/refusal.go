package provider

import "fmt"

// Reason is a stable code for why a request was refused. Codes are counted,
// logged and alerted on; senders never see them.
type Reason string

// Reasons. All but BadBody say that the request cannot be trusted; Stale, Future
// and BadBody are given only to requests whose signature matched, so that a rise
// of the first two points to a clock and not to an attack.
const (
	MissingSignature Reason = "missing_signature" // a header that the scheme needs is absent or empty
	Malformed        Reason = "malformed"         // signature, id or timestamp not written as the scheme writes them
	Ambiguous        Reason = "ambiguous"         // such a header or parameter occurs twice
	Mismatch         Reason = "mismatch"          // no candidate matches any secret
	Stale            Reason = "stale"             // authentic, but signed too long ago
	Future           Reason = "future"            // authentic, but signed too far ahead of our clock
	NoSecret         Reason = "no_secret"         // no usable secret is configured
	BadBody          Reason = "bad_body"          // authentic and fresh, but the body cannot be what the scheme sends
)

// Refusal is the error of [Scheme.Verify].
type Refusal struct {
	Reason Reason
	// Detail says in words what was wrong, for our logs and for the CLI. It holds
	// no secret and no payload, and must not be shown to senders.
	Detail string
}

// Error gives code and detail.
func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Detail }

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// clip bounds what a sender can make us write.
func clip(s string) string {
	const most = 48
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
