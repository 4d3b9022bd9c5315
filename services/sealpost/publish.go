package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/webhook"
)

func (c *cli) publishCommand() *cobra.Command {
	var m bus.EventMessage
	var data, at string
	cmd := &cobra.Command{
		Use:   "publish --type TYPE [--data @FILE|-|TEXT]",
		Short: "Publish one event",
		Long: `Publishes one event to the events topic and waits for Pub/Sub's result. The bytes of
--data stand unchanged in what every endpoint is sent. Publishing the same --id for the same
tenant again is a duplicate: it is counted and not delivered twice.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if m.Type == "" {
				return usageError{errors.New("--type is needed")}
			}
			var err error
			if at != "" {
				m.Time, err = time.Parse(time.RFC3339, at)
			}
			if err := errors.Join(wrap("--type", webhook.ValidType(m.Type)), wrap("--tenant", webhook.ValidName(m.Tenant)), wrap("--time", err)); err != nil {
				return usageError{err}
			}
			body, err := c.readData(data)
			if err != nil {
				return err
			}
			m.Data = body
			if m.ID == "" {
				m.ID = uuid.Must(uuid.NewV7()).String()
			}
			project, err := c.env("GOOGLE_CLOUD_PROJECT")
			if err != nil {
				return err
			}
			p, err := bus.NewPublisher(cmd.Context(), project, c.envOr("EVENTS_TOPIC", "sealpost-events"), bus.PublisherOptions{})
			if err != nil {
				return err
			}
			defer p.Close(cmd.Context())
			if _, err := p.PublishEvent(cmd.Context(), m); err != nil {
				return err
			}
			res := struct {
				Event  string `json:"event"`
				ID     string `json:"id"`
				Tenant string `json:"tenant"`
				Type   string `json:"type"`
				Bytes  int    `json:"bytes"`
			}{webhook.KeyOf(bus.EventSource(m.Source), m.Tenant, webhook.CanonicalID(m.ID)).ID(), m.ID, m.Tenant, m.Type, len(m.Data)}
			return c.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "published %s (%s, %d bytes) as %s\n", res.Type, res.ID, res.Bytes, res.Event)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.Type, "type", "", "event type, such as invoice.paid (needed)")
	f.StringVar(&m.Tenant, "tenant", webhook.DefaultTenant, "tenant")
	f.StringVar(&m.ID, "id", "", "event id, the key of de-duplication (default a new UUIDv7)")
	f.StringVar(&m.Source, "source", "", "CloudEvents source within your systems")
	f.StringVar(&m.Subject, "subject", "", "CloudEvents subject")
	f.StringVar(&m.OrderingKey, "ordering-key", "", "what the event's order counts for, such as an invoice's number, at endpoints with --ordering")
	f.StringVar(&at, "time", "", "when it happened, RFC 3339: its place among the events of its ordering key (default none: as it arrives)")
	f.StringVar(&m.ContentType, "content-type", "application/json", "content type of the data")
	f.StringVar(&data, "data", "{}", "payload: text, @FILE, or - for standard input")
	return cmd
}

// readData gives the payload's exact bytes.
func (c *cli) readData(arg string) ([]byte, error) {
	if arg == "-" {
		return io.ReadAll(c.in)
	}
	if name, ok := strings.CutPrefix(arg, "@"); ok {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, usageError{err}
		}
		return b, nil
	}
	return []byte(arg), nil
}
