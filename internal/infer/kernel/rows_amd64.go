package kernel

func (act Activation) vector(_ variant, x []float32) {
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

func softmaxVector(_ variant, x []float32) { softmaxAVX2(&x[0], len(x)) }

func (how operation) vector(_ variant, dst, a, b []float32) {
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
