// Package localtest gives tests the local cloud: `localtest.Database(t, ddl)` is a
// fresh Spanner database, `localtest.PubSub(t)` a project of the test's own on a
// Pub/Sub emulator. It owns when emulators start and end in tests; it refuses to be
// imported by anything else, and to skip: a test that needs an emulator fails where
// there is none, and says what to install.
//
// An emulator starts when the first test of a binary asks for it and serves all
// tests of that binary. Tests are kept apart by database and by project, so that
// they can all be parallel. An emulator variable that is set already is heeded.
//
// Spanner is started per binary: it costs 0.2 s and 50 MB, and strong reads get
// slower with every commit that the emulator process has seen, over all databases,
// so that one shared by all packages would make the last ones crawl. Pub/Sub costs a
// JVM (seconds of CPU, hundreds of MB) and has no such flaw: scripts/test starts one
// for the whole run and sets PUBSUB_EMULATOR_HOST; a plain `go test` starts its own.
//
// The emulators die with the test binary, also when it panics, times out or is
// killed. [Main] in TestMain ends them in an orderly way, and is not obligatory.
package localtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/localcloud"
)

// Main runs the tests, ends the emulators that they started, and exits.
//
//	func TestMain(m *testing.M) { localtest.Main(m) }
func Main(m *testing.M) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "localtest:", err)
		code = 1
	}
	os.Exit(code)
}

// part is one service, started once.
type part struct {
	kind localcloud.Part
	once sync.Once

	mu    sync.Mutex
	cloud *localcloud.Cloud
	err   error
}

var (
	spanner       = &part{kind: localcloud.Spanner}
	pubsub        = &part{kind: localcloud.PubSub}
	cloudTasks    = &part{kind: localcloud.CloudTasks}
	secretManager = &part{kind: localcloud.SecretManager}
)

func stop() error {
	for _, p := range []*part{spanner, pubsub, cloudTasks, secretManager} {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.cloud == nil {
			continue
		}
		if err := p.cloud.Close(); err != nil {
			return err
		}
	}
	return nil
}

// get starts the part at the first call, and sets the process's emulator variables
// then, which the ordinary clients read.
func (p *part) get(t testing.TB) *localcloud.Cloud {
	t.Helper()
	p.once.Do(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cloud, p.err = localcloud.Start(context.Background(), localcloud.Options{
			Parts: p.kind,
			// On an emulator that others use too, an instance of this process's own: each
			// holds 100 databases.
			Instance: "test-" + random(),
			// Nothing to save; a second per package saved.
			EmulatorOptions: localcloud.EmulatorOptions{Grace: -1},
		})
		if p.err != nil {
			return
		}
		for name, value := range p.cloud.Env() {
			if p.err = os.Setenv(name, value); p.err != nil {
				return
			}
		}
	})
	if p.err != nil {
		t.Fatalf("localtest: %v", p.err)
	}
	return p.cloud
}

// Database is the full name of a fresh database with the schema ddl (a statement
// each), dropped when the test ends. Close clients of it before that (t.Cleanup
// after this call does). SPANNER_EMULATOR_HOST is set in this process afterwards.
func Database(t testing.TB, ddl []string) string {
	t.Helper()
	cloud := spanner.get(t)
	// Not t.Context(): it is cancelled before cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name, err := cloud.NewDatabase(ctx, ddl)
	if err != nil {
		t.Fatalf("localtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := cloud.DropDatabase(ctx, name); err != nil {
			t.Errorf("localtest: %v", err)
		}
	})
	return name
}

// Spanner is the Spanner emulator that [Database] uses, for tests of what is
// outside a database.
func Spanner(t testing.TB) *localcloud.Cloud {
	t.Helper()
	return spanner.get(t)
}

// PubSub is the id of a project that no other test uses. PUBSUB_EMULATOR_HOST is
// set in this process afterwards.
func PubSub(t testing.TB) (project string) {
	t.Helper()
	pubsub.get(t)
	return Project()
}

// CloudTasks is the id of a project that no other test uses, on a Cloud Tasks
// emulator on the wall clock. CLOUD_TASKS_EMULATOR_HOST is set in this process
// afterwards. (For a clock of your own, start cloudtasks.New yourself.)
func CloudTasks(t testing.TB) (project string) {
	t.Helper()
	cloudTasks.get(t)
	return Project()
}

// SecretManager is the id of a project that no other test uses.
// SECRET_MANAGER_EMULATOR_HOST is set in this process afterwards.
func SecretManager(t testing.TB) (project string) {
	t.Helper()
	secretManager.get(t)
	return Project()
}

// Project is a new project id, for tests that need one project in several services.
func Project() string { return "test-" + random() }

func random() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
