package deliver

import (
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// forget makes Kafka forget the group of the stream events.
func (w *install) forget() {
	w.Helper()
	client := kafka.Client{Addr: kafka.TCP(w.kafka)}
	name := w.names.Group(tidemill.TriggersGroup(tidemill.StreamEvents))
	w.waitFor("the group is deleted", func() bool {
		res, err := client.DeleteGroups(w.ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{name}})
		return err == nil && res.Errors[name] == nil
	})
}

// forgetMarks makes Kafka forget the group's marks alone.
func (w *install) forgetMarks(partitions int) {
	w.Helper()
	client := kafka.Client{Addr: kafka.TCP(w.kafka)}
	topic := w.names.Topic(tidemill.Parked(tidemill.StreamEvents))
	all := make([]int, partitions)
	for n := range all {
		all[n] = n
	}
	w.waitFor("the marks are deleted", func() bool {
		res, err := client.OffsetDelete(w.ctx, &kafka.OffsetDeleteRequest{GroupID: w.names.Group(tidemill.TriggersGroup(tidemill.StreamEvents)), Topics: map[string][]int{topic: all}})
		return err == nil && res.Error == nil && !slices.ContainsFunc(res.Topics[topic], func(p kafka.OffsetDeletePartition) bool { return p.Error != nil })
	})
}

// refreshGroups runs one pass of the controller's refresher of groups.
func (w *install) refreshGroups() {
	w.Helper()
	k, err := w.b.GroupRefresher(w.ctx, 0)
	w.must(err)
	w.must(k.Pass(w.ctx))
	w.must(k.Close(w.ctx))
}

// testForgotten delivers 20 events, closes the dispatcher, publishes 30, lets Kafka forget the
// group, and publishes 5 to a new dispatcher. It fails unless all are delivered.
func testForgotten(w *install, forget func()) *sink {
	w.Helper()
	to := newSink(w, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	w.publish(20, 5)
	w.waitFor("the first are delivered", func() bool { return to.count() == 20 && w.committed() })
	w.close(d)
	w.publish(30, 5)
	forget()
	w.open()
	w.publish(5, 5)
	w.waitFor("all are delivered", func() bool { return to.count() == 55 }) // which may be after they are read, because slow ones are parked
	w.waitFor("all are read", w.committed)
	to.inOrder()
	return to
}

// A dispatcher whose group Kafka has forgotten continues where the group was.
func TestAForgottenDispatcherContinues(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	testContinues(w, w.forget)
}

func testContinues(w *install, forget func()) {
	w.Helper()
	to := testForgotten(w, func() {
		w.refreshGroups()
		forget()
	})
	if n := to.attempts(); n != 55 {
		w.Errorf("%d attempts were made, want one for each of 55 events", n)
	}
	if letters := w.letters(); len(letters) > 0 {
		w.Errorf("there are %d dead letters: %+v", len(letters), letters[0])
	}
}

// If no controller ran after the last dispatcher had left, events may be delivered twice. None is
// missed, and a dead letter of each partition names the offsets.
func TestAForgottenDispatcherMissesNothing(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	testMissesNothing(w, w.forget)
}

func testMissesNothing(w *install, forget func()) {
	w.Helper()
	testForgotten(w, forget)
	for _, l := range w.letters() {
		if !strings.Contains(l.Reason, "was forgotten by Kafka") {
			w.Errorf("the letter is %+v", l)
		}
	}
	if n := len(w.letters()); n != 2 {
		w.Errorf("there are %d dead letters, want one of each partition", n)
	}
}

// Kafka has forgotten the marks of a stream that no trigger reads any more. The dispatcher finds the
// parked events by the parked log.
func TestADesertedStreamWithoutMarksIsFound(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	w.pause("a", true)
	d := w.open()
	w.publish(6, 3)
	w.waitFor("the events are parked", w.committed)
	w.close(d)
	w.remove("a")
	w.forgetMarks(2)
	w.open()
	w.waitFor("the events of the removed trigger become dead letters", func() bool { return len(w.letters()) == 6 })
}

// A log that begins later than a mark has lost records. A log without a mark has not.
func TestReadFrom(t *testing.T) {
	at := func(all ...int64) (places []broker.Position) {
		for n, offset := range all {
			places = append(places, broker.Position{Stream: "events.parked", Partition: int32(n), Offset: offset})
		}
		return places
	}
	from, lost := readFrom(at(5, 3, none, none), at(0, 4, 0, 9))
	if want := at(5, 3, 0, 9); !slices.Equal(from, want) || len(lost) != 1 || lost[0] != at(0, 3)[1] {
		t.Errorf("reads from %+v, lost %+v", from, lost)
	}
}
