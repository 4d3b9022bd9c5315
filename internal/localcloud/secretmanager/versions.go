package secretmanager

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const maxPayload = 64 << 10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// version is guarded by Server.mu.
type version struct {
	pb      *secretmanagerpb.SecretVersion
	created time.Time
	data    []byte // nil once destroyed
}

func (v *version) view() *secretmanagerpb.SecretVersion {
	return proto.Clone(v.pb).(*secretmanagerpb.SecretVersion)
}

// destroy makes the payload unrecoverable.
func (v *version) destroy(at time.Time) {
	clear(v.data)
	v.data = nil
	v.pb.State = secretmanagerpb.SecretVersion_DESTROYED
	v.pb.DestroyTime, v.pb.ScheduledDestroyTime = timestamppb.New(at), nil
}

// find returns the version of that number, nil if there is none, and carries
// out a destruction whose delay is over.
func (sec *secret) find(number uint64, now time.Time) *version {
	if number < 1 || number > uint64(len(sec.versions)) {
		return nil
	}
	v := sec.versions[number-1]
	if at := v.pb.GetScheduledDestroyTime(); at != nil && !now.Before(at.AsTime()) {
		v.destroy(at.AsTime())
	}
	return v
}

// version resolves a version's full name; loose admits `latest` and aliases.
func (s *Server) version(name string, loose bool, now time.Time) (*secret, *version, error) {
	secretName, id, err := splitVersion(name)
	if err != nil {
		return nil, nil, err
	}
	number, numErr := strconv.ParseUint(id, 10, 63)
	numeric := versionPattern.MatchString(id)
	if !numeric && !loose {
		return nil, nil, invalid("The version of [%s] must be a number here.", name)
	}
	sec := s.find(secretName, now)
	if sec == nil {
		return nil, nil, noVersions(secretName)
	}
	switch {
	case numeric && numErr != nil:
		number = 0 // beyond any number
	case id == latest:
		if number = uint64(s.visible(sec, now)); number == 0 {
			return nil, nil, noVersions(secretName)
		}
	case !numeric:
		number = uint64(sec.pb.GetVersionAliases()[id])
	}
	v := sec.find(number, now)
	if v == nil {
		return nil, nil, status.Errorf(codes.NotFound, "Secret Version [%s] not found.", name)
	}
	return sec, v, nil
}

// visible is the number of the last version old enough for reads that are
// eventually consistent.
func (s *Server) visible(sec *secret, now time.Time) int {
	n := len(sec.versions)
	for n > 0 && now.Sub(sec.versions[n-1].created) < s.o.Lag {
		n--
	}
	return n
}

// AddSecretVersion adds an enabled version under the next number.
func (s *Server) AddSecretVersion(_ context.Context, in *secretmanagerpb.AddSecretVersionRequest) (*secretmanagerpb.SecretVersion, error) {
	return answer(s, "AddSecretVersion", func(now time.Time) (*secretmanagerpb.SecretVersion, error) {
		sec, err := s.secret(in.GetParent(), now)
		if err != nil {
			return nil, err
		}
		data := in.GetPayload().GetData()
		switch {
		case len(data) == 0:
			return nil, invalid("Secret Payload cannot be empty.")
		case len(data) > maxPayload:
			return nil, invalid("The secret payload is %d bytes long; at most %d are allowed.", len(data), maxPayload)
		}
		checked := in.GetPayload().DataCrc32C != nil
		if checked && in.GetPayload().GetDataCrc32C() != checksum(data) {
			return nil, invalid("The payload does not match its data_crc32c: it was corrupted on the way.")
		}
		v := &version{created: now, data: slices.Clone(data), pb: &secretmanagerpb.SecretVersion{
			Name: fmt.Sprintf("%s/versions/%d", sec.pb.GetName(), len(sec.versions)+1), CreateTime: timestamppb.New(now),
			State: secretmanagerpb.SecretVersion_ENABLED, Etag: s.etag(),
			ReplicationStatus: replicationStatus(sec.pb.GetReplication()), ClientSpecifiedPayloadChecksum: checked,
		}}
		sec.versions = append(sec.versions, v)
		return v.view(), nil
	})
}

func checksum(data []byte) int64 { return int64(crc32.Checksum(data, castagnoli)) }

func replicationStatus(r *secretmanagerpb.Replication) *secretmanagerpb.ReplicationStatus {
	switch {
	case r.GetUserManaged() != nil:
		u := &secretmanagerpb.ReplicationStatus_UserManagedStatus{}
		for _, replica := range r.GetUserManaged().GetReplicas() {
			u.Replicas = append(u.Replicas, &secretmanagerpb.ReplicationStatus_UserManagedStatus_ReplicaStatus{Location: replica.GetLocation()})
		}
		return &secretmanagerpb.ReplicationStatus{ReplicationStatus: &secretmanagerpb.ReplicationStatus_UserManaged{UserManaged: u}}
	case r.GetAutomatic() != nil:
		return &secretmanagerpb.ReplicationStatus{ReplicationStatus: &secretmanagerpb.ReplicationStatus_Automatic{
			Automatic: &secretmanagerpb.ReplicationStatus_AutomaticStatus{},
		}}
	}
	return nil
}

// GetSecretVersion returns a version's state, never its payload.
func (s *Server) GetSecretVersion(_ context.Context, in *secretmanagerpb.GetSecretVersionRequest) (*secretmanagerpb.SecretVersion, error) {
	return answer(s, "GetSecretVersion", func(now time.Time) (*secretmanagerpb.SecretVersion, error) {
		_, v, err := s.version(in.GetName(), true, now)
		if err != nil {
			return nil, err
		}
		return v.view(), nil
	})
}

// ListSecretVersions lists a secret's versions, the newest first, destroyed
// ones included.
func (s *Server) ListSecretVersions(_ context.Context, in *secretmanagerpb.ListSecretVersionsRequest) (*secretmanagerpb.ListSecretVersionsResponse, error) {
	return answer(s, "ListSecretVersions", func(now time.Time) (*secretmanagerpb.ListSecretVersionsResponse, error) {
		sec, err := s.secret(in.GetParent(), now)
		if err != nil {
			return nil, err
		}
		n, below, err := page(in.GetPageSize(), in.GetPageToken())
		if err != nil {
			return nil, err
		}
		terms, err := parseFilter(in.GetFilter())
		if err != nil {
			return nil, err
		}
		visible := s.visible(sec, now)
		out := &secretmanagerpb.ListSecretVersionsResponse{}
		if terms == nil {
			out.TotalSize = int32(visible)
		}
		for number := min(uint64(visible), below-1); number > 0; number-- {
			v := sec.find(number, now)
			if !matches(terms, v.pb.GetName(), v.pb.GetState().String(), nil) {
				continue
			}
			if len(out.Versions) == n {
				out.NextPageToken = pageToken(number + 1)
				break
			}
			out.Versions = append(out.Versions, v.view())
		}
		return out, nil
	})
}

// AccessSecretVersion returns the payload of an enabled version.
func (s *Server) AccessSecretVersion(_ context.Context, in *secretmanagerpb.AccessSecretVersionRequest) (*secretmanagerpb.AccessSecretVersionResponse, error) {
	return answer(s, "AccessSecretVersion", func(now time.Time) (*secretmanagerpb.AccessSecretVersionResponse, error) {
		_, v, err := s.version(in.GetName(), true, now)
		if err != nil {
			return nil, err
		}
		if v.pb.GetState() != secretmanagerpb.SecretVersion_ENABLED {
			return nil, wrongState(v)
		}
		return &secretmanagerpb.AccessSecretVersionResponse{Name: v.pb.GetName(), Payload: &secretmanagerpb.SecretPayload{
			Data: slices.Clone(v.data), DataCrc32C: proto.Int64(checksum(v.data)),
		}}, nil
	})
}

func wrongState(v *version) error {
	return precondition("Secret Version [%s] is in %s state.", v.pb.GetName(), v.pb.GetState())
}

// EnableSecretVersion makes a version accessible again; it also calls off a
// destruction that is still delayed.
func (s *Server) EnableSecretVersion(_ context.Context, in *secretmanagerpb.EnableSecretVersionRequest) (*secretmanagerpb.SecretVersion, error) {
	return answer(s, "EnableSecretVersion", func(now time.Time) (*secretmanagerpb.SecretVersion, error) {
		return s.change(in.GetName(), in.GetEtag(), now, func(_ *secret, v *version) {
			v.pb.State, v.pb.ScheduledDestroyTime = secretmanagerpb.SecretVersion_ENABLED, nil
		})
	})
}

// DisableSecretVersion makes a version inaccessible until it is enabled; it
// also calls off a destruction that is still delayed.
func (s *Server) DisableSecretVersion(_ context.Context, in *secretmanagerpb.DisableSecretVersionRequest) (*secretmanagerpb.SecretVersion, error) {
	return answer(s, "DisableSecretVersion", func(now time.Time) (*secretmanagerpb.SecretVersion, error) {
		return s.change(in.GetName(), in.GetEtag(), now, func(_ *secret, v *version) {
			v.pb.State, v.pb.ScheduledDestroyTime = secretmanagerpb.SecretVersion_DISABLED, nil
		})
	})
}

// DestroySecretVersion wipes the payload; with version_destroy_ttl it disables
// the version now and wipes it after that time.
func (s *Server) DestroySecretVersion(_ context.Context, in *secretmanagerpb.DestroySecretVersionRequest) (*secretmanagerpb.SecretVersion, error) {
	return answer(s, "DestroySecretVersion", func(now time.Time) (*secretmanagerpb.SecretVersion, error) {
		return s.change(in.GetName(), in.GetEtag(), now, func(sec *secret, v *version) {
			if delay := sec.pb.GetVersionDestroyTtl().AsDuration(); delay > 0 {
				v.pb.State = secretmanagerpb.SecretVersion_DISABLED
				v.pb.ScheduledDestroyTime = timestamppb.New(now.Add(delay))
				return
			}
			v.destroy(now)
		})
	})
}

// change alters a version that is not destroyed.
func (s *Server) change(name, etag string, now time.Time, do func(*secret, *version)) (*secretmanagerpb.SecretVersion, error) {
	sec, v, err := s.version(name, false, now)
	if err != nil {
		return nil, err
	}
	if err := checkEtag(etag, v.pb.GetEtag()); err != nil {
		return nil, err
	}
	if v.pb.GetState() == secretmanagerpb.SecretVersion_DESTROYED {
		return nil, wrongState(v)
	}
	do(sec, v)
	v.pb.Etag = s.etag()
	return v.view(), nil
}
