package score

import (
	"testing"

	"tidemill.dev/broker"
)

func assignmentOf(partition, to int32) *assignment {
	t := newAssignment("in", partition, to)
	t.held = openHeld(nil, "scorer.s.parked", partition, heldOptions{})
	return t
}

// The note names a place from which all outputs can be found that the offset has not passed.
func TestANoteStaysBehindWhatTheOffsetHasNotPassed(t *testing.T) {
	x := assignmentOf(3, 1)
	x.end = 100
	steps := []struct {
		sent  int64 // offset after the transaction's last output
		whole bool
		from  int64 // value in the transaction's note
	}{
		{110, true, 100},
		{0, true, 110}, // no output was sent
		{120, false, 110},
		{130, false, 110},
		{140, true, 110},
		{150, true, 140},
	}
	for i, s := range steps {
		if n := x.offsetNote(); n.from != s.from || n.to != 1 {
			t.Errorf("step %d: the note says %+v, want %d", i, n, s.from)
		}
		x.passed(s.sent, s.whole)
	}
}

// If the output was created again, its offsets begin again, and the outputs may be anywhere.
func TestANoteOfAnOutputThatIsCreatedAgain(t *testing.T) {
	x := assignmentOf(3, 1)
	x.end, x.out = 100, "a"
	for i, s := range []struct {
		sent  int64
		whole bool
		from  int64
	}{{110, false, 100}, {10, false, 0}, {20, false, 0}, {30, true, 30}, {0, true, 30}} {
		x.passed(s.sent, s.whole)
		if n := x.offsetNote(); n.from != s.from || n.out != "a" || x.moved != (i > 0) {
			t.Errorf("step %d: the note says %+v, want %d; moved %v", i, n, s.from, x.moved)
		}
	}
}

func TestWhatWasSentIsFound(t *testing.T) {
	const me = "/tidemill/prod/scorer/s"
	x := newAssignment("in", 3, 0)
	f := newEarlierOutputs(x.prefix)
	caused := func(id string) []broker.Attribute {
		return []broker.Attribute{{Name: "causationid", Value: id}, {Name: "causationsource", Value: "/p"}}
	}
	for _, v := range []broker.View{
		{ID: "in/3/7", Source: me, Extensions: caused("a")},
		{ID: "in/3/9", Source: me, Extensions: caused("b")},
		{ID: "in/31/9", Source: me, Extensions: caused("c")},
		{ID: "in/3/x", Source: me},
		{ID: "in/3/11", Source: "/another"},
		{ID: "d", Source: "/p", Foreign: []broker.Header{{Key: passedHeader, Value: []byte(me + "#in/3/10")}}},
		{ID: "e", Source: "/p", Foreign: []broker.Header{{Key: passedHeader, Value: []byte("/else#in/3/12")}}},
	} {
		f.add(me, &v)
	}
	for _, c := range []struct {
		offset int64
		id     string
		has    bool
	}{{7, "a", true}, {9, "b", true}, {9, "x", false}, {10, "d", true}, {11, "c", false}, {12, "e", false}, {8, "a", false}} {
		if got := f.hasOutput(&broker.View{ID: c.id, Source: "/p"}, c.offset); got != c.has {
			t.Errorf("%s at %d: %v", c.id, c.offset, got)
		}
	}
	if f.last != 10 {
		t.Errorf("the last is %d", f.last)
	}
	f.trim(9)
	if f.hasOutput(&broker.View{ID: "a", Source: "/p"}, 7) || len(f.causes) != 2 {
		t.Errorf("%d are left", len(f.causes))
	}
}

func TestASuccessorReadsBackFromWhereItsFormerOwnerSaid(t *testing.T) {
	f := newEarlierOutputs("in/0/")
	f.causes[50] = 1
	x := assignmentOf(0, 0)
	x.found = f
	x.resume(40, offsetNote{from: 10}, []broker.Position{{Partition: 0, Offset: 80}})
	if n := x.offsetNote(); n.from != 10 || x.end != 80 {
		t.Errorf("with something found, the note says %d and outputs go on at %d", n.from, x.end)
	}
	y := assignmentOf(0, 0)
	y.found = newEarlierOutputs("in/0/")
	y.resume(40, offsetNote{from: 10}, []broker.Position{{Partition: 0, Offset: 80}})
	if n := y.offsetNote(); n.from != 80 || y.found != nil {
		t.Errorf("with nothing found, the note says %d", n.from)
	}
}
