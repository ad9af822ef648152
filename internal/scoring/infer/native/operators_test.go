package native

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

var nan = float32(math.NaN())

func bools(shape []int, v ...int64) *tensor.Tensor {
	return &tensor.Tensor{Type: tensor.Bool, Shape: shape, Ints: v}
}

func wholes(shape []int, v ...int64) *tensor.Tensor {
	return &tensor.Tensor{Type: tensor.Int64, Shape: shape, Ints: v}
}

func words(shape []int, v ...string) *tensor.Tensor {
	return &tensor.Tensor{Type: tensor.String, Shape: shape, Strings: v}
}

func row(v ...float32) *tensor.Tensor { return floats([]int{1, len(v)}, v...) }

// operatorCase is a node with its answer. The operator is written as domain.Name.
type operatorCase struct {
	op   string
	in   []*tensor.Tensor
	set  attributes
	want *tensor.Tensor
}

func operatorCases() []operatorCase {
	table, inf := floats([]int{2, 3}, 1, -2, 3, 0, 5, -6), float32(math.Inf(1))
	return []operatorCase{
		{"Gemm", tensors(row(1, 2), floats([]int{2, 1}, 3, 4), floats([]int{1}, float32(math.NaN()))), attributes{"beta": float32(0)}, row(11)},
		{"Abs", tensors(table), nil, floats([]int{2, 3}, 1, 2, 3, 0, 5, 6)},
		{"Sign", tensors(wholes([]int{3}, -4, 0, 9)), nil, wholes([]int{3}, -1, 0, 1)},
		{"Round", tensors(row(0.5, 1.5, -2.5)), nil, row(0, 2, -2)},
		{"Reciprocal", tensors(row(4)), nil, row(0.25)},
		{"Softplus", tensors(row(0, 100)), nil, row(0.6931472, 100)},
		{"Exp", tensors(row(1)), nil, row(2.7182817)},
		{"Erf", tensors(row(0.5)), nil, row(0.5204999)},
		{"IsNaN", tensors(row(1, nan)), nil, bools([]int{1, 2}, 0, 1)},
		{"IsInf", tensors(row(float32(math.Inf(1)), float32(math.Inf(-1)))), attributes{"detect_negative": 0}, bools([]int{1, 2}, 1, 0)},
		{"Not", tensors(bools([]int{2}, 0, 1)), nil, bools([]int{2}, 1, 0)},
		{"And", tensors(bools([]int{2}, 0, 1), bools([]int{1}, 1)), nil, bools([]int{2}, 0, 1)},
		{"Or", tensors(bools([]int{2}, 0, 1), bools([]int{1}, 0)), nil, bools([]int{2}, 0, 1)},
		{"Xor", tensors(bools([]int{2}, 0, 1), bools([]int{1}, 1)), nil, bools([]int{2}, 1, 0)},
		{"Max", tensors(row(1, 5), row(3, 2), floats([]int{}, 2)), nil, row(3, 5)},
		{"Min", tensors(row(1, 5), row(3, nan)), nil, row(1, nan)},
		{"Sum", tensors(row(1, 5), row(3, 2), row(10, 10)), nil, row(14, 17)},
		{"Pow", tensors(row(2, 3), integers(2)), nil, row(4, 9)},
		{"Equal", tensors(words([]int{2, 1}, "a", "b"), words([]int{2}, "a", "c")), nil, bools([]int{2, 2}, 1, 0, 0, 0)},
		{"Greater", tensors(row(1, nan, 3), row(0, 0, 3)), nil, bools([]int{1, 3}, 1, 0, 0)},
		{"GreaterOrEqual", tensors(row(1, nan, 3), row(0, 0, 3)), nil, bools([]int{1, 3}, 1, 0, 1)},
		{"Less", tensors(row(1, nan, 3), row(2, 0, 3)), nil, bools([]int{1, 3}, 1, 0, 0)},
		{"LessOrEqual", tensors(row(1, nan, 3), row(2, 0, 3)), nil, bools([]int{1, 3}, 1, 0, 1)},
		{"Where", tensors(bools([]int{2, 1}, 1, 0), row(1, 2, 3), floats([]int{}, 9)), nil, floats([]int{2, 3}, 1, 2, 3, 9, 9, 9)},
		{"Clip", tensors(row(-3, 1, 8), floats([]int{}, -1), floats([]int{}, 5)), nil, row(-1, 1, 5)},
		{"ReduceSum", tensors(table, integers(1)), attributes{"keepdims": 0}, floats([]int{2}, 2, -1)},
		{"ReduceSum", tensors(table), attributes{"noop_with_empty_axes": 1}, table},
		{"ReduceMean", tensors(table, integers(-1)), nil, floats([]int{2, 1}, 2./3, -1./3)},
		{"ReduceMax", tensors(table, integers(0)), attributes{"keepdims": 0}, floats([]int{3}, 1, 5, 3)},
		{"ReduceMin", tensors(table), attributes{"keepdims": 0}, floats([]int{}, -6)},
		{"ReduceProd", tensors(wholes([]int{2, 2}, 2, 3, 4, 5), integers(0)), nil, wholes([]int{1, 2}, 8, 15)},
		{"ReduceL1", tensors(table, integers(1)), nil, floats([]int{2, 1}, 6, 11)},
		{"ReduceL2", tensors(row(3, 4), integers(1)), nil, floats([]int{1, 1}, 5)},
		{"ReduceSumSquare", tensors(table), attributes{"noop_with_empty_axes": 1}, floats([]int{2, 3}, 1, 4, 9, 0, 25, 36)},
		{"ReduceL1", tensors(table), attributes{"noop_with_empty_axes": 1}, floats([]int{2, 3}, 1, 2, 3, 0, 5, 6)},
		{"ReduceL2", tensors(table), attributes{"noop_with_empty_axes": 1}, floats([]int{2, 3}, 1, 2, 3, 0, 5, 6)},
		{"ReduceLogSum", tensors(row(1, math.E)), attributes{"noop_with_empty_axes": 1}, row(0, 1)},
		{"ReduceLogSumExp", tensors(table), attributes{"noop_with_empty_axes": 1}, table},
		{"ReduceSumSquare", tensors(table, integers(1)), nil, floats([]int{2, 1}, 14, 61)},
		{"ReduceLogSum", tensors(row(1, 2), integers(1)), nil, floats([]int{1, 1}, 1.0986123)},
		{"ReduceLogSumExp", tensors(row(1000, 1000), integers(1)), nil, floats([]int{1, 1}, 1000.6931)},
		{"ArgMin", tensors(table), attributes{"axis": 1, "keepdims": 0}, integers(1, 2)},
		{"CumSum", tensors(table, integers(1)), nil, floats([]int{2, 3}, 1, -1, 2, 0, 5, -1)},
		{"CumSum", tensors(row(1, 2, 3), integers(1)), attributes{"exclusive": 1, "reverse": 1}, row(5, 3, 0)},
		{"CumSum", tensors(row(1, 1e8, 2, inf, 1), integers(1)), attributes{"exclusive": 1}, row(0, 1, 1e8, 1e8, inf)},
		{"TopK", tensors(floats([]int{1, 5}, 2, 9, 9, 1, 4), integers(3)), nil, row(9, 9, 4)},
		{"TopK", tensors(floats([]int{1, 5}, 2, 9, 9, 1, 4), integers(2)), attributes{"largest": 0}, row(1, 2)},
		{"LpNormalization", tensors(floats([]int{2, 2}, 1, 3, 0, 0)), attributes{"p": 1}, floats([]int{2, 2}, .25, .75, 0, 0)},
		{"Transpose", tensors(table), nil, floats([]int{3, 2}, 1, 0, -2, 5, 3, -6)},
		{"Transpose", tensors(floats([]int{1, 2, 3}, 1, 2, 3, 4, 5, 6)), attributes{"perm": []int{2, 0, 1}}, floats([]int{3, 1, 2}, 1, 4, 2, 5, 3, 6)},
		{"Expand", tensors(floats([]int{2, 1}, 1, 2), integers(3, 1, 2)), nil, floats([]int{3, 2, 2}, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2)},
		{"Tile", tensors(row(1, 2), integers(2, 2)), nil, floats([]int{2, 4}, 1, 2, 1, 2, 1, 2, 1, 2)},
		{"Slice", tensors(table, integers(1), integers(math.MaxInt64), integers(1)), nil, floats([]int{2, 2}, -2, 3, 5, -6)},
		{"Slice", tensors(table, integers(-1), integers(math.MinInt64), integers(1), integers(-2)), nil, floats([]int{2, 2}, 3, 1, -6, 0)},
		{"Squeeze", tensors(floats([]int{1, 2, 1}, 1, 2), integers(0)), nil, floats([]int{2, 1}, 1, 2)},
		{"Unsqueeze", tensors(floats([]int{2}, 1, 2), integers(-1, 0)), nil, floats([]int{1, 2, 1}, 1, 2)},
		{"Gather", tensors(table, integers(-1, 0)), attributes{"axis": 1}, floats([]int{2, 2}, 3, 1, -6, 0)},
		{"GatherElements", tensors(table, wholes([]int{2, 1}, 2, 0)), attributes{"axis": 1}, floats([]int{2, 1}, 3, 0)},
		{"Shape", tensors(table), nil, integers(2, 3)},
		{"ConstantOfShape", tensors(integers(2, 1)), attributes{"value": wholes([]int{1}, 7)}, wholes([]int{2, 1}, 7, 7)},

		{ml + ".Imputer", tensors(row(1, nan)), attributes{"imputed_value_floats": []float32{5, 6}, "replaced_value_float": nan}, row(1, 6)},
		{ml + ".Imputer", tensors(wholes([]int{1, 2}, 0, 3)), attributes{"imputed_value_int64s": []int{9}}, wholes([]int{1, 2}, 9, 3)},
		{ml + ".Binarizer", tensors(row(1, 2, 3)), attributes{"threshold": float32(2)}, row(0, 0, 1)},
		{ml + ".OneHotEncoder", tensors(words([]int{2}, "b", "?")), attributes{"cats_strings": []string{"a", "b"}}, floats([]int{2, 2}, 0, 1, 0, 0)},
		{ml + ".OneHotEncoder", tensors(row(4, 1.5)), attributes{"cats_int64s": []int{1, 4}}, floats([]int{1, 2, 2}, 0, 1, 1, 0)},
		{ml + ".LabelEncoder", tensors(words([]int{3}, "b", "a", "?")), attributes{"keys_strings": []string{"a", "b"}, "values_int64s": []int{5, 6}}, integers(6, 5, -1)},
		{ml + ".LabelEncoder", tensors(row(nan, 2, 3)), attributes{"keys_floats": []float32{nan, 2}, "values_strings": []string{"none", "two"}, "default_string": "?"}, words([]int{1, 3}, "?", "two", "?")},
		{ml + ".CategoryMapper", tensors(integers(2, 7)), attributes{"cats_strings": []string{"a", "b"}, "cats_int64s": []int{1, 2}}, texts("b", "_Unused")},
		{ml + ".FeatureVectorizer", tensors(row(1, 2), row(3)), attributes{"inputdimensions": []int{2, 1}}, row(1, 2, 3)},
		{"com.microsoft.CDist", tensors(row(0, 0), floats([]int{2, 2}, 3, 4, 0, 1)), attributes{"metric": "euclidean"}, row(5, 1)},
		{"com.microsoft.Tokenizer", tensors(texts("a-bc  d", "", "x")), attributes{"tokenexp": "[a-z]+", "pad_value": "#", "mincharnum": 1, "mark": 0}, words([]int{3, 3}, "a", "bc", "d", "#", "#", "#", "x", "#", "#")},
		{"com.microsoft.Tokenizer", tensors(texts("aé")), attributes{"tokenexp": ".", "mark": 1, "mincharnum": 1, "pad_value": ""}, words([]int{1, 4}, "\x02", "a", "é", "\x03")},
		{"com.microsoft.Tokenizer", tensors(texts("", "--")), attributes{"tokenexp": "[a-z]*", "mark": 0, "mincharnum": 1, "pad_value": ""}, words([]int{2, 0})},
	}
}

// Each operator gives its answer.
func TestOperators(t *testing.T) {
	for _, c := range operatorCases() {
		t.Run(c.op, func(t *testing.T) {
			p := load(t, oneNode(c.op, c.in, c.set, c.want))
			out := newTensors(len(p.Outputs()))
			for range 2 { // the second run reuses the outputs
				if err := p.Run(c.tensors(), out); err != nil {
					t.Fatal(err)
				}
				wantTensor(t, "y", &out[0], c.want)
			}
			in, s := c.tensors(), new(state)
			if n := testing.AllocsPerRun(5, func() { _ = p.run(s, in, out) }); n != 0 && c.op != "com.microsoft.Tokenizer" {
				t.Errorf("a run allocates %v times", n)
			}
		})
	}
}

func (c *operatorCase) tensors() []tensor.Tensor {
	var in []tensor.Tensor
	for _, x := range c.in {
		in = append(in, *x)
	}
	return in
}

// operatorQuestions are the cases as models.
func operatorQuestions() []*question {
	all := []*question{{"distances", distanceScan("next_out"), []tensor.Tensor{*floats([]int{2, 2}, 0, 0, 1, 1)}, 1}}
	for _, c := range operatorCases() {
		all = append(all, &question{c.op, oneNode(c.op, c.in, c.set, c.want), c.tensors(), 1})
	}
	return all
}

func tensors(all ...*tensor.Tensor) []*tensor.Tensor { return all }

// oneNode returns a model of one node. Its inputs have open sizes.
func oneNode(op string, in []*tensor.Tensor, set attributes, want *tensor.Tensor) []byte {
	g := newGraph()
	domain := ""
	if i := strings.LastIndex(op, "."); i >= 0 {
		domain, op = op[:i], op[i+1:]
		g.opset[domain] = map[string]int{ml: 3, "com.microsoft": 1}[domain]
	}
	var names []string
	for i, x := range in {
		names = append(names, fmt.Sprint("x", i))
		g.input(names[i], x.Type, openShape(len(x.Shape))...)
	}
	outputs := []string{"y"}
	if op == "TopK" {
		outputs = append(outputs, "index")
	}
	g.node(domain, op, names, outputs, set)
	return g.output("y", want.Type, openShape(len(want.Shape))...).file()
}

// A classifier of libsvm with three classes: each pair has a sum, and the class with most votes wins.
func TestSupportVectors(t *testing.T) {
	set := attributes{
		"kernel_type": "LINEAR", "kernel_params": []float32{0, 0, 0}, "support_vectors": []float32{1, 0, 0, 1, -1, -1},
		"vectors_per_class": []int{1, 1, 1}, "coefficients": []float32{1, -1, -1, 1, 1, -1}, "rho": []float32{0, 0.5, 0},
		"classlabels_strings": []string{"right", "up", "down"},
	}
	graph := func() *graph {
		g := newGraph().input("x", tensor.Float, tensor.Any, 2).node(ml, "SVMClassifier", []string{"x"}, []string{"label", "y"}, set)
		return g.output("label", tensor.String, tensor.Any).output("y", tensor.Float, tensor.Any, 3)
	}
	x := floats([]int{3, 2}, 3, 0, 0, 3, -3, -3)
	out := runOnce(t, load(t, graph().file()), x)
	wantTensor(t, "label", &out[0], texts("right", "up", "down"))
	set["prob_a"], set["prob_b"] = []float32{-1, -1, -1}, []float32{0, 0, 0}
	out = runOnce(t, load(t, graph().file()), x)
	for i := range 3 {
		sum := out[1].Floats[3*i] + out[1].Floats[3*i+1] + out[1].Floats[3*i+2]
		if math.Abs(float64(sum)-1) > 1e-6 || out[1].Floats[4*i] < 0.5 {
			t.Errorf("event %d has the probabilities %v, and belongs to class %d", i, out[1].Floats[3*i:3*i+3], i)
		}
	}
}

// The body of a Scan is computed for each row. scikit-learn's neighbours are exported this way.
func TestScanOfDistances(t *testing.T) {
	out := runOnce(t, load(t, distanceScan("next_out")), floats([]int{2, 2}, 0, 0, 1, 1))
	wantTensor(t, "y", &out[0], floats([]int{2, 3}, 25, 0, 2, 13, 2, 0))
	p, in, s := load(t, distanceScan("next_out")), []tensor.Tensor{*floats([]int{2, 2}, 0, 0, 1, 1)}, new(state)
	if n := testing.AllocsPerRun(5, func() { _ = p.run(s, in, out) }); n != 0 {
		t.Errorf("a run allocates %v times", n)
	}
	if _, err := Load(distanceScan("changed")); err == nil || !strings.Contains(err.Error(), "with a state that changes is not supported") {
		t.Errorf("a state that changes: %v", err)
	}
}

func distanceScan(state string) []byte {
	body := newGraph()
	body.body.text(2, "body")
	body.node("", "Identity", []string{"next_in"}, []string{"next_out"}, nil).node("", "Neg", []string{"next_in"}, []string{"changed"}, nil)
	body.node("", "Sub", []string{"next_in", "next"}, []string{"apart"}, nil)
	body.node("", "ReduceSumSquare", []string{"apart"}, []string{"scan_out"}, attributes{"axes": []int{1}, "keepdims": 0})
	body.input("next_in", tensor.Float, tensor.Any, 2).input("next", tensor.Float, 2)
	body.output(state, tensor.Float, tensor.Any, 2).output("scan_out", tensor.Float, tensor.Any)
	g := newGraph().input("x", tensor.Float, tensor.Any, 2).weight("known", floats([]int{3, 2}, 3, 4, 0, 0, 1, 1))
	g.opset[""] = 15
	g.node("", "Scan", []string{"known", "x"}, []string{"same", "y"}, attributes{"body": body, "num_scan_inputs": 1})
	return g.output("y", tensor.Float, tensor.Any, tensor.Any).file()
}

// Attributes that contradict each other are refused before a run.
func TestAttributesThatContradict(t *testing.T) {
	number, text := row(1, 2), texts("a")
	svm := func(change string, to any) attributes {
		set := attributes{"kernel_type": "RBF", "kernel_params": []float32{1, 0, 0}, "support_vectors": []float32{1, 2, 3, 4}, "vectors_per_class": []int{1, 1},
			"coefficients": []float32{1, -1}, "rho": []float32{0}, "classlabels_ints": []int{0, 1}}
		set[change] = to
		return set
	}
	for _, c := range []struct {
		op   string
		in   *tensor.Tensor
		set  attributes
		says string
	}{
		{"SVMClassifier", number, svm("vectors_per_class", []int{1, -1}), "-1 support vectors"},
		{"SVMClassifier", number, svm("vectors_per_class", []int{math.MaxInt32, math.MaxInt32}), "are not those of"},
		{"SVMClassifier", number, svm("vectors_per_class", []int{2}), "1 numbers for 2 classes"},
		{"SVMClassifier", number, svm("coefficients", []float32{1}), "1 coefficients"},
		{"SVMClassifier", number, svm("rho", []float32{}), "0 rho"},
		{"SVMClassifier", number, svm("prob_a", []float32{1}), "1 prob_a and 0 prob_b"},
		{"SVMClassifier", number, svm("kernel_params", []float32{1}), "1 kernel_params"},
		{"SVMClassifier", number, svm("classlabels_ints", []int{1}), "its 1 classes"},
		{"SVMRegressor", number, attributes{"n_supports": 2, "support_vectors": []float32{1, 2, 3}}, "are not those of 2 support vectors"},
		{"SVMRegressor", number, attributes{"n_supports": 1, "support_vectors": []float32{1, 2}, "coefficients": []float32{1, 2}}, "2 coefficients and 0 rho"},
		{"LabelEncoder", text, attributes{"keys_strings": []string{"a"}, "values_int64s": []int{1, 2}}, "1 keys, 2 values"},
		{"LabelEncoder", number, attributes{"keys_strings": []string{"a"}, "values_int64s": []int{1}}, "for type float"},
		{"CategoryMapper", text, attributes{"cats_strings": []string{"a"}}, "1 keys, 0 values"},
		{"OneHotEncoder", text, attributes{"cats_strings": []string{"a", "a"}}, "listed twice"},
		{"OneHotEncoder", text, attributes{"cats_int64s": []int{1}}, "are of type int64, and its input of string"},
		{"OneHotEncoder", text, nil, "no values, or two each"},
		{"Imputer", number, attributes{"imputed_value_int64s": []int{1}}, "no value for type float"},
		{"FeatureVectorizer", number, attributes{"inputdimensions": []int{1, 1}}, "1 inputs and 2 inputdimensions"},
	} {
		_, err := Load(oneNode(ml+"."+c.op, tensors(c.in), c.set, c.in))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %v: it says %v, want %q", c.op, c.set, err, c.says)
		}
	}
}

// Sizes that do not fit together are an error of the run.
func TestSizesThatContradict(t *testing.T) {
	table := floats([]int{2, 2}, 1, 2, 3, 4)
	for _, c := range []struct {
		op   string
		in   []*tensor.Tensor
		set  attributes
		says string
	}{
		{"Where", tensors(bools([]int{3}, 1, 1, 1), table, table), nil, "do not go together"},
		{"TopK", tensors(table, integers(3)), nil, "it wants 3 of each row"},
		{"TopK", tensors(table, integers(1, 2)), nil, "not one number"},
		{"Gather", tensors(table, integers(2)), nil, "no element 2 of 2"},
		{"GatherElements", tensors(table, wholes([]int{3, 3}, 0, 0, 0, 0, 0, 0, 0, 0, 0)), nil, "not for a table"},
		{"Tile", tensors(table, integers(1<<30, 1<<30)), nil, "too large"},
		{"Expand", tensors(table, integers(1<<30, 1, 1)), nil, "too large"},
		{"ConstantOfShape", tensors(integers(1<<20, 1<<20)), nil, "too large"},
		{"ConstantOfShape", tensors(integers(-1)), nil, "cannot be of"},
		{"Slice", tensors(table, integers(0), integers(1), integers(0), integers(0)), nil, "every 0 elements"},
		{"Slice", tensors(table, integers(0), integers(1, 2)), nil, "1 starts, 2 ends"},
		{"Transpose", tensors(table), attributes{"perm": []int{0, 0}}, "not an order"},
		{"Squeeze", tensors(table, integers(0)), nil, "not of length 1"},
		{"Unsqueeze", tensors(table, integers(0, 0)), nil, "cannot add the axes"},
		{"ReduceSum", tensors(table, integers(5)), nil, "no axis 5"},
		{ml + ".Imputer", tensors(table), attributes{"imputed_value_floats": []float32{1, 2, 3}}, "for 3 features"},
		{ml + ".OneHotEncoder", tensors(texts("z")), attributes{"cats_strings": []string{"a"}, "zeros": 0}, "none of the categories"},
		{"com.microsoft.Tokenizer", tensors(texts(strings.Repeat("a", 1<<10))), attributes{"tokenexp": "[ab]*c|a"}, "more work than a run may do"},
		{"com.microsoft.Tokenizer", tensors(texts("\xff")), attributes{"tokenexp": "."}, "not valid UTF-8"},
	} {
		p := load(t, oneNode(c.op, c.in, c.set, c.in[0]))
		p.limits = limits{numbers: 1 << 20, products: 1 << 20}
		in := newTensors(len(c.in))
		for i, x := range c.in {
			in[i] = *x
		}
		if err := p.Run(in, newTensors(len(p.Outputs()))); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %v: it says %v, want %q", c.op, c.set, err, c.says)
		}
	}
}
