package kernel

import (
	"math"
	"math/bits"
	"unsafe"
)

// variant is a set of instructions.
type variant uint8

const (
	scalar variant = iota
	avx2           // with FMA
)

// best is the variant that this processor supports.
var best = detect()

// Name returns the set of instructions in use: avx2 or scalar.
func Name() string { return best.String() }

func (v variant) String() string {
	if v == avx2 {
		return "avx2"
	}
	return "scalar"
}

// Activation is a function of one number. It is applied to rows, or together with a product.
type Activation uint8

// The activations.
const (
	None    Activation = iota
	Relu               // 0 for negative numbers; NaN stays
	Sigmoid            // 1/(1+exp(-x))
	Tanh
	Exp
)

// Apply changes x in place.
func (act Activation) Apply(x []float32) { act.apply(best, x) }

func (act Activation) apply(on variant, x []float32) {
	if on == scalar || len(x) == 0 {
		act.scalar(x)
		return
	}
	act.vector(x)
}

// Softmax replaces each row of n numbers by their exponentials, divided by the row's
// sum of exponentials.
func Softmax(rows, n int, x []float32) { softmax(best, rows, n, x) }

func softmax(on variant, rows, n int, x []float32) {
	for x = x[:rows*n]; len(x) > 0; x = x[n:] {
		if on == scalar {
			softmaxScalar(x[:n])
		} else {
			softmaxVector(x[:n])
		}
	}
}

// operation combines two rows, number by number.
type operation uint8

const (
	adding operation = iota
	subtracting
	multiplying
	dividing
)

// Add writes dst = a + b, number by number. dst may be a or b, and its length is the
// number of elements.
func Add(dst, a, b []float32) { adding.combine(best, dst, a, b) }

// Sub writes dst = a - b; see Add.
func Sub(dst, a, b []float32) { subtracting.combine(best, dst, a, b) }

// Mul writes dst = a * b; see Add.
func Mul(dst, a, b []float32) { multiplying.combine(best, dst, a, b) }

// Div writes dst = a / b; see Add.
func Div(dst, a, b []float32) { dividing.combine(best, dst, a, b) }

func (how operation) combine(on variant, dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	if on == scalar || len(dst) == 0 {
		how.scalar(dst, a, b)
		return
	}
	how.vector(dst, a, b)
}

// Filled finds the numbers of x that are not 0. It writes their positions to index and
// the numbers to value, and returns how many there are. If index is too short for them,
// it stops early and returns -1, so a dense row costs little more than a look at it.
func Filled(x []float32, index []int32, value []float32) int { return filled(best, x, index, value) }

func filled(on variant, x []float32, index []int32, value []float32) int {
	var masks [32]uint64 // one bit for each number
	n := 0
	for from := 0; from < len(x); from += 64 * len(masks) {
		part := x[from:min(from+64*len(masks), len(x))]
		used := masks[:(len(part)+63)/64]
		mask(on, part, used)
		all := n
		for _, m := range used {
			all += bits.OnesCount64(m)
		}
		if all > len(index) {
			return -1
		}
		for i, m := range used {
			for ; m != 0; m &= m - 1 {
				at := 64*i + bits.TrailingZeros64(m)
				index[n], value[n] = int32(from+at), part[at]
				n++
			}
		}
	}
	return n
}

// mask sets a bit for each number that is not 0. NaN is not 0.
func mask(on variant, x []float32, masks []uint64) {
	whole := 0
	if on != scalar {
		whole = len(x) / 64
		maskVector(x[:64*whole], masks)
	}
	for i := whole; i < len(masks); i++ {
		masks[i] = maskScalar(x[64*i : min(64*i+64, len(x))])
	}
}

func maskScalar(x []float32) (mask uint64) {
	for i, v := range x {
		if v != 0 {
			mask |= 1 << i
		}
	}
	return mask
}

// A panel is up to 64 columns that are multiplied together: eight vectors of AVX2,
// which are enough sums to keep the adders busy with one row of input.
const panel = 64

// A strip is the number of columns that fill a cache line.
const strip = 16

// tall is the number of rows from which a matrix is cut into strips.
const tall = 128

// Weights are a matrix packed for multiplication. They are read only and safe for concurrent use.
//
// A tall matrix is cut into strips of 16 columns, each in row order. So memory is read line by
// line, for any number of columns and rows of input. A low matrix is small enough to stay in the
// first cache. It is cut into panels, so that few columns are multiplied at once even if they end
// within a strip. There is no padding: thousands of models take only the memory of their numbers.
type Weights struct {
	k, n int
	data []float32
	on   variant
}

// Pack packs b, which is k×n in row order.
func Pack(k, n int, b []float32) *Weights { return pack(best, k, n, b) }

func pack(on variant, k, n int, b []float32) *Weights {
	w := &Weights{k: k, n: n, data: aligned(k * n), on: on}
	to, cut := w.data, panel
	if k >= tall {
		cut = strip
	}
	for from := 0; from < n; from += cut {
		width := min(cut, n-from)
		for row := range k {
			to = to[copy(to, b[row*n+from:row*n+from+width]):]
		}
	}
	return w
}

// columns are consecutive columns: a panel, or the rest after whole panels.
type columns struct {
	data          []float32 // part of the matrix from the first of these columns on
	from, width   int
	stride, strip int // numbers from a row to the next, and from a strip to the next
}

// columns returns the ones that begin at from.
func (w *Weights) columns(from int) columns {
	c := columns{data: w.data[from*w.k:], from: from, width: min(panel, w.n-from)}
	switch {
	case w.k < tall:
		c.stride, c.strip = c.width, strip
	case c.width == panel:
		c.stride, c.strip = strip, strip*w.k
	default:
		c.width = min(c.width, strip)
		c.stride, c.strip = c.width, strip
	}
	return c
}

// aligned allocates floats that begin at a cache line, because a vector across two
// lines costs twice.
func aligned(n int) []float32 {
	all := make([]float32, n+strip-1)
	skip := 0
	if past := uintptr(unsafe.Pointer(unsafe.SliceData(all))) % (4 * strip); past != 0 {
		skip = strip - int(past)/4
	}
	return all[skip : skip+n : skip+n]
}

// Bytes returns the memory of the weights.
func (w *Weights) Bytes() int64 { return int64(unsafe.Sizeof(*w)) + 4*int64(w.k*w.n+strip-1) }

// Size returns the number of rows, which is the length of an input row, and of columns.
func (w *Weights) Size() (k, n int) { return w.k, w.n }

// Multiply writes c = act(a·w + bias) for m rows of a. bias has one number for each
// column, or is nil.
func (w *Weights) Multiply(m int, a, bias []float32, act Activation, c []float32) {
	a, c = a[:m*w.k], c[:m*w.n]
	if bias != nil {
		bias = bias[:w.n]
	}
	if w.on == scalar || len(c) == 0 || w.k == 0 {
		w.multiplyScalar(m, a, bias, act, c)
		return
	}
	w.multiplyVector(m, a, bias, act, c)
}

// MultiplySparse writes c = act(sum over j of value[j] times row index[j] + bias), for a row of
// input that is mostly zeros, such as a text's. An invalid index panics, as with a slice.
func (w *Weights) MultiplySparse(index []int32, value, bias []float32, act Activation, c []float32) {
	value, c = value[:len(index)], c[:w.n]
	if bias != nil {
		bias = bias[:w.n]
	}
	w.check(index)
	if w.on == scalar || len(c) == 0 || w.k == 0 {
		w.sparseScalar(index, value, bias, act, c)
		return
	}
	w.sparseVector(index, value, bias, act, c)
}

// check reads the last number of each indexed row. Go does such a check for slices; the
// vector code does not.
func (w *Weights) check(index []int32) {
	for _, i := range index {
		_ = w.data[int(i)*w.n : (int(i)+1)*w.n]
	}
}

// The plain Go implementation, for processors without AVX2. Tests compare the vector code with it.

func (w *Weights) multiplyScalar(m int, a, bias []float32, act Activation, c []float32) {
	for row := range m {
		x, y := a[row*w.k:(row+1)*w.k], c[row*w.n:(row+1)*w.n]
		start(y, bias)
		for from := 0; from < w.n; {
			some := w.columns(from)
			var sums [panel]float32
			sum := sums[:copy(sums[:some.width], y[from:])]
			for i, v := range x {
				some.axpy(sum, v, i)
			}
			from += copy(y[from:], sum)
		}
		act.scalar(y)
	}
}

func (w *Weights) sparseScalar(index []int32, value, bias []float32, act Activation, c []float32) {
	start(c, bias)
	for from := 0; from < w.n; {
		some := w.columns(from)
		for j, i := range index {
			some.axpy(c[from:from+some.width], value[j], int(i))
		}
		from += some.width
	}
	act.scalar(c)
}

// start sets the sums to the bias, or to zero.
func start(sum, bias []float32) {
	if bias == nil {
		clear(sum)
	}
	copy(sum, bias)
}

// axpy adds v times a row.
func (c *columns) axpy(sum []float32, v float32, row int) {
	for at := 0; at < len(sum); at += strip {
		some := sum[at:min(at+strip, len(sum))]
		for i, w := range c.data[row*c.stride+at/strip*c.strip:][:len(some)] {
			some[i] += v * w
		}
	}
}

func (act Activation) scalar(x []float32) {
	if act == None {
		return
	}
	for i, v := range x {
		x[i] = act.of(v)
	}
}

func (act Activation) of(x float32) float32 {
	switch act {
	case Relu:
		if x < 0 { // not for NaN, which stays
			return 0
		}
	case Sigmoid:
		return float32(1 / (1 + math.Exp(-float64(x))))
	case Tanh:
		return float32(math.Tanh(float64(x)))
	case Exp:
		return float32(math.Exp(float64(x)))
	}
	return x
}

// softmaxScalar subtracts the maximum first, so that nothing overflows.
func softmaxScalar(x []float32) {
	greatest := float32(math.Inf(-1))
	for _, v := range x {
		greatest = max(greatest, v)
	}
	var sum float64
	for i, v := range x {
		e := math.Exp(float64(v - greatest))
		x[i] = float32(e)
		sum += e
	}
	for i, v := range x {
		x[i] = float32(float64(v) / sum)
	}
}

func (how operation) scalar(dst, a, b []float32) {
	switch how {
	case adding:
		for i, v := range a {
			dst[i] = v + b[i]
		}
	case subtracting:
		for i, v := range a {
			dst[i] = v - b[i]
		}
	case multiplying:
		for i, v := range a {
			dst[i] = v * b[i]
		}
	case dividing:
		for i, v := range a {
			dst[i] = v / b[i]
		}
	}
}
