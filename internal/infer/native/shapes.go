package native

import (
	"fmt"
	"math"
	"strconv"

	"tidemill.dev/internal/infer/tensor"
)

// maxRank is how many sides a tensor has at most; onnx.Read sees to it for weights.
const maxRank = 8

// elements is how many numbers a shape holds.
func elements(shape []int) (int, error) {
	n, empty := 1, false
	for _, side := range shape {
		if side < 0 || side > 0 && n > math.MaxInt32/side {
			return 0, fmt.Errorf("a table of %v is too large", append([]int(nil), shape...))
		}
		if n *= max(side, 1); side == 0 {
			empty = true
		}
	}
	if empty {
		n = 0
	}
	if len(shape) > maxRank {
		return 0, fmt.Errorf("a table of %d sides has too many: %d is what we take", len(shape), maxRank)
	}
	return n, nil
}

// length is how many numbers a tensor holds.
func length(t *tensor.Tensor) int {
	switch t.Type {
	case tensor.Float:
		return len(t.Floats)
	case tensor.Double:
		return len(t.Doubles)
	case tensor.String:
		return len(t.Strings)
	}
	return len(t.Ints)
}

// volume is the product of sides that are known to be of a tensor.
func volume(sides []int) int {
	n := 1
	for _, side := range sides {
		n *= side
	}
	return n
}

// axisOf is the side that an axis means, which may count from the end.
func axisOf(axis int64, rank int) (int, error) {
	if axis < 0 {
		axis += int64(rank)
	}
	if axis < 0 || axis >= int64(rank) {
		return 0, fmt.Errorf("there is no axis %d among %d", axis, rank)
	}
	return int(axis), nil
}

// typeName is a type as ONNX calls it.
func typeName(t tensor.Type) string {
	names := [...]string{"of no tensor", "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool",
		"float16", "double", "uint32", "uint64", "complex64", "complex128", "bfloat16"}
	if t >= 0 && int(t) < len(names) {
		return names[t]
	}
	return "type " + strconv.Itoa(int(t))
}

// known says whether tensors may be of a type.
func known(t tensor.Type) bool {
	switch t {
	case tensor.Float, tensor.Double, tensor.Int32, tensor.Int64, tensor.Bool, tensor.String:
		return true
	}
	return false
}
