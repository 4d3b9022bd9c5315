package localcloud

import (
	"container/list"
	"context"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// idleLimit is how long a read-write transaction may do nothing before another
	// writer may have it aborted: Spanner's own figure ("Idle transactions" in the
	// reference of TransactionOptions).
	idleLimit = 10 * time.Second
	// maxReadOnly bounds the sessions in read-only transactions of all databases.
	// Nothing ends such a transaction; the one that was used longest ago gives way.
	maxReadOnly = 1024
	// sessionAge is how long an idle session is kept. Emulators drop a session that
	// was not used for an hour.
	sessionAge = 30 * time.Minute
	// maxEnded bounds what is remembered of ended transactions.
	maxEnded = 4096
	// tidyTimeout bounds the proxy's own calls to the emulator.
	tidyTimeout = 10 * time.Second
)

// sessionMaker is the emulator as the leases need it.
type sessionMaker interface {
	create(ctx context.Context, database string) (session string, err error)
	// rollback ends the transaction id, or, where id is nil, whatever transaction the
	// session may have.
	rollback(ctx context.Context, session string, id []byte) error
	delete(ctx context.Context, session string) error
}

// emulatorSessions is the sessionMaker that calls the emulator.
type emulatorSessions struct{ client spannerpb.SpannerClient }

func (e emulatorSessions) create(ctx context.Context, database string) (string, error) {
	session, err := e.client.CreateSession(ctx, &spannerpb.CreateSessionRequest{Database: database})
	return session.GetName(), err
}

func (e emulatorSessions) rollback(ctx context.Context, session string, id []byte) error {
	if id == nil {
		// A session has one transaction: a new one takes the place of the one whose id
		// never reached us. Deleting the session would leave that one's lock behind.
		t, err := e.client.BeginTransaction(ctx, &spannerpb.BeginTransactionRequest{Session: session,
			Options: &spannerpb.TransactionOptions{Mode: &spannerpb.TransactionOptions_ReadWrite_{ReadWrite: &spannerpb.TransactionOptions_ReadWrite{}}}})
		if err != nil {
			return err
		}
		id = t.GetId()
	}
	_, err := e.client.Rollback(ctx, &spannerpb.RollbackRequest{Session: session, TransactionId: id})
	return err
}

func (e emulatorSessions) delete(ctx context.Context, session string) error {
	_, err := e.client.DeleteSession(ctx, &spannerpb.DeleteSessionRequest{Name: session})
	return err
}

// leases keeps which emulator session serves which transaction. Safe for
// concurrent use.
type leases struct {
	emulator sessionMaker
	now      func() time.Time

	// tidying are rollbacks under way; ctx ends them at close.
	tidying sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc

	mu       sync.Mutex
	closed   bool
	mux      map[string]bool          // sessions that clients believe to be multiplexed
	idle     map[string][]idleSession // by database, used longest ago first
	open     map[string]*lease        // by database and transaction id
	readOnly *list.List               // open leases of read-only transactions, used longest ago first
	ended    map[string]ended         // by the same key as open
	endedSeq []string                 // keys of ended, oldest first
	owners   map[string]*owner        // clients by name
}

type idleSession struct {
	name string
	used time.Time
}

// lease is a session in use: by a call, and between calls by a transaction.
type lease struct {
	session  string
	database string
	id       []byte // nil until the transaction has begun
	readOnly bool
	owner    *owner
	element  *list.Element // in leases.readOnly
	calls    int           // under way
	used     time.Time
	// over: the transaction has ended, but the session is not free before the last
	// call has: a client that stops reading in the middle cancels that call and
	// commits without waiting for it.
	over  bool
	dirty bool // needs a rollback before it is used again
}

// ended is what is left of a transaction: the answer to its commit, or nil where it
// was aborted.
type ended struct{ committed []byte }

// owner is a client: all the connections of one client library instance.
type owner struct {
	name        string // "" where the client does not tell; then it is one connection
	connections int
	leases      map[*lease]bool
}

// connection is one TCP connection to the proxy. Its fields belong to leases.mu.
type connection struct {
	owners []*owner // a process's clients may share connections
	ended  bool
}

func newLeases(emulator sessionMaker, now func() time.Time) *leases {
	l := &leases{
		emulator: emulator, now: now,
		mux: map[string]bool{}, idle: map[string][]idleSession{}, open: map[string]*lease{},
		readOnly: list.New(), ended: map[string]ended{}, owners: map[string]*owner{},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

func (l *leases) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.tidying.Wait()
}

func leaseKey(database string, id []byte) string { return database + "\x00" + string(id) }

func (l *leases) rememberMultiplexed(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mux[session] = true
}

func (l *leases) forgetMultiplexed(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mux, session)
}

func (l *leases) multiplexed(session string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mux[session]
}

// acquire finds the session for a call: the transaction's own, or a fresh one where
// the call begins a transaction or needs none. Instead of a lease it may return the
// call's answer, or its error, where the transaction has ended. Every lease must be
// given to settle when the call has ended.
func (l *leases) acquire(ctx context.Context, u use, client string) (*lease, []byte, error) {
	database := databaseOf(*u.session)
	if u.id != nil {
		return l.join(database, u)
	}
	reap := u.begin.GetReadOnly() == nil && (u.begin != nil || u.writes)
	session, err := l.take(ctx, database, reap)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := &lease{session: session, database: database, calls: 1, used: l.now(),
		readOnly: u.begin.GetReadOnly() != nil || u.begin.GetPartitionedDml() != nil}
	lease.owner = l.ownerOf(connectionOf(ctx), client)
	if lease.owner != nil {
		lease.owner.leases[lease] = true
	}
	return lease, nil, nil
}

// join is a further call of a transaction.
func (l *leases) join(database string, u use) (*lease, []byte, error) {
	key := leaseKey(database, u.id)
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, ok := l.open[key]
	if ok {
		lease.calls++
		lease.used = l.now()
		if lease.element != nil {
			l.readOnly.MoveToBack(lease.element)
		}
		return lease, nil, nil
	}
	end, known := l.ended[key]
	switch {
	case u.ends == endsByRollback:
		// OK also where "the transaction is not found" (reference of Rollback).
		return nil, []byte{}, nil
	case u.ends == endsByCommit && end.committed != nil:
		return nil, end.committed, nil
	case known:
		return nil, nil, status.Error(codes.Aborted, "spanner proxy: the transaction was rolled back: aborted, idle for too long, or its client was gone")
	default:
		return nil, nil, status.Error(codes.NotFound, "spanner proxy: transaction not found: never begun here, or a read-only one not used for long")
	}
}

// take returns an idle session, or makes one. With reap, it first has the
// transactions of the database rolled back that did nothing for too long.
func (l *leases) take(ctx context.Context, database string, reap bool) (string, error) {
	l.mu.Lock()
	now := l.now()
	if reap {
		for _, lease := range l.open {
			if lease.database == database && !lease.readOnly && lease.calls == 0 && now.Sub(lease.used) > idleLimit {
				l.abandon(lease)
			}
		}
	}
	sessions := l.idle[database]
	for len(sessions) > 0 && now.Sub(sessions[0].used) > sessionAge {
		sessions = sessions[1:]
	}
	if n := len(sessions); n > 0 {
		name := sessions[n-1].name
		l.idle[database] = sessions[:n-1]
		l.mu.Unlock()
		return name, nil
	}
	delete(l.idle, database)
	l.mu.Unlock()
	return l.emulator.create(ctx, database)
}

// ownerOf finds the client that a call came from. Called with mu held.
func (l *leases) ownerOf(conn *connection, name string) *owner {
	if conn == nil || conn.ended {
		return nil
	}
	for _, o := range conn.owners {
		if o.name == name {
			return o
		}
	}
	o := l.owners[name]
	if o == nil || name == "" {
		o = &owner{name: name, leases: map[*lease]bool{}}
		if name != "" {
			l.owners[name] = o
		}
	}
	o.connections++
	conn.owners = append(conn.owners, o)
	return o
}

// connectionEnded rolls back what a client left behind when the last of its
// connections has gone: a killed process would otherwise keep its database locked.
func (l *leases) connectionEnded(conn *connection) {
	if conn == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	conn.ended = true
	for _, o := range conn.owners {
		if o.connections--; o.connections > 0 {
			continue
		}
		if o.name != "" {
			delete(l.owners, o.name)
		}
		for lease := range o.leases {
			l.abandon(lease)
		}
	}
	conn.owners = nil
}

// begun records the id of the transaction that a call has begun. It runs before the
// client learns the id and could use it.
func (l *leases) begun(lease *lease, id []byte) {
	if id == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lease.id = id
	if lease.over { // its client has gone meanwhile
		return
	}
	l.open[leaseKey(lease.database, id)] = lease
	if !lease.readOnly {
		return
	}
	lease.element = l.readOnly.PushBack(lease)
	for e := l.readOnly.Front(); e != nil && l.readOnly.Len() > maxReadOnly; {
		next := e.Next()
		if old := leaseOf(e); old.calls == 0 {
			l.abandon(old)
		}
		e = next
	}
}

func leaseOf(e *list.Element) *lease {
	lease, _ := e.Value.(*lease)
	return lease
}

// settle ends a call: the session stays with a transaction that goes on, else it
// becomes idle again, after a rollback where something may be left in it.
func (l *leases) settle(lease *lease, u use, answer []byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease.calls--
	lease.used = l.now()
	aborted := status.Code(err) == codes.Aborted
	switch {
	case sessionGone(err):
		l.remove(lease)
		return
	case lease.id == nil:
		// One call only, or a begin that failed. What a call that broke off did to the
		// session is unknown; an abort leaves nothing.
		l.remove(lease)
		lease.over, lease.dirty = true, err != nil && !aborted && (u.begin != nil || u.writes) && !lease.readOnly
	case lease.over:
	case u.ends == endsByCommit && err == nil:
		l.finish(lease, ended{committed: answer})
	case u.ends == endsByRollback:
		l.finish(lease, ended{})
		lease.dirty = err != nil
	case aborted && !lease.readOnly:
		l.finish(lease, ended{})
	}
	l.release(lease)
}

// sessionGone tells the emulator's answer for a session that it no longer has.
func sessionGone(err error) bool {
	return status.Code(err) == codes.NotFound && strings.Contains(status.Convert(err).Message(), "Session not found")
}

// abandon ends a transaction that its client will not end, now or when its last
// call has ended. Called with mu held.
func (l *leases) abandon(lease *lease) {
	lease.over, lease.dirty = true, !lease.readOnly
	if lease.id != nil {
		l.finish(lease, ended{})
	}
	l.release(lease)
}

// finish remembers how a transaction ended and takes its session from it. Called
// with mu held.
func (l *leases) finish(lease *lease, how ended) {
	lease.over = true
	l.remove(lease)
	if lease.readOnly {
		return
	}
	key := leaseKey(lease.database, lease.id)
	if _, ok := l.ended[key]; !ok {
		l.endedSeq = append(l.endedSeq, key)
	}
	l.ended[key] = how
	if len(l.endedSeq) > maxEnded {
		delete(l.ended, l.endedSeq[0])
		l.endedSeq = l.endedSeq[1:]
	}
}

// release gives the session back when its transaction and its last call are over.
// Called with mu held.
func (l *leases) release(lease *lease) {
	switch {
	case !lease.over || lease.calls > 0:
	case lease.dirty:
		l.tidy(lease)
	default:
		l.rest(lease)
	}
}

// remove takes the lease out of all lists but idle. Called with mu held.
func (l *leases) remove(lease *lease) {
	if lease.id != nil {
		delete(l.open, leaseKey(lease.database, lease.id))
	}
	if lease.element != nil {
		l.readOnly.Remove(lease.element)
		lease.element = nil
	}
	if lease.owner != nil {
		delete(lease.owner.leases, lease)
	}
}

// rest makes the session idle. Called with mu held.
func (l *leases) rest(lease *lease) {
	l.idle[lease.database] = append(l.idle[lease.database], idleSession{lease.session, l.now()})
}

// tidy rolls back in the background, then makes the session idle; a session that
// cannot be cleaned is not used again. Called with mu held.
func (l *leases) tidy(lease *lease) {
	if l.closed {
		return
	}
	l.tidying.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, tidyTimeout)
		defer cancel()
		if err := l.emulator.rollback(ctx, lease.session, lease.id); err != nil {
			_ = l.emulator.delete(ctx, lease.session)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.rest(lease)
	})
}

// forgetDatabase drops all sessions of a database that is gone.
func (l *leases) forgetDatabase(database string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.idle, database)
	for _, lease := range l.open {
		if lease.database == database {
			l.remove(lease)
		}
	}
	for session := range l.mux {
		if databaseOf(session) == database {
			delete(l.mux, session)
		}
	}
}

func (l *leases) stats() ProxyStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := ProxyStats{ReadOnly: l.readOnly.Len(), Clients: len(l.owners)}
	s.ReadWrite = len(l.open) - s.ReadOnly
	for _, sessions := range l.idle {
		s.Idle += len(sessions)
	}
	return s
}
