package webhook

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// StatusSet is a set of HTTP status codes, as sorted ranges that do not touch. The
// zero value is empty. [ParseStatusSet] makes one.
type StatusSet []StatusRange

// StatusRange is the codes From to To, both included.
type StatusRange struct{ From, To int }

// Codes that a set may hold: 1xx is never the end of an exchange, 2xx is success.
const (
	minStatus = 300
	maxStatus = 599
)

// ParseStatusSet reads codes and ranges, separated by commas, such as
// "400-499,!404,501": what a "!" precedes is taken out, wherever it stands. An
// empty text is the empty set.
func ParseStatusSet(text string) (StatusSet, error) {
	var in [maxStatus + 1]bool
	var out []StatusRange
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			if strings.TrimSpace(text) == "" {
				return nil, nil
			}
			return nil, fmt.Errorf("statuses %q: a part is empty", text)
		}
		rest, not := strings.CutPrefix(part, "!")
		r, err := parseStatusRange(rest)
		if err != nil {
			return nil, err
		}
		if not {
			out = append(out, r)
			continue
		}
		if err := r.validate(); err != nil {
			return nil, err
		}
		for s := r.From; s <= r.To; s++ {
			in[s] = true
		}
	}
	for _, r := range out {
		for s := r.From; s <= r.To; s++ {
			in[s] = false
		}
	}
	var set StatusSet
	for s, yes := range in {
		switch n := len(set); {
		case !yes:
		case n > 0 && set[n-1].To == s-1:
			set[n-1].To = s
		default:
			set = append(set, StatusRange{s, s})
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("statuses %q: nothing is left", text)
	}
	return set, nil
}

func parseStatusRange(text string) (StatusRange, error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	var r StatusRange
	var err error
	if r.From, err = parseStatus(from); err == nil {
		r.To, err = parseStatus(to)
	}
	if err != nil {
		return r, fmt.Errorf("status %q: want %d to %d, or a range such as 400-499", text, minStatus, maxStatus)
	}
	if r.From > r.To {
		return r, fmt.Errorf("status range %q runs backwards", text)
	}
	return r, nil
}

func parseStatus(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err == nil && (len(s) != 3 || n < minStatus || n > maxStatus) {
		err = strconv.ErrRange
	}
	return n, err
}

// validate refuses a range of nothing but codes that have a meaning of their own.
func (r StatusRange) validate() error {
	if r.From < minStatus || r.To > maxStatus || r.From > r.To {
		return fmt.Errorf("status range %d-%d is not within %d to %d", r.From, r.To, minStatus, maxStatus)
	}
	for s := r.From; s <= r.To; s++ {
		if !neverPermanent(s) {
			return nil
		}
	}
	if r.From == http.StatusGone {
		return fmt.Errorf("status %d: it disables the endpoint, whatever the retry policy says", r.From)
	}
	return fmt.Errorf("status %d: it asks for a later try and is never permanent", r.From)
}

func (s StatusSet) validate() error {
	last := 0
	for _, r := range s {
		if err := r.validate(); err != nil {
			return err
		}
		if last > 0 && r.From <= last+1 {
			return fmt.Errorf("status ranges overlap, touch or are out of order at %d", r.From)
		}
		last = r.To
	}
	return nil
}

// Has reports whether the set holds the code.
func (s StatusSet) Has(status int) bool {
	return slices.ContainsFunc(s, func(r StatusRange) bool { return r.From <= status && status <= r.To })
}

// String is the shortest form that ParseStatusSet reads.
func (s StatusSet) String() string {
	parts := make([]string, len(s))
	for i, r := range s {
		parts[i] = strconv.Itoa(r.From)
		if r.To > r.From {
			parts[i] += "-" + strconv.Itoa(r.To)
		}
	}
	return strings.Join(parts, ",")
}

// neverPermanent are the codes that no policy makes permanent: 410 says more than
// that, and the throttling ones ask for a later try.
func neverPermanent(status int) bool {
	return status == http.StatusGone || throttling(status)
}

// throttling are the codes that ask for fewer requests.
func throttling(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
