package oip

import (
	"reflect"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

var specs = []tensor.Spec{{Name: "x", Type: tensor.Float, Shape: []int{tensor.Any, 2}}, {Name: "text", Type: tensor.String, Shape: []int{tensor.Any, 1}}}

// A model with a limit for rows is run several times.
func TestRowsAreCutAndPutTogether(t *testing.T) {
	t.Parallel()
	whole := tensor.Tensor{Type: tensor.Float, Shape: []int{3, 2}, Floats: []float32{1, 2, 3, 4, 5, 6}}
	var back tensor.Tensor
	for _, c := range [][2]int{{0, 2}, {2, 3}} {
		some := sliceRows(&whole, c[0], c[1], 3)
		if err := add(&back, &some); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(back, whole) {
		t.Errorf("%+v", back)
	}
	if err := add(&back, &tensor.Tensor{Type: tensor.Float, Shape: []int{1, 3}, Floats: []float32{1, 2, 3}}); err == nil {
		t.Error("rows of another width are appended")
	}
}

func TestWantedOutputs(t *testing.T) {
	t.Parallel()
	names := func(c *Call) (all []string) {
		for s := range c.Outputs {
			all = append(all, s.Name)
		}
		return all
	}
	c := NewCall(nil, specs)
	if all := names(c); !reflect.DeepEqual(all, []string{"x", "text"}) {
		t.Errorf("without a request: %q", all)
	}
	if err := c.Want("text"); err != nil || !reflect.DeepEqual(names(c), []string{"text"}) {
		t.Errorf("%q, %v", names(c), err)
	}
	if err := c.Want("y"); CodeOf(err) != Invalid || !strings.Contains(err.Error(), `["x" "text"]`) {
		t.Errorf("%v", err)
	}
	if err := c.Want("text"); CodeOf(err) != Invalid || !strings.Contains(err.Error(), "twice") {
		t.Errorf("an answer may be larger than the model's by as much as one asks: %v", err)
	}
}

// An input that is a single value is used for all rows, in any position.
func TestAnInputThatHasNoRows(t *testing.T) {
	t.Parallel()
	one := tensor.Tensor{Type: tensor.Float, Floats: []float32{7}}
	rows := tensor.Tensor{Type: tensor.Float, Shape: []int{3, 1}, Floats: []float32{1, 2, 3}}
	for _, in := range [][]tensor.Tensor{{one, rows}, {rows, one}} {
		if n, err := rowsOf(in); n != 3 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got := sliceRows(&one, 1, 2, 3); !reflect.DeepEqual(got, one) {
		t.Errorf("%+v", got)
	}
}
