package score

import (
	"context"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// assigned begins tenures. It returns when no version can go back: when the
// table of champions has all that the former owner knew, and what he has sent is
// known.
func (s *session) assigned(ctx context.Context, at []broker.Position) ([]broker.Position, error) {
	s.tenures.close(at)
	notes := make([]note, len(at))
	var facts []int64
	for i, p := range at {
		var err error
		if notes[i], err = parseNote(p.Note); err != nil {
			return nil, fmt.Errorf("stream %s, partition %d: %w", p.Stream, p.Partition, err)
		}
		facts = later(facts, notes[i].facts)
	}
	if err := s.o.Champions.Reached(ctx, facts); err != nil {
		return nil, fmt.Errorf("wait for the champions that its former owner knew: %w", err)
	}
	s.o.Models.Settle()
	all, err := s.beginAt(ctx, at, notes)
	if err != nil {
		return nil, err
	}
	s.tenures.begin(all)
	s.bell.ring(nil)
	return nil, nil
}

// givenUp ends tenures. The pipeline is woken: what is held of them is another's to tell
// of, although no event may come here any more.
func (s *session) givenUp(at []broker.Position) {
	s.tenures.gone(at)
	s.bell.ring(nil)
}

// later is the later of two places of each partition.
func later(a, b []int64) []int64 {
	for i, x := range b {
		if i == len(a) {
			a = append(a, x)
		}
		a[i] = max(a[i], x)
	}
	return a
}

// beginAt makes a tenure for each partition and reads its outputs back. How many
// partitions the output has is asked here and holds for the tenure: a stream that
// grows must not tear a key's order.
func (s *session) beginAt(ctx context.Context, at []broker.Position, notes []note) ([]*tenure, error) {
	ends, err := s.o.Broker.Ends(ctx, s.conf.To)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", s.conf.To, err)
	}
	all := make([]*tenure, len(at))
	for i, p := range at {
		to := p.Partition % int32(len(ends))
		all[i] = newTenure(s.conf.From, p.Partition, to)
		all[i].noted = notes[i].committed && notes[i].to == to
		all[i].end = ends[to].Offset
	}
	if err := s.rebuild(ctx, at, notes, all); err != nil {
		return nil, err
	}
	if !s.conf.AtLeastOnce {
		err = s.readBack(ctx, at, notes, all, int32(len(ends)))
	}
	for _, t := range all {
		t.held.settle()
		t.ahead = t.held.aheadTo()
	}
	return all, err
}

// rebuild finds what is held of each partition.
func (s *session) rebuild(ctx context.Context, at []broker.Position, notes []note, all []*tenure) error {
	for i, t := range all {
		t.offset = at[i].Offset
		t.held = openHeld(s.o.Broker, tidemill.ScorerParked(s.conf.Name), t.partition, s.o.held)
		if err := t.held.rebuild(ctx, notes[i].mark, t.offset); err != nil {
			return err
		}
	}
	return nil
}

// readBack finds what has been sent since the notes were written. Without a note
// nothing has been: it is committed before the first output. Nor is there anything
// to be found on a partition that the output, made anew, does not have.
func (s *session) readBack(ctx context.Context, at []broker.Position, notes []note, all []*tenure, partitions int32) error {
	places := map[int32]int64{} // by partition of the output
	of := map[int32][]*tenure{}
	for i, t := range all {
		n := notes[i]
		if !n.committed || n.to >= partitions {
			continue
		}
		t.found = newFound(t.prefix)
		if from, known := places[n.to]; !known || n.from < from {
			places[n.to] = n.from
		}
		of[n.to] = append(of[n.to], t)
	}
	var from []broker.Position
	for partition, offset := range places {
		from = append(from, broker.Position{Stream: s.conf.To, Partition: partition, Offset: offset})
	}
	stopped, err := s.o.Broker.ReadBack(ctx, from, func(e *broker.Incoming) {
		for _, t := range of[e.Position().Partition] {
			if offset, what, mine := t.found.add(s.source, &e.View); mine {
				t.held.scored(offset, what)
			}
		}
	})
	if err != nil {
		return err
	}
	ends := stopped[:0]
	for i, p := range stopped {
		if p.Offset > from[i].Offset { // or the log may end before the note's place
			ends = append(ends, p)
		}
	}
	for i, t := range all {
		t.resume(at[i].Offset, notes[i], ends)
	}
	return nil
}

// resume sets where outputs go on. While something has been found that the
// offset has not passed, the note stays where it was, and outputs go to the
// partition that it names: it can speak of one only.
func (t *tenure) resume(offset int64, n note, ends []broker.Position) {
	if t.found == nil {
		return
	}
	if t.found.trim(offset); len(t.found.causes) == 0 {
		t.found = nil
	} else {
		t.frozen, t.from, t.to, t.noted = true, n.from, n.to, true
	}
	for _, p := range ends {
		if p.Partition == t.to {
			t.end = p.Offset
		}
	}
}
