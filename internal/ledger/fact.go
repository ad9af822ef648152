package ledger

import (
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// reading is what became of a record of the stream.
type reading int8

const (
	legible   reading = iota // a fact about a run
	foreign                  // a fact about something else
	illegible                // a torn one, or one that lies where it does not belong
)

// read takes out of a record what the fold needs, into memory of its own but for
// the data.
func read(e *broker.Incoming, partition int32) (tidemill.Fact, reading) {
	if e.Err != nil {
		return tidemill.Fact{}, illegible
	}
	typ := typeOf(e.Type)
	if typ == "" {
		return tidemill.Fact{}, foreign
	}
	recipe, _ := e.Attribute(tidemill.AttrRecipe)
	if recipe == "" || tidemill.CheckLabel(recipe) != nil || string(e.Key) != tidemill.RunKey(recipe, e.Subject) {
		return tidemill.Fact{}, illegible
	}
	run, _ := e.Attribute(tidemill.AttrRun)
	by, _ := e.Attribute(tidemill.AttrAuthID)
	if strings.ContainsAny(run, " \n") {
		return tidemill.Fact{}, illegible
	}
	return tidemill.Fact{Partition: partition, Offset: e.Offset, ID: e.ID, Type: typ, Recipe: strings.Clone(recipe),
		Key: strings.Clone(e.Subject), Run: strings.Clone(run), By: strings.Clone(by), At: timeOf(e), Data: e.Data}, legible
}

// typeOf is the type's constant, empty for what the fold of runs does not read.
func typeOf(typ string) string {
	switch typ {
	case tidemill.TypeRunRequested:
		return tidemill.TypeRunRequested
	case tidemill.TypeRunStarted:
		return tidemill.TypeRunStarted
	case tidemill.TypeRunFinished:
		return tidemill.TypeRunFinished
	case tidemill.TypeRunCancelled:
		return tidemill.TypeRunCancelled
	case tidemill.TypeRunCommitted:
		return tidemill.TypeRunCommitted
	}
	return ""
}

// What a fact says of its time is believed within these bounds: beyond them what
// follows from it, such as when a run is due, could not be written down.
const earliest, latest = 1970, 9000

// timeOf is the fact's own time, else when it reached the log.
func timeOf(e *broker.Incoming) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, e.View.Time); err == nil && believable(at) {
		return at.UTC()
	}
	if believable(e.Time) {
		return e.Time.UTC()
	}
	return time.Unix(0, 0).UTC()
}

func believable(at time.Time) bool {
	year := at.UTC().Year()
	return year >= earliest && year < latest
}
