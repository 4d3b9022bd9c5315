package system_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// A sample of every scheme's is accepted by its sample source, stored byte for byte
// and delivered; a changed one is refused.
func TestSamplesOfEveryScheme(t *testing.T) {
	t.Parallel()
	r := start(t, system.Options{})
	hook := newCustomer(t, nil)
	r.endpoint("ep", hook.url, nil)
	sm, err := secrets.NewClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sm.Close()
	post := func(src system.Source, req provider.Request, body []byte) int {
		u, err := url.Parse(src.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.RawQuery = req.Query.Encode()
		hr, err := http.NewRequestWithContext(t.Context(), req.Method, u.String(), bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		hr.Header = req.Header.Clone()
		res, err := http.DefaultClient.Do(hr)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	bodies := map[string][]byte{}
	for _, src := range r.Sources {
		key, err := sm.Access(t.Context(), r.Cloud.Project(), system.SampleKeySecret(src.Name), 1)
		if err != nil {
			t.Fatal(err)
		}
		req, err := provider.Sign(src.Scheme, system.SampleOptions(src.Scheme), string(key), provider.Sample{ID: "sample-" + src.Name, URL: src.URL}, time.Now())
		if err != nil {
			t.Fatalf("%s: %v", src.Scheme, err)
		}
		if code := post(src, req, req.Body); code != http.StatusOK && code != http.StatusNoContent {
			t.Errorf("%s: answered %d", src.Scheme, code)
		}
		if req.Method == http.MethodPost {
			bodies[src.Name] = req.Body
		}
		req.Header = http.Header{"Content-Type": req.Header.Values("Content-Type")}
		if req.Method == http.MethodPost && src.Scheme != "adyen" && src.Scheme != "mailgun" && src.Scheme != "aws-sns" && src.Scheme != "microsoft-graph" {
			if code := post(src, req, req.Body); code != http.StatusUnauthorized {
				t.Errorf("%s without its credentials: answered %d", src.Scheme, code)
			}
		}
	}
	eventually(t, func() error {
		if n := len(r.events()); n < len(bodies) {
			return fmt.Errorf("%d events of %d posts", n, len(bodies))
		}
		return nil
	})
	for _, ev := range r.events() {
		body, err := r.Store.Payload(t.Context(), webhook.DefaultTenant, ev.Key)
		if err != nil || !bytes.Equal(body, bodies[ev.Source]) {
			t.Errorf("%s: stored %q, %v", ev.Source, body, err)
		}
		r.inState(ev.Key, "ep", webhook.DeliveryDelivered)
		delete(bodies, ev.Source)
	}
	for name := range bodies {
		t.Errorf("%s: no event is stored", name)
	}
}
