package deliver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// assigned returns where to read partitions from: the beginning of the range, or the
// group's offset.
func (r *rangeReplay) assigned(ctx context.Context, at []broker.Position) ([]broker.Position, error) {
	starts := map[string][]broker.Position{}
	for n, p := range at {
		of, wanted := r.of[addressOf(p)]
		if !wanted {
			continue
		}
		if starts[p.Stream] == nil {
			all, err := r.d.o.Broker.Places(ctx, p.Stream, broker.Earliest())
			if err != nil {
				return nil, err
			}
			starts[p.Stream] = all
		}
		at[n].Offset = r.startOf(of, p, endOf(starts[p.Stream], p))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range at {
		r.ours[addressOf(p)] = true
		if of, wanted := r.of[addressOf(p)]; wanted && p.Offset < of.To {
			r.install(p)
		}
	}
	r.computeShare()
	return at, nil
}

// startOf returns where to read a partition from, and counts the offsets that the log has no longer. The group may ask
// again before it has committed that place, so the place is kept: an offset counts once.
func (r *rangeReplay) startOf(of tidemill.Range, p broker.Position, start int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	on := rangeStartOf(of, max(p.Offset, r.skipped[addressOf(p)]), start)
	if p.Offset = on.from; on.lost > 0 {
		r.skipped[addressOf(p)] = on.from
		r.skip(p, on.lost)
	}
	return on.from
}

// skip counts a part of the range that can no longer be read.
func (r *rangeReplay) skip(to broker.Position, lost int64) {
	r.d.counts.skipped(r.act.Trigger, lost)
	r.d.o.Logger.Warn("dispatcher: a replay skips events that retention has deleted", "trigger", r.act.Trigger, "stream", to.Stream, "partition", to.Partition,
		"offset", to.Offset, "events", lost)
}

// rangeStart is the offset from which a range is read.
type rangeStart struct {
	from int64
	lost int64 // number of earlier offsets that have been cut
}

// rangeStartOf returns the start of a range for the group's offset and the beginning of the log.
func rangeStartOf(of tidemill.Range, committed, start int64) rangeStart {
	from := max(committed, of.From)
	if from >= of.To || start <= from {
		return rangeStart{from: from}
	}
	return rangeStart{min(start, of.To), min(start, of.To) - from}
}

// install makes a partition ready. Called with the lock held.
func (r *rangeReplay) install(at broker.Position) {
	l := r.lanes[at.Stream]
	b := bounds{patience: 1 << 62, window: rangeWindow, bytes: rangeBytes} // failed items wait in memory
	p := newPartition(at.Stream, at.Partition, b, at.Offset)
	p.begunAt, p.opened, p.leaving = 0, true, r.closing.Load()
	p.past = p.replays.number(r.act.ID)
	s := newAssignment(l, p)
	s.send = r.enqueue
	if old := r.shards[addressOf(at)]; old != nil {
		old.stopDelivery()
	}
	r.shards[addressOf(at)] = s
	p.applyPast(l.settings, 0)
}

// applyPast is apply for a partition of a replay, where the trigger has always existed.
func (p *partition) applyPast(t *triggerSettings, now millis) {
	p.begun.From = map[string]int64{}
	for _, name := range t.plan.triggers {
		p.begun.From[name] = 0
	}
	p.apply(t, now)
}

// endLost ends partitions that others may own by now.
func (r *rangeReplay) endLost(at []broker.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range at {
		if s := r.shards[addressOf(p)]; s != nil {
			delete(r.shards, addressOf(p))
			release(s.stopDelivery())
		}
		delete(r.ours, addressOf(p))
	}
	r.computeShare()
}

// computeShare computes our part of the rate. Called with the lock held.
func (r *rangeReplay) computeShare() {
	ours := 0
	for at := range r.of {
		if r.ours[at] {
			ours++
		}
	}
	rate := r.act.Rate * float64(ours) / float64(max(len(r.of), 1))
	if rate != r.pace.rate && ours > 0 {
		r.pace = newBucket(rate)
		r.pace.tokens = min(r.pace.tokens, 1)
	}
}

// acceptDelivery accepts the part of a delivery that is in the range, and stops reading after the
// range.
func (r *rangeReplay) acceptDelivery(d *broker.Delivery) {
	at := address{d.Stream, d.Partition}
	r.mu.Lock()
	s := r.shards[at]
	r.mu.Unlock()
	of := r.of[at]
	if s == nil || !d.Current() {
		d.Done() // none of it is in the range, or it is no longer ours
		if s == nil {
			r.c.Pause(at.stream, at.number)
		}
		return
	}
	n, _ := slices.BinarySearchFunc(d.Events, of.To, func(e broker.Incoming, to int64) int { return int(min(max(e.Offset-to, -1), 1)) })
	events := d.Events
	if n > 0 {
		taken := &sourceBatch{events: events[:n], next: min(d.Next(), of.To), end: func(at int) { events[at].Done() }, discard: d.Done}
		s.apply(func(p *partition, now millis) {
			if p.closed {
				d.Done()
				return
			}
			p.acceptBatch(taken, now)
		})
	}
	for at := n; at < len(events); at++ {
		events[at].Done()
	}
	if n < len(events) {
		r.c.Pause(at.stream, at.number)
	}
}

// finish ends the replay when all of it has ended. The owner of the first partition of its first stream does that.
func (r *rangeReplay) finish() {
	r.mu.Lock()
	first := len(r.of) == 0 || r.ours[address{slices.Min(slices.Collect(maps.Keys(r.lanes))), 0}]
	plans := map[string]*plan{}
	for stream, l := range r.lanes {
		plans[stream] = l.settings.plan
	}
	r.mu.Unlock()
	if !first || r.reported || r.closing.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(r.life, time.Minute)
	defer cancel()
	left, gone, err := r.d.leftOf(ctx, r.act)
	if err == nil && (left == 0 || gone != "") {
		err = r.d.endRange(ctx, r.act, plans, left+r.missing, gone)
		r.reported = err == nil
	}
	if err != nil && r.life.Err() == nil {
		r.d.o.Logger.Warn("dispatcher: ending a replay failed; retrying", "trigger", r.act.Trigger, "reason", err)
	}
}

// leftOf returns how much of a replay's range its group has not passed, and a stream that was created again since the
// replay began. All of the range in such a stream counts as left, because its events and their number are gone.
func (d *Dispatcher) leftOf(ctx context.Context, act tidemill.Replay) (left int64, gone string, err error) {
	for _, stream := range slices.Sorted(maps.Keys(act.Streams)) {
		ranges := act.Streams[stream]
		at := make([]broker.Position, len(ranges), len(ranges)+1)
		for n, one := range ranges {
			at[n] = broker.Position{Stream: stream, Partition: one.Partition}
		}
		done, err := d.o.Broker.Committed(ctx, replayGroup(act.ID), at)
		if err != nil {
			return 0, "", err
		}
		again, err := d.o.Broker.CreatedAgain(ctx, replayGroup(act.ID), append(at, broker.Position{Stream: stream})) // the others may be gone
		if err != nil {
			return 0, "", err
		}
		if again {
			gone = stream
		}
		for n, one := range ranges {
			if again {
				done[n].Offset = one.From
			}
			left += max(one.To-max(one.From, done[n].Offset), 0)
		}
	}
	return left, gone, nil
}

// endRange reports the end of a replay with its counts. The counts are taken from the
// logs, because no process saw all of the replay, and some that saw a part may be dead.
// So every report is the same, under one id. If a stream is gone, the number of its delivered events is not known.
func (d *Dispatcher) endRange(ctx context.Context, act tidemill.Replay, plans map[string]*plan, left int64, gone string) error {
	end := tidemill.ReplayedData{Left: left}
	if gone != "" {
		delete(plans, gone)
		end.Error = fmt.Sprintf("stream %s was deleted and created again during the replay: its range is gone, and how many of its events were delivered is not known", gone)
	}
	matched, forgotten, err := d.matchedIn(ctx, act, plans)
	if err != nil {
		return err
	}
	failed, err := d.lettersOf(ctx, act)
	if err != nil {
		return err
	}
	end.Delivered, end.Failed, end.Forgotten = max(matched-failed, 0), failed, forgotten
	v, err := commands.Replayed(d.names, act, end, time.Now())
	if err != nil {
		return err
	}
	if _, err = commands.Publish(ctx, d.replies.p, &v); err != nil {
		return err
	}
	if gone != "" {
		d.o.Logger.Error("dispatcher: a replay has ended early; ask for it again", "trigger", act.Trigger, "event", act.ID, "reason", end.Error)
		return nil
	}
	d.o.Logger.Info("dispatcher: a replay has ended", "trigger", act.Trigger, "event", act.ID, "events", end.Delivered, "reason", fmt.Sprintf("%d became dead letters, %d are of forgotten keys, %d records are left", failed, forgotten, left))
	return nil
}

// matchedIn counts the events that the replay had to deliver: those of its range that
// the group has passed and that the trigger wants. Events whose keys are forgotten by now are counted apart.
func (d *Dispatcher) matchedIn(ctx context.Context, act tidemill.Replay, plans map[string]*plan) (n, forgotten int64, err error) {
	var matched []int
	for stream, ranges := range act.Streams {
		p := plans[stream]
		if p == nil {
			continue
		}
		id, err := d.o.Broker.TopicID(ctx, stream)
		if err != nil {
			return 0, 0, err
		}
		for _, one := range ranges {
			var unknown error
			err := d.readRange(ctx, broker.Position{Stream: stream, Partition: one.Partition, Offset: one.From}, one.To, func(in *broker.Incoming) {
				if matched = p.match(&in.View, matched[:0]); len(matched) == 0 {
					return
				}
				at := broker.Position{Stream: stream, Partition: one.Partition, Offset: in.Offset}
				passed, err := d.commands.EventPassed(ctx, &in.View, at, commands.TopicID(id))
				switch {
				case err != nil:
					unknown = err
				case passed:
					forgotten++
				default:
					n++
				}
			})
			if err := cmp.Or(err, unknown); err != nil {
				return 0, 0, err
			}
		}
	}
	return n, forgotten, nil
}

// letterMargin is how much the clocks of a gateway and of Kafka may differ.
const letterMargin = 5 * time.Minute

// lettersOf counts the dead letters of a replay.
func (d *Dispatcher) lettersOf(ctx context.Context, act tidemill.Replay) (int64, error) {
	found := map[string]bool{}
	ends, err := d.o.Broker.Ends(ctx, tidemill.StreamDeadLetters)
	if err != nil {
		return 0, err
	}
	from, err := d.o.Broker.Places(ctx, tidemill.StreamDeadLetters, broker.Since(act.At.Add(-letterMargin)))
	if err != nil {
		return 0, err
	}
	for _, at := range from {
		if err := d.readRange(ctx, at, endOf(ends, at), func(in *broker.Incoming) {
			if in.Type != tidemill.TypeEventDeadLettered {
				return
			}
			if l, err := deadletters.Read(&in.View); err == nil && l.Replay == act.ID {
				found[strings.Clone(in.ID)] = true
			}
		}); err != nil {
			return 0, err
		}
	}
	return int64(len(found)), nil
}

// readRange reads a part of a log, as far as it still exists.
func (d *Dispatcher) readRange(ctx context.Context, from broker.Position, to int64, fn func(*broker.Incoming)) error {
	for from.Offset < to {
		next, err := d.o.Broker.Read(ctx, from, lettersBytes, func(in *broker.Incoming) bool {
			if in.Offset < to && in.Err == nil {
				fn(in)
			}
			return in.Offset < to
		})
		if err != nil || next == from.Offset {
			return err
		}
		from.Offset = next
	}
	return nil
}
