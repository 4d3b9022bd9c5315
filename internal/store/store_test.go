package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestRetentionValidate(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for _, c := range []struct {
		payload, row time.Duration
		ok           bool
	}{
		{0, 0, true},
		{30 * day, 45 * day, true},
		{30 * day, 30 * day, false},       // Stripe's look-back
		{30 * day, 31 * day, false},       // Pub/Sub's retention
		{30 * day, 31*day + 1, true},      //
		{45 * day, 45 * day, true},        //
		{45*day + 1, 45 * day, false},     // a payload without its row
		{0, 32 * day, true},               //
		{time.Nanosecond, 45 * day, true}, //
		{-1, 45 * day, false},
		{30 * day, -1, false},
	} {
		r := Retention{Payload: c.payload, Row: c.row}
		if err := r.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v, want ok: %v", r, err, c.ok)
		}
		s, err := Open(t.Context(), "projects/p/instances/i/databases/d", Options{Retention: r}, offline(t)...)
		if (err == nil) != c.ok {
			t.Errorf("Open with %+v: %v, want ok: %v", r, err, c.ok)
		}
		if err == nil {
			s.Close()
		}
	}
}

func offline(t *testing.T) []option.ClientOption {
	return []option.ClientOption{option.WithEndpoint(nowhere(t)), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
}

func TestOpenWaitsOnNothing(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), "projects/p/instances/i/databases/d", Options{}, offline(t)...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Ping(ctx); !Transient(err) || Permanent(err) {
		t.Errorf("ping: %v", err)
	}
}

func TestCausesOfErrorsAreKept(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	if wrap(nil, "x") != nil {
		t.Error("nil is wrapped")
	}
	if err := wrap(cause, "event %d", 7); !errors.Is(err, cause) || err.Error() != "event 7: cause" || Permanent(err) || Transient(err) {
		t.Errorf("%v", err)
	}
	if err := wrap(fmt.Errorf("x: %w", context.DeadlineExceeded), "y"); !Transient(err) {
		t.Errorf("%v", err)
	}
}
