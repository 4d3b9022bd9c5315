// Package cloudtasks is an in-process emulator of Google Cloud Tasks, served
// as the real gRPC service google.cloud.tasks.v2.CloudTasks, for local
// development, tests and simulations in virtual time. Production code reaches
// it with the ordinary client of cloud.google.com/go/cloudtasks/apiv2 through
// option.WithEndpoint, option.WithoutAuthentication and insecure transport
// credentials.
//
// It owns queues, tasks, their tombstones, dispatch (rate, concurrency, retry,
// deadline) and the form of the HTTP request that a handler sees. It keeps
// everything in memory and forgets it on Close. It refuses App Engine targets.
//
// # Time
//
// Nothing here sleeps. Everything that waits is one entry in a heap per queue,
// one heap of queues, and a single timer of Options.Clock, so a queue of a
// hundred thousand tasks costs no goroutine; only an attempt in flight does.
// Three ways of driving it:
//
//   - the zero Options: the wall clock (also the fake clock of a
//     testing/synctest bubble, with an in-process Options.Transport);
//   - Options.Clock = a *VirtualClock: nothing happens until Advance;
//   - the same with Options.Sequential: attempts run one by one inside
//     Advance, in an order that depends on nothing but the calls made, which
//     is what a seeded simulation needs.
//
// The methods of *Server that implement the service may be called directly,
// without a network.
//
// # Like the real service
//
// Error codes and sentences, default queue settings, the size rule (stored
// form ≤ 1 MiB − 7 bytes) and the dispatch headers follow what has been
// recorded from production; the rest follows the API's reference. To be
// reckoned with in production code:
//
//   - A task name stays taken for TaskNameTTL after the task is gone, done or
//     deleted or purged: ALREADY_EXISTS.
//   - A deleted queue's name cannot be created again for QueueNameTTL:
//     FAILED_PRECONDITION, or with GhostRecreate a success that leaves no queue.
//   - A new queue may refuse tasks with NOT_FOUND (CreateTaskNotFoundFor) and
//     may dispatch late (QueueStartDelay).
//   - UpdateQueue creates a queue that does not exist.
//   - There are at most MaxQueues queues in a location: RESOURCE_EXHAUSTED.
//   - Pausing and purging recall nothing that is in flight.
//   - X-CloudTasks-TaskExecutionCount does not count 5xx answers and
//     X-CloudTasks-TaskRetryReason is always empty.
//   - Retries end only when both max_attempts and max_retry_duration are
//     used up; a limit that is not set (max_attempts −1, duration 0) does not
//     count, and with neither a task lives until it is 31 days old.
//   - max_dispatches_per_second is a token bucket that starts full: a queue
//     limited to 1/s sends its first ten tasks at once (see Options.Burst).
//   - 429 and 503 answers hold back the whole queue.
//
// # Unlike the real service
//
//   - System throttling is simplified: a 429 or 503 holds the queue for 1 s,
//     doubling with each further one after the hold ended, up to 60 s, or for
//     Retry-After if that is longer (at most one hour); any other answer ends
//     the series. The real service slows down gradually, also on high error
//     rates, and ramps up slowly; this one does not.
//   - Retries have no jitter, purges and updates take effect at once, RunTask
//     is not limited to 60 a minute, nor are lists to 600.
//   - max_burst_size is the larger of 10 and a fifth of the rate.
//   - Redirects are not followed: a 3xx is a failed attempt.
//   - OIDC tokens carry SIGNATURE_REMOVED_BY_GOOGLE for a signature, as Cloud
//     Run hands them on; OAuth tokens are opaque stubs. No service account is
//     looked up, nothing is authorised.
//   - ListQueues filters only by state; the task-level retry_config replaces
//     the queue's as a whole.
//   - The batch, IAM and CMEK methods answer UNIMPLEMENTED.
package cloudtasks
