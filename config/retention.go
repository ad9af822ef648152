package config

import (
	"fmt"
	"time"
)

// Forever is the retention of a stream that never expires.
const Forever time.Duration = 0

const (
	forever      = "forever"
	minRetention = time.Minute
	maxRetention = 100 * 365 * 24 * time.Hour // Go's durations end at 292 years
)

// parseRetention reads whole numbers with units, such as 7d or 1d12h, or
// "forever".
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

// showRetention is the shortest text that parseRetention reads back.
func showRetention(d time.Duration) string {
	if d == Forever {
		return forever
	}
	return showSpan(d)
}
