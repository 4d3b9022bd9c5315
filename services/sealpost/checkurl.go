package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/safedial"
)

// urlVerdict is one line of check-url.
type urlVerdict struct {
	URL     string `json:"url"` // as asked, so that answers can be matched to questions
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
}

func (c *cli) checkURLCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check-url URL…",
		Short: "Say whether the dispatcher would dial a URL",
		Long: `Checks each URL by the dispatcher's own policy: its spelling, its port, and every
address that its name has. Nothing is connected to. The environment's EGRESS_ variables
count as they do for the dispatcher. A name that does not resolve is allowed, with a note:
policy has nothing against it, and every address is checked again at each connection.

Exit code 1 if any URL is blocked.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("want at least one URL")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			policy, err := deliver.PolicyFromEnv(c.getenv)
			if err != nil {
				return usageError{err}
			}
			blocked := false
			for _, raw := range args {
				v := urlVerdict{URL: raw, Verdict: "allowed"}
				addrs, err := policy.Resolve(cmd.Context(), raw)
				switch {
				case err == nil:
					v.Reason = "dials " + strings.Trim(fmt.Sprint(addrs), "[]")
				case safedial.Classify(err) == safedial.KindBlocked:
					v.Verdict, v.Reason, blocked = "blocked", err.Error(), true
				default:
					v.Reason = "allowed by policy; the name does not resolve now"
				}
				if err := c.print(v, func(w io.Writer) { fmt.Fprintf(w, "%-8s %s  (%s)\n", v.Verdict, safedial.MaskURL(raw), v.Reason) }); err != nil {
					return err
				}
			}
			if blocked {
				return errNo
			}
			return nil
		},
	}
}
