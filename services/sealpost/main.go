// Command sealpost is the operator's tool: it runs the whole system locally,
// manages endpoints, publishes events, shows what became of them, and checks
// captured requests and URLs by the product's own rules.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
)

// Exit codes: 0 done, 1 no or failed, 2 wrong usage.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// cli is what every command has at hand.
type cli struct {
	getenv func(string) string
	in     io.Reader
	out    io.Writer
	errOut io.Writer
	json   bool
}

// usageError marks a wrong call.
type usageError struct{ error }

// errNo is a "no" that was already said on standard output.
var errNo = errors.New("no")

func run(ctx context.Context, args []string, getenv func(string) string, in io.Reader, out, errOut io.Writer) int {
	c := &cli{getenv: getenv, in: in, out: out, errOut: errOut}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errNo):
		return exitFailed
	case errors.As(err, &usage), errors.Is(err, store.ErrInvalid), errors.Is(err, store.ErrTooLarge), bus.Permanent(err):
		fmt.Fprintf(errOut, "sealpost: %v\nSee '%s --help'.\n", err, cmd.CommandPath())
		return exitUsage
	}
	text := err.Error()
	if errors.Is(err, store.ErrNotFound) {
		text, _, _ = strings.Cut(text, ": spanner:") // how it was looked up helps nobody
	}
	fmt.Fprintf(errOut, "sealpost: %s\n", text)
	return exitFailed
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sealpost",
		Short: "Webhook infrastructure in your own Google Cloud project",
		Long: `Sealpost receives providers' webhooks and sends your own, in your own Google Cloud
project. This command runs the whole system on one machine (dev), manages endpoints,
publishes events, and shows what became of each.

It talks to Spanner, Pub/Sub, Cloud Tasks and Secret Manager directly, under your own
Google credentials (gcloud auth application-default login), or to 'sealpost dev' through
the environment that it prints.

Environment:
` + environmentHelp + `
Exit codes: 0 done, 1 no or failed, 2 wrong usage.`,
		Version:       serve.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON for machines")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(c.devCommand(), c.endpointsCommand(), c.queuesCommand(), c.publishCommand(), c.eventsCommand(),
		c.deliveriesCommand(), c.sourcesCommand(), c.listenCommand(), c.triggerCommand(), c.verifyCommand(), c.checkURLCommand(), c.retryPlanCommand(), c.keysetCommand())
	return root
}

// exactArgs is cobra.ExactArgs with the exit code of wrong usage.
func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("want %s, got %d arguments", what, len(args))}
		}
		return nil
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	return exactArgs(0, "no arguments")(cmd, args)
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())}
			}
			return usageError{fmt.Errorf("%q needs a command", cmd.CommandPath())}
		}}
	cmd.AddCommand(commands...)
	return cmd
}

// print writes v as one JSON line, or what text writes for people.
func (c *cli) print(v any, text func(w io.Writer)) error {
	if !c.json {
		text(c.out)
		return nil
	}
	return c.printJSON(v)
}

func (c *cli) printJSON(v any) error {
	enc := json.NewEncoder(c.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
