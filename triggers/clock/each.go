package clock

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// part is how many ticks of a schedule whose keys others know are a
	// transaction.
	part = 2000
	// maxRoll bounds what a slip with recipes can make the keeper hold.
	maxRoll = 1_000_000
)

// pass is a walk over the seats of a schedule whose ticks are too many for one
// transaction. What is sent follows from when the pass began and not from when
// a transaction of it is made, so that nothing becomes too late in between, and
// whoever takes over goes on where it stands, even with other keys.
type pass struct {
	Until  time.Time     `json:"until"`           // what was due up to it is sent
	Early  bool          `json:"early,omitempty"` // and what waits for its place in the spread
	Offset time.Duration `json:"offset"`          // the seat that was dealt with last
	Key    string        `json:"key"`             // and its key
}

// after are the keys of a seat that a pass has still to come to.
func (s *seat) after(p *pass) []string {
	switch {
	case p == nil || s.offset < p.Offset: // the last places come first
		return s.keys
	case s.offset > p.Offset:
		return nil
	}
	i, found := slices.BinarySearch(s.keys, p.Key)
	if found {
		i++
	}
	return s.keys[i:]
}

// cut ends the plan's part of a pass.
func (p *plan) cut(e *entry, st state, at pass, late, before int) {
	p.count(e, &st, late, before)
	st.Pass = &at
	p.states[e.Name] = st
	p.more = true
}

// roll are the keys of a schedule whose keys others know, as they were at a
// moment.
type roll struct {
	asOf   time.Time // no scheduled time behind it has these keys
	keys   []string  // sorted
	spread time.Duration
	seats  []seat
}

func newRoll(schedule string, keys []string, spread time.Duration, asOf time.Time) *roll {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	return &roll{asOf: asOf, keys: keys, spread: spread, seats: seatsOf(schedule, keys, spread)}
}

// of seats the keys as a schedule has them or, while it is being replaced, had.
func (r *roll) of(e *entry) []seat {
	if r.spread != e.Spread {
		return seatsOf(e.Name, r.keys, e.Spread)
	}
	return r.seats
}

// call seats the keys of a schedule whose keys others know, if any ticks may be
// owed, and tells until when those keys are the right ones. It is false as long
// as they are not known; then the plan asks for them.
func (p *plan) call(q *question, e *entry, st state) (until time.Time, ok bool) {
	if !e.Each {
		return q.now, true
	}
	newest, r := e.latest(st, q.now), q.rolls[e.Name]
	e.seats = nil
	switch {
	case newest.IsZero() && st.Pass == nil:
		p.idle = append(p.idle, e.Name)
		return q.now, true
	case r == nil:
		p.asks = append(p.asks, e.Name)
		return q.now, false
	}
	e.seats = r.of(e)
	if newest.After(r.asOf) { // meanwhile what is due of the times before goes on
		p.asks = append(p.asks, e.Name)
		return e.next(r.asOf).Add(-time.Millisecond), true
	}
	return q.now, true
}

// latest is the newest scheduled time of which ticks may be owed; zero if there
// is none.
func (e *entry) latest(st state, now time.Time) time.Time {
	all := e.newest(later(st.From, st.Through.Add(-e.Spread)), now, 1)
	if len(all) == 0 {
		return time.Time{}
	}
	return all[0]
}

// called tells whether keys were asked for that no state tells of yet: a key that
// comes after a time is not owed that time's tick, though there be no other.
func (e *entry) called(st state, until time.Time) bool {
	newest := e.latest(st, until)
	return e.Each && !newest.IsZero() && (st.Through.Before(newest) || !until.Before(newest.Add(e.Spread)))
}

// ask has the keys of a schedule told by who knows them.
func (k *Keeper) ask(ctx context.Context, schedule string, spread time.Duration, asOf time.Time) (*roll, error) {
	if k.opt.Keys == nil {
		return newRoll(schedule, nil, spread, asOf), nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	keys, err := k.opt.Keys(ctx, schedule)
	if err == nil && len(keys) > maxRoll {
		err = fmt.Errorf("there are %d, and a schedule ticks for %d at most; name it in recipes of fewer keys", len(keys), maxRoll)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the keys of schedule %s: %w", schedule, err)
	}
	return newRoll(schedule, keys, spread, asOf), nil
}
