package score

import (
	"testing"
	"time"
)

// A batch of a backlog grows to its full size, for a while. A small batch grows while the committer
// is busy. A single event of an idle stream waits for nothing.
func TestWhenABatchGrows(t *testing.T) {
	began := time.Unix(1, 0)
	for name, c := range map[string]struct {
		events             int
		behind, committing bool
		until              time.Time
		committer, grows   bool
	}{
		"one event of an idle stream":        {events: 1},
		"one event, committer busy":          {events: 1, committing: true, committer: true, grows: true},
		"enough events, committer busy":      {events: overlapSize, committing: true},
		"backlog":                            {events: 1, behind: true, until: began.Add(backlogPatience), grows: true},
		"much of a backlog":                  {events: 4 * overlapSize, behind: true, until: began.Add(backlogPatience), grows: true},
		"backlog, committer busy":            {events: 1, behind: true, committing: true, until: began.Add(backlogPatience), grows: true},
		"only waiting events, and a backlog": {behind: true, committing: true},
	} {
		b := &batch{events: c.events, began: began}
		until, committer, grows := b.growth(func() bool { return c.behind }, func() bool { return c.committing })
		if !until.Equal(c.until) || committer != c.committer || grows != c.grows {
			t.Errorf("%s: until %v, committer %v, grows %v", name, until, committer, grows)
		}
	}
}
