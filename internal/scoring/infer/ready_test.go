package infer

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

func spec(name string, of tensor.Type, shape ...int) tensor.Spec {
	return tensor.Spec{Name: name, Type: of, Shape: shape}
}

func floats(v ...float32) tensor.Tensor {
	return tensor.Tensor{Type: tensor.Float, Shape: []int{1, len(v)}, Floats: v}
}

func texts(v ...string) tensor.Tensor {
	return tensor.Tensor{Type: tensor.String, Shape: []int{len(v)}, Strings: v}
}

func ints(v ...int64) tensor.Tensor {
	return tensor.Tensor{Type: tensor.Int64, Shape: []int{len(v)}, Ints: v}
}

type specs = []tensor.Spec

var (
	x      = specs{spec("x", tensor.Float, -1, 2)}
	scores = spec("scores", tensor.Float, -1, 2)
	other  = spec("other", tensor.Float, -1, 3)
	label  = spec("label", tensor.String, -1)
	class  = spec("class", tensor.Int64, -1, 1)
	open   = spec("open", tensor.Float, -1, -1)
)

// The outputs, the metadata and the card of a model determine its answers.
func TestAnswers(t *testing.T) {
	ab := []string{"a", "b"}
	for name, c := range map[string]struct {
		outputs specs
		out     []tensor.Tensor
		card    string
		meta    map[string]string
		want    Answer
	}{
		"labels of the card":       {specs{scores}, []tensor.Tensor{floats(.2, .8)}, "labels: [a, b]", nil, Answer{"b", ab, []float32{.2, .8}, nil}},
		"labels of the metadata":   {specs{scores}, []tensor.Tensor{floats(.9, .1)}, "", map[string]string{"intents": "a, b"}, Answer{"a", ab, []float32{.9, .1}, nil}},
		"labels as a JSON list":    {specs{scores}, []tensor.Tensor{floats(.9, .1)}, "", map[string]string{"labels": `["a, b", "c"]`}, Answer{"a, b", []string{"a, b", "c"}, []float32{.9, .1}, nil}},
		"the card before the file": {specs{scores}, []tensor.Tensor{floats(.9, .1)}, "labels: [a, b]", map[string]string{"labels": "c,d"}, Answer{"a", ab, []float32{.9, .1}, nil}},
		"as many as labels":        {specs{other, scores}, []tensor.Tensor{floats(1, 2, 3), floats(.9, .1)}, "labels: [a, b]", nil, Answer{"a", ab, []float32{.9, .1}, nil}},
		"the output of the card":   {specs{open, scores}, []tensor.Tensor{floats(0, 1), floats(.9, .1)}, "labels: [a, b]\noutput: open", nil, Answer{"b", ab, []float32{0, 1}, nil}},
		"an open size":             {specs{open}, []tensor.Tensor{floats(0, 1)}, "labels: [a, b]", nil, Answer{"b", ab, []float32{0, 1}, nil}},
		"sklearn, texts":           {specs{label, scores}, []tensor.Tensor{texts("yes"), floats(.9, .1)}, "", nil, Answer{"yes", nil, []float32{.9, .1}, nil}},
		"sklearn, numbers":         {specs{class, scores}, []tensor.Tensor{ints(7), floats(.9, .1)}, "", nil, Answer{"7", nil, []float32{.9, .1}, nil}},
		"a chosen label, by name":  {specs{class, scores}, []tensor.Tensor{ints(1), floats(.9, .1)}, "labels: [a, b]", nil, Answer{"a", ab, []float32{.9, .1}, nil}},
		"a label by its output":    {specs{scores, label}, []tensor.Tensor{floats(.9, .1), texts("no")}, "labels: {output: label}", map[string]string{"labels": "a,b"}, Answer{"no", ab, []float32{.9, .1}, nil}},
		"a number by its output":   {specs{scores, class}, []tensor.Tensor{floats(.9, .1), ints(1)}, "labels: {output: class}", map[string]string{"labels": "a,b"}, Answer{"b", ab, []float32{.9, .1}, nil}},
		"labels alone":             {specs{label}, []tensor.Tensor{texts("no")}, "", nil, Answer{Label: "no"}},
		"numbers":                  {specs{scores}, []tensor.Tensor{floats(3, 4)}, "", nil, Answer{Values: []float32{3, 4}}},
		"numbers by name":          {specs{other, scores}, []tensor.Tensor{floats(1, 2, 3), floats(3, 4)}, "output: scores", nil, Answer{Values: []float32{3, 4}}},
		"what is no number":        {specs{scores}, []tensor.Tensor{floats(float32(math.NaN()), .1)}, "", map[string]string{"labels": "a,b"}, Answer{"b", ab, []float32{0, .1}, nil}},
		"only what is no number":   {specs{scores}, []tensor.Tensor{floats(float32(math.NaN()), float32(math.NaN()))}, "", map[string]string{"labels": "a,b"}, Answer{"", ab, []float32{0, .1}, nil}},
	} {
		m, err := try(&toy{inputs: x, outputs: c.outputs, answers: c.out, meta: c.meta}, c.card)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := m.answerAt(c.out, 0)
		if len(got.Scores) > 0 && got.Scores[0] != got.Scores[0] {
			got.Scores = []float32{0, .1} // NaN is equal to nothing
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, not %+v", name, got, c.want)
		}
	}
}

func try(p *toy, text string) (*loaded, error) {
	c, err := readCard([]byte(text))
	if err != nil {
		return nil, err
	}
	return ready(p, "toy", c)
}

// A model keeps its first answers to the golden request. Without that request it keeps none.
func TestGoldenAnswersAreKept(t *testing.T) {
	rows := tensor.Tensor{Type: tensor.Float, Shape: []int{4, 2}, Floats: []float32{.9, .1, .8, .2, .7, .3, .6, .4}}
	for text, want := range map[string][]Answer{
		"labels: [a, b]": nil,
		"labels: [a, b]\ngolden: {inputs: {x: [[1, 2], [1, 2], [1, 2], [1, 2]]}, label: a}": {
			{"a", []string{"a", "b"}, []float32{.9, .1}, nil}, {"a", []string{"a", "b"}, []float32{.8, .2}, nil}, {"a", []string{"a", "b"}, []float32{.7, .3}, nil}},
	} {
		answers := rows
		if want == nil {
			answers = floats(.9, .1)
		}
		m, err := try(&toy{inputs: x, outputs: specs{scores}, answers: []tensor.Tensor{answers}}, text)
		if err != nil || !reflect.DeepEqual(m.golden, want) {
			t.Errorf("%s: %+v, %v", text, m, err)
		}
	}
}

func TestAnswersByRow(t *testing.T) {
	m, err := try(&toy{inputs: x, outputs: specs{label, scores}, answers: []tensor.Tensor{texts("a"), floats(0, 1)}}, "")
	if err != nil {
		t.Fatal(err)
	}
	out := []tensor.Tensor{texts("a", "b", "c"), {Type: tensor.Float, Shape: []int{3, 2}, Floats: []float32{1, 2, 3, 4, 5, 6}}}
	for row, want := range []Answer{{"a", nil, []float32{1, 2}, nil}, {"b", nil, []float32{3, 4}, nil}, {"c", nil, []float32{5, 6}, nil}} {
		if got := m.answerAt(out, row); !reflect.DeepEqual(got, want) {
			t.Errorf("row %d: %+v", row, got)
		}
	}
}

func TestModelsThatAreUnfit(t *testing.T) {
	good := []tensor.Tensor{floats(.9, .1)}
	inf := []tensor.Tensor{floats(float32(math.Inf(1)), 0)}
	golden := "golden: {inputs: {x: [[1, 2]]}, label: a}\n"
	for name, c := range map[string]struct {
		p    *toy
		card string
		want string
	}{
		"no such input":      {&toy{inputs: x, outputs: specs{scores}, answers: good}, "input: text", `no input "text"; it has "x"`},
		"no such output":     {&toy{inputs: x, outputs: specs{scores}, answers: good}, "output: p", `output "p" must be an output of 32-bit floating-point numbers; the model has "scores"`},
		"no label output":    {&toy{inputs: x, outputs: specs{scores}, answers: good}, "labels: {output: scores}", "must be an output of texts or whole numbers"},
		"too many labels":    {&toy{inputs: x, outputs: specs{scores}, answers: good}, "labels: [a, b, c]\noutput: scores", "3 labels, and its output \"scores\" has 2 numbers"},
		"labels for nothing": {&toy{inputs: x, outputs: specs{scores}, answers: good}, "labels: [a, b, c]", "no output of as many"},
		"open, and fewer":    {&toy{inputs: x, outputs: specs{open}, answers: good}, "labels: [a, b, c]", "2 numbers, and has 3 labels"},
		"nothing to read":    {&toy{inputs: x, outputs: specs{spec("d", tensor.Double, -1, 2)}}, "", "no output of 32-bit"},
		"too large":          {&toy{inputs: x, outputs: specs{scores}, answers: good, bytes: 1025}, "limits: {bytes: 1KiB}", "1025 bytes of memory, and model.yaml allows limits.bytes 1024"},
		"for eight rows":     {&toy{inputs: specs{spec("x", tensor.Float, 8, 2)}, outputs: specs{scores}}, "", "for 8 rows and no other number"},
		"fails over zeros":   {&toy{inputs: x, outputs: specs{scores}, err: errors.New("bang")}, "", "does not answer the trial request: bang"},
		"fails over golden":  {&toy{inputs: x, outputs: specs{scores}, err: errors.New("bang")}, golden, "does not answer the trial request: bang"},
		"another label":      {&toy{inputs: x, outputs: specs{scores}, answers: []tensor.Tensor{floats(0, 1)}}, "labels: [a, b]\n" + golden, `row 1, with "b", and model.yaml, line 2, wants "a"`},
		"no number":          {&toy{inputs: x, outputs: specs{scores}, answers: inf}, golden, "row 1, has +Inf"},
		"golden, no input":   {&toy{inputs: specs{x[0], spec("y", tensor.Float, -1)}, outputs: specs{scores}, answers: good}, golden, `line 1: golden.inputs lacks the input "y"`},
		"golden, unknown":    {&toy{inputs: x, outputs: specs{scores}, answers: good}, "golden: {inputs: {x: [[1, 2]], z: [1]}}", "golden.inputs.z: the model has no such input"},
		"golden, too wide":   {&toy{inputs: x, outputs: specs{scores}, answers: good}, "golden: {inputs: {x: [[1, 2, 3]]}}", "a row has 3 values, and the model wants ?×2"},
		"golden, flat":       {&toy{inputs: x, outputs: specs{scores}, answers: good}, "golden: {inputs: {x: [1, 2]}}", "a row has 1 values, and the model wants ?×2"},
		"golden, uneven":     {&toy{inputs: x, outputs: specs{scores}, answers: good}, "golden: {inputs: {x: [[1, 2], [3]]}}", "this row has 1 values and the first has 2"},
		"golden, a text":     {&toy{inputs: x, outputs: specs{scores}, answers: good}, "golden: {inputs: {x: [[a, 2]]}}", `line 1: golden.inputs: "a" is not a value of the input's type`},
		"golden, rows":       {&toy{inputs: x, outputs: specs{scores}, answers: good}, "limits: {rows: 1}\ngolden: {inputs: {x: [[1, 2], [1, 2]]}}", "have 2 rows, and the model takes 1"},
		"golden, differing":  {&toy{inputs: specs{x[0], spec("y", tensor.Float, -1)}, outputs: specs{scores}, answers: good}, "golden: {inputs: {x: [[1, 2]], y: [1, 2]}}", "golden.inputs.y has 2 rows, and x has 1"},
	} {
		p := c.p
		if _, err := try(p, c.card); err == nil || !unfit(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		} else if !p.closed.Load() {
			t.Errorf("%s: the program was left", name)
		}
	}
}

// A panic of an engine over one model does not affect other models.
func TestAnEngineThatPanicsIsAnError(t *testing.T) {
	p := &panicking{toy{inputs: x, outputs: specs{scores}}}
	if _, err := ready(p, "toy", &card{}); !unfit(err) || !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("%v", err)
	}
}

type panicking struct{ toy }

func (p *panicking) Run(in, _ []tensor.Tensor) error { return [1]error{}[len(in)+6] }

func TestGoldenInputsOfEachType(t *testing.T) {
	in := specs{spec("t", tensor.String, -1), spec("u", tensor.String, -1, 1), spec("d", tensor.Double, -1, -1), spec("i", tensor.Int64, -1, 2, 2),
		spec("j", tensor.Int32, -1), spec("b", tensor.Bool, -1), spec("f", tensor.Float, -1, -1)}
	c, err := readCard([]byte(`golden: {inputs: {t: [hi, "2"], u: [[3], no], d: [[1.5, 2, 3], [4, 5, 6e3]], i: [[[1, 2], [3, 4]], [5, 6, 7, 8]], j: [-1, 2], b: [true, false], f: [1, 2]}}`))
	if err != nil {
		t.Fatal(err)
	}
	got, rows, err := c.golden.tensors(in)
	if err != nil || rows != 2 {
		t.Fatal(rows, err)
	}
	want := []tensor.Tensor{
		{Type: tensor.String, Shape: []int{2}, Strings: []string{"hi", "2"}},
		{Type: tensor.String, Shape: []int{2, 1}, Strings: []string{"3", "no"}},
		{Type: tensor.Double, Shape: []int{2, 3}, Doubles: []float64{1.5, 2, 3, 4, 5, 6000}},
		{Type: tensor.Int64, Shape: []int{2, 2, 2}, Ints: []int64{1, 2, 3, 4, 5, 6, 7, 8}},
		{Type: tensor.Int32, Shape: []int{2}, Ints: []int64{-1, 2}},
		{Type: tensor.Bool, Shape: []int{2}, Ints: []int64{1, 0}},
		{Type: tensor.Float, Shape: []int{2, 1}, Floats: []float32{1, 2}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestHowManyRowsAModelTakes(t *testing.T) {
	out := []tensor.Tensor{floats(.9, .1)}
	for name, c := range map[string]struct {
		in   specs
		card string
		want int
	}{
		"as one likes":  {x, "", 0},
		"by its card":   {x, "limits: {rows: 7}", 7},
		"one by itself": {specs{spec("x", tensor.Float, 1, 2)}, "limits: {rows: 7}", 1},
		"no rows":       {specs{spec("x", tensor.Float)}, "", 1},
	} {
		m, err := try(&toy{inputs: c.in, outputs: specs{scores}, answers: out}, c.card)
		if err != nil || m.rows != c.want {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}
