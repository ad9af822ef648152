//go:build real

package chaos

import (
	"context"
	"strconv"
	"testing"

	"tidemill.dev/broker/brokertest/realservers"
)

// The rounds of triggers on Apache Kafka. In one round, dispatchers are killed often and Kafka
// once. In the other round, dispatchers are restarted by SIGTERM.
func TestRealChaosOfTriggers(t *testing.T) {
	sum := &figures{counts: map[string]int{}}
	for _, seed := range []uint64{2, 3} {
		p := triggersPlanOf(seed)
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
			r := newTriggersRound(t, p)
			r.fleet = newFleet(r.dir, kafka.Addr(), seed)
			killed := make(chan error, 1)
			go func() { killed <- killKafka(t.Context(), kafka, r) }()
			playTriggers(t, r, sum)
			if err := <-killed; err != nil {
				t.Error(err)
			}
		})
	}
	t.Log(sum.counts)
}

// killKafka kills Kafka once in a round of kills.
func killKafka(ctx context.Context, kafka *realservers.Kafka, r *triggersRound) error {
	if r.plan.profile != triggersKill {
		return nil
	}
	if err := awaitWord(ctx, r.dir, "dispatcher-0", "ready"); err != nil {
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
