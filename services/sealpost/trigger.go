package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

func (c *cli) triggerCommand() *cobra.Command {
	var scheme, source, target, key string
	var sample provider.Sample
	cmd := &cobra.Command{
		Use:   "trigger --scheme SCHEME [--source SOURCE]",
		Short: "Post a correctly signed sample event to a source, as its provider would",
		Long: `Makes a sample event of the scheme, signs it as the provider does, posts it to the
source, and prints what the receiver answered.

The address is --url, or RECEIVER_URL and the source's id. The signing key is --key (- reads
it from standard input): the source's secret, or the private half where the secret is a
public key. Against 'sealpost dev' both are found by themselves. Samples of generic-hmac,
generic-token, jwt and google-oidc are made for the settings that sealpost dev gives those.

Schemes: ` + strings.Join(schemeNames(), ", ") + `

Exit code 1 if the receiver did not answer 2xx.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			var errs []error
			if scheme == "" {
				return usageError{errors.New("--scheme is needed: one of " + strings.Join(schemeNames(), ", "))}
			}
			if !slices.Contains(schemeNames(), scheme) {
				errs = append(errs, fmt.Errorf("--scheme %q is unknown; known are %s", scheme, strings.Join(schemeNames(), ", ")))
			}
			if source == "" {
				source = scheme // as in sealpost dev
			}
			errs = append(errs, wrap("--source", webhook.ValidSource(source)))
			if target == "" {
				target = strings.TrimRight(c.getenv("RECEIVER_URL"), "/") + "/in/" + source
			}
			if u, err := url.Parse(target); err != nil || u.Host == "" {
				errs = append(errs, errors.New("--url is needed, or RECEIVER_URL in the environment"))
			}
			if err := errors.Join(errs...); err != nil {
				return usageError{err}
			}
			signing, err := c.signingKey(ctx, key, source)
			if err != nil {
				return err
			}
			if sample.ID == "" {
				sample.ID = "evt-" + uuid.NewString()
			}
			sample.URL = target
			req, err := provider.Sign(scheme, system.SampleOptions(scheme), signing, sample, time.Now())
			if err != nil {
				return usageError{err}
			}
			return c.post(ctx, target, req)
		},
	}
	f := cmd.Flags()
	f.StringVar(&scheme, "scheme", "", "the source's scheme (needed)")
	f.StringVar(&source, "source", "", "the source's id (default the scheme's name)")
	f.StringVar(&target, "url", "", "where to post (default RECEIVER_URL/in/SOURCE)")
	f.StringVar(&key, "key", "", "what to sign with; - reads it from standard input")
	f.StringVar(&sample.Type, "event", "", "event type (default the scheme's own)")
	f.StringVar(&sample.ID, "id", "", "event id (default a new one)")
	return cmd
}

func schemeNames() []string {
	var names []string
	for _, info := range provider.Schemes() {
		names = append(names, info.Name)
	}
	return names
}

// signingKey is what the caller gives, or what `sealpost dev` keeps for its samples.
func (c *cli) signingKey(ctx context.Context, key, source string) (string, error) {
	if key == "-" {
		b, err := io.ReadAll(io.LimitReader(c.in, 64<<10))
		return strings.TrimRight(string(b), "\r\n"), err
	}
	if key != "" {
		return key, nil
	}
	if c.getenv(secrets.EmulatorVariable) == "" {
		return "", usageError{errors.New("--key is needed: what the source's provider signs with (only 'sealpost dev' keeps that at hand)")}
	}
	project, err := c.env("GOOGLE_CLOUD_PROJECT")
	if err != nil {
		return "", err
	}
	sm, err := secrets.NewClient(ctx)
	if err != nil {
		return "", err
	}
	defer sm.Close()
	b, err := sm.Access(ctx, project, system.SampleKeySecret(source), 1)
	if errors.Is(err, secrets.ErrNotFound) {
		return "", usageError{fmt.Errorf("sealpost dev has no source %q: give --key", source)}
	}
	return string(b), err
}

// hints say what an answer means to whoever asked for it. Answers themselves never
// say why, since strangers get them too.
var hints = map[int]string{
	http.StatusNoContent:    "Authentic, but of a type that the source does not want (allow_types).",
	http.StatusUnauthorized: "Refused. 'sealpost sources list' counts the reasons, the receiver's log line gives each. Is it the source's scheme, and its key?",
	http.StatusNotFound:     "The receiver serves no such source. 'sealpost sources list' names those it does.",
}

// post sends the signed request and prints the answer.
func (c *cli) post(ctx context.Context, target string, r provider.Request) error {
	u, err := url.Parse(target)
	if err != nil {
		return usageError{err}
	}
	u.RawQuery = r.Query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.Method, u.String(), bytes.NewReader(r.Body))
	if err != nil {
		return usageError{err}
	}
	req.Header = r.Header
	began := time.Now()
	res, err := safedial.NewClient(safedial.Dev(), safedial.ClientOptions{}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, _, err := safedial.ReadExcerpt(res.Body, 4<<10)
	if err != nil {
		return err
	}
	v := struct {
		URL    string  `json:"url"`
		Status int     `json:"status"`
		Answer string  `json:"answer"`
		Bytes  int     `json:"bytes"`
		MS     float64 `json:"duration_ms"`
	}{safedial.MaskURL(u.String()), res.StatusCode, strings.TrimSpace(string(answer)), len(r.Body), float64(time.Since(began).Microseconds()) / 1000}
	if err := c.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "%s  %d bytes  →  %d in %.0f ms  %s\n", v.URL, v.Bytes, v.Status, v.MS, v.Answer)
		if hint := hints[v.Status]; hint != "" {
			fmt.Fprintln(c.errOut, hint)
		}
	}); err != nil {
		return err
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return errNo
	}
	return nil
}
