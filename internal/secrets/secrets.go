// Package secrets owns access to Secret Manager and the sealing of endpoint keys.
//
// It refuses everything but explicit version numbers: whatever else Secret
// Manager offers ("latest", aliases, listings) is eventually consistent or scarce
// in quota. Values are read once and held in memory; a version never changes.
package secrets

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"

	secretmanager "cloud.google.com/go/secretmanager/apiv1"
	smpb "cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// EmulatorVariable names the environment variable that holds the host:port of a
// Secret Manager emulator. Google has none of its own.
const EmulatorVariable = "SECRET_MANAGER_EMULATOR_HOST"

// ErrNotFound means that the secret or the version does not exist.
var ErrNotFound = errors.New("secret version not found")

// Client reads secrets. It is safe for concurrent use.
type Client struct{ sm *secretmanager.Client }

// NewClient connects to Secret Manager, or to the emulator that
// [EmulatorVariable] names. It returns before the connection stands.
func NewClient(ctx context.Context, opts ...option.ClientOption) (*Client, error) {
	if host := os.Getenv(EmulatorVariable); host != "" {
		opts = append([]option.ClientOption{
			option.WithEndpoint(host),
			option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		}, opts...)
	}
	sm, err := secretmanager.NewClient(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to secret manager: %w", err)
	}
	return &Client{sm}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.sm.Close() }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Access reads one version of a secret. The checksum that the service gives is
// verified. An absent secret or version is [ErrNotFound]; a disabled or destroyed
// version is an error that says so. Errors never hold the value.
func (c *Client) Access(ctx context.Context, project, name string, version int) ([]byte, error) {
	if version < 1 {
		return nil, fmt.Errorf("secret %s: version %d is not a version number", name, version)
	}
	res, err := c.sm.AccessSecretVersion(ctx, &smpb.AccessSecretVersionRequest{
		Name: fmt.Sprintf("projects/%s/secrets/%s/versions/%d", project, name, version),
	})
	switch {
	case status.Code(err) == codes.NotFound:
		return nil, fmt.Errorf("secret %s version %d: %w", name, version, ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("access secret %s version %d: %w", name, version, err)
	}
	p := res.GetPayload()
	if p.DataCrc32C != nil && *p.DataCrc32C != int64(crc32.Checksum(p.GetData(), castagnoli)) {
		return nil, fmt.Errorf("access secret %s version %d: the value arrived damaged", name, version)
	}
	return p.GetData(), nil
}

// Put stores a value as a new version and gives its number, creating the secret
// if it is not there. For set-up tools; services only read.
func (c *Client) Put(ctx context.Context, project, name string, value []byte) (int, error) {
	parent := "projects/" + project
	_, err := c.sm.CreateSecret(ctx, &smpb.CreateSecretRequest{
		Parent: parent, SecretId: name,
		Secret: &smpb.Secret{Replication: &smpb.Replication{Replication: &smpb.Replication_Automatic_{Automatic: &smpb.Replication_Automatic{}}}},
	})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return 0, fmt.Errorf("create secret %s: %w", name, err)
	}
	sum := int64(crc32.Checksum(value, castagnoli))
	v, err := c.sm.AddSecretVersion(ctx, &smpb.AddSecretVersionRequest{
		Parent: parent + "/secrets/" + name, Payload: &smpb.SecretPayload{Data: value, DataCrc32C: &sum},
	})
	if err != nil {
		return 0, fmt.Errorf("add a version to secret %s: %w", name, err)
	}
	n, err := strconv.Atoi(v.Name[strings.LastIndexByte(v.Name, '/')+1:])
	if err != nil {
		return 0, fmt.Errorf("add a version to secret %s: answer names %q", name, v.Name)
	}
	return n, nil
}
