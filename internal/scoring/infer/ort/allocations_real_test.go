//go:build real && !race

package ort

import (
	"math/rand/v2"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// Not with the race detector, because it makes pools drop their content.
func TestRealNothingIsAllocated(t *testing.T) {
	p := network(t, openLibrary(t))
	in, out := []tensor.Tensor{numbers(rand.New(rand.NewPCG(1, 2)), 8, 512)}, make([]tensor.Tensor, 1)
	if n := testing.AllocsPerRun(100, func() {
		if err := p.Run(in, out); err != nil {
			t.Fatal(err)
		}
	}); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}
