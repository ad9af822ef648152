package lineage

import (
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
)

// ofVersion is a version of a model, how it was judged, and what became of it.
func ofVersion(m *tidemill.Model, v *ledger.VersionRecord) *thing {
	t := newThing(modelRef(m.Name, strconv.Itoa(v.Number)), "model "+tidemill.VersionName(m.Name, v.Number))
	t.key = m.Key
	state, when := standing(m, v)
	t.node.State, t.node.Time = state, at(when)
	t.say(headline(v.Metrics))
	t.say(crowned(m, v.Number))
	t.say(joined(count(v.Files, "file"), size(v.Bytes)))
	factsOfVersion(t, m, v)
	t.causes = append(t.causes, link{to: runRef(v.Run), what: api.EdgeMade, origin: &v.Origin})
	if j := v.Judgement; j != nil {
		t.node.Said = j.Sentence
		if j.Against != 0 {
			t.aside(api.EdgeJudged, modelRef(m.Name, strconv.Itoa(j.Against)), nil)
		}
	}
	for i := range m.Changes {
		if c := &m.Changes[i]; c.Before == v.Number && c.Version != v.Number {
			t.effects = append(t.effects, link{to: modelRef(m.Name, strconv.Itoa(c.Version)), what: api.EdgeReplaced, leaf: true})
		}
	}
	return t
}

// standing is how a version stands, and since when.
func standing(m *tidemill.Model, v *ledger.VersionRecord) (string, time.Time) {
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

// lastChange is how a version became the champion last; nil where that is too
// long ago, or has never been.
func lastChange(m *tidemill.Model, number int) *tidemill.Change {
	for i := range slices.Backward(m.Changes) {
		if m.Changes[i].Version == number {
			return &m.Changes[i]
		}
	}
	return nil
}

// crowned says who made a version the champion.
func crowned(m *tidemill.Model, number int) string {
	c := lastChange(m, number)
	if c == nil {
		return ""
	}
	done := map[tidemill.Action]string{tidemill.ActionPromote: "promoted", tidemill.ActionRollback: "rolled back to", tidemill.ActionPin: "pinned"}[c.Action]
	switch {
	case c.Action == tidemill.ActionJudge:
		return "promoted by its gate"
	case done == "":
		done = string(c.Action)
	}
	return joined(done+" by "+orSomebody(c.By), c.Reason)
}

func factsOfVersion(t *thing, m *tidemill.Model, v *ledger.VersionRecord) {
	t.fact("model", m.Name)
	t.fact("version", strconv.Itoa(v.Number))
	t.fact("key", m.Key)
	t.fact("recipe", v.Recipe)
	t.fact("state", string(v.State))
	t.fact("run", v.Run)
	t.fact("artifact", v.Artifact)
	t.fact("report", v.Report)
	t.fact("registered", timeText(v.At))
	for name, value := range v.Metrics {
		t.fact("metrics."+name, strconv.FormatFloat(value, 'g', -1, 64))
	}
	if v.Judgement != nil {
		t.fact("passed", strconv.FormatBool(v.Judgement.Passed))
	}
}
