package system_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/sealpost/sealpost/internal/serve"
)

// devProcess is a running `sealpost dev --json --no-demo`.
type devProcess struct {
	cmd  *exec.Cmd
	info struct {
		Receiver, Worker, Dispatcher, Console, Project string
		Sources                                        map[string]struct{ URL, Scheme, Secret string }
		Env                                            map[string]string
	}
	children []int
	stderr   bytes.Buffer
}

// startDev runs the built command and waits for its line.
func startDev(t *testing.T) *devProcess {
	t.Helper()
	d := &devProcess{cmd: exec.Command(binary(t, "sealpost"), "dev", "--json", "--no-demo")}
	d.cmd.Env = environ()
	d.cmd.Stderr = &d.stderr
	out, err := d.cmd.StdoutPipe()
	must(t, err)
	must(t, d.cmd.Start())
	t.Cleanup(func() { _ = d.cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("no line: %v; %s", err, d.stderr.String())
	}
	must(t, json.Unmarshal(line, &d.info))
	d.children = descendants(d.cmd.Process.Pid)
	if len(d.children) < 2 {
		t.Fatalf("children %v, want the two emulators at least", d.children)
	}
	return d
}

func (d *devProcess) gone() error {
	for _, pid := range d.children {
		if alive(pid) {
			return fmt.Errorf("child %d still lives", pid)
		}
	}
	return nil
}

// Ctrl-C ends dev with 0, and no process is left.
func TestDevStopsCleanly(t *testing.T) {
	t.Parallel()
	d := startDev(t)
	for name, base := range map[string]string{"receiver": d.info.Receiver, "worker": d.info.Worker, "dispatcher": d.info.Dispatcher, "console": d.info.Console} {
		res, err := http.Get(base + serve.ReadyPath)
		if err != nil || res.StatusCode != http.StatusNoContent {
			t.Errorf("%s at %q: %v, %v", name, base, res, err)
			continue
		}
		res.Body.Close()
	}
	for _, scheme := range []string{"standard-webhooks", "stripe", "github", "shopify", "slack", "generic-hmac"} {
		if s := d.info.Sources[scheme]; s.Scheme != scheme || s.URL == "" || s.Secret == "" {
			t.Errorf("source %s: %+v", scheme, s)
		}
	}
	for _, name := range []string{"SPANNER_EMULATOR_HOST", "PUBSUB_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST", "SECRET_MANAGER_EMULATOR_HOST", "SPANNER_DATABASE", "GOOGLE_CLOUD_PROJECT"} {
		if d.info.Env[name] == "" {
			t.Errorf("the environment has no %s", name)
		}
	}
	must(t, d.cmd.Process.Signal(os.Interrupt))
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("ended with %v: %s", err, d.stderr.String())
	}
	if err := d.gone(); err != nil {
		t.Error(err)
	}
	if d.stderr.Len() > 0 {
		t.Errorf("said on standard error: %s", d.stderr.String())
	}
}

// Also when it is killed outright, its children do not outlive it.
func TestDevKilled(t *testing.T) {
	t.Parallel()
	d := startDev(t)
	must(t, d.cmd.Process.Signal(syscall.SIGKILL))
	_ = d.cmd.Wait()
	eventually(t, d.gone)
}
