package bus

import (
	"encoding/json"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Count says how many requests of one source a receiver refused or ignored for
// one reason in one minute.
type Count struct {
	Tenant string    `json:"tenant,omitempty"` // the source's; empty: [webhook.DefaultTenant]
	Source string    `json:"source"`
	Reason string    `json:"reason"`
	Minute time.Time `json:"minute"`
	Count  int64     `json:"count"`
	// Reporter identifies the receiver instance and its report, so that a message
	// delivered twice counts once.
	Reporter string `json:"reporter"`
}

const maxCounts = 5000

func (c *Count) check() error {
	if err := webhook.ValidName(c.Source); err != nil {
		return err
	}
	if c.Tenant != "" {
		if err := webhook.ValidName(c.Tenant); err != nil {
			return err
		}
	}
	for name, v := range map[string]string{"reason": c.Reason, "reporter": c.Reporter} {
		if v == "" {
			return invalid("%s is missing", name)
		}
		if err := plain(v, 256); err != nil {
			return invalid("%s %v", name, err)
		}
	}
	if c.Count < 1 {
		return invalid("count is %d", c.Count)
	}
	if !storable(c.Minute) || c.Minute.IsZero() {
		return invalid("minute is %s", c.Minute)
	}
	return nil
}

// DecodeCounts reads a report of [Publisher.PublishCounts].
func DecodeCounts(m Message) ([]Count, error) {
	body, err := m.body()
	if err != nil {
		return nil, err
	}
	var counts []Count
	if err := json.Unmarshal(body, &counts); err != nil {
		return nil, refuse(CodeBadCounts, "%v", err)
	}
	if len(counts) > maxCounts {
		return nil, refuse(CodeBadCounts, "%d counts, at most %d are allowed", len(counts), maxCounts)
	}
	for i := range counts {
		if err := counts[i].check(); err != nil {
			return nil, refuse(CodeBadCounts, "count %d: %v", i, err)
		}
		counts[i].Minute = counts[i].Minute.UTC().Truncate(time.Minute)
	}
	return counts, nil
}
