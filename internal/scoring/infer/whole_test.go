package infer

import (
	"errors"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// A model may support one row and not two, so an answer for several rows is checked before it
// is read.
func TestAnAnswerHasAllRows(t *testing.T) {
	two := tensor.Tensor{Type: tensor.Float, Shape: []int{2, 2}, Floats: []float32{1, 2, 3, 4}}
	flat := tensor.Tensor{Type: tensor.Float, Shape: []int{1, 4}, Floats: []float32{1, 2, 3, 4}}
	list := tensor.Tensor{Type: tensor.Float, Shape: []int{3}, Floats: []float32{1, 2, 3}}
	none := tensor.Tensor{Type: tensor.Float, Shape: []int{1, 0}}
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
		{reading{label: -1, scores: -1, values: 0}, []tensor.Tensor{list}, 1, false},
		{reading{label: -1, scores: -1, values: 0, single: true}, []tensor.Tensor{list}, 1, true},
		{reading{label: -1, scores: 0, values: -1, labels: []string{"a", "b"}}, []tensor.Tensor{none}, 1, false},
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

// A model for one row may leave the row out of its output's shape. Its answer has all numbers. A model for any number of rows that
// answers so is refused, because its first number would be taken for the answer.
func TestAnOutputWithoutRows(t *testing.T) {
	list := tensor.Tensor{Type: tensor.Float, Shape: []int{3}, Floats: []float32{1, 2, 3}}
	for rows, want := range map[int]string{1: "", tensor.Any: "it answers 1 rows with an output of shape [3]"} {
		p := &toy{inputs: specs{spec("x", tensor.Float, rows, 2)}, outputs: specs{spec("y", tensor.Float, 3)}, answers: []tensor.Tensor{list}}
		m, err := ready(p, EngineGo, &card{})
		switch {
		case want != "":
			if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), want) {
				t.Errorf("it is loaded with %v", err)
			}
		case err != nil:
			t.Error(err)
		default:
			if a := m.answerAt(p.answers, 0); len(a.Values) != 3 {
				t.Errorf("the answer has %v of 3 numbers", a.Values)
			}
		}
	}
}
