package serve

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

func TestMainCode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args     string
		err      error
		code     int
		out, bad string // what standard output and standard error hold
	}{
		{"", nil, 0, "", ""},
		{"", errors.New("PROJECT: is not set"), 1, "", "svc: PROJECT: is not set"},
		{"--help", nil, 0, "usage: svc", ""},
		{"-h", nil, 0, "usage: svc", ""},
		{"--version", nil, 0, Version(), ""},
		{"--nope", nil, 2, "", "usage: svc"},
		{"argument", nil, 2, "", "usage: svc"},
	} {
		var out, bad bytes.Buffer
		code := mainCode("svc", "usage: svc\n", strings.Fields(tt.args), &out, &bad, func(context.Context, func(string) string) error { return tt.err })
		if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(bad.String(), tt.bad) {
			t.Errorf("%q: exit %d, %q, %q", tt.args, code, out.String(), bad.String())
		}
	}
}
