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

// finish ends the replay when all of it has ended. The dispatcher with its first
// partition does that.
func (r *rangeReplay) finish() {
	r.mu.Lock()
	first := len(r.of) == 0 || r.ours[r.firstPlace()]
	plans := map[string]*plan{}
	for stream, l := range r.lanes {
		plans[stream] = l.settings.plan
	}
	r.mu.Unlock()
	if !first || r.told || r.closing.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(r.life, time.Minute)
	defer cancel()
	left, err := r.d.leftOf(ctx, r.act)
	if err == nil && left == 0 {
		err = r.d.endRange(ctx, r.act, plans, r.missing)
		r.told = err == nil
	}
	if err != nil && r.life.Err() == nil {
		r.d.o.Logger.Warn("a replay cannot be ended yet", "trigger", r.act.Trigger, "reason", err)
	}
}

func (r *rangeReplay) firstPlace() address {
	return slices.SortedFunc(maps.Keys(r.of), func(a, b address) int {
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.number, b.number))
	})[0]
}

// leftOf returns how much of a replay's range its group has not passed.
func (d *Dispatcher) leftOf(ctx context.Context, act tidemill.Replay) (left int64, err error) {
	for stream, ranges := range act.Streams {
		at := make([]broker.Position, len(ranges))
		for n, one := range ranges {
			at[n] = broker.Position{Stream: stream, Partition: one.Partition}
		}
		done, err := d.o.Broker.Committed(ctx, replayGroup(act.ID), at)
		if err != nil {
			return 0, err
		}
		for n, one := range ranges {
			left += max(one.To-max(one.From, done[n].Offset), 0)
		}
	}
	return left, nil
}

// endRange reports the end of a replay with its counts. The counts are taken from the
// logs, because no process saw all of the replay, and some that saw a part may be dead.
// So every report is the same, under one id.
func (d *Dispatcher) endRange(ctx context.Context, act tidemill.Replay, plans map[string]*plan, left int64) error {
	matched, err := d.matchedIn(ctx, act, plans)
	if err != nil {
		return err
	}
	failed, err := d.lettersOf(ctx, act)
	if err != nil {
		return err
	}
	end := tidemill.ReplayedData{Delivered: max(matched-failed, 0), Failed: failed, Left: left}
	v, err := commands.Replayed(d.names, act, end, time.Now())
	if err != nil {
		return err
	}
	if _, err = commands.Publish(ctx, d.replies.p, &v); err != nil {
		return err
	}
	d.o.Logger.Info("a replay has ended", "trigger", act.Trigger, "event", act.ID, "events", end.Delivered, "reason", fmt.Sprintf("%d became dead letters, %d records are left", failed, left))
	return nil
}

// matchedIn counts the events that the replay had to deliver: those of its range that
// the group has passed and that the trigger wants.
func (d *Dispatcher) matchedIn(ctx context.Context, act tidemill.Replay, plans map[string]*plan) (n int64, err error) {
	var matched []int
	for stream, ranges := range act.Streams {
		p := plans[stream]
		if p == nil {
			continue
		}
		for _, one := range ranges {
			err := d.each(ctx, broker.Position{Stream: stream, Partition: one.Partition, Offset: one.From}, one.To, func(in *broker.Incoming) {
				if matched = p.match(&in.View, matched[:0]); len(matched) > 0 {
					n++
				}
			})
			if err != nil {
				return 0, err
			}
		}
	}
	return n, nil
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
		if err := d.each(ctx, at, endOf(ends, at), func(in *broker.Incoming) {
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

// each reads a part of a log, as far as it still exists.
func (d *Dispatcher) each(ctx context.Context, from broker.Position, to int64, fn func(*broker.Incoming)) error {
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
