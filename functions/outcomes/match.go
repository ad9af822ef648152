package outcomes

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/keys"
)

// matcher finds the value by which labels and answers match.
type matcher struct {
	of                            *config.Labels
	scorer, source                string // name of the scorer, and source of its answers
	id, origin, place, field      keys.Place
	truth                         keys.Place
	saidID, saidOrigin, saidPlace keys.Place // of labels that a person has given
	saidField, saidTruth          keys.Place
	before, after                 string // template of the model's names
	keyed                         bool   // whether the model's name contains the key
}

func newMatcher(names tidemill.Names, c *config.Scorer) *matcher {
	l := c.Labels
	m := &matcher{of: l, scorer: c.Name, source: names.Source("scorer/" + c.Name),
		id: keys.NewPlace(l.ID), origin: keys.NewPlace(l.Source), place: keys.NewPlace(l.Place), field: keys.NewPlace(l.LabelField), truth: keys.NewPlace(l.Truth),
		saidID: keys.NewPlace("data.id"), saidOrigin: keys.NewPlace("data.source"), saidPlace: keys.NewPlace("data.place"),
		saidField: keys.NewPlace("data.field"), saidTruth: keys.NewPlace("data.truth")}
	m.before, m.after, m.keyed = strings.Cut(c.Model, "{key}")
	return m
}

// isAnswer reports whether an event is an answer of the scorer.
func (m *matcher) isAnswer(v *broker.View) bool {
	return v.Type == tidemill.TypeScored && v.Source == m.source
}

// isLabel reports whether an event is a label for the scorer.
func (m *matcher) isLabel(v *broker.View) bool {
	switch {
	case v.Type == tidemill.TypeLabel:
		scorer, _ := v.Attribute(tidemill.AttrScorer)
		return scorer == m.scorer
	case len(m.of.Types) > 0:
		return slices.Contains(m.of.Types, v.Type)
	}
	return !tidemill.ReservedType(v.Type)
}

// answerValue returns the value by which labels find an answer; empty if it has none.
func (m *matcher) answerValue(v *answerView) string {
	switch {
	case m.of.ID != "":
		return v.causeID
	case m.of.Place != "":
		return v.id
	}
	return v.field
}

// shows says in words which answers have a value.
func (m *matcher) shows(value string) string {
	switch {
	case m.of.ID != "":
		return fmt.Sprintf("an input with the id %q", value)
	case m.of.Place != "":
		return fmt.Sprintf("its input at %q", value)
	}
	return fmt.Sprintf("%q at %s of its input", value, m.of.Field)
}

// readLabel returns the value by which a label finds its answer, and the label. The texts point into the event.
func (m *matcher) readLabel(v *broker.View, l *label) (value string, err error) {
	id, origin, place, field, truth := &m.id, &m.origin, &m.place, &m.field, &m.truth
	if v.Type == tidemill.TypeLabel {
		id, origin, place, field, truth = &m.saidID, &m.saidOrigin, &m.saidPlace, &m.saidField, &m.saidTruth
	}
	at := field
	switch {
	case m.of.ID != "":
		at = id
		if m.of.Source != "" || v.Type == tidemill.TypeLabel {
			l.of = origin.Of(v)
		}
	case m.of.Place != "":
		at = place
	}
	value, l.truth = at.Of(v), truth.Of(v)
	l.person = v.Type == tidemill.TypeLabel
	l.id, l.source, l.time = v.ID, v.Source, v.Time
	switch {
	case value == "":
		return "", errors.New("the label has no value at " + at.String() + ", so that it finds no answer; correct the publisher of the labels, or `match` of the scorer's labels")
	case l.truth == "":
		return "", errors.New("the label has no value at " + truth.String() + ", so that it says no truth; correct the publisher of the labels, or `truth` of the scorer's labels")
	case m.of.Source != "" && l.of == "" && v.Type != tidemill.TypeLabel:
		return "", errors.New("the label has no value at " + origin.String() + ", so that it finds no answer; correct the publisher of the labels, or `match` of the scorer's labels")
	}
	return value, nil
}

// readAnswer reads the parts of an answer's event. The texts point into the event.
func (v *answerView) readAnswer(e *broker.View) {
	*v = answerView{id: e.ID, time: e.Time, subject: e.Subject, data: text(e.Data)}
	for i := range e.Extensions {
		switch x := &e.Extensions[i]; x.Name {
		case tidemill.AttrModel:
			v.model = x.Value
		case tidemill.AttrModelVersion:
			v.version = x.Value
		case tidemill.AttrCausationID:
			v.causeID = x.Value
		case tidemill.AttrCausationSource:
			v.causeSource = x.Value
		case tidemill.AttrLabelField:
			v.field = x.Value
		case tidemill.AttrLabelGroup:
			v.group = x.Value
		}
	}
}

// keyOf returns the key that an answer's model belongs to. A model that takes the place of a missing one has no
// key in its name; then the key is the subject.
func (m *matcher) keyOf(v *answerView) string {
	if m.keyed && len(v.model) > len(m.before)+len(m.after) && strings.HasPrefix(v.model, m.before) && strings.HasSuffix(v.model, m.after) {
		return v.model[len(m.before) : len(v.model)-len(m.after)]
	}
	return v.subject
}
