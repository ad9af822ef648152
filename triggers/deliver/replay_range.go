package deliver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/commands"
)

// rangeReplay sends a past range of a stream's events to one trigger, together with the
// other dispatchers. The dispatchers share the stream's partitions in a separate consumer group,
// whose offsets are the progress.
//
// It uses the same partitions as a pipeline, but these never park events: failed items
// wait in memory, and reading waits for them. No other events wait for the replay.
type rangeReplay struct {
	d   *Dispatcher
	act tidemill.Replay
	of  map[address]tidemill.Range
	c   *broker.Consumer

	missing  int64 // records of streams that no longer exist
	reported bool  // whether its end has been reported; used by run only

	mu      sync.Mutex
	lanes   map[string]*pipeline // pipelines of each stream; they only hold settings and assignments
	shards  map[address]*assignment
	ours    map[address]bool  // our partitions, also those without assignment
	skipped map[address]int64 // offsets below which all lost offsets are counted
	queue   fifo              // items to be sent when there is room
	pace    *bucket

	wake    chan struct{}
	joined  chan struct{} // closed when c is set
	closing atomic.Bool
	fault   atomic.Bool // whether reading has stopped
	left    chan struct{}
	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

// address is a partition of a stream.
type address struct {
	stream string
	number int32
}

func addressOf(at broker.Position) address { return address{at.Stream, at.Partition} }

// replayGroup is the group of a trigger's replay.
func replayGroup(act string) string { return "replay." + act }

// IsOfEndedReplay reports whether a group is that of a replay that is not under way any more. A dispatcher joins the group
// only between the command and the report of the replay's end.
func IsOfEndedReplay(group string, now *commands.State) bool {
	return strings.HasPrefix(group, replayGroup("")) && !slices.ContainsFunc(now.Replays(), func(r tidemill.Replay) bool { return replayGroup(r.ID) == group })
}

// newRangeReplay returns a replay that has not started.
func newRangeReplay(d *Dispatcher, act tidemill.Replay, terms map[string]*triggerSettings) *rangeReplay {
	r := &rangeReplay{d: d, act: act, of: map[address]tidemill.Range{}, lanes: map[string]*pipeline{}, shards: map[address]*assignment{}, ours: map[address]bool{},
		skipped: map[address]int64{}, pace: newBucket(0), wake: make(chan struct{}, 1), joined: make(chan struct{}), left: make(chan struct{})}
	r.act.Streams = map[string][]tidemill.Range{}
	r.life, r.stop = context.WithCancel(context.Background())
	for stream, all := range act.Streams {
		if t := terms[stream]; t != nil {
			r.act.Streams[stream] = all
			r.lanes[stream] = &pipeline{d: r.d, stream: config.Stream{Name: stream}, group: replayGroup(r.act.ID), settings: t, work: r.wake, due: r.wake, joined: r.joined, life: r.life}
		}
		for _, one := range all {
			switch {
			case terms[stream] == nil:
				r.missing += max(one.To-one.From, 0)
			case one.From < one.To:
				r.of[address{stream, one.Partition}] = one
			}
		}
	}
	return r
}

const (
	rangeWindow = 1024    // events of a partition that are read and have not ended
	rangeBytes  = 8 << 20 // bytes of these events
	rangeAgain  = time.Second
)

// start joins the group and delivers until the replay is closed.
func (r *rangeReplay) start(ctx context.Context) error {
	c, err := r.d.o.Broker.Consumer(ctx, broker.ConsumerOptions{Group: replayGroup(r.act.ID), Streams: slices.Sorted(maps.Keys(r.lanes)), Start: broker.Earliest(),
		SessionTimeout: r.d.o.SessionTimeout, DrainTimeout: leaveGrace, Assigned: r.assigned, Gone: r.endLost})
	if err != nil {
		return err
	}
	r.c = c
	for _, lane := range r.lanes {
		lane.c = c
	}
	close(r.joined)
	r.running.Go(r.read)
	r.running.Go(r.run)
	return nil
}

// apply gives the replay new settings.
func (r *rangeReplay) apply(terms map[string]*triggerSettings) {
	r.mu.Lock()
	for stream, l := range r.lanes {
		if t := terms[stream]; t != nil {
			l.settings = t
		}
	}
	all := maps.Clone(r.shards)
	r.mu.Unlock()
	for at, s := range all {
		if t := terms[at.stream]; t != nil {
			s.apply(func(p *partition, now millis) { p.applyPast(t, now) })
		}
	}
	notify(r.wake)
}

// halt stops new attempts. Items that wait with the sender must not become dead letters
// when the sender ends, because another dispatcher continues with them.
func (r *rangeReplay) halt() {
	r.closing.Store(true)
	r.mu.Lock()
	all := maps.Clone(r.shards)
	r.mu.Unlock()
	for _, s := range all {
		s.apply(func(p *partition, _ millis) { p.leaving = true })
	}
}

// close leaves the group. Attempts under way may end for a moment; the next owner sends the rest.
func (r *rangeReplay) close(ctx context.Context) error {
	var err error
	if r.c != nil {
		ctx, cancel := context.WithTimeout(ctx, leaveGrace)
		defer cancel()
		if err = r.c.Close(ctx); errors.Is(err, context.DeadlineExceeded) {
			err = nil // offsets of ended items are committed nevertheless
		}
	}
	r.stop()
	r.running.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.shards {
		s.stopDelivery()
	}
	return err
}

// run sends items, retries those whose delay is over, and notices the end of the range.
func (r *rangeReplay) run() {
	t := time.NewTimer(0)
	defer t.Stop()
	look := time.Now()
	for r.life.Err() == nil {
		next := min(r.wakeRested(), r.pump())
		if now := time.Now(); !now.Before(look) {
			look = now.Add(rangeAgain)
			r.finish()
		}
		t.Reset(max(min(next, time.Until(look)), time.Millisecond))
		select {
		case <-t.C:
		case <-r.wake:
		case <-r.life.Done():
		}
	}
}

// wakeRested sends items whose retry delay is over and returns the time of the next call.
func (r *rangeReplay) wakeRested() time.Duration {
	r.mu.Lock()
	all := maps.Clone(r.shards)
	r.mu.Unlock()
	wait := rest
	for at, s := range all {
		s.apply(func(p *partition, now millis) {
			p.wake(now)
			if len(p.resting) > 0 {
				wait = p.resting[0].due.untilDue(now, wait)
			}
			if crowded := p.crowded(); crowded != p.paused {
				if p.paused = crowded; crowded {
					r.c.Pause(at.stream, at.number)
				} else {
					r.c.Resume(at.stream, at.number)
				}
			}
		})
	}
	return wait
}

// enqueue accepts an item that a partition wants to send.
func (r *rangeReplay) enqueue(i *item) {
	r.mu.Lock()
	r.queue.push(i)
	r.mu.Unlock()
	notify(r.wake)
}

// pump gives the trigger's sender as many items as it has room for and the replay's rate allows. It
// returns when the rate allows more. A retry does not count for the rate.
func (r *rangeReplay) pump() time.Duration {
	s := (*r.d.senders.Load())[r.act.Trigger]
	if s == nil || r.closing.Load() || r.d.commands.Now().TriggerPaused(r.act.Trigger) || r.d.missing.has(r.act.Trigger) {
		return rest // any change wakes us
	}
	for {
		i, wait := r.pop(s)
		if i == nil {
			return wait
		}
		if !s.offer(i) {
			r.enqueue(i)
			return rangeAgain // the trigger is being removed
		}
	}
}

// pop returns the next item that may be sent now.
func (r *rangeReplay) pop(s *sender) (*item, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue.n == 0 {
		return nil, rest
	}
	if !s.room(r.wake) {
		return nil, rest // the sender wakes us
	}
	if r.queue.ring[r.queue.head].tries == 0 {
		if ok, next := r.pace.takeToken(time.Now()); !ok {
			return nil, time.Until(next)
		}
	}
	return r.queue.pop(), 0
}

// read accepts the events of the range.
func (r *rangeReplay) read() {
	for {
		d, err := r.c.Poll(r.life)
		if err != nil {
			if r.life.Err() == nil && !errors.Is(err, broker.ErrClosed) {
				r.d.o.Logger.Error("dispatcher: reading a replay failed; retrying", "trigger", r.act.Trigger, "event", r.act.ID, "reason", err)
				r.fault.Store(true)
				notify(r.d.repair)
			}
			return
		}
		r.acceptDelivery(d)
	}
}

// ranges are the range replays that a dispatcher takes part in, by their commands. The
// dispatcher's lock guards them.
type ranges struct {
	running map[string]*rangeReplay
	failed  map[string]time.Time // time of the next try
	leaving map[string]*rangeReplay
	ending  map[string]bool // replays whose trigger is gone
	changed time.Time       // time of the last config change
}

func newRanges() ranges {
	return ranges{running: map[string]*rangeReplay{}, failed: map[string]time.Time{}, leaving: map[string]*rangeReplay{}, ending: map[string]bool{}}
}

// replayRanges joins the replays that are asked for and leaves those that have ended or
// whose trigger is gone. Called with the lock held.
func (d *Dispatcher) replayRanges(ctx context.Context) {
	maps.DeleteFunc(d.ranges.leaving, func(_ string, r *rangeReplay) bool { return isClosed(r.left) })
	asked := map[string]bool{}
	for _, act := range d.commands.Now().Replays() {
		asked[act.ID] = true
		r, at := d.ranges.running[act.ID], d.rangeTerms(act)
		switch {
		case at != nil && r != nil && r.fault.Load():
			d.leaveRange(r)
			d.ranges.failed[act.ID] = time.Now().Add(rangeAgain)
		case at != nil && r != nil:
			// it is under way
		case at != nil && d.ranges.leaving[act.ID] == nil && time.Now().After(d.ranges.failed[act.ID]):
			d.startRange(ctx, act, at)
		case at == nil && r != nil:
			d.leaveRange(r)
		case at == nil:
			d.abandonRange(ctx, act)
		}
	}
	for id, r := range d.ranges.running {
		if !asked[id] {
			d.leaveRange(r)
		}
	}
}

// rangeTerms returns a replay's settings for each of its streams that exists; nil if
// there are none or the config does not have its trigger. Called with the lock held.
func (d *Dispatcher) rangeTerms(act tidemill.Replay) map[string]*triggerSettings {
	t, known := d.config.Trigger(act.Trigger)
	if !known {
		return nil
	}
	alone := *d.config
	alone.Triggers = []config.Trigger{t}
	plans, err := compilePlans(&alone)
	if err != nil {
		return nil // cannot happen, because the config was compiled before
	}
	all := map[string]*triggerSettings{}
	for stream := range act.Streams {
		if _, known := d.config.Stream(stream); !known {
			continue
		}
		p := plans[stream]
		if p == nil {
			p = deserted()
		}
		all[stream] = &triggerSettings{plan: p, triggers: byName(&alone), paused: d.commands.Now().TriggerPaused}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

func (d *Dispatcher) startRange(ctx context.Context, act tidemill.Replay, all map[string]*triggerSettings) {
	r := newRangeReplay(d, act, all)
	if err := r.start(ctx); err != nil {
		d.ranges.failed[act.ID] = time.Now().Add(rangeAgain)
		d.o.Logger.Warn("dispatcher: starting a replay failed; retrying", "trigger", act.Trigger, "event", act.ID, "reason", err)
		return
	}
	delete(d.ranges.failed, act.ID)
	d.ranges.running[act.ID] = r
}

// applyRanges gives the replays the present config and pauses. Called with the lock held.
func (d *Dispatcher) applyRanges() {
	for _, r := range d.ranges.running {
		if all := d.rangeTerms(r.act); all != nil {
			r.apply(all)
		} else {
			d.leaveRange(r)
		}
	}
}

// leaveRange ends our part in a replay, in the background. Called with the lock held.
func (d *Dispatcher) leaveRange(r *rangeReplay) {
	delete(d.ranges.running, r.act.ID)
	d.ranges.leaving[r.act.ID] = r
	r.halt()
	d.working.Go(func() {
		defer close(r.left)
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		if err := r.close(ctx); err != nil {
			d.o.Logger.Warn("dispatcher: leaving a replay failed; some of its events may be delivered twice", "trigger", r.act.Trigger, "event", r.act.ID, "reason", err)
		}
	})
}

// abandonRange ends a replay whose trigger is in no config any more. Called with the lock held.
func (d *Dispatcher) abandonRange(ctx context.Context, act tidemill.Replay) {
	since := d.ranges.changed
	if act.At.After(since) {
		since = act.At
	}
	if time.Since(since) < d.o.Skew || d.ranges.ending[act.ID] || d.ranges.leaving[act.ID] != nil {
		return // a newer config may have it, or our own progress is not committed yet
	}
	d.ranges.ending[act.ID] = true
	d.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := d.endAbandoned(ctx, act)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.ranges.ending, act.ID)
		if err != nil && ctx.Err() == nil {
			d.o.Logger.Warn("dispatcher: ending a replay failed; retrying", "trigger", act.Trigger, "event", act.ID, "reason", err)
		}
	})
}

// endAbandoned reports the end of a replay that no dispatcher continues.
func (d *Dispatcher) endAbandoned(ctx context.Context, act tidemill.Replay) error {
	left, gone, err := d.leftOf(ctx, act)
	if err != nil {
		return err
	}
	if err := d.endRange(ctx, act, nil, left, gone); err != nil {
		return fmt.Errorf("report the %d records that are left: %w", left, err)
	}
	return nil
}
