package receive

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
)

// Where the signature covers neither the id nor a time, the event says so, and
// says what is to become of a body that comes again.
func TestUnsignedIDs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		scheme           string
		onReplay         string
		strip            string // header left out
		unsigned, refuse bool
	}{
		{scheme: "github", unsigned: true},
		{scheme: "github", onReplay: OnReplayRefuse, unsigned: true, refuse: true},
		{scheme: "github", onReplay: OnReplayFlag, unsigned: true},
		{scheme: "github", onReplay: OnReplayRefuse, strip: "X-GitHub-Delivery"}, // its id is the body's hash
		{scheme: "shopify", unsigned: true},
		{scheme: "stripe", onReplay: OnReplayRefuse},
		{scheme: "slack"},
		{scheme: "standard-webhooks"},
		{scheme: "gitlab-token"}, // signs nothing at all
	} {
		keys, err := provider.SampleKeys(tt.scheme)
		if err != nil {
			t.Fatal(err)
		}
		f := &fake{}
		rc := newReceiver(t, Config{Publisher: f, Now: func() time.Time { return noon }, Sources: []Source{{ID: "s", Scheme: tt.scheme, OnReplay: tt.onReplay,
			Secrets: []SecretRef{{Name: "x", Versions: []int{1}}}, Keys: []provider.Secret{provider.NewSecret("x", 1, []byte(keys.Verification))}}}})
		req, err := provider.Sign(tt.scheme, provider.SampleOptions(tt.scheme), keys.Signing, provider.Sample{ID: "1"}, noon)
		if err != nil {
			t.Fatal(err)
		}
		var headers []string
		for name, values := range req.Header {
			if http.CanonicalHeaderKey(name) != http.CanonicalHeaderKey(tt.strip) {
				headers = append(headers, name, strings.Join(values, ", "))
			}
		}
		if w := post(rc, "/in/s", string(req.Body), headers...); w.Code != http.StatusOK {
			t.Errorf("%s: answered %d", tt.scheme, w.Code)
			continue
		}
		if ev := f.events[0]; ev.UnsignedID != tt.unsigned || ev.RefuseReplay != tt.refuse {
			t.Errorf("%s, on_replay %q: unsigned %v, refuse %v", tt.scheme, tt.onReplay, ev.UnsignedID, ev.RefuseReplay)
		}
	}
	if _, err := ParseSources([]byte(`[{"id":"s","scheme":"github","secrets":[{"name":"x","versions":[1]}],"on_replay":"maybe"}]`)); err == nil || !strings.Contains(err.Error(), "on_replay") {
		t.Errorf("on_replay maybe: %v", err)
	}
}
