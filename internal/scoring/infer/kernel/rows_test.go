package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func TestActivations(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		for act := None; act <= Exp; act++ {
			for _, n := range sizes {
				checkActivation(t, on, act, n)
			}
		}
	})
}

// checkActivation uses numbers of all sizes. For few of them, exp overflows.
func checkActivation(t *testing.T, on variant, act Activation, n int) {
	t.Helper()
	r := rand.New(rand.NewPCG(3, uint64(n)))
	x := random(r, n+1)
	for i := range x[:n] {
		x[i] *= float32(math.Exp(r.Float64()*16 - 12))
	}
	before := append([]float32(nil), x...)
	act.apply(on, x[:n])
	for i, v := range x[:n] {
		want := reference(act, float64(before[i]))
		if want > math.MaxFloat32 {
			want = math.Inf(1)
		}
		if off := math.Abs(float64(v) - want); off > 4e-7*math.Abs(want)+1e-37 && float64(v) != want {
			t.Fatalf("activation %d of %v is %v, want %v", act, before[i], v, want)
		}
	}
	if x[n] != before[n] {
		t.Fatalf("%d wrote after the end", n)
	}
}

var hostile = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, 88, 88.8, 90, -87, -88, -100, -103, -110, 1e-40, -1e-40, 1e30, -1e30,
	math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 0.625, -0.625,
}

// NaN and results out of range are the same as without vectors.
func TestActivationsOfNoNumbers(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		for act := None; act <= Exp; act++ {
			x := append([]float32(nil), hostile...)
			act.apply(on, x)
			for i, v := range x {
				want := act.of(hostile[i])
				if !sameBits(v, want) && !(math.Abs(float64(v-want)) <= 2e-6*math.Abs(float64(want))+1e-37) {
					t.Errorf("activation %d of %v is %v, want %v", act, hostile[i], v, want)
				}
			}
		}
	})
}

func TestSoftmax(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		for _, n := range sizes {
			r := rand.New(rand.NewPCG(4, uint64(n)))
			for _, rows := range []int{0, 1, 3} {
				x := random(r, rows*n+1)
				for i := range x {
					x[i] = x[i]*20 + 100
				}
				want := append([]float32(nil), x...)
				softmax(on, rows, n, x)
				softmax(scalar, rows, n, want)
				for i := range want {
					checkNear(t, fmt.Sprintf("%d×%d: %d", rows, n, i), x[i], float64(want[i]), 0)
				}
			}
		}
	})
}

func TestSoftmaxOfNoNumbers(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		for _, v := range hostile {
			for at := range 20 {
				x := random(rand.New(rand.NewPCG(5, 6)), 20)
				x[at] = v
				want := append([]float32(nil), x...)
				softmax(on, 1, 20, x)
				softmaxScalar(want)
				for i := range want {
					if !sameBits(x[i], want[i]) && !(math.Abs(float64(x[i]-want[i])) < 1e-6) {
						t.Fatalf("with %v: %v, want %v", v, x, want)
					}
				}
			}
		}
		none := []float32{float32(math.Inf(-1)), float32(math.Inf(-1))}
		if softmax(on, 1, 2, none); none[0] == none[0] {
			t.Fatalf("of nothing: %v", none)
		}
	})
}

func TestOperations(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		for how := adding; how <= dividing; how++ {
			for _, n := range append(sizes, len(hostile)) {
				r := rand.New(rand.NewPCG(7, uint64(n)))
				a, b, dst, want := random(r, n), random(r, n), random(r, n+1), make([]float32, n)
				copy(a, hostile)
				copy(b, hostile[3:])
				guard := dst[n]
				how.combine(on, dst[:n], a, b)
				how.scalar(want, a, b)
				for i := range want {
					if !sameBits(dst[i], want[i]) {
						t.Fatalf("operation %d on %v and %v is %v, want %v", how, a[i], b[i], dst[i], want[i])
					}
				}
				if dst[n] != guard {
					t.Fatalf("%d wrote after the end", n)
				}
			}
		}
	})
}
