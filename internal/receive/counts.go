package receive

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Count says how many requests of one source were refused or ignored for one
// reason in one minute (UTC, its start). Reporter names one report of one
// instance: a report that is published twice, because its result was not seen,
// can be told from a second one.
type Count struct {
	Tenant   string
	Source   string
	Reason   string
	Minute   time.Time
	Count    int64
	Reporter string
}

const (
	maxCountsPerReport = 1000
	maxReportsKept     = 1440 // a day of minutes without Pub/Sub
	// settle is how long after its end a minute is taken as closed: a request may
	// be counted a little after it read the clock.
	settle = 5 * time.Second
)

type countKey struct {
	tenant, source, reason string
	minute                 int64
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

func (c *counts) add(tenant, source, reason string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[countKey]int64{}
	}
	c.open[countKey{tenant, source, reason, at.Unix() / 60}]++
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
			list = append(list, Count{Tenant: k.tenant, Source: k.source, Reason: k.reason, Minute: time.Unix(k.minute*60, 0).UTC(), Count: n})
			delete(c.open, k)
		}
	}
	slices.SortFunc(list, func(a, b Count) int {
		return strings.Compare(a.Minute.Format(time.RFC3339)+a.Tenant+"\x00"+a.Source+"\x00"+a.Reason, b.Minute.Format(time.RFC3339)+b.Tenant+"\x00"+b.Source+"\x00"+b.Reason)
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
	return slices.Clone(c.reports)
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
			return fmt.Errorf("publish refusal counts: %w", err)
		}
		rc.counts.published()
	}
	return nil
}

// Run publishes counts as minutes close, until ctx is done, and then everything
// that is left. Call it for as long as the server runs, and end ctx after the
// server has stopped: counts are final then.
func (rc *Receiver) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for {
		now := rc.now()
		timer.Reset(now.Truncate(time.Minute).Add(time.Minute + settle).Sub(now))
		select {
		case <-timer.C:
			flush, cancel := context.WithTimeout(ctx, 10*time.Second)
			if err := rc.Flush(flush, false); err != nil {
				rc.log.WarnContext(ctx, "refusal counts kept for the next minute", "error", err.Error())
			}
			cancel()
		case <-ctx.Done():
			flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
			defer cancel()
			return rc.Flush(flush, true)
		}
	}
}
