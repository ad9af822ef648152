//go:build real

package score

import (
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/broker/embedded"
)

// An Apache Kafka that keeps the offsets of a group without members for a minute, in place of a
// week, forgets a scorer that has scaled to zero. The scorer continues where it was.
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
	w := &world{TB: t, dir: t.TempDir(), partitions: 2, kafka: k.Addr(), redis: s.Redis()}
	w.connect()
	testForgotten(w, true, func() {
		w.refreshGroups()
		w.poll("Kafka forgets the group", func() bool {
			at, err := w.b.Committed(t.Context(), Group("s"), []broker.Position{{Stream: streamIn}, {Stream: streamIn, Partition: 1}})
			w.must(err)
			return at[0].Offset < 0 && at[1].Offset < 0
		})
	})
	if letters := w.outputs(tidemill.StreamDeadLetters); len(letters) > 0 {
		t.Errorf("there are %d dead letters", len(letters))
	}
}
