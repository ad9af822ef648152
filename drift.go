package tidemill

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
	Alarm    int     `json:"alarm"`    // number of alarms of this figure since the champion was promoted, with this one
}

// ModelDriftEnded is the data of tidemill.model.drift-ended: a figure that had drifted is again what it was.
type ModelDriftEnded struct {
	Scorer  string `json:"scorer"`
	Version int    `json:"version"`
	Figure  string `json:"figure"`
	Alarm   int    `json:"alarm"` // number of the alarm that ends
}
