package follow

import (
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// Only the newest records of each partition are read, and none before the start position.
func TestNewest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, serve(t, embedded.Options{}).Kafka(), 4)
	w.publish("a", 800)
	ends, err := w.b.Ends(w.ctx(), stream)
	w.must(err)
	last := map[int32]int64{}
	for _, end := range ends {
		last[end.Partition] = end.Offset
	}
	for _, e := range w.restOfEvents(w.open(ReaderOptions{Start: broker.Earliest(), ToEnd: true, Newest: 40})) {
		if e.Offset < last[e.Partition]-10 {
			t.Errorf("offset %d of partition %d, which ends at %d, is none of its newest ten", e.Offset, e.Partition, last[e.Partition])
		}
	}
	if got := w.restOfEvents(w.open(ReaderOptions{Start: broker.Earliest(), ToEnd: true, Newest: 40})); len(got) != 40 {
		t.Errorf("%d events, want 40", len(got))
	}
	if got := w.restOfEvents(w.open(ReaderOptions{Start: broker.Earliest(), ToEnd: true, Newest: 1 << 40})); len(got) != 800 {
		t.Errorf("%d events, want all 800", len(got))
	}
	if got := w.restOfEvents(w.open(ReaderOptions{Start: broker.Latest(), ToEnd: true, Newest: 40})); len(got) != 0 {
		t.Errorf("%d events from before the start", len(got))
	}
}
