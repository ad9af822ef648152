package drift

import "time"

// Watch keeps the figures of all models of a scorer.
type Watch struct {
	Reference   int     // number of first answers that the later ones are compared with
	FalseAlarms float64 // a day, over all models
	Budget      Budget

	memo *Memo
}

// NewWatch returns a watch without looks.
func NewWatch(reference int, falseAlarms float64) *Watch {
	return &Watch{Reference: reference, FalseAlarms: falseAlarms, memo: NewMemo(reference)}
}

// Turn is the result of a look at a figure.
type Turn uint8

// The findings.
const (
	Same     Turn = iota
	Drifts        // the figure differs from its reference, and has not before
	Returned      // the figure has drifted, and the last 512 values look like its reference again
)

// Look compares a figure whose block is full with its reference. A figure that has drifted is not reported again
// until it has returned or the champion has changed.
func (w *Watch) Look(f *Figure, at time.Time) (Change, Turn) {
	c := f.Look(w.memo, w.Reference)
	enough := w.Budget.Threshold(at, w.FalseAlarms)
	switch {
	case !f.Drifted && c.E >= enough:
		f.Drifted = true
		f.Alarms++
		return c, Drifts
	case f.Drifted && c.Calm:
		f.Drifted = false
		return c, Returned
	}
	return c, Same
}
