package localcloud

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// stderrKept bounds what is remembered of a child's output, in bytes.
const stderrKept = 16 << 10

// killWait bounds the wait for a child after SIGKILL. A process in an
// uninterruptible system call can exceed it; waiting for ever would help nobody.
const killWait = 5 * time.Second

// child is a process of ours in a process group of its own, so that Ctrl-C in the
// terminal reaches us first and the child is ended in our order, not the
// terminal's.
type child struct {
	name   string
	cmd    *exec.Cmd
	output *ring
	done   chan struct{} // closed when the process has ended and was reaped
	err    error         // how it ended; read after done
}

// startChild starts argv. The child dies with this process, even with SIGKILL.
func startChild(name string, argv, env []string) (*child, error) {
	c := &child{name: name, output: newRing(stderrKept), done: make(chan struct{})}
	started := make(chan error, 1)
	go c.run(argv, env, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// run forks on a thread that it keeps until the child has ended: Linux sends the
// parent-death signal when the forking thread ends, not when the process does, and
// the Go runtime ends the thread of a goroutine that exits while locked to it.
func (c *child) run(argv, env []string, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	argv, release, err := guard(argv)
	if err != nil {
		started <- err
		return
	}
	defer release.Close()
	c.cmd = exec.Command(argv[0], argv[1:]...)
	c.cmd.Env = env
	c.cmd.Stdout, c.cmd.Stderr = c.output, c.output
	// A grandchild that keeps the output open must not keep Wait from returning.
	c.cmd.WaitDelay = time.Second
	release.attach(c.cmd)
	setProcessGroup(c.cmd)
	if err := c.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	c.err = c.cmd.Wait()
	// The leader has gone; nothing of its group may stay.
	_ = signalGroup(c.cmd.Process.Pid, killSignal)
	close(c.done)
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// stop ends the child: SIGTERM, then SIGKILL after grace (at once where grace is
// not positive). It returns within grace + killWait. Idempotent.
func (c *child) stop(grace time.Duration) error {
	select {
	case <-c.done:
		return nil
	default:
	}
	if grace > 0 {
		_ = signalGroup(c.pid(), termSignal)
		select {
		case <-c.done:
			return nil
		case <-time.After(grace):
		}
	}
	_ = signalGroup(c.pid(), killSignal)
	select {
	case <-c.done:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("stop %s: process %d is still there %v after SIGKILL", c.name, c.pid(), killWait)
	}
}

// explain adds to err what the child said last, which mostly names the cause.
func (c *child) explain(err error) error {
	select {
	case <-c.done:
		if c.err != nil && !errors.Is(err, c.err) {
			err = fmt.Errorf("%w (%s ended: %w)", err, c.name, c.err)
		}
	default:
	}
	if said := strings.TrimSpace(c.output.String()); said != "" {
		return fmt.Errorf("%w; its last output:\n%s", err, said)
	}
	return err
}
