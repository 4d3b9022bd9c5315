package deliver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// nodeRequest is what testdata/node/verify.mjs reads.
type nodeRequest struct {
	Name    string            `json:"name"`
	Secret  string            `json:"secret"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
	Good    bool              `json:"good"`
}

// What the dispatcher sends verifies with npm's standardwebhooks and svix, at the
// versions of testdata/node/package-lock.json.
func TestNodeLibrariesVerify(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("node is not on the PATH: install Node 18 or newer (https://nodejs.org), or run ./scripts/test, which says how")
	}
	dir := filepath.Join("testdata", "node")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "svix")); err != nil {
		t.Fatal("the Node libraries are not installed: run ./scripts/test, or: npm ci --ignore-scripts --prefix internal/deliver/testdata/node")
	}
	w := newWire(t, nil)
	w.advance(time.Since(w.clock())) // the libraries look at the clock
	other, err := signing.GenerateSecret(nil)
	ok(t, err)
	private, err := signing.GeneratePrivateKey(nil)
	ok(t, err)
	var requests []nodeRequest
	add := func(name string, adjust func(*store.Claim)) *nodeRequest {
		in := newInbox(t, false, nil)
		if a := w.send(w.claim(in.URL, adjust)); a.Outcome.Class != webhook.ClassOK {
			t.Fatalf("%s: %+v", name, a)
		}
		r, body := in.only(t)
		requests = append(requests, nodeRequest{name, wireSecret, flat(r.Header), body, true})
		return &requests[len(requests)-1]
	}
	for _, mode := range []webhook.PayloadMode{"wrapped", "raw", "thin", "cloudevents"} {
		add(string(mode), func(c *store.Claim) {
			c.Endpoint.PayloadMode = mode
			c.Event.Body = []byte(`{"text":"Größe \u001B 😀","n":0.0,"a":1,"a":2}` + "\n")
		})
	}
	add("text", func(c *store.Claim) {
		c.Endpoint.PayloadMode, c.Event.ContentType, c.Event.Body = "raw", "text/plain", []byte("no JSON at all\r\n")
	})
	rotating := func(c *store.Claim) {
		c.Keys = []store.SealedKey{w.key("k3", "v1a", private.Reveal()), w.key("k2", "v1", other.Reveal()), w.key("k1", "v1", wireSecret)}
	}
	add("rotation, the older secret", rotating)
	add("rotation, the newer secret", rotating).Secret = other.Reveal()
	tampered := add("tampered body", func(*store.Claim) {})
	tampered.Body, tampered.Good = bytes.Replace(tampered.Body, []byte("19.90"), []byte("19.91"), 1), false
	renamed := add("another id", func(*store.Claim) {})
	renamed.Headers["webhook-id"], renamed.Good = "evt_other", false
	foreign := add("another's secret", func(*store.Claim) {})
	foreign.Secret, foreign.Good = other.Reveal(), false

	input, err := json.Marshal(requests)
	ok(t, err)
	cmd := exec.CommandContext(t.Context(), node, "verify.mjs")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(input)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || strings.TrimSpace(stdout.String()) != "10 requests" {
		t.Errorf("%v, %s%s", err, stdout.String(), stderr.String())
	}
}

// flat is a header as Node has it: names in lower case.
func flat(h http.Header) map[string]string {
	out := map[string]string{}
	for name, v := range h {
		out[strings.ToLower(name)] = strings.Join(v, ", ")
	}
	return out
}
