package serve

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/api/idtoken"
)

// AuthMode says how a caller's identity is established.
type AuthMode string

// Modes of authentication between services.
const (
	// AuthIAM trusts Cloud Run's own check, which forwards the caller's token with
	// its signature replaced: email and audience are read and compared. Only right
	// where the invoker check is on.
	AuthIAM AuthMode = "iam"
	// AuthVerify checks the token wholly: signature, expiry, issuer, audience.
	AuthVerify AuthMode = "verify"
	// AuthNone lets everybody in. Refused unless an emulator's variable is set.
	AuthNone AuthMode = "none"
)

// emulatorVariables mark an environment without real callers.
var emulatorVariables = []string{"SPANNER_EMULATOR_HOST", "PUBSUB_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST"}

// OnEmulators reports whether an emulator's variable is set.
func OnEmulators(getenv func(string) string) bool {
	return slices.ContainsFunc(emulatorVariables, func(name string) bool { return getenv(name) != "" })
}

// Auth admits callers by their Google ID token.
type Auth struct {
	Mode     AuthMode
	Audience string   // the token's aud
	Emails   []string // service accounts that may call
	// Validate checks a token's signature, expiry and audience; nil means Google's.
	Validate func(ctx context.Context, token, audience string) (*idtoken.Payload, error)
}

// AuthFromEnv reads AUTH (iam, verify or none), AUDIENCE and the variable that
// lists the callers' service accounts, which is otherwise by default, if any.
// Every fault is reported.
func AuthFromEnv(getenv func(string) string, callers, otherwise string) (Auth, error) {
	a := Auth{Mode: AuthMode(getenv("AUTH")), Audience: getenv("AUDIENCE")}
	list := getenv(callers)
	if list == "" {
		list = otherwise
	}
	a.Emails = SplitList(list)
	var errs []error
	switch a.Mode {
	case AuthNone:
		if !OnEmulators(getenv) {
			errs = append(errs, errors.New("AUTH=none is for emulators only, and no emulator's variable is set"))
		}
		return a, errors.Join(errs...)
	case AuthIAM, AuthVerify:
	default:
		errs = append(errs, fmt.Errorf("AUTH is %q, want iam, verify or none", a.Mode))
	}
	if a.Audience == "" {
		errs = append(errs, errors.New("AUDIENCE is not set"))
	}
	if len(a.Emails) == 0 {
		errs = append(errs, fmt.Errorf("%s is not set", callers))
	}
	return a, errors.Join(errs...)
}

// Wrap admits to h only callers that Auth lets in: 401 without a usable token,
// 403 with somebody else's. Neither says why; the log does.
func (a Auth) Wrap(h http.Handler, log *slog.Logger) http.Handler {
	if a.Mode == AuthNone {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := a.check(r)
		if err != nil {
			log.WarnContext(r.Context(), "caller refused", slog.String("event", "unauthorized"), slog.String("path", r.URL.Path), slog.String("error", err.Error()))
			w.WriteHeader(status)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (a Auth) check(r *http.Request) (status int, err error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || len(r.Header.Values("Authorization")) != 1 {
		return http.StatusUnauthorized, errors.New("no bearer token")
	}
	var email, audience string
	var verified bool
	switch a.Mode {
	case AuthIAM:
		if email, audience, verified, err = claims(token); err != nil {
			return http.StatusUnauthorized, err
		}
	case AuthVerify:
		validate := a.Validate
		if validate == nil {
			validate = idtoken.Validate
		}
		p, err := validate(r.Context(), token, a.Audience)
		if err != nil {
			return http.StatusUnauthorized, fmt.Errorf("token is not valid: %w", err)
		}
		email, _ = p.Claims["email"].(string)
		verified, _ = p.Claims["email_verified"].(bool)
		audience = p.Audience
	default:
		return http.StatusUnauthorized, fmt.Errorf("authentication mode %q", a.Mode)
	}
	if audience != a.Audience || !verified || !slices.Contains(a.Emails, email) {
		return http.StatusForbidden, fmt.Errorf("token of %q for %q", email, audience)
	}
	return 0, nil
}

// claims reads a token without checking its signature, which Cloud Run has done.
func claims(token string) (email, audience string, verified bool, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", "", false, errors.New("token has no three parts")
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return "", "", false, errors.New("token's claims are not base64")
	}
	var c struct {
		Email         string `json:"email"`
		EmailVerified bool   `json:"email_verified"`
		Aud           string `json:"aud"`
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return "", "", false, errors.New("token's claims are not JSON")
	}
	return c.Email, c.Aud, c.EmailVerified, nil
}
