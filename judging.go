package tidemill

import "time"

// GateOn says which figures of the champion a gate's clauses are held against.
type GateOn string

// The two kinds of figures.
const (
	// GateOnSame are those that the run measured on the same data as its own.
	GateOnSame GateOn = "same data"
	// GateOnRecorded are those, where the run has measured none, that the champion
	// was registered with: of other data, perhaps.
	GateOnRecorded GateOn = "recorded"
)

// Report is how good a version is, by its run's predictions and its trainer's
// own word. It lies in the store beside what was made.
type Report struct {
	Metrics  map[string]float64 `json:"metrics"`            // the trainer's, and over them ours
	Claimed  map[string]float64 `json:"claimed,omitempty"`  // what the trainer says of what we have measured otherwise
	Measured *Figures           `json:"measured,omitempty"` // by predictions.csv; nil without one
	Champion *Beside            `json:"champion,omitempty"` // what the run has measured of the champion; nil if it has not
	Notes    []string           `json:"notes,omitempty"`    // what could not be measured, and why
}

// Beside is the champion, measured by the same run on the same data.
type Beside struct {
	Version  int                `json:"version"`
	Metrics  map[string]float64 `json:"metrics"`
	Measured *Figures           `json:"measured,omitempty"`
	Lead     *Estimate          `json:"lead,omitempty"` // our accuracy less the champion's, row by row
}

// Estimate is a figure with the bounds of its 95% confidence interval.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Figures are what predictions tell of a classifier.
type Figures struct {
	Examples int      `json:"examples"`
	Accuracy Estimate `json:"accuracy"`
	MacroF1  Estimate `json:"macroF1"`
	Classes  []Class  `json:"classes"` // in the order of their labels
	Cells    []Cell   `json:"cells"`   // of the confusion matrix, those that are not 0, row by row
}

// Class is one label. Precision is undefined, and 0, where nothing was predicted
// to be it; recall, where nothing was it.
type Class struct {
	Label     string   `json:"label"`
	Support   int      `json:"support"`   // how many examples have it
	Predicted int      `json:"predicted"` // how many were said to
	Precision Estimate `json:"precision"`
	Recall    Estimate `json:"recall"`
	F1        float64  `json:"f1"`
}

// Cell counts the examples of one class that were said to be of another, both
// by their place among the classes.
type Cell struct {
	Truth     int `json:"truth"`
	Predicted int `json:"predicted"`
	Count     int `json:"count"`
}

// Judgement is what a gate says of a version, against one champion.
type Judgement struct {
	Passed   bool     `json:"passed"`
	Clauses  []Clause `json:"clauses,omitempty"`
	Sentence string   `json:"sentence"`         // the whole of it in words
	Against  int      `json:"against"`          // version of the champion; 0 if there was none
	On       GateOn   `json:"on,omitempty"`     // whose figures of the champion counted; empty where no clause needed any
	Beside   int      `json:"beside,omitempty"` // the champion that the run was given to measure
}

// Clause is one condition of a gate and what became of it.
type Clause struct {
	Text   string             `json:"text"`
	Passed bool               `json:"passed"`
	Values map[string]float64 `json:"values,omitempty"` // of what it names, such as metrics.accuracy
	Note   string             `json:"note,omitempty"`   // why it passed or not, where the values do not tell
}

// Judge is how a recipe's versions are judged: what was in force when the run
// began.
type Judge struct {
	Gate    []string `json:"gate,omitempty"` // CEL
	On      GateOn   `json:"on"`
	Promote Promote  `json:"promote"`
	Keep    int      `json:"keep"` // versions
}

// Promote says who makes a version that has passed the champion.
type Promote string

// The two ways.
const (
	PromoteAuto   Promote = "auto"
	PromoteManual Promote = "manual" // a person who may approve
)

// Candidate is a version that a run has made. It travels with the run's end, so
// that whoever judges it needs to know nothing else of the run.
type Candidate struct {
	Model    string    `json:"model"`
	Judge    Judge     `json:"judge"`
	Champion *Champion `json:"champion,omitempty"` // that the run was given; nil if there was none
	Origin
}

// Champion is a version that a run is given, to be measured on the same data.
type Champion struct {
	Version  int    `json:"version"`
	Artifact string `json:"artifact"` // tree
}

// Origin is what a version came from.
type Origin struct {
	Run     string    `json:"run"`
	Recipe  string    `json:"recipe"`
	Key     string    `json:"key"`
	Config  string    `json:"config"` // hash of the recipe
	Attempt int       `json:"attempt"`
	Began   time.Time `json:"began"` // the first attempt
	Ended   time.Time `json:"ended"`
	Inputs  []Input   `json:"inputs,omitempty"`
	Causes  int       `json:"causes"`
	First   Cause     `json:"first"`
	Newest  Cause     `json:"newest"`
	By      string    `json:"by,omitempty"`
	Mark    Mark      `json:"mark"` // the fact by which the first attempt began
	Where
}

// Mark is a place among the facts.
type Mark struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
}
