package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// eventView is an event as commands print it.
type eventView struct {
	ID          string           `json:"id"`
	Tenant      string           `json:"tenant"`
	Source      string           `json:"source"`
	PublisherID string           `json:"publisher_id"`
	Type        string           `json:"type"`
	Subject     string           `json:"subject,omitempty"`
	OrderingKey string           `json:"ordering_key,omitempty"`
	State       string           `json:"state"`
	Rejection   string           `json:"rejection,omitempty"`
	Flags       []string         `json:"flags,omitempty"`
	ContentType string           `json:"content_type,omitempty"`
	Bytes       int64            `json:"bytes"`
	SHA256      string           `json:"sha256"`
	Duplicates  int64            `json:"duplicates"`
	OccurredAt  *time.Time       `json:"occurred_at,omitempty"`
	ReceivedAt  *time.Time       `json:"received_at,omitempty"`
	CommittedAt *time.Time       `json:"committed_at,omitempty"`
	ExpireAt    *time.Time       `json:"expire_at,omitempty"`
	ExpungedAt  *time.Time       `json:"expunged_at,omitempty"`
	Headers     []webhook.Header `json:"headers,omitempty"`
	Deliveries  []deliveryView   `json:"deliveries,omitempty"`
}

func viewEvent(e store.EventRow) eventView {
	return eventView{
		ID: e.Key.ID(), Tenant: e.Tenant, Source: e.Source, PublisherID: e.PublisherID, Type: e.Type,
		Subject: e.Subject, OrderingKey: e.OrderingKey, State: string(e.State), Rejection: e.Rejection, Flags: e.Flags,
		ContentType: e.ContentType, Bytes: e.Size, SHA256: fmt.Sprintf("%x", e.BodyHash), Duplicates: e.Duplicates,
		OccurredAt: optional(e.OccurredAt), ReceivedAt: optional(e.ReceivedAt), CommittedAt: optional(e.CommittedAt),
		ExpireAt: optional(e.ExpireAt), ExpungedAt: optional(e.ExpungedAt), Headers: e.Headers,
	}
}

func (c *cli) eventsCommand() *cobra.Command {
	return group("events", "Show what arrived and what became of it", c.eventsList(), c.eventsShow())
}

// listFlags are common to lists.
type listFlags struct {
	tenant string
	limit  int
}

func (l *listFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.tenant, "tenant", webhook.DefaultTenant, "tenant")
	cmd.Flags().IntVar(&l.limit, "limit", 50, "how many at most, newest first")
}

// pages collects up to limit rows.
func pages[T any](limit int, list func(store.Page) ([]T, string, error)) ([]T, error) {
	if limit < 1 {
		return nil, usageError{fmt.Errorf("--limit %d is not positive", limit)}
	}
	var all []T
	for page := (store.Page{}); ; {
		page.Size = min(limit-len(all), 200)
		rows, next, err := list(page)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
		if page.Token = next; next == "" || len(all) >= limit {
			return all, nil
		}
	}
}

func (c *cli) eventsList() *cobra.Command {
	var l listFlags
	cmd := &cobra.Command{Use: "list", Short: "List events, newest first", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := c.store(cmd.Context())
			if err != nil {
				return err
			}
			defer st.Close()
			rows, err := pages(l.limit, func(p store.Page) ([]store.EventRow, string, error) {
				return st.ListEvents(cmd.Context(), store.EventFilter{Tenant: l.tenant}, p)
			})
			if err != nil {
				return err
			}
			views := make([]eventView, len(rows))
			for i, r := range rows {
				views[i] = viewEvent(r)
			}
			return c.print(views, func(w io.Writer) {
				table(w, "RECEIVED\tEVENT\tSOURCE\tTYPE\tSTATE\tDUPLICATES", func(row func(...any)) {
					for i, v := range views {
						row(rows[i].ReceivedAt.Local().Format(time.DateTime), v.ID, v.Source, v.Type, v.State, v.Duplicates)
					}
				})
			})
		}}
	l.add(cmd)
	return cmd
}

func (c *cli) eventsShow() *cobra.Command {
	var tenant string
	var payload bool
	cmd := &cobra.Command{
		Use:   "show EVENT",
		Short: "Show an event with its deliveries, or its exact payload",
		Args:  exactArgs(1, "an event's id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := webhook.ParseEventID(args[0])
			if err != nil {
				return usageError{err}
			}
			ctx := cmd.Context()
			st, err := c.store(ctx)
			if err != nil {
				return err
			}
			defer st.Close()
			if payload {
				b, err := st.Payload(ctx, tenant, k)
				if err == nil {
					_, err = c.out.Write(b)
				}
				return err
			}
			row, err := st.Event(ctx, tenant, k)
			if err != nil {
				return err
			}
			v := viewEvent(row)
			ds, err := pages(10000, func(p store.Page) ([]webhook.Delivery, string, error) {
				return st.ListDeliveries(ctx, store.DeliveryFilter{Tenant: tenant, Event: k}, p)
			})
			if err != nil {
				return err
			}
			for _, d := range ds {
				v.Deliveries = append(v.Deliveries, viewDelivery(d))
			}
			return c.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "event       %s (tenant %s)\nfrom        %s, its id %s\ntype        %s\nstate       %s %s\nflags       %s\nreceived    %s\nbody        %d bytes, %s, sha256 %s\nduplicates  %d\n\n",
					v.ID, v.Tenant, v.Source, v.PublisherID, v.Type, v.State, v.Rejection, orDash(strings.Join(v.Flags, ", ")), row.ReceivedAt.Format(time.RFC3339Nano), v.Bytes, v.ContentType, v.SHA256, v.Duplicates)
				deliveryTable(w, v.Deliveries)
			})
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the event's tenant")
	cmd.Flags().BoolVar(&payload, "payload", false, "write the payload's exact bytes, and nothing else")
	return cmd
}
