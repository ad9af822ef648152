package fold

import (
	"slices"
	"time"

	"tidemill.dev"
)

// Seen has the causes that asked for a run, so that a repeated cause is recognised.
type Seen struct {
	Run    string `json:"run"`
	At     int64  `json:"at"`     // time of the newest cause, in Unix seconds
	Causes []byte `json:"causes"` // digests of the causes, causeDigest bytes each
}

const (
	causeDigest = 8

	// noRun replaces the run's id for causes that removed the key.
	noRun = "-"

	// A cause is kept for seenFor, and the newest seenLeast of them for ever. At most
	// seenMost are kept, even if they are newer than seenFor.
	seenFor   = 7 * 24 * time.Hour
	seenLeast = 32
	seenMost  = 4096
)

// RunOf returns the id of the run that a cause asked for; empty if it is not known.
func (m *Making) RunOf(c tidemill.Cause) string {
	d := digest(c)
	for _, s := range m.Seen {
		if s.has(d) {
			return s.Run
		}
	}
	return ""
}

func digest(c tidemill.Cause) []byte {
	sum := c.Digest()
	return sum[:causeDigest]
}

func (s Seen) has(d []byte) bool {
	for at := 0; at < len(s.Causes); at += causeDigest {
		if string(s.Causes[at:at+causeDigest]) == string(d) {
			return true
		}
	}
	return false
}

// see adds a cause, and drops causes that are too old.
func (m *Making) see(c tidemill.Cause, run string, at time.Time) {
	n := len(m.Seen)
	if n == 0 || m.Seen[n-1].Run != run {
		m.Seen = append(m.Seen, Seen{Run: run})
		n++
	}
	m.Seen[n-1].At = at.Unix()
	m.Seen[n-1].Causes = append(m.Seen[n-1].Causes, digest(c)...)
	m.forget(at.Add(-seenFor).Unix())
}

// forget drops all causes of the oldest runs. If the newest run alone has more than
// seenMost, it drops the oldest of these too.
func (m *Making) forget(before int64) {
	kept := 0
	for _, s := range m.Seen {
		kept += len(s.Causes) / causeDigest
	}
	for len(m.Seen) > 1 {
		n := len(m.Seen[0].Causes) / causeDigest
		if kept <= seenMost && (m.Seen[0].At >= before || kept-n < seenLeast) {
			return
		}
		kept -= n
		m.Seen = slices.Delete(m.Seen, 0, 1)
	}
	if only := &m.Seen[0]; kept > seenMost {
		only.Causes = slices.Delete(only.Causes, 0, (kept-seenMost)*causeDigest)
	}
}
