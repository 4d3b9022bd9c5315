package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	taskspb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"github.com/sealpost/sealpost/internal/webhook"
)

// ControlPath is the path of the dispatcher that control tasks post to.
const ControlPath = "/control"

// Control makes sure that the control's task exists, in the queue of control tasks,
// to run not before c.At. It is idempotent in what c is: the name is derived from
// it, and a name that Cloud Tasks already knows is success.
func (q *Queue) Control(ctx context.Context, c webhook.Control) error {
	body, err := json.Marshal(c)
	if err == nil {
		err = q.create(ctx, q.cfg.Control, c.TaskID(), ControlPath, body, c.At, headers(ctx))
	}
	if err != nil {
		return fmt.Errorf("make control %s of %s/%s: %w", c.Kind, c.Tenant, c.Endpoint, err)
	}
	return nil
}

// Pause has an endpoint's own queue dispatch nothing more. Idempotent; what was
// dispatched already is not called back. A queue that is not there is success. A
// shared queue is never paused: that is an error.
func (q *Queue) Pause(ctx context.Context, name string) error {
	if name == q.cfg.Control || slices.Contains(q.cfg.Pools, name) {
		return fmt.Errorf("pause queue %s: it serves others too", name)
	}
	_, err := q.client.PauseQueue(ctx, &taskspb.PauseQueueRequest{Name: q.queueName(name)})
	if err != nil && !absent(err) {
		return fmt.Errorf("pause queue %s: %w", name, err)
	}
	return nil
}

// Resume has a queue go on. Idempotent; a queue that is not there is success.
func (q *Queue) Resume(ctx context.Context, name string) error {
	_, err := q.client.ResumeQueue(ctx, &taskspb.ResumeQueueRequest{Name: q.queueName(name)})
	if err != nil && !absent(err) {
		return fmt.Errorf("resume queue %s: %w", name, err)
	}
	return nil
}
