// Package serve owns what every service's main has around its story: settings
// from the environment, log lines in Cloud Logging's form, the check of who
// calls, health, and the life of an HTTP server from start to SIGTERM.
//
// It refuses to know what the services do: errors become HTTP here without a
// word of their cause.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"
)

// Grace is how long requests may take after the end was asked for. Cloud Run kills
// an instance 10 s after SIGTERM; the rest is for what services have left to say,
// such as a receiver's counts.
// https://cloud.google.com/run/docs/container-contract#instance-shutdown
const Grace = 6 * time.Second

// readHeaderTimeout bounds a request's headers: longer is a slow attacker.
const readHeaderTimeout = 10 * time.Second

// version is set by the linker where the image is built (scripts/lib/binaries).
var version string

// Version is the build's version: what the linker was told, or that of the module,
// or of the commit it was built from, or "devel".
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	return "devel"
}

// Listen opens the address that HOST and PORT name. The default of HOST is every
// interface, as Cloud Run wants it, and of PORT 8080; port 0 takes a free one.
func Listen(getenv func(string) string) (net.Listener, error) {
	port := getenv("PORT")
	if port == "" {
		port = "8080"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(getenv("HOST"), port))
	if err != nil {
		return nil, fmt.Errorf("listen (HOST, PORT): %w", err)
	}
	return l, nil
}

// Run serves h on l until ctx is done, then lets requests finish for [Grace] and
// returns nil. It closes l. An error means that serving ended otherwise, or that
// requests had to be cut off.
func Run(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		MaxHeaderBytes:    128 << 10,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		// Requests outlive ctx by the grace; they end with their connections.
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	log.InfoContext(ctx, "serving", slog.String("event", "start"), slog.String("address", l.Addr().String()), slog.String("version", Version()))
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), Grace)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		return errors.Join(fmt.Errorf("requests were cut off at the end: %w", err), srv.Close())
	}
	<-failed
	log.InfoContext(ctx, "stopped", slog.String("event", "stop"))
	return nil
}

// Paths of the health checks. Cloud Run keeps paths that end in z for itself.
const (
	LivePath  = "/health/live"
	ReadyPath = "/health/ready"
)

// WithHealth answers the health checks before h and recovers its panics. A nil
// ready means ready from the start.
func WithHealth(h http.Handler, ready func(context.Context) error, log *slog.Logger) http.Handler {
	// Not a ServeMux: it would answer a path that is not clean with a redirect,
	// which the services' own routes are to judge.
	return recovered(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != LivePath && r.URL.Path != ReadyPath:
			h.ServeHTTP(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			w.WriteHeader(http.StatusMethodNotAllowed)
		case r.URL.Path == ReadyPath && !isReady(r.Context(), ready, log):
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}), log)
}

func isReady(ctx context.Context, ready func(context.Context) error, log *slog.Logger) bool {
	if ready == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := ready(ctx)
	if err != nil {
		log.WarnContext(ctx, "not ready", slog.String("event", "not_ready"), slog.String("error", err.Error()))
	}
	return err == nil
}

// recovered turns a panic into a log line with its stack and a bare 500.
func recovered(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				panic(p)
			default:
				log.ErrorContext(r.Context(), "panic", slog.String("event", "panic"), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		h.ServeHTTP(w, r.WithContext(withTrace(r.Context(), r.Header)))
	})
}
