package system_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sealpost/sealpost/internal/store"
	"github.com/sealpost/sealpost/internal/system"
	"github.com/sealpost/sealpost/internal/webhook"
)

// kind is what a request of the burst is.
type kind string

const (
	genuine   kind = "genuine"
	duplicate kind = "duplicate" // of the event ten places before
	forged    kind = "forged"
	stale     kind = "stale" // well signed, too long ago
)

// burst is what a provider sends, and what it is told.
type burst struct {
	*rig
	src system.Source
	url string

	mu       sync.Mutex
	accepted map[string][sha256.Size]byte // by event id, what was answered 2xx
	answers  map[kind]map[int]int
	done     int
	tries    int // that were answered 503
	at       map[int]func()
}

// kindOf deals the kinds out: of twenty requests two are duplicates, two forged and
// one stale.
func kindOf(i int) kind {
	switch i % 20 {
	case 10, 11:
		return duplicate
	case 12, 13:
		return forged
	case 14:
		return stale
	}
	return genuine
}

// request makes the i-th one. A duplicate carries the id and the bytes of an earlier
// one under a signature of its own.
func (b *burst) request(i int) call {
	n := i
	if kindOf(i) == duplicate {
		n -= 10
	}
	at := time.Now()
	if kindOf(i) == stale {
		at = at.Add(-10 * time.Minute)
	}
	unix := fmt.Sprint(at.Unix())
	c := call{url: b.url, id: fmt.Sprint("evt_", n), header: http.Header{"Content-Type": {"application/json"}}}
	c.body = fmt.Appendf(nil, `{"id":%q,"object":"event","n":%d,"type":"invoice.paid",%s`, c.id, n, awkward)
	secret := b.src.Secret
	if kindOf(i) == forged {
		secret += "x"
	}
	c.header.Set("Stripe-Signature", "t="+unix+",v1="+hex.EncodeToString(sum(secret, unix+"."+string(c.body))))
	return c
}

// send posts the i-th request until it is answered anything but 503, as a provider
// does.
func (b *burst) send(i int) {
	for b.t.Context().Err() == nil {
		c := b.request(i)
		code, _, err := post(b.t.Context(), c.url, c.header, c.body)
		if err != nil {
			b.t.Errorf("request %d: %v", i, err)
			return
		}
		if b.answered(i, c, code) {
			return
		}
	}
}

func (b *burst) answered(i int, c call, code int) (final bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if code == http.StatusServiceUnavailable {
		b.tries++
		return false
	}
	k := kindOf(i)
	if b.answers[k] == nil {
		b.answers[k] = map[int]int{}
	}
	b.answers[k][code]++
	if code/100 == 2 {
		b.accepted[c.id] = sha256.Sum256(c.body)
	}
	b.done++
	if f := b.at[b.done]; f != nil {
		f()
	}
	return true
}

// A burst of requests, some of them repeated, forged or stale, while the receiver
// cannot reach Pub/Sub for ten seconds: everything that was answered 2xx is stored
// exactly once and byte for byte, and nothing else is.
func TestBurstOfRequestsThroughAnOutage(t *testing.T) {
	t.Parallel()
	requests, outage := 2000, 10*time.Second
	if testing.Short() {
		requests, outage = 400, 2*time.Second
	}
	r := start(t, system.Options{Pull: true})
	way := newLink(t, r.Env()["PUBSUB_EMULATOR_HOST"])
	b := &burst{rig: r, src: r.source("stripe"), accepted: map[string][sha256.Size]byte{}, answers: map[kind]map[int]int{}}
	env := r.receiverWith(map[string]any{"publish_deadline": "1s"}, b.src)
	env["PUBSUB_EMULATOR_HOST"] = way.addr
	receiver := r.serve(system.Receiver, env)
	b.url = receiver.url + "/in/" + b.src.Name
	healed := make(chan struct{})
	b.at = map[int]func(){requests / 3: func() {
		way.set("cut")
		time.AfterFunc(outage, func() {
			way.set("")
			close(healed)
		})
	}}
	var wg sync.WaitGroup
	next := make(chan int)
	for range 48 {
		wg.Go(func() {
			for i := range next {
				b.send(i)
			}
		})
	}
	for i := range requests {
		next <- i
	}
	close(next)
	wg.Wait()
	<-healed
	if b.tries == 0 {
		t.Error("nothing was answered 503: there was no outage")
	}
	for _, k := range []kind{genuine, duplicate, forged, stale} {
		for code, n := range b.answers[k] {
			if bad := k == forged || k == stale; (code == http.StatusUnauthorized) != bad || (code == http.StatusOK) == bad {
				t.Errorf("%d %s requests were answered %d", n, k, code)
			}
		}
	}
	if want := requests * 15 / 20; len(b.accepted) != want {
		t.Errorf("%d events were accepted, want %d", len(b.accepted), want)
	}
	eventually(t, func() error { return b.stored() })
	receiver.stop(terminate, 10*time.Second)
}

// stored compares what is stored with what was accepted.
func (b *burst) stored() error {
	found, duplicates := 0, int64(0)
	for page := (store.Page{Size: 200}); ; {
		rows, next, err := b.Store.ListEvents(b.t.Context(), store.EventFilter{Tenant: webhook.DefaultTenant}, page)
		if err != nil {
			return err
		}
		for _, row := range rows {
			hash, ok := b.accepted[row.PublisherID]
			if !ok || row.BodyHash != hash || row.Source != b.src.Name {
				b.t.Fatalf("stored and never accepted: %+v", row)
			}
			duplicates += row.Duplicates
		}
		found += len(rows)
		if page.Token = next; next == "" {
			break
		}
	}
	if found > len(b.accepted) {
		b.t.Fatalf("%d events are stored, %d were accepted", found, len(b.accepted))
	}
	if found < len(b.accepted) || duplicates == 0 {
		return fmt.Errorf("%d of %d events are stored, %d duplicates counted", found, len(b.accepted), duplicates)
	}
	return nil
}
