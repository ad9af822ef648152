package native

import (
	"errors"
	"fmt"
	"math"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// mapping has the value of each key. The keys are in tables without pointers.
type mapping struct {
	kind    tensor.Type // type of the keys
	texts   *wordTable  // numbers of the keys; one of the two tables is nil
	numbers *numberTable
	values  *tensor.Tensor // by number of the key; the last one is for all unknown keys
	noNaN   bool           // NaN is an unknown key, as in ONNX Runtime before version 4 of LabelEncoder
}

// newMapping makes a mapping. Of equal keys the first one counts.
func newMapping(keys, values, other *tensor.Tensor) (*mapping, error) {
	n := length(keys)
	if n != length(values) || length(other) != 1 || other.Type != values.Type {
		return nil, fmt.Errorf("it has %d keys, %d values and %d values for other keys", n, length(values), length(other))
	}
	m := &mapping{kind: keys.Type, values: &tensor.Tensor{Type: values.Type}}
	if keys.Type == tensor.String {
		m.texts = newWordTable(n)
	} else {
		m.numbers = newNumberTable(n)
	}
	for i := range n {
		if number := m.add(keys, i); int(number) == length(m.values) {
			extend(m.values, values, i)
		}
	}
	extend(m.values, other, 0)
	return m, nil
}

// extend appends an element of another tensor of the same type.
func extend(to, from *tensor.Tensor, i int) {
	switch from.Type {
	case tensor.Float:
		to.Floats = append(to.Floats, from.Floats[i])
	case tensor.Double:
		to.Doubles = append(to.Doubles, from.Doubles[i])
	case tensor.String:
		to.Strings = append(to.Strings, from.Strings[i])
	default:
		to.Ints = append(to.Ints, from.Ints[i])
	}
}

func (m *mapping) add(keys *tensor.Tensor, i int) int32 {
	if m.texts != nil {
		return m.texts.add(keys.Strings[i])
	}
	return m.numbers.add(keyOf(keys, i), int32(m.numbers.n))
}

// find returns the number of a key; an unknown key has that of the last value.
func (m *mapping) find(keys *tensor.Tensor, i int) int {
	number := int32(unknown)
	if m.texts != nil {
		number, _ = m.texts.find(keys.Strings[i])
	} else if key := keyOf(keys, i); key != nanKey || !m.noNaN {
		number, _ = m.numbers.find(key)
	}
	if number == unknown {
		return length(m.values) - 1
	}
	return int(number)
}

// nanKey is the key of NaN.
const nanKey = 0x7ff8000000000001

// keyOf returns the key of a number. All NaN are the same key, and so are 0 and -0.
func keyOf(t *tensor.Tensor, i int) uint64 {
	var v float64
	switch t.Type {
	case tensor.Float:
		v = float64(t.Floats[i])
	case tensor.Double:
		v = t.Doubles[i]
	default:
		return uint64(t.Ints[i])
	}
	if v != v {
		return nanKey
	}
	return math.Float64bits(v + 0)
}

func (m *mapping) bytes() int64 {
	n := sizeOf(m.values)
	if m.texts != nil {
		return n + m.texts.bytes()
	}
	return n + m.numbers.bytes()
}

// translate adds a step that replaces each element by its value.
func (c *compiler) translate(n *node, m *mapping) error {
	x := n.in[0]
	if err := checkKinds(x, m.kind); err != nil {
		return err
	}
	c.program.bytes += m.bytes()
	return c.eachElement(n, m.values.Type, func(_ *state, in, out *tensor.Tensor) error {
		for i := range length(in) {
			paste(out, i, m.values, m.find(in, i), 1)
		}
		return nil
	})
}

// list returns an attribute with keys or values as a tensor. The name of the attribute ends in its type.
func (n *node) list(name string) *tensor.Tensor {
	if a, ok := n.attribute(name+"_tensor", onnx.AttributeTensor); ok && a.Tensor != nil {
		return a.Tensor
	}
	if v := n.texts(name + "_strings"); v != nil {
		return &tensor.Tensor{Type: tensor.String, Strings: v}
	}
	if v := n.floats(name + "_floats"); v != nil {
		return &tensor.Tensor{Type: tensor.Float, Floats: v}
	}
	if v := n.ints(name + "_int64s"); v != nil {
		return &tensor.Tensor{Type: tensor.Int64, Ints: v}
	}
	return &tensor.Tensor{}
}

// other returns the value for unknown keys.
func (n *node) other(kind tensor.Type) *tensor.Tensor {
	if a, ok := n.attribute("default_tensor", onnx.AttributeTensor); ok && a.Tensor != nil {
		return a.Tensor
	}
	t := &tensor.Tensor{Type: kind}
	switch kind {
	case tensor.Float:
		t.Floats = []float32{n.float("default_float", float32(math.Copysign(0, -1)))}
	case tensor.Double:
		t.Doubles = []float64{float64(n.float("default_float", float32(math.Copysign(0, -1))))}
	case tensor.String:
		t.Strings = []string{n.text("default_string", "_Unused")}
	default:
		t.Ints = []int64{n.integer("default_int64", -1)}
	}
	return t
}

func (c *compiler) labelEncoder(n *node) error {
	keys, values := n.list("keys"), n.list("values")
	if n.opset < 2 { // a list of classes, which are numbered
		keys, values = n.list("classes"), &tensor.Tensor{Type: tensor.Int64}
		for i := range keys.Strings {
			values.Ints = append(values.Ints, int64(i))
		}
		if n.in[0].kind != tensor.String {
			keys, values = values, keys
		}
	}
	if !isSupported(keys.Type) || !isSupported(values.Type) {
		return fmt.Errorf("from %s to %s %w", typeName(keys.Type), typeName(values.Type), onnx.ErrUnsupported)
	}
	m, err := newMapping(keys, values, n.other(values.Type))
	if err != nil {
		return err
	}
	m.noNaN = n.opset < 4 && keys.Type != tensor.Int64
	return c.translate(n, m)
}

func (c *compiler) categoryMapper(n *node) error {
	keys := &tensor.Tensor{Type: tensor.String, Strings: n.texts("cats_strings")}
	values := &tensor.Tensor{Type: tensor.Int64, Ints: n.ints("cats_int64s")}
	if n.in[0].kind != tensor.String {
		keys, values = values, keys
	}
	m, err := newMapping(keys, values, n.other(values.Type))
	if err != nil {
		return err
	}
	return c.translate(n, m)
}

// oneHotEncoder makes a column for each category. Numbers lose their fraction first, as in ONNX Runtime.
func (c *compiler) oneHotEncoder(n *node) error {
	x, cats := n.in[0], n.list("cats")
	if len(n.texts("cats_strings")) > 0 && len(n.ints("cats_int64s")) > 0 || length(cats) == 0 {
		return errors.New("its categories have no values, or two each")
	}
	if x.kind == tensor.String != (cats.Type == tensor.String) {
		return fmt.Errorf("its categories are of type %s, and its input of %s", typeName(cats.Type), typeName(x.kind))
	}
	columns := &tensor.Tensor{Type: tensor.Int64}
	for i := range length(cats) {
		columns.Ints = append(columns.Ints, int64(i))
	}
	m, err := newMapping(cats, columns, &tensor.Tensor{Type: tensor.Int64, Ints: []int64{unknown}})
	if err != nil {
		return err
	}
	width, strict := length(cats), n.integer("zeros", 1) == 0
	if length(m.values) != width+1 {
		return errors.New("a category is listed twice")
	}
	if x.kind != tensor.String && x.kind != tensor.Int64 {
		whole := &value{kind: tensor.Int64, shape: x.shape, ref: &ref{}}
		c.castTo(n.describe(), x, whole)
		x = whole
	}
	var shape []int
	if x.shape != nil {
		shape = append(openShape(len(x.shape)), width)
	}
	y := c.output(n, 0, tensor.Float, shape)
	c.program.bytes += m.bytes()
	from, to := x.ref, y.ref
	c.add(n.describe(), []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		var room [maxRank + 1]int
		out, err := s.prepare(to, tensor.Float, append(append(room[:0], in.Shape...), width)...)
		if err != nil {
			return err
		}
		clear(out.Floats)
		for i := range length(in) {
			switch column := m.find(in, i); {
			case column < width:
				out.Floats[i*width+column] = 1
			case strict:
				return errors.New("a value is none of the categories")
			}
		}
		return nil
	})
	return nil
}

// imputer replaces one number, usually NaN, by a number for each feature.
func (c *compiler) imputer(n *node) error {
	x := n.in[0]
	fill := &tensor.Tensor{Type: x.kind}
	gap, gapInt := n.float("replaced_value_float", 0), n.integer("replaced_value_int64", 0)
	switch x.kind {
	case tensor.Float:
		fill.Floats = n.floats("imputed_value_floats")
	case tensor.Double:
		for _, v := range n.floats("imputed_value_floats") {
			fill.Doubles = append(fill.Doubles, float64(v))
		}
	default:
		fill.Ints = n.ints("imputed_value_int64s")
	}
	if length(fill) == 0 {
		return fmt.Errorf("it has no value for type %s", typeName(x.kind))
	}
	c.program.bytes += sizeOf(fill)
	return c.changed(n, func(_ *state, out *tensor.Tensor) error {
		if features := featuresOf(out.Shape); length(fill) != 1 && length(fill) != features {
			return fmt.Errorf("it has values for %d features, and there are %d", length(fill), features)
		}
		impute(out.Floats, fill.Floats, gap)
		impute(out.Doubles, fill.Doubles, float64(gap))
		impute(out.Ints, fill.Ints, gapInt)
		return nil
	})
}

func impute[T number](x, fill []T, gap T) {
	column := 0
	for i, v := range x {
		if v == gap || v != v && gap != gap {
			x[i] = fill[column]
		}
		if column++; column >= len(fill) {
			column = 0
		}
	}
}

func (c *compiler) binarizer(n *node) error {
	limit := n.float("threshold", 0)
	return c.changed(n, func(_ *state, out *tensor.Tensor) error {
		binarize(out.Floats, limit)
		binarize(out.Doubles, limit)
		binarize(out.Ints, limit)
		return nil
	})
}

func binarize[T number](x []T, limit float32) {
	for i, v := range x {
		x[i] = T(truth(float64(v) > float64(limit)))
	}
}

// featureVectorizer puts the columns of several tables next to each other.
func (c *compiler) featureVectorizer(n *node) error {
	widths := n.ints("inputdimensions")
	if len(widths) != len(n.in) {
		return fmt.Errorf("it has %d inputs and %d inputdimensions", len(n.in), len(widths))
	}
	var from []*ref
	for i, v := range n.in {
		if v == nil {
			return errors.New("one of its inputs is absent")
		}
		if err := checkKinds(v, numeric...); err != nil {
			return err
		}
		if widths[i] < 0 || widths[i] > math.MaxInt32 {
			return fmt.Errorf("an input has %d columns", widths[i])
		}
		if v.kind != tensor.Float {
			same := &value{kind: tensor.Float, shape: v.shape, ref: &ref{}}
			c.castTo(n.describe(), v, same)
			v, n.in[i] = same, same
		}
		from = append(from, v.ref)
	}
	y := c.output(n, 0, tensor.Float, openShape(2))
	to := y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		for i, r := range from {
			if shape := s.get(r).Shape; len(shape) != 2 || int64(shape[1]) != widths[i] {
				return fmt.Errorf("input %d is of %v, and needs %d columns", i, append([]int(nil), shape...), widths[i])
			}
		}
		return s.concat(from, to, tensor.Float, 1)
	})
	return nil
}
