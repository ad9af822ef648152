package native

import (
	"fmt"
	"slices"

	"tidemill.dev/internal/infer/tensor"
)

// extract is ArrayFeatureExtractor: it takes columns by their numbers, as sklearn's
// networks do to name the class that is the greatest.
func (c *compiler) extract(n *node) error {
	if err := n.wants(2, 2); err != nil {
		return err
	}
	x, index := n.in[0], n.in[1]
	if err := only(index, tensor.Int64); err != nil {
		return err
	}
	y := c.output(n, 0, x.kind, nil)
	if x.shape != nil {
		y.shape = slices.Repeat([]int{tensor.Any}, max(2, len(x.shape)))
	}
	from, by, to := x.ref, index.ref, y.ref
	c.add(n.what(), []*value{x, index}, []*value{y}, func(s *state) error {
		in, index := s.get(from), s.get(by).Ints
		columns := featuresOf(in.Shape)
		for _, i := range index {
			if i < 0 || i >= int64(columns) {
				return fmt.Errorf("there is no column %d of %d", i, columns)
			}
		}
		var room [maxRank]int
		shape := append(room[:0], in.Shape...)
		if len(shape) < 2 {
			shape = append(room[:0], 1, columns)
		}
		shape[len(shape)-1] = len(index)
		out, err := s.make(to, in.Type, shape...)
		if err != nil || length(out) == 0 {
			return err
		}
		for row := range volume(shape[:len(shape)-1]) {
			for k, i := range index {
				paste(out, row*len(index)+k, in, row*columns+int(i), 1)
			}
		}
		return nil
	})
	return nil
}
