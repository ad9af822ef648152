package clock

import (
	"fmt"

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
	return t, nil
}
