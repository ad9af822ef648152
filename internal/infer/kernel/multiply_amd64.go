package kernel

import (
	"math"
	"unsafe"
)

// tile is a part of a product: up to four rows of input with columns of a panel.
type tile struct {
	k      int         // how many numbers are summed up
	stride int         // bytes from a row of the panel to the next
	strip  int         // bytes from a strip to the next
	b      *float32    // the first of the columns
	width  int         // how many they are
	a, c   [4]*float32 // where the rows begin
	bias   *float32    // nil is noughts
	index  *int32      // rows of the panel, for a sparse row
	floor  float32     // what no sum falls below: Relu's 0, or less than anything
}

// rowsTogether is how many rows of input pass through all panels before the next
// do: as many as stay in the second-level cache, since they are read again for each
// panel.
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
	act.behind(w.on, c)
}

// product is what some columns are multiplied with.
type product struct {
	columns
	w     *Weights
	bias  []float32
	floor float32
}

// multiply takes the rows four at a time as long as there are more than two left:
// three are four of which the last is done twice.
func (p *product) multiply(a, c []float32) {
	m, k, n := len(c)/p.w.n, p.w.k, p.w.n
	fours := min((m+1)/4*4, m)
	p.stripes(4, a[:fours*k], c[:fours*n])
	if rest := m - fours; rest > 0 {
		p.stripes(rest, a[fours*k:], c[fours*n:])
	}
}

// stripes passes all rows through some of the columns before the next, so that
// weights are read from memory once.
func (p *product) stripes(together int, a, c []float32) {
	m, k, n := len(c)/p.w.n, p.w.k, p.w.n
	step := p.w.on.step(together, p.width)
	for at := 0; at < p.width; at += step {
		t := p.tile(at, step)
		for row := 0; row < m; row += together {
			for i := range together {
				one := min(row+i, m-1)
				t.a[i], t.c[i] = &a[one*k], &c[one*n+p.from+at]
			}
			t.multiply(p.w.on, together)
		}
	}
}

// tile is that of some columns, without rows.
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

// step is how many columns of a panel are done at once with so many rows.
func (v variant) step(together, width int) int {
	switch {
	case v == avx512, together == 1 && width == panel:
		return panel
	case together == 4:
		return 16
	}
	return 32
}

func (t *tile) multiply(on variant, together int) {
	switch {
	case on == avx512 && together == 4:
		four64AVX512(t)
	case on == avx512 && together == 2:
		two64AVX512(t)
	case on == avx512:
		one64AVX512(t)
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
		step := w.on.step(1, p.width)
		for at := 0; at < p.width; at += step {
			t := p.tile(at, step)
			t.k, t.index = len(index), unsafe.SliceData(index)
			t.a[0], t.c[0] = unsafe.SliceData(value), &c[from+at]
			t.sparse(w.on)
		}
		from += p.width
	}
	act.behind(w.on, c)
}

func (t *tile) sparse(on variant) {
	switch {
	case on == avx512:
		sparse64AVX512(t)
	case t.width == panel:
		sparse64AVX2(t)
	default:
		sparse32AVX2(t)
	}
}

// floor is what Relu needs, which is done along with the sums.
func (act Activation) floor() float32 {
	if act == Relu {
		return 0
	}
	return float32(math.Inf(-1))
}

// behind does what floor does not.
func (act Activation) behind(on variant, c []float32) {
	if act != None && act != Relu {
		act.vector(on, c)
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

//go:noescape
func one64AVX512(t *tile)

//go:noescape
func two64AVX512(t *tile)

//go:noescape
func four64AVX512(t *tile)

//go:noescape
func sparse64AVX512(t *tile)
