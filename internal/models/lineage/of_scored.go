package lineage

import (
	"encoding/json"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
)

// ofScored is the answer to an event: what it says, and by which version.
func ofScored(v *broker.View) *thing {
	t := ofEvent(v)
	var said struct {
		Label string   `json:"label"`
		Score *float64 `json:"score"`
	}
	if json.Unmarshal(v.Data, &said) == nil && said.Label != "" {
		text := said.Label
		t.fact("label", said.Label)
		if said.Score != nil {
			score := strconv.FormatFloat(*said.Score, 'f', 4, 64)
			t.fact("score", score)
			text += ", " + score
		}
		t.say(text)
	}
	return t
}

// scoredBy leads from an answer to the version that gave it.
func scoredBy(t *thing) {
	model, version := t.node.Facts[tidemill.AttrModel], t.node.Facts[tidemill.AttrModelVersion]
	if _, _, err := tidemill.CutVersionName(model + "@" + version); err == nil {
		t.cause(api.EdgeScored, modelRef(model, version), nil)
	}
}

// answers leads from an answer to what it is the answer to.
func (t *thing) answers(input *thing) {
	t.causes = append(t.causes, link{to: input.ref, what: api.EdgeCaused, known: input})
}
