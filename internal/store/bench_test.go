package store

import (
	"fmt"
	"testing"

	"github.com/sealpost/sealpost/internal/webhook"
)

// BenchmarkIngest stores 1 KiB events with one delivery each, in groups. ns/op is
// per event.
func BenchmarkIngest(b *testing.B) {
	for _, size := range []int{1, 10, 50} {
		b.Run(fmt.Sprint("group of ", size), func(b *testing.B) {
			f := newFixture(b, Options{})
			f.endpoint("default", "a")
			group := make([]webhook.Event, 0, size)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				e := event("default", "bench", fmt.Sprint(n), "invoice.paid")
				e.Body = noise(1 << 10)
				e.Seal()
				if group = append(group, e); len(group) == size {
					f.ingest(group...)
					group = group[:0]
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkClaimAndRecord makes one successful attempt per delivery, claims
// singly and records in groups. ns/op is per delivery.
func BenchmarkClaimAndRecord(b *testing.B) {
	for _, size := range []int{1, 50} {
		b.Run(fmt.Sprint("group of ", size), func(b *testing.B) {
			f := newFixture(b, Options{})
			f.endpoint("default", "a")
			var recs []AttemptRecord
			n := 0
			for b.Loop() {
				n++
				b.StopTimer()
				e := event("default", "bench", fmt.Sprint(n), "invoice.paid")
				k := f.ingest(e)[0].Tasks[0].Key
				b.StartTimer()
				c, err := f.Claim(f.ctx, k)
				if err != nil || c.Verdict != VerdictRun {
					b.Fatal(c, err)
				}
				if recs = append(recs, f.attempt(c.Delivery, delivered)); len(recs) == size {
					f.record(recs...)
					recs = recs[:0]
				}
			}
		})
	}
}
