package native

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"tidemill.dev/internal/scoring/infer/onnx"
	"tidemill.dev/internal/scoring/infer/tensor"
)

func (c *compiler) cast(n *node) error {
	x, kind := n.in[0], tensor.Type(n.integer("to", 0))
	if !isSupported(x.kind) || !isSupported(kind) {
		return fmt.Errorf("from %s to %s %w", typeName(x.kind), typeName(kind), onnx.ErrUnsupported)
	}
	if x.kind == kind {
		c.declareSame(n, x)
		return nil
	}
	c.castTo(n.describe(), x, c.output(n, 0, kind, x.shape))
	return nil
}

// castTo adds a step that converts a value into another type.
func (c *compiler) castTo(what string, x, y *value) {
	from, to, kind := x.ref, y.ref, y.kind
	c.add(what, []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		out, err := s.prepare(to, kind, in.Shape...)
		if err != nil {
			return err
		}
		switch in.Type {
		case tensor.Float:
			return castNumbers(out, in.Floats, 32)
		case tensor.Double:
			return castNumbers(out, in.Doubles, 64)
		case tensor.String:
			return castTexts(out, in.Strings)
		}
		return castNumbers(out, in.Ints, 64)
	})
}

func castNumbers[T number](out *tensor.Tensor, in []T, bits int) error {
	switch out.Type {
	case tensor.Float:
		for i, v := range in {
			out.Floats[i] = float32(v)
		}
	case tensor.Double:
		for i, v := range in {
			out.Doubles[i] = float64(v)
		}
	case tensor.String:
		for i, v := range in {
			out.Strings[i] = written(v, bits)
		}
	default:
		for i, v := range in {
			out.Ints[i] = truncate(out.Type, v)
		}
	}
	return nil
}

// truncate truncates a number to an integer. A number that no integer can hold becomes the
// least integer, as on x86.
func truncate[T number](kind tensor.Type, v T) int64 {
	if kind == tensor.Bool {
		if v != 0 {
			return 1
		}
		return 0
	}
	if i, ok := any(v).(int64); ok {
		if kind == tensor.Int32 {
			return int64(int32(i))
		}
		return i
	}
	least, most := float64(math.MinInt64), -float64(math.MinInt64)
	if kind == tensor.Int32 {
		least, most = math.MinInt32, math.MaxInt32+1
	}
	if f := math.Trunc(float64(v)); f >= least && f < most {
		return int64(f)
	}
	return int64(least)
}

// written formats a number as ONNX Runtime does.
func written[T number](v T, bits int) string {
	if i, ok := any(v).(int64); ok {
		return strconv.FormatInt(i, 10)
	}
	switch f := float64(v); {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "INF"
	case math.IsInf(f, -1):
		return "-INF"
	default:
		return strconv.FormatFloat(f, 'g', 8, bits)
	}
}

func castTexts(out *tensor.Tensor, in []string) error {
	for i, text := range in {
		text = strings.TrimSpace(text)
		var err error
		var f float64
		var n int64
		switch out.Type {
		case tensor.Float:
			f, err = strconv.ParseFloat(text, 32)
			out.Floats[i] = float32(f)
		case tensor.Double:
			out.Doubles[i], err = strconv.ParseFloat(text, 64)
		default:
			n, err = strconv.ParseInt(text, 10, 64)
			out.Ints[i] = truncate(out.Type, n)
		}
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
	}
	return nil
}
