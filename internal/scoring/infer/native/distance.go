package native

import (
	"fmt"
	"math"
	"slices"

	"tidemill.dev/internal/scoring/infer/onnx"
)

// cDist is com.microsoft.CDist: the distance of each row of one table from each row of another.
func (c *compiler) cDist(n *node) error {
	a, b, metric := n.in[0], n.in[1], n.text("metric", "sqeuclidean")
	if a.kind != b.kind {
		return fmt.Errorf("one side is %s and the other %s", typeName(a.kind), typeName(b.kind))
	}
	if metric != "sqeuclidean" && metric != "euclidean" {
		return fmt.Errorf("metric %s %w", metric, onnx.ErrUnsupported)
	}
	y := c.output(n, 0, a.kind, openShape(2))
	x1, x2, to := a.ref, b.ref, y.ref
	c.add(n.describe(), n.in, []*value{y}, func(s *state) error {
		a, b := s.get(x1), s.get(x2)
		if len(a.Shape) != 2 || len(b.Shape) != 2 || a.Shape[1] != b.Shape[1] {
			return fmt.Errorf("rows of %v and %v do not go together", slices.Clone(a.Shape), slices.Clone(b.Shape))
		}
		out, err := s.prepare(to, a.Type, a.Shape[0], b.Shape[0])
		if err == nil {
			err = s.multiply(a.Shape[0], a.Shape[1], b.Shape[0])
		}
		if err != nil {
			return err
		}
		distances(out.Floats, a.Floats, b.Floats, a.Shape[1], metric == "euclidean")
		distances(out.Doubles, a.Doubles, b.Doubles, a.Shape[1], metric == "euclidean")
		return nil
	})
	return nil
}

func distances[T float32 | float64](to, a, b []T, width int, root bool) {
	for ; len(to) > 0; a = a[width:] {
		x := a[:width]
		for y := b; len(y) > 0 || width == 0 && len(to) > 0; y = y[width:] {
			sum := 0.0
			for k, v := range y[:width] {
				d := float64(x[k]) - float64(v)
				sum += d * d
			}
			if root {
				sum = math.Sqrt(sum)
			}
			to[0], to = T(sum), to[1:]
		}
	}
}
