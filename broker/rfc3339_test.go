package broker

import (
	"testing"
	"time"
)

// FuzzPlainTime holds the short cut against package time: it may only say yes
// where that does.
func FuzzPlainTime(f *testing.F) {
	for _, s := range []string{"2026-01-31T15:04:05.123456789Z", "2026-01-28T15:04:05Z", "2026-01-28T23:59:59.1Z", "2026-02-28T00:00:00Z",
		"2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2026-01-00T00:00:00Z", "2026-04-31T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z",
		"2026-01-01T00:00:60Z", "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00,1Z", "2026-01-01t00:00:00Z", "2026-01-01T00:00:00+01:00", "2026-01-01T00:00:00", "20:6-01-01T00:00:00Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var at time.Time
		if (plainTime(s) || anyTime(s)) && at.UnmarshalText([]byte(s)) != nil {
			t.Errorf("%q is no time", s)
		}
		if plainTime(s) && !anyTime(s) {
			t.Errorf("%q is a time for the short cut alone", s)
		}
	})
}

func TestPlainTimeTakesTheUsual(t *testing.T) {
	for s, want := range map[string]bool{
		"2026-01-28T15:04:05.123456789Z": true,
		"2026-01-28T15:04:05Z":           true,
		"2026-01-31T15:04:05Z":           true,
		"2026-04-31T15:04:05Z":           false,
		"2028-02-29T15:04:05Z":           false, // left to package time
		"2026-01-28T15:04:05+00:00":      false,
		"2026-01-28T15:04:05.Z":          false,
		"2026-1-28T15:04:05Z":            false,
		"":                               false,
	} {
		if got := plainTime(s); got != want {
			t.Errorf("plainTime(%q) = %v, want %v", s, got, want)
		}
	}
}

// What package time lets pass and our own reader would not take is no time: an
// event must not be stored that nobody can read.
func TestAnyTime(t *testing.T) {
	for s, want := range map[string]bool{
		"2028-02-29T15:04:05Z":        true,
		"2026-01-28T15:04:05.5+23:59": true,
		"2026-01-28T15:04:05-00:00":   true,
		"2026-01-28T5:04:05.9Z":       false,
		"2026-01-28T15:04:05,5Z":      false,
		"2026-01-28T15:04:05+24:00":   false,
		"2026-01-28T15:04:05+00:60":   false,
		"2026-01-28t15:04:05z":        false,
		"2026-02-29T15:04:05Z":        false,
	} {
		if got := anyTime(s); got != want {
			t.Errorf("anyTime(%q) = %v, want %v", s, got, want)
		}
		if anyTime(s) && !looksLikeTime(s) {
			t.Errorf("%q is written, but not read", s)
		}
	}
}
