package webhook

import "time"

// holdTime is how long an instance that reserved slots counts as one that makes
// attempts: as long as the longest of them takes, and a little.
const holdTime = MaxTimeout + 10*time.Second

// ReasonLimited is why a scheduled delivery waits longer than its retry policy says.
const ReasonLimited = "the endpoint's rate limit"

// SlotRequest asks for slots of an endpoint's rate limit: times, Interval apart, at
// each of which one attempt may begin.
type SlotRequest struct {
	Tenant, Endpoint string
	Holder           string // the dispatcher instance that asks
	Count            int    // at least 1
	Interval         time.Duration
	// Burst is how many slots may lie in the past, to be used at once after a pause.
	Burst int
	// Horizon is how far ahead a slot may be.
	Horizon time.Duration
}

// Slots are what was reserved: Count times from First on, Interval apart. Count is
// less than asked for, or 0, where the rest would be beyond the horizon.
type Slots struct {
	First    time.Time
	Count    int
	Interval time.Duration
	// Holders is how many instances make attempts at the endpoint, this one included.
	Holders int
}

// Allotment is what an endpoint's rate limit has given away. The zero value is an
// endpoint to which nothing was sent yet.
type Allotment struct {
	NextSlot  time.Time
	Holders   []string
	HeldUntil []time.Time // of each holder
}

// Reserve gives what q asks for at now and returns the allotment as it then is: the
// generic cell rate algorithm, in which NextSlot never lags more than the burst
// behind now. Equal arguments give equal results.
func (a Allotment) Reserve(q SlotRequest, now time.Time) (Allotment, Slots) {
	first := now.Add(-time.Duration(q.Burst) * q.Interval)
	if a.NextSlot.After(first) {
		first = a.NextSlot
	}
	n := 0
	if end := now.Add(q.Horizon); !first.After(end) {
		n = min(q.Count, int(end.Sub(first)/q.Interval)+1)
	}
	next := Allotment{NextSlot: first.Add(time.Duration(n) * q.Interval), Holders: []string{q.Holder}, HeldUntil: []time.Time{now.Add(holdTime)}}
	for i, h := range a.Holders {
		if h != q.Holder && i < len(a.HeldUntil) && a.HeldUntil[i].After(now) {
			next.Holders, next.HeldUntil = append(next.Holders, h), append(next.HeldUntil, a.HeldUntil[i])
		}
	}
	return next, Slots{First: first, Count: n, Interval: q.Interval, Holders: len(next.Holders)}
}
