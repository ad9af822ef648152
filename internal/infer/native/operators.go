package native

import (
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/onnx"
	"tidemill.dev/internal/infer/tensor"
)

// builder makes the step of an operator.
type builder func(*compiler, *node) error

// operator is the builder for one, nil if we have none.
func operator(domain, op string) builder {
	switch domain {
	case "":
		return standard(op)
	case ml:
		return traditional(op)
	}
	return nil
}

func standard(op string) builder {
	switch op {
	case "Add", "Sub", "Mul", "Div":
		return (*compiler).arithmetic
	case "Relu", "Sigmoid", "Tanh":
		return (*compiler).activation
	case "ArgMax":
		return (*compiler).argMax
	case "Cast":
		return (*compiler).cast
	case "Concat":
		return (*compiler).concat
	case "Constant":
		return (*compiler).constant
	case "Flatten":
		return (*compiler).flatten
	case "Gemm":
		return (*compiler).gemm
	case "Identity":
		return (*compiler).identity
	case "MatMul":
		return (*compiler).matMul
	case "Reshape":
		return (*compiler).reshape
	case "Softmax":
		return (*compiler).softmax
	case "StringNormalizer":
		return (*compiler).stringNormalizer
	case "StringSplit":
		return (*compiler).stringSplit
	case "TfIdfVectorizer":
		return (*compiler).tfIdf
	}
	return nil
}

func traditional(op string) builder {
	switch op {
	case "ArrayFeatureExtractor":
		return (*compiler).extract
	case "LinearClassifier":
		return (*compiler).linearClassifier
	case "LinearRegressor":
		return (*compiler).linearRegressor
	case "Normalizer":
		return (*compiler).normalizer
	case "Scaler":
		return (*compiler).scaler
	case "ZipMap":
		return (*compiler).zipMap
	}
	return nil
}

// constant is known already.
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
	c.same(n, constantOf(t))
	return nil
}

func (c *compiler) identity(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
	c.same(n, n.in[0])
	return nil
}

// zipMap is left out: it puts the name of its class beside each score, as a list
// of maps, which sklearn's exports have at their end. The scores are what we
// answer, and the names are the program's labels.
func (c *compiler) zipMap(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
	if len(n.Outputs) != 1 || !slices.Equal(c.takers[n.Outputs[0]], []int{-1}) {
		return fmt.Errorf("other than as an output of the model it %w: export with zipmap=False", onnx.ErrUnsupported)
	}
	c.label(n)
	c.same(n, n.in[0])
	return nil
}

// label notes the names of classes.
func (c *compiler) label(n *node) []string {
	labels := n.texts("classlabels_strings")
	for _, key := range []string{"classlabels_ints", "classlabels_int64s"} {
		for _, v := range n.ints(key) {
			labels = append(labels, fmt.Sprint(v))
		}
	}
	if len(labels) > 0 {
		c.program.labels = labels
	}
	return labels
}

// copy is the step that makes one value of another.
func (c *compiler) copy(what string, from, to *value) {
	x, y := from.ref, to.ref
	c.add(what, []*value{from}, []*value{to}, func(s *state) error {
		in := s.get(x)
		return s.move(in, y, in.Shape...)
	})
}

// move copies numbers, to a value that may have another shape with as many.
func (s *state) move(in *tensor.Tensor, to *ref, shape ...int) error {
	out, err := s.make(to, in.Type, shape...)
	if err != nil {
		return err
	}
	copy(out.Floats, in.Floats)
	copy(out.Doubles, in.Doubles)
	copy(out.Ints, in.Ints)
	copy(out.Strings, in.Strings)
	return nil
}
