package clock

import (
	"slices"
	"time"

	"tidemill.dev/config"
)

// state is how far a schedule has come.
type state struct {
	// What the schedule was. A schedule that is another now begins anew.
	Cron     string        `json:"cron"`
	TimeZone string        `json:"timeZone"`
	Spread   time.Duration `json:"spread,omitempty"`

	From    time.Time `json:"from"`              // scheduled times up to it are not the schedule's
	Through time.Time `json:"through"`           // ticks that were due up to it are dealt with
	Last    time.Time `json:"last,omitzero"`     // scheduled time of the newest tick
	Skipped []span    `json:"skipped,omitempty"` // of what is dealt with, what was not sent
	Pass    *pass     `json:"pass,omitempty"`    // under way
}

// span is a time in which no tick that was due was sent.
type span struct {
	After   time.Time `json:"after"`
	Through time.Time `json:"through"`
}

// mostSpans bounds a mark. Who has slept through more firings in a row is told
// of this many outages.
const mostSpans = 32

// begun is the state of a schedule whose first tick comes after a moment.
func begun(s *config.Schedule, at time.Time) state {
	return state{Cron: s.Cron, TimeZone: s.TimeZone, Spread: s.Spread, From: at, Through: at}
}

// of tells whether the state is of the schedule as it is now.
func (s *state) of(now *config.Schedule) bool {
	return s.Cron == now.Cron && s.TimeZone == now.TimeZone && s.Spread == now.Spread
}

// former is the schedule as it was when the state was written.
func (s *state) former(now config.Schedule) (*entry, error) {
	now.Cron, now.TimeZone, now.Spread = s.Cron, s.TimeZone, s.Spread
	return newEntry(now)
}

// owes is the first scheduled time of a seat that is not dealt with, less a
// moment.
func (s *state) owes(offset time.Duration) time.Time {
	return later(s.From, s.Through.Add(-offset))
}

// skip notes that what was due in a time was not sent.
func (s *state) skip(after, through time.Time) {
	s.Skipped = append(slices.Clone(s.Skipped), span{after, through})
	s.Skipped = s.Skipped[max(0, len(s.Skipped)-mostSpans):]
}

// adjacent tells how many of the newest spans lie right before a scheduled time,
// with no tick sent between.
func (s *state) adjacent(e *entry, offset time.Duration, scheduled time.Time) (n int) {
	for _, gap := range slices.Backward(s.Skipped) {
		if !e.next(later(s.From, gap.Through.Add(-offset))).Equal(scheduled) {
			break
		}
		n++
		scheduled = e.next(later(s.From, gap.After.Add(-offset)))
	}
	return n
}

// before counts what was skipped right before a scheduled time.
func (s *state) before(e *entry, offset time.Duration, scheduled time.Time) (n int) {
	for _, gap := range s.Skipped[len(s.Skipped)-s.adjacent(e, offset, scheduled):] {
		n += e.count(later(s.From, gap.After.Add(-offset)), gap.Through.Add(-offset))
	}
	return min(n, mostCounted)
}

// told drops the spans that no tick to come will tell of.
func (s *state) told(e *entry) {
	keep := 0
	for _, at := range e.seats {
		if keep < len(s.Skipped) {
			keep = max(keep, s.adjacent(e, at.offset, e.next(s.owes(at.offset))))
		}
	}
	s.Skipped = slices.Clone(s.Skipped[len(s.Skipped)-keep:])
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
