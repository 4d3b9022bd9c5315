package localcloud

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"

	databaseadmin "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	instanceadmin "cloud.google.com/go/spanner/admin/instance/apiv1"
	"cloud.google.com/go/spanner/admin/instance/apiv1/instancepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/pubsub/v2"

	tasksemulator "github.com/sealpost/sealpost/internal/localcloud/cloudtasks"
	secretsemulator "github.com/sealpost/sealpost/internal/localcloud/secretmanager"
)

// Part is a service of the local cloud; parts combine with |.
type Part uint

// The parts. Pub/Sub takes seconds to start (Java), the others a fraction of one.
const (
	Spanner Part = 1 << iota
	PubSub
	CloudTasks
	SecretManager

	AllParts = Spanner | PubSub | CloudTasks | SecretManager
)

// DefaultInstance is the Spanner instance of a Cloud whose options name none.
const DefaultInstance = "sealpost"

// Options are the choices in starting a Cloud. The zero value starts all four parts.
type Options struct {
	EmulatorOptions
	Parts    Part   // AllParts where zero
	Project  string // DefaultProject where empty
	Location string // DefaultLocation where empty
	// Instance is the Spanner instance for databases; DefaultInstance where empty.
	// Those who share an emulator take one each: an instance holds 100 databases.
	Instance string
	// Tasks and Secrets are passed on to our own emulators.
	Tasks   tasksemulator.Options
	Secrets secretsemulator.Options
}

// Cloud is a running local cloud.
type Cloud struct {
	opts    Options
	spanner *Emulator
	pubsub  *Emulator
	tasks   *tasksemulator.Server
	secrets *secretsemulator.Server
	env     map[string]string

	databases *databaseadmin.DatabaseAdminClient // nil without Spanner

	done    chan struct{} // closed when a child has ended
	failure error         // read after done

	mu      sync.Mutex
	closers []io.Closer
}

// Start brings the parts up, all at once, and returns when each has answered a
// call. Where one fails, the others are ended before Start returns its error. An
// emulator variable that is set already (see [EmulatorOptions].Getenv) is heeded for
// all four services.
//
// ctx bounds the start only; Close ends the cloud.
func Start(ctx context.Context, opts Options) (*Cloud, error) {
	if opts.Parts == 0 {
		opts.Parts = AllParts
	}
	if opts.Project == "" {
		opts.Project = DefaultProject
	}
	if opts.Location == "" {
		opts.Location = DefaultLocation
	}
	if opts.Instance == "" {
		opts.Instance = DefaultInstance
	}
	c := &Cloud{opts: opts, env: map[string]string{"GOOGLE_CLOUD_PROJECT": opts.Project}, done: make(chan struct{})}
	group, ctx := errgroup.WithContext(ctx)
	for part, start := range map[Part]func(context.Context) error{
		Spanner: c.startSpanner, PubSub: c.startPubSub, CloudTasks: c.startTasks, SecretManager: c.startSecrets,
	} {
		if opts.Parts&part != 0 {
			group.Go(func() error { return start(ctx) })
		}
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.watch()
	return c, nil
}

// started records what a part needs at the end and in the environment.
func (c *Cloud) started(variable, addr string, closer io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closers = append(c.closers, closer)
	c.env[variable] = addr
}

func (c *Cloud) startSpanner(ctx context.Context) error {
	emulator, err := StartSpanner(ctx, c.opts.EmulatorOptions)
	if err != nil {
		return err
	}
	c.spanner = emulator
	c.started(SpannerVariable, emulator.Addr(), emulator)
	c.databases, err = databaseadmin.NewDatabaseAdminClient(ctx, emulatorClient(emulator.Addr())...)
	if err != nil {
		return err
	}
	c.closeLater(c.databases)
	return c.createInstance(ctx)
}

func (c *Cloud) closeLater(closer io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closers = append(c.closers, closer)
}

func (c *Cloud) createInstance(ctx context.Context) error {
	admin, err := instanceadmin.NewInstanceAdminClient(ctx, emulatorClient(c.spanner.Addr())...)
	if err != nil {
		return err
	}
	defer admin.Close()
	project := "projects/" + c.opts.Project
	op, err := admin.CreateInstance(ctx, &instancepb.CreateInstanceRequest{
		Parent: project, InstanceId: c.opts.Instance,
		Instance: &instancepb.Instance{
			Config: project + "/instanceConfigs/emulator-config", DisplayName: c.opts.Instance, NodeCount: 1},
	})
	if err == nil {
		_, err = op.Wait(ctx)
	}
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return fmt.Errorf("create spanner instance %s: %w", c.opts.Instance, err)
	}
	return nil
}

func (c *Cloud) startPubSub(ctx context.Context) error {
	emulator, err := StartPubSub(ctx, c.opts.EmulatorOptions)
	if err != nil {
		return err
	}
	c.pubsub = emulator
	c.started(PubSubVariable, emulator.Addr(), emulator)
	return nil
}

func (c *Cloud) startTasks(context.Context) error {
	if addr := c.opts.getenv(CloudTasksVariable); addr != "" {
		c.started(CloudTasksVariable, addr, nothingToClose)
		return nil
	}
	c.tasks = tasksemulator.New(c.opts.Tasks)
	addr, err := c.tasks.Start("127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("start cloud tasks emulator: %w", err)
	}
	c.started(CloudTasksVariable, addr, closerFunc(c.tasks.Close))
	return nil
}

func (c *Cloud) startSecrets(context.Context) error {
	if addr := c.opts.getenv(SecretManagerVariable); addr != "" {
		c.started(SecretManagerVariable, addr, nothingToClose)
		return nil
	}
	c.secrets = secretsemulator.New(c.opts.Secrets)
	addr, err := c.secrets.Start("127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("start secret manager emulator: %w", err)
	}
	c.started(SecretManagerVariable, addr, closerFunc(c.secrets.Close))
	return nil
}

type closerFunc func()

func (f closerFunc) Close() error { f(); return nil }

var nothingToClose = closerFunc(func() {})

// Env is the environment with which any process, ours or Google's, talks to this
// cloud: the emulator variables of the started parts and GOOGLE_CLOUD_PROJECT. The
// map is the caller's.
func (c *Cloud) Env() map[string]string {
	return maps.Clone(c.env)
}

// Project is the project that the cloud is used with.
func (c *Cloud) Project() string { return c.opts.Project }

// Location is the region of the queues.
func (c *Cloud) Location() string { return c.opts.Location }

// Instance is the full name of the Spanner instance.
func (c *Cloud) Instance() string {
	return fmt.Sprintf("projects/%s/instances/%s", c.opts.Project, c.opts.Instance)
}

// Spanner is the Spanner emulator, or nil where that part was not started.
func (c *Cloud) Spanner() *Emulator { return c.spanner }

// PubSub is the Pub/Sub emulator, or nil where that part was not started.
func (c *Cloud) PubSub() *Emulator { return c.pubsub }

// Tasks is our Cloud Tasks emulator, or nil where it is not in this process.
func (c *Cloud) Tasks() *tasksemulator.Server { return c.tasks }

// Secrets is our Secret Manager emulator, or nil where it is not in this process.
func (c *Cloud) Secrets() *secretsemulator.Server { return c.secrets }

// NewDatabase creates a database with a name of its own and returns the full name
// (projects/…/instances/…/databases/…). It takes some 6 ms, more with much DDL. Drop
// it when done: an instance holds 100.
func (c *Cloud) NewDatabase(ctx context.Context, ddl []string) (string, error) {
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	return c.CreateDatabase(ctx, "db-"+hex.EncodeToString(random), ddl)
}

// CreateDatabase creates the database id in the cloud's instance with the
// statements ddl, one statement each, and returns its full name. It fails with
// AlreadyExists where there is one.
func (c *Cloud) CreateDatabase(ctx context.Context, id string, ddl []string) (string, error) {
	if c.databases == nil {
		return "", fmt.Errorf("create database %s: this cloud has no Spanner", id)
	}
	op, err := c.databases.CreateDatabase(ctx, &databasepb.CreateDatabaseRequest{
		Parent: c.Instance(), CreateStatement: "CREATE DATABASE `" + id + "`", ExtraStatements: ddl})
	if err != nil {
		return "", fmt.Errorf("create database %s: %w", id, err)
	}
	database, err := op.Wait(ctx)
	if err != nil {
		return "", fmt.Errorf("create database %s: %w", id, err)
	}
	return database.GetName(), nil
}

// DropDatabase drops the database with this full name.
func (c *Cloud) DropDatabase(ctx context.Context, name string) error {
	if c.databases == nil {
		return fmt.Errorf("drop database %s: this cloud has no Spanner", name)
	}
	if err := c.databases.DropDatabase(ctx, &databasepb.DropDatabaseRequest{Database: name}); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// ApplyTopology applies the embedded topology to the parts that were started (see
// [Topology.Apply]). Project and Location of opts default to the cloud's own.
func (c *Cloud) ApplyTopology(ctx context.Context, opts ApplyOptions) ([]Change, error) {
	topology, err := LoadTopology()
	if err != nil {
		return nil, err
	}
	if opts.Project == "" {
		opts.Project = c.opts.Project
	}
	if opts.Location == "" {
		opts.Location = c.opts.Location
	}
	var pub *pubsub.Client
	if addr := c.env[PubSubVariable]; addr != "" {
		if pub, err = pubsub.NewClient(ctx, opts.Project, emulatorClient(addr)...); err != nil {
			return nil, err
		}
		defer pub.Close()
	}
	var tasks *cloudtasks.Client
	if addr := c.env[CloudTasksVariable]; addr != "" {
		if tasks, err = cloudtasks.NewClient(ctx, emulatorClient(addr)...); err != nil {
			return nil, err
		}
		defer tasks.Close()
	}
	return topology.Apply(ctx, pub, tasks, opts)
}

// emulatorClient are the options of a Google client for the emulator at addr,
// whatever the environment's variables name.
func emulatorClient(addr string) []option.ClientOption {
	conn, err := dial(addr)
	if err != nil {
		// Only the syntax of addr can be at fault; the client then says so itself.
		return []option.ClientOption{option.WithEndpoint(addr), option.WithoutAuthentication()}
	}
	return []option.ClientOption{option.WithGRPCConn(conn), option.WithoutAuthentication()}
}

// Close ends all that was started, the children too, and returns when they are
// gone; bounded by the emulators' grace plus a few seconds. Idempotent.
func (c *Cloud) Close() error {
	c.mu.Lock()
	closers := c.closers
	c.closers = nil
	c.mu.Unlock()
	// All at once: each child takes its second to leave.
	var group errgroup.Group
	for _, closer := range closers {
		group.Go(closer.Close)
	}
	return group.Wait()
}

// watch closes done when a child ends.
func (c *Cloud) watch() {
	var once sync.Once
	for _, e := range []*Emulator{c.spanner, c.pubsub} {
		if e != nil && e.child != nil {
			go func() { // ends with the child, which ends with Close
				<-e.Done()
				once.Do(func() {
					c.failure = e.child.explain(errors.New("local cloud"))
					close(c.done)
				})
			}()
		}
	}
}

// Done is closed when one of the cloud's own children has ended, which before
// Close means that the cloud is broken; Err then says why.
func (c *Cloud) Done() <-chan struct{} { return c.done }

// Err is nil before Done is closed, then how the child ended and what it said last.
func (c *Cloud) Err() error {
	select {
	case <-c.done:
		return c.failure
	default:
		return nil
	}
}
