package kernel

// maskVector is for 64 numbers at a time.
func maskVector(x []float32, masks []uint64) {
	if n := len(x) / 64; n > 0 {
		maskAVX2(&x[0], &masks[0], n)
	}
}

//go:noescape
func maskAVX2(x *float32, masks *uint64, n int)
