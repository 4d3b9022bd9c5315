package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// ControlKind is what a [Control] does.
type ControlKind string

// Kinds of control.
const (
	// ControlProbe sends one held delivery of an endpoint whose cool-down is over.
	ControlProbe ControlKind = "probe"
	// ControlHold makes an endpoint's own queue stop, which saves work and decides
	// nothing.
	ControlHold ControlKind = "hold"
	// ControlRelease has an endpoint's queue go on and schedules what was held, a page
	// at a time.
	ControlRelease ControlKind = "release"
	// ControlCancel cancels what is open of a deleted endpoint.
	ControlCancel ControlKind = "cancel"
	// ControlNotify publishes the endpoint's notices that are not published yet.
	ControlNotify ControlKind = "notify"
)

// Control is work that follows from a change of an endpoint. It is a task in the
// control queue, made after the commit of the change, and idempotent: whoever finds
// the same change makes the same task.
type Control struct {
	Kind     ControlKind `json:"kind"`
	Tenant   string      `json:"tenant"`
	Endpoint string      `json:"endpoint"`
	// Epoch is the endpoint's [Health].Epoch that it belongs to. In another epoch it
	// does nothing: a later change made its own.
	Epoch int64 `json:"epoch"`
	// Page is where a release goes on: the id of the last event done, empty at first.
	// Of a cancel it is the number of the run, from 0, and of a notify the id of the
	// notice that asks for it, so that each has a task.
	Page string    `json:"page,omitempty"`
	At   time.Time `json:"-"` // not before; zero = now
}

// TaskID is the name of the control's task: the same for the same work, and for no
// other. Names of tenants and endpoints may hold a dash, so that does not part them.
func (c Control) TaskID() string {
	name := fmt.Sprintf("%s/%s/%s/%d/%s", c.Kind, c.Tenant, c.Endpoint, c.Epoch, c.Page)
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:6]) + "-" + string(c.Kind) + "-" + hex.EncodeToString(sum[6:22])
}

// ParseControl reads the JSON body of a control task.
func ParseControl(b []byte) (Control, error) {
	var c Control
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("control: %w", err)
	}
	switch c.Kind {
	case ControlProbe, ControlHold, ControlRelease, ControlCancel, ControlNotify:
	default:
		return c, fmt.Errorf("control: kind %q is unknown", c.Kind)
	}
	if c.Kind == ControlRelease && c.Page != "" {
		if _, err := ParseEventID(c.Page); err != nil {
			return c, fmt.Errorf("control %s: page: %w", c.Kind, err)
		}
	}
	if ValidName(c.Tenant) != nil || ValidName(c.Endpoint) != nil || c.Epoch < 0 {
		return c, fmt.Errorf("control %s: tenant, endpoint or epoch is missing", c.Kind)
	}
	return c, nil
}
