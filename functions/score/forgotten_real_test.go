//go:build real

package score

import (
	"testing"
	"time"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/broker/embedded"
)

// An Apache Kafka that keeps the offsets of a group without members for a minute, in place of a
// week, forgets a scorer that has scaled to zero. The scorer continues where it was, wherever it starts by its
// config.
func TestRealForgottenScorerContinues(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Config: map[string]string{
		"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	s, err := embedded.Start(t.Context(), embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for name, latest := range map[string]bool{"earliest": false, "latest": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // both wait at the same time
			w := &world{TB: t, install: name, dir: t.TempDir(), partitions: 2, kafka: k.Addr(), redis: s.Redis()}
			w.connect()
			testForgotten(w, latest, w.isForgotten)
		})
	}
}

// isForgotten waits until Kafka has forgotten the scorer's group.
func (w *world) isForgotten() {
	w.Helper()
	seldom := time.NewTicker(200 * time.Millisecond)
	defer seldom.Stop()
	w.poll("Kafka forgets the group", func() bool {
		<-seldom.C
		at, err := w.b.CommittedAll(w.Context(), Group("s"))
		w.must(err)
		return len(at) == 0
	})
}
