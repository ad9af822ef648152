package dedupe_test

import (
	"fmt"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/dedupe"
)

// waitKnown asks after all due trips have been made. Time is virtual.
func waitKnown(t *testing.T, m *dedupe.Memory, id string) bool {
	t.Helper()
	<-time.After(50 * time.Millisecond)
	return m.Seen(t.Context(), "events", window, "/a", id)
}

// Every gateway with marks of a deleted stream learns of the deletion, however long it was idle and
// however many marks were made since. Marks made after the deletion count.
func TestForgottenByAll(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		client := w.client(t)
		a, b := openMemory(t, dedupe.Options{Redis: client, Limit: 100}), openMemory(t, dedupe.Options{Redis: client, Limit: 100})
		a.Mark("events", window, "/a", "1")
		if !waitKnown(t, b, "1") {
			t.Fatal("the mark did not arrive")
		}
		names, err := tidemill.NewNames("test")
		must(t, err)
		<-time.After(time.Second)
		must(t, dedupe.Forget(t.Context(), client, names, "kafka", "events"))
		maker := openMemory(t, dedupe.Options{Redis: client, Limit: 100})
		for i := range 300 {
			maker.Mark("events", window, "/new", fmt.Sprint(i))
			<-time.After(10 * time.Millisecond)
		}
		for name, m := range map[string]*dedupe.Memory{"who marked it": a, "who read of it": b, "who made it": maker} {
			if m.Seen(t.Context(), "events", window, "/a", "1") {
				t.Errorf("%s still knows an event of a stream that is no more", name)
			}
		}
		a.Mark("events", window, "/a", "1")
		if !waitKnown(t, b, "1") || !waitKnown(t, maker, "1") || !waitKnown(t, a, "1") {
			t.Error("what was marked since is forgotten too")
		}
	})
}

// A gateway forgets its own marks even while Redis is away.
func TestForgottenHere(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		m := openMemory(t, dedupe.Options{Redis: w.client(t), Patience: 100 * time.Millisecond})
		m.Mark("events", window, "/a", "1")
		w.refuse(true)
		if !waitKnown(t, m, "1") {
			t.Fatal("an own mark is not known")
		}
		m.Forget("events")
		if waitKnown(t, m, "1") {
			t.Error("an own mark is known still")
		}
		w.refuse(false)
		<-time.After(time.Minute)
		if waitKnown(t, m, "1") {
			t.Error("the mark came back with Redis")
		}
	})
}

// A gateway that starts, and marks before it has read, does not remove the marks of others.
func TestWhoHasNotReadForgetsNothing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		a := openMemory(t, dedupe.Options{Redis: w.client(t)})
		for i := range 10 {
			a.Mark("events", window, "/a", fmt.Sprint(i))
			<-time.After(time.Second)
		}
		openMemory(t, dedupe.Options{Redis: w.client(t)}).Mark("events", window, "/b", "1")
		<-time.After(time.Second)
		late := openMemory(t, dedupe.Options{Redis: w.client(t)})
		for i := range 10 {
			if !waitKnown(t, late, fmt.Sprint(i)) {
				t.Errorf("mark %d is gone", i)
			}
		}
	})
}

// Two installs of one name share a Redis but not a Kafka.
func TestAnotherKafkasEventsAreNoRepeats(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *testRedis) {
		here, there := openMemory(t, dedupe.Options{Redis: w.client(t), Kafka: "here"}), openMemory(t, dedupe.Options{Redis: w.client(t), Kafka: "there"})
		here.Mark("events", window, "/a", "1")
		if waitKnown(t, there, "1") || !waitKnown(t, here, "1") {
			t.Error("an event of another Kafka is a repeat")
		}
	})
}
