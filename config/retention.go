package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Forever is the retention of a stream that never expires.
const Forever time.Duration = 0

const (
	forever      = "forever"
	minRetention = time.Minute
	maxRetention = 100 * 365 * 24 * time.Hour // Go's durations end at 292 years
)

var retentionUnits = map[byte]time.Duration{
	's': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour,
}

// parseRetention reads whole numbers with units, such as 7d or 1d12h, or
// "forever".
func parseRetention(s string) (time.Duration, error) {
	if s == forever {
		return Forever, nil
	}
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, fmt.Errorf("must be a time such as 7d, or forever, not %s", show(s))
	}
	var sum time.Duration
	for rest := s; rest != ""; {
		n, unit, after, err := cutSpan(rest)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", show(s), err)
		}
		if n > int64((maxRetention-sum)/unit) {
			return 0, fmt.Errorf("%s is more than a hundred years; write forever", show(s))
		}
		sum, rest = sum+time.Duration(n)*unit, after
	}
	if sum < minRetention {
		return 0, fmt.Errorf("%s is too short for anyone to read the events; write 1m or more, or forever", show(s))
	}
	return sum, nil
}

// cutSpan takes the first number and its unit.
func cutSpan(s string) (n int64, unit time.Duration, rest string, err error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	if digits == 0 {
		return 0, 0, "", errors.New("a number is missing; write a time such as 7d or 1d12h")
	}
	if digits == len(s) {
		return 0, 0, "", errors.New("the unit is missing; write s, m, h, d or w behind the number")
	}
	unit, ok := retentionUnits[s[digits]]
	if !ok {
		return 0, 0, "", errors.New("unknown unit; use s, m, h, d or w behind a whole number")
	}
	n, err = strconv.ParseInt(s[:digits], 10, 64)
	if err != nil {
		return 0, 0, "", errors.New("the number is too large; write forever")
	}
	return n, unit, s[digits+1:], nil
}

// showRetention is the shortest text that parseRetention reads back.
func showRetention(d time.Duration) string {
	if d == Forever {
		return forever
	}
	for _, unit := range []byte("wdhm") {
		if d%retentionUnits[unit] == 0 {
			return strconv.FormatInt(int64(d/retentionUnits[unit]), 10) + string(unit)
		}
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}
