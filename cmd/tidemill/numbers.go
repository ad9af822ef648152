package main

import (
	"fmt"
	"strconv"
	"time"
)

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(int64(n)) + " " + noun + "s"
}

// thousands groups a number's digits.
func thousands(n int64) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	if n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// size is a number of bytes as people say it; unknown if it is negative.
func size(n int64) string {
	const step = 1024
	switch {
	case n < 0:
		return "?"
	case n < step:
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n)/step, "KMGTP"
	for v >= step && len(units) > 1 {
		v, units = v/step, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", v, units[0])
}

// span is a duration in the units of the config.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return "forever"
	case d%day == 0:
		return fmt.Sprintf("%dd", d/day)
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// milliseconds is a short time with one digit that means something.
func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
