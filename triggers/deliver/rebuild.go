package deliver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// assigned rebuilds partitions from their parked logs before they are read, also before
// they are read again after a failed transaction.
func (pl *pipeline) assigned(ctx context.Context, at []broker.Position) ([]broker.Position, error) {
	companions, err := pl.parkedPartitions(ctx)
	if err != nil {
		return nil, err
	}
	marks, err := pl.marksOf(ctx, at, companions)
	if err != nil {
		return nil, fmt.Errorf("read the parked events of stream %s: %w", pl.stream.Name, err)
	}
	ends, err := pl.d.o.Broker.Ends(ctx, pl.stream.Name)
	if err != nil {
		return nil, err
	}
	pl.mu.Lock()
	pl.partitions = len(ends)
	t, keeps, event := pl.settings, pl.retention, pl.maxEvent
	pl.mu.Unlock()
	r := rebuild{l: pl, folds: map[int32]*rebuiltState{}}
	for _, p := range at {
		b := defaultBounds()
		b.retention, b.skew, b.event = keeps, pl.d.o.Skew, event
		r.folds[p.Partition] = newRebuiltState(newPartition(pl.stream.Name, p.Partition, b, p.Offset), t)
	}
	for _, m := range marks {
		r.folds[m.Partition].p.mark = m.Offset
	}
	there := slices.DeleteFunc(slices.Clone(marks), func(m broker.Position) bool { return m.Partition >= companions })
	if err := r.read(ctx, there); err != nil {
		return nil, fmt.Errorf("read the parked events of stream %s: %w", pl.stream.Name, err)
	}
	for _, f := range r.folds {
		if f.p.number >= companions {
			pl.awaitParkedPartition(f.p)
		}
	}
	starts, err := r.starts(ctx, ends)
	if err != nil {
		return nil, err
	}
	return r.finish(at, starts), nil
}

// knownBefore is how long before this process another one may have known a new trigger, and died before it wrote down where
// the trigger begins.
const knownBefore = time.Minute

// starts returns where the triggers begin that are new to their partition. A partition may have had no owner for a while,
// and a trigger gets the events of that time, as those of other partitions, since a process may have known it.
func (r *rebuild) starts(ctx context.Context, ends []broker.Position) ([]broker.Position, error) {
	starts, asked := slices.Clone(ends), map[time.Time][]broker.Position{}
	for n := range starts {
		f := r.folds[starts[n].Partition]
		if f == nil || f.begun == none {
			continue
		}
		since := f.p.settings.knownSince(f.p.begun.From)
		if since.IsZero() {
			continue
		}
		since = since.Add(-knownBefore)
		if asked[since] == nil {
			var err error
			if asked[since], err = r.l.d.o.Broker.Places(ctx, r.l.stream.Name, broker.Since(since)); err != nil {
				return nil, err
			}
		}
		for _, p := range asked[since] {
			if p.Partition == starts[n].Partition {
				starts[n].Offset = min(starts[n].Offset, p.Offset)
			}
		}
	}
	return starts, nil
}

// endOf returns the end of a partition, in the life of the stream that the position belongs to.
func endOf(ends []broker.Position, p broker.Position) int64 {
	for _, e := range ends {
		if e.Partition == p.Partition {
			return broker.LifeOf(p.Offset) + e.Offset
		}
	}
	return p.Offset
}

// rebuild makes partitions from their parked logs.
type rebuild struct {
	l     *pipeline
	folds map[int32]*rebuiltState
}

// read reads the logs from their marks. It waits for records that a predecessor's
// transaction may still be about to make visible: see [broker.Broker.ReadBack].
func (r *rebuild) read(ctx context.Context, marks []broker.Position) error {
	if len(marks) == 0 {
		return nil
	}
	from, err := r.checkStarts(ctx, marks)
	if err != nil {
		return err
	}
	_, err = parked.Rebuild(ctx, r.l.d.o.Broker, from, func(in *broker.Incoming) error {
		return r.folds[in.Position().Partition].add(in)
	})
	return err
}

const gone = "the parked events are gone: they have expired, because no dispatcher served the triggers for longer than the retention; or they were delivered and Kafka forgot that, and then another dead letter of the group says so"

// checkStarts returns where to read the logs, and writes a dead letter if a parked log has
// expired while some of it was still needed. That happens if no dispatcher runs for longer
// than the retention.
func (r *rebuild) checkStarts(ctx context.Context, marks []broker.Position) ([]broker.Position, error) {
	starts, err := r.l.d.o.Broker.Places(ctx, r.l.parked(), broker.Earliest())
	if err != nil {
		return nil, err
	}
	from, lost := readFrom(marks, starts)
	for _, f := range lost {
		_, err := r.l.d.deadLetters.gap(ctx, f, endOf(starts, f)-1, r.l.group, gone)
		if err != nil {
			return nil, err
		}
	}
	return from, nil
}

// othersDone reports whether all triggers have ended in the partitions that this dispatcher does not have, and nothing is
// parked there. Until then the pipeline stays, because it gets these partitions if the dispatcher that has them leaves.
func (pl *pipeline) othersDone(ctx context.Context, own map[int32]bool) bool {
	if time.Since(pl.searched) < searchEvery {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, searchWithin)
	defer cancel()
	left, err := pl.searchOthers(ctx, own)
	if err != nil {
		pl.d.o.Logger.Warn("dispatcher: reading the parked events of other partitions failed; retrying", "stream", pl.stream.Name, "reason", err)
	}
	if left || err != nil {
		pl.searched = time.Now()
	}
	return !left && err == nil
}

// searchEvery is the shortest time between two searches of the other partitions.
const searchEvery = 10 * time.Second

// searchOthers reports whether anything is left in a partition that this dispatcher does not have. It does not read a long
// log, because the log of a partition whose events have ended is short: see longLog.
func (pl *pipeline) searchOthers(ctx context.Context, own map[int32]bool) (left bool, err error) {
	ends, err := pl.d.o.Broker.Ends(ctx, pl.parked())
	if errors.Is(err, broker.ErrNoStream) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	others := slices.DeleteFunc(slices.Clone(ends), func(p broker.Position) bool { return own[p.Partition] })
	marks, err := pl.marksOf(ctx, others, int32(len(ends)))
	if err != nil {
		return false, err
	}
	for _, from := range marks {
		from.Offset = max(from.Offset, 0)
		end := endOf(ends, from)
		if end-from.Offset > 2*longLog {
			return true, nil
		}
		f := newRebuiltState(newPartition(pl.stream.Name, from.Partition, defaultBounds(), 0), &triggerSettings{paused: func(string) bool { return false }})
		var bad error
		err := pl.d.readRange(ctx, from, end, func(in *broker.Incoming) { bad = cmp.Or(bad, f.add(in)) })
		if err = cmp.Or(err, bad); err != nil {
			return false, err
		}
		if f.merge(); len(f.entries)+len(f.p.begun.From)+len(f.p.begun.Letters) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// readFrom returns where to read the logs, and the marks that are no longer on them. A
// partition without a mark is read from its beginning. A later first
// offset does not show that a needed record has expired, because Kafka may have forgotten the mark.
func readFrom(marks, starts []broker.Position) (from, lost []broker.Position) {
	from = slices.Clone(marks)
	for n, m := range marks {
		start := endOf(starts, broker.Position{Partition: m.Partition, Offset: max(m.Offset, 0)})
		if m.Offset == none {
			from[n].Offset = start
		} else if start > m.Offset {
			lost = append(lost, m)
		}
	}
	return from, lost
}

// finish installs the partitions and returns the offset from which each is read.
func (r *rebuild) finish(at, ends []broker.Position) []broker.Position {
	built := make([]*assignment, len(at))
	places := slices.Clone(at)
	for n, p := range at {
		f := r.folds[p.Partition]
		built[n] = newAssignment(r.l, f.p)
		places[n].Offset = f.finish(p.Offset, max(endOf(ends, p), p.Offset), r.l.d.clock.now())
	}
	r.l.install(built)
	return places
}

// install replaces the assignments that a failed transaction has ended. New ones are
// open at once. The others open when the transaction has returned, because until then
// events that were read for the old assignment may come.
func (pl *pipeline) install(built []*assignment) {
	var fresh []*assignment
	pl.mu.Lock()
	for _, s := range built {
		if old := pl.assignments[s.p.number]; old != nil {
			pl.returned = append(pl.returned, old.stopDelivery()...)
			s.p.paused = old.p.paused // the consumer still has the old partition paused
		} else {
			fresh = append(fresh, s)
		}
		pl.assignments[s.p.number] = s
	}
	t, keeps := pl.settings, pl.retention
	pl.mu.Unlock()
	for _, s := range built { // the config may have changed during a long rebuild
		s.apply(func(p *partition, now millis) {
			p.retain(keeps)
			if p.settings != t {
				p.apply(t, now)
			}
		})
	}
	for _, s := range fresh {
		s.apply(func(p *partition, now millis) { p.open(now) })
	}
	notify(pl.commandsRead)
	pl.d.requestShares()
}

// leaving parks the unfinished items of partitions that are given up, and waits a little
// for attempts under way.
func (pl *pipeline) leaving(ctx context.Context, at []broker.Position) {
	ctx, cancel := context.WithTimeout(ctx, leaveGrace)
	defer cancel()
	var all []*assignment
	for _, p := range at {
		if s := pl.assignment(p.Partition); s != nil {
			s.apply(func(p *partition, _ millis) { p.leaving = true })
			all = append(all, s)
		}
	}
	notify(pl.work)
	for _, s := range all {
		select {
		case <-s.quiet:
		case <-ctx.Done():
			return
		}
	}
}

// endLost ends the assignments of partitions that others may own by now.
func (pl *pipeline) endLost(at []broker.Position) {
	for _, p := range at {
		pl.mu.Lock()
		s := pl.assignments[p.Partition]
		delete(pl.assignments, p.Partition)
		pl.mu.Unlock()
		if s != nil {
			release(s.stopDelivery())
		}
	}
	pl.d.requestShares()
}

// rebuiltState makes a partition's state from its parked log. The newest record of an
// item counts and replaces the earlier ones.
//
// The newest entries are kept whole. If more items wait than the index should hold, only their
// places are kept, and all are spilled: the load loop then reads the oldest.
type rebuiltState struct {
	p        *partition
	triggers []*triggerState
	numbers  map[string]uint32 // numbers of triggers
	entries  []foldEntry
	tidied   int  // number of entries after the last merge
	spills   bool // whether the items before the entries are in the triggers' lists of spilled records
	next     int64
	begun    int64 // offset of the newest state event; none if there is none
	on       millis
}

// foldEntry is the content of one record about an item.
type foldEntry struct {
	ref     recordRef
	due     millis
	key     uint64
	trigger uint32
	keyed   bool
	over    bool
}

// newRebuiltState starts with an empty partition.
func newRebuiltState(p *partition, t *triggerSettings) *rebuiltState {
	p.settings = t
	return &rebuiltState{p: p, numbers: map[string]uint32{}, begun: none}
}

// add reads the next record of the log.
func (f *rebuiltState) add(in *broker.Incoming) error {
	f.p.logEnd = max(f.p.logEnd, in.Offset+1)
	header := recordOf(&in.View)
	switch {
	case header == nil && in.Type == tidemill.TypeParkedSettled:
		return f.settled(in)
	case header == nil && in.Type == tidemill.TypeParkedBegun:
		return f.started(in)
	case header == nil:
		return nil // not a record of ours
	}
	var r record
	if err := r.decode(header); err != nil {
		return err
	}
	n := f.triggerState(r.trigger)
	e := foldEntry{trigger: n, due: r.due, ref: recordRef{source: r.source, at: in.Offset, first: uint32(r.first / 1000), replay: f.p.replays.number(r.replay)}}
	t := f.triggers[n].trigger
	if e.keyed = in.Key != nil && (t == nil || t.Delivery.Ordered); e.keyed {
		e.key = f.p.hash(in.Key)
	}
	f.next = max(f.next, r.next)
	f.append(e)
	return nil
}

func (f *rebuiltState) triggerState(name string) uint32 {
	n, known := f.numbers[name]
	if !known {
		n = uint32(len(f.triggers))
		f.triggers = append(f.triggers, f.p.triggerState(name))
		f.numbers[name] = n
	}
	return n
}

func (f *rebuiltState) started(in *broker.Incoming) error {
	var b triggerStarts
	if err := json.Unmarshal(in.Data, &b); err != nil {
		return fmt.Errorf("decode which triggers have begun: %w", err)
	}
	if b.From == nil {
		b.From = map[string]int64{}
	}
	f.p.begun, f.begun, f.on = b, in.Offset, millisOf(in.Time)
	f.next = max(f.next, b.Next)
	return nil
}

func (f *rebuiltState) settled(in *broker.Incoming) error {
	all, err := decodeSettled(in.Data)
	if err != nil {
		return fmt.Errorf("decode which items have ended: %w", err)
	}
	for _, s := range all {
		n, replay := f.triggerState(s.Trigger), f.p.replays.number(s.Replay)
		for _, source := range s.Offsets {
			f.append(foldEntry{trigger: n, over: true, ref: recordRef{source: source, at: in.Offset, replay: replay}})
		}
	}
	return nil
}

func (f *rebuiltState) append(e foldEntry) {
	f.entries = append(f.entries, e)
	most := 2*f.tidied + 1<<16
	if f.spills {
		most = foldAtOnce + f.tidied/8
	}
	if len(f.entries) > most {
		f.merge()
	}
}

// foldAtOnce is how many entries are merged into the lists of spilled records at once.
const foldAtOnce = 1 << 15

// merge keeps one entry for each item that has not ended. So a long log of ended items
// takes no memory.
func (f *rebuiltState) merge() {
	slices.SortFunc(f.entries, func(a, b foldEntry) int {
		return cmp.Or(cmp.Compare(a.trigger, b.trigger), compareRefs(a.ref, b.ref), cmp.Compare(a.ref.at, b.ref.at))
	})
	kept := f.entries[:0]
	for n, e := range f.entries {
		last := n == len(f.entries)-1 || f.entries[n+1].trigger != e.trigger || !f.entries[n+1].ref.same(e.ref)
		if last && (f.spills || !e.over) {
			kept = append(kept, e)
		}
	}
	f.entries, f.tidied = kept, len(kept)
	if f.spills || len(kept) > f.p.bounds.index {
		f.spill()
	}
}

// spill moves all entries to the triggers' lists of spilled records.
func (f *rebuiltState) spill() {
	if !f.spills {
		f.spills = true
		defer func() { f.entries = nil }() // they may have taken much memory
	}
	f.tidied = 0
	for first := 0; first < len(f.entries); {
		next := first
		for next < len(f.entries) && f.entries[next].trigger == f.entries[first].trigger {
			next++
		}
		of := f.entries[first:next]
		f.triggers[of[0].trigger].spilled.Merge(len(of), func(n int) (parked.Ref, bool) { return of[n].ref.packed(), of[n].over })
		first = next
	}
	for _, ts := range f.triggers {
		f.tidied += ts.spilled.Len()
	}
	f.entries = f.entries[:0]
}

// finish gives the partition its state and returns the source offset from which it is
// read. proposed is the group's offset, end the end of the source. If no state was ever
// written, triggers begin at the returned offset; otherwise new ones begin at the end.
func (f *rebuiltState) finish(proposed, end int64, now millis) int64 {
	p := f.p
	f.merge()
	for _, e := range f.entries {
		l := f.triggers[e.trigger]
		c := l.queueOf(e.key, e.keyed)
		c.add(e.ref)
		p.needed.Add(e.ref.at)
		if c.at == lonely {
			c.waitUntil(e.due, now)
		}
	}
	f.entries = nil
	for _, ts := range f.triggers {
		ts.spilled.Each(func(r parked.Ref) {
			p.needed.Add(r.Other)
			ts.tally(recordRefOf(r), 1)
		})
	}
	p.stirred = p.stirred || f.spills
	if f.begun != none {
		p.begunAt, p.begunOn = f.begun, f.on
		p.progress.next = p.begun.Commands
		maps.Copy(p.progress.open, p.begun.Letters)
		p.needed.Add(f.begun)
	}
	// A server that dies in the middle of a transaction may show the parked records and
	// forget the offset that belongs to them.
	position := max(proposed, f.next)
	p.base, p.next, p.latest = position, position, end
	if f.begun == none { // never written, or lost: an early start repeats events, a late one would lose some
		p.latest = position
	}
	p.skewed = now.add(p.bounds.skew)
	p.apply(p.settings, now)
	return position
}
