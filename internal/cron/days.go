package cron

import "time"

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
