package deliver

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Further steps at which Options.Step is called, in control tasks.
const (
	StepProbeBegun = "probe begun"   // the probe is committed, its task not created
	StepPageTaken  = "page taken up" // a page is released, its tasks not created
	StepPageTasks  = "page's tasks"  // they are, the next page is not called for
	StepPublished  = "published"     // a notice is published, and not marked so
	StepQueueSet   = "queue set"     // the queue was told to stand still or to go on
)

// NoticeSource is the CloudEvents source of notices.
const NoticeSource = "sealpost"

// pageTasks is how many of a page's tasks are created at once.
const pageTasks = 16

// Control does what a control task asks for. A nil error means that Cloud Tasks may
// forget it: all that follows is under way. An error is ours; run it again. Running
// it again is safe at every step.
//
// What belongs to an earlier epoch of the endpoint's health does nothing but see
// that the present one has its controls.
func (d *Dispatcher) Control(ctx context.Context, c webhook.Control) error {
	began := d.o.Now()
	var err error
	var note []slog.Attr
	switch c.Kind {
	case webhook.ControlProbe:
		note, err = d.probe(ctx, c)
	case webhook.ControlHold:
		note, err = d.alignQueue(ctx, c)
	case webhook.ControlRelease:
		note, err = d.release(ctx, c)
	case webhook.ControlCancel:
		note, err = d.cancel(ctx, c)
	case webhook.ControlNotify:
		note, err = d.notify(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("control %s of %s/%s: %w", c.Kind, c.Tenant, c.Endpoint, err)
	}
	d.o.Log.LogAttrs(ctx, slog.LevelInfo, "control", append([]slog.Attr{
		slog.String("event", "control"), slog.String("kind", string(c.Kind)), slog.String("tenant", c.Tenant), slog.String("endpoint", c.Endpoint),
		slog.Int64("epoch", c.Epoch), slog.Float64("ms", float64(d.o.Now().Sub(began).Microseconds())/1000)}, note...)...)
	return nil
}

// probe sends one delivery of an endpoint whose cool-down is over.
func (d *Dispatcher) probe(ctx context.Context, c webhook.Control) ([]slog.Attr, error) {
	p, err := d.o.Store.StartProbe(ctx, c)
	if err != nil {
		return nil, err
	}
	switch {
	case p.Awaiting:
		// What comes next is the probe; it may come through the endpoint's own queue.
		note, err := d.alignQueue(ctx, c)
		return append(note, slog.Bool("awaiting", true)), err
	case !p.Started:
		return nil, d.Follow(ctx, c.Tenant, c.Endpoint)
	}
	if err := d.step(ctx, StepProbeBegun); err != nil {
		return nil, err
	}
	if err := d.schedule(ctx, p.Task); err != nil {
		return nil, err
	}
	return []slog.Attr{slog.String("event_id", p.Task.Key.Event.ID())}, d.control(ctx, p.Controls)
}

// alignQueue has the endpoint's own queue stand still or go on, as its state says
// now, and looks at the state again after. Whoever speaks last has therefore seen
// the state that the queue is in, in whatever order several do, and a queue never
// stands still for an endpoint that serves again.
func (d *Dispatcher) alignQueue(ctx context.Context, c webhook.Control) ([]slog.Attr, error) {
	queue, hold, err := d.o.Store.HoldQueue(ctx, c.Tenant, c.Endpoint)
	for range claims {
		if err != nil || queue == "" {
			return nil, err
		}
		if hold {
			err = d.o.Queue.Pause(ctx, queue)
		} else {
			err = d.o.Queue.Resume(ctx, queue)
		}
		if err == nil {
			err = d.step(ctx, StepQueueSet)
		}
		if err != nil {
			return nil, err
		}
		was := hold
		if queue, hold, err = d.o.Store.HoldQueue(ctx, c.Tenant, c.Endpoint); err == nil && hold == was {
			return []slog.Attr{slog.Bool("paused", hold)}, nil
		}
	}
	return nil, errUnsettled
}

// release takes one step of a release.
func (d *Dispatcher) release(ctx context.Context, c webhook.Control) ([]slog.Attr, error) {
	if c.Page == "" {
		if _, err := d.alignQueue(ctx, c); err != nil {
			return nil, err
		}
	}
	page, err := d.o.Store.ReleasePage(ctx, c)
	if err != nil {
		return nil, err
	}
	if page.Late {
		return []slog.Attr{slog.Bool("late", true)}, d.Follow(ctx, c.Tenant, c.Endpoint)
	}
	if err := d.step(ctx, StepPageTaken); err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(pageTasks)
	for i := range page.Tasks {
		g.Go(func() error { return d.schedule(gctx, &page.Tasks[i]) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := d.step(ctx, StepPageTasks); err != nil {
		return nil, err
	}
	note := []slog.Attr{slog.Int("released", page.Released), slog.Int("tasks", len(page.Tasks))}
	if page.Next != nil {
		return note, d.o.Queue.Control(ctx, *page.Next)
	}
	return append(note, slog.Bool("complete", true)), d.o.Store.FinishRelease(ctx, c)
}

// cancelPages bounds the pages that one run cancels.
const cancelPages = 20

// cancel cancels what is open of a deleted endpoint. Where that is too much for one
// run, the next one's page says which it is.
func (d *Dispatcher) cancel(ctx context.Context, c webhook.Control) ([]slog.Attr, error) {
	total := 0
	for range cancelPages {
		n, more, err := d.o.Store.CancelPage(ctx, c.Tenant, c.Endpoint)
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if total += n; !more {
			return []slog.Attr{slog.Int("cancelled", total)}, nil
		}
	}
	run, _ := strconv.Atoi(c.Page) // 0 for the first
	c.Page = strconv.Itoa(run + 1)
	return []slog.Attr{slog.Int("cancelled", total)}, d.o.Queue.Control(ctx, c)
}

// noticeData is the data of a notice's event.
type noticeData struct {
	Notice   webhook.Notice `json:"notice"`
	Tenant   string         `json:"tenant"`
	Endpoint string         `json:"endpoint"`
	// URL is masked: what its query says stays between us and the endpoint.
	URL string `json:"url"`
	store.NoticeDetail
}

// notify publishes the endpoint's notices that are not published yet, in order.
// Each goes out at least once, always under the same id, so that the event it
// becomes is one.
func (d *Dispatcher) notify(ctx context.Context, c webhook.Control) ([]slog.Attr, error) {
	notices, err := d.o.Store.UnsentNotices(ctx, c.Tenant, c.Endpoint)
	if err != nil || len(notices) == 0 {
		return nil, err
	}
	if d.o.Publish == nil {
		return []slog.Attr{slog.Int("unsent", len(notices))}, nil
	}
	ep, err := d.o.Store.Endpoint(ctx, c.Tenant, c.Endpoint)
	if err != nil {
		return nil, err
	}
	for _, n := range notices {
		data, err := json.Marshal(noticeData{n.Kind, n.Tenant, n.Endpoint, safedial.MaskURL(ep.URL), n.Detail})
		if err != nil {
			return nil, err
		}
		if err := d.o.Publish(ctx, bus.EventMessage{Tenant: n.Tenant, ID: hex.EncodeToString(n.ID[:]), Type: webhook.ReservedTypes + string(n.Kind),
			Source: NoticeSource, Subject: n.Endpoint, ContentType: "application/json", Time: n.CreatedAt, Data: data}); err != nil {
			return nil, fmt.Errorf("notice %x: %w", n.ID, err)
		}
		if err := d.step(ctx, StepPublished); err != nil {
			return nil, err
		}
		if err := d.o.Store.MarkNoticeSent(ctx, n.ID); err != nil {
			return nil, err
		}
	}
	return []slog.Attr{slog.Int("published", len(notices))}, nil
}

// Follow makes every control task that the endpoint's state calls for: whoever
// changed it last may have stopped before.
func (d *Dispatcher) Follow(ctx context.Context, tenant, endpoint string) error {
	controls, err := d.o.Store.Outstanding(ctx, tenant, endpoint)
	if err != nil {
		return err
	}
	return d.control(ctx, controls)
}

func (d *Dispatcher) control(ctx context.Context, controls []webhook.Control) error {
	for _, c := range controls {
		if err := d.o.Queue.Control(ctx, c); err != nil {
			return err
		}
		d.made.add(c.TaskID(), d.o.Now())
	}
	return nil
}

// ensure is control for what most likely exists: each is made once per process and
// hour at the most.
func (d *Dispatcher) ensure(ctx context.Context, controls []webhook.Control) error {
	for _, c := range controls {
		if d.made.has(c.TaskID(), d.o.Now()) {
			continue
		}
		if err := d.control(ctx, []webhook.Control{c}); err != nil {
			return err
		}
	}
	return nil
}

// controlMemo remembers which control tasks this process has made.
type controlMemo struct {
	mu   sync.Mutex
	made map[string]time.Time
}

// Bounds of a controlMemo.
const (
	memoTime = time.Hour
	memoSize = 10_000
)

func (m *controlMemo) has(id string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.made[id]
	return ok && now.Sub(at) < memoTime
}

func (m *controlMemo) add(id string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.made == nil || len(m.made) >= memoSize {
		m.made = map[string]time.Time{}
	}
	m.made[id] = now
}
