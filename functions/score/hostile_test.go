package score

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"tidemill.dev/broker"
)

// still returns a session whose goroutines are not started.
func (p *process) still() *session {
	p.w.Helper()
	s := &Scorer{o: Options{Broker: p.b, Names: p.w.names, Champions: p.table, Models: p.m, held: p.held}, conf: scorer(), source: p.w.names.Source("scorer/s"), most: 4096, log: p.log}
	s.counts.latency, s.counts.sizes = &latencies{}, &latencies{}
	one := s.newSession()
	one.life, one.end = context.WithCancelCause(p.w.Context())
	return one
}

// If one partition is lost while a transaction begins, the events of the others must not be
// lost with it: all of them are read again from the last commit.
func TestAPartitionThatIsLostAsATransactionBeginsCostsNoEvents(t *testing.T) {
	w := newWorld(t, 2)
	w.publish(batchOf(0, 40, 8)...)
	p := w.addOutputs()
	s := p.still()
	s.conf.Types = []string{"another"} // all events are skipped, because only the offsets matter
	w.must(s.join(t.Context()))
	b := <-s.free
	defer func() {
		s.release(b)
		w.must(s.leave(t.Context()))
	}()
	for b.reset(1); len(b.parts) < 2; {
		w.must(s.gather(t.Context(), b))
	}
	b.sort()
	s.resolve(b)
	s.finish(b)
	if !s.dropLost(b) {
		t.Fatal("nothing is ours")
	}
	w.must(s.noteFirst(b))
	first, second := &b.parts[0], &b.parts[1]
	s.assignments.gone([]broker.Position{{Stream: streamIn, Partition: first.of.partition}})
	called, err := s.runTx(b, s.fillTx)
	if !called || !errors.Is(err, errTakenAway) {
		t.Fatalf("%v, %v", called, err)
	}
	if s.current(second) || second.from.d.Current() {
		t.Error("the other partition continues after events that were not committed")
	}
	if s.assignments.all[second.of.partition] == nil { // there are no facts yet, and a note with none must be accepted
		t.Error("the other partition was not read on")
	}
}

// A new install has no facts, and its first notes say so.
func TestANoteFromBeforeTheFirstFactIsRead(t *testing.T) {
	n, err := parseNote(offsetNote{mark: noMark}.text((&Scorer{conf: scorer()}).newSession().facts))
	if err != nil || !n.committed || len(n.facts) != 0 {
		t.Errorf("%+v, %v", n, err)
	}
}

// Kafka does not say when a record that was just parked can be read.
func TestWhatCannotBeReadYetIsAskedForAgain(t *testing.T) {
	s := (&Scorer{conf: scorer(), most: 64}).newSession()
	x := newAssignment(streamIn, 0, 0)
	x.held = openHeld(nil, "parked", 0, heldOptions{Kept: 1})
	s.active = []*assignment{x}
	v := message("a", 1)
	x.held.hold("a", "a", &v, 1, 0)
	x.held.unlock("a")
	b := s.newBatch()
	if err := s.takeParked(t.Context(), b); err != nil || !b.isEmpty() {
		t.Fatalf("%v; the batch has %d", err, len(b.items))
	}
	if at, some := s.nextDue(); !some || time.Until(at) > time.Second {
		t.Errorf("it is asked for at %v (%v)", at, some)
	}
}

// An event of the greatest size leaves no room for the additions of its output.
func TestAnOutputThatWouldBeTooLarge(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(1)
	p := w.open(scorer())
	large := message("bot-0", 1)
	large.Key = bytes.Repeat([]byte("k"), 1<<20-1500)
	w.publish(large, message("bot-0", 2))
	w.poll("one is scored, and one is a dead letter", func() bool {
		at := p.s.Standing()
		return at.Scored == 1 && at.DeadLettered == 1
	})
}

// After the output stream has grown, the notes still name the partition of the outputs that the
// offset has not passed.
func TestWhatWasFoundKeepsItsPartition(t *testing.T) {
	x := assignmentOf(0, 3)
	x.found = newEarlierOutputs("in/0/")
	x.found.causes[50] = 1
	x.resume(40, offsetNote{to: 1, from: 10}, []broker.Position{{Partition: 1, Offset: 80}, {Partition: 3, Offset: 5}})
	if n := x.offsetNote(); n.to != 1 || n.from != 10 || x.end != 80 || x.to != 1 {
		t.Errorf("the note says %+v; outputs go on at %d/%d", n, x.to, x.end)
	}
}

// An output stream that was recreated is shorter than the notes say, or has fewer partitions.
// The scorer does not wait for either, and does not search past its end.
func TestAnOutputThatWasMadeAnew(t *testing.T) {
	w := newWorld(t, 2)
	p := w.addOutputs()
	s := p.still()
	at := []broker.Position{{Stream: streamIn}, {Stream: streamIn, Partition: 1}}
	notes := []offsetNote{{to: 0, from: 1000, mark: noMark, committed: true}, {to: 7, from: 1000, mark: noMark, committed: true}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := s.beginAt(ctx, at, notes)
	w.must(err)
	for i, x := range all {
		if n := x.offsetNote(); n.from != 0 || x.found != nil || x.noted != (i == 0) {
			t.Errorf("the note of partition %d says %+v (%v)", i, n, x.noted)
		}
	}
}

// The note's place is one of the topic that the note names. The topic that was created since is read from its beginning.
func TestAnOutputThatWasCreatedSinceTheNote(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	w.publish(batchOf(0, 20, 2)...)
	w.open(scorer())
	w.judge(20)
	s := w.addOutputs().still()
	now, err := s.o.Broker.TopicID(t.Context(), streamOut)
	w.must(err)
	for _, c := range []struct {
		name  string
		out   string
		found int
	}{{"of this topic", now, 0}, {"of an earlier version", "", 0}, {"of another cluster", "x" + now + "x", 0}, {"of the topic before", "x" + now, 10}} {
		notes := []offsetNote{{from: 1000, mark: noMark, out: c.out, committed: true}}
		all, err := s.beginAt(t.Context(), []broker.Position{{Stream: streamIn, Offset: 10}}, notes)
		w.must(err)
		found := 0
		if all[0].found != nil {
			found = len(all[0].found.causes)
		}
		if n := all[0].offsetNote(); found != c.found || n.out != now || c.found > 0 && n.from != 0 {
			t.Errorf("with a note %s %d outputs are found, and its own is %+v", c.name, found, n)
		}
	}
}

// A model that makes one answer from all rows is run for each event alone. Its trial with a
// single row cannot show this.
func TestAModelThatAnswersOneRowOnly(t *testing.T) {
	w := newWorld(t, 1)
	axis := proto{}.text(1, "axis").number(3, 0).number(20, 2)
	graph := proto{}.bytes(1, node("MatMul", "m", "x", "w")).bytes(1, node("Flatten", "y", "m").bytes(5, axis)).text(2, "flat").
		bytes(5, weights("w", make([]float32, 12), 4, 3)).bytes(11, valueInfo("x", 4)).bytes(12, valueInfo("y", 3))
	w.model(artifactOf("m/bot-0", 1), proto{}.number(1, 8).bytes(7, graph).bytes(8, proto{}.number(2, 13)).
		bytes(14, proto{}.text(1, "labels").text(2, "a,b,c")))
	w.promoted("m/bot-0", 1)
	w.publish(batchOf(0, 20, 1)...)
	p := w.open(scorer())
	w.poll("all are scored", func() bool { return p.s.Standing().Scored == 20 })
}
