package score

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/triggers/deadletters"
)

// shop is a store that may be away for one model or for all.
type shop struct{ away atomic.Pointer[string] }

var errAway = errors.New("the store is away")

// refuse makes the store refuse all artifacts with a prefix until open is called.
func (s *shop) refuse(artifact string) *shop {
	s.away.Store(&artifact)
	return s
}

func (s *shop) open() { s.away.Store(nil) }

func (s *shop) fetch(artifact string) error {
	if away := s.away.Load(); away != nil && (*away == "" || *away == artifact) {
		return errAway
	}
	return nil
}

// impatient starts a scorer that parks waiting events almost at once.
func (w *world) impatient(s *shop) *process {
	w.Helper()
	conf := scorer()
	conf.Hold = time.Millisecond
	p := &process{w: w, fetch: s.fetch}
	p.start(conf)
	return p
}

// parks waits until a number of events are parked and the offset has passed them.
func (p *process) parks(n int) {
	p.w.Helper()
	p.w.poll(fmt.Sprint(n, " events are parked"), func() bool { return p.s.Standing().Held == int64(n) })
	p.w.poll("the offset has passed them", func() bool { return p.w.lag() == 0 })
}

// lag returns the number of input events that the group has not passed.
func (w *world) lag() (lag int64) {
	w.Helper()
	ends, err := w.b.Ends(w.Context(), streamIn)
	w.must(err)
	at, err := w.b.Committed(w.Context(), Group("s"), ends)
	w.must(err)
	for i := range ends {
		lag += ends[i].Offset - max(at[i].Offset, 0)
	}
	return lag
}

// Events whose model loads slowly are parked. They delay no other key and not the group's
// offset. Once the model is loaded they are scored before later events.
func TestEventsOfASlowModelAreParked(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(3)
	slow := make(chan struct{})
	conf := scorer()
	conf.Hold = time.Millisecond
	p := &process{w: w, fetch: func(artifact string) error {
		if artifact == artifactOf("m/bot-1", 1) {
			<-slow
		}
		return nil
	}}
	p.start(conf)
	w.publish(batchOf(0, 60, 3)...)
	w.waitEvents(streamOut, 40)
	p.parks(20)
	w.publish(batchOf(60, 60, 3)...)
	if got := countByVersion(w.waitEvents(streamOut, 80), "m/bot-1"); len(got) != 0 {
		t.Errorf("before it is there it has scored %v", got)
	}
	p.parks(40)
	close(slow)
	w.judge(120)
	w.publish(batchOf(120, 60, 3)...)
	w.judge(180)
	p.parks(0)
}

// While the store is away, only models in memory can answer. All other events wait, and none is
// lost.
func TestAStoreThatIsAwayLosesNothing(t *testing.T) {
	const events = 12000 // more events of one partition than fit in memory
	w := newWorld(t, 1)
	w.bots(40)
	var store shop
	p := w.impatient(store.refuse(""))
	w.publish(batchOf(0, events, 40)...)
	p.parks(events)
	w.poll("it is told why events are held", func() bool {
		at, c := p.s.Standing(), p.s.Check()
		if strings.Contains(c.Detail, "bot-") {
			t.Errorf("the readiness shows %q", c.Detail)
		}
		return strings.Contains(at.LastError, errAway.Error()) && !at.LastErrorAt.IsZero() && c.Status == api.Degraded && strings.Contains(c.Detail, "12000 events wait")
	})
	store.open()
	w.publish(batchOf(events, 2000, 40)...)
	w.judge(events + 2000)
	p.parks(0)
	if c := p.s.Check(); c.Status != api.OK {
		t.Errorf("nothing is held any more: %+v", c)
	}
}

// A scorer whose batches have one event scores parked events, too.
func TestParkedEventsComeBackInBatchesOfOne(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	var store shop
	conf := scorer()
	conf.Hold, conf.MaxBatch = time.Millisecond, 1
	p := &process{w: w, fetch: store.refuse("").fetch}
	p.start(conf)
	w.publish(batchOf(0, 6, 2)...)
	p.parks(6)
	store.open()
	w.judge(6)
	p.parks(0)
}

// Many models cannot be loaded for long. The events of all others come back.
func TestManyMissingModelsDelayNoOther(t *testing.T) {
	const missing, others = mostAsked + 40, 20
	w := newWorld(t, 1)
	w.bots(missing + others)
	var away, healed atomic.Bool
	away.Store(true)
	conf := scorer()
	conf.Hold = time.Millisecond
	p := &process{w: w, fetch: func(artifact string) error {
		lost := true
		for n := range others {
			lost = lost && artifact != artifactOf(fmt.Sprint("m/bot-", missing+n), 1)
		}
		if away.Load() || lost && !healed.Load() {
			return errAway
		}
		return nil
	}}
	p.start(conf)
	w.publish(batchOf(0, 2*(missing+others), missing+others)...)
	p.parks(2 * (missing + others))
	away.Store(false)
	w.waitEvents(streamOut, 2*others)
	p.parks(2 * missing)
	healed.Store(true)
	w.judge(2 * (missing + others))
	p.parks(0)
}

// However many models cannot be loaded, the parked event of another key is handled.
func TestThousandsOfMissingModelsDelayNoOther(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(1)
	p := &process{w: w, fetch: func(string) error { return errAway }}
	p.start(scorer())
	w.poll("the model is known", func() bool { return p.m.Known("m/bot-0") })
	slot := p.m.Slot("m/bot-0")
	slot.Use()
	w.poll("its load has failed", func() bool { return slot.Err() != nil })
	one, of := p.s.newSession(), newAssignment(streamIn, 0, 0)
	one.asking = slices.Repeat([]*target{{name: "m/bot-0", slot: slot}}, 20_000)
	of.held = openHeld(w.b, tidemill.ScorerParked("s"), 0, heldOptions{})
	v := message("other", 1)
	w.must(of.held.parkEvent(t.Context(), &numbered{}, "other", &v, 0))
	one.active = []*assignment{of}
	b := one.newBatch()
	b.reset(1)
	w.must(one.takeParked(t.Context(), b))
	if len(b.items) != 1 || one.crowded {
		t.Errorf("%d events were taken; crowded: %t", len(b.items), one.crowded)
	}
}

// A scorer stops while events wait, and another continues: the events are still there, in
// order, and before those that arrived later.
func TestWhatWaitsOutlivesItsScorer(t *testing.T) {
	w := newWorld(t, 2)
	w.bots(8)
	var store shop
	p := w.impatient(store.refuse(artifactOf("m/bot-1", 1)))
	w.publish(batchOf(0, 400, 8)...)
	w.waitEvents(streamOut, 350)
	p.parks(50)
	p.close()
	w.publish(batchOf(400, 400, 8)...)
	p = w.impatient(&store)
	w.waitEvents(streamOut, 700)
	p.parks(100)
	p.close()
	store.open()
	p = w.impatient(&store)
	w.judge(800)
	p.parks(0)
	p.close()
	w.impatient(&store) // the place in the note is after them now
	w.publish(batchOf(800, 80, 8)...)
	w.judge(880)
}

// The count of parked events follows the partitions, even while nothing is scored. A new owner
// reports the events of its partitions, and the former owner no longer does.
func TestWhatIsHeldIsToldByWhoHoldsIt(t *testing.T) {
	w := newWorld(t, 2)
	w.bots(8)
	var store shop
	first := w.impatient(store.refuse(""))
	w.publish(batchOf(0, 400, 8)...)
	first.parks(400)
	second := w.impatient(&store)
	w.poll("each tells of its own", func() bool {
		one, two := first.s.Standing().Held, second.s.Standing().Held
		return one > 0 && two > 0 && one+two == 400
	})
	second.close()
	w.poll("the first tells of all again", func() bool { return first.s.Standing().Held == 400 })
	store.open()
	w.judge(400)
	first.parks(0)
}

// Retention deletes parked events while no scorer runs. The next owner writes one dead letter, but only if events waited.
func TestParkedEventsThatWereDeletedAreNamed(t *testing.T) {
	for _, waits := range []bool{false, true} {
		w := newWorld(t, 1)
		w.bots(2)
		var store shop
		p := w.impatient(store.refuse(""))
		w.publish(batchOf(0, 20, 2)...)
		p.parks(20)
		if !waits {
			store.open()
			w.judge(20)
			p.parks(0)
		}
		p.close()
		stream := tidemill.ScorerParked("s")
		ends, err := w.b.Ends(t.Context(), stream)
		w.must(err)
		w.must(w.b.DeleteBelow(t.Context(), ends))
		store.open()
		before := len(w.outputs(streamOut))
		w.impatient(&store)
		w.publish(batchOf(20, 4, 2)...)
		w.waitEvents(streamOut, before+4)
		dead := w.outputs(tidemill.StreamDeadLetters)
		if !waits {
			if len(dead) != 0 {
				t.Errorf("%d dead letters, and no event waited", len(dead))
			}
			continue
		}
		if len(dead) != 1 {
			t.Fatalf("%d dead letters", len(dead))
		}
		l, err := deadletters.Read(&dead[0].View)
		w.must(err)
		if l.Stream != stream || l.Offset != 0 || l.Last != ends[0].Offset-1 || l.Scorer != "s" || l.Group != Group("s") || l.Reason == "" {
			t.Errorf("the dead letter is %+v", l)
		}
	}
}

// Partitions move between scorers while the store is away and back again.
func TestWhatWaitsMovesWithItsPartition(t *testing.T) {
	w := newWorld(t, 4)
	w.bots(12)
	var store shop
	running := []*process{w.impatient(&store)}
	const rounds, each = 8, 300
	for round := range rounds {
		if round%2 == 0 {
			store.refuse("")
		}
		w.publish(batchOf(round*each, each, 12)...)
		if round%2 == 1 {
			store.open()
		}
		running = append(running, w.impatient(&store))
		if round%3 > 0 {
			running[0].close()
			running = running[1:]
		}
	}
	store.open()
	w.judge(rounds * each)
	w.poll("nobody holds anything", func() bool {
		left := int64(0)
		for _, p := range running {
			left += p.s.Standing().Held
		}
		return left == 0
	})
}

// If a model is retired while events wait for it, they are handled as events without a model.
func TestWhatWaitsForAModelThatIsRetired(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	var store shop
	p := w.impatient(store.refuse(artifactOf("m/bot-1", 1)))
	w.publish(batchOf(0, 20, 2)...)
	w.waitEvents(streamOut, 10)
	p.parks(10)
	w.fact(tidemill.TypeModelRetired, "m/bot-1", "", tidemill.ModelRetired{Asked: time.Now(), Marks: []tidemill.Mark{{Offset: 1 << 40}}})
	dead := w.waitEvents(tidemill.StreamDeadLetters, 10)
	for i, d := range dead {
		l, err := deadletters.Read(&d.View)
		w.must(err)
		if l.Offset != int64(2*i+1) || l.Stream != streamIn || l.Scorer != "s" || l.Reason == "" {
			t.Errorf("letter %d is %+v", i, l)
		}
	}
	p.parks(0)
	w.publish(batchOf(20, 20, 2)...)
	w.waitEvents(streamOut, 20)
	w.waitEvents(tidemill.StreamDeadLetters, 20)
}

// One model stays missing while events of other keys come and go. Its waiting events are parked
// again, so that the mark advances, and are scored in order in the end.
func TestOneMissingModelDoesNotHoldTheMark(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(20)
	var store shop
	conf := scorer()
	conf.Hold = time.Millisecond
	p := &process{w: w, fetch: store.refuse("").fetch, held: heldOptions{Kept: 1, Read: 1 << 16, Renew: parked.Renewal{Least: 100, Share: 4}}}
	p.start(conf)
	w.publish(batchOf(0, 2000, 20)...)
	p.parks(2000)
	before := w.marked().at
	store.refuse(artifactOf("m/bot-1", 1))
	w.waitEvents(streamOut, 1900)
	p.parks(100)
	w.publish(batchOf(2000, 200, 20)...)
	w.waitEvents(streamOut, 2090)
	more := 0 // the mark is written together with new events
	w.poll("the mark moves on", func() bool {
		w.publish(message("bot-0", 10_000+more))
		more++
		return w.marked().at > before+1900
	})
	p.parks(110)
	p.close()
	store.open()
	w.impatient(&store)
	w.judge(2200 + more)
}

// marked returns the mark in the note of the first partition.
func (w *world) marked() heldMark {
	w.Helper()
	at, err := w.b.Committed(w.Context(), Group("s"), []broker.Position{{Stream: streamIn}})
	w.must(err)
	n, err := parseNote(at[0].Note)
	w.must(err)
	return n.mark
}
