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

// builder adds the step of an operator.
type builder func(*compiler, *node) error

// operator returns the builder of an operator; nil if it is not supported.
func operator(domain, op string) builder {
	switch domain {
	case "":
		return standard(op)
	case ml:
		return traditional(op)
	case "com.microsoft":
		return contributed(op)
	}
	return nil
}

func standard(op string) builder {
	switch op {
	case "And", "Add", "Div", "Max", "Min", "Mul", "Or", "Sub", "Sum", "Xor":
		return (*compiler).pair
	case "ArgMax", "ArgMin":
		return (*compiler).arg
	case "Cast":
		return (*compiler).cast
	case "Clip":
		return (*compiler).clip
	case "Concat":
		return (*compiler).concat
	case "Constant":
		return (*compiler).constant
	case "ConstantOfShape":
		return (*compiler).constantOfShape
	case "CumSum":
		return (*compiler).cumSum
	case "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual":
		return (*compiler).comparison
	case "Expand":
		return (*compiler).expand
	case "Flatten":
		return (*compiler).flatten
	case "Gather":
		return (*compiler).gather
	case "GatherElements":
		return (*compiler).gatherElements
	case "Gemm":
		return (*compiler).gemm
	case "Identity":
		return (*compiler).identity
	case "IsInf", "IsNaN", "Not":
		return (*compiler).test
	case "LpNormalization":
		return (*compiler).lpNormalization
	case "MatMul":
		return (*compiler).matMul
	case "Pow":
		return (*compiler).power
	case "Relu", "Sigmoid", "Tanh":
		return (*compiler).activation
	case "Reshape":
		return (*compiler).reshape
	case "Scan":
		return (*compiler).scan
	case "Shape":
		return (*compiler).shape
	case "Slice":
		return (*compiler).slice
	case "Softmax":
		return (*compiler).softmax
	case "Squeeze":
		return (*compiler).squeeze
	case "StringNormalizer":
		return (*compiler).stringNormalizer
	case "StringSplit":
		return (*compiler).stringSplit
	case "TfIdfVectorizer":
		return (*compiler).tfIdf
	case "Tile":
		return (*compiler).tile
	case "TopK":
		return (*compiler).topK
	case "Transpose":
		return (*compiler).transpose
	case "Unsqueeze":
		return (*compiler).unsqueeze
	case "Where":
		return (*compiler).where
	}
	if _, ok := singles[op]; ok {
		return (*compiler).single
	}
	if name, ok := strings.CutPrefix(op, "Reduce"); ok {
		if _, ok := reductions[name]; ok {
			return (*compiler).reduce
		}
	}
	return nil
}

// contributed returns the builder of an operator that only ONNX Runtime defines.
func contributed(op string) builder {
	switch op {
	case "CDist":
		return (*compiler).cDist
	case "Tokenizer":
		return (*compiler).tokenizer
	}
	return nil
}

func traditional(op string) builder {
	switch op {
	case "ArrayFeatureExtractor":
		return (*compiler).extract
	case "Binarizer":
		return (*compiler).binarizer
	case "CategoryMapper":
		return (*compiler).categoryMapper
	case "FeatureVectorizer":
		return (*compiler).featureVectorizer
	case "Imputer":
		return (*compiler).imputer
	case "LabelEncoder":
		return (*compiler).labelEncoder
	case "LinearClassifier":
		return (*compiler).linearClassifier
	case "LinearRegressor":
		return (*compiler).linearRegressor
	case "Normalizer":
		return (*compiler).normalizer
	case "OneHotEncoder":
		return (*compiler).oneHotEncoder
	case "SVMClassifier":
		return (*compiler).svmClassifier
	case "SVMRegressor":
		return (*compiler).svmRegressor
	case "Scaler":
		return (*compiler).scaler
	case "TreeEnsemble":
		return (*compiler).treeEnsemble
	case "TreeEnsembleClassifier":
		return (*compiler).treeClassifier
	case "TreeEnsembleRegressor":
		return (*compiler).treeRegressor
	case "ZipMap":
		return (*compiler).zipMap
	}
	return nil
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
	if err := n.wants(1, 1); err != nil {
		return err
	}
	c.declareSame(n, n.in[0])
	return nil
}

// zipMap is left out. sklearn's exports end with it: it puts the name of the class next
// to each score, in a list of maps. This engine answers the scores, and the program's
// labels have the names.
func (c *compiler) zipMap(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
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
	copy(out.Floats, in.Floats)
	copy(out.Doubles, in.Doubles)
	copy(out.Ints, in.Ints)
	copy(out.Strings, in.Strings)
	return nil
}
