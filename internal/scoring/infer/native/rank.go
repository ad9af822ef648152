package native

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// arg is ArgMax and ArgMin.
func (c *compiler) arg(n *node) error {
	x := n.in[0]
	axis, keep := n.integer("axis", 0), n.integer("keepdims", 1) != 0
	var shape []int
	if x.shape != nil {
		shape = slices.Repeat([]int{tensor.Any}, max(len(x.shape)-int(truth(!keep)), 0))
	}
	y := c.output(n, 0, tensor.Int64, shape)
	wanted := more
	if n.Op == "ArgMin" {
		wanted = less
	}
	if n.integer("select_last_index", 0) != 0 {
		wanted |= equal
	}
	from, to := x.ref, y.ref
	c.add(n.describe(), []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		at, err := axisOf(axis, len(in.Shape))
		if err != nil {
			return err
		}
		var room [maxRank]int
		shape := append(room[:0], in.Shape[:at]...)
		if keep {
			shape = append(shape, 1)
		}
		out, err := s.prepare(to, tensor.Int64, append(shape, in.Shape[at+1:]...)...)
		if err != nil || len(out.Ints) == 0 {
			return err
		}
		if in.Shape[at] == 0 {
			return errors.New("there is no greatest of nothing")
		}
		n, step := in.Shape[at], volume(in.Shape[at+1:])
		switch in.Type {
		case tensor.Float:
			outermostOf(out.Ints, in.Floats, n, step, wanted)
		case tensor.Double:
			outermostOf(out.Ints, in.Doubles, n, step, wanted)
		default:
			outermostOf(out.Ints, in.Ints, n, step, wanted)
		}
		return nil
	})
	return nil
}

// outermostOf writes the index of the maximum or minimum of each group of n numbers that are step
// numbers apart. NaN counts as the maximum and as the minimum, as in ONNX Runtime.
func outermostOf[T number](to []int64, x []T, n, step, wanted int) {
	for i := range to {
		row := x[i/step*n*step+i%step:]
		best, at := row[0], 0
		for k := 1; k < n && best == best; k++ {
			if v := row[k*step]; v != v || compare(v, best)&wanted != 0 {
				best, at = v, k
			}
		}
		to[i] = int64(at)
	}
}

// topK selects the greatest or least numbers along the last axis. Of equal numbers the first counts.
func (c *compiler) topK(n *node) error {
	if err := n.wants(1+int(truth(n.opset >= 10)), 2); err != nil {
		return err
	}
	x, reads := n.in[0], n.in
	if err := checkKinds(x, numeric...); err != nil {
		return err
	}
	by, k := (*ref)(nil), n.integer("k", 1)
	if n.opset >= 10 {
		if err := checkKinds(n.in[1], tensor.Int64); err != nil {
			return err
		}
		by = n.in[1].ref
	}
	axis := n.integer("axis", -1)
	if axis != -1 && axis != int64(len(x.shape))-1 {
		return fmt.Errorf("axis %d %w, only the last one", axis, onnx.ErrUnsupported)
	}
	wanted := more
	if n.integer("largest", 1) == 0 {
		wanted = less
	}
	values, indexes := c.output(n, 0, x.kind, x.shape), c.output(n, 1, tensor.Int64, x.shape)
	if x.shape != nil {
		values.shape = slices.Repeat([]int{tensor.Any}, len(x.shape))
		indexes.shape = values.shape
	}
	from, to, toIndex := x.ref, values.ref, indexes.ref
	c.add(n.describe(), reads, []*value{values, indexes}, func(s *state) error {
		in, k := s.get(from), k
		if by != nil {
			if t := s.get(by); len(t.Ints) == 1 {
				k = t.Ints[0]
			} else {
				return errors.New("its number K is not one number")
			}
		}
		if len(in.Shape) == 0 || k < 0 || k > int64(featuresOf(in.Shape)) {
			return fmt.Errorf("it wants %d of each row of %v", k, slices.Clone(in.Shape))
		}
		var room [maxRank]int
		shape := append(room[:0], in.Shape...)
		shape[len(shape)-1] = int(k)
		out, err := s.prepare(to, in.Type, shape...)
		if err != nil {
			return err
		}
		index, err := s.prepare(toIndex, tensor.Int64, shape...)
		if err != nil || k == 0 {
			return err
		}
		switch width := featuresOf(in.Shape); in.Type {
		case tensor.Float:
			selectBest(out.Floats, index.Ints, in.Floats, int(k), width, wanted)
		case tensor.Double:
			selectBest(out.Doubles, index.Ints, in.Doubles, int(k), width, wanted)
		default:
			selectBest(out.Ints, index.Ints, in.Ints, int(k), width, wanted)
		}
		return nil
	})
	return nil
}

// selectBest writes the k best numbers of each row, and their indexes, in order. It keeps them in a
// heap with the worst on top, so that most numbers of a row cost one comparison.
func selectBest[T number](out []T, index []int64, x []T, k, width, wanted int) {
	for ; len(x) > 0; out, index, x = out[k:], index[k:], x[width:] {
		row, heap := x[:width], index[:k]
		worse := func(a, b int64) bool { // reports whether a is after b in the order
			c := compare(row[a], row[b])
			return c&wanted == 0 && (c != equal || a > b)
		}
		for i := range row {
			if i < k {
				heap[i] = int64(i)
				if i == k-1 {
					for j := k/2 - 1; j >= 0; j-- {
						sink(heap, j, worse)
					}
				}
			} else if worse(heap[0], int64(i)) {
				heap[0] = int64(i)
				sink(heap, 0, worse)
			}
		}
		for end := k - 1; end > 0; end-- {
			heap[0], heap[end] = heap[end], heap[0]
			sink(heap[:end], 0, worse)
		}
		for i, at := range heap {
			out[i] = row[at]
		}
	}
}

// sink moves an element of a heap down until no element below it is worse.
func sink(heap []int64, at int, worse func(a, b int64) bool) {
	for {
		below := 2*at + 1
		if below >= len(heap) {
			return
		}
		if below+1 < len(heap) && worse(heap[below+1], heap[below]) {
			below++
		}
		if !worse(heap[below], heap[at]) {
			return
		}
		heap[at], heap[below] = heap[below], heap[at]
		at = below
	}
}
