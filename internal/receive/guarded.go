package receive

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sealpost/sealpost/internal/safedial"
)

// Bounds of what is fetched for a provider's sake: a certificate or a key set.
const (
	guardedTimeout = 5 * time.Second
	guardedLimit   = 256 << 10
)

// Guarded gives a [Config] its Fetch and Confirm through the guarded client: https
// to public addresses only, no redirects, five seconds, 256 KiB.
func Guarded(p safedial.Policy) (fetch func(context.Context, string) ([]byte, error), confirm func(context.Context, string) error) {
	client := safedial.NewClient(p, safedial.ClientOptions{Timeout: guardedTimeout, MaxConns: 32, MaxConnsPerHost: 8})
	fetch = func(ctx context.Context, url string) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, &safedial.BlockedError{Reason: safedial.InvalidURL}
		}
		res, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		body, truncated, err := safedial.ReadExcerpt(res.Body, guardedLimit)
		switch {
		case err != nil:
			return nil, err
		case res.StatusCode != http.StatusOK:
			return nil, fmt.Errorf("%s answered %d", req.URL.Host, res.StatusCode)
		case truncated:
			return nil, fmt.Errorf("%s answered more than %d bytes", req.URL.Host, guardedLimit)
		}
		return body, nil
	}
	return fetch, func(ctx context.Context, url string) error {
		_, err := fetch(ctx, url)
		return err
	}
}
