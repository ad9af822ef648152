package deliver

import (
	"testing"
	"time"

	"tidemill.dev"
)

// Between the rebuild of a partition and its first read, nothing can be written for it. A
// transaction in that time must not close it.
func TestNothingIsWrittenBeforeAPartitionIsRead(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	l := d.pipelineOf(tidemill.StreamEvents)
	early := newPartition(tidemill.StreamEvents, 7, defaultBounds(), 0)
	newRebuiltState(early, l.now()).finish(0, 0, millisOf(time.Now()))
	s := newAssignment(l, early) // needs to write begun, but the consumer does not own its partition
	l.install([]*assignment{s})
	w.publish(20, 5)
	w.waitFor("the others go on", func() bool { return to.count() == 20 })
	for range 5 {
		notify(l.work)
		w.publish(5, 5)
	}
	w.waitFor("they go on", func() bool { return to.count() == 45 && w.committed() })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.p.closed || s.p.wanted == nil {
		t.Error("a transaction included a partition that is not read yet, and closed it")
	}
}

// now returns the present settings of a pipeline.
func (pl *pipeline) now() *triggerSettings {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.settings
}

func (d *Dispatcher) pipelineOf(stream string) *pipeline {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pipelines[stream]
}

// A closed assignment loses no event, whatever closed it.
func TestAClosedAssignmentLosesNothing(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	for _, s := range d.pipelineOf(tidemill.StreamEvents).assignmentsNow() {
		s.stopDelivery()
	}
	w.publish(20, 5)
	w.waitFor("all have come", func() bool { return to.count() == 20 })
}

// A partition that waits for a newer config and is rebuilt meanwhile is read again once
// the config has arrived.
func TestAPausedPartitionIsReadOnAfterARebuild(t *testing.T) {
	w := newInstall(t, 1)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	d := w.open()
	l := d.pipelineOf(tidemill.StreamEvents)
	old := l.assignment(0)
	old.apply(func(p *partition, _ millis) {
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
	w.waitFor("all have come", func() bool { return to.count() == 20 })
}

// If the stored starts are lost, triggers begin at the group's offset: an event may come
// twice, but none is missed.
func TestTriggersBeginWhereTheGroupStandsIfNothingElseIsKnown(t *testing.T) {
	p := newPartition("s", 0, defaultBounds(), 5)
	newRebuiltState(p, lonePartition(0).settings).finish(5, 100, 0)
	p.open(0)
	w := p.plan(newAllowance(), 0, false)
	if w == nil || w.begun == nil || w.begun.From["t"] != 5 {
		t.Fatalf("it writes %+v", w)
	}
}

// If the config changes during a rebuild, the rebuilt partition gets the new config.
func TestAConfigThatChangesDuringARebuild(t *testing.T) {
	w := newInstall(t, 1)
	w.trigger("a", newSink(t, nil).url, nil)
	d := w.open()
	l := d.pipelineOf(tidemill.StreamEvents)
	p := newPartition(tidemill.StreamEvents, 7, defaultBounds(), 0)
	newRebuiltState(p, lonePartition(0).settings).finish(0, 0, millisOf(time.Now()))
	s := newAssignment(l, p)
	d.mu.Lock() // keeps the config from changing again
	defer d.mu.Unlock()
	l.install([]*assignment{s})
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.settings != l.now() || p.bounds.retention != l.retention {
		t.Error("it uses the old config")
	}
}
