package provider

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// kit is a scheme with keys that fit.
type kit struct {
	scheme *Scheme
	o      Options
	keys   Keys
	other  Keys
}

var kits = map[string]func() kit{}

// kitOf makes keys once for each scheme: RSA keys are slow to make.
func kitOf(t testing.TB, scheme string) kit {
	t.Helper()
	return kits[scheme]()
}

func init() {
	for _, name := range names() {
		kits[name] = sync.OnceValue(func() kit {
			o := SampleOptions(name)
			s, err1 := New(name, o)
			keys, err2 := SampleKeys(name)
			other, err3 := SampleKeys(name)
			if err := errors.Join(err1, err2, err3); err != nil {
				panic(err)
			}
			return kit{s, o, keys, other}
		})
	}
}

func (k kit) sign(t testing.TB, sample Sample, now time.Time) Request {
	t.Helper()
	r, err := Sign(k.scheme.name, k.o, k.keys.Signing, sample, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (k kit) verify(r Request, now time.Time) (Identity, error) {
	return k.scheme.Verify(r, one(k.keys.Verification), now)
}

// unsigned are the schemes whose body nothing signs.
var unsigned = []string{"gitlab-token", "mailgun", "microsoft-graph", genericToken, "basic", googleOIDC}

// ownID are the schemes whose events have no id of the provider's alone.
var ownID = []string{"sendgrid", "hubspot-v1", "hubspot-v2", "hubspot-v3", "asana", "dropbox", "zoom", "meta", "x-twitter", "docusign", "adyen", "basic", "discord", "x-twitter-crc"}

// Every scheme: the sample is accepted as what it says, and nothing near it is.
func TestEveryScheme(t *testing.T) {
	t.Parallel()
	for _, name := range names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kitOf(t, name)
			r := k.sign(t, Sample{ID: "e1"}, noon)
			id, err := k.verify(r, noon)
			if err != nil {
				t.Fatal(err)
			}
			if name == "x-twitter-crc" {
				if id.Response == nil {
					t.Error("no handshake")
				}
				return
			}
			if want := SampleTypes(name)[0]; id.Type != want {
				t.Errorf("type %q, want %q", id.Type, want)
			}
			if !slices.Contains(ownID, name) && id.ID != "e1" {
				t.Errorf("id %q", id.ID)
			}
			if err := webhook.ValidType(id.Type); err != nil {
				t.Error(err)
			}
			again, err := k.verify(r, noon)
			if err != nil || again.ID != id.ID {
				t.Errorf("the same request is %q and %q, %v", id.ID, again.ID, err)
			}
			if other, err := k.verify(k.sign(t, Sample{ID: "e2"}, noon), noon); err != nil || (other.ID == id.ID) {
				t.Errorf("another event is %q too, %v", other.ID, err)
			}
			k.refuseSecrets(t, r)
			k.refuseNeighbours(t, r)
			k.limits(t)
			for _, h := range id.Headers {
				if strings.Contains(h.Value, k.keys.Signing) {
					t.Errorf("header %s keeps the credential", h.Name)
				}
			}
		})
	}
}

func (k kit) refuseSecrets(t *testing.T, r Request) {
	t.Helper()
	if _, err := k.scheme.Verify(r, one(k.other.Verification), noon); !isReason(err, Mismatch) {
		t.Errorf("another secret: %v", err)
	}
	rotation := []Secret{NewSecret("s", 2, []byte(k.other.Verification)), NewSecret("s", 1, []byte(k.keys.Verification))}
	if id, err := k.scheme.Verify(r, rotation, noon); err != nil || id.Secret != 1 {
		t.Errorf("rotation: %d, %v", id.Secret, err)
	}
	for _, blank := range []string{"", " ", "\n", "\x00", "whsec_"} {
		if _, err := k.scheme.Verify(r, one(blank), noon); !isReason(err, NoSecret) {
			t.Errorf("secret %q: %v", blank, err)
		}
	}
	if _, err := k.scheme.Verify(r, nil, noon); !isReason(err, NoSecret) {
		t.Errorf("no secret: %v", err)
	}
	if k.keys.Signing != k.keys.Verification {
		if err := k.scheme.CheckSecret(NewSecret("s", 1, []byte(k.keys.Signing))); err == nil && strings.Contains(k.keys.Signing, "PRIVATE") {
			t.Error("a private key is taken for verification")
		}
	}
}

// refuseNeighbours changes one thing at a time.
func (k kit) refuseNeighbours(t *testing.T, r Request) {
	t.Helper()
	clone := func() Request { c := r; c.Header = r.Header.Clone(); return c }
	for name := range r.Header {
		if optional := name == "Content-Type" || name == "X-Amz-Sns-Message-Type"; !optional && k.essential(name) {
			c := clone()
			c.Header.Del(name)
			if _, err := k.verify(c, noon); !isReason(err, MissingSignature) {
				t.Errorf("without %s: %v", name, err)
			}
			c = clone()
			c.Header.Add(name, c.Header.Get(name))
			if _, err := k.verify(c, noon); !isReason(err, Ambiguous) {
				t.Errorf("%s twice: %v", name, err)
			}
			c = clone()
			c.Header[name] = []string{strings.Repeat("a", 1<<20)}
			if _, err := k.verify(c, noon); err == nil {
				t.Errorf("huge %s is accepted", name)
			}
		}
	}
	if slices.Contains(unsigned, k.scheme.name) {
		return
	}
	for what, body := range map[string][]byte{
		"byte appended": append(bytes.Clone(r.Body), ' '), "byte before": append([]byte(" "), r.Body...), "no body": nil,
		"byte changed": bytes.Replace(r.Body, []byte("e1"), []byte("e2"), 1),
	} {
		if signedFields := k.scheme.name == "adyen" || k.scheme.name == "aws-sns"; signedFields && strings.HasPrefix(what, "byte a") {
			continue // space around JSON is not signed
		} else if (signedFields && what == "byte before") || bytes.Equal(body, r.Body) {
			continue
		}
		c := clone()
		c.Body = body
		if _, err := k.verify(c, noon); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if k.scheme.NeedsURL() {
		for _, u := range []string{"https://hooks.example.com/in/sample/", "https://hooks.example.com/in/sample?x=1", "https://hooks.example.com/in/samplE", "http://hooks.example.com/in/sample"} {
			c := clone()
			c.URL = u
			if _, err := k.verify(c, noon); !isReason(err, Mismatch) {
				t.Errorf("at %s: %v", u, err)
			}
		}
	}
}

// essential reports whether a header is part of the proof.
func (k kit) essential(name string) bool {
	for _, h := range k.scheme.headers {
		if name == h.signature || name == h.timestamp || (name == h.id && k.scheme.signed.has["id"]) {
			return true
		}
	}
	return name == "Authorization" || strings.HasPrefix(name, "Paypal-") || name == "X-Docusign-Signature-1"
}

// limits holds the signed timestamp to the tolerance, to the second.
func (k kit) limits(t *testing.T) {
	t.Helper()
	if !k.scheme.SignsTime() {
		return
	}
	r := k.sign(t, Sample{}, noon)
	for _, c := range []struct {
		after time.Duration
		want  Reason
	}{{300 * time.Second, ""}, {301 * time.Second, Stale}, {-300 * time.Second, ""}, {-301 * time.Second, Future}, {100 * 365 * 24 * time.Hour, Stale}} {
		_, err := k.verify(r, noon.Add(c.after))
		if c.want == "" && err != nil || c.want != "" && !isReason(err, c.want) {
			t.Errorf("%s later: %v, want %q", c.after, err, c.want)
		}
	}
}

// No scheme reads a request of another as its own.
func TestSchemesAreNotConfused(t *testing.T) {
	t.Parallel()
	for _, from := range names() {
		for _, to := range names() {
			same := map[string]string{"standard-webhooks": "svix gitlab-signing-token standard-webhooks-v1a", "svix": "standard-webhooks", "gitlab-signing-token": "standard-webhooks svix",
				"standard-webhooks-v1a": "standard-webhooks svix", "x-twitter-crc": "x-twitter", "x-twitter": "x-twitter-crc", jwtScheme: googleOIDC, "github": "meta", "meta": "github"}
			if from == to || strings.Contains(same[from], to) {
				continue
			}
			a, b := kitOf(t, from), kitOf(t, to)
			r := a.sign(t, Sample{}, noon)
			if _, err := b.scheme.Verify(r, one(b.keys.Verification), noon); err == nil {
				t.Errorf("%s accepts %s", to, from)
			}
		}
	}
}

func TestSampleHandshakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ scheme, typ, want string }{
		{"slack", "url_verification", "challenge-1"},
		{"zoom", "endpoint.url_validation", `"plainToken":"challenge-1"`},
	} {
		k := kitOf(t, c.scheme)
		id, err := k.verify(k.sign(t, Sample{ID: "challenge-1", Type: c.typ}, noon), noon)
		if err != nil || id.Response == nil || id.Response.Status != http.StatusOK || !strings.Contains(string(id.Response.Body), c.want) {
			t.Errorf("%s: %+v, %v", c.scheme, id.Response, err)
		}
	}
	k := kitOf(t, "aws-sns")
	id, err := k.verify(k.sign(t, Sample{Type: "SubscriptionConfirmation"}, noon), noon)
	if err != nil || !strings.HasPrefix(id.Confirm, "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&") {
		t.Errorf("%q, %v", id.Confirm, err)
	}
}
