package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// variants returns the variants that this processor supports.
func variants() []variant {
	var all []variant
	for v := scalar; v <= best; v++ {
		all = append(all, v)
	}
	return all
}

// eachVariant runs a test once with every variant.
func eachVariant(t *testing.T, test func(*testing.T, variant)) {
	for _, v := range variants() {
		t.Run(v.String(), func(t *testing.T) { test(t, v) })
	}
}

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// checkNear compares a result with one in float64. sum is the sum of the absolute terms. 1e-5 of it
// is more than rounding loses, and less than the effect of any bug.
func checkNear(t *testing.T, what string, got float32, want, sum float64) {
	t.Helper()
	if !(math.Abs(float64(got)-want) <= 1e-5*(1+sum)) {
		t.Fatalf("%s is %v, want %v", what, got, want)
	}
}

// sameBits reports whether two numbers are equal bit by bit, or both NaN.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

var sizes = []int{0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 20, 31, 32, 33, 47, 48, 63, 64, 65, 100, 128, 131, 200}

func TestMultiply(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range sizes {
			for _, k := range []int{0, 1, 2, 3, 5, 8, 17, 64, 129} {
				for _, m := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33} {
					checkMultiply(t, r, on, m, k, n)
				}
			}
		}
	})
}

func checkMultiply(t *testing.T, r *rand.Rand, on variant, m, k, n int) {
	t.Helper()
	a, b, bias := random(r, m*k), random(r, k*n), random(r, n)
	act := Activation(r.IntN(4)) // Exp has a separate test, because it is unbounded
	if r.IntN(3) == 0 {
		bias = nil
	}
	c := random(r, m*n+1)
	guard := c[m*n]
	pack(on, k, n, b).Multiply(m, a, bias, act, c)
	if c[m*n] != guard {
		t.Fatalf("%d×%d×%d wrote after the end", m, k, n)
	}
	for i := range m {
		for j := range n {
			want, sum := dot(a[i*k:(i+1)*k], b, n, j)
			if bias != nil {
				want += float64(bias[j])
			}
			checkNear(t, fmt.Sprintf("%d×%d×%d act %d: %d, %d", m, k, n, act, i, j), c[i*n+j], reference(act, want), sum)
		}
	}
}

func dot(a, b []float32, n, column int) (sum, size float64) {
	for i, v := range a {
		p := float64(v) * float64(b[i*n+column])
		sum += p
		size += math.Abs(p)
	}
	return sum, size
}

func reference(act Activation, x float64) float64 {
	switch act {
	case Relu:
		return math.Max(x, 0)
	case Sigmoid:
		return 1 / (1 + math.Exp(-x))
	case Tanh:
		return math.Tanh(x)
	case Exp:
		return math.Exp(x)
	}
	return x
}
