package tidemill

import (
	"cmp"
	"time"
)

// GateOn says with which figures of the champion a gate compares.
type GateOn string

// The two kinds of figures.
const (
	// GateOnSame are the figures that the run measured on the same data as its own.
	GateOnSame GateOn = "same data"
	// GateOnRecorded are the figures that the champion was registered with, if the run
	// has measured none. They may be of other data.
	GateOnRecorded GateOn = "recorded"
)

// Report says how good a version is, by its run's predictions and its trainer's metrics.
// It is stored with the run's output.
type Report struct {
	Metrics  map[string]float64 `json:"metrics"`            // the trainer's metrics; ours replace those of the same name
	Claimed  map[string]float64 `json:"claimed,omitempty"`  // metrics of the trainer that ours replaced with another value
	Measured *Figures           `json:"measured,omitempty"` // figures from predictions.csv; nil without one
	Champion *Beside            `json:"champion,omitempty"` // the run's figures of the champion; nil if it has measured none
	Notes    []string           `json:"notes,omitempty"`    // measurements that failed, and the reasons
	Trial    *ServingCheck      `json:"trial,omitempty"`    // whether its model can be served; nil for a version that nothing serves
}

// ServingCheck says whether the model of a version can be served. The model is loaded and run before the
// version is judged, by the engine of the scorer that serves it.
type ServingCheck struct {
	Scorer  string `json:"scorer,omitempty"`  // scorer of the config that serves the model; empty if none does
	Engine  string `json:"engine,omitempty"`  // engine that ran the model; empty if it could not be loaded
	Golden  bool   `json:"golden,omitempty"`  // whether the model answered the golden request of its model.yaml
	Rows    int    `json:"rows,omitempty"`    // rows of generated inputs that the model answered
	Error   string `json:"error,omitempty"`   // reason why no scorer can serve the model; empty if one can
	Missing string `json:"missing,omitempty"` // missing part without which the model cannot run here, such as ONNX Runtime; empty if none
	Warning string `json:"warning,omitempty"` // possible fault of a model that can be served; empty if none
}

// Beside has the champion's figures, measured by the same run on the same data.
type Beside struct {
	Version  int                `json:"version"`
	Metrics  map[string]float64 `json:"metrics"`
	Measured *Figures           `json:"measured,omitempty"`
	Lead     *Estimate          `json:"lead,omitempty"` // the version's accuracy minus the champion's, row by row
}

// Estimate is a figure with the bounds of its 95% confidence interval.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
}

// Figures are the quality of a classifier, computed from its predictions.
type Figures struct {
	Examples int      `json:"examples"`
	Accuracy Estimate `json:"accuracy"`
	MacroF1  Estimate `json:"macroF1"`
	Classes  []Class  `json:"classes"` // all classes, sorted by label
	Cells    []Cell   `json:"cells"`   // cells of the confusion matrix that are not 0, row by row
}

// Class is one label. Precision is undefined, and 0, if no example was predicted to have
// the label. Recall is undefined, and 0, if no example has it.
type Class struct {
	Label     string   `json:"label"`
	Support   int      `json:"support"`   // number of examples with the label
	Predicted int      `json:"predicted"` // number of examples that were predicted to have it
	Precision Estimate `json:"precision"`
	Recall    Estimate `json:"recall"`
	F1        float64  `json:"f1"`
}

// Cell counts the examples of class Truth that were predicted to be of class Predicted. Truth and
// Predicted are indexes into the classes.
type Cell struct {
	Truth     int `json:"truth"`
	Predicted int `json:"predicted"`
	Count     int `json:"count"`
}

// Judgement is a gate's result for a version, compared with one champion.
type Judgement struct {
	Passed   bool          `json:"passed"`
	Clauses  []Clause      `json:"clauses,omitempty"`
	Sentence string        `json:"sentence"`         // the judgement in words
	Against  int           `json:"against"`          // version of the champion; 0 if there was none
	On       GateOn        `json:"on,omitempty"`     // the figures of the champion that counted; empty if no clause needed any
	Beside   int           `json:"beside,omitempty"` // version of the champion that the run measured
	Hold     string        `json:"hold,omitempty"`   // reason why a version that passed waits for a person, other than a pin; empty if there is none
	Trial    *TrialVerdict `json:"trial,omitempty"`  // end of the version's trial; nil if it had none, or it has not ended
	Lacks    bool          `json:"lacks,omitempty"`  // whether something has to be installed before the version can be promoted
	Lead     *float64      `json:"lead,omitempty"`   // accuracy minus that of the champion on the same data; nil if the run has not measured the champion
}

// Gateless reports whether a version passed because its recipe has no gate.
func (j *Judgement) Gateless() bool {
	return j != nil && j.Passed && j.Trial == nil && len(j.Clauses) == 0
}

// Clause is one condition of a gate and its result.
type Clause struct {
	Text   string             `json:"text"`
	Passed bool               `json:"passed"`
	Values map[string]float64 `json:"values,omitempty"` // values of the names in it, such as metrics.accuracy
	Note   string             `json:"note,omitempty"`   // reason of the result, if the values do not show it
}

// Judge says how a recipe's versions are judged, by the config that applied when the run
// began.
type Judge struct {
	Gate    []string    `json:"gate,omitempty"` // CEL
	On      GateOn      `json:"on"`
	Promote Promote     `json:"promote"`
	Keep    int         `json:"keep"`             // number of versions
	Trial   *TrialTerms `json:"trial,omitempty"`  // nil means that a version which passes its gate is promoted
	Canary  *Canary     `json:"canary,omitempty"` // nil if a version that passed becomes the champion at once
}

// Promote says how a version that has passed its gate becomes the champion.
type Promote string

// The two ways.
const (
	PromoteAuto   Promote = "auto"
	PromoteManual Promote = "manual" // a person with the right to approve promotes it
)

// Candidate is a version that a run has made. The fact of the run's end contains it, so
// that it can be judged without other facts of the run.
type Candidate struct {
	Model    string    `json:"model"`
	Judge    Judge     `json:"judge"`
	Champion *Champion `json:"champion,omitempty"` // champion that the run was given; nil if there was none
	Origin
}

// Champion is a version that a run is given, to be measured on the same data.
type Champion struct {
	Version  int    `json:"version"`
	Artifact string `json:"artifact"` // tree of its files
}

// Origin describes the run that made a version.
type Origin struct {
	Run     string    `json:"run"`
	Recipe  string    `json:"recipe"`
	Key     string    `json:"key"`
	Config  string    `json:"config"` // hash of the recipe
	Attempt int       `json:"attempt"`
	Began   time.Time `json:"began"` // start of the first attempt
	Ended   time.Time `json:"ended"`
	Inputs  []Input   `json:"inputs,omitempty"`
	Causes  int       `json:"causes"`
	First   Cause     `json:"first"`
	Newest  Cause     `json:"newest"`
	By      string    `json:"by,omitempty"`
	Mark    Mark      `json:"mark"`              // place of the fact that started the first attempt
	Rollout string    `json:"rollout,omitempty"` // rollout whose new way the run took; empty for the way of all keys
	Where
}

// Mark is the place of a fact that starts runs or ends them. The number means the same on a copy of
// the log, where the fact may have another offset. Facts of earlier versions have no number.
type Mark struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Making    string `json:"making,omitempty"` // recipe and key, as in [RunKey]; empty for a fact of an earlier version
	Number    int64  `json:"number,omitempty"` // number of runs of the recipe and key that have begun by then
}

// Order compares the starts of two runs, and reports whether their marks tell the order. They do for
// runs of one recipe and key. Without numbers they do on one partition.
func (m Mark) Order(o Mark) (order int, ok bool) {
	switch {
	case m.Making != "" && o.Making != "":
		return cmp.Compare(m.Number, o.Number), m.Making == o.Making
	case m.Making == "" && o.Making == "":
		return cmp.Compare(m.Offset, o.Offset), m.Partition == o.Partition
	}
	return 0, false
}
