package system

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/receive"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/signing"
)

// Source is a sample source.
type Source struct {
	Name   string `json:"-"`
	URL    string `json:"url"`
	Scheme string `json:"scheme"`
	Secret string `json:"secret"`
	// SigningKey is what the provider signs with where Secret is a public key.
	SigningKey string `json:"signing_key,omitempty"`
	// HMAC are the settings of generic-hmac.
	HMAC *hmacView `json:"hmac,omitempty"`

	signing string // what provider.Sign takes
	config  receive.Source
}

type hmacView struct {
	Header     string `json:"header"`
	Hash       string `json:"hash"`
	Encoding   string `json:"encoding"`
	Prefix     string `json:"prefix"`
	IDHeader   string `json:"id_header"`
	TypeHeader string `json:"type_header"`
}

// SampleKeySecret is the secret that holds what a sample source's provider signs
// with.
func SampleKeySecret(source string) string { return "sealpost-sample-key-" + source }

// SampleOptions are the options of the sample source of a scheme.
func SampleOptions(scheme string) provider.Options {
	if scheme == "generic-hmac" {
		return provider.Options{HMAC: &provider.HMAC{Header: "X-Signature", Hash: "sha256", Encoding: "hex", Prefix: "sha256=", IDHeader: "X-Event-Id", TypeHeader: "X-Event-Type"}}
	}
	return provider.SampleOptions(scheme)
}

// sampleSources makes one source per scheme, named like it, with fresh secrets that it stores in
// Secret Manager.
func sampleSources(ctx context.Context, sm *secrets.Client, project, receiver string) ([]Source, error) {
	var sources []Source
	for _, info := range provider.Schemes() {
		scheme := info.Name
		src := Source{Name: scheme, URL: receiver + "/in/" + scheme, Scheme: scheme}
		if err := src.invent(); err != nil {
			return nil, err
		}
		name := "sealpost-source-" + src.Name
		version, err := sm.Put(ctx, project, name, []byte(src.Secret))
		if err != nil {
			return nil, err
		}
		src.config.ID, src.config.Scheme = src.Name, src.Scheme
		src.config.PublicURL = src.URL
		// An emulator on a busy machine is slower than Pub/Sub, and nobody's provider
		// waits here.
		src.config.PublishDeadline = 15 * time.Second
		src.config.Secrets = []receive.SecretRef{{Name: name, Versions: []int{version}}}
		if _, err := sm.Put(ctx, project, SampleKeySecret(src.Name), []byte(src.signing)); err != nil {
			return nil, err
		}
		src.config.Keys = []provider.Secret{provider.NewSecret(name, version, []byte(src.Secret))}
		sources = append(sources, src)
	}
	return sources, nil
}

// invent makes a secret of the kind that the scheme's provider gives out.
func (s *Source) invent() error {
	o := SampleOptions(s.Scheme)
	s.config.HMAC, s.config.Token, s.config.JWT = o.HMAC, o.Token, o.JWT
	s.config.WebhookID, s.config.Topics, s.config.VerifyToken = o.WebhookID, o.Topics, o.VerifyToken
	if h := o.HMAC; h != nil {
		s.HMAC = &hmacView{h.Header, h.Hash, h.Encoding, h.Prefix, h.IDHeader, h.TypeHeader}
	}
	switch s.Scheme {
	case "standard-webhooks-v1a":
		private, err := signing.GeneratePrivateKey(rand.Reader)
		if err != nil {
			return err
		}
		s.Secret, s.SigningKey = private.Public().String(), private.Reveal()
		seed, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.SigningKey, "whsk_"))
		s.signing = hex.EncodeToString(seed[:ed25519.SeedSize])
		return err
	case "stripe":
		text := make([]byte, 24)
		if _, err := rand.Read(text); err != nil {
			return err
		}
		s.Secret = "whsec_" + hex.EncodeToString(text) // Stripe's is text, not base64
		s.signing = s.Secret
		return nil
	}
	keys, err := provider.SampleKeys(s.Scheme)
	if err != nil {
		return err
	}
	s.Secret, s.signing = keys.Verification, keys.Signing
	if keys.Signing != keys.Verification {
		s.SigningKey = keys.Signing
	}
	return nil
}
