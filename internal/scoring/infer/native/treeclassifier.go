package native

import (
	"errors"
	"fmt"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/infer/trees"
)

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
