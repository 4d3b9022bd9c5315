package secretmanager

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/grpc"
)

// Options are the settings of a Server. The zero value is ready for use.
type Options struct {
	// Now is the source of time, by default time.Now.
	Now func() time.Time
	// Lag is for how long a new secret is missing from ListSecrets, and a new
	// version from ListSecretVersions and `latest`, as the real service's
	// eventual consistency may have it. By default nothing is.
	Lag time.Duration
	// Fault is called with the method's name ("AccessSecretVersion") before
	// each RPC takes effect; an error, which should be a gRPC status, becomes
	// the answer and nothing is done.
	Fault func(method string) error
	// AnswerFault is the same after the RPC has taken effect: its error
	// replaces the answer, as when a connection breaks on the way back. It is
	// not called for an RPC that failed.
	AnswerFault func(method string) error
	// Logger hears of a listener that broke; by default nobody does.
	Logger *slog.Logger
}

// Server is the emulator. Its methods are safe for concurrent use and may be
// called directly, without a network.
type Server struct {
	secretmanagerpb.UnimplementedSecretManagerServiceServer
	o Options

	mu      sync.Mutex
	secrets map[string]*secret // by full name
	seq     uint64             // orders secrets by creation, and makes etags

	life    sync.Mutex
	serving []*grpc.Server
	closed  bool
	wg      sync.WaitGroup
}

// New returns an empty Server. It must be closed if it was started.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, secrets: make(map[string]*secret)}
}

// Register adds the service to gs, which the caller serves and stops.
func (s *Server) Register(gs *grpc.Server) {
	secretmanagerpb.RegisterSecretManagerServiceServer(gs, s)
}

// Start serves on addr, "" meaning a free port of 127.0.0.1, until Close, and
// returns the address that clients are to dial.
func (s *Server) Start(addr string) (string, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("secret manager emulator: %w", err)
	}
	gs := grpc.NewServer()
	s.Register(gs)
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return "", errors.Join(errors.New("secret manager emulator: start after close"), l.Close())
	}
	s.serving = append(s.serving, gs)
	s.wg.Go(func() {
		if err := gs.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.o.Logger.Error("secret manager emulator stopped serving", "error", err)
		}
	})
	return l.Addr().String(), nil
}

// Close stops serving and waits until nothing of the emulator runs any more.
// It may be called more than once.
func (s *Server) Close() {
	s.life.Lock()
	serving := s.serving
	s.serving, s.closed = nil, true
	s.life.Unlock()
	for _, gs := range serving {
		gs.Stop()
	}
	s.wg.Wait()
}

// answer wraps an RPC with the fault hooks and runs it with the server locked.
func answer[T any](s *Server, method string, do func(now time.Time) (T, error)) (T, error) {
	var none T
	if s.o.Fault != nil {
		if err := s.o.Fault(method); err != nil {
			return none, err
		}
	}
	v, err := locked(s, do)
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

func locked[T any](s *Server, do func(now time.Time) (T, error)) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return do(s.o.Now())
}
