package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// A row's answer is the same to the bit in any batch, whether it is passed as a sparse row or not.
func TestMultiplyDoesNotDependOnTheBatch(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		r := rand.New(rand.NewPCG(8, 9))
		for _, n := range []int{1, 20, 64, 100, 150} {
			for _, k := range []int{1, 64, tall - 1, tall, 300} {
				checkIndependence(t, r, pack(on, k, n, random(r, k*n)))
			}
		}
	})
}

func checkIndependence(t *testing.T, r *rand.Rand, w *Weights) {
	t.Helper()
	const m = 11
	a, bias := random(r, m*w.k), random(r, w.n)
	all, one := make([]float32, m*w.n), make([]float32, w.n)
	w.Multiply(m, a, bias, None, all)
	for row := range m {
		x := a[row*w.k : (row+1)*w.k]
		w.Multiply(1, x, bias, None, one)
		equal(t, fmt.Sprintf("%d×%d alone", w.k, w.n), one, all[row*w.n:])
		index := make([]int32, w.k)
		for i := range index {
			index[i] = int32(i)
		}
		w.MultiplySparse(index, x, bias, None, one)
		equal(t, fmt.Sprintf("%d×%d sparse", w.k, w.n), one, all[row*w.n:])
	}
}

func equal(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i, v := range got {
		if !sameBits(v, want[i]) {
			t.Fatalf("%s: number %d is %v, want %v", what, i, v, want[i])
		}
	}
}

func TestMultiplySparse(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		r := rand.New(rand.NewPCG(10, 11))
		for _, n := range sizes {
			for _, k := range []int{1, 20, tall, 1000} {
				checkSparse(t, r, on, k, n, r.IntN(30))
			}
		}
	})
}

// checkSparse uses rows in any order, some more than once.
func checkSparse(t *testing.T, r *rand.Rand, on variant, k, n, count int) {
	t.Helper()
	b, bias, value := random(r, k*n), random(r, n), random(r, count)
	index := make([]int32, count)
	for i := range index {
		index[i] = int32(r.IntN(k))
	}
	act := Activation(r.IntN(4))
	c := random(r, n+1)
	guard := c[n]
	pack(on, k, n, b).MultiplySparse(index, value, bias, act, c)
	if c[n] != guard {
		t.Fatalf("%d×%d wrote after the end", k, n)
	}
	for j := range n {
		want, size := float64(bias[j]), 0.0
		for i, row := range index {
			p := float64(value[i]) * float64(b[int(row)*n+j])
			want, size = want+p, size+math.Abs(p)
		}
		checkNear(t, fmt.Sprintf("%d×%d act %d: %d", k, n, act, j), c[j], reference(act, want), size)
	}
}

// A row that does not exist is never read.
func TestMultiplySparseOfNoRow(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		for _, bad := range []int32{-1, 200, math.MaxInt32, math.MinInt32} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("row %d of 200 was read", bad)
					}
				}()
				w := pack(on, 200, 20, make([]float32, 4000))
				w.MultiplySparse([]int32{bad}, []float32{1}, nil, None, make([]float32, 20))
			}()
		}
	})
}

func TestMultiplyNoNumbers(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		for _, m := range []int{1, 2, 4} {
			for _, n := range []int{3, 20, 64} {
				for _, v := range hostile {
					// Whether the largest numbers overflow depends on the rounding.
					if math.IsInf(float64(v), 0) || math.Abs(float64(v)) < math.MaxFloat32 || v != v {
						checkHostile(t, on, m, n, v)
					}
				}
			}
		}
	})
}

// checkHostile puts v into the input and into the weights.
func checkHostile(t *testing.T, on variant, m, n int, v float32) {
	t.Helper()
	const k = 130
	r := rand.New(rand.NewPCG(12, 13))
	a, b := random(r, m*k), random(r, k*n)
	a[(m-1)*k+5], b[7*n+n-1] = v, v
	for act := None; act <= Tanh; act++ {
		got, want := make([]float32, m*n), make([]float32, m*n)
		pack(on, k, n, b).Multiply(m, a, nil, act, got)
		pack(scalar, k, n, b).Multiply(m, a, nil, act, want)
		for i := range want {
			if !sameBits(got[i], want[i]) && !(math.Abs(float64(got[i]-want[i])) <= 1e-5*(1+math.Abs(float64(want[i])))) {
				t.Fatalf("%d rows, %d columns, act %d with %v: number %d is %v, want %v", m, n, act, v, i, got[i], want[i])
			}
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	eachVariant(t, func(t *testing.T, on variant) {
		w := pack(on, 200, 70, make([]float32, 200*70))
		a, bias, c := make([]float32, 7*200), make([]float32, 70), make([]float32, 7*70)
		index, value := []int32{3, 4}, []float32{1, 2}
		if n := testing.AllocsPerRun(10, func() {
			w.Multiply(7, a, bias, Sigmoid, c)
			w.MultiplySparse(index, value, bias, Relu, c)
			softmax(on, 7, 70, c)
			adding.combine(on, c, c, c)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

func TestBytes(t *testing.T) {
	if got := Pack(512, 64, make([]float32, 512*64)).Bytes(); got < 4*512*64 || got > 4*512*64+256 {
		t.Errorf("a matrix of 512×64 takes %d bytes", got)
	}
}
