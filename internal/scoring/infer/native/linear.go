package native

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/kernel"
	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// linear is the product of the classifiers and regressors of ai.onnx.ml, with the
// operation on its sums.
type linear struct {
	*layer
	post string
	from *ref
}

// postTransforms are the operations on sums.
var postTransforms = []string{"NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"}

func (c *compiler) linear(n *node, rows int) (*linear, error) {
	w, bias, post := n.floats("coefficients"), n.floats("intercepts"), n.text("post_transform", "NONE")
	switch {
	case rows == 0 || len(w) == 0 || len(w)%rows != 0:
		return nil, fmt.Errorf("%d coefficients are not those of %d sums", len(w), rows)
	case len(bias) != 0 && len(bias) != rows:
		return nil, fmt.Errorf("%d intercepts are not those of %d sums", len(bias), rows)
	case !slices.Contains(postTransforms, post):
		return nil, fmt.Errorf("post_transform %s %w", post, onnx.ErrUnsupported)
	}
	features := len(w) / rows
	if len(bias) == 0 {
		bias = nil
	}
	l := &linear{layerOf(product{k: features, n: rows, weights: turned(rows, features, w)}, tail{bias: bias}), post, n.in[0].ref}
	c.program.bytes += l.bytes()
	return l, nil
}

// sums computes a row of sums for each event.
func (l *linear) sums(s *state, to *ref, width int) (*tensor.Tensor, error) {
	in := s.get(l.from)
	features, sums := l.k, l.n
	if len(in.Shape) == 0 || len(in.Shape) > 2 || in.Shape[len(in.Shape)-1] != features {
		return nil, fmt.Errorf("its events are of %v numbers; the model was made for %d", slices.Clone(in.Shape), features)
	}
	rows := volume(in.Shape[:len(in.Shape)-1])
	out, err := s.prepare(to, tensor.Float, rows, width)
	if err == nil {
		err = s.multiply(rows, features, sums)
	}
	if err == nil && len(out.Floats) > 0 {
		l.multiply(&s.text, rows, s.asFloats(in), out.Floats[:rows*sums])
	}
	return out, err
}

func (c *compiler) linearRegressor(n *node) error {
	l, err := c.linear(n, int(min(n.integer("targets", 1), math.MaxInt32)))
	if err != nil {
		return err
	}
	targets := l.n
	y := c.output(n, 0, tensor.Float, []int{tensor.Any, targets})
	to := y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		out, err := l.sums(s, to, targets)
		if err == nil {
			transform(l.post, out.Floats, targets)
		}
		return err
	})
	return nil
}

// transform applies the operation to each row of sums. A single sum only has PROBIT, as in ONNX
// Runtime.
func transform(post string, x []float32, n int) {
	if n == 1 && post != "PROBIT" {
		return
	}
	if post == "SOFTMAX" && len(x) > 0 {
		kernel.Softmax(len(x)/n, n, x)
		return
	}
	if post == "LOGISTIC" {
		kernel.Sigmoid.Apply(x)
		return
	}
	for row := x; len(row) > 0; row = row[n:] {
		switch {
		case post == "SOFTMAX_ZERO":
			softmaxZero(row[:n])
		case post == "PROBIT":
			for i, v := range row[:n] {
				row[i] = probit(v)
			}
		}
	}
}

// softmaxZero is a softmax in which a sum of 0 gets a share of 0.
func softmaxZero(x []float32) {
	greatest, sum := float64(slices.Max(x)), 0.0
	for i, v := range x {
		e := float64(v) * math.Exp(-greatest)
		if v > 1e-7 || v < -1e-7 {
			e = math.Exp(float64(v) - greatest)
		}
		x[i], sum = float32(e), sum+e
	}
	for i := range x {
		if sum == 0 {
			x[i] = 0.5
		} else {
			x[i] = float32(float64(x[i]) / sum)
		}
	}
}

// probit is the inverse of the normal distribution, in Winitzki's approximation, as in
// ONNX Runtime.
func probit(v float32) float32 {
	x := 2*float64(v) - 1
	log := math.Log((1 - x) * (1 + x))
	a := 2/(math.Pi*0.147) + 0.5*log
	root := math.Sqrt(math.Sqrt(a*a-log/0.147) - a)
	return float32(1.41421356 * math.Copysign(root, x))
}

// classifier returns the class of the greatest sum.
type classifier struct {
	*linear
	ints          []int64
	texts         []string
	single        bool // two classes have one sum, which is the second class's
	label, scores *ref // label is nil if no node reads it
}

func (c *compiler) linearClassifier(n *node) error {
	k := &classifier{ints: n.ints("classlabels_ints"), texts: n.texts("classlabels_strings")}
	classes := max(len(k.ints), len(k.texts))
	if len(k.ints) > 0 && len(k.texts) > 0 || classes == 0 {
		return errors.New("its classes have no names, or two each")
	}
	sums := classes
	if len(n.floats("intercepts")) == 1 && classes == 2 {
		sums, k.single = 1, true
	}
	l, err := c.linear(n, sums)
	if err != nil {
		return err
	}
	k.linear = l
	if classes == 1 || k.single && l.post != "NONE" && l.post != "LOGISTIC" {
		return fmt.Errorf("a single sum with post_transform %s %w: engines interpret it differently", l.post, onnx.ErrUnsupported)
	}
	kind := tensor.Int64
	if k.texts != nil {
		kind = tensor.String
	}
	scores := c.output(n, 1, tensor.Float, []int{tensor.Any, classes})
	writes := []*value{scores}
	k.scores = scores.ref
	if c.isRead(n, 0) {
		label := c.output(n, 0, kind, []int{tensor.Any})
		k.label, writes = label.ref, append(writes, label)
	}
	c.add(n.describe(), n.in, writes, func(s *state) error { return k.run(s, kind, classes) })
	return nil
}

func (k *classifier) run(s *state, kind tensor.Type, classes int) error {
	out, err := k.sums(s, k.scores, classes)
	if err != nil {
		return err
	}
	if k.single {
		bothClasses(out.Floats)
	}
	if k.label != nil {
		label, err := s.prepare(k.label, kind, out.Shape[0])
		if err != nil {
			return err
		}
		k.name(label, out.Floats, classes)
	}
	transform(k.post, out.Floats, classes)
	if k.single && k.post == "NONE" {
		for i := 0; i < len(out.Floats); i += 2 {
			out.Floats[i]++ // complement to 1, as in ONNX Runtime
		}
	}
	return nil
}

// bothClasses turns one sum, the second class's, into the sums of both classes. The sums are
// packed at the front.
func bothClasses(x []float32) {
	for i := len(x)/2 - 1; i >= 0; i-- {
		v := x[i]
		x[2*i], x[2*i+1] = -v, v
	}
}

func (k *classifier) name(label *tensor.Tensor, x []float32, n int) {
	for i := range length(label) {
		best := 0
		for j, v := range x[i*n : (i+1)*n] {
			if v > x[i*n+best] {
				best = j
			}
		}
		if k.texts != nil {
			label.Strings[i] = k.texts[best]
		} else {
			label.Ints[i] = k.ints[best]
		}
	}
}

// scaler subtracts an offset from each feature and multiplies it. It is not merged into
// a following product: if the offset is large compared to the spread, as with times,
// the sum would lose the spread's digits.
func (c *compiler) scaler(n *node) error {
	offset, by := n.floats("offset"), n.floats("scale")
	if len(offset) == 0 {
		offset = []float32{0}
	}
	if len(by) == 0 {
		by = []float32{1}
	}
	c.program.bytes += 4 * int64(len(offset)+len(by))
	return c.eachElement(n, tensor.Float, func(s *state, in, out *tensor.Tensor) error {
		features := featuresOf(in.Shape)
		if len(offset) != 1 && len(offset) != features || len(by) != 1 && len(by) != features {
			return fmt.Errorf("%v has %d features; it scales %d and %d", slices.Clone(in.Shape), features, len(offset), len(by))
		}
		for x, y := s.asFloats(in), out.Floats; len(y) > 0; x, y = x[features:], y[features:] {
			pairs["Sub"].floats(y[:features], x[:features], offset)
			pairs["Mul"].floats(y[:features], y[:features], by)
		}
		return nil
	})
}

// featuresOf returns the number of features of an event: the last dimension.
func featuresOf(shape []int) int {
	if len(shape) == 0 {
		return 1
	}
	return shape[len(shape)-1]
}

// normalizer divides each event's numbers by their maximum, by the sum of their
// absolute values, or by their length. Numbers that would be divided by 0 stay.
func (c *compiler) normalizer(n *node) error {
	norm := n.text("norm", "MAX")
	if !slices.Contains([]string{"MAX", "L1", "L2"}, norm) {
		return fmt.Errorf("norm %s %w", norm, onnx.ErrUnsupported)
	}
	return c.eachElement(n, tensor.Float, func(s *state, in, out *tensor.Tensor) error {
		copy(out.Floats, s.asFloats(in))
		features := featuresOf(in.Shape)
		for y := out.Floats; len(y) > 0; y = y[features:] {
			normalize(norm, y[:features])
		}
		return nil
	})
}

func normalize(norm string, x []float32) {
	var by float32
	for i, v := range x {
		switch norm {
		case "MAX":
			if i == 0 || v > by {
				by = v
			}
		case "L1":
			by += float32(math.Abs(float64(v)))
		default:
			by += v * v
		}
	}
	if norm == "L2" {
		by = float32(math.Sqrt(float64(by)))
	}
	if by == 0 {
		return
	}
	for i := range x {
		x[i] /= by
	}
}
