package native

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// reductions are the operators that combine all numbers along some axes, without their prefix
// Reduce. Those with true are defined for integers too.
var reductions = map[string]bool{
	"L1": true, "L2": true, "LogSum": false, "LogSumExp": false, "Max": true, "Mean": true, "Min": true, "Prod": true, "Sum": true, "SumSquare": true,
}

// reduction is an operator that combines all numbers along some axes.
type reduction struct {
	op       string
	axes     []int64
	by       *ref // the axes if they are an input; nil otherwise
	keep     bool // combined dimensions get length 1, and are not removed
	keepNone bool // no axes mean that no numbers are combined, and not that all are
	from, to *ref

	floats func(sum, v float64) float64
	ints   func(sum, v int64) int64
}

func (c *compiler) reduce(n *node) error {
	x, axes := n.in[0], n.optional(1)
	r := &reduction{
		op: strings.TrimPrefix(n.Op, "Reduce"), axes: n.ints("axes"), keep: n.integer("keepdims", 1) != 0,
		keepNone: n.integer("noop_with_empty_axes", 0) != 0, from: x.ref,
	}
	r.floats, r.ints = adder[float64](r.op), adder[int64](r.op)
	kinds := numeric
	if !reductions[r.op] {
		kinds = numeric[:2]
	}
	if err := checkKinds(x, kinds...); err != nil {
		return err
	}
	reads := []*value{x}
	if axes != nil {
		if err := checkKinds(axes, tensor.Int64); err != nil {
			return err
		}
		r.by, reads = axes.ref, append(reads, axes)
	}
	var shape []int
	if x.shape != nil && r.keep {
		shape = slices.Repeat([]int{tensor.Any}, len(x.shape))
	}
	y := c.output(n, 0, x.kind, shape)
	r.to = y.ref
	c.add(n.describe(), reads, []*value{y}, r.run)
	return nil
}

func (r *reduction) run(s *state) error {
	in, axes := s.get(r.from), r.axes
	if r.by != nil {
		axes = s.get(r.by).Ints
	}
	var rooms [2][maxRank]int
	whole, shape := append(rooms[0][:0], in.Shape...), rooms[1][:0]
	for i := range whole {
		combined := len(axes) == 0 && !r.keepNone || hasAxis(axes, i, len(whole))
		if combined {
			whole[i] = 1
		}
		if !combined || r.keep {
			shape = append(shape, whole[i])
		}
	}
	for _, axis := range axes {
		if _, err := axisOf(axis, len(whole)); err != nil {
			return err
		}
	}
	var l lattice
	if err := l.lay(in.Shape, whole); err != nil {
		return err
	}
	out, err := s.prepare(r.to, in.Type, shape...)
	if err != nil || length(out) == 0 {
		return err
	}
	each := length(in) / length(out)
	switch in.Type {
	case tensor.Float:
		s.doubles = room(s.doubles, len(out.Floats))
		combine(s, r.op, r.floats, &l, s.doubles, in.Floats, each)
		for i, v := range s.doubles {
			out.Floats[i] = float32(v)
		}
	case tensor.Double:
		combine(s, r.op, r.floats, &l, out.Doubles, in.Doubles, each)
	default:
		combine(s, r.op, r.ints, &l, out.Ints, in.Ints, each)
		wrap(in.Type, out.Ints)
	}
	return nil
}

// hasAxis reports whether a dimension is among axes, which may count from the end.
func hasAxis(axes []int64, i, rank int) bool {
	return slices.Contains(axes, int64(i)) || slices.Contains(axes, int64(i-rank))
}

// combine combines the numbers of x for each sum. Floats are added in double precision.
func combine[A float64 | int64, T number](s *state, op string, add func(sum, v A) A, l *lattice, sums []A, x []T, each int) {
	begin := sumOfNothing[A](op)
	for i := range sums {
		sums[i] = begin
	}
	if len(x) > 0 {
		l.forEach(func(i int, at spot) { sums[at[1]] = add(sums[at[1]], A(x[i])) })
	}
	for i, v := range sums {
		switch op {
		case "L2":
			sums[i] = A(math.Sqrt(float64(v)))
		case "LogSum":
			sums[i] = A(math.Log(float64(v)))
		case "Mean":
			sums[i] = v / A(max(each, 1))
		}
	}
	if op == "LogSumExp" {
		s.pairs = room(s.pairs, len(sums))
		logSumExp(l, s.pairs, sums, x)
	}
}

// adder returns the function that adds a number to a sum. LogSumExp needs the greatest number first.
func adder[A float64 | int64](op string) func(sum, v A) A {
	switch op {
	case "L1":
		return func(sum, v A) A { return sum + max(v, -v) }
	case "L2", "SumSquare":
		return func(sum, v A) A { return sum + v*v }
	case "LogSumExp", "Max":
		return greater[A]
	case "Min":
		return lesser[A]
	case "Prod":
		return times[A]
	}
	return plus[A]
}

func sumOfNothing[A float64 | int64](op string) A {
	switch op {
	case "LogSumExp", "Max":
		return outermost[A](-1)
	case "Min":
		return outermost[A](1)
	case "Prod":
		return 1
	}
	return 0
}

// outermost returns the least or the greatest number of a type.
func outermost[A float64 | int64](sign int) (v A) {
	switch p := any(&v).(type) {
	case *float64:
		*p = math.Inf(sign)
	case *int64:
		if *p = math.MaxInt64; sign < 0 {
			*p = math.MinInt64
		}
	}
	return v
}

// logSumExp computes the logarithms of sums of powers, without powers that no float can hold. sums has
// the greatest number of each sum.
func logSumExp[A float64 | int64, T number](l *lattice, powers []float64, sums []A, x []T) {
	for i, v := range sums {
		if math.IsInf(float64(v), 0) {
			sums[i] = 0
		}
	}
	clear(powers)
	if len(x) > 0 {
		l.forEach(func(i int, at spot) { powers[at[1]] += math.Exp(float64(x[i]) - float64(sums[at[1]])) })
	}
	for i, v := range powers {
		sums[i] += A(math.Log(v))
	}
}

// cumSum adds up numbers along an axis.
func (c *compiler) cumSum(n *node) error {
	axis := n.in[1]
	if err := checkKinds(axis, tensor.Int32, tensor.Int64); err != nil {
		return err
	}
	exclusive, reverse := n.integer("exclusive", 0) != 0, n.integer("reverse", 0) != 0
	by := axis.ref
	return c.changed(n, func(s *state, out *tensor.Tensor) error {
		axis := s.get(by).Ints
		if len(axis) != 1 {
			return fmt.Errorf("it has %d axes, and needs one", len(axis))
		}
		at, err := axisOf(axis[0], len(out.Shape))
		if err != nil {
			return err
		}
		n, step := out.Shape[at], volume(out.Shape[at+1:])
		accumulate(out.Floats, n, step, exclusive, reverse)
		accumulate(out.Doubles, n, step, exclusive, reverse)
		accumulate(out.Ints, n, step, exclusive, reverse)
		wrap(out.Type, out.Ints)
		return nil
	})
}

func accumulate[T number](x []T, n, step int, exclusive, reverse bool) {
	for begin := 0; begin < len(x); begin += n * step {
		for i := range step {
			var sum T
			for k := range n {
				if reverse {
					k = n - 1 - k
				}
				v := &x[begin+k*step+i]
				before := sum
				sum += *v
				if *v = sum; exclusive {
					*v = before
				}
			}
		}
	}
}

// lpNormalization divides numbers by the sum of their absolute values along an axis, or by their length.
func (c *compiler) lpNormalization(n *node) error {
	p, axis := n.integer("p", 2), n.integer("axis", -1)
	if p != 1 && p != 2 {
		return fmt.Errorf("p %d %w", p, onnx.ErrUnsupported)
	}
	return c.changed(n, func(_ *state, out *tensor.Tensor) error {
		at, err := axisOf(axis, len(out.Shape))
		if err != nil {
			return err
		}
		lpNormalize(out.Floats, out.Shape[at], volume(out.Shape[at+1:]), p)
		lpNormalize(out.Doubles, out.Shape[at], volume(out.Shape[at+1:]), p)
		return nil
	})
}

func lpNormalize[T float32 | float64](x []T, n, step int, p int64) {
	for begin := 0; begin < len(x); begin += n * step {
		for i := range step {
			sum := 0.0
			for k := range n {
				v := math.Abs(float64(x[begin+k*step+i]))
				sum += math.Pow(v, float64(p))
			}
			if sum = math.Pow(sum, 1/float64(p)); sum == 0 {
				continue
			}
			for k := range n {
				v := &x[begin+k*step+i]
				*v = T(float64(*v) / sum)
			}
		}
	}
}
