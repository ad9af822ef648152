//go:build real && unix

package dedupe_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/broker/dedupe"
)

func realRedis(t testing.TB) *realservers.Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := realservers.StartRedis(ctx)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r
}

func TestRealRedisIsShared(t *testing.T) {
	addr := realRedis(t).Addr()
	shareMarks(t, openMemory(t, dedupe.Options{Redis: dial(t, addr)}), openMemory(t, dedupe.Options{Redis: dial(t, addr)}))
}

func TestRealRedisForgets(t *testing.T) {
	client := dial(t, realRedis(t).Addr())
	m := openMemory(t, dedupe.Options{Redis: client, Limit: 4096})
	for i := range 20_000 {
		m.Mark("events", time.Second, "/a", fmt.Sprint(i))
	}
	if m.Seen(t.Context(), "events", time.Second, "/a", "0") {
		t.Error("more than the limit is remembered")
	}
	waitUntil(t, "it forgets", func() bool {
		stats := client.Info(t.Context(), "stats").Val()
		return stats != "" && !strings.Contains(stats, "expired_keys:0\r\n") && client.DBSize(t.Context()).Val() == 0 &&
			!m.Seen(t.Context(), "events", time.Second, "/a", "19999")
	})
}

func TestRealRedisIsKilled(t *testing.T) {
	r := realRedis(t)
	patient := dedupe.Options{Redis: dial(t, r.Addr()), Patience: time.Minute}
	m, other := watch(t, patient), openMemory(t, patient)
	m.Mark("events", window, "/a", "before")
	waitMark(t, other, "events", "/a", "before")
	if m.Seen(t.Context(), "events", window, "/a", "never") { // its answer comes after that of the mark, which is sent again otherwise
		t.Error("an event is known that was never marked")
	}
	must(t, r.Kill())
	if !other.Seen(t.Context(), "events", window, "/a", "before") {
		t.Error("what was known is forgotten")
	}
	m.Mark("events", window, "/a", "during")
	must(t, r.Restart(t.Context()))
	waitMark(t, other, "events", "/a", "during")
	late := openMemory(t, patient)
	waitMark(t, late, "events", "/a", "during")
	if late.Seen(t.Context(), "events", window, "/a", "before") {
		t.Error("the restarted Redis was not empty")
	}
	m.expectMetric(t, "tidemill_dedupe_unavailable", 0)
}

// A gateway that starts reads all entries from the beginning.
func TestRealRedisTeachesWhoStarts(t *testing.T) {
	client := dial(t, realRedis(t).Addr())
	m := openMemory(t, dedupe.Options{Redis: client})
	const marks = 200_000
	for i := range marks {
		m.Mark("events", window, "/a", fmt.Sprint(i))
		if i%10_000 == 0 {
			waitMark(t, openMemory(t, dedupe.Options{Redis: client}), "events", "/a", fmt.Sprint(i))
		}
	}
	must(t, m.Close(t.Context()))
	late := openMemory(t, dedupe.Options{Redis: client})
	for i := range marks {
		if !late.Seen(t.Context(), "events", window, "/a", fmt.Sprint(i)) {
			t.Fatalf("%d is not known", i)
		}
	}
}

func BenchmarkRealSeenAndMark(b *testing.B) {
	for _, callers := range []int{1, 64, 512} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) { seenAndMark(b, realRedis(b).Addr(), callers) })
	}
}

// The turn of a full generation of half a million marks must not delay a caller.
func BenchmarkRealTurn(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: realRedis(b).Addr()})
	defer client.Close()
	m := watch(b, dedupe.Options{Redis: client, Patience: 10 * time.Second})
	longest := time.Duration(0)
	for i := range b.N {
		began := time.Now()
		m.Seen(b.Context(), "events", window, "/a", strconv.Itoa(i))
		longest = max(longest, time.Since(began))
		for j := range 100 {
			m.Mark("events", window, "/a", strconv.Itoa(i*100+j))
		}
	}
	b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
}
