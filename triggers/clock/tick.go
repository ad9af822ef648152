package clock

import (
	"encoding/json"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// tick is one firing of a schedule for one key.
type tick struct {
	Schedule  string
	Key       string // empty is none
	Scheduled time.Time
	Missed    int       // how many were skipped before it
	due       time.Time // when it was to be sent
}

// id is the same whoever sends the tick, and however often.
func (t *tick) id() string {
	return tidemill.ID(tidemill.TypeScheduleTick, t.Schedule, stamp(t.Scheduled), t.Key)
}

// view is the tick's event.
func (t *tick) view(names tidemill.Names) broker.View {
	data, _ := json.Marshal(tickData{t.Scheduled.Format(time.RFC3339), t.Missed}) // a text and a number cannot fail
	return broker.View{
		ID: t.id(), Source: source(names), Type: tidemill.TypeScheduleTick, Subject: t.Key,
		Time: stamp(t.Scheduled), DataSchema: tidemill.Schema(tidemill.TypeScheduleTick), DataContentType: "application/json",
		Extensions: []broker.Attribute{{Name: tidemill.AttrSchedule, Value: t.Schedule}},
		Data:       data,
	}
}

// tickData is what a tick says beside its attributes. The time is that of the
// schedule's zone.
type tickData struct {
	Scheduled string `json:"scheduled"`
	Missed    int    `json:"missed"`
}

// source is who sends ticks and marks.
func source(names tidemill.Names) string { return names.Source(reader) }

// reader names the keeper: in the source of its events, its transactional id, its
// group and its lease.
const reader = "keeper"

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }
