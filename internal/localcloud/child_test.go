package localcloud

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		writes []string
		want   string
	}{
		{nil, ""},
		{[]string{"abc", "de"}, "abcde"},
		{[]string{"abcde", "f"}, "[…]bcdef"},
		{[]string{"ab", "cdefghij"}, "[…]fghij"},
		{[]string{"abcdefghij"}, "[…]fghij"},
		{[]string{"abcd", "efg", "h"}, "[…]defgh"},
	} {
		r := newRing(5)
		for _, w := range c.writes {
			if n, err := r.Write([]byte(w)); n != len(w) || err != nil {
				t.Errorf("write %q: %d, %v", w, n, err)
			}
		}
		if got := r.String(); got != c.want {
			t.Errorf("%q: %q, want %q", c.writes, got, c.want)
		}
	}
}

func TestChildEndsBySIGTERM(t *testing.T) {
	t.Parallel()
	c, grandchild := startShell(t, `sleep 600 & echo $! >"$READY"; wait`)
	if err := c.stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	waitGone(t, grandchild)
	if err := c.stop(time.Minute); err != nil {
		t.Errorf("a second stop: %v", err)
	}
}

func TestChildThatIgnoresSIGTERMIsKilled(t *testing.T) {
	t.Parallel()
	c, _ := startShell(t, `trap '' TERM; echo $$ >"$READY"; while :; do sleep 600; done`)
	if err := c.stop(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-c.done
}

func TestChildsLastWordsAreTold(t *testing.T) {
	t.Parallel()
	c, err := startChild("thing", []string{"/bin/sh", "-c", "echo no such luck >&2; exit 3"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-c.done
	got := c.explain(errors.New("start thing")).Error()
	for _, want := range []string{"start thing", "exit status 3", "no such luck"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if _, err := startChild("thing", []string{"/nonexistent/binary"}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent binary: %v", err)
	}
}

// startShell starts a script that writes a process id to $READY when it is ready,
// and waits for that.
func startShell(t *testing.T, script string) (*child, int) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := startChild("shell", []string{"/bin/sh", "-c", script}, append(os.Environ(), "READY="+ready))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.stop(0) })
	said, err := os.ReadFile(ready)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(said)))
	if err != nil {
		t.Fatal(err)
	}
	return c, pid
}

// The next test runs this test binary as a parent of its own: with the variable set
// it starts a child, tells the pids, and waits to be killed.
const parentVariable = "LOCALCLOUD_TEST_PARENT"

func beParent() {
	c, err := startChild("orphan", []string{"/bin/sh", "-c", "exec sleep 600"}, os.Environ())
	if err != nil {
		panic(err)
	}
	fmt.Println(c.pid())
	<-c.done
}

func TestChildDiesWithItsKilledParent(t *testing.T) {
	t.Parallel()
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	parent.Env = append(os.Environ(), parentVariable+"=1")
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(bufio.NewReader(stdout), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("child %d is not there: %v", pid, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	waitGone(t, pid)
}

// waitGone waits until pid has ended. It is not our child, so there is no signal to
// wait for; a zombie that init has not reaped counts as ended.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(stat), ") Z ") {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("process %d outlived its parent", pid)
		case <-tick.C:
		}
	}
}

// The watchdog is macOS's way, and plain sh: it must work here too.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, script string) (*exec.Cmd, *watchdog, io.Reader) {
		t.Helper()
		argv, dog, err := newWatchdog([]string{"/bin/sh", "-c", script})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		dog.attach(cmd)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = signalGroup(cmd.Process.Pid, killSignal) })
		return cmd, dog, out
	}
	t.Run("parent gone", func(t *testing.T) {
		t.Parallel()
		cmd, dog, out := run(t, "echo $$; exec sleep 600")
		var pid int
		if _, err := fmt.Fscan(out, &pid); err != nil {
			t.Fatal(err)
		}
		if err := dog.Close(); err != nil { // what the kernel does for a dead parent
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("the watched command ended well")
		}
		waitGone(t, pid)
	})
	t.Run("SIGTERM waits for the child", func(t *testing.T) {
		t.Parallel()
		cmd, dog, out := run(t, `trap 'echo bye; exit' TERM; echo ready; sleep 600 >/dev/null & wait`)
		defer dog.Close()
		r := bufio.NewReader(out)
		if line, err := r.ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatal(line, err)
		}
		_ = signalGroup(cmd.Process.Pid, termSignal)
		rest, _ := io.ReadAll(r)
		_ = cmd.Wait()
		if string(rest) != "bye\n" {
			t.Errorf("said %q, want the child's own end", rest)
		}
	})
}

func TestFreeAddr(t *testing.T) {
	t.Parallel()
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", addr); err == nil {
		conn.Close()
		t.Errorf("somebody answers on %s", addr)
	}
}

func TestFinder(t *testing.T) {
	t.Parallel()
	sdk := t.TempDir()
	write := func(name string, mode os.FileMode, text string) string {
		path := filepath.Join(sdk, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	gcloud := write("bin/gcloud", 0o755, "")
	emulator := write("bin/cloud_spanner_emulator/emulator_main", 0o755, "")
	jar := write("platform/pubsub-emulator/lib/cloud-pubsub-emulator-0.8.20-all.jar", 0o644, "")
	write(".install/cloud-spanner-emulator-linux-x86_64.snapshot.json", 0o644,
		`{"components":[{"id":"core","version":{"version_string":"1"}},{"id":"cloud-spanner-emulator-linux-x86_64","version":{"version_string":"1.5.28"}}]}`)
	link := filepath.Join(t.TempDir(), "gcloud")
	if err := os.Symlink(gcloud, link); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	path := map[string]string{"gcloud": link, "java": "/jre/java"}
	f := finder{
		getenv: func(name string) string { return env[name] },
		lookPath: func(name string) (string, error) {
			if p, ok := path[name]; ok {
				return p, nil
			}
			return "", exec.ErrNotFound
		},
	}
	if got, err := f.spanner(); got != emulator || err != nil {
		t.Errorf("beside gcloud: %q, %v; want %q", got, err, emulator)
	}
	if got, err := f.pubsub(); err != nil || !slices.Equal(got, []string{"/jre/java", "-XX:+UseSerialGC", "-Xmx256m", "-Dfile.encoding=UTF-8", "-jar", jar}) {
		t.Errorf("pub/sub: %q, %v", got, err)
	}
	if got := sdkVersion(emulator, spannerComponent); got != "1.5.28" {
		t.Errorf("version %q", got)
	}
	if got := sdkVersion("/somewhere/else/emulator_main", spannerComponent); got != "" {
		t.Errorf("version without an SDK: %q", got)
	}
	delete(path, "java")
	if _, err := f.pubsub(); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "apt-get install default-jre-headless") {
		t.Errorf("without java: %v", err)
	}
	env["CLOUDSDK_ROOT_DIR"] = t.TempDir() // empty: go on to the next
	if got, err := f.spanner(); got != emulator || err != nil {
		t.Errorf("beside an empty root: %q, %v", got, err)
	}
}

func TestInstallAdvice(t *testing.T) {
	t.Parallel()
	for goos, want := range map[string][]string{
		"linux":  {"gcloud components install x", "apt-get install y", "image z", "set V"},
		"darwin": {"gcloud components install x", "image z", "set V"},
	} {
		got := installAdvice(goos, "x", "y", "z", "V")
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", goos, got, w)
			}
		}
		if goos == "darwin" && strings.Contains(got, "apt") {
			t.Errorf("%s: %q", goos, got)
		}
	}
}

func TestProxyByVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode    ProxyMode
		version string
		want    bool
	}{
		{ProxyAuto, "1.5.28", true},
		{ProxyAuto, "1.5.9", true},
		{ProxyAuto, "1.5.38", true}, // has multiplexed sessions, and loses writes on them
		{ProxyAuto, "1.5.50", true},
		{ProxyAuto, "1.5.51", false},
		{ProxyAuto, "1.6", false},
		{ProxyAuto, "2.0.0", false},
		{ProxyAuto, "", true},
		{ProxyAuto, "nightly", true},
		{ProxyOn, "2.0.0", true},
		{ProxyOff, "1.5.28", false},
	} {
		if got := c.mode.wanted(c.version); got != c.want {
			t.Errorf("%v, %q: %v, want %v", c.mode, c.version, got, c.want)
		}
	}
}
