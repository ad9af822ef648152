package follow

import (
	"strings"
	"testing"
	"time"

	"tidemill.dev/broker"
)

func TestParseFrom(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]broker.Start{
		"beginning":            broker.Earliest(),
		"end":                  broker.Latest(),
		"17":                   broker.AtOffset(17),
		"-1h":                  broker.Since(now.Add(-time.Hour)),
		"-1h30m":               broker.Since(now.Add(-90 * time.Minute)),
		"-2d":                  broker.Since(now.Add(-48 * time.Hour)),
		"2026-01-30T12:00:00Z": broker.Since(now.Add(-24 * time.Hour)),
		"-65535d":              broker.Earliest(),
		"1969-12-31T23:59:59Z": broker.Earliest(),
		"0001-01-01T00:00:00Z": broker.Earliest(),
	} {
		if got, err := ParseFrom(text, now); err != nil || got != want {
			t.Errorf("ParseFrom(%s) = %v, %v, want %v", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"begining": `"begining" is not a position in a stream: give beginning`, "": "give beginning", "-x": "-x is not a time ago", "--1h": "time ago",
		"-5": "time ago", "-99999999999h": "time ago", "-70000d": "time ago", "2026-13-01T00:00:00Z": "give beginning", "99999999999999999999": "give beginning",
	} {
		if _, err := ParseFrom(text, now); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("ParseFrom(%s) gave %v, want %q", text, err, says)
		}
	}
}
