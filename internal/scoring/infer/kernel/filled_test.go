package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestFilled(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		r := rand.New(rand.NewPCG(7, 7))
		for _, n := range []int{0, 1, 2, 7, 63, 64, 65, 100, 128, 200, 512, 2048, 2049, 5000} {
			for range 20 {
				checkFilled(t, r, on, n)
			}
		}
	})
}

func checkFilled(t *testing.T, r *rand.Rand, on variant, n int) {
	t.Helper()
	odd := []float32{1, -2.5, float32(math.NaN()), float32(math.Inf(-1)), math.SmallestNonzeroFloat32, float32(math.Copysign(0, -1))}
	x := make([]float32, n)
	for range r.IntN(n + 1) {
		x[r.IntN(n)] = odd[r.IntN(len(odd))]
	}
	var index []int32
	for i, v := range x {
		if v != 0 {
			index = append(index, int32(i))
		}
	}
	got, value := make([]int32, len(index)), make([]float32, len(index))
	if m := filled(on, x, got, value); m != len(index) || !slices.Equal(got, index) {
		t.Fatalf("of %v there are %d filled: %v, want %v", x, m, got, index)
	}
	for k, i := range index {
		if !sameBits(value[k], x[i]) {
			t.Fatalf("number %d is %v, want %v", i, value[k], x[i])
		}
	}
	if len(index) > 0 {
		if m := filled(on, x, got[1:], value[1:]); m != -1 {
			t.Fatalf("%d found room for %d", len(index)-1, m)
		}
	}
}

func BenchmarkFilled(b *testing.B) {
	r := rand.New(rand.NewPCG(8, 8))
	rows := make([][]float32, 64)
	for i := range rows {
		rows[i] = make([]float32, 512)
		for range 40 {
			rows[i][r.IntN(512)]++
		}
	}
	index, value := make([]int32, 128), make([]float32, 128)
	i := 0
	for b.Loop() {
		Filled(rows[i%len(rows)], index, value)
		i++
	}
}
