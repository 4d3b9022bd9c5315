package cloudtasks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"
)

// Options are the settings of a Server. The zero value behaves like the real
// service, but with queues that are ready at once.
type Options struct {
	// Clock is the source of time, by default the wall clock.
	Clock Clock
	// Sequential makes attempts run one by one on the goroutine that the
	// clock calls its functions on, instead of each on its own. Handlers
	// must not wait for time to pass other than by advancing the clock
	// themselves. Meant for a VirtualClock.
	Sequential bool
	// Transport makes the attempts' requests; redirects are not followed.
	// By default an http.Transport of its own that ignores proxy variables
	// and adds no headers. See HandlerTransport for calls in process.
	Transport http.RoundTripper

	// QueueStartDelay is how long a new queue takes until it dispatches.
	QueueStartDelay time.Duration
	// CreateTaskNotFoundFor is how long a new queue, although it can be read,
	// answers NOT_FOUND to CreateTask.
	CreateTaskNotFoundFor time.Duration
	// TaskNameTTL is how long the name of a task that is gone stays taken, by
	// default one hour; negative: not at all.
	TaskNameTTL time.Duration
	// QueueNameTTL is the same for deleted queues, by default seven days.
	QueueNameTTL time.Duration
	// MaxQueues is the quota of queues per project and location, by default 1,000;
	// negative: none. Beyond it a queue is refused with RESOURCE_EXHAUSTED.
	MaxQueues int
	// GhostRecreate lets CreateQueue under a name that is still taken by a
	// deleted queue appear to succeed, as the reference of DeleteQueue warns:
	// the answer is a queue, but none is there.
	GhostRecreate bool
	// Burst computes max_burst_size from max_dispatches_per_second, by default
	// DefaultBurst. Values below 1 count as 1.
	Burst func(rate float64) int32

	// Fault is called with the method's name ("CreateTask") before each RPC
	// takes effect; an error, which should be a gRPC status, becomes the
	// answer and nothing is done.
	Fault func(method string) error
	// AnswerFault is the same after the RPC has taken effect: its error
	// replaces the answer, as when a connection breaks on the way back. It
	// is not called for an RPC that failed.
	AnswerFault func(method string) error

	// Rand makes the ids of tasks created without a name; by default seeded
	// at random.
	Rand *rand.Rand
	// Logger gets each attempt at debug level and tasks given up at warning
	// level; by default nothing is logged.
	Logger *slog.Logger
}

// Server is the emulator. Its methods are safe for concurrent use.
type Server struct {
	cloudtaskspb.UnimplementedCloudTasksServer
	o Options
	e *engine

	mu      sync.Mutex
	serving []*grpc.Server
	closed  bool
	wg      sync.WaitGroup
	own     *http.Transport // the default Transport, nil if one was given
}

// New returns a Server without queues. It must be closed.
func New(o Options) *Server {
	s := &Server{}
	if o.Clock == nil {
		o.Clock = wallClock{}
	}
	if o.Transport == nil {
		s.own = &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second}
		o.Transport = s.own
	}
	if o.TaskNameTTL == 0 {
		o.TaskNameTTL = time.Hour
	}
	if o.QueueNameTTL == 0 {
		o.QueueNameTTL = 7 * 24 * time.Hour
	}
	if o.MaxQueues == 0 {
		o.MaxQueues = 1000
	}
	if o.Burst == nil {
		o.Burst = DefaultBurst
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s.o = o
	s.e = &engine{
		clock: o.Clock, transport: o.Transport, log: o.Logger, nameTTL: o.TaskNameTTL, sequential: o.Sequential,
		queues: make(map[string]*queue), graves: make(map[string]time.Time),
	}
	s.e.ctx, s.e.cancel = context.WithCancel(context.Background())
	return s
}

// Register adds the service to gs, which the caller serves and stops.
func (s *Server) Register(gs *grpc.Server) { cloudtaskspb.RegisterCloudTasksServer(gs, s) }

// Start serves on addr, "" meaning a free port of 127.0.0.1, until Close, and
// returns the address that clients are to dial.
func (s *Server) Start(addr string) (string, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("cloud tasks emulator: %w", err)
	}
	gs := grpc.NewServer()
	s.Register(gs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", errors.Join(errors.New("cloud tasks emulator: start after close"), l.Close())
	}
	s.serving = append(s.serving, gs)
	s.wg.Go(func() {
		if err := gs.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.o.Logger.Error("cloud tasks emulator stopped serving", "error", err)
		}
	})
	return l.Addr().String(), nil
}

// Close stops serving, cancels the attempts in flight and waits until nothing
// of the emulator runs any more. It may be called more than once, but not from
// within a sequential attempt.
func (s *Server) Close() {
	s.mu.Lock()
	serving := s.serving
	s.serving, s.closed = nil, true
	s.mu.Unlock()
	for _, gs := range serving {
		gs.Stop()
	}
	s.wg.Wait()
	s.e.close()
	if s.own != nil {
		s.own.CloseIdleConnections()
	}
}

// Stats are counts of one queue since it was created.
type Stats struct {
	Depth      int   // tasks that live, waiting or in flight
	InFlight   int   // attempts whose outcome is not known yet
	Dispatched int64 // attempts begun, RunTask included
	Succeeded  int64 // tasks that a 2xx ended
	GivenUp    int64 // tasks whose retries were exhausted
	Expired    int64 // tasks that grew 31 days old
}

// Stats returns the counts of the queue of that full name; ok is false if
// there is none.
func (s *Server) Stats(queue string) (st Stats, ok bool) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	q := s.e.queues[queue]
	if q == nil {
		return Stats{}, false
	}
	q.expire(s.e.clock.Now(), s.e.nameTTL)
	st = q.stats
	st.Depth, st.InFlight = len(q.tasks), q.inFlight
	return st, true
}

// answer wraps an RPC with the fault hooks.
func answer[T any](s *Server, method string, do func() (T, error)) (T, error) {
	var none T
	if s.o.Fault != nil {
		if err := s.o.Fault(method); err != nil {
			return none, err
		}
	}
	v, err := do()
	if err != nil {
		return none, err
	}
	if s.o.AnswerFault != nil {
		if err := s.o.AnswerFault(method); err != nil {
			return none, err
		}
	}
	return v, nil
}
