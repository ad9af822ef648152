package deliver

import (
	"context"
	"fmt"
	"maps"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
)

// ranges are the replays of past ranges that a dispatcher takes part in, by
// their acts. The dispatcher's lock guards them.
type ranges struct {
	running map[string]*rangeReplay
	failed  map[string]time.Time // when one is tried again
	leaving map[string]*rangeReplay
	ending  map[string]bool // whose trigger is gone
	changed time.Time       // when the config was
}

func newRanges() ranges {
	return ranges{running: map[string]*rangeReplay{}, failed: map[string]time.Time{}, leaving: map[string]*rangeReplay{}, ending: map[string]bool{}}
}

// replayRanges takes part in what is asked for, and leaves what has ended or
// whose trigger is gone. Called with the lock held.
func (d *Dispatcher) replayRanges(ctx context.Context) {
	maps.DeleteFunc(d.ranges.leaving, func(_ string, r *rangeReplay) bool { return isClosed(r.left) })
	asked := map[string]bool{}
	for _, act := range d.acts.Now().Replays() {
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

// rangeTerms are what holds for a replay on each of its streams that there are;
// nil if there are none, or its trigger is not in the config. Called with the
// lock held.
func (d *Dispatcher) rangeTerms(act tidemill.Replay) map[string]*terms {
	t, known := d.config.Trigger(act.Trigger)
	if !known {
		return nil
	}
	alone := *d.config
	alone.Triggers = []config.Trigger{t}
	plans, err := compilePlans(&alone)
	if err != nil {
		return nil // the config was compiled before
	}
	all := map[string]*terms{}
	for stream := range act.Streams {
		if _, known := d.config.Stream(stream); !known {
			continue
		}
		p := plans[stream]
		if p == nil {
			p = deserted()
		}
		all[stream] = &terms{plan: p, triggers: byName(&alone), paused: d.acts.Now().TriggerPaused}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

func (d *Dispatcher) startRange(ctx context.Context, act tidemill.Replay, all map[string]*terms) {
	r := newRangeReplay(d, act, all)
	if err := r.start(ctx); err != nil {
		d.ranges.failed[act.ID] = time.Now().Add(rangeAgain)
		d.o.Logger.Warn("a replay cannot be begun yet", "trigger", act.Trigger, "event", act.ID, "reason", err)
		return
	}
	delete(d.ranges.failed, act.ID)
	d.ranges.running[act.ID] = r
}

// applyRanges gives the replays the config and the pauses that hold now. Called
// with the lock held.
func (d *Dispatcher) applyRanges() {
	for _, r := range d.ranges.running {
		if all := d.rangeTerms(r.act); all != nil {
			r.apply(all)
		} else {
			d.leaveRange(r)
		}
	}
}

// leaveRange ends our part in a replay, beside everything else. Called with the
// lock held.
func (d *Dispatcher) leaveRange(r *rangeReplay) {
	delete(d.ranges.running, r.act.ID)
	d.ranges.leaving[r.act.ID] = r
	r.halt()
	d.working.Go(func() {
		defer close(r.left)
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		if err := r.close(ctx); err != nil {
			d.o.Logger.Warn("a replay was left untidily", "trigger", r.act.Trigger, "event", r.act.ID, "reason", err)
		}
	})
}

// abandonRange ends a replay whose trigger is in nobody's config any more.
// Called with the lock held.
func (d *Dispatcher) abandonRange(ctx context.Context, act tidemill.Replay) {
	since := d.ranges.changed
	if act.At.After(since) {
		since = act.At
	}
	if time.Since(since) < d.o.Skew || d.ranges.ending[act.ID] || d.ranges.leaving[act.ID] != nil {
		return // a newer config than ours may have it, or we are still to say how far it has come
	}
	d.ranges.ending[act.ID] = true
	d.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := d.forsake(ctx, act)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.ranges.ending, act.ID)
		if err != nil && ctx.Err() == nil {
			d.o.Logger.Warn("a replay cannot be ended yet", "trigger", act.Trigger, "event", act.ID, "reason", err)
		}
	})
}

// forsake tells of a replay that nobody goes on with.
func (d *Dispatcher) forsake(ctx context.Context, act tidemill.Replay) error {
	left, err := d.leftOf(ctx, act)
	if err != nil {
		return err
	}
	if err := d.endRange(ctx, act, nil, left); err != nil {
		return fmt.Errorf("tell of the %d records that are left: %w", left, err)
	}
	return nil
}
