package clock

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/cron"
)

// entry is a schedule that is ready to be asked.
type entry struct {
	config.Schedule
	expr  cron.Expr
	zone  *time.Location
	seats []seat // of one whose keys others know, only while they are needed

	// The last answer of next. It is asked for one seat after the other, and most
	// have the same.
	asked, answer time.Time
}

// seat is a place in the spread, and whose ticks of each scheduled time have it.
type seat struct {
	offset time.Duration // behind the scheduled time
	keys   []string      // sorted; an empty one is none
}

func newEntry(s config.Schedule) (*entry, error) {
	e := &entry{Schedule: s}
	var err error
	if e.expr, err = cron.Parse(s.Cron); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	if e.zone, err = time.LoadLocation(s.TimeZone); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	switch {
	case s.Each:
	case len(s.Keys) == 0:
		e.seats = []seat{{keys: []string{""}}}
	default:
		e.seats = seatsOf(s.Name, s.Keys, s.Spread)
	}
	return e, nil
}

// seatsOf gives sorted keys their places, the last place first.
func seatsOf(schedule string, keys []string, spread time.Duration) (all []seat) {
	places := map[time.Duration]int{}
	for _, key := range keys {
		at := offset(schedule, key, spread)
		i, known := places[at]
		if !known {
			i = len(all)
			places[at] = i
			all = append(all, seat{offset: at})
		}
		all[i].keys = append(all[i].keys, key)
	}
	slices.SortFunc(all, func(a, b seat) int { return cmp.Compare(b.offset, a.offset) })
	return all
}

// size is how many ticks a scheduled time has.
func (e *entry) size() (n int) {
	for _, s := range e.seats {
		n += len(s.keys)
	}
	return n
}

// offset is a whole number of seconds in [0, spread) that depends on schedule
// and key alone, so that it stays where it is whatever other keys there are.
func offset(schedule, key string, spread time.Duration) time.Duration {
	sum := sha256.Sum256([]byte(schedule + "\x00" + key))
	seconds, _ := bits.Mul64(binary.BigEndian.Uint64(sum[:]), uint64(spread/time.Second))
	return time.Duration(seconds) * time.Second
}

// next is the first scheduled time after a moment; the zero time if there is
// none.
func (e *entry) next(after time.Time) time.Time {
	if after.Before(e.asked) || !after.Before(e.answer) {
		e.asked = after
		e.answer, _ = e.expr.Next(after, e.zone)
	}
	return e.answer
}

// between lists the scheduled times in (after, until], the oldest first and no
// more than most.
func (e *entry) between(after, until time.Time, most int) (all []time.Time) {
	for len(all) < most {
		at := e.next(after)
		if at.IsZero() || at.After(until) {
			break
		}
		all, after = append(all, at), at
	}
	return all
}

// newest lists the last so many scheduled times in (after, until]. It looks back
// further and further, so that it need not go through all that an outage of
// months has missed.
func (e *entry) newest(after, until time.Time, most int) []time.Time {
	if most == 0 {
		return nil
	}
	for back := time.Minute; ; back *= 2 {
		from, whole := until.Add(-back), false
		if back >= until.Sub(after) {
			from, whole = after, true
		}
		all := e.between(from, until, int(back/time.Second)+1)
		if len(all) >= most || whole {
			return all[max(0, len(all)-most):]
		}
	}
}

// mostCounted is where counting ends: nobody needs to know more exactly how much
// was missed.
const mostCounted = 10_000

// count counts the scheduled times in (after, until].
func (e *entry) count(after, until time.Time) (n int) {
	for ; n < mostCounted; n++ {
		if after = e.next(after); after.IsZero() || after.After(until) {
			break
		}
	}
	return n
}

// Next is the first scheduled time of a config's schedule after a moment; false
// if there is none.
func Next(s *config.Schedule, after time.Time) (time.Time, bool) {
	alone := *s
	alone.Keys, alone.Each = nil, false // they have no say in it
	e, err := newEntry(alone)
	if err != nil {
		return time.Time{}, false // the config has checked it
	}
	at := e.next(after)
	return at, !at.IsZero()
}
