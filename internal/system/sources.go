package system

import (
	"context"
	"crypto/rand"
	"encoding/hex"

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

	config receive.Source
}

type hmacView struct {
	Header     string `json:"header"`
	Hash       string `json:"hash"`
	Encoding   string `json:"encoding"`
	Prefix     string `json:"prefix"`
	IDHeader   string `json:"id_header"`
	TypeHeader string `json:"type_header"`
}

// sampleSchemes are those whose secret can be invented here.
var sampleSchemes = []string{"standard-webhooks", "standard-webhooks-v1a", "svix", "stripe", "github", "shopify", "slack", "generic-hmac"}

// sampleSources makes one source per scheme, named like it, with fresh secrets that it stores in
// Secret Manager.
func sampleSources(ctx context.Context, sm *secrets.Client, project, receiver string) ([]Source, error) {
	var sources []Source
	for _, scheme := range sampleSchemes {
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
		src.config.Secrets = []receive.SecretRef{{Name: name, Versions: []int{version}}}
		value, err := sm.Access(ctx, project, name, version)
		if err != nil {
			return nil, err
		}
		src.config.Keys = []provider.Secret{provider.NewSecret(name, version, value)}
		sources = append(sources, src)
	}
	return sources, nil
}

// invent makes a secret of the kind that the scheme's provider gives out.
func (s *Source) invent() error {
	switch s.Scheme {
	case "standard-webhooks", "svix":
		secret, err := signing.GenerateSecret(rand.Reader)
		s.Secret = secret.Reveal()
		return err
	case "standard-webhooks-v1a":
		private, err := signing.GeneratePrivateKey(rand.Reader)
		if err != nil {
			return err
		}
		s.Secret, s.SigningKey = private.Public().String(), private.Reveal()
		return nil
	case "generic-hmac":
		s.HMAC = &hmacView{Header: "X-Signature", Hash: "sha256", Encoding: "hex", Prefix: "sha256=", IDHeader: "X-Event-Id", TypeHeader: "X-Event-Type"}
		s.config.HMAC = &provider.HMAC{Header: s.HMAC.Header, Hash: s.HMAC.Hash, Encoding: s.HMAC.Encoding, Prefix: s.HMAC.Prefix,
			IDHeader: s.HMAC.IDHeader, TypeHeader: s.HMAC.TypeHeader}
	}
	text := make([]byte, 24)
	if _, err := rand.Read(text); err != nil {
		return err
	}
	prefix := ""
	if s.Scheme == "stripe" {
		prefix = "whsec_" // Stripe's is text, not base64
	}
	s.Secret = prefix + hex.EncodeToString(text)
	return nil
}
