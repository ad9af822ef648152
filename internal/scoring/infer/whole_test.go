package infer

import (
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// A model may support one row and not two, so an answer for several rows is checked before it
// is read.
func TestAnAnswerHasAllRows(t *testing.T) {
	two := tensor.Tensor{Type: tensor.Float, Shape: []int{2, 2}, Floats: []float32{1, 2, 3, 4}}
	flat := tensor.Tensor{Type: tensor.Float, Shape: []int{1, 4}, Floats: []float32{1, 2, 3, 4}}
	for _, c := range []struct {
		r     reading
		out   []tensor.Tensor
		rows  int
		whole bool
	}{
		{reading{label: -1, scores: 0, values: -1}, []tensor.Tensor{two}, 2, true},
		{reading{label: -1, scores: 0, values: -1}, []tensor.Tensor{flat}, 2, false},
		{reading{label: -1, scores: 0, values: -1}, []tensor.Tensor{flat}, 1, true},
		{reading{label: -1, scores: -1, values: 0}, []tensor.Tensor{flat}, 2, false},
		{reading{label: 0, scores: 1, values: -1}, []tensor.Tensor{texts("a", "b"), two}, 2, true},
		{reading{label: 0, scores: 1, values: -1}, []tensor.Tensor{texts("a"), two}, 2, false},
	} {
		err := c.r.checkRows(c.out, c.rows)
		if (err == nil) != c.whole {
			t.Errorf("%+v of %d rows: %v", c.r, c.rows, err)
		}
		for row := 0; err == nil && row < c.rows; row++ {
			c.r.answerAt(c.out, row)
		}
	}
}
