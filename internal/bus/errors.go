package bus

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Code says why a message cannot become an event. Codes are stable: people and
// filters rely on them.
type Code string

// Codes.
const (
	CodeEmpty          Code = "empty"           // neither data nor a type
	CodeNoType         Code = "no_type"         // no event type
	CodeBadType        Code = "bad_type"        // see [webhook.ValidType]
	CodeNoID           Code = "no_id"           // no id, and the message has none either
	CodeBadID          Code = "bad_id"          // id is not a string
	CodeBadTenant      Code = "bad_tenant"      // not a name, or two that differ
	CodeBadSource      Code = "bad_source"      // not a source of this topic
	CodeBadField       Code = "bad_field"       // another field is unusable
	CodeBadHeaders     Code = "bad_headers"     // kept headers are incomplete
	CodeBadJSON        Code = "bad_json"        // not one JSON object, or an ambiguous one
	CodeBadEncoding    Code = "bad_encoding"    // compression, base64 or event format
	CodeBadSpecVersion Code = "bad_specversion" // not CloudEvents 1.x
	CodeBadCounts      Code = "bad_counts"      // not a report of counts
	CodeBadEnvelope    Code = "bad_envelope"    // not a push request
	CodeTooLarge       Code = "too_large"       // more than can be stored
)

// DecodeError says why a message cannot become an event. It is permanent: the
// same message fails again.
type DecodeError struct {
	Reason Code
	Detail string // for people; without payload beyond a short name or value
}

func (e *DecodeError) Error() string { return string(e.Reason) + ": " + e.Detail }

// Permanent is true: trying again changes nothing.
func (e *DecodeError) Permanent() bool { return true }

func refuse(code Code, format string, args ...any) error {
	return &DecodeError{Reason: code, Detail: fmt.Sprintf(format, args...)}
}

// TooLargeError says that something does not fit Pub/Sub's limits.
type TooLargeError struct {
	What        string
	Size, Limit int
}

// ErrTooLarge is what errors.Is finds in every [TooLargeError].
var ErrTooLarge error = &TooLargeError{What: "message"}

func (e *TooLargeError) Error() string {
	if e.Limit == 0 {
		return e.What + " is too large"
	}
	return fmt.Sprintf("%s is too large: %d, at most %d", e.What, e.Size, e.Limit)
}

// TooLarge is true.
func (e *TooLargeError) TooLarge() bool { return true }

// Permanent is true: trying again changes nothing.
func (e *TooLargeError) Permanent() bool { return true }

// Is makes every TooLargeError an [ErrTooLarge].
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

// InvalidError says that a message was refused for what it is, by us or by
// Pub/Sub (InvalidArgument).
type InvalidError struct {
	Detail string
	Err    error // Pub/Sub's answer; may be nil
}

func (e *InvalidError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Detail, e.Err)
	}
	return e.Detail
}

func (e *InvalidError) Unwrap() error { return e.Err }

// Permanent is true: trying again changes nothing.
func (e *InvalidError) Permanent() bool { return true }

func invalid(format string, args ...any) error {
	return &InvalidError{Detail: fmt.Sprintf(format, args...)}
}

// Permanent reports whether trying the same again is pointless: the message is
// too large, invalid or undecodable. Everything else, an absent topic and a
// missing permission included, may heal.
func Permanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// published gives the client's error its type.
func published(err error) error {
	if status.Code(err) == codes.InvalidArgument {
		return &InvalidError{Detail: "refused by Pub/Sub", Err: err}
	}
	return err
}
