package secretmanager

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The patterns of names and of what a caller may set, from the reference of
// the fields concerned.
var (
	parentPattern        = regexp.MustCompile(`^projects/[A-Za-z0-9:.-]+(/locations/[A-Za-z0-9-]+)?$`)
	secretIDPattern      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`)
	versionPattern       = regexp.MustCompile(`^[1-9][0-9]*$`)
	aliasPattern         = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,62}$`)
	labelKeyPattern      = regexp.MustCompile(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}$`)
	labelValuePattern    = regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}_-]{0,63}$`)
	annotationKeyPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

const latest = "latest"

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func precondition(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

func noSecret(name string) error {
	return status.Errorf(codes.NotFound, "Secret [%s] not found.", name)
}

func noVersions(name string) error {
	return status.Errorf(codes.NotFound, "Secret [%s] not found or has no versions.", name)
}

func checkParent(name string) error {
	if !parentPattern.MatchString(name) {
		return invalid("The provided name [%s] does not match the expected format [projects/*] or [projects/*/locations/*].", name)
	}
	return nil
}

func regional(parent string) bool { return strings.Contains(parent, "/locations/") }

func checkSecretName(name string) error {
	parent, id, ok := strings.Cut(name, "/secrets/")
	if !ok || !parentPattern.MatchString(parent) || !secretIDPattern.MatchString(id) {
		return invalid("The provided name [%s] does not match the expected format [projects/*/secrets/*] or [projects/*/locations/*/secrets/*].", name)
	}
	return nil
}

// splitVersion splits a version's full name into the secret's full name and
// the version's number, alias or `latest`.
func splitVersion(name string) (secret, version string, err error) {
	secret, version, ok := strings.Cut(name, "/versions/")
	if !ok || checkSecretName(secret) != nil || !versionPattern.MatchString(version) && !aliasPattern.MatchString(version) {
		return "", "", invalid("The provided name [%s] does not match the expected format [projects/*/secrets/*/versions/*] or [projects/*/locations/*/secrets/*/versions/*].", name)
	}
	return secret, version, nil
}

// checkSettings checks the fields of a secret that a caller may set.
func checkSettings(in *secretmanagerpb.Secret, now time.Time) error {
	if len(in.GetLabels()) > 64 {
		return invalid("A secret can have at most 64 labels.")
	}
	for k, v := range in.GetLabels() {
		if !labelKeyPattern.MatchString(k) || len(k) > 128 || !labelValuePattern.MatchString(v) || len(v) > 128 {
			return invalid("Label %q=%q does not match the rules for labels.", k, v)
		}
	}
	size := 0
	for k, v := range in.GetAnnotations() {
		size += len(k) + len(v)
		if !annotationKeyPattern.MatchString(k) {
			return invalid("Annotation key %q does not match the rules for annotations.", k)
		}
	}
	if size >= 16<<10 {
		return invalid("The annotations must be smaller than 16KiB in all.")
	}
	if len(in.GetVersionAliases()) > 50 {
		return invalid("A secret can have at most 50 version aliases.")
	}
	for alias := range in.GetVersionAliases() {
		if !aliasPattern.MatchString(alias) || alias == latest || alias == "NEW" {
			return invalid("Version alias %q does not match the rules for aliases.", alias)
		}
	}
	if len(in.GetTopics()) > 10 {
		return invalid("A secret can have at most 10 topics.")
	}
	if d := in.GetVersionDestroyTtl(); d != nil && (d.CheckValid() != nil || d.AsDuration() < 0) {
		return invalid("version_destroy_ttl must be a valid duration.")
	}
	switch e := in.GetExpiration().(type) {
	case *secretmanagerpb.Secret_Ttl:
		if e.Ttl.CheckValid() != nil || e.Ttl.AsDuration() <= 0 {
			return invalid("ttl must be positive.")
		}
	case *secretmanagerpb.Secret_ExpireTime:
		if e.ExpireTime.CheckValid() != nil || !e.ExpireTime.AsTime().After(now) {
			return invalid("expire_time must be in the future.")
		}
	}
	return nil
}

// A filter is a conjunction of terms.
type term struct{ field, value string }

var termPattern = regexp.MustCompile(`^(name|state|labels\.[^:=\s]+)\s*[:=]\s*"?([^"\s]*)"?$`)

func parseFilter(s string) ([]term, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var out []term
	for part := range strings.SplitSeq(s, " AND ") {
		m := termPattern.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return nil, invalid("This emulator's filters are terms name:TEXT, labels.KEY=VALUE and state:STATE joined by AND; %q is none.", part)
		}
		out = append(out, term{m[1], m[2]})
	}
	return out, nil
}

// matches reports whether every term holds of a resource with this name, state
// and labels.
func matches(terms []term, name, state string, labels map[string]string) bool {
	for _, t := range terms {
		label, isLabel := strings.CutPrefix(t.field, "labels.")
		ok := false
		switch {
		case isLabel:
			v, there := labels[label]
			ok = there && (t.value == "*" || v == t.value)
		case t.field == "name":
			ok = strings.Contains(strings.ToLower(name), strings.ToLower(t.value))
		default:
			ok = strings.EqualFold(state, t.value)
		}
		if !ok {
			return false
		}
	}
	return true
}

const (
	defaultPage = 100
	maxPage     = 25000
)

// page reads the two paging fields: how many to return, starting below which
// number (lists are newest first).
func page(size int32, token string) (n int, below uint64, err error) {
	switch {
	case size < 0:
		return 0, 0, invalid("page_size cannot be negative.")
	case size == 0:
		n = defaultPage
	default:
		n = int(min(size, maxPage))
	}
	if token == "" {
		return n, 1<<64 - 1, nil
	}
	if below, err = strconv.ParseUint(token, 36, 64); err != nil {
		return 0, 0, invalid("Invalid page_token.")
	}
	return n, below, nil
}

func pageToken(below uint64) string { return strconv.FormatUint(below, 36) }
