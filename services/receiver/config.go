package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/receive"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/serve"
)

// config is everything that the receiver is told.
type config struct {
	Project     string
	Topic       string
	Sources     []receive.Source
	ByteBudget  int64
	ReadTimeout time.Duration
	TrustedHops *int   // nil: not told
	CertHeader  string // empty: no client certificates
}

const environment = `usage: receiver [--version]

Serves POST /in/{source} for providers, until SIGTERM. Settings:

  GOOGLE_CLOUD_PROJECT   the project (needed)
  SOURCES                the sources, a JSON array:
                         [{"id":"billing","scheme":"stripe","secrets":[{"name":"source-billing","versions":[1]}]}]
                         and per source, where wanted: tenant, allow_types, tolerance ("5m"),
                         body_limit (bytes), publish_deadline ("2s"), public_url, on_replay,
                         dedupe ("header:…", "cel:…" or a preset), content_types,
                         content_encoding, schemas, schema_mode, allow_cidrs, mtls_subject,
                         mtls_san, and for single schemes hmac, token, jwt, webhook_id,
                         topics, verify_token, asana_handshake (the README says what each
                         means)
  SOURCES_FILE           a file with the same, instead
  INBOUND_TOPIC          topic of verified events (default sealpost-inbound)
  BYTE_BUDGET            bytes held for bodies at any time (default 134217728)
  READ_TIMEOUT           time for one body to arrive (default 10s)
  TRUSTED_HOPS           where the client's address stands, for sources with allow_cidrs:
                         1 on Cloud Run itself, 2 behind Google's external Application Load
                         Balancer (the n-th from the right of X-Forwarded-For), 0 without
                         any proxy (the connection's peer)
  BEHIND_LOAD_BALANCER   true if nothing reaches this service but through a load balancer
  CLIENT_CERT_HEADER     header that the load balancer sets on every request to
                         {client_cert_leaf}, for sources with mtls_subject or mtls_san; whoever
                         else could set it would have any certificate, so that it needs
                         BEHIND_LOAD_BALANCER=true
  HOST, PORT             address to listen on (default every interface, 8080)
  LOG_FORMAT, LOG_LEVEL  json or text; debug, info, warn or error

PUBSUB_EMULATOR_HOST and SECRET_MANAGER_EMULATOR_HOST lead to emulators.
`

// Bounds of settings.
const (
	minByteBudget  = 32 << 20
	maxByteBudget  = 16 << 30
	minReadTimeout = time.Second
	maxReadTimeout = time.Minute
)

// load reads and checks every setting, and reports all faults at once. Secrets
// are not read yet.
func load(getenv func(string) string) (config, error) {
	e := serve.NewEnv(getenv)
	cfg := config{
		Project:     e.Needed("GOOGLE_CLOUD_PROJECT"),
		Topic:       e.Text("INBOUND_TOPIC", "sealpost-inbound"),
		ByteBudget:  e.Number("BYTE_BUDGET", receive.DefaultByteBudget, minByteBudget, maxByteBudget),
		ReadTimeout: e.Duration("READ_TIMEOUT", receive.DefaultReadTimeout, minReadTimeout, maxReadTimeout),
	}
	cfg.front(e)
	text, name := e.TextOrFile("SOURCES")
	if len(text) == 0 {
		e.Fault("SOURCES, SOURCES_FILE", errors.New("neither gives any (no sources are written [])"))
		return cfg, e.Err()
	}
	var err error
	cfg.Sources, err = receive.ParseSources(text)
	e.Fault(name, err)
	return cfg, e.Err()
}

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// front reads what stands between the internet and this service.
func (c *config) front(e *serve.Env) {
	if e.Text("TRUSTED_HOPS", "") != "" {
		hops := int(e.Number("TRUSTED_HOPS", 0, 0, 10))
		c.TrustedHops = &hops
	}
	behind := e.Text("BEHIND_LOAD_BALANCER", "false")
	if behind != "true" && behind != "false" {
		e.Fault("BEHIND_LOAD_BALANCER", fmt.Errorf("is %q, want true or false", behind))
	}
	switch c.CertHeader = e.Text("CLIENT_CERT_HEADER", ""); {
	case c.CertHeader == "":
	case !headerName.MatchString(c.CertHeader):
		e.Fault("CLIENT_CERT_HEADER", fmt.Errorf("%.64q is no header's name", c.CertHeader))
	case behind != "true":
		e.Fault("CLIENT_CERT_HEADER", errors.New("needs BEHIND_LOAD_BALANCER=true: anyone who reaches this service directly could set it"))
	}
}

// readSecrets resolves every listed version of every source. One that cannot be
// read fails the start: a new revision then never takes traffic, and the old one
// goes on serving.
func (c *config) readSecrets(ctx context.Context) error {
	client, err := secrets.NewClient(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	faults := make([][]error, len(c.Sources))
	for i := range c.Sources {
		s := &c.Sources[i]
		wg.Go(func() {
			for _, ref := range s.Secrets {
				for _, v := range ref.Versions {
					value, err := client.Access(ctx, c.Project, ref.Name, v)
					if err != nil {
						faults[i] = append(faults[i], fmt.Errorf("source %q: %w", s.ID, err))
						continue
					}
					s.Keys = append(s.Keys, provider.NewSecret(ref.Name, v, value))
				}
			}
		})
	}
	wg.Wait()
	var all []error
	for _, f := range faults {
		all = append(all, f...)
	}
	return errors.Join(all...)
}
