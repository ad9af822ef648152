package drift

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"tidemill.dev"
)

// The figures that each model has, before its inputs.
const (
	Label = iota
	Score
	Accuracy
	Missing
	inputs // index of the first input
)

// MaxInputs is the largest number of inputs that are watched, so that a model's state has at most 2 KB.
const MaxInputs = 4

// Model is the state of one model of a scorer.
type Model struct {
	Version uint32 // version whose answers are counted
	other   uint32 // newer or older version that has answered the last answers
	run     uint32 // number of its answers in a row
	Figures []Figure
}

// NewModel returns the empty state of a model with that many watched inputs.
func NewModel(inputs_ int) *Model { return &Model{Figures: make([]Figure, inputs+inputs_)} }

// Input returns the figure of an input.
func (m *Model) Input(i int) *Figure { return &m.Figures[inputs+i] }

// Prefill makes the predictions of the version's run the reference of its labels and its accuracy. It reports whether
// they are enough; otherwise the first answers are the reference.
func (m *Model) Prefill(p *tidemill.Figures, reference int) bool {
	var labels [bins]int
	for _, c := range p.Classes {
		labels[Bin(c.Label)] += c.Predicted
	}
	right := 0
	for _, c := range p.Cells {
		if c.Truth == c.Predicted {
			right += c.Count
		}
	}
	accuracy := m.Figures[Accuracy].Prefill(Yes, []int{p.Examples - right, right}, reference)
	return m.Figures[Label].Prefill(Shares, labels[:], reference) && accuracy
}

// steady is the number of answers in a row after which another version counts as the champion. A canary's answers
// are between those of the champion, so they do not count.
const steady = 32

// Answered says that a version has answered, and reports whether its answer counts. Inputs may come before the first
// answer and then stay. If the champion has
// changed, all figures begin again, because the reference is the first answers of the new champion.
func (m *Model) Answered(version uint32) (counts bool) {
	switch {
	case version == m.Version:
		m.run = 0
		return true
	case m.Version == 0:
		m.Version = version
		return true
	case version == m.other && m.run+1 >= steady:
	case version == m.other:
		m.run++
		return false
	default:
		m.other, m.run = version, 1
		return false
	}
	m.Version, m.other, m.run = version, 0, 0
	for i := range m.Figures {
		m.Figures[i] = Figure{Alarms: m.Figures[i].Alarms} // the version may have been the champion before, with such alarms
	}
	return true
}

const (
	figureBytes = 1 + 1 + 2 + 4 + 4*(bins-1) + 2*bins + blocks*bins + 8*blocks
	modelBytes  = 4 + 4 + 4 + 1
)

// AppendBinary appends the state of a model.
func (m *Model) AppendBinary(to []byte) ([]byte, error) {
	to = binary.LittleEndian.AppendUint32(to, m.Version)
	to = binary.LittleEndian.AppendUint32(to, m.other)
	to = binary.LittleEndian.AppendUint32(to, m.run)
	to = append(to, uint8(len(m.Figures)))
	return binary.Append(to, binary.LittleEndian, m.Figures)
}

// UnmarshalBinary reads the state of a model.
func (m *Model) UnmarshalBinary(from []byte) error {
	if len(from) < modelBytes || len(from) != modelBytes+int(from[12])*figureBytes {
		return fmt.Errorf("%d bytes are no state of a model", len(from))
	}
	m.Version, m.other, m.run = binary.LittleEndian.Uint32(from), binary.LittleEndian.Uint32(from[4:]), binary.LittleEndian.Uint32(from[8:])
	m.Figures = make([]Figure, from[12])
	if _, err := binary.Decode(from[modelBytes:], binary.LittleEndian, m.Figures); err != nil {
		return err
	}
	for i := range m.Figures {
		if m.Figures[i].Kind > Yes {
			return errors.New("the state of a model has a figure of an unknown kind")
		}
	}
	return nil
}

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

// Budget turns a number of false alarms a day over the whole fleet into the e-value that an alarm needs. A look
// without a change reaches the e-value A with a probability of at most 1/A, so if a day has L looks and A is
// L divided by the budget, the expected number of false alarms a day is at most the budget.
//
// The clock is that of the answers, not of this process, so a day of answers that is read in a minute has the budget
// of a day.
type Budget struct {
	Begun time.Time `json:"begun"`
	At    time.Time `json:"at"`
	Looks float64   `json:"looks"` // looks of the past, with a weight that falls by e each day
}

// fewestLooks bounds the threshold from below while the first looks say little about the rate of looks.
const fewestLooks = 20_000

// Threshold counts a look and returns the e-value that an alarm needs.
func (b *Budget) Threshold(at time.Time, falseAlarmsADay float64) float64 {
	const day = float64(24 * time.Hour)
	if b.Begun.IsZero() {
		b.Begun, b.At = at, at
	}
	if past := at.Sub(b.At); past > 0 {
		b.Looks *= math.Exp(-float64(past) / day)
		b.At = at
	}
	b.Looks++
	return b.Needed(falseAlarmsADay)
}

// Needed returns the e-value that an alarm needs now.
func (b *Budget) Needed(falseAlarmsADay float64) float64 {
	const day = float64(24 * time.Hour)
	age := max(b.At.Sub(b.Begun), time.Hour)
	perDay := b.Looks / -math.Expm1(-float64(age)/day)
	return max(perDay, fewestLooks) / falseAlarmsADay
}
