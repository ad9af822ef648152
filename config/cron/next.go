package cron

import (
	"fmt"
	"math/bits"
	"time"
)

// horizon is how far ahead a firing is looked for. 29 February may be 8 years
// away, and on a given weekday 40.
const horizon = 100

// lastYear is the last whose times all that reads them can read.
const lastYear = 9999

// Next is the first moment after the given one at which the expression fires
// in a time zone; false if there is none, which only the zero value and the end
// of the calendar bring about. It is told in that zone.
//
// A zone's time is a row of stretches in each of which the clock on the wall
// runs evenly. So the days and times of the calendar are gone through stretch by
// stretch, and only where two meet there is something to decide.
func (e Expr) Next(after time.Time, loc *time.Location) (time.Time, bool) {
	if e.every > 0 {
		at := e.nextEvery(after).In(loc)
		return at, at.Year() <= lastYear
	}
	at := time.Unix(after.Unix()+1, 0).In(loc)
	for limit := at.AddDate(horizon, 0, 0); at.Before(limit) && at.Year() <= lastYear; {
		s := stretchAt(at, limit)
		if found, ok := e.within(s, at); ok {
			return found, found.Year() <= lastYear
		}
		at = s.end
	}
	return time.Time{}, false
}

// within is the first firing in a stretch that is not before the given moment.
func (e Expr) within(s stretch, at time.Time) (time.Time, bool) {
	from := s.wall(at)
	if !e.wild {
		// What the clock showed before the stretch is not meant again; what it
		// was about to show and left out is meant as the stretch begins.
		begins := s.wall(s.start)
		if at.Equal(s.start) && s.shown.Before(begins) {
			if _, ok := e.onWall(s.shown, begins); ok {
				return at, true
			}
		}
		if from.Before(s.shown) {
			from = s.shown
		}
	}
	found, ok := e.onWall(from, s.wall(s.end))
	if !ok {
		return time.Time{}, false
	}
	return s.moment(found, at.Location()), true
}

// onWall is the first time in [from, to) that the expression names, all of them
// as a clock on the wall shows them.
func (e Expr) onWall(from, to time.Time) (time.Time, bool) {
	day := from.Truncate(dayEnd)
	for tod := from.Sub(day); ; tod = 0 {
		found, ok := e.days.next(day, to)
		if !ok {
			return time.Time{}, false
		}
		if found.After(day) {
			tod = 0
		}
		if t, ok := e.clock.next(tod); ok {
			at := found.Add(t)
			return at, at.Before(to)
		}
		day = found.Add(dayEnd)
	}
}

const (
	minEvery = time.Second
	maxEvery = 366 * 24 * time.Hour
)

func (e Expr) parseEvery(words []string) (Expr, error) {
	if len(words) != 1 {
		return Expr{}, fmt.Errorf("%q: write one duration behind %s, such as %s 90s or %s 1h30m", e.text, everyName, everyName, everyName)
	}
	d, err := time.ParseDuration(words[0])
	switch {
	case err != nil:
		return Expr{}, fmt.Errorf("%q: %q is no duration; write hours, minutes and seconds, such as 90s or 1h30m", e.text, words[0])
	case d < minEvery || d > maxEvery || d%time.Second != 0:
		return Expr{}, fmt.Errorf("%q: the duration must be whole seconds, from %s to %s", e.text, minEvery, maxEvery)
	}
	e.every = d
	return e, nil
}

// nextEvery is the next place on the grid of whole multiples since 1970.
func (e Expr) nextEvery(after time.Time) time.Time {
	step := int64(e.every / time.Second)
	n := after.Unix() / step
	if after.Unix()%step < 0 { // before 1970 division rounds up
		n--
	}
	return time.Unix((n+1)*step, 0)
}

// days says on which days an expression fires.
type days struct {
	month        uint64
	day, weekday set
}

// has tells whether a day, given as its midnight in UTC, is one of them.
func (d days) has(at time.Time) bool {
	if d.month>>at.Month()&1 == 0 {
		return false
	}
	day := d.day.has(at.Day()) || d.day.last && at.AddDate(0, 0, 1).Day() == 1
	weekday := d.weekday.has(int(at.Weekday()))
	if d.day.star || d.weekday.star {
		return day && weekday
	}
	return day || weekday
}

// longest is how many days a month can have.
var longest = [13]int{0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// possible tells whether there is such a day in any year. Each date falls on
// each weekday some time, so only the date can be impossible.
func (d days) possible() bool {
	if d.day.last || !d.day.star && !d.weekday.star {
		return true
	}
	for month := 1; month <= 12; month++ {
		for day := 1; day <= longest[month]; day++ {
			if d.month>>month&1 == 1 && d.day.has(day) {
				return true
			}
		}
	}
	return false
}

// next is the first such day not before the given one and before the end.
func (d days) next(day, end time.Time) (time.Time, bool) {
	for day.Before(end) {
		if d.month>>day.Month()&1 == 0 {
			day = time.Date(day.Year(), day.Month()+1, 1, 0, 0, 0, 0, time.UTC)
			continue
		}
		if d.has(day) {
			return day, true
		}
		day = day.AddDate(0, 0, 1)
	}
	return time.Time{}, false
}

// clock says at which times of a day an expression fires.
type clock struct{ second, minute, hour uint64 }

const dayEnd = 24 * time.Hour

// next is the first such time of day that is not before the given one.
func (c clock) next(from time.Duration) (time.Duration, bool) {
	h, m, s := int(from/time.Hour), int(from/time.Minute%60), int(from/time.Second%60)
	hour, ok := above(c.hour, h)
	if !ok {
		return 0, false
	}
	if hour == h {
		minute, ok := above(c.minute, m)
		if ok && minute == m {
			if second, ok := above(c.second, s); ok {
				return timeOfDay(hour, minute, second), true
			}
			minute, ok = above(c.minute, m+1)
		}
		if ok {
			return timeOfDay(hour, minute, lowest(c.second)), true
		}
		if hour, ok = above(c.hour, h+1); !ok {
			return 0, false
		}
	}
	return timeOfDay(hour, lowest(c.minute), lowest(c.second)), true
}

func timeOfDay(hour, minute, second int) time.Duration {
	return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second
}

// above is the smallest value of a set that is not less than n.
func above(set uint64, n int) (int, bool) {
	rest := set >> n
	if rest == 0 {
		return 0, false
	}
	return n + bits.TrailingZeros64(rest), true
}

func lowest(set uint64) int { return bits.TrailingZeros64(set) }

// stretch is a time in which a zone's clocks run evenly: [start, end).
type stretch struct {
	start, end time.Time
	offset     int // seconds east of UTC
	// shown is up to where clocks on the wall had shown every time, or had
	// jumped over it, when the stretch began: behind where it begins if they were
	// set back, before it if they were set forward.
	shown time.Time
}

// settled is for how long clocks are looked at that were set several times. No
// zone has ever had a clock that was further back than a day.
const settled = 48 * time.Hour

// stretchAt is the stretch that a moment lies in, cut off at a limit where it
// has no end.
func stretchAt(at, limit time.Time) stretch {
	s := bounds(at)
	if s.end.IsZero() || s.end.After(limit) {
		s.end = limit
	}
	if s.start.IsZero() { // it has always been so
		s.start, s.shown = at.AddDate(0, 0, -1), s.wall(at.AddDate(0, 0, -1))
		return s
	}
	for before := s.start; ; {
		earlier := bounds(before.Add(-1))
		if ended := earlier.wall(before); ended.After(s.shown) {
			s.shown = ended
		}
		if before = earlier.start; before.IsZero() || s.start.Sub(before) > settled {
			return s
		}
	}
}

// bounds is the stretch without what came before it. Behind the changes that a
// zone's data lists, Go ends a stretch with the year in UTC, and takes every
// year to have 365 days: a leap year's last day lies behind its end, and is cut
// off by itself here.
func bounds(at time.Time) stretch {
	start, end := at.ZoneBounds()
	_, offset := at.Zone()
	if !end.IsZero() && !end.After(at) {
		end = at.Truncate(dayEnd).Add(dayEnd)
	}
	return stretch{start: start, end: end, offset: offset}
}

// wall is what a clock on the wall shows at a moment, as if it were in UTC.
func (s stretch) wall(at time.Time) time.Time {
	return time.Unix(at.Unix()+int64(s.offset), 0).UTC()
}

// moment is when a clock on the wall shows a time.
func (s stretch) moment(wall time.Time, loc *time.Location) time.Time {
	return time.Unix(wall.Unix()-int64(s.offset), 0).In(loc)
}
