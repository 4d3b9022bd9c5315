package receive

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/sealpost/sealpost/internal/provider"
)

// Bounds of fetching what providers publish. A sender chooses the URL within the
// pinned host before anything is verified, so that each bound is one that a forger
// cannot push.
const (
	keysKept     = 64               // URLs remembered, good and bad
	keysFresh    = time.Hour        // how long a result is used
	keysFailed   = 30 * time.Second // how long a failure is
	fetchTimeout = 5 * time.Second
	fetchPerMin  = 30 // new fetches of one instance
	visitTimeout = 10 * time.Second
)

var errTooManyFetches = errors.New("too many different URLs in one minute")

// keyring fetches certificates and key sets, once for all who wait for the same
// one, and keeps them.
type keyring struct {
	fetch  func(ctx context.Context, url string) ([]byte, error)
	flight singleflight.Group

	mu     sync.Mutex
	kept   map[string]fetchedKey
	minute int64
	count  int // fetches in that minute
}

type fetchedKey struct {
	text  []byte
	err   error
	until time.Time
}

func newKeyring(fetch func(ctx context.Context, url string) ([]byte, error)) *keyring {
	return &keyring{fetch: fetch, kept: map[string]fetchedKey{}}
}

// get gives what is at the URL, at most an hour old.
func (k *keyring) get(ctx context.Context, url string, now time.Time) ([]byte, error) {
	if f, ok := k.lookup(url, now); ok {
		return f.text, f.err
	}
	v, err, _ := k.flight.Do(url, func() (any, error) {
		if !k.allow(now) {
			return []byte(nil), errTooManyFetches // not kept: the next minute may do it
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		text, err := k.fetch(ctx, url)
		k.keep(url, text, err, now)
		return text, err
	})
	text, _ := v.([]byte)
	return text, err
}

func (k *keyring) lookup(url string, now time.Time) (fetchedKey, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, ok := k.kept[url]
	return f, ok && now.Before(f.until)
}

func (k *keyring) allow(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := now.Unix() / 60; m != k.minute {
		k.minute, k.count = m, 0
	}
	k.count++
	return k.count <= fetchPerMin
}

// keep remembers a result. If there is no room, failures go first: a forger can
// make those, but no good ones.
func (k *keyring) keep(url string, text []byte, err error, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, goes := range []func(fetchedKey) bool{
		func(f fetchedKey) bool { return !now.Before(f.until) },
		func(f fetchedKey) bool { return f.err != nil },
		func(fetchedKey) bool { return true },
	} {
		for u, f := range k.kept {
			if len(k.kept) >= keysKept && goes(f) {
				delete(k.kept, u)
			}
		}
	}
	until := now.Add(keysFresh)
	if err != nil {
		until = now.Add(keysFailed)
	}
	k.kept[url] = fetchedKey{text, err, until}
}

// fetched are the provider's published keys that the request says it was signed
// with, if it needs any.
func (rc *Receiver) fetched(ctx context.Context, o *outcome) ([]provider.Secret, *refusal) {
	from, err := o.source.scheme.Fetch(o.request)
	switch {
	case err != nil:
		return nil, unverified(err)
	case from == "":
		return nil, nil
	case rc.keys == nil: // not reached: New has refused the source
		return nil, refused(string(provider.NoSecret), "the source has no secret")
	}
	text, err := rc.keys.get(ctx, from, o.start)
	if err != nil {
		o.err = err
		return nil, refused(reasonNoKeys, "the provider's keys were not fetched; the provider is asked to retry")
	}
	secret, err := o.source.scheme.Fetched(from, text, o.start)
	if err != nil {
		o.err = err
		return nil, refused(reasonNoKeys, "what was fetched is no usable key")
	}
	return []provider.Secret{secret}, nil
}

// confirmed visits the URL of an authentic confirmation, and answers only then.
func (rc *Receiver) confirmed(ctx context.Context, o *outcome, url string) (*provider.Response, *refusal) {
	if rc.confirm == nil {
		return nil, refused(reasonUnconfirmed, "this receiver confirms no subscription")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), visitTimeout)
	defer cancel()
	if o.err = rc.confirm(ctx, url); o.err != nil {
		return nil, refused(reasonUnconfirmed, "the subscription's URL was not visited; the provider is asked to retry")
	}
	return &provider.Response{Status: http.StatusOK, ContentType: "text/plain; charset=utf-8", Body: []byte("ok\n")}, nil
}
