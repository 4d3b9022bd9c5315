package webhook

import (
	"net/http"
	"strconv"
	"time"
)

// Outcome is what the customer's endpoint did. It is never an error of ours.
type Outcome struct {
	Class  Class
	Status int // 0 if no answer was seen
	// RetryAfter is what [ParseRetryAfter] read from the answer; 0 if nothing.
	RetryAfter time.Duration
}

// OK reports whether the endpoint took the event.
func (o Outcome) OK() bool { return o.Class == ClassOK && o.Status >= 200 && o.Status <= 299 }

// Decision is what becomes of a delivery after an attempt.
type Decision struct {
	State  DeliveryState
	Reason string
	// NextAttempt and NextAttemptAt are set when State is scheduled.
	NextAttempt   int64
	NextAttemptAt time.Time
	// Disable says that the endpoint asked never to be called again.
	Disable bool
}

// Reasons that a decision gives, for people and for filters.
const (
	ReasonAttemptsExhausted = "attempts exhausted"
	ReasonAgeExhausted      = "maximum age reached"
	ReasonGone              = "endpoint answered 410 Gone"
	ReasonEndpointDisabled  = "endpoint disabled"
	ReasonEndpointDeleted   = "endpoint deleted"
	ReasonPayloadGone       = "payload no longer stored"
	ReasonUndeclared        = "no longer declared in Terraform"
	ReasonNotItsTurn        = "waits for an earlier one of its ordering key"
	ReasonKeyParked         = "ordering key parked behind a dead delivery"
	ReasonTestFailed        = "a test is not repeated"
	// ReasonPermanent is followed by the status.
	ReasonPermanent = "permanent failure: "
)

// Decide says what becomes of d, whose attempt d.Attempt ended in o at now.
//
//   - 2xx: delivered.
//   - 410: held, and the endpoint is to be disabled, whatever p says.
//   - a status of p.Permanent: dead at once, except 429, 502, 503 and 504, which
//     ask for a later try.
//   - anything else: the next attempt of p's schedule, or dead after the last one
//     or when it would start beyond p.MaxAge.
//
// Retry-After counts on 429, 502, 503 and 504. It raises the delay, never lowers
// it, is applied after the jitter, and adds at most [RetryAfterAllowance] to the
// schedule. It never changes the number of attempts.
func Decide(d Delivery, o Outcome, p RetryPolicy, now time.Time) Decision {
	switch {
	case o.OK():
		return Decision{State: DeliveryDelivered}
	case o.Class == ClassStatus && o.Status == http.StatusGone:
		return Decision{State: DeliveryHeld, Reason: ReasonGone, Disable: true}
	case o.Class == ClassStatus && p.Permanent.Has(o.Status) && !neverPermanent(o.Status):
		return Decision{State: DeliveryDead, Reason: ReasonPermanent + failure(o)}
	case d.Attempt >= p.Attempts():
		return Decision{State: DeliveryDead, Reason: ReasonAttemptsExhausted}
	}
	next := d.Key()
	next.Attempt++
	delay := p.Delay(next)
	if throttles(o) {
		delay = max(delay, min(o.RetryAfter, delay+RetryAfterAllowance))
	}
	at := now.Add(delay)
	if p.MaxAge > 0 && at.Sub(d.StartedAt) > p.MaxAge {
		return Decision{State: DeliveryDead, Reason: ReasonAgeExhausted}
	}
	return Decision{State: DeliveryScheduled, NextAttempt: next.Attempt, NextAttemptAt: at, Reason: failure(o)}
}

// throttles reports whether the answer asks for fewer requests.
func throttles(o Outcome) bool { return o.Class == ClassStatus && throttling(o.Status) }

func failure(o Outcome) string {
	if o.Class == ClassStatus {
		return "status " + strconv.Itoa(o.Status)
	}
	return string(o.Class)
}
