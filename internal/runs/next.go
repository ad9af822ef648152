package runs

import (
	"time"

	"tidemill.dev"
)

// move is what a making asks its foreman to do.
type move int

// The moves.
const (
	nothing move = iota
	settles      // put on its dataset what the live run has made
	admits       // have a slot of its pool claimed: its run may be the next
)

// next reads what there is to do from a making alone, so that it does not matter
// who asks, how often, or what came before. Attempts that are under way are no
// part of it: whether they are lost takes a clock, and the patience of [Foreman.Watch].
func next(m *tidemill.Making, now time.Time) move {
	if m.Live != nil && m.Live.State == tidemill.RunSettling {
		return settles
	}
	if run, due := m.DueRun(); run != nil && !due.After(now) {
		return admits
	}
	return nothing
}

// begun is the attempt that a fact at an offset has begun, if it is under way;
// nil if the log has refused it. Two who start the same attempt write two facts:
// only one of them is at the offset.
func begun(m *tidemill.Making, run string, number int, offset int64) *tidemill.Attempt {
	if m.Live == nil || m.Live.ID != run {
		return nil
	}
	if a := m.Live.Attempt(); a != nil && a.Number == number && a.Offset == offset {
		return a
	}
	return nil
}

// due is the run of an id if its next attempt may start now.
func due(m *tidemill.Making, run string, now time.Time) *tidemill.Run {
	if r, at := m.DueRun(); r != nil && r.ID == run && !at.After(now) {
		return r
	}
	return nil
}
