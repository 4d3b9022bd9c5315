package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// maxStoppedKeys bounds what show lists.
const maxStoppedKeys = 20

// stoppedView is an ordering key that stands still behind a dead delivery.
type stoppedView struct {
	Key       string    `json:"key"`
	Parked    bool      `json:"parked"`
	StoppedAt time.Time `json:"stopped_at"`
	Event     string    `json:"event"` // whose delivery is the dead one
}

func viewStopped(keys []store.StoppedKey) (out []stoppedView) {
	for _, k := range keys {
		out = append(out, stoppedView{k.OrderingKey, k.Parked, k.StoppedAt.UTC(), k.Head.ID()})
	}
	return out
}

func (v *stoppedView) text(w io.Writer) {
	how := "blocked"
	if v.Parked {
		how = "parked"
	}
	fmt.Fprintf(w, "key stopped  %q %s since %s behind %s\n", v.Key, how, v.StoppedAt.Format(time.RFC3339), v.Event)
}

func (c *cli) endpointsReleaseKey() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: "release-key ID KEY", Short: "Step over the dead delivery behind which an ordering key stands still",
		Args: exactArgs(2, "an endpoint's id and an ordering key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, queue, end, err := c.both(cmd.Context())
			if err != nil {
				return err
			}
			defer end()
			next, err := st.ReleaseKey(cmd.Context(), tenant, args[0], args[1], actor())
			if err != nil {
				return err
			}
			v := struct {
				Endpoint string `json:"endpoint"`
				Key      string `json:"key"`
				Next     string `json:"next,omitempty"` // the event that is sent now
			}{Endpoint: args[0], Key: args[1]}
			if next != nil {
				if err := queue.Schedule(cmd.Context(), *next); err != nil {
					return fmt.Errorf("the key is released; its next delivery is not under way, run this again: %w", err)
				}
				v.Next = next.Key.Event.ID()
			}
			return c.print(v, func(w io.Writer) {
				if v.Next == "" {
					v.Next = "none"
				}
				fmt.Fprintf(w, "endpoint  %s\nkey       %q\nnext      %s\n", v.Endpoint, v.Key, v.Next)
			})
		}}
	cmd.Flags().StringVar(&tenant, "tenant", webhook.DefaultTenant, "the endpoint's tenant")
	return cmd
}
