//go:build !amd64

package kernel

func maskVector(x []float32, masks []uint64) {
	for i := range len(x) / 64 {
		masks[i] = maskScalar(x[64*i : 64*i+64])
	}
}
