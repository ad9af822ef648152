package config

import (
	"fmt"
	"time"

	"tidemill.dev"
)

const (
	off           = "off"
	defaultDedupe = 10 * time.Minute
	minDedupe     = time.Second
	maxDedupe     = 24 * time.Hour // what is remembered lies in Redis's memory
)

// takesOutside says whether a stream is home to events from outside. What we
// write ourselves is idempotent by its id, and the door refuses it from others.
func takesOutside(s Stream) bool { return !s.Builtin || s.Name == tidemill.StreamEvents }

// dedupe is what the files say of a stream, or its default. It is asked when
// all files are read, for a default may depend on what another of them says.
func (d *draft) dedupe(s Stream) time.Duration {
	if said, ok := d.dedupes[s.Name]; ok {
		return said
	}
	return dedupeOf(s)
}

// dedupeOf is the default of a stream.
func dedupeOf(s Stream) time.Duration {
	if !takesOutside(s) {
		return 0
	}
	return defaultDedupe
}

func (d *draft) readDedupe(v value, s Stream) {
	if !takesOutside(s) {
		v.problem("the built-in stream %s takes no events from outside, so none of them repeat; remove the key", s.Name)
		return
	}
	text, ok := v.scalar()
	if !ok {
		return
	}
	window, err := parseDedupe(text)
	if err != nil {
		v.problem("%s", err)
		return
	}
	d.dedupes[s.Name] = window
}

// parseDedupe reads whole numbers with units, such as 10m, or "off". Helm makes
// "false" of a plain off, so both mean the same.
func parseDedupe(s string) (time.Duration, error) {
	if s == off || s == "false" {
		return 0, nil
	}
	if !startsWithDigit(s) {
		return 0, fmt.Errorf("must be a time such as 10m, or off, not %s", show(s))
	}
	sum, err := sumSpans(s, maxDedupe, "is more than a day; write 24h or less", "write 24h or less")
	if err == nil && sum < minDedupe {
		err = fmt.Errorf("%s is less than a second; write 1s or more, or off", show(s))
	}
	return sum, err
}

// hashedDedupe is empty where a stream has its default, whether or not a file
// says so: the hash is of the meaning.
func hashedDedupe(s Stream) string {
	switch s.Dedupe {
	case dedupeOf(s):
		return ""
	case 0:
		return off
	}
	return showSpan(s.Dedupe)
}
