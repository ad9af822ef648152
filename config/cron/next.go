package cron

import (
	"fmt"
	"math/bits"
	"time"
)

// horizon is how many years ahead Next searches. 29 February may be 8 years away, and on a
// given weekday 40.
const horizon = 100

// lastYear is the last year that all readers of a time can parse.
const lastYear = 9999

// Next returns the first moment after the given one at which the expression fires in a time
// zone, as a time in that zone. It returns false if there is none: for the zero value, and at
// the end of the calendar.
//
// A zone's time is a sequence of stretches in which the wall clock runs evenly. Next searches
// the stretches one by one, by calendar days and times. Only the boundary of two stretches
// needs special treatment.
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

// within returns the first firing in a stretch that is not before the given moment.
func (e Expr) within(s stretch, at time.Time) (time.Time, bool) {
	from := s.wall(at)
	if !e.wild {
		// Times that the clock showed before the stretch do not fire again. If the clock
		// skipped times, all of them fire at once, when the stretch begins.
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

// onWall returns the first time in [from, to) that the expression names. All three are times of
// a wall clock.
func (e Expr) onWall(from, to time.Time) (time.Time, bool) {
	day := from.Truncate(dayEnd)
	for tod := from.Sub(day); ; tod = 0 {
		found, ok := e.days.nextDay(day, to)
		if !ok {
			return time.Time{}, false
		}
		if found.After(day) {
			tod = 0
		}
		if t, ok := e.clock.nextTime(tod); ok {
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
		return Expr{}, fmt.Errorf("%q: write one duration after %s, such as %s 90s or %s 1h30m", e.text, everyName, everyName, everyName)
	}
	d, err := time.ParseDuration(words[0])
	switch {
	case err != nil:
		return Expr{}, fmt.Errorf("%q: %q is not a duration; write hours, minutes and seconds, such as 90s or 1h30m", e.text, words[0])
	case d < minEvery || d > maxEvery || d%time.Second != 0:
		return Expr{}, fmt.Errorf("%q: the duration must be whole seconds, from %s to %s", e.text, minEvery, maxEvery)
	}
	e.every = d
	return e, nil
}

// nextEvery returns the next whole multiple of the duration since 1970.
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
	day, weekday valueSet
}

// firesOn reports whether the expression fires on a day, given as its midnight in UTC.
func (d days) firesOn(at time.Time) bool {
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

// longest is the greatest number of days of each month.
var longest = [13]int{0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// isPossible reports whether any year has a day on which the expression fires. Each date falls on
// each weekday in some year, so only the date can be impossible.
func (d days) isPossible() bool {
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

// nextDay returns the first firing day that is not before day and is before end.
func (d days) nextDay(day, end time.Time) (time.Time, bool) {
	for day.Before(end) {
		if d.month>>day.Month()&1 == 0 {
			day = time.Date(day.Year(), day.Month()+1, 1, 0, 0, 0, 0, time.UTC)
			continue
		}
		if d.firesOn(day) {
			return day, true
		}
		day = day.AddDate(0, 0, 1)
	}
	return time.Time{}, false
}

// clock says at which times of a day an expression fires.
type clock struct{ second, minute, hour uint64 }

const dayEnd = 24 * time.Hour

// nextTime returns the first firing time of a day that is not before from.
func (c clock) nextTime(from time.Duration) (time.Duration, bool) {
	h, m, s := int(from/time.Hour), int(from/time.Minute%60), int(from/time.Second%60)
	hour, ok := smallestFrom(c.hour, h)
	if !ok {
		return 0, false
	}
	if hour == h {
		minute, ok := smallestFrom(c.minute, m)
		if ok && minute == m {
			if second, ok := smallestFrom(c.second, s); ok {
				return timeOfDay(hour, minute, second), true
			}
			minute, ok = smallestFrom(c.minute, m+1)
		}
		if ok {
			return timeOfDay(hour, minute, lowest(c.second)), true
		}
		if hour, ok = smallestFrom(c.hour, h+1); !ok {
			return 0, false
		}
	}
	return timeOfDay(hour, lowest(c.minute), lowest(c.second)), true
}

func timeOfDay(hour, minute, second int) time.Duration {
	return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second
}

// smallestFrom returns the smallest value of a set that is not less than n.
func smallestFrom(set uint64, n int) (int, bool) {
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
	// shown is the latest time that wall clocks had shown when the stretch began. It is after the
	// stretch's own first time if clocks were set back, and before it if they were set forward.
	shown time.Time
}

// maxClockBack is how far back earlier clock changes are examined. No zone ever set its clock back
// by more than a day.
const maxClockBack = 48 * time.Hour

// stretchAt returns the stretch of a moment. If it has no end, it ends at the limit.
func stretchAt(at, limit time.Time) stretch {
	s := bounds(at)
	if s.end.IsZero() || s.end.After(limit) {
		s.end = limit
	}
	if s.start.IsZero() { // the zone's clock never changed before
		s.start, s.shown = at.AddDate(0, 0, -1), s.wall(at.AddDate(0, 0, -1))
		return s
	}
	for before := s.start; ; {
		earlier := bounds(before.Add(-1))
		if ended := earlier.wall(before); ended.After(s.shown) {
			s.shown = ended
		}
		if before = earlier.start; before.IsZero() || s.start.Sub(before) > maxClockBack {
			return s
		}
	}
}

// bounds returns the stretch without shown. After the last change in a zone's data, Go ends a
// stretch with the year in UTC and assumes 365 days for each year. The last day of a leap year
// is then after its own stretch's end, so bounds returns that day as a separate stretch.
func bounds(at time.Time) stretch {
	start, end := at.ZoneBounds()
	_, offset := at.Zone()
	if !end.IsZero() && !end.After(at) {
		end = at.Truncate(dayEnd).Add(dayEnd)
	}
	return stretch{start: start, end: end, offset: offset}
}

// wall returns the time that a wall clock shows at a moment, as a time in UTC.
func (s stretch) wall(at time.Time) time.Time {
	return time.Unix(at.Unix()+int64(s.offset), 0).UTC()
}

// moment returns the moment at which a wall clock shows a time.
func (s stretch) moment(wall time.Time, loc *time.Location) time.Time {
	return time.Unix(wall.Unix()-int64(s.offset), 0).In(loc)
}
