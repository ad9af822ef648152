package cron

import (
	"fmt"
	"time"
)

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
