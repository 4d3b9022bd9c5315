package localcloud

import (
	"context"
	"strings"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// sessionMethod is what the proxy knows of one method of google.spanner.v1.Spanner.
type sessionMethod struct {
	request func() proto.Message
	// use reads the request: which transaction it is about. Nil for the methods that
	// make and end sessions.
	use func(proto.Message) use
	// began reads the id of a transaction that the call began out of its first answer.
	began func([]byte) []byte
}

// use is what a call does with a transaction.
type use struct {
	session *string // in the request, to be replaced
	id      []byte  // of the transaction it belongs to; nil: it begins one, or lasts for this call only
	begin   *spannerpb.TransactionOptions
	ends    ending
	writes  bool // a call without id may leave something behind when it breaks off
}

type ending int

const (
	endsNothing ending = iota
	endsByCommit
	endsByRollback
)

// sessionMethods are the calls whose session matters. Those not listed (GetSession,
// ListSessions, FetchCacheUpdate and whatever comes) pass through.
var sessionMethods = map[string]sessionMethod{
	spannerpb.Spanner_CreateSession_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.CreateSessionRequest) },
	},
	spannerpb.Spanner_DeleteSession_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.DeleteSessionRequest) },
	},
	spannerpb.Spanner_ExecuteSql_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.ExecuteSqlRequest) },
		use:     useOfSQL, began: idIn[*spannerpb.ResultSet],
	},
	spannerpb.Spanner_ExecuteStreamingSql_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.ExecuteSqlRequest) },
		use:     useOfSQL, began: idIn[*spannerpb.PartialResultSet],
	},
	spannerpb.Spanner_Read_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.ReadRequest) },
		use:     useOfRead, began: idIn[*spannerpb.ResultSet],
	},
	spannerpb.Spanner_StreamingRead_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.ReadRequest) },
		use:     useOfRead, began: idIn[*spannerpb.PartialResultSet],
	},
	spannerpb.Spanner_ExecuteBatchDml_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.ExecuteBatchDmlRequest) },
		use: func(m proto.Message) use {
			r := m.(*spannerpb.ExecuteBatchDmlRequest)
			return selected(&r.Session, r.Transaction)
		},
		began: idIn[*spannerpb.ExecuteBatchDmlResponse],
	},
	spannerpb.Spanner_PartitionQuery_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.PartitionQueryRequest) },
		use: func(m proto.Message) use {
			r := m.(*spannerpb.PartitionQueryRequest)
			return selected(&r.Session, r.Transaction)
		},
		began: idIn[*spannerpb.PartitionResponse],
	},
	spannerpb.Spanner_PartitionRead_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.PartitionReadRequest) },
		use: func(m proto.Message) use {
			r := m.(*spannerpb.PartitionReadRequest)
			return selected(&r.Session, r.Transaction)
		},
		began: idIn[*spannerpb.PartitionResponse],
	},
	spannerpb.Spanner_BeginTransaction_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.BeginTransactionRequest) },
		use: func(m proto.Message) use {
			r := m.(*spannerpb.BeginTransactionRequest)
			r.MutationKey = nil // for multiplexed sessions only
			return use{session: &r.Session, begin: ordinary(r.Options)}
		},
		began: idIn[*spannerpb.Transaction],
	},
	spannerpb.Spanner_Commit_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.CommitRequest) },
		use: func(m proto.Message) use {
			r := m.(*spannerpb.CommitRequest)
			r.PrecommitToken = nil // for multiplexed sessions only
			return use{session: &r.Session, id: r.GetTransactionId(), ends: endsByCommit, writes: true}
		},
	},
	spannerpb.Spanner_Rollback_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.RollbackRequest) },
		use: func(m proto.Message) use {
			r := m.(*spannerpb.RollbackRequest)
			return use{session: &r.Session, id: r.TransactionId, ends: endsByRollback}
		},
	},
	spannerpb.Spanner_BatchWrite_FullMethodName: {
		request: func() proto.Message { return new(spannerpb.BatchWriteRequest) },
		use: func(m proto.Message) use {
			return use{session: &m.(*spannerpb.BatchWriteRequest).Session, writes: true}
		},
	},
}

func useOfSQL(m proto.Message) use {
	r := m.(*spannerpb.ExecuteSqlRequest)
	return selected(&r.Session, r.Transaction)
}

func useOfRead(m proto.Message) use {
	r := m.(*spannerpb.ReadRequest)
	return selected(&r.Session, r.Transaction)
}

func selected(session *string, t *spannerpb.TransactionSelector) use {
	u := use{session: session, id: t.GetId()}
	if begin := t.GetBegin(); begin != nil {
		u.begin = ordinary(begin)
	}
	return u
}

// ordinary takes out of the options what an ordinary session refuses. It is never nil.
func ordinary(options *spannerpb.TransactionOptions) *spannerpb.TransactionOptions {
	if options == nil {
		return &spannerpb.TransactionOptions{}
	}
	if rw := options.GetReadWrite(); rw != nil {
		rw.MultiplexedSessionPreviousTransactionId = nil
	}
	return options
}

// idIn reads the transaction's id out of an answer; nil where it has none.
func idIn[M interface{ proto.Message }](answer []byte) []byte {
	var zero M
	m := zero.ProtoReflect().New().Interface()
	if proto.Unmarshal(answer, m) != nil {
		return nil
	}
	switch m := m.(type) {
	case *spannerpb.Transaction:
		return m.GetId()
	case *spannerpb.ResultSet:
		return m.GetMetadata().GetTransaction().GetId()
	case *spannerpb.PartialResultSet:
		return m.GetMetadata().GetTransaction().GetId()
	case *spannerpb.ExecuteBatchDmlResponse:
		if len(m.GetResultSets()) > 0 {
			return m.GetResultSets()[0].GetMetadata().GetTransaction().GetId()
		}
	case *spannerpb.PartitionResponse:
		return m.GetTransaction().GetId()
	}
	return nil
}

func databaseOf(session string) string {
	database, _, _ := strings.Cut(session, "/sessions/")
	return database
}

// handleSessionCall is a call with one request: read it, put it on the right
// session, relay the answers, settle what became of the session.
func (p *SpannerProxy) handleSessionCall(method string, m sessionMethod, client grpc.ServerStream) error {
	var f frame
	if err := client.RecvMsg(&f); err != nil {
		return err
	}
	request := m.request()
	if err := proto.Unmarshal(f.bytes, request); err != nil {
		return status.Errorf(codes.InvalidArgument, "spanner proxy: %s: %v", method, err)
	}
	if m.use == nil {
		return p.sessionLifecycle(method, request, &f, client)
	}
	u := m.use(request)
	if !p.leases.multiplexed(*u.session) {
		return p.relay(method, &f, client, nil)
	}
	lease, answer, err := p.leases.acquire(client.Context(), u, clientName(client.Context()))
	switch {
	case err != nil:
		return err
	case answer != nil:
		return client.SendMsg(&frame{answer})
	}
	*u.session = lease.session
	if f.bytes, err = proto.Marshal(request); err != nil {
		p.leases.settle(lease, u, nil, err)
		return status.Errorf(codes.Internal, "spanner proxy: %s: %v", method, err)
	}
	var last []byte
	err = p.relay(method, &f, client, func(message []byte) {
		if u.begin != nil && last == nil {
			p.leases.begun(lease, m.began(message))
		}
		last = message
	})
	p.leases.settle(lease, u, last, err)
	return err
}

// relay makes a call whose one request is f.
func (p *SpannerProxy) relay(method string, f *frame, client grpc.ServerStream, onMessage func([]byte)) error {
	ctx, cancel := context.WithCancel(outgoing(client))
	defer cancel()
	backend, err := p.open(ctx, method)
	if err != nil {
		return err
	}
	// An error of sending is told, in full, by receiving.
	if backend.SendMsg(f) == nil {
		_ = backend.CloseSend()
	}
	return relayAnswers(client, backend, onMessage)
}

// sessionLifecycle relays CreateSession and DeleteSession and remembers which
// sessions the client believes to be multiplexed.
func (p *SpannerProxy) sessionLifecycle(method string, request proto.Message, f *frame, client grpc.ServerStream) error {
	if r, ok := request.(*spannerpb.DeleteSessionRequest); ok {
		p.leases.forgetMultiplexed(r.GetName())
	}
	return p.relay(method, f, client, func(answer []byte) {
		r, ok := request.(*spannerpb.CreateSessionRequest)
		if !ok || !r.GetSession().GetMultiplexed() {
			return
		}
		var session spannerpb.Session
		if proto.Unmarshal(answer, &session) == nil {
			p.leases.rememberMultiplexed(session.GetName())
		}
	})
}

// clientName tells the clients of one process, and one client's several
// connections, from others: every call of a Google client carries
// x-goog-spanner-request-id = version.process.client.channel.request.attempt.
// It is "" for other clients; their connections count one by one.
func clientName(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	ids := md.Get("x-goog-spanner-request-id")
	if len(ids) == 0 {
		return ""
	}
	parts := strings.Split(ids[0], ".")
	if len(parts) < 4 {
		return ""
	}
	return strings.Join(parts[1:3], ".")
}
