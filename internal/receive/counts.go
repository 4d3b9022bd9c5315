package receive

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sealpost/sealpost/internal/provider"
	"github.com/sealpost/sealpost/internal/webhook"
)

// Count says how many requests of one source were accepted, refused or ignored for
// one reason in one minute (UTC, its start). Reporter names one report of one
// instance: a report that is published twice, because its result was not seen,
// can be told from a second one.
type Count struct {
	Tenant   string
	Source   string
	Reason   string
	Minute   time.Time
	Count    int64
	Reporter string
	// Secret and Version are set with the reasons [webhook.CountSecretUsed] and
	// [webhook.CountSecretListed]: which of the source's secrets verified so many
	// requests, or is in its configuration. Scheme is the source's.
	Secret  string
	Version int
	Scheme  string
}

const (
	maxCountsPerReport = 1000
	maxReportsKept     = 1440 // a day of minutes without Pub/Sub
	// settle is how long after its end a minute is taken as closed: a request may
	// be counted a little after it read the clock.
	settle = 5 * time.Second
	// listEvery is how often a long-lived instance says again what it is configured
	// with.
	listEvery = 24 * time.Hour
)

type countKey struct {
	source  *source
	reason  string
	minute  int64
	secret  string
	version int
}

// counts holds what is not yet published.
type counts struct {
	mu       sync.Mutex
	open     map[countKey]int64
	reports  [][]Count // formed, not yet published
	dropped  int64     // reports given up
	reporter string
	formed   int

	publishing sync.Mutex // one flush at a time
}

func (c *counts) add(s *source, reason string, at time.Time) {
	c.bump(countKey{source: s, reason: reason, minute: at.Unix() / 60})
}

// use counts a request that the secret verified. Of equal secrets, it is the first
// listed.
func (c *counts) use(s *source, secret *provider.Secret, at time.Time) {
	c.bump(countKey{s, webhook.CountSecretUsed, at.Unix() / 60, secret.Name(), secret.Version()})
}

func (c *counts) bump(k countKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[countKey]int64{}
	}
	c.open[k]++
}

// form turns closed minutes (all: every minute) into reports and returns what is
// to be published.
func (c *counts) form(now time.Time, all bool) [][]Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	closed := now.Add(-settle).Unix() / 60
	var list []Count
	for k, n := range c.open {
		if all || k.minute < closed {
			list = append(list, k.count(n))
			delete(c.open, k)
		}
	}
	c.enqueue(list)
	return slices.Clone(c.reports)
}

func (k countKey) count(n int64) Count {
	return Count{Tenant: k.source.Tenant, Source: k.source.ID, Scheme: k.source.Scheme, Reason: k.reason, Minute: time.Unix(k.minute*60, 0).UTC(), Count: n,
		Secret: k.secret, Version: k.version}
}

// enqueue cuts a list into reports. The caller holds the lock.
func (c *counts) enqueue(list []Count) {
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(a.Minute.Compare(b.Minute), strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Source, b.Source), strings.Compare(a.Reason, b.Reason),
			strings.Compare(a.Secret, b.Secret), cmp.Compare(a.Version, b.Version))
	})
	for report := range slices.Chunk(list, maxCountsPerReport) {
		c.formed++
		for i := range report {
			report[i].Reporter = fmt.Sprintf("%s-%d", c.reporter, c.formed)
		}
		c.reports = append(c.reports, report)
	}
	if extra := len(c.reports) - maxReportsKept; extra > 0 {
		c.reports = slices.Delete(c.reports, 0, extra)
		c.dropped += int64(extra)
	}
}

// list reports what secrets the sources have. One that has none, because its
// provider publishes its keys, is listed without a name.
func (c *counts) list(sources map[string]*source, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Count
	for _, s := range sources {
		k := countKey{source: s, reason: webhook.CountSecretListed, minute: now.Unix() / 60}
		if len(s.Keys) == 0 {
			list = append(list, k.count(1))
		}
		for _, secret := range s.Keys {
			k.secret, k.version = secret.Name(), secret.Version()
			list = append(list, k.count(1))
		}
	}
	c.enqueue(list)
}

func (c *counts) published() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports = c.reports[1:]
}

// Flush publishes the counts of every minute that has closed; with all, of the
// current one too. What could not be published is kept for the next call.
func (rc *Receiver) Flush(ctx context.Context, all bool) error {
	rc.counts.publishing.Lock()
	defer rc.counts.publishing.Unlock()
	for _, report := range rc.counts.form(rc.now(), all) {
		if err := rc.publisher.PublishCounts(ctx, report); err != nil {
			return fmt.Errorf("publish counts: %w", err)
		}
		rc.counts.published()
	}
	return nil
}

// Run publishes which secrets the sources have, at the start and each day, and
// counts as minutes close, until ctx is done, and then everything that is left. Call
// it for as long as the server runs, and end ctx after the server has stopped: counts
// are final then.
func (rc *Receiver) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	var listed time.Time
	for {
		now := rc.now()
		if now.Sub(listed) >= listEvery {
			listed = now
			rc.counts.list(rc.sources, now)
			rc.flush(ctx)
		}
		timer.Reset(now.Truncate(time.Minute).Add(time.Minute + settle).Sub(now))
		select {
		case <-timer.C:
			rc.flush(ctx)
		case <-ctx.Done():
			flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
			defer cancel()
			return rc.Flush(flush, true)
		}
	}
}

// flush publishes what has closed; what fails is kept.
func (rc *Receiver) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := rc.Flush(ctx, false); err != nil {
		rc.log.WarnContext(ctx, "counts kept for the next minute", "error", err.Error())
	}
}
