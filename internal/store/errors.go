package store

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/spanner"
	"google.golang.org/grpc/codes"
)

// Errors of this package, for errors.Is. Everything else that it returns is a
// fault of Spanner or of the way to it: nothing is known about the outcome, and
// the same call may be made again.
var (
	// ErrNotFound: no such row for this tenant, or its retention is over.
	ErrNotFound = errors.New("not found")
	// ErrAlreadyExists: the id is taken, be it by a deleted endpoint.
	ErrAlreadyExists = errors.New("already exists")
	// ErrTooLarge: a value, or the number of something, is beyond a limit.
	// Repeating the call cannot help.
	ErrTooLarge = errors.New("too large")
	// ErrInvalid: an argument is unusable. Repeating the call cannot help.
	ErrInvalid = errors.New("invalid argument")
	// ErrConflict: what is stored does not allow it: somebody else's change came
	// between, or the state is another one. Look again, then decide anew.
	ErrConflict = errors.New("conflict")
	// ErrManaged: the endpoint is changed only by who manages it.
	ErrManaged = errors.New("managed elsewhere")
	// ErrClosed: the [Batcher] was closed.
	ErrClosed = errors.New("closed")
)

// Permanent reports whether repeating the call that gave err is useless.
func Permanent(err error) bool {
	for _, p := range []error{ErrNotFound, ErrAlreadyExists, ErrTooLarge, ErrInvalid, ErrConflict, ErrManaged} {
		if errors.Is(err, p) {
			return true
		}
	}
	return false
}

// Transient reports whether err says that Spanner could not be reached or did not
// answer in time: nothing about the call's arguments is wrong.
func Transient(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	switch spanner.ErrCode(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.ResourceExhausted:
		return true
	}
	return false
}

// mapped gives an error of Spanner its type; the only place that knows Spanner's
// codes for it. A missing row is told from a missing database or session, which
// has the same code and is nobody's 404.
func mapped(err error) error {
	switch {
	case err == nil || Permanent(err):
		return err
	case errors.Is(err, spanner.ErrRowNotFound):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	switch spanner.ErrCode(err) {
	case codes.AlreadyExists:
		return fmt.Errorf("%w: %w", ErrAlreadyExists, err)
	case codes.InvalidArgument, codes.OutOfRange:
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
}

// wrap adds what was tried, with which id, to a mapped error; nil stays nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), mapped(err))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

func conflict(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConflict, fmt.Sprintf(format, args...))
}

func tooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrTooLarge, fmt.Sprintf(format, args...))
}
