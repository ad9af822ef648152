package main

import (
	"strconv"
	"strings"
	"time"

	"tidemill.dev/broker"
)

// parseFrom reads where a tail starts.
func parseFrom(text string, now time.Time) (broker.Start, error) {
	switch text {
	case "beginning":
		return broker.Earliest(), nil
	case "end":
		return broker.Latest(), nil
	}
	if ago, ok := strings.CutPrefix(text, "-"); ok {
		d, err := parseAgo(ago)
		if err != nil || d < 0 {
			return broker.Start{}, usagef("--from %s is no time ago; write it like -90s, -15m, -1h or -2d", text)
		}
		return broker.Since(now.Add(-d)), nil
	}
	if offset, err := strconv.ParseInt(text, 10, 64); err == nil {
		return broker.AtOffset(offset), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return broker.Since(at), nil
		}
	}
	return broker.Start{}, usagef("--from %q is no place in a stream:%s give beginning, end, an offset, a time ago such as -1h, or a time such as 2026-01-31T15:04:05Z",
		text, didYouMean(text, []string{"beginning", "end"}))
}

// parseAgo reads days too, which Go's durations do not have.
func parseAgo(text string) (time.Duration, error) {
	days, ok := strings.CutSuffix(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	return time.Duration(n) * 24 * time.Hour, err
}
