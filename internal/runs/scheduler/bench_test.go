package scheduler

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev/config"
)

// BenchmarkRuns measures the cost of a run without its command: from 32 requests at a time to the
// end of the last run, in 8 slots, with a trainer that takes no time.
func BenchmarkRuns(b *testing.B) {
	w := newWorld(b, plain("intent"))
	w.change(func(c *config.Config) { c.Pools = []config.Pool{{Name: "default", Slots: 8}} })
	f := w.foreman(alone)
	w.watch(f)
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan struct{})
	w.launch.does = func(a Attempt) {
		w.agent(f, a, succeeded)
		if left.Add(-1) == 0 {
			close(done)
		}
	}
	todo := make(chan int)
	var asking sync.WaitGroup
	b.ResetTimer()
	for range 32 {
		asking.Go(func() {
			for n := range todo {
				w.ask(f, wish("intent", fmt.Sprint("bot-", n), "1"))
			}
		})
	}
	for n := range b.N {
		todo <- n
	}
	close(todo)
	asking.Wait()
	<-done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
}

// BenchmarkTick measures the cost of each key of a schedule's tick: requests for a later time,
// 128 at once, as the function train makes them.
func BenchmarkTick(b *testing.B) {
	w := newWorld(b, plain("intent"))
	f := w.foreman(alone)
	w.watch(f)
	todo := make(chan int)
	var asking sync.WaitGroup
	b.ResetTimer()
	for range 128 {
		asking.Go(func() {
			for n := range todo {
				r := wish("intent", fmt.Sprint("bot-", n), "1")
				r.Delay = time.Hour
				w.ask(f, r)
			}
		})
	}
	for n := range b.N {
		todo <- n
	}
	close(todo)
	asking.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "keys/s")
}
