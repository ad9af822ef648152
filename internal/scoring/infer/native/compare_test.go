package native

import (
	"math"
	"slices"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// wantTensor compares two tensors: numbers within 1e-5, everything else exactly.
func wantTensor(t *testing.T, name string, got, want *tensor.Tensor) {
	t.Helper()
	if got.Type != want.Type || !slices.Equal(got.Shape, want.Shape) {
		t.Fatalf("%s is %s of %v, want %s of %v", name, typeName(got.Type), got.Shape, typeName(want.Type), want.Shape)
	}
	if length(got) != length(want) {
		t.Fatalf("%s holds %d, want %d", name, length(got), length(want))
	}
	for i := range length(want) {
		switch want.Type {
		case tensor.Float:
			near(t, name, i, float64(got.Floats[i]), float64(want.Floats[i]))
		case tensor.Double:
			near(t, name, i, got.Doubles[i], want.Doubles[i])
		case tensor.String:
			if got.Strings[i] != want.Strings[i] {
				t.Fatalf("%s[%d] is %q, want %q", name, i, got.Strings[i], want.Strings[i])
			}
		default:
			if got.Ints[i] != want.Ints[i] {
				t.Fatalf("%s[%d] is %d, want %d", name, i, got.Ints[i], want.Ints[i])
			}
		}
	}
}

func near(t *testing.T, name string, i int, got, want float64) {
	t.Helper()
	if got == want || math.IsNaN(got) && math.IsNaN(want) || math.Abs(got-want) <= 1e-5*(1+math.Abs(want)) {
		return
	}
	t.Fatalf("%s[%d] is %v, want %v", name, i, got, want)
}
