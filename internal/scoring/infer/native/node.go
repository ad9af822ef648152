package native

import (
	"fmt"
	"slices"
	"strings"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// node is an operator and its inputs.
type node struct {
	*onnx.Node
	at    int
	in    []*value
	opset int64
	wrong *error // destination for a problem with an attribute
}

func (c *compiler) node(i int) *node {
	n := &node{Node: &c.model.Nodes[i], at: i, wrong: &c.wrong}
	n.opset = c.model.Opsets[n.Domain]
	for _, name := range n.Inputs {
		n.in = append(n.in, c.values[name])
	}
	return n
}

// describe names the node in errors.
func (n *node) describe() string {
	op := n.Op
	if n.Domain != "" {
		op = n.Domain + "." + op
	}
	if n.Name == "" {
		return op
	}
	return fmt.Sprintf("%s %q", op, n.Name)
}

// wants fails if the node has too few or too many inputs.
func (n *node) wants(from, to int) error {
	if len(n.in) < from || len(n.in) > to || slices.Contains(n.in[:from], nil) {
		return fmt.Errorf("it has %d inputs, and needs %d", len(n.in), from)
	}
	return nil
}

// optional returns an input that may be absent.
func (n *node) optional(i int) *value {
	if i < len(n.in) {
		return n.in[i]
	}
	return nil
}

// checkKinds fails if an input is not of one of the given types.
func checkKinds(v *value, kinds ...tensor.Type) error {
	if !slices.Contains(kinds, v.kind) {
		return fmt.Errorf("for type %s %w", typeName(v.kind), onnx.ErrUnsupported)
	}
	return nil
}

// output declares an output. Unused outputs are declared too, so that steps need not check.
func (c *compiler) output(n *node, i int, kind tensor.Type, shape []int) *value {
	v := &value{kind: kind, shape: shape, ref: &ref{}}
	if i < len(n.Outputs) && n.Outputs[i] != "" {
		c.values[n.Outputs[i]] = v
	}
	return v
}

// eachElement adds a step whose output has the shape of the node's first input.
func (c *compiler) eachElement(n *node, kind tensor.Type, run func(s *state, in, out *tensor.Tensor) error) error {
	x := n.in[0]
	y := c.output(n, 0, kind, x.shape)
	from, to := x.ref, y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		in := s.get(from)
		out, err := s.prepare(to, kind, in.Shape...)
		if err != nil {
			return err
		}
		return run(s, in, out)
	})
	return nil
}

// changed is eachElement for operators that change a copy of the input.
func (c *compiler) changed(n *node, run func(s *state, out *tensor.Tensor) error) error {
	return c.eachElement(n, n.in[0].kind, func(s *state, in, out *tensor.Tensor) error {
		copyAll(out, in)
		return run(s, out)
	})
}

// isRead reports whether any node reads output i of n.
func (c *compiler) isRead(n *node, i int) bool {
	return i < len(n.Outputs) && n.Outputs[i] != "" && len(c.takers[n.Outputs[i]]) > 0
}

// declareSame declares the first output to be another value under a new name.
func (c *compiler) declareSame(n *node, v *value) { c.declare(n, 0, v) }

func (c *compiler) declare(n *node, i int, v *value) {
	if i < len(n.Outputs) && n.Outputs[i] != "" {
		c.values[n.Outputs[i]] = v
	}
}

// sole returns the only node that reads a node's first output; nil if there are more
// readers or the node has other outputs.
func (c *compiler) sole(n *node, ops ...string) *node {
	if len(n.Outputs) == 0 {
		return nil
	}
	for _, name := range n.Outputs[1:] {
		if len(c.takers[name]) > 0 && name != "" {
			return nil
		}
	}
	takers := c.takers[n.Outputs[0]]
	if len(takers) != 1 || takers[0] < 0 || c.done[takers[0]] {
		return nil
	}
	next := c.node(takers[0])
	if next.Domain != n.Domain || !slices.Contains(ops, next.Op) {
		return nil
	}
	return next
}

// attribute returns an attribute of a type. The oldest files have no types.
func (n *node) attribute(name string, kind int) (a onnx.Attribute, ok bool) {
	a, ok = n.Attributes[name]
	if ok && a.Type != kind && a.Type != 0 {
		*n.wrong = fmt.Errorf("%s: its attribute %s is of type %d, not %d", n.describe(), name, a.Type, kind)
	}
	return a, ok
}

func (n *node) integer(name string, otherwise int64) int64 {
	if a, ok := n.attribute(name, onnx.AttributeInt); ok {
		return a.Int
	}
	return otherwise
}

func (n *node) float(name string, otherwise float32) float32 {
	if a, ok := n.attribute(name, onnx.AttributeFloat); ok {
		return a.Float
	}
	return otherwise
}

func (n *node) text(name, otherwise string) string {
	if a, ok := n.attribute(name, onnx.AttributeText); ok {
		return a.Text
	}
	return otherwise
}

func (n *node) floats(name string) []float32 {
	a, _ := n.attribute(name, onnx.AttributeFloats)
	return a.Floats
}

func (n *node) ints(name string) []int64 {
	a, _ := n.attribute(name, onnx.AttributeInts)
	return a.Ints
}

func (n *node) texts(name string) []string {
	a, _ := n.attribute(name, onnx.AttributeTexts)
	return a.Texts
}

// operator is what the nodes of some operators have in common.
type operator struct {
	names       string                       // names of the operators, with spaces
	build       func(*compiler, *node) error // adds the step of a node
	least, most int                          // number of inputs
	kinds       []tensor.Type                // types of the first input; nil if build checks it, or takes all
}

const many = 1 << 16 // inputs

// standard returns the operators of ONNX itself.
func standard() []operator {
	return []operator{
		{"And Add Div Mul Or Sub Xor", (*compiler).pair, 2, 2, nil},
		{"ArgMax ArgMin", (*compiler).arg, 1, 1, numeric},
		{"Cast", (*compiler).cast, 1, 1, nil},
		{"Clip", (*compiler).clip, 1, 3, numeric},
		{"Concat", (*compiler).concat, 1, many, nil},
		{"Constant", (*compiler).constant, 0, many, nil},
		{"ConstantOfShape", (*compiler).constantOfShape, 1, 1, []tensor.Type{tensor.Int64}},
		{"CumSum", (*compiler).cumSum, 2, 2, numeric},
		{"Equal Greater GreaterOrEqual Less LessOrEqual", (*compiler).comparison, 2, 2, nil},
		{"Expand", (*compiler).expand, 2, 2, nil},
		{"Flatten", (*compiler).flatten, 1, 1, nil},
		{"Gather", (*compiler).gather, 2, 2, nil},
		{"GatherElements", (*compiler).gatherElements, 2, 2, nil},
		{"Gemm", (*compiler).gemm, 2, 3, numeric},
		{"Identity", (*compiler).identity, 1, 1, nil},
		{"IsInf IsNaN Not", (*compiler).test, 1, 1, nil},
		{"LpNormalization", (*compiler).lpNormalization, 1, 1, fractional},
		{"Max Min Sum", (*compiler).pair, 1, many, nil},
		{"MatMul", (*compiler).matMul, 2, 2, numeric},
		{"Pow", (*compiler).power, 2, 2, nil},
		{"Relu", (*compiler).activation, 1, 1, numeric},
		{"Reshape", (*compiler).reshape, 2, 2, nil},
		{"Scan", (*compiler).scan, 0, many, nil},
		{"Shape", (*compiler).shape, 1, 1, nil},
		{"Sigmoid Tanh", (*compiler).activation, 1, 1, fractional},
		{"Slice", (*compiler).slice, 1, 5, nil},
		{"Softmax", (*compiler).softmax, 1, 1, fractional},
		{"Squeeze", (*compiler).squeeze, 1, 2, nil},
		{"StringNormalizer", (*compiler).stringNormalizer, 1, 1, nil},
		{"StringSplit", (*compiler).stringSplit, 1, 1, nil},
		{"TfIdfVectorizer", (*compiler).tfIdf, 1, 1, []tensor.Type{tensor.String, tensor.Int32, tensor.Int64}},
		{"Tile", (*compiler).tile, 2, 2, nil},
		{"TopK", (*compiler).topK, 1, 2, nil},
		{"Transpose", (*compiler).transpose, 1, 1, nil},
		{"Unsqueeze", (*compiler).unsqueeze, 1, 2, nil},
		{"Where", (*compiler).where, 3, 3, []tensor.Type{tensor.Bool}},
		{"Abs Ceil Cos Erf Exp Floor Log Neg Reciprocal Round Sign Sin Softplus Sqrt", (*compiler).single, 1, 1, nil},
		{"ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare", (*compiler).reduce, 1, 2, nil},
	}
}

// traditional returns the operators of ai.onnx.ml.
func traditional() []operator {
	return []operator{
		{"ArrayFeatureExtractor", (*compiler).extract, 2, 2, nil},
		{"Binarizer", (*compiler).binarizer, 1, 1, numeric},
		{"CategoryMapper", (*compiler).categoryMapper, 1, 1, nil},
		{"FeatureVectorizer", (*compiler).featureVectorizer, 1, many, nil},
		{"Imputer", (*compiler).imputer, 1, 1, []tensor.Type{tensor.Float, tensor.Double, tensor.Int64}},
		{"LabelEncoder", (*compiler).labelEncoder, 1, 1, nil},
		{"LinearClassifier", (*compiler).linearClassifier, 1, 1, numeric},
		{"LinearRegressor", (*compiler).linearRegressor, 1, 1, numeric},
		{"Normalizer", (*compiler).normalizer, 1, 1, numeric},
		{"OneHotEncoder", (*compiler).oneHotEncoder, 1, 1, nil},
		{"SVMClassifier", (*compiler).svmClassifier, 1, 1, numeric},
		{"SVMRegressor", (*compiler).svmRegressor, 1, 1, numeric},
		{"Scaler", (*compiler).scaler, 1, 1, numeric},
		{"TreeEnsemble", (*compiler).treeEnsemble, 1, 1, fractional},
		{"TreeEnsembleClassifier", (*compiler).treeClassifier, 1, 1, numeric},
		{"TreeEnsembleRegressor", (*compiler).treeRegressor, 1, 1, numeric},
		{"ZipMap", (*compiler).zipMap, 1, 1, nil},
	}
}

// contributed returns the operators that only ONNX Runtime defines.
func contributed() []operator {
	return []operator{
		{"CDist", (*compiler).cDist, 2, 2, fractional},
		{"Tokenizer", (*compiler).tokenizer, 1, 1, []tensor.Type{tensor.String}},
	}
}

// find returns the operator of a node. It searches the lists, because a graph has few nodes, and a map of all
// operators would cost more than it saves.
func find(n *node) (operator, bool) {
	var all []operator
	switch n.Domain {
	case "":
		all = standard()
	case ml:
		all = traditional()
	case "com.microsoft":
		all = contributed()
	}
	for _, o := range all {
		for name := range strings.SplitSeq(o.names, " ") {
			if name == n.Op {
				return o, true
			}
		}
	}
	return operator{}, false
}

// add checks the inputs of a node and adds its step.
func (o *operator) add(c *compiler, n *node) error {
	if err := n.wants(o.least, o.most); err != nil {
		return err
	}
	if o.kinds != nil {
		if err := checkKinds(n.in[0], o.kinds...); err != nil {
			return err
		}
	}
	return o.build(c, n)
}

// constant needs no step.
func (c *compiler) constant(n *node) error {
	t := &tensor.Tensor{Shape: []int{}}
	if len(n.Attributes) != 1 {
		return fmt.Errorf("it has %d values, and needs one", len(n.Attributes))
	}
	for name, a := range n.Attributes {
		switch name {
		case "value":
			t = a.Tensor
		case "value_float":
			t.Type, t.Floats = tensor.Float, []float32{a.Float}
		case "value_floats":
			t.Type, t.Floats, t.Shape = tensor.Float, a.Floats, []int{len(a.Floats)}
		case "value_int":
			t.Type, t.Ints = tensor.Int64, []int64{a.Int}
		case "value_ints":
			t.Type, t.Ints, t.Shape = tensor.Int64, a.Ints, []int{len(a.Ints)}
		case "value_string":
			t.Type, t.Strings = tensor.String, []string{a.Text}
		case "value_strings":
			t.Type, t.Strings, t.Shape = tensor.String, a.Texts, []int{len(a.Texts)}
		default:
			t = nil
		}
		if t == nil {
			return fmt.Errorf("a constant given as %s %w", name, onnx.ErrUnsupported)
		}
	}
	c.declareSame(n, constantOf(t))
	return nil
}

func (c *compiler) identity(n *node) error {
	c.declareSame(n, n.in[0])
	return nil
}

// zipMap is left out. sklearn's exports end with it: it puts the name of the class next
// to each score, in a list of maps. This engine answers the scores, and the program's
// labels have the names.
func (c *compiler) zipMap(n *node) error {
	if len(n.Outputs) != 1 || !slices.Equal(c.takers[n.Outputs[0]], []int{-1}) {
		return fmt.Errorf("other than as an output of the model it %w: export with zipmap=False", onnx.ErrUnsupported)
	}
	c.declareSame(n, n.in[0])
	return nil
}

// copy adds a step that copies a value.
func (c *compiler) copy(what string, from, to *value) {
	x, y := from.ref, to.ref
	c.add(what, []*value{from}, []*value{to}, func(s *state) error {
		in := s.get(x)
		return s.move(in, y, in.Shape...)
	})
}

// move copies numbers to a value that may have another shape of the same size.
func (s *state) move(in *tensor.Tensor, to *ref, shape ...int) error {
	out, err := s.prepare(to, in.Type, shape...)
	if err != nil {
		return err
	}
	copyAll(out, in)
	return nil
}

func copyAll(out, in *tensor.Tensor) {
	copy(out.Floats, in.Floats)
	copy(out.Doubles, in.Doubles)
	copy(out.Ints, in.Ints)
	copy(out.Strings, in.Strings)
}
