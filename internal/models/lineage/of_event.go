package lineage

import (
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
)

func titleOfEvent(typ, subject, id, source string) string {
	text := "event " + typ
	if subject != "" {
		text += " of " + subject
	}
	return text + " (" + shortID(id) + " from " + source + ")"
}

// ofEvent is an event as the log has it. It keeps nothing of the view.
func ofEvent(v *broker.View) *thing {
	c := tidemill.Cause{Source: strings.Clone(v.Source), ID: strings.Clone(v.ID)}
	t := newThing(eventRef(c), titleOfEvent(v.Type, v.Subject, v.ID, v.Source))
	t.key = strings.Clone(v.Subject)
	if when, err := time.Parse(time.RFC3339Nano, v.Time); err == nil {
		t.node.Time = at(when)
	}
	t.fact("id", c.ID)
	t.fact("source", c.Source)
	t.fact("type", strings.Clone(v.Type))
	t.fact("subject", t.key)
	for _, x := range v.Extensions {
		t.fact(strings.Clone(x.Name), strings.Clone(x.Value))
	}
	by, schedule := t.node.Facts[tidemill.AttrAuthID], t.node.Facts[tidemill.AttrSchedule]
	if by != "" {
		t.say("by " + by)
	}
	if schedule != "" {
		t.say("schedule " + schedule)
	}
	tellsOf(t, v.Type)
	return t
}

// tellsOf leads from an event to what it is about, or else to the event that it
// came of.
func tellsOf(t *thing, typ string) {
	attr := t.node.Facts
	dataset, commit := attr[tidemill.AttrDataset], attr[tidemill.AttrCommit]
	model, version := attr[tidemill.AttrModel], attr[tidemill.AttrModelVersion]
	run := attr[tidemill.AttrRun]
	ours := tidemill.ReservedType(typ)
	switch {
	case typ == tidemill.TypeScored:
		scoredBy(t)
	case typ == tidemill.TypeNewData && tidemill.CheckDataset(dataset) == nil && tidemill.CheckLabel(commit) == nil:
		t.cause(api.EdgeTold, commitRef(dataset, commit), nil)
	case ours && model != "" && version != "":
		if _, _, err := tidemill.CutVersionName(model + "@" + version); err == nil {
			t.cause(api.EdgeTold, modelRef(model, version), nil)
		}
	case ours && run != "" && typ != tidemill.TypeRunRequested:
		if _, err := parseRun(run); err == nil {
			t.cause(api.EdgeTold, runRef(run), nil)
		}
	case attr[tidemill.AttrCausationID] != "":
		c := tidemill.Cause{Source: attr[tidemill.AttrCausationSource], ID: attr[tidemill.AttrCausationID]}
		known := newThing(eventRef(c), "event "+shortID(c.ID)+" from "+c.Source)
		known.free = true // its name stands in the event that leads to it, and nothing else is told of it
		t.causes = append(t.causes, link{to: known.ref, what: api.EdgeCaused, known: known, leaf: true})
	}
}
