package localcloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"time"

	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // a client that compresses is understood
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxMessage is no limit at all: a commit may have 100 MB, and it is the emulator's
// business to refuse more.
const maxMessage = math.MaxInt32

// proxyHeader is set on every answer that came through a SpannerProxy, so that a
// second one is not put before the first.
const proxyHeader = "sealpost-spanner-proxy"

// soundSince is the first emulator version that is trusted with the current
// client's multiplexed sessions. Emulators before 1.5.38 keep one transaction per
// session. Those from 1.5.38 on know multiplexed sessions, but up to 1.5.50 lose
// writes without an error: mutations of a transaction with an explicit begin, and
// transactions whose ids collide between databases (issues 264 and 282 of
// GoogleCloudPlatform/cloud-spanner-emulator). Ordinary sessions are right in all
// of them.
const soundSince = "1.5.51"

// ProxyMode says whether a [SpannerProxy] stands before a Spanner emulator.
type ProxyMode int

const (
	// ProxyAuto puts a proxy before every emulator whose version is unknown or not
	// known to handle multiplexed sessions. It never puts one before a proxy.
	ProxyAuto ProxyMode = iota
	// ProxyOn puts a proxy before every emulator (never before a proxy).
	ProxyOn
	// ProxyOff puts none.
	ProxyOff
)

func (m ProxyMode) wanted(version string) bool {
	switch m {
	case ProxyOn:
		return true
	case ProxyOff:
		return false
	default:
		return versionBefore(version, soundSince)
	}
}

// SpannerProxy is a gRPC server that stands before a Spanner emulator and makes
// the current Spanner clients work with it. Those clients run all their
// transactions on one multiplexed session; an old emulator takes it for an ordinary
// session, where a new transaction ends the one before, so that concurrent
// transactions fail with "Invalid transaction ID" or "Transaction not found".
//
// The proxy gives every transaction on a multiplexed session an ordinary emulator
// session of its own for as long as it lasts. All else (admin services, operations,
// sessions that were not asked for as multiplexed) passes through byte for byte.
//
// What Spanner promises and the proxy therefore keeps: a commit repeated under the
// same transaction id gets the first answer; a rollback of an unknown transaction
// is OK; a transaction that did nothing for 10 s may be aborted, and is when
// somebody else wants to write, as an emulator runs one read-write transaction per
// database at a time. Transactions of a client that is gone are rolled back at once.
type SpannerProxy struct {
	addr    string
	server  *grpc.Server
	backend *grpc.ClientConn
	leases  *leases
	served  chan struct{}
	once    sync.Once
}

// StartSpannerProxy serves on a free port of 127.0.0.1 before the emulator at
// backend (host:port). It returns at once, without a call to the emulator.
func StartSpannerProxy(backend string) (*SpannerProxy, error) {
	conn, err := dial(backend, grpc.WithInitialWindowSize(windowSize), grpc.WithInitialConnWindowSize(windowSize), grpc.WithDisableRetry())
	if err != nil {
		return nil, fmt.Errorf("spanner proxy before %s: %w", backend, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("spanner proxy before %s: %w", backend, err), conn.Close())
	}
	p := &SpannerProxy{
		addr:    listener.Addr().String(),
		backend: conn,
		leases:  newLeases(emulatorSessions{spannerpb.NewSpannerClient(conn)}, time.Now),
		served:  make(chan struct{}),
	}
	p.server = grpc.NewServer(
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.UnknownServiceHandler(p.handle),
		grpc.StatsHandler(connWatcher{p.leases}),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.InitialWindowSize(windowSize), grpc.InitialConnWindowSize(windowSize),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	go func() {
		defer close(p.served)
		_ = p.server.Serve(listener)
	}()
	return p, nil
}

// windowSize spares large messages the wait for gRPC's window to grow.
const windowSize = 1 << 20

// Addr is host:port for SPANNER_EMULATOR_HOST.
func (p *SpannerProxy) Addr() string { return p.addr }

// ProxyStats counts what a SpannerProxy holds at one moment.
type ProxyStats struct {
	ReadWrite int // sessions in read-write transactions
	ReadOnly  int // sessions in read-only and partitioned transactions, which nothing ends
	Idle      int // sessions that wait for a transaction
	Clients   int // clients that are connected and have begun a transaction
}

// Stats counts what the proxy holds now.
func (p *SpannerProxy) Stats() ProxyStats { return p.leases.stats() }

// Close ends all connections and calls. The emulator is left as it is. Idempotent.
func (p *SpannerProxy) Close() {
	p.once.Do(func() {
		p.server.Stop()
		<-p.served
		p.leases.close()
		_ = p.backend.Close()
	})
}

// frame is one gRPC message that nobody has looked into.
type frame struct{ bytes []byte }

// rawCodec moves messages as they are. It calls itself proto, since that is what
// both sides speak through it.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("spanner proxy: cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(f.bytes)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("spanner proxy: cannot receive a %T", v)
	}
	f.bytes = data.Materialize()
	return nil
}

// handle is every call: to the handler of its method where the session matters,
// else straight through.
func (p *SpannerProxy) handle(_ any, client grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(client)
	if !ok {
		return status.Error(codes.Internal, "spanner proxy: call without a method")
	}
	if err := client.SetHeader(metadata.Pairs(proxyHeader, "1")); err != nil {
		return err
	}
	if handler, ok := sessionMethods[method]; ok {
		return p.handleSessionCall(method, handler, client)
	}
	return p.passThrough(method, client)
}

// outgoing is the context of the backend's call: the client's deadline,
// cancellation and metadata, without what belongs to the client's own connection.
func outgoing(client grpc.ServerStream) context.Context {
	md, _ := metadata.FromIncomingContext(client.Context())
	md = md.Copy()
	for _, key := range []string{":authority", "content-type", "user-agent", "grpc-accept-encoding", "te"} {
		delete(md, key)
	}
	return metadata.NewOutgoingContext(client.Context(), md)
}

// everyStream makes a call of any kind: on the wire a unary call is a stream with
// one message each way.
var everyStream = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

func (p *SpannerProxy) open(ctx context.Context, method string) (grpc.ClientStream, error) {
	return p.backend.NewStream(ctx, everyStream, method, grpc.ForceCodecV2(rawCodec{}))
}

// passThrough relays a call of any kind in both directions.
func (p *SpannerProxy) passThrough(method string, client grpc.ServerStream) error {
	ctx, cancel := context.WithCancel(outgoing(client))
	defer cancel()
	backend, err := p.open(ctx, method)
	if err != nil {
		return err
	}
	var first []byte
	sent := make(chan error, 1)
	go func() { // ends with the call: both contexts end with this function
		for {
			var f frame
			err := client.RecvMsg(&f)
			if errors.Is(err, io.EOF) {
				sent <- backend.CloseSend()
				return
			}
			if err == nil {
				if first == nil {
					first = f.bytes
				}
				err = backend.SendMsg(&f)
			}
			if err != nil {
				// The backend's own error, if any, comes from its RecvMsg.
				if !errors.Is(err, io.EOF) {
					cancel()
				}
				sent <- err
				return
			}
		}
	}()
	if err := relayAnswers(client, backend, nil); err != nil {
		return err
	}
	if method == databasepb.DatabaseAdmin_DropDatabase_FullMethodName {
		if <-sent == nil {
			p.databaseDropped(first)
		}
	}
	return nil
}

// databaseDropped forgets sessions that died with their database; a new database
// may have the same name.
func (p *SpannerProxy) databaseDropped(request []byte) {
	var drop databasepb.DropDatabaseRequest
	if proto.Unmarshal(request, &drop) == nil {
		p.leases.forgetDatabase(drop.GetDatabase())
	}
}

// relayAnswers sends the backend's header, messages and trailer on to the client
// and returns the call's outcome. onMessage sees each message before the client does.
func relayAnswers(client grpc.ServerStream, backend grpc.ClientStream, onMessage func([]byte)) error {
	headed := false
	for {
		var f frame
		err := backend.RecvMsg(&f)
		if !headed {
			headed = true
			if header, headerErr := backend.Header(); headerErr == nil {
				delete(header, "content-type")
				if setErr := client.SetHeader(header); setErr != nil {
					return setErr
				}
			}
		}
		if err != nil {
			client.SetTrailer(backend.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if onMessage != nil {
			onMessage(f.bytes)
		}
		if err := client.SendMsg(&f); err != nil {
			return err
		}
	}
}

// connWatcher tells the leases which connection a call came by and when a
// connection has gone.
type connWatcher struct{ leases *leases }

type connKey struct{}

func (w connWatcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connKey{}, new(connection))
}

func (w connWatcher) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ended := s.(*stats.ConnEnd); ended {
		w.leases.connectionEnded(connectionOf(ctx))
	}
}

func (w connWatcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (w connWatcher) HandleRPC(context.Context, stats.RPCStats) {}

func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connKey{}).(*connection)
	return c
}
