package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"cloud.google.com/go/spanner"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"
)

const (
	defaultPage = 50
	maxPage     = 500
	// maxScan bounds the index entries that one page looks at for its filter.
	maxScan = 10_000
)

// Page asks for a part of a list. Size 0 means 50, and more than 500 means 500.
// Token is what the page before gave as next; empty asks for the first page. A
// token stays good for as long as one likes and always starts at the same place;
// one that was altered, or belongs to another list or filter, is [ErrInvalid].
//
// Pages neither lose nor repeat rows, whatever is inserted meanwhile and however
// many rows share a timestamp. A page can be shorter than Size, even empty, and
// still have a next one if the filter leaves little; only a page without a next
// token is the last.
type Page struct {
	Size  int
	Token string
}

func (p Page) size() (int, error) {
	switch {
	case p.Size < 0:
		return 0, invalid("page size %d is negative", p.Size)
	case p.Size == 0:
		return defaultPage, nil
	}
	return min(p.Size, maxPage), nil
}

// position is where a list stands: at the row with this time, key and id, of
// which a list may use any. Times have Spanner's full precision.
type position struct {
	at  time.Time
	key []byte
	id  string
}

// token writes a position for scope, which is everything that selects the list.
// Its checksum tells a token that was altered or taken elsewhere. It is no secret,
// and need not be one: a forged position shows nothing that a first page of the
// same tenant's list would not.
func (p position) token(scope string) string {
	var b []byte
	b = binary.BigEndian.AppendUint64(b, uint64(p.at.Unix()))
	b = binary.BigEndian.AppendUint32(b, uint32(p.at.Nanosecond()))
	b = append(b, byte(len(p.key)))
	b = append(b, p.key...)
	b = append(b, p.id...)
	return base64.RawURLEncoding.EncodeToString(append(checksum(scope, b), b...))
}

const checksumBytes = 12

func checksum(scope string, b []byte) []byte {
	h := sha256.New()
	_ = binary.Write(h, binary.BigEndian, uint64(len(scope)))
	h.Write([]byte(scope))
	h.Write(b)
	return h.Sum(nil)[:checksumBytes]
}

// parseToken is the inverse of token; nil for an empty one.
func parseToken(scope, token string) (*position, error) {
	if token == "" {
		return nil, nil
	}
	bad := invalid("page token is not one that this list gave")
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(token) > 4096 || len(b) < checksumBytes+13 {
		return nil, bad
	}
	sum, b := b[:checksumBytes], b[checksumBytes:]
	if subtle.ConstantTimeCompare(sum, checksum(scope, b)) != 1 || len(b) < 13+int(b[12]) {
		return nil, bad
	}
	p := position{at: time.Unix(int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint32(b[8:]))).UTC()}
	p.key, p.id = b[13:13+int(b[12])], string(b[13+int(b[12]):])
	return &p, nil
}

// scopeOf names a list with its filter.
func scopeOf(list string, filter any) string {
	b, err := json.Marshal(filter)
	if err != nil {
		panic("store: filter: " + err.Error()) // plain structs only
	}
	return list + " " + string(b)
}

// plan is a read of several key ranges of a table or index, whose rows are wanted
// in one order over all of them. Each range must be in that order in itself.
type plan struct {
	verb, table, index string
	columns            []string
	ranges             []spanner.KeyRange
	limit              int // rows to read from each range
	bound              spanner.TimestampBound
	oldestFirst        bool
}

// before says which of two positions a plan's rows come in first.
func (p *plan) before(a, b position) bool {
	if c := a.at.Compare(b.at); c != 0 {
		return (c < 0) == p.oldestFirst
	}
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return c < 0
	}
	return strings.Compare(a.id, b.id) < 0
}

// merge reads the plan's ranges in parallel and visits their rows in order, until
// visit answers false or nothing is left.
func (s *Store) merge(ctx context.Context, p plan, at func(*spanner.Row) (position, error), visit func(position, *spanner.Row) (bool, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := make([]*stream, len(p.ranges))
	var g errgroup.Group
	for i, r := range p.ranges {
		opts := limited(p.verb, p.limit)
		opts.Index = p.index
		streams[i] = &stream{rows: s.client.Single().WithTimestampBound(p.bound).ReadWithOptions(ctx, p.table, r, p.columns, opts), at: at}
		defer streams[i].rows.Stop()
		g.Go(streams[i].next)
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for {
		var first *stream
		for _, st := range streams {
			if st.row != nil && (first == nil || p.before(st.pos, first.pos)) {
				first = st
			}
		}
		if first == nil {
			return nil
		}
		more, err := visit(first.pos, first.row)
		if err != nil || !more {
			return err
		}
		if err := first.next(); err != nil {
			return err
		}
	}
}

// stream is one range with its next row; row is nil at the end.
type stream struct {
	rows *spanner.RowIterator
	at   func(*spanner.Row) (position, error)
	row  *spanner.Row
	pos  position
}

func (st *stream) next() (err error) {
	st.row, err = st.rows.Next()
	if errors.Is(err, iterator.Done) {
		st.row = nil
		return nil
	}
	if err != nil {
		return err
	}
	st.pos, err = st.at(st.row)
	return err
}

// scan collects a page: entries of the plan that keep wants, size of them, and
// the token of the next page. entry decodes a row.
func scan[E any](ctx context.Context, s *Store, p plan, scope string, size int, filtered bool, entry func(*spanner.Row) (E, position, error), keep func(E) bool) (out []E, next string, err error) {
	p.bound = s.listBound()
	if p.limit = size + 1; filtered {
		p.limit = maxScan + 1
	}
	var last position
	seen := 0
	err = s.merge(ctx, p, func(r *spanner.Row) (position, error) {
		_, pos, err := entry(r)
		return pos, err
	}, func(pos position, r *spanner.Row) (bool, error) {
		e, _, err := entry(r)
		if err != nil {
			return false, err
		}
		wanted := keep(e)
		// One wanted row beyond the page proves that there is a next one.
		if wanted && len(out) == size || seen == maxScan {
			next = last.token(scope)
			return false, nil
		}
		seen++
		last = pos
		if wanted {
			out = append(out, e)
		}
		return true, nil
	})
	return out, next, mapped(err)
}

func (s *Store) listBound() spanner.TimestampBound {
	if s.staleness > 0 {
		return spanner.ExactStaleness(s.staleness)
	}
	return spanner.StrongRead()
}

// timeRange is the part of an index from until (exclusive) back to since
// (inclusive), newest first, beyond after; prefix are the columns before the time.
func timeRange(prefix spanner.Key, since, until time.Time, after *position, tail ...any) spanner.KeyRange {
	key := func(more ...any) spanner.Key { return append(append(spanner.Key{}, prefix...), more...) }
	r := spanner.KeyRange{Start: key(), End: key(), Kind: spanner.ClosedClosed}
	if !since.IsZero() {
		r.End = key(since.UTC())
	}
	if !until.IsZero() {
		r.Start, r.Kind = key(until.UTC()), spanner.OpenClosed
	}
	if after != nil {
		r.Start, r.Kind = key(append([]any{after.at}, tail...)...), spanner.OpenClosed
	}
	return r
}
