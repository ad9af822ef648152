package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

var spanUnits = map[byte]time.Duration{
	's': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour,
}

func startsWithDigit(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// sumSpans adds up whole numbers with units. What is more than most it refuses
// with the words given for that, and what is no number with those of instead.
func sumSpans(s string, most time.Duration, tooMuch, instead string) (time.Duration, error) {
	var sum time.Duration
	for rest := s; rest != ""; {
		n, unit, after, err := cutSpan(rest, instead)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", show(s), err)
		}
		if n > int64((most-sum)/unit) {
			return 0, fmt.Errorf("%s %s", show(s), tooMuch)
		}
		sum, rest = sum+time.Duration(n)*unit, after
	}
	return sum, nil
}

// cutSpan takes the first number and its unit.
func cutSpan(s, instead string) (n int64, unit time.Duration, rest string, err error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	if digits == 0 {
		return 0, 0, "", errors.New("a number is missing; write a time such as 7d or 1d12h")
	}
	if digits == len(s) {
		return 0, 0, "", errors.New("the unit is missing; write s, m, h, d or w behind the number")
	}
	unit, letters := spanUnits[s[digits]], 1
	switch {
	case strings.HasPrefix(s[digits:], "ms"):
		unit, letters = time.Millisecond, 2
	case unit == 0:
		return 0, 0, "", errors.New("unknown unit; use s, m, h, d or w behind a whole number")
	}
	n, err = strconv.ParseInt(s[:digits], 10, 64)
	if err != nil {
		return 0, 0, "", errors.New("the number is too large; " + instead)
	}
	return n, unit, s[digits+letters:], nil
}

// showSpan is the shortest text that sumSpans reads back.
func showSpan(d time.Duration) string {
	for _, unit := range []byte("wdhm") {
		if d%spanUnits[unit] == 0 {
			return strconv.FormatInt(int64(d/spanUnits[unit]), 10) + string(unit)
		}
	}
	if d%time.Second != 0 {
		return strconv.FormatInt(int64(d/time.Millisecond), 10) + "ms"
	}
	return strconv.FormatInt(int64(d/time.Second), 10) + "s"
}
