package config

import (
	"slices"
	"time"
)

// Schedule is when the clock ticks.
type Schedule struct {
	Name     string
	Cron     string
	TimeZone string // of the IANA database
	Missed   Missed
	Keys     []string      // sorted; one tick for each; none is one tick without a key
	Each     bool          // Keys are those known to the recipes that name the schedule, and change by themselves
	Spread   time.Duration // over which the ticks of the keys are laid evenly
}

// Missed says which ticks are sent late whose time passed while the schedule
// was paused or nothing ran.
type Missed string

// What happens to missed ticks.
const (
	MissedSkip Missed = "skip"
	MissedLast Missed = "last"
	MissedAll  Missed = "all"
)

// Schedule finds a schedule by its name.
func (c *Config) Schedule(name string) (Schedule, bool) {
	i := slices.IndexFunc(c.Schedules, func(s Schedule) bool { return s.Name == name })
	if i < 0 {
		return Schedule{}, false
	}
	return c.Schedules[i], true
}
