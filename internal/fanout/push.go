package fanout

import (
	"errors"
	"net/http"
	"time"

	"github.com/sealpost/sealpost/internal/bus"
)

// Paths that Pub/Sub pushes to.
const (
	InboundPath = "/push/inbound"
	EventsPath  = "/push/events"
	// DirectPath is followed by the id of a direct source.
	DirectPath = "/push/direct/"
)

// Routes are the push endpoints. The caller puts authentication and health checks
// around them. Answers:
//
//   - 204: done with. Not 200 nor 202: the emulator takes 202 for a failure.
//   - 400: not a push request; it was stored once, by its content. Pub/Sub tries it
//     again until the subscription's dead-letter policy ends that.
//   - 413: larger than any message of Pub/Sub's.
//   - 503: to be delivered again.
func (in *Ingester) Routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+InboundPath, in.push(Inbound))
	mux.Handle("POST "+EventsPath, in.push(Events))
	for kind, source := range in.direct {
		mux.Handle("POST "+DirectPath+source.ID, in.push(kind))
	}
	return mux
}

// readWithin bounds the arrival of one push.
const readWithin = 30 * time.Second

func (in *Ingester) push(kind Kind) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Whoever stalls gives up the memory reserved for it.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readWithin))
		// Requests that there is no memory for wait here; Pub/Sub sends fewer then.
		held := r.ContentLength
		if held < 0 || held > bus.MaxPushBytes {
			held = bus.MaxPushBytes
		}
		if err := in.bytes.Acquire(r.Context(), held); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer in.bytes.Release(held)
		m, err := bus.ReadPush(w, r)
		malformed := (*bus.EnvelopeError)(nil)
		switch {
		case errors.As(err, &malformed):
			err = in.BuryEnvelope(r.Context(), malformed, kind)
		case err != nil:
			err = in.again(r.Context(), m, err)
		default:
			err = in.Handle(r.Context(), m, kind)
		}
		switch {
		case err != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		case malformed == nil:
			w.WriteHeader(http.StatusNoContent)
		case malformed.TooLarge():
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		default:
			w.WriteHeader(http.StatusBadRequest)
		}
	})
}
