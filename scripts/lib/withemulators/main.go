// Command withemulators starts Google's Spanner and Pub/Sub emulators, runs a
// command with the variables that lead to them, ends the emulators when the command
// has ended, and exits with its status:
//
//	withemulators [-spanner] [-pubsub] [--] command [argument…]
//
// An emulator whose variable is set already is left to whoever runs it. With -check
// it starts nothing and only says whether both can be started.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/sealpost/sealpost/internal/localcloud"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withemulators:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	flags := flag.NewFlagSet("withemulators", flag.ContinueOnError)
	spanner := flags.Bool("spanner", false, "start a Spanner emulator")
	pubsub := flags.Bool("pubsub", false, "start a Pub/Sub emulator")
	check := flags.Bool("check", false, "only say whether the emulators are installed")
	if err := flags.Parse(args); err != nil {
		return 2, nil // the flag set has said it
	}
	if *check {
		if err := localcloud.CheckInstalled(os.Getenv); err != nil {
			return 1, err
		}
		return 0, nil
	}
	if flags.NArg() == 0 {
		return 2, errors.New("no command")
	}
	var parts localcloud.Part
	if *spanner {
		parts |= localcloud.Spanner
	}
	if *pubsub {
		parts |= localcloud.PubSub
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if parts == 0 {
		return command(ctx, flags.Args(), nil)
	}
	cloud, err := localcloud.Start(ctx, localcloud.Options{Parts: parts,
		EmulatorOptions: localcloud.EmulatorOptions{Grace: -1}})
	if err != nil {
		return 1, err
	}
	code, err := command(ctx, flags.Args(), cloud.Env())
	return code, errors.Join(err, cloud.Close())
}

// command runs args with env added to the environment. When ctx ends it asks the
// command to end, and kills it 10 s later.
func command(ctx context.Context, args []string, env map[string]string) (int, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = os.Environ()
	for _, name := range []string{localcloud.SpannerVariable, localcloud.PubSubVariable} {
		if addr := env[name]; addr != "" {
			cmd.Env = append(cmd.Env, name+"="+addr)
		}
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode(), nil
	default:
		return 1, err
	}
}
