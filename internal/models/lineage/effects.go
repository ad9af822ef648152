package lineage

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

func titleOfCommit(id, dataset, branch string) string {
	text := "commit " + shortID(id)
	if dataset != "" {
		text += " of " + dataset
	}
	if branch != "" {
		text += " (" + branch + ")"
	}
	return text
}

// ofCommit returns the thing of a commit.
func ofCommit(c *api.Commit) *thing {
	t := newThing(commitRef(c.Dataset, c.ID), titleOfCommit(c.ID, c.Dataset, c.Branch))
	t.dataset = c.Dataset
	t.node.State, t.node.Time, t.node.Said = "committed", nodeTime(c.Time), c.Message
	t.addText(joined(count(c.Files, "file"), size(c.Bytes)))
	t.addText(fmt.Sprintf("+%d ~%d -%d", c.Added, c.Changed, c.Removed))
	if c.By != "" {
		t.addText("by " + c.By)
	}
	t.addFact("dataset", c.Dataset)
	t.addFact("branch", c.Branch)
	t.addFact("commit", c.ID)
	t.addFact("number", strconv.FormatInt(c.Number, 10))
	t.addFact("tree", c.Tree)
	t.addFact("files", strconv.Itoa(c.Files))
	t.addFact("bytes", strconv.FormatInt(c.Bytes, 10))
	t.addFact("by", c.By)
	t.addFact("run", c.Run)
	t.addFact("message", c.Message)
	if c.Run != "" {
		t.cause(api.EdgeMade, runRef(c.Run), nil)
	}
	if c.Parent != "" {
		t.addAside(api.EdgeFollowed, commitRef(c.Dataset, c.Parent), nil)
	}
	return t
}

// announcementOf returns the event that announced a commit. Its id derives from the commit.
func announcementOf(names tidemill.Names, c *api.Commit) *thing {
	to := eventRef(tidemill.Cause{Source: names.Source("data"), ID: tidemill.ID(tidemill.TypeNewData, c.Dataset, c.Branch, c.ID)})
	t := newThing(to, titleOfEvent(tidemill.TypeNewData, c.Subject, to.at, to.of))
	t.key = c.Subject
	t.node.Time = nodeTime(c.Time)
	t.addFact("id", to.at)
	t.addFact("source", to.of)
	t.addFact("type", tidemill.TypeNewData)
	t.addFact("subject", c.Subject)
	return t
}

func titleOfEvent(typ, subject, id, source string) string {
	text := "event " + typ
	if subject != "" {
		text += " of " + subject
	}
	return text + " (" + shortID(id) + " from " + source + ")"
}

// ofEvent returns an event as the log has it. It keeps nothing of the view.
func ofEvent(v *broker.View) *thing {
	c := tidemill.Cause{Source: strings.Clone(v.Source), ID: strings.Clone(v.ID)}
	t := newThing(eventRef(c), titleOfEvent(v.Type, v.Subject, v.ID, v.Source))
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	t.key = strings.Clone(tidemill.OwnerOf(recipe, v.Subject))
	if when, err := time.Parse(time.RFC3339Nano, v.Time); err == nil {
		t.node.Time = nodeTime(when)
	}
	t.addFact("id", c.ID)
	t.addFact("source", c.Source)
	t.addFact("type", strings.Clone(v.Type))
	t.addFact("subject", strings.Clone(v.Subject))
	for _, x := range v.Extensions {
		t.addFact(strings.Clone(x.Name), strings.Clone(x.Value))
	}
	by, schedule := t.node.Facts[tidemill.AttrAuthID], t.node.Facts[tidemill.AttrSchedule]
	if by != "" {
		t.addText("by " + by)
	}
	if schedule != "" {
		t.addText("schedule " + schedule)
	}
	linkSubject(t, v.Type)
	return t
}

// linkSubject links an event to its subject, or else to the event that caused it.
func linkSubject(t *thing, typ string) {
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
		if tidemill.CheckDataset(model) == nil && tidemill.CheckWhich(version) == nil {
			t.cause(api.EdgeTold, modelRef(model, version), nil)
		}
	case ours && run != "" && typ != tidemill.TypeRunRequested:
		if _, err := parseRun(run); err == nil {
			t.cause(api.EdgeTold, runRef(run), nil)
		}
	case attr[tidemill.AttrCausationID] != "":
		c := tidemill.Cause{Source: attr[tidemill.AttrCausationSource], ID: attr[tidemill.AttrCausationID]}
		known := newThing(eventRef(c), "event "+shortID(c.ID)+" from "+c.Source)
		known.free = true // its name is in the event that leads to it, and nothing else is known of it
		t.causes = append(t.causes, link{to: known.ref, what: api.EdgeCaused, linked: known, leaf: true})
	}
}

// ofVersion returns a version of a model, its judgement, and the versions that replaced it.
func ofVersion(m *fold.Model, v *ledger.VersionRecord) *thing {
	t := newThing(modelRef(m.Name, strconv.Itoa(v.Number)), "model "+tidemill.VersionName(m.Name, v.Number))
	t.key = tidemill.OwnerOf(m.Recipe, m.Key)
	state, when := versionState(m, v)
	t.node.State, t.node.Time = state, nodeTime(when)
	t.addText(headline(v.Metrics))
	t.addText(howPromoted(m, v))
	t.addText(joined(count(v.Files, "file"), size(v.Bytes)))
	factsOfVersion(t, m, v)
	t.causes = append(t.causes, link{to: runRef(v.Run), what: api.EdgeMade, origin: &v.Origin})
	if j := v.Judgement; j != nil {
		t.node.Said = j.Sentence
		if j.Against != 0 {
			t.addAside(api.EdgeJudged, modelRef(m.Name, strconv.Itoa(j.Against)), nil)
		}
	}
	for i := range m.Changes {
		if c := &m.Changes[i]; c.Before == v.Number && c.Version != v.Number {
			t.effects = append(t.effects, link{to: modelRef(m.Name, strconv.Itoa(c.Version)), what: api.EdgeReplaced, leaf: true})
		}
	}
	return t
}

// versionState returns the state of a version, and the time since when.
func versionState(m *fold.Model, v *ledger.VersionRecord) (string, time.Time) {
	last := lastChange(m, v.Number)
	switch {
	case v.Number == m.Champion && m.Pin != nil:
		return "pinned champion", m.Pin.At
	case v.Number == m.Champion && last != nil:
		return "champion", last.At
	case v.Number == m.Champion:
		return "champion", v.At
	case v.State == tidemill.VersionPromoted && last != nil:
		return "was champion", last.At
	}
	return string(v.State), v.At
}

// lastChange returns the last change that made a version the champion; nil if it was too long ago,
// or never happened.
func lastChange(m *fold.Model, number int) *fold.Change {
	for i := range slices.Backward(m.Changes) {
		if m.Changes[i].Version == number {
			return &m.Changes[i]
		}
	}
	return nil
}

// howPromoted describes who made a version the champion, and how.
func howPromoted(m *fold.Model, v *ledger.VersionRecord) string {
	c := lastChange(m, v.Number)
	if c == nil {
		return ""
	}
	how := c.How(v.Judgement)
	if c.Action.OfPeople() {
		return joined(how+" by "+orSomebody(c.By), c.Reason)
	}
	return how
}

func factsOfVersion(t *thing, m *fold.Model, v *ledger.VersionRecord) {
	t.addFact("model", m.Name)
	t.addFact("version", strconv.Itoa(v.Number))
	t.addFact("key", m.Key)
	t.addFact("recipe", v.Recipe)
	t.addFact("state", string(v.State))
	t.addFact("run", v.Run)
	t.addFact("artifact", v.Artifact)
	t.addFact("report", v.Report)
	t.addFact("registered", timeText(v.At))
	for name, value := range v.Metrics {
		t.addFact("metrics."+name, strconv.FormatFloat(value, 'g', -1, 64))
	}
	if v.Judgement != nil {
		t.addFact("passed", strconv.FormatBool(v.Judgement.Passed))
	}
}

// ofScored returns the answer to an event: its label and score, and the version that gave it.
func ofScored(v *broker.View) *thing {
	t := ofEvent(v)
	var said struct {
		Label string   `json:"label"`
		Score *float64 `json:"score"`
	}
	if json.Unmarshal(v.Data, &said) == nil && said.Label != "" {
		text := said.Label
		t.addFact("label", said.Label)
		if said.Score != nil {
			score := strconv.FormatFloat(*said.Score, 'f', 4, 64)
			t.addFact("score", score)
			text += ", " + score
		}
		t.addText(text)
	}
	return t
}

// scoredBy links an answer to the version that gave it.
func scoredBy(t *thing) {
	model, version := t.node.Facts[tidemill.AttrModel], t.node.Facts[tidemill.AttrModelVersion]
	if tidemill.CheckDataset(model) == nil && tidemill.CheckWhich(version) == nil {
		t.cause(api.EdgeScored, modelRef(model, version), nil)
	}
}

// linkAnswer links an answer to its input.
func (t *thing) linkAnswer(input *thing) {
	t.causes = append(t.causes, link{to: input.ref, what: api.EdgeCaused, linked: input})
}
