package kernel

import "math"

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
