package serve

import (
	"context"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// withTrace notes the trace of the request: of its traceparent (W3C Trace
// Context), else of X-Cloud-Trace-Context, which Google's front ends add. Log
// lines name it, and Pub/Sub messages and tasks made under ctx carry it on.
// A header that is not well formed is ignored.
func withTrace(ctx context.Context, h http.Header) context.Context {
	out := propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
	if trace.SpanContextFromContext(out).IsValid() {
		return out
	}
	sc, ok := cloudTrace(h.Get("X-Cloud-Trace-Context"))
	if !ok {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, sc)
}

// cloudTrace reads TRACE_ID/SPAN_ID;o=OPTIONS, where the span is decimal and the
// options may be missing.
// https://cloud.google.com/trace/docs/trace-context#legacy-http-header
func cloudTrace(v string) (trace.SpanContext, bool) {
	id, rest, ok := strings.Cut(v, "/")
	span, options, _ := strings.Cut(rest, ";")
	t, err1 := trace.TraceIDFromHex(strings.ToLower(id))
	n, err2 := strconv.ParseUint(span, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return trace.SpanContext{}, false
	}
	var s trace.SpanID
	binary.BigEndian.PutUint64(s[:], n)
	c := trace.SpanContextConfig{TraceID: t, SpanID: s, Remote: true}
	if options == "o=1" {
		c.TraceFlags = trace.FlagsSampled
	}
	sc := trace.NewSpanContext(c)
	return sc, sc.IsValid()
}
