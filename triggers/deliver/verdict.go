package deliver

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// verdict is what becomes of an event after an attempt.
type verdict int

const (
	delivered verdict = iota
	again             // it may go better later
	refused           // it would go the same way every time
	notYet            // there was nobody to attempt it with
)

// String is the verdict's name.
func (v verdict) String() string {
	switch v {
	case delivered:
		return "delivered"
	case again:
		return "again"
	case notYet:
		return "not yet"
	}
	return "refused"
}

// judge is Knative's data-plane contract, with 408 added to what is tried
// again. A code that the contract does not know is tried again, as it says.
func judge(status int) verdict {
	switch status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return again // 404 is a function that has yet to start, or a route that has yet to spread
	}
	switch status / 100 {
	case 2:
		return delivered
	case 1, 3, 4:
		return refused
	}
	return again
}

// longestAfter bounds a Retry-After. Who is away for longer than that is asked
// once in so long; a slip in a subscriber's clock or units must not hold its
// events up for days.
const longestAfter = time.Hour

// retryAfter reads a Retry-After: seconds or a date. What cannot be read, or
// has passed, is no wait.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if isDigits(value) {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(longestAfter/time.Second) { // digits alone fail only by being too many
			return longestAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), longestAfter)
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
