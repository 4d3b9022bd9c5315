package serve

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main is a service's whole main: it answers --version and --help (with usage),
// and otherwise runs until run returns or SIGINT or SIGTERM ends its context. An
// error is printed and exits with 1, a wrong call with 2.
func Main(name, usage string, run func(ctx context.Context, getenv func(string) string) error) {
	os.Exit(mainCode(name, usage, os.Args[1:], os.Stdout, os.Stderr, run))
}

func mainCode(name, usage string, args []string, out, errOut io.Writer, run func(context.Context, func(string) string) error) int {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	version := flags.Bool("version", false, "")
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp:
		fmt.Fprint(out, usage)
		return 0
	case err != nil || flags.NArg() > 0:
		fmt.Fprint(errOut, usage)
		return 2
	case *version:
		fmt.Fprintln(out, Version())
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv); err != nil {
		fmt.Fprintf(errOut, "%s: %v\n", name, err)
		return 1
	}
	return 0
}
