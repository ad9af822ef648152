//go:build real

package deliver

import (
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/brokertest/realservers"
)

// Dispatchers of several installs share an Apache Kafka. It keeps the offsets of a group without members
// for a minute, in place of a week.
func TestRealDispatchers(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Config: map[string]string{
		"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		partitions int
		test       func(*install)
	}{
		"forgotten-continues":         {2, func(w *install) { testContinues(w, w.isForgotten) }},
		"forgotten-misses-nothing":    {2, func(w *install) { testMissesNothing(w, w.isForgotten) }},
		"records-below-the-mark":      {1, testTrim},
		"records-of-a-paused-trigger": {1, testRenewed},
	} {
		all.Go(func() { // t.Parallel runs only two at the same time on two cores
			t.Run(name, func(t *testing.T) {
				w := installOf(t)
				w.kafka, w.config.Name = k.Addr(), name
				c.test(w.begin(c.partitions))
			})
		})
	}
	all.Wait()
}

// isForgotten waits until Kafka has forgotten the group of the stream events.
func (w *install) isForgotten() {
	w.Helper()
	seldom := time.NewTicker(200 * time.Millisecond)
	defer seldom.Stop()
	w.waitFor("Kafka forgets the group", func() bool {
		<-seldom.C
		at, err := w.b.CommittedAll(w.ctx, tidemill.TriggersGroup(tidemill.StreamEvents))
		w.must(err)
		return len(at) == 0
	})
}
