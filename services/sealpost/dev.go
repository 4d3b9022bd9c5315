package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sealpost/sealpost/internal/system"
)

// devInfo is what `sealpost dev --json` prints once all is ready.
type devInfo struct {
	Receiver   string                   `json:"receiver"`
	Worker     string                   `json:"worker"`
	Dispatcher string                   `json:"dispatcher"`
	Console    string                   `json:"console"`
	Project    string                   `json:"project"`
	Sources    map[string]system.Source `json:"sources"`
	Env        map[string]string        `json:"env"`
}

// startWithin bounds the start of everything, a slow JVM included.
const startWithin = 90 * time.Second

func (c *cli) devCommand() *cobra.Command {
	var noDemo, pull bool
	var level slog.Level
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole system on this machine",
		Long: `Runs everything in one process on free loopback ports: Google's Spanner and Pub/Sub
emulators as child processes, our own Cloud Tasks and Secret Manager, all services, and a
sample source per scheme. Endpoints on http and loopback are permitted. Then shows one
event that a provider posts and one that an application publishes on their way to a sample
endpoint (leave it out with --no-demo), and keeps running until Ctrl-C or SIGTERM.

With --json it prints one line once all is ready, and nothing else:
  {"receiver","worker","dispatcher","console","project",
   "sources":{NAME:{"url","scheme","secret"}},"env":{…}}

SPANNER_EMULATOR_HOST and PUBSUB_EMULATOR_HOST, where set, are used instead of emulators of
its own.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(c.errOut, &slog.HandlerOptions{Level: level}))
			slog.SetDefault(log) // also for what libraries say
			return c.dev(cmd.Context(), system.Options{Log: log, Retry: time.Second, Pull: pull}, !noDemo && !c.json)
		},
	}
	cmd.Flags().BoolVar(&noDemo, "no-demo", false, "do not send the two sample events")
	cmd.Flags().BoolVar(&pull, "pull", false, "have the worker pull (Pub/Sub's emulator pushes only two messages at a time)")
	cmd.Flags().TextVar(&level, "log-level", slog.LevelError, "what the services write to standard error: debug, info, warn or error")
	return cmd
}

func (c *cli) dev(ctx context.Context, o system.Options, demo bool) (err error) {
	starting, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	began := time.Now()
	if !c.json {
		fmt.Fprintln(c.out, "Starting Google's Spanner and Pub/Sub emulators, Cloud Tasks, Secret Manager and all services…")
	}
	sys, err := system.Start(starting, o)
	if err != nil && ctx.Err() != nil {
		return nil // asked to stop before it stood
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer func() {
		if closing := sys.Close(); err == nil {
			err = closing
		}
	}()
	info := devInfo{Receiver: sys.URLs[system.Receiver], Worker: sys.URLs[system.Worker], Dispatcher: sys.URLs[system.Dispatcher],
		Console: sys.URLs[system.Console], Project: sys.Cloud.Project(), Sources: map[string]system.Source{}, Env: sys.Env()}
	for _, src := range sys.Sources {
		info.Sources[src.Name] = src
	}
	if c.json {
		err = c.printJSON(info)
	} else {
		c.introduce(c.out, info, time.Since(began))
	}
	if err != nil {
		return err
	}
	if demo {
		if err := c.demo(ctx, sys); err != nil && ctx.Err() == nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	select {
	case <-ctx.Done():
		if !c.json {
			fmt.Fprintln(c.out, "\nStopping.")
		}
		return nil
	case <-sys.Cloud.Done():
		return fmt.Errorf("an emulator ended: %w", sys.Cloud.Err())
	}
}

// introduce tells a person what runs where.
func (c *cli) introduce(w io.Writer, info devInfo, took time.Duration) {
	fmt.Fprintf(w, "Ready in %.1f s.\n\n", took.Seconds())
	for _, row := range [][2]string{{"console", info.Console}, {"receiver", info.Receiver}, {"worker", info.Worker}, {"dispatcher", info.Dispatcher}} {
		fmt.Fprintf(w, "  %-12s %s\n", row[0], row[1])
	}
	fmt.Fprintf(w, "\nA sample source per scheme at %s/in/SCHEME; 'sealpost trigger --scheme SCHEME' posts a signed\nsample to it, and --json shows every secret:\n", info.Receiver)
	line := " "
	for _, name := range slices.Sorted(maps.Keys(info.Sources)) {
		if len(line)+len(name) > 90 {
			fmt.Fprintln(w, line)
			line = " "
		}
		line += " " + name
	}
	fmt.Fprintln(w, line)
	fmt.Fprintf(w, "\nFor a second terminal:\n  export %s\n", exports(info.Env))
	if self, err := os.Executable(); err == nil && !strings.Contains(self, "go-build") {
		fmt.Fprintf(w, "  alias sealpost=%s\n  sealpost trigger --scheme github; sealpost events list\n", self)
	}
	fmt.Fprintln(w)
}

// exports is the environment for a shell.
func exports(env map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		parts = append(parts, k+"='"+strings.ReplaceAll(env[k], "'", `'\''`)+"'")
	}
	return strings.Join(parts, " ")
}
