package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/signing"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/tasks"
	"github.com/sealpost/sealpost/internal/webhook"
)

// endpointView is an endpoint as commands print it.
type endpointView struct {
	ID             string   `json:"id"`
	Tenant         string   `json:"tenant"`
	URL            string   `json:"url"` // query values masked
	Description    string   `json:"description,omitempty"`
	Events         []string `json:"events"`
	State          string   `json:"state"`
	StateReason    string   `json:"state_reason,omitempty"`
	RatePerSecond  float64  `json:"rate_per_second"`
	MaxConcurrency int64    `json:"max_concurrency"`
	TimeoutSeconds float64  `json:"timeout_seconds"`
	Retry          string   `json:"retry"`
	Queue          string   `json:"queue"` // empty: shared queues
	QueueReady     bool     `json:"queue_ready"`
	QueueLeaving   bool     `json:"queue_leaving,omitempty"` // it gets no new tasks
	Breaker        string   `json:"breaker,omitempty"`
	// Settings are those that were set; the values of headers are masked.
	Settings   webhook.EndpointSettings `json:"settings,omitzero"`
	QueueError string                   `json:"queue_error,omitempty"`
	CreatedAt  *time.Time               `json:"created_at,omitempty"`
	// Stopped are ordering keys that stand still behind a dead delivery, at most
	// stoppedShown.
	Stopped []stoppedView `json:"stopped_keys,omitempty"`
	Secret  string        `json:"secret,omitempty"` // shown once, when made
	Keys    []keyView     `json:"keys,omitempty"`
}

// stoppedShown is how many stopped ordering keys an endpoint is shown with.
const stoppedShown = 100

type stoppedView struct {
	OrderingKey string    `json:"ordering_key"`
	Parked      bool      `json:"parked"` // else blocked
	Since       time.Time `json:"since"`
	Event       string    `json:"event"` // whose delivery is dead
}

type keyView struct {
	ID        string     `json:"id"`
	Kind      string     `json:"kind"`
	NotBefore time.Time  `json:"not_before"`
	NotAfter  *time.Time `json:"not_after,omitempty"`
}

func viewEndpoint(ep webhook.Endpoint) endpointView {
	set := ep.EndpointSettings
	set.Headers = slices.Clone(set.Headers)
	for i := range set.Headers {
		set.Headers[i].Value = webhook.Masked
	}
	return endpointView{
		Settings: set, QueueLeaving: !ep.QueueLeftAt.IsZero(),
		ID: ep.ID, Tenant: ep.Tenant, URL: safedial.MaskURL(ep.URL), Description: ep.Description,
		Events: ep.EventTypes, State: string(ep.State), StateReason: ep.StateReason,
		RatePerSecond: ep.RatePerSecond, MaxConcurrency: ep.MaxConcurrency,
		TimeoutSeconds: ep.Timeout.Seconds(), Retry: ep.Retry.String(),
		Queue: ep.Queue, QueueReady: !ep.QueueReadyAt.IsZero(), CreatedAt: optional(ep.CreatedAt),
	}
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func (c *cli) endpointsCommand() *cobra.Command {
	return group("endpoints", "Manage the URLs that events are sent to",
		append([]*cobra.Command{c.endpointsAdd(), c.endpointsUpdate(), c.endpointsList(), c.endpointsShow(), c.endpointsTest(),
			c.endpointsRemove(), c.endpointsRotate()}, c.endpointStates()...)...)
}

func (c *cli) endpointsAdd() *cobra.Command {
	var ep webhook.Endpoint
	var secretText string
	var flags endpointFlags
	cmd := &cobra.Command{
		Use:   "add --url URL",
		Short: "Add an endpoint and print its signing secret",
		Long: `Adds an endpoint, its signing key and its Cloud Tasks queue. The secret is shown this
once; give it to whoever receives. From the moment this command returns, every event of
the tenant that matches --events is delivered.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			secret, err := c.newEndpoint(cmd.Context(), &ep, &flags, secretText)
			if err != nil {
				return err
			}
			queueErr, err := c.addEndpoint(cmd.Context(), &ep, secret)
			if err != nil {
				return err
			}
			v := viewEndpoint(ep)
			v.Secret = secret.Reveal()
			if queueErr != nil {
				v.QueueError = queueErr.Error()
				fmt.Fprintf(c.errOut, "sealpost: the endpoint stands and is served by a shared queue, but its own queue could not be made: %v\n", queueErr)
			}
			return c.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "endpoint  %s (tenant %s)\nurl       %s\nevents    %s\nsecret    %s\n", v.ID, v.Tenant, v.URL, strings.Join(v.Events, ", "), v.Secret)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&ep.Tenant, "tenant", webhook.DefaultTenant, "tenant")
	f.StringVar(&ep.ID, "id", "", "id of the endpoint (default a new one)")
	f.StringVar(&secretText, "secret", "", "signing secret whsec_… (default a new one; - reads it from standard input)")
	flags.add(cmd)
	return cmd
}

// newEndpoint checks what the flags say and fills in what they do not.
func (c *cli) newEndpoint(ctx context.Context, ep *webhook.Endpoint, flags *endpointFlags, secretText string) (signing.Secret, error) {
	ep.State = webhook.EndpointActive
	if ep.ID == "" {
		ep.ID = webhook.EndpointID(uuid.Must(uuid.NewV7()))
	}
	errs := []error{wrap("--tenant", webhook.ValidName(ep.Tenant)), wrap("--id", webhook.ValidName(ep.ID)), flags.apply(c, ep, true)}
	secret, err := c.readSecret(secretText)
	if err := errors.Join(append(errs, wrap("--secret", err))...); err != nil {
		return secret, usageError{err}
	}
	if ep.Queueing != webhook.QueueingPool {
		ep.Queue = queueName()
	}
	auth, given, err := flags.credentials(ctx, c, ep.Tenant, ep.ID)
	if given {
		ep.Auth = auth
	}
	return secret, err
}

// readSecret makes a secret, reads one from standard input, where no other process
// sees it, or takes the text.
func (c *cli) readSecret(text string) (signing.Secret, error) {
	text, err := c.readText(text)
	if err != nil {
		return signing.Secret{}, err
	}
	if text == "" {
		return signing.GenerateSecret(rand.Reader)
	}
	return signing.ParseSecret(text)
}

// readText is the text, or for "-" what standard input holds.
func (c *cli) readText(text string) (string, error) {
	if text != "-" {
		return text, nil
	}
	b, err := io.ReadAll(io.LimitReader(c.in, 4096))
	if text = strings.TrimSpace(string(b)); err == nil && text == "" {
		err = errors.New("standard input is empty")
	}
	return text, err
}

func queueName() string { return tasks.NewQueueName(uuid.Must(uuid.NewV7())) }

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// addEndpoint stores the endpoint with its key, then creates its queue. Until the
// queue serves, and if its creation fails (queueErr), a pool queue carries its
// tasks: the endpoint stands all the same, and its secret has to be told.
func (c *cli) addEndpoint(ctx context.Context, ep *webhook.Endpoint, secret signing.Secret) (queueErr, err error) {
	st, err := c.store(ctx)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	sealer, err := c.sealer(ctx)
	if err != nil {
		return nil, err
	}
	queue, err := c.queue(ctx)
	if err != nil {
		return nil, err
	}
	defer queue.Close()
	return createEndpoint(ctx, st, sealer, queue, ep, secret, actor())
}

func createEndpoint(ctx context.Context, st *store.Store, sealer *secrets.Sealer, queue *tasks.Queue, ep *webhook.Endpoint, secret signing.Secret, actor string) (queueErr, err error) {
	key, err := sealKey(sealer, ep.Tenant, ep.ID, secret)
	if err != nil {
		return nil, err
	}
	created, err := st.CreateEndpoint(ctx, *ep, []store.SealedKey{key}, actor)
	if errors.Is(err, store.ErrAlreadyExists) {
		return nil, fmt.Errorf("endpoint %s/%s exists already, or was removed: ids are not used twice", ep.Tenant, ep.ID)
	}
	if err != nil {
		return nil, err
	}
	*ep = created
	return createQueue(ctx, st, queue, ep), nil
}

func sealKey(sealer *secrets.Sealer, tenant, endpoint string, secret signing.Secret) (store.SealedKey, error) {
	return newKey{kind: "v1", text: secret.Reveal()}.seal(sealer, tenant, endpoint)
}

// newKey is a key that is to be stored.
type newKey struct {
	kind string // v1, v1a or legacy
	text string // as it is sealed
	// secret and public are what the endpoint's owner needs to know.
	secret, public string
}

func (k newKey) seal(sealer *secrets.Sealer, tenant, endpoint string) (store.SealedKey, error) {
	sealed, by, err := sealer.Seal([]byte(k.text), tenant, endpoint)
	return store.SealedKey{
		Tenant: tenant, Endpoint: endpoint, ID: webhook.KeyID(uuid.Must(uuid.NewV7())), Kind: k.kind, Sealed: sealed, SealedBy: by,
	}, err
}

// readKey makes a key of the kind, or takes the text that is given.
func (c *cli) readKey(kind, given string) (newKey, error) {
	text, err := c.readText(given)
	if err != nil {
		return newKey{}, err
	}
	switch kind {
	case "v1":
		s, err := signing.GenerateSecret(rand.Reader)
		if text != "" {
			s, err = signing.ParseSecret(text)
		}
		return newKey{kind: kind, text: s.Reveal(), secret: s.Reveal()}, err
	case "v1a":
		k, err := signing.GeneratePrivateKey(rand.Reader)
		if text != "" {
			k, err = signing.ParsePrivateKey(text)
		}
		if err != nil {
			return newKey{}, err
		}
		return newKey{kind: kind, text: k.Reveal(), public: k.Public().String()}, nil
	case "legacy":
		if text == "" {
			return newKey{}, errors.New("a legacy secret is one that the receiver has already: give it")
		}
		s, err := signing.ParseLegacySecret(text)
		return newKey{kind: kind, text: s.Reveal()}, err
	}
	return newKey{}, fmt.Errorf("there is no kind %q; there are v1, v1a and legacy", kind)
}

func (c *cli) endpointsList() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: "list", Short: "List endpoints", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := c.store(cmd.Context())
			if err != nil {
				return err
			}
			defer st.Close()
			views := []endpointView{}
			for page := (store.Page{Size: 200}); ; {
				eps, next, err := st.ListEndpoints(cmd.Context(), tenant, page)
				if err != nil {
					return err
				}
				for _, ep := range eps {
					views = append(views, viewEndpoint(ep))
				}
				if page.Token = next; next == "" {
					break
				}
			}
			return c.print(views, func(w io.Writer) {
				table(w, "ID\tTENANT\tSTATE\tEVENTS\tURL", func(row func(...any)) {
					for _, v := range views {
						row(v.ID, v.Tenant, v.State, strings.Join(v.Events, ","), v.URL)
					}
				})
			})
		}}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this tenant's")
	return cmd
}

func (c *cli) endpointsShow() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: "show ID", Short: "Show an endpoint, its keys, and the ordering keys that stand still", Args: exactArgs(1, "an endpoint's id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := c.store(cmd.Context())
			if err != nil {
				return err
			}
			defer st.Close()
			ep, err := st.Endpoint(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			keys, err := st.Keys(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			health, err := st.Health(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			stopped, err := st.StoppedKeys(cmd.Context(), tenant, args[0], stoppedShown)
			if err != nil {
				return err
			}
			v := viewEndpoint(ep)
			v.Breaker = breakerOf(&health)
			for _, k := range stopped {
				v.Stopped = append(v.Stopped, stoppedView{k.OrderingKey, k.Parked, k.StoppedAt, k.Head.ID()})
			}
			for _, k := range keys {
				v.Keys = append(v.Keys, keyView{k.ID, k.Kind, k.NotBefore, optional(k.NotAfter)})
			}
			return c.print(v, v.text)
		}}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the endpoint's tenant")
	return cmd
}

// text shows an endpoint to people.
func (v endpointView) text(w io.Writer) {
	queue := "shared"
	if v.Queue != "" {
		queue = fmt.Sprintf("%s (ready: %v)", v.Queue, v.QueueReady)
	}
	for _, row := range [][2]string{
		{"endpoint", fmt.Sprintf("%s (tenant %s)", v.ID, v.Tenant)},
		{"url", v.URL},
		{"events", strings.Join(v.Events, ", ")},
		{"state", strings.TrimSpace(v.State + " " + v.StateReason)},
		{"circuit", v.Breaker},
		{"limits", fmt.Sprintf("%g/s, %d at once, %gs per attempt", v.RatePerSecond, v.MaxConcurrency, v.TimeoutSeconds)},
		{"retry", v.Retry},
		{"queue", queue},
	} {
		fmt.Fprintf(w, "%-12s %s\n", row[0], row[1])
	}
	var settings strings.Builder
	enc := json.NewEncoder(&settings)
	enc.SetEscapeHTML(false) // filters compare
	if err := enc.Encode(v.Settings); err == nil && settings.String() != "{}\n" {
		fmt.Fprintf(w, "%-12s %s", "settings", settings.String())
	}
	for _, k := range v.Stopped {
		how := "blocked"
		if k.Parked {
			how = "parked"
		}
		fmt.Fprintf(w, "%-12s ordering key %q since %s behind dead %s\n", how, k.OrderingKey, k.Since.Format(time.RFC3339), k.Event)
	}
	for _, k := range v.Keys {
		until := "without end"
		if k.NotAfter != nil {
			until = "until " + k.NotAfter.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%-12s %s (%s) from %s %s\n", "key", k.ID, k.Kind, k.NotBefore.Format(time.RFC3339), until)
	}
}

func (c *cli) endpointsRemove() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: "remove ID", Short: "Remove an endpoint; its open deliveries are cancelled", Args: exactArgs(1, "an endpoint's id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := c.store(cmd.Context())
			if err != nil {
				return err
			}
			defer st.Close()
			queue, err := c.queue(cmd.Context())
			if err != nil {
				return err
			}
			defer queue.Close()
			ep, err := st.Endpoint(cmd.Context(), tenant, args[0])
			if err != nil {
				return err
			}
			cancelled, err := st.DeleteEndpoint(cmd.Context(), tenant, args[0], actor())
			if err != nil {
				return err
			}
			if err := queue.DeleteQueue(cmd.Context(), ep.Queue); err != nil {
				return fmt.Errorf("the endpoint is removed and %d deliveries are cancelled, but its queue %s remains (delete it with gcloud tasks queues delete): %w", cancelled, ep.Queue, err)
			}
			res := struct {
				ID        string `json:"id"`
				Tenant    string `json:"tenant"`
				Removed   bool   `json:"removed"`
				Cancelled int    `json:"cancelled_deliveries"`
			}{args[0], tenant, true, cancelled}
			return c.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "removed %s; %d open deliveries cancelled\n", res.ID, res.Cancelled)
			})
		}}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the endpoint's tenant")
	return cmd
}

func (c *cli) endpointsRotate() *cobra.Command {
	var tenant, secretText, kind string
	var overlap time.Duration
	cmd := &cobra.Command{Use: "rotate-secret ID", Short: "Give an endpoint a new signing key; the old ones of its kind sign on for a while",
		Long: `Adds a signing key; those of the same kind go on signing until --overlap is over. Kinds:
  v1      the symmetric secret whsec_… of Standard Webhooks (default)
  v1a     an ed25519 key, besides the secret: its public half whpk_… is shown here and served
          at /.well-known/webhook-keys/TENANT/ENDPOINT of the console
  legacy  a secret of another scheme, as the text it is, for the endpoint's signature templates`,
		Args: exactArgs(1, "an endpoint's id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if overlap < 0 || overlap > 7*24*time.Hour {
				return usageError{fmt.Errorf("--overlap %s is not between 0 and 168h", overlap)}
			}
			fresh, err := c.readKey(kind, secretText)
			if err != nil {
				return usageError{wrap("--kind, --secret", err)}
			}
			st, err := c.store(cmd.Context())
			if err != nil {
				return err
			}
			defer st.Close()
			sealer, err := c.sealer(cmd.Context())
			if err != nil {
				return err
			}
			key, err := fresh.seal(sealer, tenant, args[0])
			if err != nil {
				return err
			}
			if err := st.RotateKey(cmd.Context(), tenant, args[0], key, overlap, actor()); err != nil {
				return err
			}
			res := struct {
				ID      string  `json:"id"`
				Tenant  string  `json:"tenant"`
				Key     string  `json:"key"`
				Kind    string  `json:"kind"`
				Secret  string  `json:"secret,omitempty"`
				Public  string  `json:"public_key,omitempty"`
				Overlap float64 `json:"overlap_seconds"`
			}{args[0], tenant, key.ID, fresh.kind, fresh.secret, fresh.public, overlap.Seconds()}
			return c.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "endpoint  %s\n", res.ID)
				for _, row := range [][2]string{{"secret", res.Secret}, {"public", res.Public}} {
					if row[1] != "" {
						fmt.Fprintf(w, "%-9s %s\n", row[0], row[1])
					}
				}
				fmt.Fprintf(w, "It signs from now on, the older keys of kind %s, if any, for another %s.\n", res.Kind, overlap)
			})
		}}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the endpoint's tenant")
	cmd.Flags().StringVar(&secretText, "secret", "", "the new secret whsec_…, key whsk_… or legacy text (default a fresh one; - reads it from standard input)")
	cmd.Flags().StringVar(&kind, "kind", "v1", "kind of key: v1, v1a or legacy")
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the old secrets go on signing (0 to 168h)")
	return cmd
}

// table writes aligned columns.
func table(w io.Writer, header string, rows func(row func(...any))) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, header)
	rows(func(cells ...any) {
		parts := make([]string, len(cells))
		for i, cell := range cells {
			parts[i] = fmt.Sprint(cell)
		}
		fmt.Fprintln(tw, strings.Join(parts, "\t"))
	})
	if err := tw.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
