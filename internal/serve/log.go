package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
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
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() && t.project != "" {
		r.AddAttrs(
			slog.String("logging.googleapis.com/trace", "projects/"+t.project+"/traces/"+sc.TraceID().String()),
			slog.String("logging.googleapis.com/spanId", sc.SpanID().String()),
			slog.Bool("logging.googleapis.com/trace_sampled", sc.IsSampled()))
	}
	return t.Handler.Handle(ctx, r)
}

func (t traced) WithAttrs(as []slog.Attr) slog.Handler {
	return traced{t.Handler.WithAttrs(as), t.project}
}
func (t traced) WithGroup(name string) slog.Handler {
	return traced{t.Handler.WithGroup(name), t.project}
}
