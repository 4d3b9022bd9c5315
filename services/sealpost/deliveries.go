package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// deliveryView is a delivery as commands print it.
type deliveryView struct {
	Event         string        `json:"event"`
	Endpoint      string        `json:"endpoint"`
	Tenant        string        `json:"tenant"`
	Type          string        `json:"type"`
	State         string        `json:"state"`
	Reason        string        `json:"reason,omitempty"`
	Generation    int64         `json:"generation"`
	Attempt       int64         `json:"attempt"` // the next one's number while scheduled, else the last one's
	NextAttemptAt *time.Time    `json:"next_attempt_at,omitempty"`
	LastStatus    int           `json:"last_status,omitempty"`
	LastClass     string        `json:"last_class,omitempty"`
	CreatedAt     *time.Time    `json:"created_at,omitempty"`
	UpdatedAt     *time.Time    `json:"updated_at,omitempty"`
	Attempts      []attemptView `json:"attempts,omitempty"`
}

// attemptView is one attempt as commands print it.
type attemptView struct {
	Generation   int64     `json:"generation"`
	Attempt      int64     `json:"attempt"`
	Trigger      string    `json:"trigger"`
	StartedAt    time.Time `json:"started_at"`
	DurationMS   float64   `json:"duration_ms"`
	Class        string    `json:"class"`
	Status       int       `json:"status,omitempty"`
	Error        string    `json:"error,omitempty"`
	RetryAfterS  float64   `json:"retry_after_seconds,omitempty"`
	URL          string    `json:"url"`
	RemoteAddr   string    `json:"remote_addr,omitempty"`
	KeyIDs       []string  `json:"key_ids,omitempty"`
	WroteRequest bool      `json:"wrote_request"`
	Excerpt      []byte    `json:"response_excerpt,omitempty"` // base64
	Truncated    bool      `json:"response_truncated,omitempty"`
}

func viewDelivery(d webhook.Delivery) deliveryView {
	return deliveryView{
		Event: d.Event.ID(), Endpoint: d.Endpoint, Tenant: d.Tenant, Type: d.EventType, State: string(d.State), Reason: d.Reason,
		Generation: d.Generation, Attempt: d.Attempt, NextAttemptAt: optional(d.NextAttemptAt),
		LastStatus: d.LastStatus, LastClass: string(d.LastClass), CreatedAt: optional(d.CreatedAt), UpdatedAt: optional(d.UpdatedAt),
	}
}

func viewAttempt(a webhook.Attempt) attemptView {
	return attemptView{
		Generation: a.Key.Generation, Attempt: a.Key.Attempt, Trigger: string(a.Trigger), StartedAt: a.StartedAt.UTC(),
		DurationMS: float64(a.Duration.Microseconds()) / 1000, Class: string(a.Outcome.Class), Status: a.Outcome.Status,
		Error: a.Error, RetryAfterS: a.Outcome.RetryAfter.Seconds(), URL: a.URL, RemoteAddr: a.RemoteAddr, KeyIDs: a.KeyIDs,
		WroteRequest: a.WroteRequest, Excerpt: a.Excerpt, Truncated: a.Truncated,
	}
}

func (c *cli) deliveriesCommand() *cobra.Command {
	return group("deliveries", "Show what was sent where, attempt by attempt", c.deliveriesList(), c.deliveriesShow())
}

var deliveryStates = []string{"", "scheduled", "waiting", "delivered", "dead", "held", "cancelled", "filtered"}

func (c *cli) deliveriesList() *cobra.Command {
	var l listFlags
	var endpoint, event, state string
	cmd := &cobra.Command{Use: "list", Short: "List deliveries, newest first", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := store.DeliveryFilter{Tenant: l.tenant, Endpoint: endpoint, State: webhook.DeliveryState(state)}
			if event != "" {
				k, err := webhook.ParseEventID(event)
				if err != nil {
					return usageError{wrap("--event", err)}
				}
				f.Event = k
			}
			if !slices.Contains(deliveryStates, state) {
				return usageError{fmt.Errorf("--state %q is none of %s", state, strings.Join(deliveryStates[1:], ", "))}
			}
			st, err := c.store(cmd.Context())
			if err != nil {
				return err
			}
			defer st.Close()
			rows, err := pages(l.limit, func(p store.Page) ([]webhook.Delivery, string, error) {
				return st.ListDeliveries(cmd.Context(), f, p)
			})
			if err != nil {
				return err
			}
			views := make([]deliveryView, len(rows))
			for i, d := range rows {
				views[i] = viewDelivery(d)
			}
			return c.print(views, func(w io.Writer) { deliveryTable(w, views) })
		}}
	l.add(cmd)
	cmd.Flags().StringVar(&endpoint, "endpoint", "", "only to this endpoint")
	cmd.Flags().StringVar(&event, "event", "", "only of this event")
	cmd.Flags().StringVar(&state, "state", "", "only in this state: "+strings.Join(deliveryStates[1:], ", "))
	return cmd
}

func deliveryTable(w io.Writer, views []deliveryView) {
	table(w, "EVENT\tENDPOINT\tTYPE\tSTATE\tATTEMPT\tLAST\tNEXT\tREASON", func(row func(...any)) {
		for _, v := range views {
			next := "-"
			if v.NextAttemptAt != nil {
				next = v.NextAttemptAt.Local().Format(time.DateTime)
			}
			row(v.Event, v.Endpoint, v.Type, v.State, v.Attempt, lastAnswer(v.LastClass, v.LastStatus), next, shortReason(v))
		}
	})
}

// shortReason is why a delivery is in its state, where the last answer does not say it,
// cut to what a table has room for.
func shortReason(v deliveryView) string {
	const most = 60
	switch r := []rune(v.Reason); {
	case len(r) == 0 || v.Reason == v.LastClass:
		return "-"
	case len(r) > most:
		return string(r[:most-1]) + "…"
	}
	return v.Reason
}

// took is how long an attempt took. What is stored are whole milliseconds.
func took(ms float64) string {
	if ms < 1 {
		return "<1 ms"
	}
	return fmt.Sprintf("%.0f ms", ms)
}

func lastAnswer(class string, status int) string {
	switch {
	case class == "":
		return "-"
	case status != 0:
		return class + " " + strconv.Itoa(status)
	}
	return class
}

func (c *cli) deliveriesShow() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "show EVENT [ENDPOINT]",
		Short: "Show a delivery with every attempt; without an endpoint, all of the event's",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return usageError{fmt.Errorf("want an event's id and an endpoint's, got %d arguments", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			// EVENT/ENDPOINT in one word is the same.
			args = strings.Split(strings.Join(args, "/"), "/")
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
			endpoints := args[1:]
			if len(endpoints) == 0 {
				if _, err := st.Event(ctx, tenant, k); err != nil {
					return err
				}
				ds, err := pages(10000, func(p store.Page) ([]webhook.Delivery, string, error) {
					return st.ListDeliveries(ctx, store.DeliveryFilter{Tenant: tenant, Event: k}, p)
				})
				if err != nil {
					return err
				}
				for _, d := range ds {
					endpoints = append(endpoints, d.Endpoint)
				}
			}
			views := []deliveryView{}
			for _, id := range endpoints {
				d, attempts, err := st.Delivery(ctx, tenant, k, id)
				if err != nil {
					return err
				}
				v := viewDelivery(d)
				for _, a := range attempts {
					v.Attempts = append(v.Attempts, viewAttempt(a))
				}
				views = append(views, v)
			}
			if len(args) == 2 {
				return c.print(views[0], func(w io.Writer) { writeDelivery(w, views[0]) })
			}
			return c.print(views, func(w io.Writer) {
				for _, v := range views {
					writeDelivery(w, v)
				}
			})
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the event's tenant")
	return cmd
}

func writeDelivery(w io.Writer, v deliveryView) {
	fmt.Fprintf(w, "%s (%s) to %s: %s", v.Event, v.Type, v.Endpoint, v.State)
	if v.Reason != "" {
		fmt.Fprintf(w, " (%s)", v.Reason)
	}
	if v.NextAttemptAt != nil {
		fmt.Fprintf(w, ", attempt %d at %s", v.Attempt, v.NextAttemptAt.Local().Format(time.DateTime))
	}
	fmt.Fprintln(w)
	table(w, "  ATTEMPT\tSTARTED\tTOOK\tANSWER\tADDRESS\tERROR", func(row func(...any)) {
		for _, a := range v.Attempts {
			row(fmt.Sprintf("  %d.%d", a.Generation, a.Attempt), a.StartedAt.Local().Format("2006-01-02 15:04:05.000"),
				took(a.DurationMS), lastAnswer(a.Class, a.Status), a.RemoteAddr, a.Error)
		}
	})
}
