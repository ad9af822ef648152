package tidemill

import "time"

// OutcomeBasis says where the truth of an outcome comes from.
type OutcomeBasis string

// The kinds of truth.
const (
	OutcomeLabelled OutcomeBasis = "label"   // an event on the stream of labels
	OutcomeSaid     OutcomeBasis = "person"  // a person has given the label
	OutcomeAssumed  OutcomeBasis = "default" // no label came in time, and the scorer's config says what that means
)

// OutcomeData is the data of tidemill.outcome: an answer of a scorer, together with its truth. Each answer has
// exactly one such event. If a later label says something else, tidemill.outcome.corrected follows it, with
// the same data, the next revision and the label before.
type OutcomeData struct {
	Scorer      string             `json:"scorer"`
	Key         string             `json:"key,omitempty"` // key that the answer's model belongs to
	Model       string             `json:"model"`
	Version     int                `json:"version"`          // version that has answered
	Place       string             `json:"place"`            // place of the scored event's input, such as messages/3/17; also the answer's id
	Answer      string             `json:"answer"`           // place of the answer, such as scored/3/15
	Group       string             `json:"group,omitempty"`  // answers of one group depend on each other, such as those of one card; empty means that each is its own group
	Label       string             `json:"label"`            // label that the model has answered
	Score       float64            `json:"score,omitempty"`  // the model's score of that label; 0 if it has none
	Scores      map[string]float64 `json:"scores,omitempty"` // as in the answer
	Truth       string             `json:"truth"`            // label that is true
	Before      string             `json:"before,omitempty"` // truth of the revision before
	Basis       OutcomeBasis       `json:"basis"`
	Revision    int                `json:"revision"`              // 1, or the number of this correction plus 1
	Answered    time.Time          `json:"answered"`              // time of the answer
	Labelled    time.Time          `json:"labelled,omitzero"`     // time of the label; zero if Basis is OutcomeAssumed
	LabelID     string             `json:"labelId,omitempty"`     // id of the event with the label
	LabelSource string             `json:"labelSource,omitempty"` // its source
}

// Right reports whether the model has answered the truth.
func (o *OutcomeData) Right() bool { return o.Label == o.Truth }

// LabelData is the data of tidemill.label, by which a person gives the truth of an answer. It is published to the
// stream of the scorer's labels. It names the answered event in each way that is known: a caller who gives the
// event's place gives all of them.
type LabelData struct {
	Scorer string `json:"scorer"`           // scorer whose answer it is
	Place  string `json:"place,omitempty"`  // place of the answered event, such as messages/3/17
	ID     string `json:"id,omitempty"`     // id of the answered event
	Source string `json:"source,omitempty"` // its source; empty means any source
	Field  string `json:"field,omitempty"`  // its value of the match's field, if the scorer matches labels by a field
	Truth  string `json:"truth"`            // label that is true
	Reason string `json:"reason,omitempty"`
}
