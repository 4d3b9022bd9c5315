package secretmanager_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	api "cloud.google.com/go/secretmanager/apiv1"
	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sealpost/sealpost/internal/localcloud/secretmanager"
)

const parent = "projects/demo"

var automatic = &secretmanagerpb.Replication{Replication: &secretmanagerpb.Replication_Automatic_{Automatic: &secretmanagerpb.Replication_Automatic{}}}

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// remote is an emulator reached by Google's client.
type remote struct {
	*testing.T
	*api.Client
}

func dial(t *testing.T, o secretmanager.Options) remote {
	t.Helper()
	s := secretmanager.New(o)
	addr, err := s.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	c, err := api.NewClient(t.Context(), option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return remote{t, c}
}

// secret creates a secret with one version for each payload.
func (r remote) secret(id string, payloads ...string) *secretmanagerpb.Secret {
	r.Helper()
	got, err := r.CreateSecret(r.Context(), &secretmanagerpb.CreateSecretRequest{Parent: parent, SecretId: id, Secret: &secretmanagerpb.Secret{Replication: automatic}})
	if err != nil {
		r.Fatal(err)
	}
	for _, p := range payloads {
		if _, err := r.add(got.Name, []byte(p)); err != nil {
			r.Fatal(err)
		}
	}
	return got
}

func (r remote) add(secret string, data []byte) (*secretmanagerpb.SecretVersion, error) {
	return r.AddSecretVersion(r.Context(), &secretmanagerpb.AddSecretVersionRequest{Parent: secret, Payload: &secretmanagerpb.SecretPayload{Data: data}})
}

func (r remote) access(name string) (string, error) {
	got, err := r.AccessSecretVersion(r.Context(), &secretmanagerpb.AccessSecretVersionRequest{Name: name})
	return string(got.GetPayload().GetData()), err
}

func (r remote) update(s *secretmanagerpb.Secret, paths ...string) (*secretmanagerpb.Secret, error) {
	return r.UpdateSecret(r.Context(), &secretmanagerpb.UpdateSecretRequest{Secret: s, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}})
}

func second[T any](_ T, err error) error { return err }

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: code %v (%v), want %v", what, got, err, want)
	}
}

func TestVersionsAndAccess(t *testing.T) {
	t.Parallel()
	r := dial(t, secretmanager.Options{})
	s := r.secret("s")
	data := []byte("\x00\xff binary\n")
	sum := int64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
	v, err := r.AddSecretVersion(t.Context(), &secretmanagerpb.AddSecretVersionRequest{Parent: s.Name, Payload: &secretmanagerpb.SecretPayload{Data: data, DataCrc32C: &sum}})
	if err != nil || v.Name != s.Name+"/versions/1" || v.State != secretmanagerpb.SecretVersion_ENABLED || !v.ClientSpecifiedPayloadChecksum || v.CreateTime == nil || v.Etag == "" {
		t.Fatal(v, err)
	}
	if v, err := r.add(s.Name, []byte("two")); err != nil || v.Name != s.Name+"/versions/2" || v.ClientSpecifiedPayloadChecksum {
		t.Fatal(v, err)
	}
	got, err := r.AccessSecretVersion(t.Context(), &secretmanagerpb.AccessSecretVersionRequest{Name: s.Name + "/versions/1"})
	if err != nil || !bytes.Equal(got.Payload.Data, data) || got.Payload.GetDataCrc32C() != sum || got.Name != s.Name+"/versions/1" {
		t.Error(got, err)
	}
	got, err = r.AccessSecretVersion(t.Context(), &secretmanagerpb.AccessSecretVersionRequest{Name: s.Name + "/versions/latest"})
	if err != nil || string(got.Payload.Data) != "two" || got.Payload.DataCrc32C == nil || got.Name != s.Name+"/versions/2" {
		t.Error(got, err)
	}
}

// `latest` is the version created last, whatever its state: the reference of
// AccessSecretVersion.
func TestLatestDoesNotSkipDisabledVersions(t *testing.T) {
	t.Parallel()
	r := dial(t, secretmanager.Options{})
	s := r.secret("s", "one", "two")
	two, latest := s.Name+"/versions/2", s.Name+"/versions/latest"
	v, err := r.DisableSecretVersion(t.Context(), &secretmanagerpb.DisableSecretVersionRequest{Name: two})
	if err != nil || v.State != secretmanagerpb.SecretVersion_DISABLED {
		t.Fatal(v, err)
	}
	_, err = r.access(latest)
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "versions/2] is in DISABLED state.") {
		t.Error(err)
	}
	if got, err := r.access(s.Name + "/versions/1"); err != nil || got != "one" {
		t.Error(got, err)
	}
	if v, err := r.GetSecretVersion(t.Context(), &secretmanagerpb.GetSecretVersionRequest{Name: latest}); err != nil || v.Name != two {
		t.Error(v, err)
	}
	if _, err := r.EnableSecretVersion(t.Context(), &secretmanagerpb.EnableSecretVersionRequest{Name: two}); err != nil {
		t.Fatal(err)
	}
	if got, err := r.access(latest); err != nil || got != "two" {
		t.Error(got, err)
	}
	v, err = r.DestroySecretVersion(t.Context(), &secretmanagerpb.DestroySecretVersionRequest{Name: two})
	if err != nil || v.State != secretmanagerpb.SecretVersion_DESTROYED || v.DestroyTime == nil {
		t.Fatal(v, err)
	}
	for what, err := range map[string]error{
		"access":  second(r.access(latest)),
		"enable":  second(r.EnableSecretVersion(t.Context(), &secretmanagerpb.EnableSecretVersionRequest{Name: two})),
		"disable": second(r.DisableSecretVersion(t.Context(), &secretmanagerpb.DisableSecretVersionRequest{Name: two})),
		"destroy": second(r.DestroySecretVersion(t.Context(), &secretmanagerpb.DestroySecretVersionRequest{Name: two})),
	} {
		wantCode(t, what+" a destroyed version", err, codes.FailedPrecondition)
	}
	if v, err := r.add(s.Name, []byte("three")); err != nil || v.Name != s.Name+"/versions/3" {
		t.Errorf("a destroyed version's number is used again: %v, %v", v, err)
	}
}

func TestAliases(t *testing.T) {
	t.Parallel()
	r := dial(t, secretmanager.Options{})
	s := r.secret("s", "one", "two")
	s.VersionAliases = map[string]int64{"prod": 1}
	if _, err := r.update(s, "version_aliases"); err != nil {
		t.Fatal(err)
	}
	if got, err := r.access(s.Name + "/versions/prod"); err != nil || got != "one" {
		t.Error(got, err)
	}
	wantCode(t, "unknown alias", second(r.access(s.Name+"/versions/test")), codes.NotFound)
	wantCode(t, "disable by alias", second(r.DisableSecretVersion(t.Context(), &secretmanagerpb.DisableSecretVersionRequest{Name: s.Name + "/versions/prod"})), codes.InvalidArgument)
	s.Etag = ""
	for alias, number := range map[string]int64{"latest": 1, "NEW": 1, "1a": 1, "a.b": 1} {
		s.VersionAliases = map[string]int64{alias: number}
		wantCode(t, "alias "+alias, second(r.update(s, "version_aliases")), codes.InvalidArgument)
	}
	s.VersionAliases = map[string]int64{"next": 3}
	wantCode(t, "alias of an absent version", second(r.update(s, "version_aliases")), codes.FailedPrecondition)
}

// refusal is a call's error and what it has to be.
type refusal struct {
	what string
	err  error
	code codes.Code
	says string
}

func checkRefusals(t *testing.T, all []refusal) {
	t.Helper()
	for _, e := range all {
		if got := status.Convert(e.err); got.Code() != e.code || !strings.Contains(got.Message(), e.says) {
			t.Errorf("%s: %v, want %v with %q", e.what, e.err, e.code, e.says)
		}
	}
}

const absent = parent + "/secrets/absent"

func TestSecretSettingsRefused(t *testing.T) {
	t.Parallel()
	r := dial(t, secretmanager.Options{})
	r.secret("s")
	create := func(parent, id string, change func(*secretmanagerpb.Secret)) error {
		in := &secretmanagerpb.Secret{Replication: automatic}
		if change != nil {
			change(in)
		}
		return second(r.CreateSecret(t.Context(), &secretmanagerpb.CreateSecretRequest{Parent: parent, SecretId: id, Secret: in}))
	}
	bad := func(change func(*secretmanagerpb.Secret)) error { return create(parent, "bad", change) }
	many := func(n int) map[string]string {
		m := make(map[string]string)
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		return m
	}
	type S = secretmanagerpb.Secret
	checkRefusals(t, []refusal{
		{"exists", create(parent, "s", nil), codes.AlreadyExists, "already exists."},
		{"parent", create("demo", "x", nil), codes.InvalidArgument, "expected format"},
		{"id", create(parent, "a.b", nil), codes.InvalidArgument, "secret ID"},
		{"no id", create(parent, "", nil), codes.InvalidArgument, "secret ID"},
		{"longest id", create(parent, strings.Repeat("a", 255), nil), codes.OK, ""},
		{"id too long", create(parent, strings.Repeat("a", 256), nil), codes.InvalidArgument, "secret ID"},
		{"no replication", bad(func(s *S) { s.Replication = nil }), codes.InvalidArgument, "replication"},
		{"regional with replication", create(parent+"/locations/europe-west1", "s", nil), codes.InvalidArgument, "replication"},
		{"regional", create(parent+"/locations/europe-west1", "s", func(s *S) { s.Replication = nil }), codes.OK, ""},
		{"label", bad(func(s *S) { s.Labels = map[string]string{"Upper": "x"} }), codes.InvalidArgument, "Label"},
		{"labels", bad(func(s *S) { s.Labels = many(65) }), codes.InvalidArgument, "64 labels"},
		{"annotation", bad(func(s *S) { s.Annotations = map[string]string{"-a": "x"} }), codes.InvalidArgument, "Annotation"},
		{"annotations", bad(func(s *S) { s.Annotations = map[string]string{"a": strings.Repeat("x", 16<<10)} }), codes.InvalidArgument, "16KiB"},
		{"expired", bad(func(s *S) {
			s.Expiration = &secretmanagerpb.Secret_ExpireTime{ExpireTime: timestamppb.New(time.Unix(1, 0))}
		}), codes.InvalidArgument, "expire_time"},
		{"ttl", bad(func(s *S) { s.Expiration = &secretmanagerpb.Secret_Ttl{Ttl: durationpb.New(-1)} }), codes.InvalidArgument, "ttl"},
		{"alias at creation", bad(func(s *S) { s.VersionAliases = map[string]int64{"a": 1} }), codes.FailedPrecondition, "alias"},
	})
}

func TestSecretCallsRefused(t *testing.T) {
	t.Parallel()
	r := dial(t, secretmanager.Options{})
	ctx := t.Context()
	s := r.secret("s")
	type S = secretmanagerpb.Secret
	checkRefusals(t, []refusal{
		{"get absent", second(r.GetSecret(ctx, &secretmanagerpb.GetSecretRequest{Name: absent})), codes.NotFound, absent},
		{"get bad name", second(r.GetSecret(ctx, &secretmanagerpb.GetSecretRequest{Name: "s"})), codes.InvalidArgument, "expected format"},
		{"delete absent", r.DeleteSecret(ctx, &secretmanagerpb.DeleteSecretRequest{Name: absent}), codes.NotFound, absent},
		{"update absent", second(r.update(&S{Name: absent}, "labels")), codes.NotFound, absent},
		{"update without mask", second(r.update(&S{Name: s.Name})), codes.InvalidArgument, "update_mask"},
		{"update the immutable", second(r.update(s, "replication")), codes.InvalidArgument, "replication"},
		{"update the unknown", second(r.update(s, "name")), codes.InvalidArgument, "name"},
		{"list, parent", second(r.ListSecrets(ctx, &secretmanagerpb.ListSecretsRequest{Parent: "demo"}).Next()), codes.InvalidArgument, "expected format"},
		{"list, token", second(r.ListSecrets(ctx, &secretmanagerpb.ListSecretsRequest{Parent: parent, PageToken: "?"}).Next()), codes.InvalidArgument, "page_token"},
		{"list, size", second(r.ListSecrets(ctx, &secretmanagerpb.ListSecretsRequest{Parent: parent, PageSize: -1}).Next()), codes.InvalidArgument, "page_size"},
		{"list, filter", second(r.ListSecrets(ctx, &secretmanagerpb.ListSecretsRequest{Parent: parent, Filter: "create_time>1"}).Next()), codes.InvalidArgument, "filters"},
		{"list versions of absent", second(r.ListSecretVersions(ctx, &secretmanagerpb.ListSecretVersionsRequest{Parent: absent}).Next()), codes.NotFound, absent},
	})
}

func TestVersionCallsRefused(t *testing.T) {
	t.Parallel()
	r := dial(t, secretmanager.Options{})
	ctx := t.Context()
	s, empty := r.secret("s", "one"), r.secret("empty")
	right := int64(crc32.Checksum([]byte("x"), crc32.MakeTable(crc32.Castagnoli)))
	addCRC := func(sum int64) error {
		return second(r.AddSecretVersion(ctx, &secretmanagerpb.AddSecretVersionRequest{Parent: s.Name, Payload: &secretmanagerpb.SecretPayload{Data: []byte("x"), DataCrc32C: &sum}}))
	}
	checkRefusals(t, []refusal{
		{"add to absent", second(r.add(absent, []byte("x"))), codes.NotFound, absent},
		{"add nothing", second(r.add(s.Name, nil)), codes.InvalidArgument, "cannot be empty"},
		{"add too much", second(r.add(s.Name, make([]byte, 64<<10+1))), codes.InvalidArgument, "65536"},
		{"add the most", second(r.add(empty.Name, make([]byte, 64<<10))), codes.OK, ""},
		{"right checksum", addCRC(right), codes.OK, ""},
		{"wrong checksum", addCRC(right + 1), codes.InvalidArgument, "crc32c"},
		{"impossible checksum", addCRC(right + 1<<32), codes.InvalidArgument, "crc32c"},
		{"access absent secret", second(r.access(absent + "/versions/1")), codes.NotFound, "not found or has no versions"},
		{"access latest of none", second(r.access(r.secret("none").Name + "/versions/latest")), codes.NotFound, "not found or has no versions"},
		{"access absent version", second(r.access(s.Name + "/versions/9")), codes.NotFound, "versions/9] not found."},
		{"access huge version", second(r.access(s.Name + "/versions/99999999999999999999")), codes.NotFound, "not found."},
		{"access version 0", second(r.access(s.Name + "/versions/0")), codes.InvalidArgument, "expected format"},
		{"access version 01", second(r.access(s.Name + "/versions/01")), codes.InvalidArgument, "expected format"},
		{"access a secret", second(r.access(s.Name)), codes.InvalidArgument, "expected format"},
		{"destroy latest", second(r.DestroySecretVersion(ctx, &secretmanagerpb.DestroySecretVersionRequest{Name: s.Name + "/versions/latest"})), codes.InvalidArgument, "number"},
		{"destroy absent", second(r.DestroySecretVersion(ctx, &secretmanagerpb.DestroySecretVersionRequest{Name: s.Name + "/versions/9"})), codes.NotFound, "not found."},
	})
}

func TestEtags(t *testing.T) {
	t.Parallel()
	r := dial(t, secretmanager.Options{})
	ctx := t.Context()
	s := r.secret("s", "one")
	v, err := r.GetSecretVersion(ctx, &secretmanagerpb.GetSecretVersionRequest{Name: s.Name + "/versions/1"})
	if err != nil || !strings.HasPrefix(v.Etag, `"`) || !strings.HasSuffix(v.Etag, `"`) {
		t.Fatal(v, err)
	}
	// Enabling what is enabled changes nothing but the etag.
	again, err := r.EnableSecretVersion(ctx, &secretmanagerpb.EnableSecretVersionRequest{Name: v.Name, Etag: v.Etag})
	if err != nil || again.Etag == v.Etag {
		t.Fatal(again, err)
	}
	wantCode(t, "disable, old etag", second(r.DisableSecretVersion(ctx, &secretmanagerpb.DisableSecretVersionRequest{Name: v.Name, Etag: v.Etag})), codes.FailedPrecondition)
	wantCode(t, "enable, old etag", second(r.EnableSecretVersion(ctx, &secretmanagerpb.EnableSecretVersionRequest{Name: v.Name, Etag: v.Etag})), codes.FailedPrecondition)
	wantCode(t, "destroy, old etag", second(r.DestroySecretVersion(ctx, &secretmanagerpb.DestroySecretVersionRequest{Name: v.Name, Etag: v.Etag})), codes.FailedPrecondition)
	wantCode(t, "disable, current etag", second(r.DisableSecretVersion(ctx, &secretmanagerpb.DisableSecretVersionRequest{Name: v.Name, Etag: again.Etag})), codes.OK)

	got, err := r.GetSecret(ctx, &secretmanagerpb.GetSecretRequest{Name: s.Name})
	if err != nil || got.Etag != s.Etag {
		t.Errorf("a version's change renewed the secret's etag: %v, %v", got, err)
	}
	s.Labels = map[string]string{"a": "b"}
	updated, err := r.update(s, "labels")
	if err != nil || updated.Etag == s.Etag {
		t.Fatal(updated, err)
	}
	wantCode(t, "update, old etag", second(r.update(s, "labels")), codes.FailedPrecondition)
	wantCode(t, "delete, old etag", r.DeleteSecret(ctx, &secretmanagerpb.DeleteSecretRequest{Name: s.Name, Etag: s.Etag}), codes.FailedPrecondition)
	wantCode(t, "delete, current etag", r.DeleteSecret(ctx, &secretmanagerpb.DeleteSecretRequest{Name: s.Name, Etag: updated.Etag}), codes.OK)
	wantCode(t, "access after delete", second(r.access(s.Name+"/versions/1")), codes.NotFound)
	if s := r.secret("s"); s == nil {
		t.Error("the name is not free after deletion")
	}
}

func TestUpdateReplacesOnlyMaskedFields(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := dial(t, secretmanager.Options{Now: c.Now})
	s := r.secret("s")
	s.Labels, s.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
	s.Expiration = &secretmanagerpb.Secret_Ttl{Ttl: durationpb.New(time.Hour)}
	got, err := r.update(s, "labels", "ttl")
	if err != nil || got.Labels["a"] != "b" || got.Annotations != nil || !got.GetExpireTime().AsTime().Equal(c.Now().Add(time.Hour)) || !proto.Equal(got.Replication, automatic) {
		t.Fatal(got, err)
	}
	got, err = r.update(&secretmanagerpb.Secret{Name: s.Name}, "labels", "ttl")
	if err != nil || got.Labels != nil || got.Expiration != nil {
		t.Error(got, err)
	}
}

func TestExpiryAndDelayedDestruction(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := dial(t, secretmanager.Options{Now: c.Now})
	ctx := t.Context()
	s, err := r.CreateSecret(ctx, &secretmanagerpb.CreateSecretRequest{Parent: parent, SecretId: "s", Secret: &secretmanagerpb.Secret{
		Replication: automatic, VersionDestroyTtl: durationpb.New(24 * time.Hour), Expiration: &secretmanagerpb.Secret_Ttl{Ttl: durationpb.New(72 * time.Hour)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.add(s.Name, []byte("one")); err != nil {
		t.Fatal(err)
	}
	one := s.Name + "/versions/1"
	destroy := func() {
		v, err := r.DestroySecretVersion(ctx, &secretmanagerpb.DestroySecretVersionRequest{Name: one})
		if err != nil || v.State != secretmanagerpb.SecretVersion_DISABLED || !v.ScheduledDestroyTime.AsTime().Equal(c.Now().Add(24*time.Hour)) {
			t.Fatal(v, err)
		}
	}
	destroy()
	c.advance(23 * time.Hour)
	if v, err := r.EnableSecretVersion(ctx, &secretmanagerpb.EnableSecretVersionRequest{Name: one}); err != nil || v.ScheduledDestroyTime != nil {
		t.Fatal(v, err)
	}
	c.advance(2 * time.Hour)
	if got, err := r.access(one); err != nil || got != "one" {
		t.Error(got, err)
	}
	destroy()
	c.advance(24 * time.Hour)
	if v, err := r.GetSecretVersion(ctx, &secretmanagerpb.GetSecretVersionRequest{Name: one}); err != nil || v.State != secretmanagerpb.SecretVersion_DESTROYED {
		t.Error(v, err)
	}
	c.advance(23 * time.Hour)
	wantCode(t, "expired secret", second(r.GetSecret(ctx, &secretmanagerpb.GetSecretRequest{Name: s.Name})), codes.NotFound)
}

func TestLists(t *testing.T) {
	t.Parallel()
	r := dial(t, secretmanager.Options{})
	ctx := t.Context()
	for _, id := range []string{"b", "a", "stripe-1", "stripe-2", "c"} {
		r.secret(id)
	}
	if _, err := r.update(&secretmanagerpb.Secret{Name: parent + "/secrets/stripe-2", Labels: map[string]string{"env": "prod"}}, "labels"); err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct{ filter, want string }{
		{"", "c stripe-2 stripe-1 a b"}, {"name:stripe", "stripe-2 stripe-1"}, {"name:stripe AND labels.env=prod", "stripe-2"}, {"labels.env:*", "stripe-2"}, {"name:nothing", ""},
	} {
		var got []string
		it := r.ListSecrets(ctx, &secretmanagerpb.ListSecretsRequest{Parent: parent, PageSize: 2, Filter: e.filter})
		for s, err := it.Next(); !errors.Is(err, iterator.Done); s, err = it.Next() {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.TrimPrefix(s.Name, parent+"/secrets/"))
		}
		if strings.Join(got, " ") != e.want {
			t.Errorf("filter %q: %v, want %s", e.filter, got, e.want)
		}
	}

	s := r.secret("v", "1", "2", "3", "4", "5", "6", "7")
	for _, n := range []int{2, 7} {
		if _, err := r.DisableSecretVersion(ctx, &secretmanagerpb.DisableSecretVersionRequest{Name: fmt.Sprintf("%s/versions/%d", s.Name, n)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []struct {
		filter, want string
		total        int32
	}{{"", "7 6 5 4 3 2 1", 7}, {"state:ENABLED", "6 5 4 3 1", 0}, {"state=disabled", "7 2", 0}} {
		var got []string
		it := r.ListSecretVersions(ctx, &secretmanagerpb.ListSecretVersionsRequest{Parent: s.Name, PageSize: 3, Filter: e.filter})
		for v, err := it.Next(); !errors.Is(err, iterator.Done); v, err = it.Next() {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, v.Name[strings.LastIndex(v.Name, "/")+1:])
		}
		if total := it.Response.(*secretmanagerpb.ListSecretVersionsResponse).TotalSize; strings.Join(got, " ") != e.want || total != e.total {
			t.Errorf("filter %q: %v of %d, want %s of %d", e.filter, got, total, e.want, e.total)
		}
	}
}

func TestLag(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := dial(t, secretmanager.Options{Now: c.Now, Lag: time.Minute})
	s := r.secret("s", "one")
	listed := func() int {
		it := r.ListSecrets(t.Context(), &secretmanagerpb.ListSecretsRequest{Parent: parent})
		_, err := it.Next()
		if err != nil && !errors.Is(err, iterator.Done) {
			t.Fatal(err)
		}
		return int(it.Response.(*secretmanagerpb.ListSecretsResponse).TotalSize)
	}
	wantCode(t, "latest at once", second(r.access(s.Name+"/versions/latest")), codes.NotFound)
	if got, err := r.access(s.Name + "/versions/1"); err != nil || got != "one" || listed() != 0 {
		t.Error("by number at once:", got, err)
	}
	c.advance(time.Minute)
	if _, err := r.add(s.Name, []byte("two")); err != nil {
		t.Fatal(err)
	}
	if got, err := r.access(s.Name + "/versions/latest"); err != nil || got != "one" || listed() != 1 {
		t.Error("latest lags:", got, err)
	}
	c.advance(time.Minute)
	if got, err := r.access(s.Name + "/versions/latest"); err != nil || got != "two" {
		t.Error("latest after the lag:", got, err)
	}
}

func TestConcurrentAddsGetDistinctNumbers(t *testing.T) {
	t.Parallel()
	s := secretmanager.New(secretmanager.Options{})
	secret, err := s.CreateSecret(t.Context(), &secretmanagerpb.CreateSecretRequest{Parent: parent, SecretId: "s", Secret: &secretmanagerpb.Secret{Replication: automatic}})
	if err != nil {
		t.Fatal(err)
	}
	const n = 50
	names := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			v, err := s.AddSecretVersion(context.Background(), &secretmanagerpb.AddSecretVersionRequest{Parent: secret.Name, Payload: &secretmanagerpb.SecretPayload{Data: []byte{1}}})
			if err != nil {
				t.Error(err)
			}
			names[i] = v.GetName()
		})
	}
	wg.Wait()
	slices.Sort(names)
	if len(slices.Compact(names)) != n {
		t.Error("versions share numbers")
	}
}

// What a caller does to messages that it sent or received leaves the stored
// secret alone.
func TestNothingIsShared(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := secretmanager.New(secretmanager.Options{})
	in := &secretmanagerpb.Secret{Replication: automatic, Labels: map[string]string{"a": "b"}}
	out, err := s.CreateSecret(ctx, &secretmanagerpb.CreateSecretRequest{Parent: parent, SecretId: "s", Secret: in})
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("payload")
	if _, err := s.AddSecretVersion(ctx, &secretmanagerpb.AddSecretVersionRequest{Parent: out.Name, Payload: &secretmanagerpb.SecretPayload{Data: data}}); err != nil {
		t.Fatal(err)
	}
	access := func() []byte {
		got, err := s.AccessSecretVersion(ctx, &secretmanagerpb.AccessSecretVersionRequest{Name: out.Name + "/versions/1"})
		if err != nil {
			t.Fatal(err)
		}
		return got.Payload.Data
	}
	in.Labels["a"], out.Labels["a"] = "x", "x"
	data[0] = 'X'
	access()[0] = 'X'
	if got, err := s.GetSecret(ctx, &secretmanagerpb.GetSecretRequest{Name: out.Name}); err != nil || got.Labels["a"] != "b" || string(access()) != "payload" {
		t.Error(got, err, string(access()))
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	var before, after error
	s := secretmanager.New(secretmanager.Options{
		Fault:       func(string) error { return before },
		AnswerFault: func(string) error { return after },
	})
	create := func() error {
		return second(s.CreateSecret(t.Context(), &secretmanagerpb.CreateSecretRequest{Parent: parent, SecretId: "s", Secret: &secretmanagerpb.Secret{Replication: automatic}}))
	}
	before = status.Error(codes.Unavailable, "down")
	wantCode(t, "fault", create(), codes.Unavailable)
	before, after = nil, status.Error(codes.DeadlineExceeded, "lost")
	wantCode(t, "lost answer", create(), codes.DeadlineExceeded)
	after = nil
	wantCode(t, "retry after a lost answer", create(), codes.AlreadyExists)
}

func TestRegisterAndClose(t *testing.T) {
	t.Parallel()
	s := secretmanager.New(secretmanager.Options{})
	gs := grpc.NewServer()
	s.Register(gs)
	if _, there := gs.GetServiceInfo()["google.cloud.secretmanager.v1.SecretManagerService"]; !there {
		t.Error("not registered")
	}
	s.Close()
	s.Close()
	if addr, err := s.Start(""); err == nil {
		t.Errorf("started on %s after Close", addr)
	}
}

func Example() {
	ctx := context.Background()
	emulator := secretmanager.New(secretmanager.Options{})
	defer emulator.Close()
	addr, err := emulator.Start("")
	if err != nil {
		panic(err)
	}

	// From here on, production code: Google's client, pointed at addr.
	client, err := api.NewClient(ctx, option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	secret, err := client.CreateSecret(ctx, &secretmanagerpb.CreateSecretRequest{
		Parent: "projects/demo", SecretId: "source-github",
		Secret: &secretmanagerpb.Secret{Replication: &secretmanagerpb.Replication{
			Replication: &secretmanagerpb.Replication_Automatic_{Automatic: &secretmanagerpb.Replication_Automatic{}},
		}},
	})
	if err != nil {
		panic(err)
	}
	for _, key := range []string{"old", "new"} {
		version, err := client.AddSecretVersion(ctx, &secretmanagerpb.AddSecretVersionRequest{Parent: secret.Name, Payload: &secretmanagerpb.SecretPayload{Data: []byte(key)}})
		if err != nil {
			panic(err)
		}
		got, err := client.AccessSecretVersion(ctx, &secretmanagerpb.AccessSecretVersionRequest{Name: version.Name})
		if err != nil {
			panic(err)
		}
		fmt.Println(got.Name, string(got.Payload.Data))
	}
	// Output:
	// projects/demo/secrets/source-github/versions/1 old
	// projects/demo/secrets/source-github/versions/2 new
}
