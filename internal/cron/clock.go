package cron

import (
	"math/bits"
	"time"
)

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
