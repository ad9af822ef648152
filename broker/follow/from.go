package follow

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/broker"
)

// ParseFrom parses a start position: beginning, end, an offset of each partition, a time
// ago such as -1h or -2d, or a time in RFC 3339. Its errors begin with the text, so that
// a caller can prepend the name of a flag or parameter.
func ParseFrom(text string, now time.Time) (broker.Start, error) {
	switch text {
	case "beginning":
		return broker.Earliest(), nil
	case "end":
		return broker.Latest(), nil
	}
	if offset, err := strconv.ParseInt(text, 10, 64); err == nil && offset >= 0 {
		return broker.AtOffset(offset), nil
	}
	at, err := ParseTime(text, now)
	if errors.Is(err, errNoTime) {
		return broker.Start{}, fmt.Errorf("%q is not a position in a stream: give beginning, end, an offset, a time ago such as -1h, or a time such as 2026-01-31T15:04:05Z", text)
	}
	if err != nil {
		return broker.Start{}, err
	}
	return fromTime(at), nil
}

var errNoTime = errors.New("give a time ago such as -1h, or a time such as 2026-01-31T15:04:05Z")

// ParseTime parses a time ago such as -1h or -2d, or a time in RFC 3339. Its errors begin
// with the text too.
func ParseTime(text string, now time.Time) (time.Time, error) {
	if ago, ok := strings.CutPrefix(text, "-"); ok {
		d, err := parseAgo(ago)
		if err != nil || d < 0 {
			return time.Time{}, fmt.Errorf("%s is not a time ago; write it like -90s, -15m, -1h or -2d", text)
		}
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time: %w", text, errNoTime)
}

// fromTime maps a time before 1970 to the earliest offset: no record is older, and Kafka
// takes a negative time for a fault or a special value.
func fromTime(at time.Time) broker.Start {
	if at.UnixMilli() < 0 {
		return broker.Earliest()
	}
	return broker.Since(at)
}

// parseAgo accepts days too, which Go's durations do not have.
func parseAgo(text string) (time.Duration, error) {
	days, ok := strings.CutSuffix(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	return time.Duration(n) * 24 * time.Hour, err
}
