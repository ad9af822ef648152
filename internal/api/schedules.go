package api

import "time"

// Schedules are the body of GET /api/v1/schedules.
type Schedules struct {
	Schedules []Schedule `json:"schedules"`
}

// Schedule is one schedule of the config, and how it stands.
type Schedule struct {
	Name          string        `json:"name"`
	Cron          string        `json:"cron"`
	TimeZone      string        `json:"timeZone"`
	Missed        string        `json:"missed"`         // skip, last or all
	Keys          int           `json:"keys"`           // that it ticks for; 0 is one tick without a key
	Each          bool          `json:"each,omitempty"` // it ticks for each key that the recipes know which name it
	SpreadSeconds float64       `json:"spreadSeconds"`
	Last          *time.Time    `json:"last"` // scheduled time of the newest tick; null if there was none, or while that is not known
	Next          *time.Time    `json:"next"` // scheduled time of the next; null while it is paused
	State         ScheduleState `json:"state"`
	PausedBy      string        `json:"pausedBy,omitempty"`
	PausedSince   *time.Time    `json:"pausedSince,omitempty"`
}

// ScheduleState is whether a schedule ticks.
type ScheduleState string

// The states.
const (
	ScheduleActive ScheduleState = "active"
	SchedulePaused ScheduleState = "paused"
)

// ScheduleDone is the body of the answer to a pause or a resume.
type ScheduleDone struct {
	Changed  bool      `json:"changed"` // false: it was so before, and nothing was written
	Position *Position `json:"position,omitempty"`
	Schedule Schedule  `json:"schedule"`
}
