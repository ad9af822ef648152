//go:build real && unix

package ledger_test

import (
	"context"
	"fmt"
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
