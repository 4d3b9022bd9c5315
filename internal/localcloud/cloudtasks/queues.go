package cloudtasks

import (
	"container/heap"
	"context"
	"encoding/base64"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const maxQueuePage = 9800

var (
	errNoQueue   = status.Error(codes.NotFound, "Queue does not exist. If you just created the queue, wait at least a minute for the queue to initialize.")
	errNoEntity  = status.Error(codes.NotFound, "Requested entity was not found.")
	errQuota     = status.Error(codes.ResourceExhausted, "Quota exceeded for the number of queues per region.")
	errQueueGone = status.Error(codes.FailedPrecondition, "The queue cannot be created because a queue with this name existed too recently.")
)

// CreateQueue creates a running queue; settings left at zero get the service's
// defaults.
func (s *Server) CreateQueue(_ context.Context, in *cloudtaskspb.CreateQueueRequest) (*cloudtaskspb.Queue, error) {
	return answer(s, "CreateQueue", func() (*cloudtaskspb.Queue, error) {
		if err := checkLocation(in.GetParent()); err != nil {
			return nil, err
		}
		name := in.GetQueue().GetName()
		if _, _, err := splitQueue(name); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(name, in.GetParent()+"/queues/") {
			return nil, invalid("%s must begin with %s.", name, in.GetParent())
		}
		config := cloneQueue(in.GetQueue())
		config.PurgeTime = nil
		if err := settle(config, s.o.Burst); err != nil {
			return nil, err
		}
		e := s.e
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.queues[name] != nil {
			return nil, status.Error(codes.AlreadyExists, "Queue already exists")
		}
		return s.create(config)
	})
}

// create adds a queue with settled settings, or refuses if the name is not
// free yet. Called with the engine locked.
func (s *Server) create(config *cloudtaskspb.Queue) (*cloudtaskspb.Queue, error) {
	e, now := s.e, s.e.clock.Now()
	config.State = cloudtaskspb.Queue_RUNNING
	if until, taken := e.graves[config.GetName()]; taken && now.Before(until) {
		if s.o.GhostRecreate {
			return config, nil
		}
		return nil, errQueueGone
	}
	if s.o.MaxQueues >= 0 && e.count(config.GetName()) >= s.o.MaxQueues {
		return nil, errQuota
	}
	delete(e.graves, config.GetName())
	q := &queue{
		name: config.GetName(), config: config, tasks: make(map[string]*task), gone: make(map[string]struct{}), index: -1,
		acceptFrom: now.Add(s.o.CreateTaskNotFoundFor), startFrom: now.Add(s.o.QueueStartDelay),
	}
	q.bucket.set(config.RateLimits.MaxDispatchesPerSecond, config.RateLimits.MaxBurstSize, now)
	e.queues[q.name] = q
	return cloneQueue(config), nil
}

// count is the number of queues in the location of that one.
func (e *engine) count(name string) int {
	n, location := 0, name[:strings.Index(name, "/queues/")+1]
	for other := range e.queues {
		if strings.HasPrefix(other, location) {
			n++
		}
	}
	return n
}

// UpdateQueue changes the masked settings, all of them without a mask, and
// creates the queue if there is none.
func (s *Server) UpdateQueue(_ context.Context, in *cloudtaskspb.UpdateQueueRequest) (*cloudtaskspb.Queue, error) {
	return answer(s, "UpdateQueue", func() (*cloudtaskspb.Queue, error) {
		name := in.GetQueue().GetName()
		if _, _, err := splitQueue(name); err != nil {
			return nil, err
		}
		e := s.e
		e.mu.Lock()
		defer e.mu.Unlock()
		config := &cloudtaskspb.Queue{Name: name}
		q := e.queues[name]
		if q != nil {
			config = cloneQueue(q.config)
		}
		if err := applyMask(config, cloneQueue(in.GetQueue()), in.GetUpdateMask()); err != nil {
			return nil, err
		}
		if err := settle(config, s.o.Burst); err != nil {
			return nil, err
		}
		if q == nil {
			return s.create(config)
		}
		q.config = config
		q.bucket.set(config.RateLimits.MaxDispatchesPerSecond, config.RateLimits.MaxBurstSize, e.clock.Now())
		e.schedule(q)
		e.arm()
		return cloneQueue(config), nil
	})
}

// GetQueue returns a queue's settings and state.
func (s *Server) GetQueue(_ context.Context, in *cloudtaskspb.GetQueueRequest) (*cloudtaskspb.Queue, error) {
	return answer(s, "GetQueue", func() (*cloudtaskspb.Queue, error) {
		return s.withQueue(in.GetName(), func(*queue) {})
	})
}

// PauseQueue stops dispatching; what is in flight goes on.
func (s *Server) PauseQueue(_ context.Context, in *cloudtaskspb.PauseQueueRequest) (*cloudtaskspb.Queue, error) {
	return answer(s, "PauseQueue", func() (*cloudtaskspb.Queue, error) {
		return s.withQueue(in.GetName(), func(q *queue) {
			q.config = cloneQueue(q.config)
			q.config.State = cloudtaskspb.Queue_PAUSED
		})
	})
}

// ResumeQueue undoes PauseQueue; a running queue stays as it is.
func (s *Server) ResumeQueue(_ context.Context, in *cloudtaskspb.ResumeQueueRequest) (*cloudtaskspb.Queue, error) {
	return answer(s, "ResumeQueue", func() (*cloudtaskspb.Queue, error) {
		return s.withQueue(in.GetName(), func(q *queue) {
			q.config = cloneQueue(q.config)
			q.config.State = cloudtaskspb.Queue_RUNNING
		})
	})
}

// PurgeQueue deletes every task of the queue at once; what is in flight goes
// on, but is not tried again. The names stay taken.
func (s *Server) PurgeQueue(_ context.Context, in *cloudtaskspb.PurgeQueueRequest) (*cloudtaskspb.Queue, error) {
	return answer(s, "PurgeQueue", func() (*cloudtaskspb.Queue, error) {
		return s.withQueue(in.GetName(), func(q *queue) {
			now := s.e.clock.Now()
			for len(q.order) > 0 {
				q.remove(q.order[0].t, now, s.e.nameTTL)
			}
			q.config = cloneQueue(q.config)
			q.config.PurgeTime = timestamppb.New(now.Truncate(time.Microsecond))
		})
	})
}

// withQueue changes an existing queue and returns its settings.
func (s *Server) withQueue(name string, change func(*queue)) (*cloudtaskspb.Queue, error) {
	if _, _, err := splitQueue(name); err != nil {
		return nil, err
	}
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queues[name]
	if q == nil {
		return nil, errNoQueue
	}
	change(q)
	e.schedule(q)
	e.arm()
	return cloneQueue(q.config), nil
}

// DeleteQueue deletes a queue with all its tasks; what is in flight goes on.
func (s *Server) DeleteQueue(_ context.Context, in *cloudtaskspb.DeleteQueueRequest) (*emptypb.Empty, error) {
	return answer(s, "DeleteQueue", func() (*emptypb.Empty, error) {
		if _, _, err := splitQueue(in.GetName()); err != nil {
			return nil, err
		}
		e := s.e
		e.mu.Lock()
		defer e.mu.Unlock()
		q := e.queues[in.GetName()]
		if q == nil {
			return nil, errNoEntity
		}
		delete(e.queues, q.name)
		e.graves[q.name] = e.clock.Now().Add(s.o.QueueNameTTL)
		if q.index >= 0 {
			heap.Remove(&e.wakes, q.index)
		}
		e.arm()
		return &emptypb.Empty{}, nil
	})
}

// stateFilter is all that is understood of the filter language.
var stateFilter = regexp.MustCompile(`^\s*state\s*[:=]\s*"?([A-Z_]+)"?\s*$`)

// ListQueues lists the queues of a location by name, at most 9,800 a page.
func (s *Server) ListQueues(_ context.Context, in *cloudtaskspb.ListQueuesRequest) (*cloudtaskspb.ListQueuesResponse, error) {
	return answer(s, "ListQueues", func() (*cloudtaskspb.ListQueuesResponse, error) {
		if err := checkLocation(in.GetParent()); err != nil {
			return nil, err
		}
		size, err := pageSize(in.GetPageSize(), maxQueuePage)
		if err != nil {
			return nil, err
		}
		after, err := base64.RawURLEncoding.DecodeString(in.GetPageToken())
		if err != nil {
			return nil, invalid("Invalid page token.")
		}
		state := ""
		if in.GetFilter() != "" {
			m := stateFilter.FindStringSubmatch(in.GetFilter())
			if m == nil {
				return nil, invalid("This emulator filters queues only by state, as in \"state: PAUSED\".")
			}
			state = m[1]
		}
		s.e.mu.Lock()
		defer s.e.mu.Unlock()
		out := &cloudtaskspb.ListQueuesResponse{}
		for _, name := range slices.Sorted(maps.Keys(s.e.queues)) {
			q := s.e.queues[name]
			if name <= string(after) || !strings.HasPrefix(name, in.GetParent()+"/queues/") ||
				state != "" && q.config.GetState().String() != state {
				continue
			}
			if len(out.Queues) == size {
				out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(out.Queues[size-1].GetName()))
				break
			}
			out.Queues = append(out.Queues, cloneQueue(q.config))
		}
		return out, nil
	})
}

func pageSize(asked int32, most int) (int, error) {
	switch {
	case asked < 0:
		return 0, invalid("Page size cannot be negative.")
	case asked == 0 || int(asked) > most:
		return most, nil
	}
	return int(asked), nil
}
