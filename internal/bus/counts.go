package bus

import (
	"encoding/json"
	"time"

	"github.com/sealpost/sealpost/internal/webhook"
)

// Count says how many requests of one source a receiver accepted, refused or
// ignored for one reason in one minute; or, with the reasons
// [webhook.CountSecretUsed] and [webhook.CountSecretListed], something about one of
// the source's secrets.
type Count struct {
	Tenant string    `json:"tenant,omitempty"` // the source's; empty: [webhook.DefaultTenant]
	Source string    `json:"source"`
	Reason string    `json:"reason"`
	Minute time.Time `json:"minute"`
	Count  int64     `json:"count"`
	// Reporter identifies the receiver instance and its report, so that a message
	// delivered twice counts once.
	Reporter string `json:"reporter"`

	Secret  string `json:"secret,omitempty"`
	Version int    `json:"version,omitempty"`
	Scheme  string `json:"scheme,omitempty"`
}

// AboutSecret reports whether the count is about a secret and not about requests.
func (c *Count) AboutSecret() bool {
	return c.Reason == webhook.CountSecretUsed || c.Reason == webhook.CountSecretListed
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
	for name, v := range map[string]string{"secret": c.Secret, "scheme": c.Scheme} {
		if err := plain(v, 256); err != nil {
			return invalid("%s %v", name, err)
		}
	}
	if c.Version < 0 {
		return invalid("version is %d", c.Version)
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
