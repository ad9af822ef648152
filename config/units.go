package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

var spanUnits = map[byte]time.Duration{
	's': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour,
}

func startsWithDigit(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// sumSpans adds up whole numbers with units. If the sum exceeds most, its error is tooMuch. The
// text instead is the advice for a number that is too large.
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

// cutSpan splits off the first number and its unit.
func cutSpan(s, instead string) (n int64, unit time.Duration, rest string, err error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	if digits == 0 {
		return 0, 0, "", errors.New("a number is missing; write a time such as 7d or 1d12h")
	}
	if digits == len(s) {
		return 0, 0, "", errors.New("the unit is missing; write s, m, h, d or w after the number")
	}
	unit, letters := spanUnits[s[digits]], 1
	switch {
	case strings.HasPrefix(s[digits:], "ms"):
		unit, letters = time.Millisecond, 2
	case unit == 0:
		return 0, 0, "", errors.New("unknown unit; use s, m, h, d or w after a whole number")
	}
	n, err = strconv.ParseInt(s[:digits], 10, 64)
	if err != nil {
		return 0, 0, "", errors.New("the number is too large; " + instead)
	}
	return n, unit, s[digits+letters:], nil
}

// showSpan returns the shortest text that sumSpans parses to the same duration.
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

// byteUnits are the units of Kubernetes. A B may follow them.
var byteUnits = map[string]int64{
	"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// readBytes reads a size within bounds, such as 2Gi or 500MB.
func readBytes(to *int64, low, high int64) func(value) {
	return func(v value) {
		text, ok := v.scalar()
		if !ok {
			return
		}
		n, err := parseBytes(text)
		switch {
		case err != nil:
			v.problem("%s", err)
		case n < low || n > high:
			v.problem("must be from %s to %s, not %s", showBytes(low), showBytes(high), show(text))
		default:
			*to = n
		}
	}
}

func parseBytes(s string) (int64, error) {
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	number, unit := s[:digits], strings.TrimSuffix(s[digits:], "B")
	factor, known := byteUnits[unit]
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case digits == 0 || strings.HasPrefix(unit, "."):
		return 0, fmt.Errorf("must be a whole number of bytes with a unit, such as 500MB or 2Gi, not %s", show(s))
	case !known:
		return 0, fmt.Errorf("%s has an unknown unit; use k, M, G, T or Ki, Mi, Gi, Ti, as in 2Gi", show(s))
	case s == number:
		return 0, fmt.Errorf("%s has no unit; write one, such as 500MB or 2Gi", show(s))
	case err != nil || n > math.MaxInt64/factor:
		return 0, fmt.Errorf("%s is too much", show(s))
	}
	return n * factor, nil
}

// showBytes returns the shortest text that parseBytes parses to the same size.
func showBytes(n int64) string {
	for _, unit := range []string{"Ti", "T", "Gi", "G", "Mi", "M", "Ki", "k"} {
		if n != 0 && n%byteUnits[unit] == 0 {
			return strconv.FormatInt(n/byteUnits[unit], 10) + unit
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

const (
	minCores = 0.001
	maxCores = 1024
)

// readCores reads a number of processors, such as 0.5 or 500m.
func readCores(to *float64) func(value) {
	return func(v value) {
		text, ok := v.scalar()
		if !ok {
			return
		}
		number, milli := strings.CutSuffix(text, "m")
		n, err := strconv.ParseFloat(number, 64)
		if milli {
			n /= 1000
		}
		switch {
		case err != nil || strings.Trim(number, "0123456789.") != "":
			v.problem("must be a number of processors, such as 2, 0.5 or 500m, not %s", show(text))
		case n < minCores || n > maxCores:
			v.problem("must be from 1m to %d processors, not %s", maxCores, show(text))
		default:
			*to = n
		}
	}
}

// ParseRate parses a rate as in the file: a whole number per second, minute or hour, such as 100/s.
func ParseRate(text string) (float64, error) { return parseRate(text) }

// Forever is the retention of a stream that never expires.
const Forever time.Duration = 0

const (
	forever      = "forever"
	minRetention = time.Minute
	maxRetention = 100 * 365 * 24 * time.Hour // Go's durations end at 292 years
)

// parseRetention parses whole numbers with units, such as 7d or 1d12h, or "forever".
func parseRetention(s string) (time.Duration, error) {
	if s == forever {
		return Forever, nil
	}
	if !startsWithDigit(s) {
		return 0, fmt.Errorf("must be a time such as 7d, or forever, not %s", show(s))
	}
	sum, err := sumSpans(s, maxRetention, "is more than a hundred years; write forever", "write forever")
	if err == nil && sum < minRetention {
		err = fmt.Errorf("%s is too short for anyone to read the events; write 1m or more, or forever", show(s))
	}
	return sum, err
}

// showRetention returns the shortest text that parseRetention parses to the same duration.
func showRetention(d time.Duration) string {
	if d == Forever {
		return forever
	}
	return showSpan(d)
}
