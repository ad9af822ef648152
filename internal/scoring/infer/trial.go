package infer

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"tidemill.dev/internal/scoring/infer/sandbox"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// trialRows is the number of generated rows that a model is asked.
const trialRows = 8

// Try asks the model generated rows, one at a time, and returns the number of answers. A model may
// refuse a generated row, such as one whose number is outside a table. The error is ErrUnfit if
// it answers rows, but every answer has a number that is not finite, and ErrAway if ONNX Runtime's
// process was lost because of other models. The size of a row may be unknown; then nothing is asked.
func (m *Model) Try() (answered int, err error) {
	finite := false
	for row := range trialRows {
		in, ok := generated(m.held.inputs, row)
		if !ok {
			return 0, nil
		}
		out, err := m.held.attempt(in, 1)
		if errors.Is(err, ErrAway) && !errors.Is(err, sandbox.ErrAtFault) {
			return answered, err
		}
		if err != nil {
			continue
		}
		answered++
		if _, found := notFinite(m.held.answerAt(out, 0)); !found {
			finite = true
		}
	}
	if answered > 0 && !finite {
		return answered, fmt.Errorf("%w: its answers to %d rows of generated inputs all have NaN or infinite numbers", ErrUnfit, answered)
	}
	return answered, nil
}

// notFinite returns a number of an answer that is NaN or infinite, if there is one.
func notFinite(a Answer) (v float32, found bool) {
	for _, numbers := range [][]float32{a.Scores, a.Values} {
		for _, v := range numbers {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return v, true
			}
		}
	}
	return 0, false
}

// generated makes one row of inputs. Row 0 has zeros, row 1 has ones, and the others have numbers
// that look random and are the same at every call.
func generated(specs []tensor.Spec, row int) ([]tensor.Tensor, bool) {
	in, ok := zeros(specs)
	if !ok || row == 0 {
		return in, ok
	}
	for i := range in {
		t := &in[i]
		for n := range t.Floats {
			t.Floats[n] = float32(sample(row, n))
		}
		for n := range t.Doubles {
			t.Doubles[n] = sample(row, n)
		}
		for n := range t.Ints {
			t.Ints[n] = int64(row % 2)
		}
		for n := range t.Strings {
			t.Strings[n] = "text " + strconv.Itoa(row)
		}
	}
	return in, true
}

// sample returns a number from -2 to 2.
func sample(row, n int) float64 {
	if row == 1 {
		return 1
	}
	return float64(mix(uint64(row)<<32|uint64(n))>>11)/(1<<51) - 2
}
