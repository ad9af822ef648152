package config

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// Labels says where the truth about a scorer's answers arrives, and how a label finds its answer.
// Exactly one of ID, Place and Field is set.
type Labels struct {
	From  string   // stream of the labels
	Types []string // sorted types of the events that are labels; empty means all types that are not Tidemill's own

	ID         string // place, in a label, of the id of the answered input event
	Source     string // place, in a label, of that event's source; empty means any source
	Place      string // place, in a label, of the position of the answered input event, such as payments/3/17
	Field      string // place, in the input event, of a value that the label has too
	LabelField string // place of the same value in the label

	Truth   string        // place, in a label, of the true label
	Wait    time.Duration // longest wait of an answer for its label, and of a label for its answer
	Missing string        // truth of an answer without a label after Wait; empty means that it has no outcome
	Group   string        // place, in the input event, of the group; answers of one group depend on each other
}

const (
	minLabelWait = time.Second
	maxLabelWait = 90 * 24 * time.Hour // as long as outcomes are kept
	maxTruth     = 256                 // characters of a label
)

// readLabels reads the labels of a scorer.
func (d *draft) readLabels(v value, to **Labels) {
	l := &Labels{}
	var types []value
	given := v.presentFields(
		field{"from", func(v value) {
			l.From = d.readScorerStream(v, "has only records of Tidemill, and no labels; name events, or a stream of yours")
		}},
		field{"types", func(v value) { l.Types, types = readFilterTypes(v) }},
		field{"match", l.readMatch},
		field{"truth", readValuePlace(&l.Truth)},
		field{"wait", readWait(&l.Wait, minLabelWait, maxLabelWait)},
		field{"missing", l.readMissing},
		field{"group", readValuePlace(&l.Group)},
	)
	v.require(v.node, given, "from", "name the stream on which the labels arrive, such as chargebacks")
	v.require(v.node, given, "match", "write how a label finds its answer, such as {id: data.payment}")
	v.require(v.node, given, "truth", "write where the true label is in a label's event, such as data.verdict")
	v.require(v.node, given, "wait", "write how long an answer waits for its label, such as 14d")
	slices.Sort(l.Types)
	checkHomeless(types, "has no labels")
	if v.node.Kind == yaml.MappingNode {
		*to = l
	}
}

// readMatch reads one of the three ways in which a label finds its answer.
func (l *Labels) readMatch(v value) {
	given := v.presentFields(
		field{"id", readValuePlace(&l.ID)},
		field{"source", readValuePlace(&l.Source)},
		field{"place", readValuePlace(&l.Place)},
		field{"field", readValuePlace(&l.Field)},
		field{"label", readValuePlace(&l.LabelField)},
	)
	ways := 0
	for _, way := range []string{"id", "place", "field"} {
		if given[way] {
			ways++
		}
	}
	switch {
	case v.node.Kind != yaml.MappingNode:
		return // reported
	case ways != 1:
		v.problem("must have exactly one of id, place and field; write {id: data.payment}, {place: data.answer} or {field: data.order}")
	case given["source"] && !given["id"]:
		v.valueOf("source").problem("belongs to id, which is missing; write {id: data.payment, source: data.shop}")
	case given["label"] && !given["field"]:
		v.valueOf("label").problem("belongs to field, which is missing; write {field: data.order, label: data.orderId}")
	case given["field"] && !given["label"]:
		l.LabelField = l.Field
	}
}

func (l *Labels) readMissing(v value) {
	text, ok := v.text()
	if ok && len(text) > maxTruth {
		v.problem("has more than %d characters, which no label has", maxTruth)
	}
	l.Missing = text
}

// readValuePlace reads where in an event one value is. The places have the form of Recipe.Key, so that
// package triggers/keys reads the values.
func readValuePlace(to *string) func(value) {
	return func(v value) {
		text, ok := v.text()
		switch {
		case !ok:
		case text == "data" || text == KeyNone || len(text) > maxKey || !attributeName.fits(text) && !dataPath.MatchString(text):
			v.problem("%s is not the place of one value; write data.PATH such as data.order.id, or an attribute such as subject", show(text))
		default:
			*to = text
		}
	}
}

// checkHomeless reports types whose events are only on a stream that no scorer can name.
func checkHomeless(types []value, why string) {
	for _, typ := range types {
		if e, _ := tidemill.Lookup(typ.node.Value); e.Ours && e.Stream != "" {
			typ.problem("%s is only on the stream %s, which %s; remove it", show(typ.node.Value), e.Stream, why)
		}
	}
}

// checkLabels compares the labels of a scorer with its other keys.
func (s *Scorer) checkLabels(v value) {
	at := v.valueOf("labels").valueOf("from")
	if s.Labels != nil && s.Labels.From != "" && s.Labels.From == s.To {
		at.problem("is the stream of the scorer's own answers, which have no truth; name the stream on which the labels arrive")
	}
}

type hashedLabels struct {
	From       string   `json:"from"`
	Types      []string `json:"types,omitempty"`
	ID         string   `json:"id,omitempty"`
	Source     string   `json:"source,omitempty"`
	Place      string   `json:"place,omitempty"`
	Field      string   `json:"field,omitempty"`
	LabelField string   `json:"labelField,omitempty"`
	Truth      string   `json:"truth"`
	Wait       string   `json:"wait"`
	Missing    string   `json:"missing,omitempty"`
	Group      string   `json:"group,omitempty"`
}

// hashed returns the hash's input for labels; nil if there are none.
func (l *Labels) hashed() *hashedLabels {
	if l == nil {
		return nil
	}
	return &hashedLabels{l.From, l.Types, l.ID, l.Source, l.Place, l.Field, l.LabelField, l.Truth, showSpan(l.Wait), l.Missing, l.Group}
}
