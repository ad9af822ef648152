//go:build !amd64

package kernel

// detect finds nothing: there is no vector code for this processor.
func detect() variant { return scalar }

func (w *Weights) multiplyVector(m int, a, bias []float32, act Activation, c []float32) {
	w.multiplyScalar(m, a, bias, act, c)
}

func (w *Weights) sparseVector(index []int32, value, bias []float32, act Activation, c []float32) {
	w.sparseScalar(index, value, bias, act, c)
}

func (act Activation) vector(_ variant, x []float32) { act.scalar(x) }

func softmaxVector(_ variant, x []float32) { softmaxScalar(x) }

func (how operation) vector(_ variant, dst, a, b []float32) { how.scalar(dst, a, b) }
