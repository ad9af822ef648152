package kernel

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"
)

func detect() variant {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		return avx2
	}
	return scalar
}

// tile is one call of the assembly: up to four rows of input times some columns of a panel.
type tile struct {
	k      int         // number of terms in each sum
	stride int         // bytes from a row of the panel to the next
	strip  int         // bytes from a strip to the next
	b      *float32    // first column
	width  int         // number of columns
	a, c   [4]*float32 // beginnings of the rows
	bias   *float32    // nil means zeros
	index  *int32      // rows of the panel to add up, for a sparse row
	floor  float32     // lower limit of every sum: 0 for Relu, else minus infinity
}

// rowsTogether returns how many rows of input are multiplied with all panels before the next rows.
// They are read again for each panel, so they should stay in the second-level cache.
func rowsTogether(k int) int { return max(32<<10/(k+1)&^3, 4) }

func (w *Weights) multiplyVector(m int, a, bias []float32, act Activation, c []float32) {
	some := rowsTogether(w.k)
	for row := 0; row < m; row += some {
		end := min(row+some, m)
		for from := 0; from < w.n; {
			p := product{w: w, columns: w.columns(from), bias: bias, floor: act.floor()}
			p.multiply(a[row*w.k:end*w.k], c[row*w.n:end*w.n])
			from += p.width
		}
	}
	act.finish(c)
}

// product multiplies rows with some columns.
type product struct {
	columns
	w     *Weights
	bias  []float32
	floor float32
}

// multiply takes four rows at a time while more than two are left. Three rows are
// multiplied as four, the last one twice.
func (p *product) multiply(a, c []float32) {
	m, k, n := len(c)/p.w.n, p.w.k, p.w.n
	fours := min((m+1)/4*4, m)
	p.stripes(4, a[:fours*k], c[:fours*n])
	if rest := m - fours; rest > 0 {
		p.stripes(rest, a[fours*k:], c[fours*n:])
	}
}

// stripes multiplies all rows with a few columns before it goes to the next columns, so
// that weights are read from memory once.
func (p *product) stripes(together int, a, c []float32) {
	m, k, n := len(c)/p.w.n, p.w.k, p.w.n
	step := step(together, p.width)
	for at := 0; at < p.width; at += step {
		t := p.tile(at, step)
		for row := 0; row < m; row += together {
			for i := range together {
				one := min(row+i, m-1)
				t.a[i], t.c[i] = &a[one*k], &c[one*n+p.from+at]
			}
			t.multiply(together)
		}
	}
}

// tile returns the tile of some columns, without rows.
func (p *product) tile(at, step int) tile {
	t := tile{
		k: p.w.k, stride: 4 * p.stride, strip: 4 * p.strip, floor: p.floor,
		b: &p.data[at/strip*p.strip], width: min(step, p.width-at),
	}
	if p.bias != nil {
		t.bias = &p.bias[p.from+at]
	}
	return t
}

// step returns how many columns of a panel are multiplied at once with a number of rows.
func step(together, width int) int {
	switch {
	case together == 1 && width == panel:
		return panel
	case together == 4:
		return 16
	}
	return 32
}

func (t *tile) multiply(together int) {
	switch {
	case together == 4:
		four16AVX2(t)
	case together == 2:
		two32AVX2(t)
	case t.width == panel:
		one64AVX2(t)
	default:
		one32AVX2(t)
	}
}

func (w *Weights) sparseVector(index []int32, value, bias []float32, act Activation, c []float32) {
	for from := 0; from < w.n; {
		p := product{w: w, columns: w.columns(from), bias: bias, floor: act.floor()}
		step := step(1, p.width)
		for at := 0; at < p.width; at += step {
			t := p.tile(at, step)
			t.k, t.index = len(index), unsafe.SliceData(index)
			t.a[0], t.c[0] = unsafe.SliceData(value), &c[from+at]
			t.sparse()
		}
		from += p.width
	}
	act.finish(c)
}

func (t *tile) sparse() {
	if t.width == panel {
		sparse64AVX2(t)
	} else {
		sparse32AVX2(t)
	}
}

// floor returns the limit that implements Relu together with the sums.
func (act Activation) floor() float32 {
	if act == Relu {
		return 0
	}
	return float32(math.Inf(-1))
}

// finish applies an activation that is not a floor.
func (act Activation) finish(c []float32) {
	if act != None && act != Relu {
		act.vector(c)
	}
}

//go:noescape
func one64AVX2(t *tile)

//go:noescape
func one32AVX2(t *tile)

//go:noescape
func two32AVX2(t *tile)

//go:noescape
func four16AVX2(t *tile)

//go:noescape
func sparse64AVX2(t *tile)

//go:noescape
func sparse32AVX2(t *tile)

func (act Activation) vector(x []float32) {
	switch act {
	case Relu:
		reluAVX2(&x[0], len(x))
	case Sigmoid:
		sigmoidAVX2(&x[0], len(x))
	case Tanh:
		tanhAVX2(&x[0], len(x))
	case Exp:
		expAVX2(&x[0], len(x))
	}
}

func softmaxVector(x []float32) { softmaxAVX2(&x[0], len(x)) }

func (how operation) vector(dst, a, b []float32) {
	switch how {
	case adding:
		addAVX2(&dst[0], &a[0], &b[0], len(dst))
	case subtracting:
		subAVX2(&dst[0], &a[0], &b[0], len(dst))
	case multiplying:
		mulAVX2(&dst[0], &a[0], &b[0], len(dst))
	case dividing:
		divAVX2(&dst[0], &a[0], &b[0], len(dst))
	}
}

//go:noescape
func expAVX2(x *float32, n int)

//go:noescape
func sigmoidAVX2(x *float32, n int)

//go:noescape
func tanhAVX2(x *float32, n int)

//go:noescape
func reluAVX2(x *float32, n int)

//go:noescape
func softmaxAVX2(x *float32, n int)

//go:noescape
func addAVX2(dst, a, b *float32, n int)

//go:noescape
func subAVX2(dst, a, b *float32, n int)

//go:noescape
func mulAVX2(dst, a, b *float32, n int)

//go:noescape
func divAVX2(dst, a, b *float32, n int)

// maskVector takes 64 numbers at a time.
func maskVector(x []float32, masks []uint64) {
	if n := len(x) / 64; n > 0 {
		maskAVX2(&x[0], &masks[0], n)
	}
}

//go:noescape
func maskAVX2(x *float32, masks *uint64, n int)
