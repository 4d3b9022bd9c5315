package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// both opens the store and Cloud Tasks; end closes them.
func (c *cli) both(ctx context.Context) (st *store.Store, queue *tasks.Queue, end func(), err error) {
	if st, err = c.store(ctx); err != nil {
		return nil, nil, nil, err
	}
	if queue, err = c.queue(ctx); err != nil {
		st.Close()
		return nil, nil, nil, err
	}
	return st, queue, func() { _ = queue.Close(); st.Close() }, nil
}

func (c *cli) endpointsUpdate() *cobra.Command {
	var tenant string
	var flags endpointFlags
	cmd := &cobra.Command{Use: "update ID", Short: "Change an endpoint: what the flags say, and nothing else", Args: exactArgs(1, "an endpoint's id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			auth, given, err := flags.credentials(cmd.Context(), c, tenant, args[0])
			if err != nil {
				return err
			}
			st, queue, end, err := c.both(cmd.Context())
			if err != nil {
				return err
			}
			defer end()
			ep, err := st.UpdateEndpoint(cmd.Context(), tenant, args[0], func(ep *webhook.Endpoint) error {
				if given {
					ep.Auth = auth
				}
				if err := flags.apply(c, ep, false); err != nil {
					return usageError{err}
				}
				return nil
			}, actor())
			if err != nil {
				return err
			}
			if err := moveQueue(cmd.Context(), st, queue, &ep); err != nil {
				return fmt.Errorf("the endpoint is changed, but its queue is not yet: %w\nRun 'sealpost queues reconcile' later", err)
			}
			v := viewEndpoint(ep)
			return c.print(v, func(w io.Writer) { fmt.Fprintf(w, "changed   %s (tenant %s)\n", v.ID, v.Tenant) })
		}}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the endpoint's tenant")
	flags.add(cmd)
	return cmd
}

// moveQueue gives the endpoint the queue, and the queue the limits, that it ought to
// have now. That no queue is left is no fault: the pools serve the endpoint.
func moveQueue(ctx context.Context, st *store.Store, queue *tasks.Queue, ep *webhook.Endpoint) error {
	var err error
	switch {
	case ep.ManagedBy == webhook.ManagedByTerraform:
		return nil
	case ep.Queueing == webhook.QueueingPool:
		if err = st.LeaveQueue(ctx, ep.Tenant, ep.ID); err == nil {
			*ep, err = st.Endpoint(ctx, ep.Tenant, ep.ID)
		}
		return err
	case ep.Queue != "":
		return queue.UpdateQueue(ctx, ep)
	}
	if *ep, err = st.AssignQueue(ctx, ep.Tenant, ep.ID, queueName()); err != nil {
		return err
	}
	return createQueue(ctx, st, queue, ep)
}

// createQueue makes an endpoint's own queue; without one left it stays in the pools.
func createQueue(ctx context.Context, st *store.Store, queue *tasks.Queue, ep *webhook.Endpoint) error {
	err := queue.CreateQueue(ctx, ep)
	if !errors.Is(err, tasks.ErrNoQuota) {
		return err
	}
	if err = st.DropQueue(ctx, ep.Tenant, ep.ID, ep.Queue); err == nil {
		ep.Queue = ""
	}
	return err
}

// stateCommand is one that changes an endpoint's state and starts what follows from it.
func (c *cli) stateCommand(use, short string, flags func(*cobra.Command), change func(ctx context.Context, st *store.Store, tenant, id string) (store.EndpointChange, error)) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: use + " ID", Short: short, Args: exactArgs(1, "an endpoint's id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, queue, end, err := c.both(cmd.Context())
			if err != nil {
				return err
			}
			defer end()
			changed, err := change(cmd.Context(), st, tenant, args[0])
			if err != nil {
				return err
			}
			for _, k := range changed.Controls {
				if err := queue.Control(cmd.Context(), k); err != nil {
					return fmt.Errorf("the change is stored; what follows from it is not under way, run this again: %w", err)
				}
			}
			v := viewEndpoint(changed.Endpoint)
			v.Breaker = breakerOf(&changed.Health)
			return c.print(v, func(w io.Writer) {
				fmt.Fprintln(w, strings.TrimSpace(fmt.Sprintf("endpoint  %s (tenant %s) is %s %s", v.ID, v.Tenant, v.State, v.StateReason)))
			})
		}}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the endpoint's tenant")
	if flags != nil {
		flags(cmd)
	}
	return cmd
}

func breakerOf(h *webhook.Health) string {
	if h.Closed() {
		return string(webhook.BreakerClosed)
	}
	return string(h.Breaker)
}

// endpointStates are the commands that switch endpoints on and off.
func (c *cli) endpointStates() []*cobra.Command {
	to := func(use, short string, state webhook.EndpointState) *cobra.Command {
		var reason string
		var leave bool
		return c.stateCommand(use, short, func(cmd *cobra.Command) {
			if state == webhook.EndpointActive {
				cmd.Flags().BoolVar(&leave, "leave-held", false, "leave what is held until 'endpoints release'")
			} else {
				cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
			}
		}, func(ctx context.Context, st *store.Store, tenant, id string) (store.EndpointChange, error) {
			return st.SetEndpointState(ctx, tenant, id, store.StateChange{To: state, Reason: reason, Actor: actor(), LeaveHeld: leave})
		})
	}
	return []*cobra.Command{
		to("pause", "Hold an endpoint's deliveries until it is resumed", webhook.EndpointPaused),
		to("resume", "Send to a paused endpoint again, what was held included; also closes an open circuit", webhook.EndpointActive),
		to("disable", "Switch an endpoint off; its deliveries are held", webhook.EndpointDisabled),
		to("enable", "Switch a disabled endpoint on again, what was held included", webhook.EndpointActive),
		c.endpointsRelease(),
	}
}

// endpointsRelease lets go what is held, or a stopped ordering key.
func (c *cli) endpointsRelease() *cobra.Command {
	var key string
	cmd := c.stateCommand("release", "Send everything that is held for an active endpoint, or what an ordering key holds up",
		func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&key, "key", "", "step over the dead delivery behind which this ordering key stands still, and nothing else")
		},
		func(ctx context.Context, st *store.Store, tenant, id string) (store.EndpointChange, error) {
			return st.Release(ctx, tenant, id, actor())
		})
	cmd.Long = `Sends everything that is held for an active endpoint, also what its filter could not judge.
Parked ordering keys stay: each is let go with --key. 'endpoints show' lists those that
stand still. The dead delivery is stepped over, and stays dead.`
	all := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("key") {
			return all(cmd, args)
		}
		tenant, err := cmd.Flags().GetString("tenant")
		if err != nil {
			return err
		}
		return c.releaseKey(cmd.Context(), tenant, args[0], key)
	}
	return cmd
}

// releaseKey steps over the dead head of an ordering key.
func (c *cli) releaseKey(ctx context.Context, tenant, endpoint, key string) error {
	st, queue, end, err := c.both(ctx)
	if err != nil {
		return err
	}
	defer end()
	task, err := st.ReleaseKey(ctx, tenant, endpoint, key, actor())
	if err != nil {
		return err
	}
	res := struct {
		Endpoint    string `json:"endpoint"`
		Tenant      string `json:"tenant"`
		OrderingKey string `json:"ordering_key"`
		Next        string `json:"next_event,omitempty"`
	}{Endpoint: endpoint, Tenant: tenant, OrderingKey: key}
	if task != nil {
		if err := queue.Schedule(ctx, *task); err != nil {
			return fmt.Errorf("the change is stored; the next delivery has no task yet, run this again: %w", err)
		}
		res.Next = task.Key.Event.ID()
	}
	return c.print(res, func(w io.Writer) {
		if res.Next == "" {
			fmt.Fprintf(w, "ordering key %q goes on; nothing waits\n", key)
			return
		}
		fmt.Fprintf(w, "ordering key %q goes on with %s\n", key, res.Next)
	})
}

// testWait is how much longer than the endpoint's timeout a test waits for its attempt.
const testWait = 30 * time.Second

func (c *cli) endpointsTest() *cobra.Command {
	var tenant, data string
	cmd := &cobra.Command{Use: "test ID", Short: "Send a test event to an endpoint and show the whole exchange",
		Long: `Sends an event of type ` + webhook.TypeTest + ` to one endpoint, whatever it subscribes to and also
if it is paused or disabled, once, and shows what was sent and answered. Exit code 1 if
the endpoint did not say 2xx.`,
		Args: exactArgs(1, "an endpoint's id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, queue, end, err := c.both(cmd.Context())
			if err != nil {
				return err
			}
			defer end()
			ep, err := st.Endpoint(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			if !json.Valid([]byte(data)) {
				return usageError{errors.New("--data is not JSON")}
			}
			id := uuid.Must(uuid.NewV7()).String()
			ev := webhook.Event{Tenant: tenant, Source: webhook.SourceApp, PublisherID: id, Type: webhook.TypeTest, ContentType: "application/json",
				Body: []byte(data), OccurredAt: time.Now(), ReceivedAt: time.Now(), Receipt: id}
			ev.Seal()
			task, err := st.CreateTest(cmd.Context(), tenant, ep.ID, ev)
			if err != nil {
				return err
			}
			if err := queue.Schedule(cmd.Context(), task); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), ep.Timeout+testWait)
			defer cancel()
			a, err := c.awaitAttempt(ctx, st, task.Key)
			if err != nil {
				return err
			}
			v := testView{Event: ev.Key.ID(), Endpoint: ep.ID, OK: a.Outcome.OK(), Attempt: viewAttempt(a), Exchange: a.Exchange}
			if err := c.print(v, v.text); err != nil || v.OK {
				return err
			}
			return errNo
		}}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the endpoint's tenant")
	cmd.Flags().StringVar(&data, "data", `{"test":true}`, "the event's data, JSON")
	return cmd
}

// awaitAttempt waits until the test's only attempt is recorded.
func (c *cli) awaitAttempt(ctx context.Context, st *store.Store, k webhook.AttemptKey) (webhook.Attempt, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, attempts, err := st.Delivery(ctx, k.Tenant, k.Event, k.Endpoint)
		if err == nil && len(attempts) > 0 {
			return attempts[0], nil
		}
		if err != nil && ctx.Err() == nil {
			return webhook.Attempt{}, err
		}
		select {
		case <-ctx.Done():
			return webhook.Attempt{}, fmt.Errorf("the attempt was not made in time; see 'sealpost deliveries show %s %s' later", k.Event.ID(), k.Endpoint)
		case <-tick.C:
		}
	}
}

// testView is a test as it is printed.
type testView struct {
	Event    string            `json:"event"`
	Endpoint string            `json:"endpoint"`
	OK       bool              `json:"ok"`
	Attempt  attemptView       `json:"attempt"`
	Exchange *webhook.Exchange `json:"exchange,omitempty"`
}

func (v testView) text(w io.Writer) {
	if x := v.Exchange; x != nil {
		fmt.Fprintf(w, "> %s %s\n", x.Request.Method, x.Request.URL)
		for _, h := range x.Request.Headers {
			fmt.Fprintf(w, "> %s: %s\n", h.Name, h.Value)
		}
		fmt.Fprintf(w, ">\n%s\n", x.Request.Body)
		if r := x.Response; r != nil {
			fmt.Fprintf(w, "< %d\n", r.Status)
			for _, h := range r.Headers {
				fmt.Fprintf(w, "< %s: %s\n", h.Name, h.Value)
			}
			fmt.Fprintf(w, "<\n%s\n", r.Body)
		}
	}
	said := fmt.Sprintf("answered %d in", v.Attempt.Status)
	if v.Attempt.Status == 0 {
		said = fmt.Sprintf("no answer (%s) after", v.Attempt.Class)
	}
	said += " " + took(v.Attempt.DurationMS)
	if v.Attempt.Error != "" {
		said += ": " + v.Attempt.Error
	}
	fmt.Fprintln(w, said)
}

func (c *cli) queuesCommand() *cobra.Command {
	reconcile := &cobra.Command{Use: "reconcile", Short: "Compare every endpoint's queue with what it ought to be, and mend what differs",
		Long: `Makes missing queues, sets limits that drifted right, pauses and resumes, deletes queues of
deleted endpoints, and gives endpoints in the shared queues one of their own where there is
room. Queues that are declared in Terraform are paused and resumed only.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, queue, end, err := c.both(cmd.Context())
			if err != nil {
				return err
			}
			defer end()
			changes, err := reconcileQueues(cmd.Context(), st, queue)
			if err != nil {
				return err
			}
			views := []queueChangeView{}
			failed := false
			for _, ch := range changes {
				v := queueChangeView{Tenant: ch.Tenant, Endpoint: ch.Endpoint, Queue: ch.Queue, Change: ch.What}
				if ch.Err != nil {
					v.Error, failed = ch.Err.Error(), true
				}
				views = append(views, v)
			}
			if err := c.print(views, func(w io.Writer) {
				table(w, "TENANT\tENDPOINT\tQUEUE\tCHANGE\tERROR", func(row func(...any)) {
					for _, v := range views {
						row(v.Tenant, v.Endpoint, v.Queue, v.Change, v.Error)
					}
				})
			}); err != nil {
				return err
			}
			if failed {
				return errNo
			}
			return nil
		}}
	return group("queues", "See to the endpoints' Cloud Tasks queues", reconcile)
}

type queueChangeView struct {
	Tenant   string `json:"tenant"`
	Endpoint string `json:"endpoint"`
	Queue    string `json:"queue"`
	Change   string `json:"change"`
	Error    string `json:"error,omitempty"`
}

func reconcileQueues(ctx context.Context, st *store.Store, queue *tasks.Queue) ([]tasks.Change, error) {
	return queue.Reconcile(ctx, func() iter.Seq2[tasks.Wanted, error] {
		return func(yield func(tasks.Wanted, error) bool) {
			for q, err := range st.QueueStates(ctx) {
				if !yield(tasks.Wanted{Endpoint: q.Endpoint, Paused: q.Hold}, err) {
					return
				}
			}
		}
	}, st, queueName)
}
