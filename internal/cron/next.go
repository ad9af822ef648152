package cron

import "time"

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
