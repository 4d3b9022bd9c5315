package cloudtasks

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The patterns of resource names, from the reference of Queue.name and
// Task.name.
var (
	locationPattern = regexp.MustCompile(`^projects/[A-Za-z0-9:.-]+/locations/[A-Za-z0-9-]+$`)
	queueIDPattern  = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)
	taskIDPattern   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,500}$`)
)

const (
	queueForm = `Queue name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>".`
	taskForm  = `Task name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>/tasks/<TASK_ID>".`
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// checkLocation accepts the parent of queues.
func checkLocation(name string) error {
	if !locationPattern.MatchString(name) {
		return invalid("Invalid resource field value in the request: parent %q must be formatted: \"projects/<PROJECT_ID>/locations/<LOCATION_ID>\".", name)
	}
	return nil
}

// splitQueue splits a queue's full name into location and id.
func splitQueue(name string) (location, id string, err error) {
	location, id, ok := strings.Cut(name, "/queues/")
	if !ok || !locationPattern.MatchString(location) || !queueIDPattern.MatchString(id) {
		return "", "", invalid("%s", queueForm)
	}
	return location, id, nil
}

// splitTask splits a task's full name into its queue's full name and its id.
func splitTask(name string) (queue, id string, err error) {
	queue, id, ok := strings.Cut(name, "/tasks/")
	if !ok {
		return "", "", invalid("%s", taskForm)
	}
	if _, _, err := splitQueue(queue); err != nil {
		return "", "", invalid("%s", taskForm)
	}
	if !taskIDPattern.MatchString(id) {
		return "", "", invalid("Task ID \"%s\" can contain only letters ([A-Za-z]), numbers ([0-9]), hyphens (-), or underscores (_). Task ID must between 1 and 500 characters.", id)
	}
	return queue, id, nil
}
