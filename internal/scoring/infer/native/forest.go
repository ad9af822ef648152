package native

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/infer/trees"
)

// forest is a compiled ensemble of trees and what happens to its sums.
type forest[T trees.Number] struct {
	*trees.Ensemble[T]
	base    []T
	post    string
	average bool
	from    *ref
}

// voteScratch is the memory of a run of an ensemble.
type voteScratch struct {
	trees.Scratch
	floats  []float32
	doubles []float64
	seen    []bool
}

// drop drops sums that are larger than a state keeps.
func (v *voteScratch) drop(most int) {
	if cap(v.floats)+cap(v.doubles)+cap(v.seen) > most {
		v.floats, v.doubles, v.seen = nil, nil, nil
	}
}

// sumsOf returns the scratch memory for sums of a type.
func sumsOf[T trees.Number](v *voteScratch) *[]T {
	if p, ok := any(&v.floats).(*[]T); ok {
		return p
	}
	return any(&v.doubles).(*[]T)
}

// inputOf returns a tensor's numbers as an ensemble's inputs.
func inputOf[T trees.Number](s *state, t *tensor.Tensor) []T {
	if x, ok := any(t.Doubles).([]T); ok {
		return x
	}
	return any(s.asFloats(t)).([]T)
}

// newForest packs an ensemble for a node with the input x.
func newForest[T trees.Number](c *compiler, x *value, f *trees.Forest, base []float64, post string) (*forest[T], error) {
	if f.Targets < 1 || f.Targets > math.MaxInt16 {
		return nil, fmt.Errorf("it has %d targets or classes; from 1 to %d are supported", f.Targets, math.MaxInt16)
	}
	if !slices.Contains(postTransforms, post) {
		return nil, fmt.Errorf("post_transform %s %w", post, onnx.ErrUnsupported)
	}
	e, err := trees.Build[T](f)
	if errors.Is(err, trees.ErrTooLarge) {
		err = fmt.Errorf("%w, and %w", err, onnx.ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	if n := len(x.shape); n > 0 && x.shape[n-1] != tensor.Any && x.shape[n-1] < e.Features() {
		return nil, fmt.Errorf("its trees ask feature %d; an event has %d", e.Features()-1, x.shape[n-1])
	}
	k := &forest[T]{Ensemble: e, post: post, average: f.Aggregate == trees.Average, from: x.ref}
	for _, v := range base {
		k.base = append(k.base, T(v))
	}
	c.program.bytes += e.Bytes()
	return k, nil
}

// sums lets all rows walk through all trees.
func (f *forest[T]) sums(s *state) (rows int, sums []T, seen []bool, err error) {
	in := s.get(f.from)
	if len(in.Shape) == 0 || len(in.Shape) > 2 || featuresOf(in.Shape) < f.Features() {
		return 0, nil, nil, fmt.Errorf("its trees ask feature %d; the events are of %v", f.Features()-1, slices.Clone(in.Shape))
	}
	rows = volume(in.Shape[:len(in.Shape)-1])
	if err := s.multiply(rows, f.Steps(), 1); err != nil {
		return 0, nil, nil, err
	}
	n, to := rows*f.Targets(), sumsOf[T](&s.votes)
	if n > s.left.numbers {
		return 0, nil, nil, fmt.Errorf("%d rows with %d sums are more than a run may make: ask for fewer rows at once", rows, f.Targets())
	}
	if s.budget != nil {
		if err := s.budget.Take(int64(n) * int64(unsafe.Sizeof(T(0))+1)); err != nil {
			return 0, nil, nil, err
		}
	}
	*to, s.votes.seen = room(*to, n), room(s.votes.seen, n)
	f.Run(&s.votes.Scratch, rows, featuresOf(in.Shape), inputOf[T](s, in), *to, s.votes.seen)
	return rows, *to, s.votes.seen, nil
}

// finish turns sums into the numbers of a regression. A target that no leaf of a row votes for is
// 0, even if it has a base value, as in ONNX Runtime.
func (f *forest[T]) finish(rows int, sums []T, seen []bool) {
	n, count := f.Targets(), T(f.Trees())
	for i, sum := range sums[:rows*n] {
		if f.average {
			sum /= count
		}
		if len(f.base) == n {
			sum += f.base[i%n]
		}
		if n > 1 && !seen[i] {
			sum = 0
		}
		sums[i] = sum
	}
}

// write writes finished sums to an output of floats or doubles. The operation on sums is computed
// with floats in both cases, as in ONNX Runtime.
func (f *forest[T]) write(s *state, sums []T, out *tensor.Tensor) {
	if out.Type == tensor.Float {
		for i := range out.Floats {
			out.Floats[i] = float32(sums[i])
		}
		transform(f.post, out.Floats, f.Targets())
		return
	}
	for i := range out.Doubles {
		out.Doubles[i] = float64(sums[i])
	}
	if f.post != "NONE" {
		x := s.asFloats(out)
		transform(f.post, x, f.Targets())
		for i, v := range x {
			out.Doubles[i] = float64(v)
		}
	}
}

// treeRegressor computes with the type of its input. Whole numbers become float32, as in ONNX
// Runtime.
func (c *compiler) treeRegressor(n *node) error {
	if n.in[0].kind == tensor.Double {
		return treeRegressor[float64](c, n)
	}
	return treeRegressor[float32](c, n)
}

func treeRegressor[T trees.Number](c *compiler, n *node) error {
	t, err := readListed[T](n, "target")
	if err != nil {
		return err
	}
	defer t.giveBack()
	t.Targets = int(min(max(n.integer("n_targets", 0), 0), math.MaxInt32))
	aggregate := slices.Index([]string{"SUM", "AVERAGE", "MIN", "MAX"}, n.text("aggregate_function", "SUM"))
	if aggregate < 0 {
		return fmt.Errorf("aggregate_function %s %w", n.text("aggregate_function", ""), onnx.ErrUnsupported)
	}
	t.Aggregate = trees.Aggregate(aggregate)
	if len(t.base) != 0 && len(t.base) != t.Targets {
		return fmt.Errorf("it has %d base values for %d targets", len(t.base), t.Targets)
	}
	return regression[T](c, n, &t.Forest, t.base, n.text("post_transform", "NONE"), tensor.Float)
}

// regression adds the step of a regression.
func regression[T trees.Number](c *compiler, n *node, t *trees.Forest, base []float64, post string, kind tensor.Type) error {
	onlyFirst(t)
	f, err := newForest[T](c, n.in[0], t, base, post)
	if err != nil {
		return err
	}
	y := c.output(n, 0, kind, []int{tensor.Any, f.Targets()})
	to := y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		rows, sums, seen, err := f.sums(s)
		if err != nil {
			return err
		}
		out, err := s.prepare(to, kind, rows, f.Targets())
		if err != nil {
			return err
		}
		f.finish(rows, sums, seen)
		f.write(s, sums, out)
		return nil
	})
	return nil
}

// onlyFirst drops all weights of a leaf but the first if there is one target, as ONNX Runtime does.
func onlyFirst(f *trees.Forest) {
	if f.Targets != 1 {
		return
	}
	seen := make([]bool, len(f.Nodes))
	f.Votes = slices.DeleteFunc(f.Votes, func(v trees.Vote) bool {
		if v.Node < 0 || int(v.Node) >= len(seen) {
			return false
		}
		first := !seen[v.Node]
		seen[v.Node] = true
		return !first
	})
}

// treeVotes is a TreeEnsembleClassifier. Its rules for two classes are those of ONNX Runtime,
// which exporters rely on; ONNX does not have them.
type treeVotes[T trees.Number] struct {
	*forest[T]
	kind          tensor.Type // of the labels
	ints          []int64
	texts         []string
	one           bool // two classes, and all weights are for the same one
	positive      bool // no weight is negative
	label, scores *ref // label is nil if no node reads it
}

func (c *compiler) treeClassifier(n *node) error {
	if n.in[0].kind == tensor.Double {
		return treeClassifier[float64](c, n)
	}
	return treeClassifier[float32](c, n)
}

func treeClassifier[T trees.Number](c *compiler, n *node) error {
	k := &treeVotes[T]{kind: tensor.Int64, ints: n.ints("classlabels_int64s"), texts: n.texts("classlabels_strings")}
	classes := max(len(k.ints), len(k.texts))
	if len(k.ints) > 0 && len(k.texts) > 0 || classes == 0 {
		return errors.New("its classes have no names, or two each")
	}
	if k.texts != nil {
		k.kind = tensor.String
	}
	t, err := readListed[T](n, "class")
	if err != nil {
		return err
	}
	defer t.giveBack()
	t.Targets = classes
	k.weigh(t.Votes)
	post := n.text("post_transform", "NONE")
	if err := k.checkTwo(post, len(t.base), classes); err != nil {
		return err
	}
	if k.forest, err = newForest[T](c, n.in[0], &t.Forest, t.base, post); err != nil {
		return err
	}
	scores := c.output(n, 1, tensor.Float, []int{tensor.Any, classes})
	writes := []*value{scores}
	k.scores = scores.ref
	if c.isRead(n, 0) {
		label := c.output(n, 0, k.kind, []int{tensor.Any})
		k.label, writes = label.ref, append(writes, label)
	}
	c.add(n.describe(), n.in, writes, k.run)
	return nil
}

// weigh finds what the rules for two classes depend on.
func (k *treeVotes[T]) weigh(votes []trees.Vote) {
	k.one, k.positive = max(len(k.ints), len(k.texts)) == 2 && len(votes) > 0, true
	for _, v := range votes {
		k.one = k.one && v.Target == votes[0].Target
		k.positive = k.positive && v.Value >= 0
	}
}

// checkTwo checks the number of base values, and leaves to ONNX Runtime what has no sensible meaning.
func (k *treeVotes[T]) checkTwo(post string, base, classes int) error {
	switch {
	case classes == 1, classes == 2 && (post == "PROBIT" || base == 1 && !k.one):
		return fmt.Errorf("%d classes with post_transform %s and %d base values %w: engines interpret it differently", classes, post, base, onnx.ErrUnsupported)
	case base != 0 && base != classes && (classes != 2 || base > 2):
		return fmt.Errorf("it has %d base values for %d classes", base, classes)
	}
	return nil
}

func (k *treeVotes[T]) run(s *state) error {
	rows, sums, seen, err := k.sums(s)
	if err != nil {
		return err
	}
	n := k.Targets()
	out, err := s.prepare(k.scores, tensor.Float, rows, n)
	if err != nil {
		return err
	}
	label := &tensor.Tensor{}
	if k.label != nil {
		if label, err = s.prepare(k.label, k.kind, rows); err != nil {
			return err
		}
	}
	from, transformed := 0, false // rows since from have the operation on sums, or have not
	for i := range rows {
		best, with, err := k.row(sums[i*n:(i+1)*n], seen[i*n:(i+1)*n], out.Floats[i*n:(i+1)*n])
		if err != nil {
			return err
		}
		if with != transformed {
			k.transformRows(transformed, out.Floats[from*n:i*n])
			from, transformed = i, with
		}
		switch label.Type {
		case tensor.String:
			label.Strings[i] = k.texts[best]
		case tensor.Int64:
			label.Ints[i] = k.ints[best]
		}
	}
	k.transformRows(transformed, out.Floats[from*n:])
	return nil
}

func (k *treeVotes[T]) transformRows(with bool, x []float32) {
	if with && len(x) > 0 {
		transform(k.post, x, k.Targets())
	}
}

// row writes a row's scores and returns its class, and whether the operation on sums follows.
func (k *treeVotes[T]) row(sums []T, seen []bool, out []float32) (best int, with bool, err error) {
	if len(sums) == 2 {
		best, with = k.two(sums, seen, out)
		return best, with, nil
	}
	best = -1
	var greatest T
	for i, sum := range sums {
		if len(k.base) > 0 {
			sum, seen[i] = sum+k.base[i], true
		}
		if seen[i] && (best < 0 || sum > greatest) {
			best, greatest = i, sum
		}
		out[i] = float32(sum)
	}
	if best < 0 {
		return 0, false, errors.New("no leaf that a row reaches has a weight, so the row has no class")
	}
	return best, true, nil
}

// two is row for two classes. Often the weights are for one class only, and the other one's score
// follows from it.
func (k *treeVotes[T]) two(sums []T, seen []bool, out []float32) (best int, with bool) {
	first, second := sums[0], sums[1]
	switch {
	case len(k.base) == 2 && seen[1]:
		second = k.base[1] + first
		first = -second
	case len(k.base) > 0:
		first += k.base[0]
	}
	if !seen[0] {
		first = 0
	}
	decides, least := first, T(0)
	if seen[1] {
		decides = second
	}
	if k.one && k.positive {
		least = 0.5
	}
	if decides > least {
		best = 1
	}
	switch {
	case seen[1] || len(k.base) == 2:
		if !seen[1] {
			second = 0
		}
		out[0], out[1] = float32(first), float32(second)
		return best, true
	case k.one && k.positive && k.post != "LOGISTIC":
		first, second = 1-first, first
	default:
		first, second = -first, first
	}
	out[0], out[1] = float32(first), float32(second)
	return best, k.post == "LOGISTIC"
}
