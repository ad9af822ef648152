//go:build real

package brokertest

import (
	"context"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/brokertest/realservers"
)

func TestRealKafka(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Config: map[string]string{"group.min.session.timeout.ms": "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	Run(t, Server{Addr: k.Addr(), Session: 10 * time.Second, Restart: func(t testing.TB) {
		if err := k.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}})
}

// Kafka keeps the offsets of a group without members for a minute here, in place of a week. It
// forgets a group that no refresher joins. It keeps a kept one, and the marks of a group with members,
// although they are committed only once.
func TestRealRefresherOutlivesRetention(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{Config: map[string]string{
		"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	s := Server{Addr: k.Addr(), Session: 10 * time.Second}
	forgotten, kept, live := newWorld(t, s), newWorld(t, s), newWorld(t, s)
	for _, w := range []*testWorld{forgotten, kept, live} {
		w.newForgotten()
	}
	kept.readNumbers(0, 3)
	at, note := kept.noteOf()
	live.readNumbers(0, 3)
	begun := make(chan []broker.Position, 10)
	live.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Companions: []string{inParked}, Assigned: reportAssigned(begun)})
	<-begun
	forgotten.readNumbers(0, 3) // the last, so that the others are older
	refresher, err := kept.b.GroupRefresher(t.Context(), 0)
	kept.must(err)
	keeping, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		refresher.Run(keeping, func() bool { return true })
	}()
	isForgotten := func() bool {
		offset := forgotten.committed(broker.Position{Stream: "in"})
		mark := forgotten.parkedOffset(0)
		return offset < 0 && mark < 0
	}
	forgotten.pollUntil("Kafka forgets the group that has no refresher", isForgotten)
	if gotAt, got := kept.noteOf(); gotAt != at || got != note || kept.parkedOffset(0) != 7 {
		t.Errorf("the kept group is at %d with the note %q and the mark %d, want %d, %q and 7", gotAt, got, kept.parkedOffset(0), at, note)
	}
	if mark := live.parkedOffset(0); mark != 7 {
		t.Errorf("the mark of the group with members is at %d, want 7", mark)
	}
	stop()
	<-ended
	kept.must(refresher.Close(context.WithoutCancel(t.Context())))
	if n := kept.endOffset(tidemill.StreamGroupOffsets); n == 0 {
		t.Error("the refresher has recorded nothing")
	}
}
