//go:build unix

package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
)

// BenchmarkLive measures the processor time of 50 viewers while 100 facts a second come. Everything is in this process:
// Kafka, and the viewers too. The difference of the figures is the cost of the viewers. Run it with -benchtime 1x.
func BenchmarkLive(b *testing.B) {
	for _, viewers := range []int{0, 50} {
		b.Run(fmt.Sprint(viewers, " viewers"), func(b *testing.B) {
			w := newRuns(b, nil)
			var updates atomic.Int64
			var reading sync.WaitGroup
			w.view("topics=fleet").next() // the feed is open in both cases
			for i := range viewers {
				v := w.view(fmt.Sprintf("topics=fleet,fleet:fraud,runs,approvals,commands,key:bot-%d,pools,scorers", i))
				reading.Go(func() {
					for {
						if b, err := v.nextBlock(); err != nil || b.event == "end" {
							return
						}
						updates.Add(1)
					}
				})
			}
			const lasts = 10 * time.Second
			for range b.N {
				before, began, n := cpuTime(b), time.Now(), 0
				tick := time.NewTicker(10 * time.Millisecond)
				for ; time.Since(began) < lasts; n++ {
					<-tick.C
					must1(w.producer.Publish(b.Context(), tidemill.StreamFacts, w.someFact(n)))(b)
				}
				tick.Stop()
				b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/time.Since(began).Seconds(), "cpu-µs/s")
				b.ReportMetric(float64(n)/time.Since(began).Seconds(), "facts/s")
				b.ReportMetric(float64(updates.Load())/time.Since(began).Seconds(), "updates/s")
			}
			ctx, cancel := context.WithTimeout(context.Background(), patienceOfTests)
			defer cancel()
			_ = w.gateway.Close(ctx)
			reading.Wait()
		})
	}
}
