package deliver

import (
	"bytes"
	"crypto/tls"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/webhook"
)

// exchangeOf writes an exchange down, credentials masked. res is nil where no answer
// was seen; extra are the endpoint's own headers.
func exchangeOf(out *outgoing, res *http.Response, a *webhook.Attempt, seen safedial.Snapshot, extra []webhook.Header) *webhook.Exchange {
	x := &webhook.Exchange{Error: a.Error, RemoteAddr: a.RemoteAddr, Reused: seen.Reused, Protocol: "HTTP/1.1",
		Timings: webhook.ExchangeTimings{DNS: ms(seen.At.DNS), Connected: ms(seen.At.TCP), TLS: ms(seen.At.TLS), Sent: ms(seen.At.Wrote),
			FirstByte: ms(seen.At.FirstByte), Done: ms(a.Duration)}}
	if seen.HTTP2 {
		x.Protocol = "HTTP/2.0"
	}
	if seen.TLSVersion != 0 {
		x.TLS = tls.VersionName(seen.TLSVersion)
	}
	h := out.req.Header.Clone()
	h.Set("Host", out.req.URL.Host)
	h.Set("Content-Length", strconv.Itoa(len(out.body.Bytes)))
	for _, e := range extra {
		if credential(e.Name) {
			h.Set(e.Name, webhook.Masked)
		}
	}
	if v := h.Get("Authorization"); v != "" {
		scheme, _, _ := strings.Cut(v, " ")
		if out.auth.header == "" {
			scheme = "" // the endpoint's own header: its first word may be the secret
		}
		h.Set("Authorization", strings.TrimSpace(scheme+" "+webhook.Masked))
	}
	x.Request = webhook.ExchangeRequest{Method: out.req.Method, URL: a.URL, Headers: lines(h, nil), BodySize: int64(len(out.body.Bytes))}
	x.Request.Body, x.Request.Truncated = start(out.body.Bytes)
	if res != nil {
		x.Response = &webhook.ExchangeResponse{Status: res.StatusCode, Headers: lines(res.Header, out.secret)}
		x.Response.Body, x.Response.Truncated = start(a.Excerpt)
		x.Response.Truncated = x.Response.Truncated || a.Truncated
	}
	return x
}

func ms(d time.Duration) float64 { return webhook.Milliseconds(d) }

// start is the beginning of a body, as a copy.
func start(b []byte) (head []byte, truncated bool) {
	n := min(len(b), webhook.MaxExchangeBody)
	return bytes.Clone(b[:n]), n < len(b)
}

// credential reports whether a header of this name is likely to hold one.
func credential(name string) bool {
	lower := strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "key", "token", "secret", "password", "credential", "cookie", "session"}, func(s string) bool {
		return strings.Contains(lower, s)
	})
}

// lines are the header lines in alphabetical order, long ones cut, without cookies,
// query values and what is secret.
func lines(h http.Header, secret [][]byte) []webhook.Header {
	out := []webhook.Header{}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			switch http.CanonicalHeaderKey(name) {
			case "Set-Cookie":
				v = webhook.Masked
			case "Location", "Content-Location", "Refresh", "Link":
				v = maskQuery(v)
			}
			if v = string(mask([]byte(v), secret)); len(v) > webhook.MaxExchangeHeader {
				v = v[:webhook.MaxExchangeHeader] + "…"
			}
			if len(out) < webhook.MaxExchangeHeaders {
				out = append(out, webhook.Header{Name: name, Value: strings.ToValidUTF8(v, "\uFFFD")})
			}
		}
	}
	return out
}

// maskQuery leaves a reference's query out.
func maskQuery(v string) string {
	before, _, query := strings.Cut(v, "?")
	if query {
		return before + "?" + webhook.Masked
	}
	return v
}
