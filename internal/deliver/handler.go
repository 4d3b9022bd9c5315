package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// maxTaskBytes bounds the body of a task: it names an attempt and no more.
const maxTaskBytes = 16 << 10

// Routes are the paths that Cloud Tasks posts to. The caller puts authentication
// and health checks around them.
func (d *Dispatcher) Routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+tasks.AttemptPath, d.serveAttempt)
	mux.HandleFunc("POST "+tasks.QueueReadyPath, d.serveQueueReady)
	mux.HandleFunc("POST "+tasks.ControlPath, d.serveControl)
	return mux
}

// serveAttempt answers 204 when the task is done with, also when it never can be
// run; 503 when an outage of ours has it run again and its whole queue slow down,
// and 500 when only this task has failed. What the endpoint answered is in
// Spanner and never in this status.
func (d *Dispatcher) serveAttempt(w http.ResponseWriter, r *http.Request) {
	serveTask(d, w, r, webhook.ParseAttemptKey, d.Attempt)
}

// serveControl answers like serveAttempt.
func (d *Dispatcher) serveControl(w http.ResponseWriter, r *http.Request) {
	serveTask(d, w, r, webhook.ParseControl, d.Control)
}

func serveTask[T any](d *Dispatcher, w http.ResponseWriter, r *http.Request, parse func([]byte) (T, error), run func(context.Context, T) error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxTaskBytes))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	task, err := parse(body)
	if err != nil {
		// Nothing of ours makes such a task, and running it again cannot mend it.
		d.o.Log.ErrorContext(r.Context(), "task dropped", slog.String("event", "bad_task"), slog.String("error", err.Error()))
		w.WriteHeader(http.StatusNoContent)
		return
	}
	d.answer(w, r, run(withOrigin(r.Context(), r.Header), task))
}

func (d *Dispatcher) serveQueueReady(w http.ResponseWriter, r *http.Request) {
	var ready tasks.Ready
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTaskBytes)).Decode(&ready); err != nil {
		d.o.Log.ErrorContext(r.Context(), "task dropped", slog.String("event", "bad_task"), slog.String("error", err.Error()))
		w.WriteHeader(http.StatusNoContent)
		return
	}
	d.answer(w, r, d.QueueReady(r.Context(), ready))
}

func (d *Dispatcher) answer(w http.ResponseWriter, r *http.Request, err error) {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	d.o.Log.ErrorContext(r.Context(), "task will run again",
		slog.String("event", "task_failed"),
		slog.String("task", r.Header.Get("X-CloudTasks-TaskName")),
		slog.String("retry_count", r.Header.Get("X-CloudTasks-TaskRetryCount")),
		slog.String("error", err.Error()))
	if outage(err) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusInternalServerError)
}

// outage reports whether every other task would fail as well.
func outage(err error) bool {
	return errors.Is(err, errNoEgress) || errors.Is(err, errNoMemory) || errors.Is(err, errFull) || errors.Is(err, errBusAway) || store.Transient(err)
}
