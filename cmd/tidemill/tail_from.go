package main

import (
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/tail"
)

// parseFrom reads where a tail starts.
func parseFrom(text string, now time.Time) (broker.Start, error) {
	start, err := tail.ParseFrom(text, now)
	if err != nil {
		return start, usagef("--from %v%s", err, aside(didYouMean(text, []string{"beginning", "end"})))
	}
	return start, nil
}

// aside puts a question behind a whole sentence.
func aside(question string) string {
	if question == "" {
		return ""
	}
	return ";" + question
}
