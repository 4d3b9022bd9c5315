package system_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/deliver"
	"github.com/sealpost/sealpost/internal/fanout"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/serve"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/tasks"
)

// This test binary plays a service, with a step at which it kills itself, when these
// are set.
const (
	asRole   = "TEST_ROLE"
	asStep   = "TEST_KILL_AT"
	asMarker = "TEST_KILLED" // a file that tells that it happened, so that it happens once
)

// play is the service's process. It ends on SIGTERM, and at the end of its standard
// input: the test is gone then.
func play(role string) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := act(ctx, role); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func act(ctx context.Context, role string) error {
	e := serve.NewEnv(os.Getenv)
	project := e.Needed("GOOGLE_CLOUD_PROJECT")
	cfg := tasks.Config{Project: project, Location: e.Needed("LOCATION"), Dispatcher: e.Needed("DISPATCHER_URL"), Invoker: e.Needed("INVOKER"), Pools: e.List("POOL_QUEUES")}
	st, err := store.Open(ctx, e.Needed("SPANNER_DATABASE"), store.Options{})
	if err := errors.Join(err, e.Err()); err != nil {
		return err
	}
	defer st.Close()
	cfg.Lost = st.LostQueue
	queue, err := tasks.New(ctx, cfg)
	if err != nil {
		return err
	}
	defer queue.Close()
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	if role == system.Dispatcher {
		sm, err := secrets.NewClient(ctx)
		if err != nil {
			return err
		}
		defer sm.Close()
		sealer, err := sm.Sealer(ctx, project, e.Needed("KEYSET_SECRET"), e.Numbers("KEYSET_VERSIONS"))
		if err := errors.Join(err, e.Err()); err != nil {
			return err
		}
		d := deliver.New(deliver.Options{Store: st, Queue: queue, Sealer: sealer, Policy: safedial.Dev(), Log: log, Step: killOnce})
		defer d.Close()
		return serve.Run(ctx, l, serve.WithHealth(d.Routes(), nil, log), log)
	}
	in := fanout.New(fanout.Options{Store: st, Queue: queue, Log: log, Step: killOnce})
	defer in.Close()
	return serve.Run(ctx, l, serve.WithHealth(in.Routes(), nil, log), log)
}

// killOnce ends this very process at its step, unless one has ended there before.
func killOnce(_ context.Context, step string) error {
	if step != os.Getenv(asStep) {
		return nil
	}
	f, err := os.OpenFile(os.Getenv(asMarker), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return err
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // nothing after the step happens
}

// socket is a listening socket that processes inherit one after another, so that the
// next one serves where the last one did.
type socket struct {
	url  string
	file *os.File
}

func newSocket(t *testing.T) *socket {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return &socket{"http://" + l.Addr().String(), file}
}

// play starts this test binary as a service on the socket. With a step it kills
// itself there, once per marker.
func (r *rig) play(role, step, marker string, s *socket) *process {
	r.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = environ(r.Env(), map[string]string{asRole: role, asStep: step, asMarker: marker})
	cmd.ExtraFiles = []*os.File{s.file}
	input, err := cmd.StdinPipe()
	must(r.t, err)
	r.t.Cleanup(func() { _ = input.Close() })
	return run(r.t, cmd)
}

// process is a child of this test.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string // where it serves, if it is a service
	out  output
	errs output
	done chan struct{} // closed when it is gone and reaped
	err  error         // how it went; read after done
}

// run starts a process that is gone when the test is over, however that ends.
func run(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &p.out, &p.errs, 5*time.Second
	dieWithParent(cmd)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // its end would be the child's
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.done)
	}()
	must(t, <-started)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s said:\n%s%s", filepath.Base(cmd.Path), tail(p.out.String()), tail(p.errs.String()))
		}
		_ = p.cmd.Process.Kill()
		<-p.done
		if alive(cmd.Process.Pid) {
			t.Errorf("process %d of %s has survived", cmd.Process.Pid, cmd.Path)
		}
	})
	return p
}

func tail(s string) string { return s[max(0, len(s)-2000):] }

// ended waits for the process's own end.
func (p *process) ended(within time.Duration) {
	p.t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.t.Fatalf("%s has not ended within %s", p.cmd.Path, within)
	}
}

// killed waits until the process has ended by SIGKILL.
func (p *process) killed() {
	p.t.Helper()
	p.ended(patience)
	if s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() || s.Signal() != syscall.SIGKILL {
		p.t.Fatalf("the process ended otherwise: %s\n%s", p.cmd.ProcessState, p.errs.String())
	}
}

// stop asks the service to end and holds it to doing so in time and with exit 0.
func (p *process) stop(sig os.Signal, within time.Duration) {
	p.t.Helper()
	p.serving()
	must(p.t, p.cmd.Process.Signal(sig))
	p.ended(within)
	if p.err != nil {
		p.t.Errorf("%s, told to end by %s: %v\n%s", filepath.Base(p.cmd.Path), sig, p.err, p.errs.String())
	}
}

// output is what a process has written.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// line waits for a line that suits.
func (p *process) line(suits func(string) bool) {
	p.t.Helper()
	eventually(p.t, func() error {
		for line := range strings.Lines(p.out.String()) {
			if strings.HasSuffix(line, "\n") && suits(line) {
				return nil
			}
		}
		select {
		case <-p.done:
			p.t.Fatalf("%s has ended: %v\n%s", filepath.Base(p.cmd.Path), p.err, p.errs.String())
		default:
		}
		return fmt.Errorf("%s: %w", filepath.Base(p.cmd.Path), errNotYet)
	})
}

// serve starts the service's own binary beside the system, on a free port, and
// returns when it is ready. env adds to the system's environment.
func (r *rig) serve(service string, env map[string]string) *process {
	r.t.Helper()
	cmd := exec.Command(binary(r.t, service))
	cmd.Env = environ(r.Env(), map[string]string{"HOST": "127.0.0.1", "PORT": "0"}, env)
	p := run(r.t, cmd)
	p.serving()
	eventually(r.t, func() error { return ready(p.url) })
	return p
}

// serving waits until the service says where it serves.
func (p *process) serving() {
	p.t.Helper()
	p.line(func(line string) bool {
		var start struct{ Event, Address string }
		if json.Unmarshal([]byte(line), &start) != nil || start.Event != "start" {
			return false
		}
		p.url = "http://" + start.Address
		return true
	})
}

func ready(base string) error {
	res, err := http.Get(base + serve.ReadyPath)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		return fmt.Errorf("%s is not ready: %s", base, res.Status)
	}
	return nil
}

// receiverEnv lets a receiver serve these sources, each with the settings that
// adjust adds to its JSON object.
func (r *rig) receiverEnv(sources ...system.Source) map[string]string {
	r.t.Helper()
	return r.receiverWith(nil, sources...)
}

func (r *rig) receiverWith(settings map[string]any, sources ...system.Source) map[string]string {
	r.t.Helper()
	var list []map[string]any
	for _, s := range sources {
		source := map[string]any{"id": s.Name, "scheme": s.Scheme, "secrets": []map[string]any{{"name": "sealpost-source-" + s.Name, "versions": []int{1}}}}
		if s.HMAC != nil {
			source["hmac"] = s.HMAC
		}
		maps.Copy(source, settings)
		list = append(list, source)
	}
	b, err := json.Marshal(list)
	must(r.t, err)
	return map[string]string{"SOURCES": string(b)}
}

// environ is the environment of a process: that of none of the emulators, and what
// is given, the last one winning.
func environ(layers ...map[string]string) []string {
	env := map[string]string{}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "JAVA_HOME", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env[name] = v
		}
	}
	for _, l := range layers {
		maps.Copy(env, l)
	}
	var list []string
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	return list
}

// front is an address that leads to a service which may not be there yet.
type front struct {
	url    string
	target atomic.Pointer[url.URL]
}

func newFront(t *testing.T) *front {
	t.Helper()
	f := &front{}
	proxy := &httputil.ReverseProxy{
		Rewrite:      func(p *httputil.ProxyRequest) { p.SetURL(f.target.Load()) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.target.Load() == nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

func (f *front) lead(t *testing.T, to string) {
	t.Helper()
	u, err := url.Parse(to)
	must(t, err)
	f.target.Store(u)
}

// binaries are the mains, built once.
var binaries struct {
	once sync.Once
	dir  string
	err  error
}

var mains = []string{system.Receiver, system.Worker, system.Dispatcher, "sealpost"}

func binary(t *testing.T, name string) string {
	t.Helper()
	b := &binaries
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "sealpost-test"); b.err != nil {
			return
		}
		args := []string{"build", "-o", b.dir + string(filepath.Separator)}
		for _, m := range mains {
			args = append(args, "./services/"+m)
		}
		cmd := exec.Command("go", args...)
		cmd.Dir = filepath.Join("..", "..")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	})
	must(t, b.err)
	return filepath.Join(b.dir, name)
}

func removeBinaries() error {
	if binaries.dir == "" {
		return nil
	}
	return os.RemoveAll(binaries.dir)
}

// alive reports whether there is such a process, other than as a zombie.
func alive(pid int) bool {
	_, ok := processes()[pid]
	return ok
}

// descendants are the processes below pid.
func descendants(pid int) []int {
	parents := processes()
	var found []int
	for next := []int{pid}; len(next) > 0; {
		at := next[0]
		next = next[1:]
		for child, parent := range parents {
			if parent == at {
				found, next = append(found, child), append(next, child)
			}
		}
	}
	slices.Sort(found)
	return found
}

// processes gives each live process's parent.
func processes() map[int]int {
	parents := map[int]int{}
	if runtime.GOOS != "linux" {
		out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
		if err != nil {
			panic(err)
		}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) == 3 && !strings.HasPrefix(f[2], "Z") {
				note(parents, f[0], f[1])
			}
		}
		return parents
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		panic(err)
	}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // gone meanwhile
		}
		// The command's name, in parentheses, may hold anything.
		_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] != "Z" && f[0] != "X" {
			note(parents, filepath.Base(filepath.Dir(name)), f[1])
		}
	}
	return parents
}

func note(parents map[int]int, pid, parent string) {
	p, err := strconv.Atoi(pid)
	q, err2 := strconv.Atoi(parent)
	if err == nil && err2 == nil {
		parents[p] = q
	}
}

const terminate = syscall.SIGTERM

// What the services need beside the system's environment.
var workerEnv = map[string]string{"AUTH": "none"}

// dispatcherEnv lets in what Cloud Tasks sends, whose audience is the address that
// tasks are posted to.
func dispatcherEnv(audience string) map[string]string {
	return map[string]string{"AUTH": "iam", "AUDIENCE": audience}
}

func merged(layers ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, l := range layers {
		maps.Copy(all, l)
	}
	return all
}
