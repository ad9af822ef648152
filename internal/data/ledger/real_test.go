//go:build real && unix

package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/broker/embedded"
)

func realRedis(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := realservers.StartRedis(ctx)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r.Addr()
}

// realWorld has the laptop's Kafka and a redis-server.
func realWorld(t testing.TB, partitions int) *world {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return worldOn(t, s.Kafka(), realRedis(t), partitions)
}

func TestRealRedisHoldsThePlainFold(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { propertyRound(realWorld(t, 1+int(seed)), seed, 300) })
	}
}

func TestRealRedisLosesAKey(t *testing.T) { redisLosesAKey(t, realWorld(t, 2)) }

// A Redis that evicts keys is refused. Until this is noticed each answer is right, or it is that the
// ledger catches up. When Redis stops evicting, the ledger goes on by itself.
func TestRealRedisThatEvicts(t *testing.T) {
	w := realWorld(t, 2)
	l := w.open()
	variedHistory(w, l)
	all, want := w.modelOf(), answers(t.Context(), l)
	for name, value := range map[string]string{"maxmemory": "8mb", "maxmemory-policy": "allkeys-lru"} {
		must(t, w.redis.ConfigSet(t.Context(), name, value).Err())
	}
	filler := strings.Repeat("x", 1<<16)
	for i := 0; !l.Status().Stopped; i++ { // it stops once it has noticed that a key is lost
		must(t, w.redis.Set(t.Context(), fmt.Sprint("filler-", i), filler, 0).Err())
		for question, answer := range answers(t.Context(), l) {
			if answer != want[question] {
				t.Fatalf("after %d fillers, %s is\n%s, not\n%s", i, question, answer, want[question])
			}
		}
	}
	w.stopped(l, "maxmemory-policy is allkeys-lru")
	w.stopped(w.openWith(w.options()), "maxmemory-policy is allkeys-lru")
	must(t, w.redis.ConfigSet(t.Context(), "maxmemory", "0").Err())
	waitUntil(t, l, "it does not answer again", func() bool { return len(answers(t.Context(), l)) == len(want) })
	w.waitSettled(l)
	w.checkSame(all)
}

func TestRealListsAgreeWithThePlainFold(t *testing.T) { listsAgree(t, realWorld(t, 4)) }

func TestRealRunFromItsCauseToItsEnd(t *testing.T) { aWholeRun(t, realWorld(t, 3)) }

func TestRealClaimsInOrder(t *testing.T) {
	claimsInOrder(t, func(t *testing.T) *world { return realWorld(t, 4) })
}

func BenchmarkRealRefill(b *testing.B) { refill(b, realWorld(b, 24)) }

func BenchmarkRealRunsAtOnce(b *testing.B) { runsAtOnce(b, realWorld(b, 24), 64) }

func BenchmarkRealClaim(b *testing.B) {
	for _, waiting := range []int{100, 100_000} {
		b.Run(fmt.Sprint("waiting=", waiting), func(b *testing.B) { claims(b, realWorld(b, 24), waiting) })
	}
}
