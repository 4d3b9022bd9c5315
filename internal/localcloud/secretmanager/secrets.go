package secretmanager

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// secret is guarded by Server.mu.
type secret struct {
	seq      uint64
	pb       *secretmanagerpb.Secret
	created  time.Time
	versions []*version // number i+1 at index i; never shrinks
}

// etag returns a new etag, with its quotes (AIP-154). Called with s locked.
func (s *Server) etag() string {
	s.seq++
	return fmt.Sprintf("%q", fmt.Sprintf("%x", s.seq))
}

// find returns the secret of that full name, nil if there is none any more.
func (s *Server) find(name string, now time.Time) *secret {
	sec := s.secrets[name]
	if sec == nil {
		return nil
	}
	if at := sec.pb.GetExpireTime(); at != nil && !now.Before(at.AsTime()) {
		delete(s.secrets, name)
		return nil
	}
	return sec
}

// view is the secret as the API shows it.
func (sec *secret) view() *secretmanagerpb.Secret {
	return proto.Clone(sec.pb).(*secretmanagerpb.Secret)
}

// resolveExpiration turns a ttl into an expire_time, which alone is output.
func resolveExpiration(pb *secretmanagerpb.Secret, now time.Time) {
	if ttl := pb.GetTtl(); ttl != nil {
		pb.Expiration = &secretmanagerpb.Secret_ExpireTime{ExpireTime: timestamppb.New(now.Add(ttl.AsDuration()))}
	}
}

// CreateSecret creates a secret without versions.
func (s *Server) CreateSecret(_ context.Context, in *secretmanagerpb.CreateSecretRequest) (*secretmanagerpb.Secret, error) {
	return answer(s, "CreateSecret", func(now time.Time) (*secretmanagerpb.Secret, error) {
		if err := checkParent(in.GetParent()); err != nil {
			return nil, err
		}
		if !secretIDPattern.MatchString(in.GetSecretId()) {
			return nil, invalid("The provided secret ID [%s] does not match the expected format [[a-zA-Z_0-9]+].", in.GetSecretId())
		}
		if has := in.GetSecret().GetReplication().GetReplication() != nil; has == regional(in.GetParent()) {
			return nil, invalid("secret.replication must be set, to automatic or user_managed, for a global secret, and must not for a regional one.")
		}
		if err := checkSettings(in.GetSecret(), now); err != nil {
			return nil, err
		}
		if len(in.GetSecret().GetVersionAliases()) > 0 {
			return nil, precondition("A new secret has no versions that aliases could name.")
		}
		name := in.GetParent() + "/secrets/" + in.GetSecretId()
		if s.find(name, now) != nil {
			return nil, status.Errorf(codes.AlreadyExists, "Secret [%s] already exists.", name)
		}
		pb := proto.Clone(in.GetSecret()).(*secretmanagerpb.Secret)
		pb.Name, pb.CreateTime, pb.Etag = name, timestamppb.New(now), s.etag()
		pb.Tags = nil // input only
		resolveExpiration(pb, now)
		sec := &secret{seq: s.seq, pb: pb, created: now}
		s.secrets[name] = sec
		return sec.view(), nil
	})
}

// GetSecret returns a secret's settings.
func (s *Server) GetSecret(_ context.Context, in *secretmanagerpb.GetSecretRequest) (*secretmanagerpb.Secret, error) {
	return answer(s, "GetSecret", func(now time.Time) (*secretmanagerpb.Secret, error) {
		sec, err := s.secret(in.GetName(), now)
		if err != nil {
			return nil, err
		}
		return sec.view(), nil
	})
}

func (s *Server) secret(name string, now time.Time) (*secret, error) {
	if err := checkSecretName(name); err != nil {
		return nil, err
	}
	sec := s.find(name, now)
	if sec == nil {
		return nil, noSecret(name)
	}
	return sec, nil
}

// ListSecrets lists a parent's secrets, the newest first.
func (s *Server) ListSecrets(_ context.Context, in *secretmanagerpb.ListSecretsRequest) (*secretmanagerpb.ListSecretsResponse, error) {
	return answer(s, "ListSecrets", func(now time.Time) (*secretmanagerpb.ListSecretsResponse, error) {
		if err := checkParent(in.GetParent()); err != nil {
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
		var all []*secret
		for _, name := range slices.Collect(maps.Keys(s.secrets)) {
			sec := s.find(name, now)
			if sec != nil && strings.HasPrefix(name, in.GetParent()+"/secrets/") && now.Sub(sec.created) >= s.o.Lag &&
				matches(terms, name, "", sec.pb.GetLabels()) {
				all = append(all, sec)
			}
		}
		slices.SortFunc(all, func(a, b *secret) int { return cmp.Compare(b.seq, a.seq) })
		out := &secretmanagerpb.ListSecretsResponse{}
		if terms == nil {
			out.TotalSize = int32(len(all))
		}
		for _, sec := range all {
			if sec.seq >= below {
				continue
			}
			if len(out.Secrets) == n {
				out.NextPageToken = pageToken(sec.seq + 1)
				break
			}
			out.Secrets = append(out.Secrets, sec.view())
		}
		return out, nil
	})
}

// updatable are the fields that UpdateSecret changes.
var updatable = []string{
	"labels", "annotations", "version_aliases", "topics", "ttl", "expire_time", "rotation",
	"version_destroy_ttl", "customer_managed_encryption",
}

// UpdateSecret replaces the masked settings; a field that is not set is
// cleared.
func (s *Server) UpdateSecret(_ context.Context, in *secretmanagerpb.UpdateSecretRequest) (*secretmanagerpb.Secret, error) {
	return answer(s, "UpdateSecret", func(now time.Time) (*secretmanagerpb.Secret, error) {
		sec, err := s.secret(in.GetSecret().GetName(), now)
		if err != nil {
			return nil, err
		}
		if err := checkEtag(in.GetSecret().GetEtag(), sec.pb.GetEtag()); err != nil {
			return nil, err
		}
		if len(in.GetUpdateMask().GetPaths()) == 0 {
			return nil, invalid("update_mask is required.")
		}
		if err := checkSettings(in.GetSecret(), now); err != nil {
			return nil, err
		}
		next, src := sec.view(), proto.Clone(in.GetSecret()).(*secretmanagerpb.Secret).ProtoReflect()
		for _, path := range in.GetUpdateMask().GetPaths() {
			if path == "etag" {
				continue
			}
			field := src.Descriptor().Fields().ByName(protoreflect.Name(path))
			if field == nil || !slices.Contains(updatable, path) {
				return nil, invalid("update_mask path %q cannot be updated.", path)
			}
			switch {
			case src.Has(field):
				next.ProtoReflect().Set(field, src.Get(field))
			case field.ContainingOneof() != nil: // ttl, expire_time: one setting
				next.Expiration = nil
			default:
				next.ProtoReflect().Clear(field)
			}
		}
		for alias, number := range next.GetVersionAliases() {
			if number < 1 || number > int64(len(sec.versions)) {
				return nil, precondition("Version alias %q names version %d, which does not exist.", alias, number)
			}
		}
		resolveExpiration(next, now)
		next.Etag = s.etag()
		sec.pb = next
		return sec.view(), nil
	})
}

// DeleteSecret deletes a secret with all its versions. The name is free at
// once.
func (s *Server) DeleteSecret(_ context.Context, in *secretmanagerpb.DeleteSecretRequest) (*emptypb.Empty, error) {
	return answer(s, "DeleteSecret", func(now time.Time) (*emptypb.Empty, error) {
		sec, err := s.secret(in.GetName(), now)
		if err != nil {
			return nil, err
		}
		if err := checkEtag(in.GetEtag(), sec.pb.GetEtag()); err != nil {
			return nil, err
		}
		delete(s.secrets, in.GetName())
		return &emptypb.Empty{}, nil
	})
}

func checkEtag(given, current string) error {
	if given != "" && given != current {
		return precondition("The etag provided does not match the current etag of the resource.")
	}
	return nil
}
