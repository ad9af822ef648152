package cron

import "time"

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
