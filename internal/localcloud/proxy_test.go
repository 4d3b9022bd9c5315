package localcloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"testing"

	"cloud.google.com/go/spanner"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
)

// shared is one Spanner emulator, with its proxy, for all tests of this package.
var shared *Cloud

func TestMain(m *testing.M) {
	if os.Getenv(parentVariable) != "" {
		beParent()
		return
	}
	os.Exit(func() int {
		// A SIGTERM in vain: nothing to save.
		c, err := Start(context.Background(), Options{Parts: Spanner,
			EmulatorOptions: EmulatorOptions{Grace: -1, Proxy: ProxyOn, Getenv: withoutEmulators}})
		if err != nil {
			log.Print(err)
			return 1
		}
		defer c.Close()
		shared = c
		return m.Run()
	}())
}

// withoutEmulators is the environment without emulators that run already.
func withoutEmulators(name string) string {
	switch name {
	case SpannerVariable, PubSubVariable, CloudTasksVariable, SecretManagerVariable:
		return ""
	}
	return os.Getenv(name)
}

var countersDDL = []string{
	"CREATE TABLE Counters (Id INT64 NOT NULL, Value INT64 NOT NULL) PRIMARY KEY (Id)",
	"CREATE TABLE Items (Id INT64 NOT NULL, Text STRING(MAX), Data BYTES(MAX)) PRIMARY KEY (Id)",
}

// database is a fresh one.
func database(t testing.TB) string {
	t.Helper()
	name, err := shared.NewDatabase(t.Context(), countersDDL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.DropDatabase(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// client is the ordinary client, at addr.
func client(t testing.TB, database, addr string) *spanner.Client {
	t.Helper()
	conn, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := spanner.NewClient(t.Context(), database, option.WithGRPCConn(conn), option.WithoutAuthentication())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func parallel(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := f(i); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

func count(t testing.TB, c *spanner.Client, table string) int {
	t.Helper()
	n := 0
	err := c.Single().Read(t.Context(), table, spanner.AllKeys(), []string{"Id"}).Do(func(*spanner.Row) error { n++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func increment(ctx context.Context, tx *spanner.ReadWriteTransaction, id int64) error {
	row, err := tx.ReadRow(ctx, "Counters", spanner.Key{id}, []string{"Value"})
	if err != nil {
		return err
	}
	var n int64
	if err := row.Column(0, &n); err != nil {
		return err
	}
	return tx.BufferWrite([]*spanner.Mutation{spanner.Update("Counters", []string{"Id", "Value"}, []any{id, n + 1})})
}

func TestConcurrentApplies(t *testing.T) {
	t.Parallel()
	c := client(t, database(t), shared.Spanner().Addr())
	const workers, each = 16, 20
	parallel(t, workers, func(w int) error {
		for i := range each {
			m := spanner.Insert("Items", []string{"Id", "Text"}, []any{w*each + i, "x"})
			if _, err := c.Apply(t.Context(), []*spanner.Mutation{m}); err != nil {
				return err
			}
		}
		return nil
	})
	if n := count(t, c, "Items"); n != workers*each {
		t.Errorf("%d rows, want %d", n, workers*each)
	}
}

func TestConcurrentReadModifyWrites(t *testing.T) {
	t.Parallel()
	c := client(t, database(t), shared.Spanner().Addr())
	if _, err := c.Apply(t.Context(), []*spanner.Mutation{spanner.Insert("Counters", []string{"Id", "Value"}, []any{1, 0})}); err != nil {
		t.Fatal(err)
	}
	const workers, each = 12, 10
	parallel(t, workers, func(int) error {
		for range each {
			_, err := c.ReadWriteTransaction(t.Context(), func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
				return increment(ctx, tx, 1)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	row, err := c.Single().ReadRow(t.Context(), "Counters", spanner.Key{1}, []string{"Value"})
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	if err := row.Columns(&n); err != nil || n != workers*each {
		t.Errorf("counter is %d (%v), want %d", n, err, workers*each)
	}
}

func TestReadersBesideWriters(t *testing.T) {
	t.Parallel()
	c := client(t, database(t), shared.Spanner().Addr())
	// Two rows always change together; a snapshot never sees them differ.
	if _, err := c.Apply(t.Context(), []*spanner.Mutation{
		spanner.Insert("Counters", []string{"Id", "Value"}, []any{1, 0}),
		spanner.Insert("Counters", []string{"Id", "Value"}, []any{2, 0}),
	}); err != nil {
		t.Fatal(err)
	}
	parallel(t, 8, func(w int) error {
		for range 15 {
			if w%2 == 0 {
				if _, err := c.ReadWriteTransaction(t.Context(), func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
					return errors.Join(increment(ctx, tx, 1), increment(ctx, tx, 2))
				}); err != nil {
					return err
				}
				continue
			}
			if err := snapshotAgrees(t.Context(), c); err != nil {
				return err
			}
		}
		return nil
	})
}

func snapshotAgrees(ctx context.Context, c *spanner.Client) error {
	tx := c.ReadOnlyTransaction()
	defer tx.Close()
	var values [2]int64
	for i := range values {
		row, err := tx.ReadRow(ctx, "Counters", spanner.Key{i + 1}, []string{"Value"})
		if err != nil {
			return err
		}
		if err := row.Columns(&values[i]); err != nil {
			return err
		}
	}
	if values[0] != values[1] {
		return fmt.Errorf("snapshot saw %v", values)
	}
	return nil
}

func TestStatementsOfAllKinds(t *testing.T) {
	t.Parallel()
	c := client(t, database(t), shared.Spanner().Addr())
	ctx := t.Context()
	_, err := c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		if _, err := tx.BatchUpdate(ctx, []spanner.Statement{
			{SQL: "INSERT INTO Counters (Id, Value) VALUES (1, 1)"}, {SQL: "INSERT INTO Counters (Id, Value) VALUES (2, 2)"},
		}); err != nil {
			return err
		}
		_, err := tx.Update(ctx, spanner.Statement{SQL: "UPDATE Counters SET Value = Value + 1 WHERE Id = 1"})
		return err
	})
	if err != nil {
		t.Fatalf("DML: %v", err)
	}
	if n, err := c.PartitionedUpdate(ctx, spanner.Statement{SQL: "UPDATE Counters SET Value = 9 WHERE true"}); err != nil || n != 2 {
		t.Errorf("partitioned update: %d, %v", n, err)
	}
	// Explicit begin, and mutations in it.
	stmt, err := spanner.NewReadWriteStmtBasedTransaction(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := stmt.BufferWrite([]*spanner.Mutation{spanner.Delete("Counters", spanner.Key{2})}); err != nil {
		t.Fatal(err)
	}
	if _, err := stmt.Commit(ctx); err != nil {
		t.Errorf("commit: %v", err)
	}
	if n := count(t, c, "Counters"); n != 1 {
		t.Errorf("%d counters, want 1", n)
	}
	// A failing statement at the beginning, caught, must not spoil what follows.
	_, err = c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		if _, err := tx.Update(ctx, spanner.Statement{SQL: "UPDATE Nowhere SET A = 1 WHERE true"}); spanner.ErrCode(err) == codes.OK {
			return errors.New("no error for an unknown table")
		}
		return increment(ctx, tx, 1)
	})
	if err != nil {
		t.Errorf("after a failed first statement: %v", err)
	}
	// Constraint violations come through with their codes, and leave no lock behind.
	for range 3 {
		_, err := c.Apply(ctx, []*spanner.Mutation{spanner.Insert("Counters", []string{"Id", "Value"}, []any{1, 1})})
		if spanner.ErrCode(err) != codes.AlreadyExists {
			t.Errorf("duplicate insert: %v", err)
		}
	}
	if _, err := c.Apply(ctx, []*spanner.Mutation{spanner.Insert("Counters", []string{"Id", "Value"}, []any{3, 1})}, spanner.ApplyAtLeastOnce()); err != nil {
		t.Errorf("apply at least once: %v", err)
	}
}

func TestPartitionedReads(t *testing.T) {
	t.Parallel()
	c := client(t, database(t), shared.Spanner().Addr())
	ctx := t.Context()
	var ms []*spanner.Mutation
	for i := range 200 {
		ms = append(ms, spanner.Insert("Items", []string{"Id", "Text"}, []any{i, "x"}))
	}
	if _, err := c.Apply(ctx, ms); err != nil {
		t.Fatal(err)
	}
	batch, err := c.BatchReadOnlyTransaction(ctx, spanner.StrongRead())
	if err != nil {
		t.Fatal(err)
	}
	defer batch.Close()
	reads, err := batch.PartitionRead(ctx, "Items", spanner.AllKeys(), []string{"Id"}, spanner.PartitionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	queries, err := batch.PartitionQuery(ctx, spanner.Statement{SQL: "SELECT Id FROM Items"}, spanner.PartitionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, partitions := range map[string][]*spanner.Partition{"read": reads, "query": queries} {
		var mu sync.Mutex
		n := 0
		parallel(t, len(partitions), func(i int) error {
			return batch.Execute(ctx, partitions[i]).Do(func(*spanner.Row) error {
				mu.Lock()
				defer mu.Unlock()
				n++
				return nil
			})
		})
		if n != 200 {
			t.Errorf("partitioned %s: %d rows, want 200", name, n)
		}
	}
}

func TestLargeMessages(t *testing.T) {
	t.Parallel()
	c := client(t, database(t), shared.Spanner().Addr())
	data := make([]byte, 9<<20)
	var ms []*spanner.Mutation
	for i := range 4 {
		ms = append(ms, spanner.Insert("Items", []string{"Id", "Data"}, []any{i, data}))
	}
	if _, err := c.Apply(t.Context(), ms); err != nil {
		t.Fatal(err)
	}
	n := 0
	err := c.Single().Read(t.Context(), "Items", spanner.AllKeys(), []string{"Data"}).Do(func(r *spanner.Row) error {
		var b []byte
		if err := r.Columns(&b); err != nil {
			return err
		}
		n += len(b)
		return nil
	})
	if err != nil || n != 4*len(data) {
		t.Errorf("read %d bytes, %v; want %d", n, err, 4*len(data))
	}
}

// cutter is a TCP relay to the proxy whose connections a test can break, as the
// kernel does to those of a killed process.
type cutter struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func newCutter(t *testing.T, target string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l}
	t.Cleanup(func() { c.Close(); c.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, in, out)
			c.mu.Unlock()
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
		}
	}()
	return c
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

func TestClientGoneInATransaction(t *testing.T) {
	t.Parallel()
	db := database(t)
	survivor := client(t, db, shared.Spanner().Addr())
	if _, err := survivor.Apply(t.Context(), []*spanner.Mutation{spanner.Insert("Counters", []string{"Id", "Value"}, []any{1, 0})}); err != nil {
		t.Fatal(err)
	}
	relay := newCutter(t, shared.Spanner().Addr())
	victim := client(t, db, relay.Addr().String())
	tx, err := spanner.NewReadWriteStmtBasedTransaction(t.Context(), victim)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Update(t.Context(), spanner.Statement{SQL: "UPDATE Counters SET Value = 100 WHERE Id = 1"}); err != nil {
		t.Fatal(err)
	}
	relay.cut()
	if _, err := survivor.ReadWriteTransaction(t.Context(), func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		return increment(ctx, tx, 1)
	}); err != nil {
		t.Fatalf("after another client died in a transaction: %v", err)
	}
	// The victim, should it live and reconnect, is told to begin again.
	if _, err := tx.Commit(t.Context()); spanner.ErrCode(err) != codes.Aborted {
		t.Errorf("commit of the abandoned transaction: %v, want Aborted", err)
	}
	row, err := survivor.Single().ReadRow(t.Context(), "Counters", spanner.Key{1}, []string{"Value"})
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	if err := row.Columns(&n); err != nil || n != 1 {
		t.Errorf("counter is %d (%v), want 1", n, err)
	}
}

func TestCancelledCallsLeakNothing(t *testing.T) {
	t.Parallel()
	db := database(t)
	proxy, err := StartSpannerProxy(shared.Spanner().addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	c := client(t, db, proxy.Addr())
	for i := range 50 {
		if _, err := c.Apply(t.Context(), []*spanner.Mutation{spanner.Insert("Items", []string{"Id", "Text"}, []any{i, "x"})}); err != nil {
			t.Fatal(err)
		}
	}
	parallel(t, 30, func(i int) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		switch i % 3 {
		case 0: // a read given up in the middle, the transaction goes on
			_, err := c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
				iter := tx.Read(ctx, "Items", spanner.AllKeys(), []string{"Id"})
				defer iter.Stop()
				if _, err := iter.Next(); err != nil && !errors.Is(err, iterator.Done) {
					return err
				}
				return nil
			})
			return err
		case 1: // a transaction given up
			_, err := c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
				if _, err := tx.ReadRow(ctx, "Items", spanner.Key{1}, []string{"Id"}); err != nil {
					return err
				}
				cancel()
				return nil
			})
			if err == nil {
				return errors.New("committed with a cancelled context")
			}
			return nil
		default: // a single read given up
			iter := c.Single().Read(ctx, "Items", spanner.AllKeys(), []string{"Id"})
			defer iter.Stop()
			_, err := iter.Next()
			return err
		}
	})
	c.Close()
	// The last connection's end rolls back what was left; Close waits for it.
	proxy.Close()
	if s := proxy.Stats(); s.ReadWrite != 0 || s.ReadOnly != 0 || s.Clients != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

func BenchmarkSpanner(b *testing.B) {
	for _, via := range []struct{ name, addr string }{{"direct", shared.Spanner().addr}, {"proxy", shared.Spanner().Addr()}} {
		c := client(b, database(b), via.addr)
		written, err := c.Apply(b.Context(), []*spanner.Mutation{spanner.Insert("Counters", []string{"Id", "Value"}, []any{1, 0})})
		if err != nil {
			b.Fatal(err)
		}
		// At a fixed timestamp: strong reads get slower with every commit before them.
		b.Run(via.name+"/read", func(b *testing.B) {
			for b.Loop() {
				if _, err := c.Single().WithTimestampBound(spanner.ReadTimestamp(written)).ReadRow(b.Context(), "Counters", spanner.Key{1}, []string{"Value"}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(via.name+"/transaction", func(b *testing.B) {
			for b.Loop() {
				if _, err := c.ReadWriteTransaction(b.Context(), func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
					return increment(ctx, tx, 1)
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
