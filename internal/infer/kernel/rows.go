package kernel

// Activation is what is done to each number, on its own or along with a product.
type Activation uint8

// The activations.
const (
	None    Activation = iota
	Relu               // 0 of what is below it; NaN stays
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
	act.vector(on, x)
}

// Softmax makes each of the rows, of n numbers each, one whose numbers are
// between 0 and 1 and add up to 1, in the proportion of their exponentials.
func Softmax(rows, n int, x []float32) { softmax(best, rows, n, x) }

func softmax(on variant, rows, n int, x []float32) {
	for x = x[:rows*n]; len(x) > 0; x = x[n:] {
		if on == scalar {
			softmaxScalar(x[:n])
		} else {
			softmaxVector(on, x[:n])
		}
	}
}

// operation is what is done to two rows, number by number.
type operation uint8

const (
	adding operation = iota
	subtracting
	multiplying
	dividing
)

// Add writes dst = a + b, number by number. dst may be either of them; its length
// is how many there are.
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
	how.vector(on, dst, a, b)
}
