package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
)

// NewLogger writes the service's log: JSON in the fields that Cloud Logging reads
// (LOG_FORMAT=json, the default), or text for a terminal (LOG_FORMAT=text).
// LOG_LEVEL is debug, info (default), warn or error.
// https://cloud.google.com/logging/docs/structured-logging
func NewLogger(w io.Writer, service string, getenv func(string) string) (*slog.Logger, error) {
	var level slog.Level
	if v := getenv("LOG_LEVEL"); v != "" {
		if err := level.UnmarshalText([]byte(v)); err != nil {
			return nil, fmt.Errorf("LOG_LEVEL is %q, want debug, info, warn or error", v)
		}
	}
	switch f := getenv("LOG_FORMAT"); f {
	case "text":
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})).With("service", service), nil
	case "", "json":
		h := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: cloudFields})
		return slog.New(traced{h, getenv("GOOGLE_CLOUD_PROJECT")}).With("service", service), nil
	default:
		return nil, fmt.Errorf("LOG_FORMAT is %q, want json or text", f)
	}
}

// cloudFields renames slog's own fields to Cloud Logging's.
func cloudFields(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.LevelKey:
		level, _ := a.Value.Any().(slog.Level)
		return slog.String("severity", severity(level))
	case slog.MessageKey:
		a.Key = "message"
	}
	return a
}

func severity(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "ERROR"
	case l >= slog.LevelWarn:
		return "WARNING"
	case l >= slog.LevelInfo:
		return "INFO"
	}
	return "DEBUG"
}

// traced adds the request's trace to each line, so that Cloud Logging shows a
// request's lines together.
type traced struct {
	slog.Handler
	project string
}

func (t traced) Handle(ctx context.Context, r slog.Record) error {
	if tr, ok := ctx.Value(traceKey{}).(trace); ok && t.project != "" {
		r.AddAttrs(slog.String("logging.googleapis.com/trace", "projects/"+t.project+"/traces/"+tr.id), slog.String("logging.googleapis.com/spanId", tr.span))
	}
	return t.Handler.Handle(ctx, r)
}

func (t traced) WithAttrs(as []slog.Attr) slog.Handler {
	return traced{t.Handler.WithAttrs(as), t.project}
}
func (t traced) WithGroup(name string) slog.Handler {
	return traced{t.Handler.WithGroup(name), t.project}
}

type trace struct{ id, span string }

type traceKey struct{}

// withTrace notes the trace that the caller's traceparent names (W3C Trace
// Context, version 00). Anything else is ignored.
func withTrace(ctx context.Context, h http.Header) context.Context {
	parts := strings.Split(h.Get("Traceparent"), "-")
	if len(parts) != 4 || parts[0] != "00" || !hexOf(parts[1], 32) || !hexOf(parts[2], 16) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, trace{parts[1], parts[2]})
}

func hexOf(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}
