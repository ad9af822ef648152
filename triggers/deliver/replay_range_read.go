package deliver

import (
	"context"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// assigned returns where partitions are read from: the beginning of the range, or the
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
		on := rangeStartOf(of, p.Offset, endOf(starts[p.Stream], p))
		if at[n].Offset = on.from; on.lost > 0 {
			r.skip(at[n], on.lost)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range at {
		r.ours[addressOf(p)] = true
		if of, wanted := r.of[addressOf(p)]; wanted && p.Offset < of.To {
			r.install(p)
		}
	}
	r.share()
	return at, nil
}

// skip counts a part of the range that can no longer be read.
func (r *rangeReplay) skip(to broker.Position, lost int64) {
	r.d.counts.skipped(r.act.Trigger, lost)
	r.d.o.Logger.Warn("a replay passes over what its stream holds no more", "trigger", r.act.Trigger, "stream", to.Stream, "partition", to.Partition,
		"offset", to.Offset, "events", lost)
}

// rangeStart is where a range goes on.
type rangeStart struct {
	from int64
	lost int64 // number of offsets before that which have been cut
}

// rangeStartOf returns where a range goes on, given the group's offset and the
// beginning of the log.
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
	b := bounds{patience: 1 << 62, window: rangeWindow, bytes: rangeBytes} // failed items rest in memory
	p := newPartition(at.Stream, at.Partition, b, at.Offset)
	p.begunAt, p.opened, p.leaving = 0, true, r.closing.Load()
	p.past = p.replays.number(r.act.ID)
	s := newAssignment(l, p)
	s.send = r.enqueue
	if old := r.shards[addressOf(at)]; old != nil {
		old.end()
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

// gone ends partitions that others may own by now.
func (r *rangeReplay) gone(at []broker.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range at {
		if s := r.shards[addressOf(p)]; s != nil {
			delete(r.shards, addressOf(p))
			release(s.end())
		}
		delete(r.ours, addressOf(p))
	}
	r.share()
}

// share computes our part of the rate. Called with the lock held.
func (r *rangeReplay) share() {
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

// take accepts the part of a delivery that is in the range. After the range nothing
// more is read.
func (r *rangeReplay) take(d *broker.Delivery) {
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
		s.do(func(p *partition, now millis) {
			if p.closed {
				d.Done()
				return
			}
			p.take(taken, now)
		})
	}
	for at := n; at < len(events); at++ {
		events[at].Done()
	}
	if n < len(events) {
		r.c.Pause(at.stream, at.number)
	}
}
