//go:build !amd64

package kernel

// detect returns scalar, because there is no vector code for this processor.
func detect() variant { return scalar }

func (w *Weights) multiplyVector(m int, a, bias []float32, act Activation, c []float32) {
	w.multiplyScalar(m, a, bias, act, c)
}

func (w *Weights) sparseVector(index []int32, value, bias []float32, act Activation, c []float32) {
	w.sparseScalar(index, value, bias, act, c)
}

func (act Activation) vector(x []float32) { act.scalar(x) }

func softmaxVector(x []float32) { softmaxScalar(x) }

func (how operation) vector(dst, a, b []float32) { how.scalar(dst, a, b) }

func maskVector(x []float32, masks []uint64) {
	for i := range len(x) / 64 {
		masks[i] = maskScalar(x[64*i : 64*i+64])
	}
}
