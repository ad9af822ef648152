package deliver

import (
	"math"
	"time"
)

// moment is a time in milliseconds since 1970. What waits by the million holds
// moments: they are small and compare in one instruction.
type moment int64

const never moment = math.MaxInt64

func momentOf(t time.Time) moment { return moment(t.UnixMilli()) }

// after is rounded up, so that nothing is due too early.
func (m moment) after(d time.Duration) moment {
	ms := moment((d + time.Millisecond - 1) / time.Millisecond)
	if ms > never-m {
		return never
	}
	return m + ms
}

// in is how long it is until the moment, and most if that is more: a machine may
// sleep, and a clock be set, which no timer notices.
func (m moment) in(now moment, most time.Duration) time.Duration {
	if m-now >= moment(most/time.Millisecond) {
		return most
	}
	return max(time.Duration(m-now)*time.Millisecond, 0)
}

func (m moment) time() time.Time { return time.UnixMilli(int64(m)) }
