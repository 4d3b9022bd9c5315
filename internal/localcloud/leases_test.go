package localcloud

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const testDatabase = "projects/p/instances/i/databases/d"

// fakeSessions is an emulator that records what is asked of it.
type fakeSessions struct {
	mu         sync.Mutex
	made       int
	rolledBack []string
	deleted    []string
	fail       error // of rollback
}

func (f *fakeSessions) create(_ context.Context, database string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	return fmt.Sprintf("%s/sessions/%d", database, f.made), nil
}

func (f *fakeSessions) rollback(_ context.Context, session string, id []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rolledBack = append(f.rolledBack, session[len(testDatabase+"/sessions/"):]+":"+string(id))
	return f.fail
}

func (f *fakeSessions) delete(_ context.Context, session string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleted = append(f.deleted, session)
	return nil
}

// leaseTest is a client of leases whose clock stands still.
type leaseTest struct {
	*leases
	t        *testing.T
	emulator *fakeSessions
	clock    time.Time
	next     int
}

func newLeaseTest(t *testing.T) *leaseTest {
	lt := &leaseTest{t: t, emulator: &fakeSessions{}, clock: time.Unix(1_700_000_000, 0)}
	lt.leases = newLeases(lt.emulator, func() time.Time { return lt.clock })
	t.Cleanup(lt.close)
	return lt
}

func onConnection(c *connection) context.Context {
	return context.WithValue(context.Background(), connKey{}, c)
}

var (
	readWrite = &spannerpb.TransactionOptions{Mode: &spannerpb.TransactionOptions_ReadWrite_{ReadWrite: &spannerpb.TransactionOptions_ReadWrite{}}}
	readOnly  = &spannerpb.TransactionOptions{Mode: &spannerpb.TransactionOptions_ReadOnly_{ReadOnly: &spannerpb.TransactionOptions_ReadOnly{}}}
)

func (lt *leaseTest) use(u use) use {
	session := testDatabase + "/sessions/mux"
	u.session = &session
	return u
}

// begin begins a transaction on ctx's connection and returns its id.
func (lt *leaseTest) begin(ctx context.Context, options *spannerpb.TransactionOptions, client string) []byte {
	lt.t.Helper()
	u := lt.use(use{begin: options})
	lease, _, err := lt.acquire(ctx, u, client)
	if err != nil {
		lt.t.Fatal(err)
	}
	lt.next++
	id := fmt.Appendf(nil, "tx%d", lt.next)
	lt.begun(lease, id)
	lt.settle(lease, u, id, nil)
	return id
}

// call is a further call of a transaction that ends with err.
func (lt *leaseTest) call(id []byte, ends ending, err error) ([]byte, error) {
	u := lt.use(use{id: id, ends: ends})
	lease, answer, acquireErr := lt.acquire(context.Background(), u, "")
	if lease == nil {
		return answer, acquireErr
	}
	lt.settle(lease, u, []byte("answer"), err)
	return []byte("answer"), err
}

func (lt *leaseTest) want(want ProxyStats, rolledBack ...string) {
	lt.t.Helper()
	lt.tidying.Wait()
	if got := lt.stats(); got != want {
		lt.t.Errorf("holds %+v, want %+v", got, want)
	}
	slices.Sort(lt.emulator.rolledBack)
	if !slices.Equal(lt.emulator.rolledBack, rolledBack) {
		lt.t.Errorf("rolled back %v, want %v", lt.emulator.rolledBack, rolledBack)
	}
}

func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	aborted := status.Error(codes.Aborted, "a")
	exists := status.Error(codes.AlreadyExists, "e")
	gone := status.Error(codes.NotFound, "Session not found: x")
	for name, c := range map[string]struct {
		ends       ending
		err        error
		want       ProxyStats
		rolledBack []string
	}{
		"commit":                   {endsByCommit, nil, ProxyStats{Idle: 1}, nil},
		"failed commit stays":      {endsByCommit, exists, ProxyStats{ReadWrite: 1}, nil},
		"aborted commit":           {endsByCommit, aborted, ProxyStats{Idle: 1}, nil},
		"cancelled commit stays":   {endsByCommit, status.Error(codes.Canceled, "c"), ProxyStats{ReadWrite: 1}, nil},
		"rollback":                 {endsByRollback, nil, ProxyStats{Idle: 1}, nil},
		"failed rollback":          {endsByRollback, exists, ProxyStats{Idle: 1}, []string{"1:tx1"}},
		"statement stays":          {endsNothing, nil, ProxyStats{ReadWrite: 1}, nil},
		"failed statement stays":   {endsNothing, exists, ProxyStats{ReadWrite: 1}, nil},
		"aborted statement":        {endsNothing, aborted, ProxyStats{Idle: 1}, nil},
		"session lost by emulator": {endsNothing, gone, ProxyStats{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lt := newLeaseTest(t)
			id := lt.begin(context.Background(), readWrite, "")
			_, _ = lt.call(id, c.ends, c.err)
			lt.want(c.want, c.rolledBack...)
		})
	}
}

func TestCommitIsRepeatable(t *testing.T) {
	t.Parallel()
	lt := newLeaseTest(t)
	id := lt.begin(context.Background(), readWrite, "")
	for range 2 {
		if answer, err := lt.call(id, endsByCommit, nil); err != nil || string(answer) != "answer" {
			t.Errorf("commit: %q, %v", answer, err)
		}
	}
	for _, id := range [][]byte{id, []byte("unknown")} {
		if answer, err := lt.call(id, endsByRollback, nil); err != nil || answer == nil {
			t.Errorf("rollback of %s: %v, %v, want an empty answer", id, answer, err)
		}
	}
	if _, err := lt.call(id, endsNothing, nil); status.Code(err) != codes.Aborted {
		t.Errorf("statement after the commit: %v", err)
	}
	if _, err := lt.call([]byte("unknown"), endsNothing, nil); status.Code(err) != codes.NotFound {
		t.Errorf("statement of an unknown transaction: %v", err)
	}
}

func TestSessionWaitsForItsLastCall(t *testing.T) {
	t.Parallel()
	lt := newLeaseTest(t)
	id := lt.begin(context.Background(), readWrite, "")
	u := lt.use(use{id: id})
	read, _, err := lt.acquire(context.Background(), u, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lt.call(id, endsByCommit, nil); err != nil {
		t.Fatal(err)
	}
	lt.want(ProxyStats{})
	lt.settle(read, u, nil, context.Canceled)
	lt.want(ProxyStats{Idle: 1})
}

func TestCallsWithoutATransaction(t *testing.T) {
	t.Parallel()
	failed := errors.New("broken off")
	aborted := status.Error(codes.Aborted, "a")
	for name, c := range map[string]struct {
		use        use
		err        error
		rolledBack []string
	}{
		"read":             {use{}, nil, nil},
		"failed read":      {use{}, failed, nil},
		"commit":           {use{ends: endsByCommit, writes: true}, nil, nil},
		"failed commit":    {use{ends: endsByCommit, writes: true}, failed, []string{"1:"}},
		"aborted commit":   {use{ends: endsByCommit, writes: true}, aborted, nil},
		"failed begin":     {use{begin: readWrite}, failed, []string{"1:"}},
		"aborted begin":    {use{begin: readWrite}, aborted, nil},
		"failed ro begin":  {use{begin: readOnly}, failed, nil},
		"failed batch":     {use{writes: true}, failed, []string{"1:"}},
		"begin without id": {use{begin: readWrite}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lt := newLeaseTest(t)
			u := lt.use(c.use)
			lease, _, err := lt.acquire(context.Background(), u, "")
			if err != nil {
				t.Fatal(err)
			}
			lt.settle(lease, u, nil, c.err)
			lt.want(ProxyStats{Idle: 1}, c.rolledBack...)
		})
	}
}

func TestIdleTransactionsGiveWay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		idle       time.Duration
		next       *spannerpb.TransactionOptions
		rolledBack []string
	}{
		{idleLimit, readWrite, nil},
		{idleLimit + 1, readWrite, []string{"1:tx1"}},
		{time.Hour, readOnly, nil}, // readers wait for nobody
	} {
		lt := newLeaseTest(t)
		id := lt.begin(context.Background(), readWrite, "")
		lt.clock = lt.clock.Add(c.idle)
		lt.begin(context.Background(), c.next, "")
		lt.tidying.Wait()
		if !slices.Equal(lt.emulator.rolledBack, c.rolledBack) {
			t.Errorf("after %v: rolled back %v, want %v", c.idle, lt.emulator.rolledBack, c.rolledBack)
		}
		if _, err := lt.call(id, endsByCommit, nil); (status.Code(err) == codes.Aborted) != (c.rolledBack != nil) {
			t.Errorf("after %v: its commit: %v", c.idle, err)
		}
	}
}

func TestClientGone(t *testing.T) {
	t.Parallel()
	lt := newLeaseTest(t)
	a1, a2, b, anonymous := new(connection), new(connection), new(connection), new(connection)
	lt.begin(onConnection(a1), readWrite, "a")
	lt.begin(onConnection(a2), readOnly, "a")
	lt.begin(onConnection(b), readWrite, "b")
	lt.begin(onConnection(anonymous), readWrite, "")
	lt.want(ProxyStats{ReadWrite: 3, ReadOnly: 1, Clients: 2})
	lt.connectionEnded(a1) // the client has another connection
	lt.want(ProxyStats{ReadWrite: 3, ReadOnly: 1, Clients: 2})
	lt.connectionEnded(a2)
	lt.want(ProxyStats{ReadWrite: 2, Idle: 2, Clients: 1}, "1:tx1")
	lt.connectionEnded(anonymous)
	lt.want(ProxyStats{ReadWrite: 1, Idle: 3, Clients: 1}, "1:tx1", "4:tx4")
	lt.connectionEnded(b)
	lt.want(ProxyStats{Idle: 4}, "1:tx1", "3:tx3", "4:tx4")
}

func TestClientGoneDuringACall(t *testing.T) {
	t.Parallel()
	lt := newLeaseTest(t)
	conn := new(connection)
	begin := lt.use(use{begin: readWrite})
	beginning, _, err := lt.acquire(onConnection(conn), begin, "c")
	if err != nil {
		t.Fatal(err)
	}
	id := lt.begin(onConnection(conn), readWrite, "c")
	read := lt.use(use{id: id})
	reading, _, err := lt.acquire(onConnection(conn), read, "c")
	if err != nil {
		t.Fatal(err)
	}
	lt.connectionEnded(conn)
	lt.want(ProxyStats{}) // both sessions are still in use
	lt.begun(beginning, []byte("late"))
	lt.settle(beginning, begin, nil, nil)
	lt.settle(reading, read, nil, context.Canceled)
	lt.want(ProxyStats{Idle: 2}, "1:late", "2:tx1")
}

func TestReadOnlyLeasesAreBounded(t *testing.T) {
	t.Parallel()
	lt := newLeaseTest(t)
	first := lt.begin(context.Background(), readOnly, "")
	second := lt.begin(context.Background(), readOnly, "")
	for range maxReadOnly - 2 {
		lt.begin(context.Background(), readOnly, "")
	}
	if _, err := lt.call(first, endsNothing, nil); err != nil { // used: no longer the oldest
		t.Fatal(err)
	}
	lt.begin(context.Background(), readOnly, "")
	lt.want(ProxyStats{ReadOnly: maxReadOnly, Idle: 1})
	if _, err := lt.call(first, endsNothing, nil); err != nil {
		t.Errorf("the one in use: %v", err)
	}
	if _, err := lt.call(second, endsNothing, nil); status.Code(err) != codes.NotFound {
		t.Errorf("the one used longest ago: %v, want NotFound", err)
	}
}

func TestOldSessionsAreNotUsed(t *testing.T) {
	t.Parallel()
	lt := newLeaseTest(t)
	for _, c := range []struct {
		age  time.Duration
		made int
	}{{0, 1}, {sessionAge, 1}, {sessionAge + 1, 2}} {
		lt.clock = lt.clock.Add(c.age)
		u := lt.use(use{})
		lease, _, err := lt.acquire(context.Background(), u, "")
		if err != nil {
			t.Fatal(err)
		}
		lt.settle(lease, u, nil, nil)
		if lt.emulator.made != c.made {
			t.Errorf("after %v: %d sessions made, want %d", c.age, lt.emulator.made, c.made)
		}
	}
}

func TestSessionThatCannotBeCleanedIsDeleted(t *testing.T) {
	t.Parallel()
	lt := newLeaseTest(t)
	lt.emulator.fail = errors.New("no")
	id := lt.begin(context.Background(), readWrite, "")
	_, _ = lt.call(id, endsByRollback, errors.New("no"))
	lt.want(ProxyStats{}, "1:tx1")
	if len(lt.emulator.deleted) != 1 {
		t.Errorf("deleted %v", lt.emulator.deleted)
	}
}

func TestForgetDatabase(t *testing.T) {
	t.Parallel()
	lt := newLeaseTest(t)
	lt.rememberMultiplexed(testDatabase + "/sessions/mux")
	lt.begin(context.Background(), readWrite, "")
	lt.begin(context.Background(), readOnly, "")
	_, _ = lt.call(lt.begin(context.Background(), readWrite, ""), endsByCommit, nil)
	lt.forgetDatabase(testDatabase)
	lt.want(ProxyStats{})
	if lt.multiplexed(testDatabase + "/sessions/mux") {
		t.Error("its multiplexed session is still known")
	}
}
