package cloudtasks

import (
	"math"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// What Cloud Tasks picks for settings left at zero.
const (
	defaultRate        = 500
	defaultConcurrency = 1000
	defaultAttempts    = 100
	defaultMinBackoff  = 100 * time.Millisecond
	defaultMaxBackoff  = time.Hour
	defaultDoublings   = 16
)

// DefaultBurst is the max_burst_size for a rate in dispatches per second: a
// fifth of it, at least 10. Production reports 100 for the default 500/s and 10
// for low rates.
func DefaultBurst(rate float64) int32 { return int32(max(10, math.Ceil(rate/5))) }

// settle checks a queue's settings as given by a caller and fills in what was
// left out; q is changed in place. Output-only fields are left alone.
func settle(q *cloudtaskspb.Queue, burst func(float64) int32) error {
	if q.GetAppEngineRoutingOverride() != nil {
		return status.Error(codes.Unimplemented, "App Engine targets are not emulated: remove app_engine_routing_override.")
	}
	if err := checkTarget(q.GetHttpTarget()); err != nil {
		return err
	}
	if r := q.GetStackdriverLoggingConfig().GetSamplingRatio(); !(r >= 0 && r <= 1) {
		return invalid("StackdriverLoggingConfig.samplingRatio must be between 0.0 and 1.0.")
	}
	if q.RateLimits == nil {
		q.RateLimits = &cloudtaskspb.RateLimits{}
	}
	l := q.RateLimits
	switch {
	case !(l.MaxDispatchesPerSecond >= 0):
		return invalid("RateLimits.maxDispatchesPerSecond cannot be negative.")
	case l.MaxDispatchesPerSecond > 500:
		return invalid("RateLimits.maxDispatchesPerSecond must be less than or equal to 500.")
	case l.MaxConcurrentDispatches < 0:
		return invalid("RateLimits.maxConcurrentDispatches cannot be negative.")
	case l.MaxConcurrentDispatches > 5000:
		return invalid("RateLimits.maxConcurrentDispatches must be less than or equal to 5000.")
	}
	if l.MaxDispatchesPerSecond == 0 {
		l.MaxDispatchesPerSecond = defaultRate
	}
	if l.MaxConcurrentDispatches == 0 {
		l.MaxConcurrentDispatches = defaultConcurrency
	}
	l.MaxBurstSize = max(1, burst(l.MaxDispatchesPerSecond))
	if q.RetryConfig == nil {
		q.RetryConfig = &cloudtaskspb.RetryConfig{}
	}
	return settleRetry(q.RetryConfig)
}

// settleRetry does for retry settings what settle does for a queue.
func settleRetry(r *cloudtaskspb.RetryConfig) error {
	for _, f := range []struct {
		name string
		d    *durationpb.Duration
	}{{"minBackoff", r.MinBackoff}, {"maxBackoff", r.MaxBackoff}, {"maxRetryDuration", r.MaxRetryDuration}} {
		switch {
		case f.d == nil:
		case f.d.CheckValid() != nil:
			return invalid("RetryConfig.%s is not a valid duration.", f.name)
		case f.d.AsDuration() < 0:
			return invalid("RetryConfig.%s cannot be negative.", f.name)
		}
	}
	switch {
	case r.MaxAttempts < -1:
		return invalid("RetryConfig.maxAttempts must be greater or equal to -1.")
	case r.MaxDoublings < 0:
		return invalid("RetryConfig.maxDoublings cannot be negative.")
	}
	if r.MaxAttempts == 0 {
		r.MaxAttempts = defaultAttempts
	}
	if r.MinBackoff.AsDuration() == 0 {
		r.MinBackoff = durationpb.New(defaultMinBackoff)
	}
	if r.MaxBackoff.AsDuration() == 0 {
		r.MaxBackoff = durationpb.New(defaultMaxBackoff)
	}
	if r.MaxDoublings == 0 {
		r.MaxDoublings = defaultDoublings
	}
	if d := r.MaxRetryDuration.AsDuration(); d > 0 {
		r.MaxRetryDuration = durationpb.New(d.Truncate(time.Second))
	} else {
		r.MaxRetryDuration = nil
	}
	if r.MinBackoff.AsDuration() > r.MaxBackoff.AsDuration() {
		return invalid("RetryConfig.minBackoff must be less than or equal to RetryConfig.maxBackoff.")
	}
	return nil
}

func checkTarget(t *cloudtaskspb.HttpTarget) error {
	if t == nil {
		return nil
	}
	if o := t.GetUriOverride(); o != nil {
		if o.Host != nil && o.GetHost() == "" {
			return invalid("HttpTarget.uriOverride.host cannot be empty.")
		}
		if o.Port != nil && (o.GetPort() < 0 || o.GetPort() > 65535) {
			return invalid("HttpTarget.uriOverride.port must be between 0 and 65535.")
		}
	}
	headers := make(map[string]string)
	for _, h := range t.GetHeaderOverrides() {
		headers[h.GetHeader().GetKey()] = h.GetHeader().GetValue()
	}
	if err := checkHeaders(headers); err != nil {
		return err
	}
	if o := t.GetOidcToken(); o != nil && (o.GetServiceAccountEmail() == "" || o.GetAudience() == "") {
		return invalid("HttpTarget.oidcToken needs both serviceAccountEmail and audience.")
	}
	if o := t.GetOauthToken(); o != nil && (o.GetServiceAccountEmail() == "" || o.GetScope() == "") {
		return invalid("HttpTarget.oauthToken needs both serviceAccountEmail and scope.")
	}
	return nil
}

// outputOnly are the fields of Queue that UpdateQueue ignores.
var outputOnly = []string{"name", "state", "purge_time", "rate_limits.max_burst_size"}

// settable are the fields that it replaces when no mask is given.
var settable = []string{"app_engine_routing_override", "http_target", "rate_limits", "retry_config", "stackdriver_logging_config"}

// applyMask copies the masked fields of src to dst; an empty mask, or "*",
// stands for all settable ones. A field absent from src is cleared in dst. The
// copied messages are shared with src.
func applyMask(dst, src *cloudtaskspb.Queue, mask *fieldmaskpb.FieldMask) error {
	paths := mask.GetPaths()
	if len(paths) == 0 || slices.Equal(paths, []string{"*"}) {
		paths = settable
	}
	for _, path := range paths {
		if slices.Contains(outputOnly, path) {
			continue
		}
		if !copyField(dst.ProtoReflect(), src.ProtoReflect(), strings.Split(path, ".")) {
			return invalid("Invalid field mask: Queue has no field %q.", path)
		}
	}
	return nil
}

func copyField(dst, src protoreflect.Message, path []string) bool {
	field := dst.Descriptor().Fields().ByName(protoreflect.Name(path[0]))
	switch {
	case field == nil:
		return false
	case len(path) > 1:
		if field.Message() == nil || field.IsList() || field.IsMap() {
			return false
		}
		return copyField(dst.Mutable(field).Message(), src.Get(field).Message(), path[1:])
	case src.Has(field):
		dst.Set(field, src.Get(field))
	default:
		dst.Clear(field)
	}
	return true
}

// bucket is a token bucket in the form of the generic cell rate algorithm:
// exact in nanoseconds, and without any work while nothing is sent. full is
// the time at which it will be full again.
type bucket struct {
	interval time.Duration // between two tokens
	burst    int64
	full     time.Time
}

// maxInterval bounds the wait for a token: no task lives that long.
const maxInterval = 32 * 24 * time.Hour

// set changes the limits and keeps the number of tokens that are missing.
func (b *bucket) set(rate float64, burst int32, now time.Time) {
	missing := 0.0
	if b.interval > 0 && b.full.After(now) {
		missing = float64(b.full.Sub(now)) / float64(b.interval)
	}
	b.interval = time.Duration(min(float64(time.Second)/rate, float64(maxInterval)))
	// Keeps burst × interval far from the range of a Duration.
	b.burst = min(int64(burst), (1<<61)/int64(b.interval))
	b.full = now.Add(time.Duration(min(missing, float64(burst)) * float64(b.interval)))
}

// ready is the time at which a token is there, possibly in the past.
func (b *bucket) ready() time.Time {
	return b.full.Add(-time.Duration(b.burst-1) * b.interval)
}

func (b *bucket) take(now time.Time) {
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(b.interval)
}

// backoff is the wait after the n-th failed attempt (n ≥ 1): min_backoff
// doubled max_doublings times, then growing by its last value, never above
// max_backoff. See RetryConfig.max_doublings.
func backoff(r *cloudtaskspb.RetryConfig, n int32) time.Duration {
	least, most := r.GetMinBackoff().AsDuration(), r.GetMaxBackoff().AsDuration()
	doublings := min(n-1, r.GetMaxDoublings())
	wait := float64(least) * math.Pow(2, float64(doublings))
	if more := n - 1 - doublings; more > 0 {
		wait += float64(more) * wait
	}
	if wait >= float64(most) {
		return most
	}
	return time.Duration(wait)
}

// exhausted reports whether a task that has failed n times, first dispatched
// at first, is given up at now: once every limit that is set has been reached.
func exhausted(r *cloudtaskspb.RetryConfig, n int32, first, now time.Time) bool {
	attempts, age := r.GetMaxAttempts(), r.GetMaxRetryDuration().AsDuration()
	if attempts < 0 && age == 0 {
		return false
	}
	return (attempts < 0 || n >= attempts) && (age == 0 || now.Sub(first) >= age)
}

func cloneQueue(q *cloudtaskspb.Queue) *cloudtaskspb.Queue {
	return proto.Clone(q).(*cloudtaskspb.Queue)
}
