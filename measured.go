package tidemill

import "time"

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
