//go:build unix

package dedupe_test

import (
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev/broker/dedupe"
)

// BenchmarkSeenAndMark measures the work of the gateway for an event, with 64 concurrent callers.
// Its CPU time is that of this process, including the embedded Redis.
func BenchmarkSeenAndMark(b *testing.B) {
	for _, callers := range []int{1, 64, 512} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) { seenAndMark(b, embeddedRedis(b), callers) })
	}
}

func seenAndMark(b *testing.B, addr string, callers int) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	m := openMemory(b, dedupe.Options{Redis: client, Patience: time.Minute})
	var next atomic.Int64
	var all sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu()
	for range callers {
		all.Go(func() {
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				id := "4c7d1f5e-0000-4000-8000-" + strconv.FormatInt(n, 10)
				if m.Seen(b.Context(), "events", window, "/shop/eu", id) {
					b.Errorf("%s was never here", id)
				}
				m.Mark("events", window, "/shop/eu", id)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
