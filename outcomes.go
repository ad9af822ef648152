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

// Measured is the data of tidemill.model.measured: how good the answers of one version of a model were, in one
// scorer, by their outcomes. It counts all outcomes of the version up to now, so a later fact replaces an
// earlier one.
type Measured struct {
	Scorer  string          `json:"scorer"`
	Version int             `json:"version"`
	Folded  int64           `json:"folded"` // outcomes and corrections that are counted; a fact with more of them is newer
	Until   map[int32]int64 `json:"until"`  // offset after the last counted one, for each partition of the stream outcomes
	First   time.Time       `json:"first"`  // time of the earliest answer
	Last    time.Time       `json:"last"`   // time of the latest answer

	Answers   int `json:"answers"` // answers whose truth is known
	Right     int `json:"right"`
	Assumed   int `json:"assumed,omitempty"`   // answers whose truth was first assumed, because no label came in time
	Corrected int `json:"corrected,omitempty"` // corrections by later labels

	Labels []string `json:"labels"`         // labels of answers and truths, in the order of their appearance
	Cells  [][3]int `json:"cells"`          // index of the truth, index of the answer, count; only counts above 0
	Bins   []Bin    `json:"bins,omitempty"` // ten bins of scores, from 0 to 1; nil if no answer had a score
	Days   []Day    `json:"days"`           // newest days with answers, in the order of time
}

// Reaches reports whether the figures count all outcomes that others count.
func (m *Measured) Reaches(o *Measured) bool {
	for partition, offset := range o.Until {
		if m.Until[partition] < offset {
			return false
		}
	}
	return true
}

// Bin counts the answers whose score is in a tenth of the range from 0 to 1.
type Bin struct {
	Answers int   `json:"answers"`
	Right   int   `json:"right"`
	Score   int64 `json:"score"` // sum of the scores, in millionths
}

// Day counts the answers of one day, in UTC.
type Day struct {
	Day     string `json:"day"` // such as 2026-11-27
	Answers int    `json:"answers"`
	Right   int    `json:"right"`
}

// The bounds of Measured.
const (
	MeasuredLabels = 20 // further labels are counted as OtherLabel
	MeasuredDays   = 30
	OtherLabel     = "…"
)

// The figures whose drift is reported. The figure of a watched input is FigureInput and its name.
const (
	FigureLabels   = "labels"   // shares of the labels that the model answers
	FigureScores   = "scores"   // scores of these labels
	FigureAccuracy = "accuracy" // share of right answers, if the scorer has labels
	FigureMissing  = "missing"  // share of events without one of the watched inputs
	FigureInput    = "input."
)

// ModelDrifted is the data of tidemill.model.drifted: a figure of a champion's answers is no longer what it was in the
// champion's first answers. There is one such fact for each figure until the figure has returned or the champion
// has changed.
type ModelDrifted struct {
	Scorer  string `json:"scorer"`
	Version int    `json:"version"` // champion whose figure it is
	Figure  string `json:"figure"`

	Value  string  `json:"value,omitempty"` // value whose share has changed most: a label, a text, or a bound such as < 31.5
	Before float64 `json:"before"`          // its share in the first answers
	Now    float64 `json:"now"`             // its share in the last answers
	Values int     `json:"values"`          // number of the last answers
	Since  string  `json:"since"`           // place of the first of them, such as scored/3/17

	Evidence float64 `json:"evidence"` // e-value against "nothing has changed"
	Needed   float64 `json:"needed"`   // e-value from which on a change is reported
	Alarm    int     `json:"alarm"`    // number of alarms of this figure, with this one; it also counts those of earlier champions
}

// ModelDriftEnded is the data of tidemill.model.drift-ended: a figure that had drifted is again what it was.
type ModelDriftEnded struct {
	Scorer  string `json:"scorer"`
	Version int    `json:"version"`
	Figure  string `json:"figure"`
	Alarm   int    `json:"alarm"` // number of the alarm that ends
}
