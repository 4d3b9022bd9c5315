package internal_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// inEmptyRoot runs a program where there is no file but itself, as nobody in
// particular. Root may do that; anybody else takes a user namespace.
func inEmptyRoot(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	root, err := os.MkdirTemp("", "root")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "program"), b, 0o755); err != nil { //nolint:gosec // it is to be run
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o755); err != nil { //nolint:gosec // by another user
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/program", args...)
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65532, Gid: 65532}
	} else {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
	}
	return cmd
}

// checkHealth starts the receiver in an empty root, without sources, and asks it.
func checkHealth(t *testing.T, program string) {
	t.Helper()
	cmd := inEmptyRoot(t, program)
	cmd.Env = []string{"GOOGLE_CLOUD_PROJECT=p", "SOURCES=[]", "HOST=127.0.0.1", "PORT=0",
		// Nobody answers there, and nobody is asked: there is nothing to publish.
		"PUBSUB_EMULATOR_HOST=127.0.0.1:9", "SECRET_MANAGER_EMULATOR_HOST=127.0.0.1:9"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	}()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var line struct{ Event, Address string }
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Event != "start" {
			continue
		}
		for _, path := range []string{"/health/live", "/health/ready"} {
			res, err := http.Get("http://" + line.Address + path) //nolint:noctx // on loopback
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusNoContent {
				t.Errorf("%s: %s", path, res.Status)
			}
		}
		return
	}
	t.Error("the receiver did not start")
}
