package clock

import (
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
)

// timetable is what a config says of schedules.
type timetable struct {
	entries []*entry
	stream  string // where ticks live
}

func newTimetable(c *config.Config) (*timetable, error) {
	t := &timetable{stream: c.StreamFor(tidemill.TypeScheduleTick)}
	for _, s := range c.Schedules {
		e, err := newEntry(s)
		if err != nil {
			return nil, fmt.Errorf("read the schedules: %w", err)
		}
		t.entries = append(t.entries, e)
	}
	// Those with very many ticks come last, so that the others need not wait.
	slices.SortStableFunc(t.entries, func(a, b *entry) int {
		switch {
		case a.Each == b.Each:
			return 0
		case b.Each:
			return -1
		}
		return 1
	})
	return t, nil
}

func (t *timetable) spread(schedule string) time.Duration {
	for _, e := range t.entries {
		if e.Name == schedule {
			return e.Spread
		}
	}
	return 0
}
