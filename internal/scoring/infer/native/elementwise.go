package native

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/kernel"
	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// number is a type that operators compute with.
type number interface{ float32 | float64 | int64 }

// numeric are the types of numbers.
var numeric = []tensor.Type{tensor.Float, tensor.Double, tensor.Int32, tensor.Int64}

// fractional are the types of numbers with fractions.
var fractional = numeric[:2]

// single is an operator on each number of one tensor. The float operators compute in double
// precision.
type single struct {
	floats func(float64) float64
	ints   func(int64) int64 // nil if the operator is not defined for integers
}

var singles = map[string]single{
	"Abs":        {math.Abs, func(v int64) int64 { return max(v, -v) }},
	"Ceil":       {math.Ceil, nil},
	"Cos":        {math.Cos, nil},
	"Erf":        {math.Erf, nil},
	"Exp":        {math.Exp, nil},
	"Floor":      {math.Floor, nil},
	"Log":        {math.Log, nil},
	"Neg":        {func(v float64) float64 { return -v }, func(v int64) int64 { return -v }},
	"Reciprocal": {func(v float64) float64 { return 1 / v }, nil},
	"Round":      {math.RoundToEven, nil},
	"Sign":       {sign[float64], sign[int64]},
	"Sin":        {math.Sin, nil},
	"Softplus":   {func(v float64) float64 { return max(v, 0) + math.Log1p(math.Exp(-math.Abs(v))) }, nil},
	"Sqrt":       {math.Sqrt, nil},
}

func sign[T number](v T) T {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return v // 0 or NaN
}

func (c *compiler) single(n *node) error {
	x, of := n.in[0], singles[n.Op]
	kinds := numeric
	if of.ints == nil {
		kinds = fractional
	}
	if err := checkKinds(x, kinds...); err != nil {
		return err
	}
	kind := x.kind
	return c.eachElement(n, kind, func(_ *state, in, out *tensor.Tensor) error {
		for i, v := range in.Floats {
			out.Floats[i] = float32(of.floats(float64(v)))
		}
		for i, v := range in.Doubles {
			out.Doubles[i] = of.floats(v)
		}
		for i, v := range in.Ints {
			out.Ints[i] = of.ints(v)
		}
		wrap(kind, out.Ints)
		return nil
	})
}

// test is an operator that answers true or false for each number of one tensor.
func (c *compiler) test(n *node) error {
	x := n.in[0]
	kinds := fractional
	is := math.IsNaN
	switch n.Op {
	case "Not":
		kinds, is = []tensor.Type{tensor.Bool}, func(v float64) bool { return v == 0 }
	case "IsInf":
		up, down := n.integer("detect_positive", 1) != 0, n.integer("detect_negative", 1) != 0
		is = func(v float64) bool { return up && math.IsInf(v, 1) || down && math.IsInf(v, -1) }
	}
	if err := checkKinds(x, kinds...); err != nil {
		return err
	}
	return c.eachElement(n, tensor.Bool, func(_ *state, in, out *tensor.Tensor) error {
		testAll(out.Ints, in.Floats, is)
		testAll(out.Ints, in.Doubles, is)
		testAll(out.Ints, in.Ints, is)
		return nil
	})
}

func testAll[T number](to []int64, x []T, is func(float64) bool) {
	for i, v := range x {
		to[i] = truth(is(float64(v)))
	}
}

// truth returns a boolean as tensors hold it.
func truth(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// pair is an operator on two tensors, as a function over rows for each type. A row of one number
// is combined with each number of the other. The result has the type of the operands.
type pair struct {
	floats  func(dst, a, b []float32)
	doubles func(dst, a, b []float64)
	ints    func(dst, a, b []int64)
}

var pairs = map[string]pair{
	"Add": {vector(kernel.Add, plus[float32]), each(plus[float64]), each(plus[int64])},
	"Sub": {vector(kernel.Sub, minus[float32]), each(minus[float64]), each(minus[int64])},
	"Mul": {vector(kernel.Mul, times[float32]), each(times[float64]), each(times[int64])},
	"Div": {vector(kernel.Div, over[float32]), each(over[float64]), each(over[int64])},
	"Max": {each(greater[float32]), each(greater[float64]), each(greater[int64])},
	"Min": {each(lesser[float32]), each(lesser[float64]), each(lesser[int64])},
	"Pow": {each(power[float32]), each(math.Pow), each(power[int64])},
	"And": {ints: each(lesser[int64])},
	"Or":  {ints: each(greater[int64])},
	"Xor": {ints: each(func(a, b int64) int64 { return a ^ b })},
}

func plus[T number](a, b T) T    { return a + b }
func minus[T number](a, b T) T   { return a - b }
func times[T number](a, b T) T   { return a * b }
func over[T number](a, b T) T    { return a / b }
func greater[T number](a, b T) T { return max(a, b) }
func lesser[T number](a, b T) T  { return min(a, b) }
func power[T number](a, b T) T   { return T(math.Pow(float64(a), float64(b))) }

// each makes a function over rows of a function of two numbers.
func each[D, T any](of func(a, b T) D) func(dst []D, a, b []T) {
	return func(dst []D, a, b []T) {
		var ia, ib int // steps in a and b
		if len(a) == len(dst) {
			ia = 1
		}
		if len(b) == len(dst) {
			ib = 1
		}
		for i := range dst {
			dst[i] = of(a[i*ia], b[i*ib])
		}
	}
}

// vector uses the vector code for rows of the same length.
func vector(same func(dst, a, b []float32), of func(a, b float32) float32) func(dst, a, b []float32) {
	other := each(of)
	return func(dst, a, b []float32) {
		if len(a) == len(dst) && len(b) == len(dst) {
			same(dst, a, b)
		} else {
			other(dst, a, b)
		}
	}
}

// pair combines two tensors, or more of them one after the other.
func (c *compiler) pair(n *node) error {
	op := n.Op
	if op == "Sum" {
		op = "Add"
	}
	if slices.Contains(n.in, nil) {
		return errors.New("one of its inputs is absent")
	}
	kinds := numeric
	if pairs[op].floats == nil {
		kinds = []tensor.Type{tensor.Bool}
	}
	if err := checkKinds(n.in[0], kinds...); err != nil {
		return err
	}
	if len(n.in) == 1 {
		c.declareSame(n, n.in[0])
		return nil
	}
	a := n.in[0]
	for i, b := range n.in[1:] {
		if a.kind != b.kind {
			return fmt.Errorf("one side is %s and the other %s", typeName(a.kind), typeName(b.kind))
		}
		y := &value{kind: a.kind, shape: broadcastShape(a.shape, b.shape), ref: &ref{}}
		if i == len(n.in)-2 {
			y = c.output(n, 0, a.kind, y.shape)
		}
		of, divides, kind, x1, x2, to := pairs[op], op == "Div", a.kind, a.ref, b.ref, y.ref
		c.add(n.describe(), []*value{a, b}, []*value{y}, func(s *state) error { return of.run(s, divides, kind, x1, x2, to) })
		a = y
	}
	return nil
}

// power is pair for operands of different types: the exponent gets the type of the base.
func (c *compiler) power(n *node) error {
	base, by := n.in[0], n.in[1]
	if base.kind != by.kind {
		if isWhole(base.kind) && !isWhole(by.kind) {
			return fmt.Errorf("for %s to the power of %s %w", typeName(base.kind), typeName(by.kind), onnx.ErrUnsupported)
		}
		if err := checkKinds(by, numeric...); err != nil {
			return err
		}
		same := &value{kind: base.kind, shape: by.shape, ref: &ref{}}
		c.castTo(n.describe(), by, same)
		n.in = []*value{base, same}
	}
	return c.pair(n)
}

func isWhole(kind tensor.Type) bool { return kind == tensor.Int32 || kind == tensor.Int64 }

// broadcastShape returns the shape of the result of two tensors, as far as it is known: its rank.
func broadcastShape(shapes ...[]int) []int {
	rank := 0
	for _, s := range shapes {
		if s == nil {
			return nil
		}
		rank = max(rank, len(s))
	}
	return slices.Repeat([]int{tensor.Any}, rank)
}

func (p pair) run(s *state, divides bool, kind tensor.Type, x1, x2, to *ref) error {
	a, b := s.get(x1), s.get(x2)
	var l lattice
	if err := l.lay(a.Shape, b.Shape); err != nil {
		return err
	}
	out, err := s.prepare(to, kind, l.shape()...)
	if err != nil {
		return err
	}
	switch kind {
	case tensor.Float:
		walk(&l, out.Floats, a.Floats, b.Floats, p.floats)
	case tensor.Double:
		walk(&l, out.Doubles, a.Doubles, b.Doubles, p.doubles)
	default:
		if divides && slices.Contains(b.Ints, 0) {
			return errors.New("an integer is divided by 0")
		}
		walk(&l, out.Ints, a.Ints, b.Ints, p.ints)
		wrap(kind, out.Ints)
	}
	return nil
}

// wrap reduces numbers to 32 bits for int32.
func wrap(kind tensor.Type, x []int64) {
	if kind != tensor.Int32 {
		return
	}
	for i, v := range x {
		x[i] = int64(int32(v))
	}
}

// Results of a comparison. NaN is in no order with any number.
const (
	less      = 1
	equal     = 2
	more      = 4
	unordered = 8
)

// comparisons have the results for which each operator is true.
var comparisons = map[string]int{
	"Equal": equal, "Greater": more, "GreaterOrEqual": more | equal, "Less": less, "LessOrEqual": less | equal,
}

func compare[T cmp.Ordered](a, b T) int {
	switch {
	case a < b:
		return less
	case a > b:
		return more
	case a == b:
		return equal
	}
	return unordered
}

func comparing[T cmp.Ordered](wanted int) func(dst []int64, a, b []T) {
	return each(func(a, b T) int64 { return truth(compare(a, b)&wanted != 0) })
}

func (c *compiler) comparison(n *node) error {
	a, b := n.in[0], n.in[1]
	kinds := numeric
	if n.Op == "Equal" {
		kinds = append(slices.Clone(numeric), tensor.Bool, tensor.String)
	}
	if err := checkKinds(a, kinds...); err != nil {
		return err
	}
	if a.kind != b.kind {
		return fmt.Errorf("one side is %s and the other %s", typeName(a.kind), typeName(b.kind))
	}
	wanted := comparisons[n.Op]
	floats, doubles, ints, texts := comparing[float32](wanted), comparing[float64](wanted), comparing[int64](wanted), comparing[string](wanted)
	y := c.output(n, 0, tensor.Bool, broadcastShape(a.shape, b.shape))
	x1, x2, to := a.ref, b.ref, y.ref
	c.add(n.describe(), []*value{a, b}, []*value{y}, func(s *state) error {
		a, b := s.get(x1), s.get(x2)
		var l lattice
		if err := l.lay(a.Shape, b.Shape); err != nil {
			return err
		}
		out, err := s.prepare(to, tensor.Bool, l.shape()...)
		if err != nil {
			return err
		}
		switch a.Type {
		case tensor.Float:
			walk(&l, out.Ints, a.Floats, b.Floats, floats)
		case tensor.Double:
			walk(&l, out.Ints, a.Doubles, b.Doubles, doubles)
		case tensor.String:
			walk(&l, out.Ints, a.Strings, b.Strings, texts)
		default:
			walk(&l, out.Ints, a.Ints, b.Ints, ints)
		}
		return nil
	})
	return nil
}

// where takes each element from one of two tensors.
func (c *compiler) where(n *node) error {
	is, yes, no := n.in[0], n.in[1], n.in[2]
	if yes.kind != no.kind {
		return fmt.Errorf("one side is %s and the other %s", typeName(yes.kind), typeName(no.kind))
	}
	y := c.output(n, 0, yes.kind, broadcastShape(is.shape, yes.shape, no.shape))
	from, to, kind := [3]*ref{is.ref, yes.ref, no.ref}, y.ref, yes.kind
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		is, yes, no := s.get(from[0]), s.get(from[1]), s.get(from[2])
		var l lattice
		if err := l.lay(is.Shape, yes.Shape, no.Shape); err != nil {
			return err
		}
		out, err := s.prepare(to, kind, l.shape()...)
		if err != nil {
			return err
		}
		l.forEach(func(i int, at spot) {
			if is.Ints[at[0]] != 0 {
				paste(out, i, yes, at[1], 1)
			} else {
				paste(out, i, no, at[2], 1)
			}
		})
		return nil
	})
	return nil
}

// clip bounds numbers. The bounds are inputs since version 11, and attributes before.
func (c *compiler) clip(n *node) error {
	x := n.in[0]
	low, high := n.optional(1), n.optional(2)
	if n.opset < 11 {
		if x.kind != tensor.Float {
			return fmt.Errorf("for type %s %w", typeName(x.kind), onnx.ErrUnsupported)
		}
		low = constantOf(&tensor.Tensor{Type: tensor.Float, Shape: []int{}, Floats: []float32{n.float("min", -math.MaxFloat32)}})
		high = constantOf(&tensor.Tensor{Type: tensor.Float, Shape: []int{}, Floats: []float32{n.float("max", math.MaxFloat32)}})
	}
	all, last := []*value{low, high}, 0
	for i, bound := range all {
		if bound != nil {
			last = i + 1
		}
	}
	for i, bound := range all[:last] {
		if bound == nil {
			continue
		}
		y := &value{kind: x.kind, shape: x.shape, ref: &ref{}}
		if i == last-1 {
			y = c.output(n, 0, x.kind, x.shape)
		}
		of := pairs[[]string{"Max", "Min"}[i]]
		if bound.kind != x.kind || len(bound.shape) > 0 {
			return fmt.Errorf("its bound is of type %s and shape %v: it must be one %s", typeName(bound.kind), bound.shape, typeName(x.kind))
		}
		kind, x1, x2, to := x.kind, x.ref, bound.ref, y.ref
		c.add(n.describe(), []*value{x, bound}, []*value{y}, func(s *state) error { return of.run(s, false, kind, x1, x2, to) })
		x = y
	}
	if last == 0 {
		c.declareSame(n, x)
	}
	return nil
}
