package deliver

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/sealpost/sealpost/internal/safedial"
	"github.com/sealpost/sealpost/internal/secrets"
	"github.com/sealpost/sealpost/internal/webhook"
)

// authorization is what one attempt authenticates itself with.
type authorization struct {
	client *safedial.Client // whose connections to use
	header string           // the value of Authorization, or empty
	token  *token           // that header holds; nil for other kinds
	hide   []string         // what must not be kept of an answer that echoes it
}

// minHidden keeps short values from masking ordinary text.
const minHidden = 4

// secrets are the byte strings to mask, the longest first, so that none is cut by a
// shorter one within it.
func (a authorization) secrets() [][]byte {
	var out [][]byte
	for _, s := range a.hide {
		if len(s) >= minHidden {
			out = append(out, []byte(s))
		}
	}
	slices.SortFunc(out, func(x, y []byte) int { return len(y) - len(x) })
	return out
}

// minHiddenValue keeps what a query most likely holds besides a secret, a version or a
// flag, from masking ordinary text.
const minHiddenValue = 8

// embedded are the secrets that an endpoint's own settings may hold: the values of
// headers that are likely to be credentials, and what stands in the URL's query.
func embedded(ep *webhook.Endpoint) []string {
	var out []string
	for _, h := range ep.Headers {
		if !credential(h.Name) {
			continue
		}
		out = append(out, h.Value)
		if _, value, ok := strings.Cut(h.Value, " "); ok { // after a scheme
			out = append(out, value)
		}
	}
	u, err := url.Parse(ep.URL)
	if err != nil || u.RawQuery == "" {
		return out
	}
	out = append(out, u.RawQuery)
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		_, value, _ := strings.Cut(part, "=")
		plain, _ := url.QueryUnescape(value)
		for _, v := range []string{value, plain} {
			if len(v) >= minHiddenValue {
				out = append(out, v)
			}
		}
	}
	return out
}

// version is one endpoint's credentials as they were at one time.
type version struct {
	tenant, endpoint string
	sum              [sha256.Size]byte
}

func versionOf(ep *webhook.Endpoint) version {
	return version{ep.Tenant, ep.ID, sha256.Sum256(ep.Auth.Sealed)}
}

// authorize makes the attempt's authentication. A *settingError or *tokenError is the
// endpoint's, any other ours.
func (s *sender) authorize(ctx context.Context, ep *webhook.Endpoint) (authorization, error) {
	c, err := s.credentials(ep)
	if err != nil {
		return authorization{}, err
	}
	a := authorization{client: s.client}
	switch c.Kind {
	case "":
	case secrets.KindBasic:
		pair := base64.StdEncoding.EncodeToString([]byte(c.Username + ":" + c.Password))
		a.header, a.hide = "Basic "+pair, []string{pair, c.Password}
	case secrets.KindBearer:
		a.header, a.hide = "Bearer "+c.Token, []string{c.Token}
	case secrets.KindOAuth2:
		if a.token, err = s.tokens.get(ctx, versionOf(ep), c); err != nil {
			return authorization{}, err
		}
		a.header, a.hide = "Bearer "+a.token.text, []string{a.token.text, c.ClientSecret}
	case secrets.KindMTLS:
		if a.client, err = s.certs.get(versionOf(ep), c, s.o.Now()); err != nil {
			return authorization{}, &settingError{fmt.Errorf("client certificate: %w", err)}
		}
	default:
		return authorization{}, &settingError{fmt.Errorf("authentication of kind %q is unknown", c.Kind)}
	}
	return a, nil
}

// certClients holds a pool of connections per client certificate.
type certClients struct {
	plain *safedial.Client

	mu   sync.Mutex
	used int64
	by   map[version]*certClient
}

type certClient struct {
	client  *safedial.Client
	ends    time.Time
	lastUse int64
}

// maxCertClients bounds how many certificates are kept parsed, with their pools.
const maxCertClients = 256

func newCertClients(plain *safedial.Client) *certClients {
	return &certClients{plain: plain, by: map[version]*certClient{}}
}

// get is the client that shows the credentials' certificate. An error is the
// certificate's: it has ended, or cannot be used.
func (cc *certClients) get(v version, c secrets.Credentials, now time.Time) (*safedial.Client, error) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.used++
	if have := cc.by[v]; have != nil && !now.After(have.ends) {
		have.lastUse = cc.used
		return have.client, nil
	}
	pair, err := c.KeyPair(now)
	if err != nil {
		return nil, err
	}
	for other, have := range cc.by {
		if other == v || other.tenant == v.tenant && other.endpoint == v.endpoint { // replaced or ended
			cc.drop(other, have)
		}
	}
	if len(cc.by) >= maxCertClients {
		cc.dropOldest()
	}
	fresh := &certClient{client: cc.plain.WithCertificate(pair), ends: pair.Leaf.NotAfter, lastUse: cc.used}
	cc.by[v] = fresh
	return fresh.client, nil
}

func (cc *certClients) drop(v version, c *certClient) {
	delete(cc.by, v)
	c.client.Discard()
}

func (cc *certClients) dropOldest() {
	var oldest version
	least := cc.used + 1
	for v, c := range cc.by {
		if c.lastUse < least {
			oldest, least = v, c.lastUse
		}
	}
	cc.drop(oldest, cc.by[oldest])
}

// tokenError says that an endpoint's own token endpoint gave no token. It is the
// endpoint's: the attempt is recorded and follows its schedule.
type tokenError struct {
	host   string
	detail string
	cause  error // of the transport; nil where an answer was the trouble
}

func (e *tokenError) Error() string {
	if e.cause != nil {
		return "no OAuth 2 token: " + e.cause.Error()
	}
	return "no OAuth 2 token: " + e.host + " " + e.detail
}

func (e *tokenError) Unwrap() error { return e.cause }

// token is an access token.
type token struct {
	text    string
	version version
	expires time.Time // when it is not used any more
	cached  bool      // this attempt did not fetch it
}

// Times of tokens.
const (
	// tokenTimeout bounds one request for a token, whoever waits for it.
	tokenTimeout = 15 * time.Second
	// tokenLife is assumed where an answer does not say.
	tokenLife = 5 * time.Minute
	// tokenMaxLife bounds what an answer may say.
	tokenMaxLife = 24 * time.Hour
	// tokenSkew is how long before its end a token is not used any more, though never
	// more than a tenth of its life.
	tokenSkew     = time.Minute
	maxTokens     = 10_000
	maxTokenReply = 64 << 10
)

// tokenCache fetches OAuth 2 tokens by client credentials and keeps each until
// shortly before its end, per endpoint and version of its credentials. Concurrent
// attempts share one request.
type tokenCache struct {
	client *safedial.Client
	now    func() time.Time
	agent  string
	flight singleflight.Group

	mu sync.Mutex
	by map[version]*token
}

func newTokenCache(client *safedial.Client, now func() time.Time, agent string) *tokenCache {
	return &tokenCache{client: client, now: now, agent: agent, by: map[version]*token{}}
}

// get is a token that is good now.
func (tc *tokenCache) get(ctx context.Context, v version, c secrets.Credentials) (*token, error) {
	tc.mu.Lock()
	have := tc.by[v]
	tc.mu.Unlock()
	if have != nil && tc.now().Before(have.expires) {
		reused := *have
		reused.cached = true
		return &reused, nil
	}
	reply := tc.flight.DoChan(fmt.Sprintf("%s/%s/%x", v.tenant, v.endpoint, v.sum), func() (any, error) {
		// One that gives up does not end it for the others.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenTimeout)
		defer cancel()
		t, err := tc.fetch(ctx, c)
		if err != nil {
			return nil, err
		}
		t.version = v
		tc.put(t)
		return t, nil
	})
	select {
	case r := <-reply:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*token), nil
	case <-ctx.Done():
		return nil, &tokenError{cause: fmt.Errorf("waiting for the token endpoint: %w", ctx.Err())}
	}
}

func (tc *tokenCache) put(t *token) {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	if len(tc.by) >= maxTokens {
		now := tc.now()
		for v, have := range tc.by {
			if !now.Before(have.expires) {
				delete(tc.by, v)
			}
		}
		if len(tc.by) >= maxTokens {
			clear(tc.by)
		}
	}
	tc.by[t.version] = t
}

// refused notes that an endpoint answered 401 to a token: the next attempt fetches
// another. One that was fetched for this very attempt is kept, since the next would
// be no better; nor does an attempt that was long under way drop its successor.
func (tc *tokenCache) refused(t *token) {
	if t == nil || !t.cached {
		return
	}
	tc.mu.Lock()
	defer tc.mu.Unlock()
	if have := tc.by[t.version]; have != nil && have.text == t.text {
		delete(tc.by, t.version)
	}
}

// fetch asks the token endpoint (RFC 6749 section 4.4.2) through the same guard as
// endpoints. A *tokenError is the endpoint's.
func (tc *tokenCache) fetch(ctx context.Context, c secrets.Credentials) (*token, error) {
	began := tc.now()
	form := url.Values{"grant_type": {"client_credentials"}}
	if c.Scope != "" {
		form.Set("scope", c.Scope)
	}
	if c.Audience != "" {
		form.Set("audience", c.Audience)
	}
	if c.Style == secrets.OAuth2Post {
		form.Set("client_id", c.ClientID)
		form.Set("client_secret", c.ClientSecret)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, &tokenError{cause: &safedial.BlockedError{Reason: safedial.InvalidURL}}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", tc.agent)
	if c.Style != secrets.OAuth2Post {
		// Section 2.3.1: both are form-encoded before they are joined.
		req.SetBasicAuth(url.QueryEscape(c.ClientID), url.QueryEscape(c.ClientSecret))
	}
	res, err := tc.client.Do(req)
	if err != nil {
		return nil, &tokenError{cause: err}
	}
	defer res.Body.Close()
	body, truncated, err := safedial.ReadExcerpt(res.Body, maxTokenReply)
	switch {
	case err != nil:
		return nil, &tokenError{cause: err}
	case res.StatusCode != http.StatusOK:
		return nil, &tokenError{host: req.URL.Host, detail: fmt.Sprintf("answered %d%s", res.StatusCode, oauthCode(body))}
	case truncated:
		return nil, &tokenError{host: req.URL.Host, detail: "answered too much"}
	}
	t, fault := parseToken(body, began)
	if fault != "" {
		return nil, &tokenError{host: req.URL.Host, detail: fault}
	}
	return t, nil
}

// oauthCodes are RFC 6749's error codes (section 5.2). No other word of an answer is
// shown: it may quote what it was sent.
var oauthCodes = []string{"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}

func oauthCode(body []byte) string {
	var reply struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &reply) == nil && slices.Contains(oauthCodes, reply.Error) {
		return " (" + reply.Error + ")"
	}
	return ""
}

// parseToken reads a successful answer (RFC 6749 section 5.1). fault says what is
// wrong with it, in our words.
func parseToken(body []byte, began time.Time) (t *token, fault string) {
	var reply struct {
		AccessToken string      `json:"access_token"`
		TokenType   string      `json:"token_type"`
		ExpiresIn   json.Number `json:"expires_in"` // some send it as a string
	}
	if json.Unmarshal(body, &reply) != nil {
		return nil, "answered what is no token"
	}
	switch {
	case reply.AccessToken == "" || len(reply.AccessToken) > maxTokenReply/4 || !visible(reply.AccessToken):
		return nil, "answered without a usable access_token"
	case reply.TokenType != "" && !strings.EqualFold(reply.TokenType, "bearer"):
		return nil, "answered with a token that is not a bearer token"
	}
	life := tokenLife
	if s, err := reply.ExpiresIn.Float64(); err == nil {
		life = time.Duration(min(max(s, 0), tokenMaxLife.Seconds()) * float64(time.Second))
	}
	return &token{text: reply.AccessToken, expires: began.Add(life - min(tokenSkew, life/10))}, ""
}

func visible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
