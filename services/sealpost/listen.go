package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/webhook"
)

// forwarded is one line of listen.
type forwarded struct {
	At          time.Time `json:"at"`
	Event       string    `json:"event"`
	PublisherID string    `json:"publisher_id"`
	Type        string    `json:"type"`
	Bytes       int       `json:"bytes"`
	Status      int       `json:"status,omitempty"`
	Error       string    `json:"error,omitempty"`
	DurationMS  float64   `json:"duration_ms"`
}

func (c *cli) listenCommand() *cobra.Command {
	var source, target string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "listen --source SOURCE --forward-to URL",
		Short: "Forward a source's accepted events to a program on this machine",
		Long: `Streams the events that the source accepts from now on to a program on this machine,
each as it came: the provider's own headers and the exact bytes. Prints what the program
answered. It reads through a Pub/Sub subscription of its own, which it deletes at the end
(and which otherwise expires after a day), so that nobody else misses anything. Nothing is
retried.

Only loopback and public addresses are forwarded to.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			policy := safedial.Dev()
			u, err := policy.CheckURL(target)
			if target == "" {
				err = errors.New("is needed")
			}
			if err := errors.Join(wrap("--source", webhook.ValidSource(source)), wrap("--forward-to", err)); err != nil {
				return usageError{err}
			}
			project, err := c.env("GOOGLE_CLOUD_PROJECT")
			if err != nil {
				return err
			}
			f := &forwarder{client: safedial.NewClient(policy, safedial.ClientOptions{Timeout: timeout}), url: u, c: c}
			o := bus.SubscribeOptions{Log: slog.New(slog.NewTextHandler(c.errOut, nil)), Grace: time.Second, MaxOutstandingMessages: 20}
			return bus.Tap(cmd.Context(), project, c.envOr("INBOUND_TOPIC", "sealpost-inbound"), source, o, func() {
				if !c.json {
					fmt.Fprintf(c.out, "Listening to %s; forwarding to %s what is accepted from now on ('sealpost sources list' names the sources). Ctrl-C ends.\n", source, safedial.MaskURL(target))
				}
			}, f.forward)
		},
	}
	cmd.Flags().StringVar(&source, "source", "", "the source's id (needed)")
	cmd.Flags().StringVar(&target, "forward-to", "", "URL of the program, such as http://localhost:4242/hook (needed)")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long the program may take")
	return cmd
}

type forwarder struct {
	client *safedial.Client
	url    *url.URL
	c      *cli

	mu sync.Mutex // of the output
}

// forward posts one message and prints what came of it.
func (f *forwarder) forward(ctx context.Context, m bus.Message) {
	began := time.Now()
	line := forwarded{At: began.UTC()}
	ev, err := bus.DecodeInbound(m)
	if err == nil {
		line.Event, line.PublisherID, line.Type, line.Bytes = ev.Key.ID(), ev.PublisherID, ev.Type, len(ev.Body)
		line.Status, err = f.post(ctx, &ev)
	}
	if err != nil {
		line.Error = err.Error()
	}
	line.DurationMS = float64(time.Since(began).Microseconds()) / 1000
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.c.print(line, func(w io.Writer) {
		answer := line.Error
		if answer == "" {
			answer = fmt.Sprint(line.Status)
		}
		fmt.Fprintf(w, "%s  %s  %s  %d bytes  →  %s  (%.0f ms)\n", began.Local().Format(time.TimeOnly), line.Type, line.PublisherID, line.Bytes, answer, line.DurationMS)
	})
}

func (f *forwarder) post(ctx context.Context, ev *webhook.Event) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url.String(), bytes.NewReader(ev.Body))
	if err != nil {
		return 0, err
	}
	for _, h := range ev.Headers {
		req.Header.Add(h.Name, h.Value)
	}
	if ev.ContentType != "" {
		req.Header.Set("Content-Type", ev.ContentType)
	}
	res, err := f.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, _, _ = safedial.ReadExcerpt(res.Body, 64<<10) // so that the connection is kept
	return res.StatusCode, nil
}
