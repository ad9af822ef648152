package kernel

import "unsafe"

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
