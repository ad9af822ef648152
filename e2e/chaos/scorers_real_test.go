//go:build real

package chaos

import (
	"context"
	"strconv"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

// The rounds of scorers on Apache Kafka. In one round, scorers are killed often and Kafka once. In
// another round, a program leaves a transaction open. In the third round, the memory holds only few
// models. Apache Kafka does not tear transactions.
func TestRealChaosOfScorers(t *testing.T) {
	sum := &figures{counts: map[string]int{}}
	for _, seed := range []uint64{1, 2, 5} {
		p := scorersPlanOf(seed)
		p.events /= 2
		t.Run("seed "+strconv.FormatUint(seed, 10), func(t *testing.T) {
			kafka, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := kafka.Close(); err != nil {
					t.Error(err)
				}
			})
			r := newScorersRound(t, p)
			r.fleet = newFleet(r.dir, kafka.Addr(), seed)
			killed := make(chan error, 1)
			go func() { killed <- killInTheMidst(t.Context(), kafka, r) }()
			playScorers(t, r, sum)
			if err := <-killed; err != nil {
				t.Error(err)
			}
		})
	}
	t.Log(sum.counts)
}

// killInTheMidst kills Kafka once in a round of kills.
func killInTheMidst(ctx context.Context, kafka *realservers.Kafka, r *scorersRound) error {
	if r.plan.profile != scorersKill {
		return nil
	}
	if err := awaitWord(ctx, r.dir, "scorer-0", "ready"); err != nil {
		return err
	}
	if err := wait(ctx, r.plan.length/2); err != nil {
		return err
	}
	if err := kafka.Kill(); err != nil {
		return err
	}
	return kafka.Restart(ctx)
}
