package deliver

import (
	"testing"
	"time"

	"tidemill.dev"
)

// Between the moment when a partition is rebuilt and the one when it is read,
// nothing can be written for it. What is tried then must not close it.
func TestNothingIsWrittenBeforeAPartitionIsRead(t *testing.T) {
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	l := d.lane(tidemill.StreamEvents)
	early := newPartition(tidemill.StreamEvents, 7, defaultBounds(), 0)
	newRebuiltState(early, l.now()).finish(0, 0, millisOf(time.Now()))
	s := newAssignment(l, early) // it wants to write down what has begun, and is nobody's yet
	l.install([]*assignment{s})
	w.publish(20, 5)
	w.until("the others go on", func() bool { return to.count() == 20 })
	for range 5 {
		notify(l.work)
		w.publish(5, 5)
	}
	w.until("they go on", func() bool { return to.count() == 45 && w.committed() })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p.closed || s.p.wanted == nil {
		t.Error("it was written for a partition that is not read yet, and is dead now")
	}
}

// now are the lane's terms, which the dispatcher gives it anew as it begins.
func (pl *pipeline) now() *triggerSettings {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.settings
}

func (d *Dispatcher) lane(stream string) *pipeline {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pipelines[stream]
}

// A shard that is closed, for whatever reason, swallows nothing.
func TestAClosedShardSwallowsNothing(t *testing.T) {
	w := newInstall(t, 1)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	for _, s := range d.lane(tidemill.StreamEvents).all() {
		s.end()
	}
	w.publish(20, 5)
	w.until("all have come", func() bool { return to.count() == 20 })
}

// A partition that waits for a newer config, and is rebuilt meanwhile, is read on
// once the config is there.
func TestAPausedPartitionIsReadOnAfterARebuild(t *testing.T) {
	w := newInstall(t, 1)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	l := d.lane(tidemill.StreamEvents)
	old := l.assignment(0)
	old.do(func(p *partition, _ millis) {
		p.paused = true
		l.c.Pause(tidemill.StreamEvents, 0)
	})
	fresh := newPartition(tidemill.StreamEvents, 0, defaultBounds(), 0)
	f := newRebuiltState(fresh, l.now())
	fresh.begun, f.begun, f.on = old.p.begun, old.p.begunAt, old.p.begunOn
	f.finish(0, 0, millisOf(time.Now()))
	l.install([]*assignment{newAssignment(l, fresh)})
	l.reopen()
	w.publish(20, 5)
	notify(l.work)
	w.until("all have come", func() bool { return to.count() == 20 })
}

// Where what had begun is lost, triggers begin where the group stands: rather an
// event too many.
func TestTriggersBeginWhereTheGroupStandsIfNothingElseIsKnown(t *testing.T) {
	p := newPartition("s", 0, defaultBounds(), 5)
	newRebuiltState(p, lonePartition(0).settings).finish(5, 100, 0)
	p.open(0)
	w := p.plan(newAllowance(), 0, false)
	if w == nil || w.begun == nil || w.begun.From["t"] != 5 {
		t.Fatalf("it writes %+v", w)
	}
}

// A config that changes while a partition is rebuilt holds for it as well.
func TestAConfigThatChangesDuringARebuild(t *testing.T) {
	w := newInstall(t, 1)
	w.trigger("a", newSink(t, nil).url, nil)
	d := w.open()
	l := d.lane(tidemill.StreamEvents)
	p := newPartition(tidemill.StreamEvents, 7, defaultBounds(), 0)
	newRebuiltState(p, lonePartition(0).settings).finish(0, 0, millisOf(time.Now()))
	s := newAssignment(l, p)
	d.mu.Lock() // else the config may change once more
	defer d.mu.Unlock()
	l.install([]*assignment{s})
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.settings != l.now() || p.bounds.retention != l.retention {
		t.Error("it goes by the config of before")
	}
}
