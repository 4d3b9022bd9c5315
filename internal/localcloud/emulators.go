package localcloud

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/spanner/admin/instance/apiv1/instancepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Google's own emulator variables, and ours for the two services that Google has
// no emulator for. Each holds host:port.
const (
	SpannerVariable       = "SPANNER_EMULATOR_HOST"
	PubSubVariable        = "PUBSUB_EMULATOR_HOST"
	CloudTasksVariable    = "CLOUD_TASKS_EMULATOR_HOST"
	SecretManagerVariable = "SECRET_MANAGER_EMULATOR_HOST"
)

// startTimeout is how long an emulator may take to answer its first call. The JVM
// takes 2 to 3 s on two idle cores, several times that beside a compiler.
const startTimeout = 60 * time.Second

// defaultGrace is the time between SIGTERM and SIGKILL. The Spanner emulator takes
// about a second to leave. No emulator has anything to save.
const defaultGrace = 3 * time.Second

// EmulatorOptions are the choices in starting one of Google's emulators. The zero
// value is right for most.
type EmulatorOptions struct {
	// Getenv reads the environment; os.Getenv where nil.
	Getenv func(string) string
	// Grace is the time between SIGTERM and SIGKILL at the end: 3 s where zero, at
	// once where negative (an emulator has nothing to save).
	Grace time.Duration
	// Proxy says whether a SpannerProxy stands before the Spanner emulator.
	Proxy ProxyMode
}

func (o EmulatorOptions) getenv(name string) string {
	if o.Getenv != nil {
		return o.Getenv(name)
	}
	return os.Getenv(name)
}

func (o EmulatorOptions) grace() time.Duration {
	if o.Grace == 0 {
		return defaultGrace
	}
	return max(o.Grace, 0)
}

// Emulator is one emulator that answers calls: a child process of ours, or one
// that was there already because its variable was set.
type Emulator struct {
	addr    string
	version string
	child   *child        // nil where somebody else runs it
	proxy   *SpannerProxy // nil where none is needed
	grace   time.Duration

	closeOnce sync.Once
	closeErr  error
}

// Addr is host:port for the emulator variable of the service. For Spanner it is
// the proxy's address where a proxy is used.
func (e *Emulator) Addr() string {
	if e.proxy != nil {
		return e.proxy.Addr()
	}
	return e.addr
}

// Version is the emulator's version, or "" where it cannot be known.
func (e *Emulator) Version() string { return e.version }

// Pid is the child's process id, or 0 where somebody else runs the emulator.
func (e *Emulator) Pid() int {
	if e.child == nil {
		return 0
	}
	return e.child.pid()
}

// Proxy is the proxy before a Spanner emulator, or nil.
func (e *Emulator) Proxy() *SpannerProxy { return e.proxy }

// Done is closed when the child has ended, by Close or by itself. It is nil, so
// that it blocks for ever, where somebody else runs the emulator.
func (e *Emulator) Done() <-chan struct{} {
	if e.child == nil {
		return nil
	}
	return e.child.done
}

// Close ends what was started here, and nothing else. It returns within the grace
// plus a few seconds. Idempotent.
func (e *Emulator) Close() error {
	e.closeOnce.Do(func() {
		if e.proxy != nil {
			e.proxy.Close()
		}
		if e.child != nil {
			e.closeErr = e.child.stop(e.grace)
		}
	})
	return e.closeErr
}

// StartSpanner returns a Spanner emulator that has answered a call: the one that
// SPANNER_EMULATOR_HOST names, else a new child process that serves on a free port
// of 127.0.0.1. An emulator starts empty, without an instance. The error wraps
// [ErrNotInstalled] where there is no emulator to start.
//
// ctx bounds the start only.
func StartSpanner(ctx context.Context, opts EmulatorOptions) (*Emulator, error) {
	e := &Emulator{grace: opts.grace()}
	proxied := false
	if addr := opts.getenv(SpannerVariable); addr != "" {
		e.addr = addr
	} else {
		bin, err := newFinder(opts.getenv).spanner()
		if err != nil {
			return nil, err
		}
		e.version = sdkVersion(bin, spannerComponent)
		if err := e.spawn("spanner emulator", func(addr, _ string) []string {
			return []string{bin, "--host_port=" + addr}
		}); err != nil {
			return nil, err
		}
	}
	if err := e.ready(ctx, SpannerVariable, func(ctx context.Context, conn *grpc.ClientConn) error {
		var header metadata.MD
		_, err := instancepb.NewInstanceAdminClient(conn).ListInstanceConfigs(ctx,
			&instancepb.ListInstanceConfigsRequest{Parent: "projects/" + DefaultProject}, grpc.Header(&header))
		proxied = len(header.Get(proxyHeader)) > 0
		return err
	}); err != nil {
		return nil, err
	}
	// A variable that a parent process exported mostly leads to its proxy already.
	if opts.Proxy.wanted(e.version) && !proxied {
		proxy, err := StartSpannerProxy(e.addr)
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		e.proxy = proxy
	}
	return e, nil
}

// StartPubSub returns a Pub/Sub emulator that has answered a call: the one that
// PUBSUB_EMULATOR_HOST names, else a new child process (Java) that serves on a free
// port of 127.0.0.1. The error wraps [ErrNotInstalled] where there is no emulator,
// or no Java, to start.
//
// ctx bounds the start only.
func StartPubSub(ctx context.Context, opts EmulatorOptions) (*Emulator, error) {
	e := &Emulator{grace: opts.grace()}
	if addr := opts.getenv(PubSubVariable); addr != "" {
		e.addr = addr
	} else {
		command, err := newFinder(opts.getenv).pubsub()
		if err != nil {
			return nil, err
		}
		if err := e.spawn("pub/sub emulator", func(_, port string) []string {
			return append(command, "--host=127.0.0.1", "--port="+port)
		}); err != nil {
			return nil, err
		}
	}
	if err := e.ready(ctx, PubSubVariable, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pubsubpb.NewPublisherClient(conn).ListTopics(ctx,
			&pubsubpb.ListTopicsRequest{Project: "projects/" + DefaultProject})
		return err
	}); err != nil {
		return nil, err
	}
	return e, nil
}

// spawn starts the child on a free port.
func (e *Emulator) spawn(name string, command func(addr, port string) []string) error {
	addr, err := freeAddr()
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	_, port, _ := net.SplitHostPort(addr)
	e.addr = addr
	e.child, err = startChild(name, command(addr, port), os.Environ())
	return err
}

// ready waits until probe, a real call, succeeds: a port that is open proves
// little, since the emulators listen before they serve. Where it does not come
// true, the child is ended and the error tells what it said.
func (e *Emulator) ready(ctx context.Context, variable string, probe func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := e.probe(ctx, probe)
	if err == nil {
		return nil
	}
	if e.child == nil {
		return fmt.Errorf("%s=%s does not answer: %w", variable, e.addr, err)
	}
	err = e.child.explain(fmt.Errorf("start %s on %s: %w", e.child.name, e.addr, err))
	return errors.Join(err, e.Close())
}

func (e *Emulator) probe(ctx context.Context, probe func(context.Context, *grpc.ClientConn) error) error {
	conn, err := dial(e.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		// One short call after the other, each on a connection that is tried afresh:
		// waiting for readiness inside one call would wait out gRPC's back-off.
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := probe(call, conn)
		cancel()
		if err == nil {
			return nil
		}
		if e.child == nil && status.Code(err) != codes.Unavailable {
			return err
		}
		conn.ResetConnectBackoff()
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-e.Done():
			return err
		case <-time.After(25 * time.Millisecond):
		}
	}
}

// dial connects to an emulator: plain text, past any HTTP proxy of the
// environment, messages of any size.
func dial(addr string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	}, more...)...)
}

// freeAddr is an address of 127.0.0.1 that nobody serves. The emulators listen with
// SO_REUSEPORT, so that a second one on a port in use would not fail but silently
// take half of the first one's calls: a port counts as free only when nobody
// answers on it after the kernel has handed it out.
func freeAddr() (string, error) {
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		addr := l.Addr().String()
		if err := l.Close(); err != nil {
			return "", err
		}
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return addr, nil
		}
		_ = conn.Close()
	}
	return "", errors.New("no free port on 127.0.0.1")
}
