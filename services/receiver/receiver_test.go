package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"

	"github.com/sealpost/sealpost/internal/bus"
	"github.com/sealpost/sealpost/internal/localcloud/secretmanager"
	"github.com/sealpost/sealpost/internal/secrets"
)

// cloud is an in-process Pub/Sub with the topic, and a Secret Manager.
func cloud(t *testing.T) *pstest.Server {
	t.Helper()
	broker := pstest.NewServerWithAddress("127.0.0.1:0")
	t.Cleanup(func() { _ = broker.Close() })
	if _, err := broker.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/p/topics/sealpost-inbound"}); err != nil {
		t.Fatal(err)
	}
	sm := secretmanager.New(secretmanager.Options{})
	t.Cleanup(sm.Close)
	addr, err := sm.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PUBSUB_EMULATOR_HOST", broker.Addr)
	t.Setenv(secrets.EmulatorVariable, addr)
	client, err := secrets.NewClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, value := range []string{"old", "new", " "} {
		if _, err := client.Put(t.Context(), "p", "source-gh", []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	return broker
}

func environ(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

const ghSource = `[{"id":"gh","scheme":"github","secrets":[{"name":"source-gh","versions":[2,1]}],"allow_types":["push"]}]`

// The whole service: secrets by number, both of a rotation, the published message
// byte for byte, and the counts at the end.
func TestReceiver(t *testing.T) {
	broker := cloud(t)
	cfg, err := load(environ("GOOGLE_CLOUD_PROJECT", "p", "SOURCES", ghSource))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- receiver(ctx, cfg, l, slog.New(slog.DiscardHandler)) }()

	body := []byte("{\"a\":0.0,\"n\":1152921506151679042,\"\\u001B\":\"\xff\"}\n")
	send := func(method, path, key, event string) int {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+l.Addr().String()+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		h := hmac.New(sha256.New, []byte(key))
		h.Write(body)
		req.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(h.Sum(nil)))
		req.Header.Set("X-GitHub-Event", event)
		req.Header.Set("X-GitHub-Delivery", "d-"+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	for _, c := range []struct {
		method, path, key, event string
		want                     int
	}{
		{"GET", "/health/live", "", "", 204},
		{"GET", "/health/ready", "", "", 204},
		{"POST", "/in/gh", "new", "push", 200},
		{"POST", "/in/gh", "old", "push", 200},
		{"POST", "/in/gh", "other", "push", 401},
		{"POST", "/in/gh", "new", "star", 204},
		{"GET", "/in/gh", "new", "push", 405},
		{"POST", "/in/nobody", "new", "push", 404},
		{"POST", "/", "new", "push", 404},
	} {
		if got := send(c.method, c.path, c.key, c.event); got != c.want {
			t.Errorf("%s %s %s %s: %d, want %d", c.method, c.path, c.key, c.event, got, c.want)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	checkMessages(t, broker.Messages(), body)
}

func checkMessages(t *testing.T, messages []*pstest.Message, body []byte) {
	t.Helper()
	var events []*pstest.Message
	got := map[string]int64{}
	for _, m := range messages {
		counts, err := bus.DecodeCounts(bus.Message{ID: m.ID, Data: m.Data, Attributes: m.Attributes})
		if m.Attributes["sealpost-kind"] != "counts" {
			events = append(events, m)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range counts {
			got[fmt.Sprintf("%s %s %s/%d", c.Source, c.Reason, c.Secret, c.Version)] += c.Count
		}
	}
	if len(events) != 2 {
		t.Fatalf("%d events, want two", len(events))
	}
	for i, id := range []string{"d-new", "d-old"} {
		m := events[i]
		ev, err := bus.DecodeInbound(bus.Message{ID: m.ID, Data: m.Data, Attributes: m.Attributes})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ev.Body, body) || ev.PublisherID != id || ev.Type != "push" || ev.Source != "gh" || ev.Tenant != "default" || m.Attributes["sealpost-scheme"] != "github" {
			t.Errorf("event %+v", ev)
		}
	}
	if want := map[string]int64{
		"gh mismatch /0": 1, "gh unwanted_type /0": 1, "gh wrong_method /0": 1, "gh accepted /0": 2,
		"gh secret_used source-gh/2": 2, "gh secret_used source-gh/1": 1, "gh secret_listed source-gh/2": 1, "gh secret_listed source-gh/1": 1,
	}; !maps.Equal(got, want) {
		t.Errorf("counts %v, want %v", got, want)
	}
}

// A secret that cannot be read or used stops the start, and every one is named.
func TestSecretsStopTheStart(t *testing.T) {
	cloud(t)
	for _, c := range []struct{ sources, want string }{
		{`[{"id":"a","scheme":"github","secrets":[{"name":"source-gh","versions":[1,9]}]},{"id":"b","scheme":"github","secrets":[{"name":"nope","versions":[1]}]}]`, "source-gh version 9"},
		{`[{"id":"a","scheme":"github","secrets":[{"name":"source-gh","versions":[1,9]}]},{"id":"b","scheme":"github","secrets":[{"name":"nope","versions":[1]}]}]`, "nope version 1"},
		{`[{"id":"a","scheme":"github","secrets":[{"name":"source-gh","versions":[1,3]}]}]`, "source-gh/3: secret is blank"},
		{`[{"id":"a","scheme":"standard-webhooks-v1a","secrets":[{"name":"source-gh","versions":[1]}]}]`, "source-gh/1"},
	} {
		err := run(t.Context(), environ("GOOGLE_CLOUD_PROJECT", "p", "SOURCES", c.sources, "HOST", "127.0.0.1", "PORT", "0"))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v does not say %q", err, c.want)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sources.json")
	if err := os.WriteFile(file, []byte(ghSource), 0o600); err != nil {
		t.Fatal(err)
	}
	base := []string{"GOOGLE_CLOUD_PROJECT", "p"}
	for _, c := range []struct {
		name string
		env  []string
		bad  []string
	}{
		{"inline", append(base, "SOURCES", ghSource), nil},
		{"file", append(base, "SOURCES_FILE", file), nil},
		{"no sources at all", append(base, "SOURCES", "[]"), nil},
		{"limits", append(base, "SOURCES", "[]", "BYTE_BUDGET", "67108864", "READ_TIMEOUT", "5s"), nil},
		{"in front", append(base, "SOURCES", "[]", "TRUSTED_HOPS", "2", "BEHIND_LOAD_BALANCER", "true", "CLIENT_CERT_HEADER", "X-Client-Cert-Leaf"), nil},
		{"hops", append(base, "SOURCES", "[]", "TRUSTED_HOPS", "-1"), []string{"TRUSTED_HOPS"}},
		{"more hops", append(base, "SOURCES", "[]", "TRUSTED_HOPS", "11"), []string{"TRUSTED_HOPS"}},
		{"certificates from anyone", append(base, "SOURCES", "[]", "CLIENT_CERT_HEADER", "X-Client-Cert-Leaf"), []string{"CLIENT_CERT_HEADER: needs BEHIND_LOAD_BALANCER=true"}},
		{"bad header", append(base, "SOURCES", "[]", "CLIENT_CERT_HEADER", "a b", "BEHIND_LOAD_BALANCER", "yes"), []string{"CLIENT_CERT_HEADER", "BEHIND_LOAD_BALANCER"}},
		{"nothing", nil, []string{"GOOGLE_CLOUD_PROJECT", "SOURCES, SOURCES_FILE"}},
		{"both", append(base, "SOURCES", "[]", "SOURCES_FILE", file), []string{"SOURCES, SOURCES_FILE"}},
		{"no such file", append(base, "SOURCES_FILE", file+"x"), []string{"SOURCES_FILE"}},
		{"bad limits", append(base, "SOURCES", "[]", "BYTE_BUDGET", "1", "READ_TIMEOUT", "1h"), []string{"BYTE_BUDGET", "READ_TIMEOUT"}},
		{"no numbers", append(base, "SOURCES", "{", "BYTE_BUDGET", "x", "READ_TIMEOUT", "5"), []string{"BYTE_BUDGET", "READ_TIMEOUT", "SOURCES"}},
	} {
		_, err := load(environ(c.env...))
		if (err == nil) != (c.bad == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, want := range c.bad {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not name %s", c.name, err, want)
			}
		}
	}
}
