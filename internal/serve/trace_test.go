package serve

import (
	"net/http"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

func TestTrace(t *testing.T) {
	t.Parallel()
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, c := range []struct {
		name, parent, cloud string
		trace, span         string
		sampled             bool
	}{
		{"none", "", "", "", "", false},
		{"traceparent", "00-" + id + "-" + span + "-01", "", id, span, true},
		{"traceparent wins", "00-" + id + "-" + span + "-00", "105445aa7843bc8bf206b12000100000/1;o=1", id, span, false},
		{"Google's header", "", "105445aa7843bc8bf206b12000100000/255;o=1", "105445aa7843bc8bf206b12000100000", "00000000000000ff", true},
		{"no options", "", "105445AA7843BC8BF206B12000100000/255", "105445aa7843bc8bf206b12000100000", "00000000000000ff", false},
		{"broken traceparent", "00-" + id + "-xyz-01", "105445aa7843bc8bf206b12000100000/1", "105445aa7843bc8bf206b12000100000", "0000000000000001", false},
		{"no span", "", "105445aa7843bc8bf206b12000100000", "", "", false},
		{"span too large", "", "105445aa7843bc8bf206b12000100000/18446744073709551616", "", "", false},
		{"zero span", "", "105445aa7843bc8bf206b12000100000/0", "", "", false},
		{"short trace", "", "1/1", "", "", false},
	} {
		h := http.Header{}
		h.Set("Traceparent", c.parent)
		h.Set("X-Cloud-Trace-Context", c.cloud)
		sc := trace.SpanContextFromContext(withTrace(t.Context(), h))
		if sc.IsValid() != (c.trace != "") || sc.IsValid() && (sc.TraceID().String() != c.trace || sc.SpanID().String() != c.span || sc.IsSampled() != c.sampled) {
			t.Errorf("%s: %s %s %t", c.name, sc.TraceID(), sc.SpanID(), sc.IsSampled())
		}
	}
}
