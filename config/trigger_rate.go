package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const maxRate = 100_000 // a second

var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

func (y *Delivery) readRate(v value) {
	text, ok := v.scalar()
	if !ok {
		return
	}
	rate, err := parseRate(text)
	if err != nil {
		v.problem("%s", err)
		return
	}
	y.Rate = rate
}

// parseRate reads a whole number a second, minute or hour, such as 100/s.
func parseRate(s string) (float64, error) {
	number, per, _ := strings.Cut(s, "/")
	unit, ok := rateUnits[per]
	n, err := strconv.ParseUint(number, 10, 32)
	switch {
	case !ok && err == nil:
		return 0, fmt.Errorf("must say in which time, such as 100/s, 100/m or 100/h, not %s", show(s))
	case !ok || err != nil || !plainDigits.MatchString(number):
		return 0, fmt.Errorf("must be a whole number and a time, such as 100/s, 100/m or 100/h, not %s", show(s))
	case n == 0:
		return 0, fmt.Errorf("%s would deliver nothing; `tidemill triggers pause` makes events wait, and without the key there is no bound", show(s))
	}
	rate := float64(n) / unit.Seconds()
	if rate > maxRate {
		return 0, fmt.Errorf("%s is more than %d a second; remove the key to set no bound", show(s), maxRate)
	}
	return rate, nil
}
