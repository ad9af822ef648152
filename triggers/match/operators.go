package match

// equal casts what is on the left to the kind of what is on the right.
func equal() func(a, b value) (value, *fault) {
	noBool, noInt := noCast("what is left of =", boolean), noCast("what is left of =", integer)
	return func(a, b value) (value, *fault) {
		a, ok := a.as(b.kind)
		switch {
		case ok:
			return ofBool(a == b), nil
		case b.kind == boolean:
			return ofBool(false), noBool
		}
		return ofBool(false), noInt
	}
}

func compare(op string) func(a, b value) (value, *fault) {
	wrong := noCast("an operand of "+op, integer)
	holds := map[string]func(x, y int32) bool{
		"<":  func(x, y int32) bool { return x < y },
		"<=": func(x, y int32) bool { return x <= y },
		">":  func(x, y int32) bool { return x > y },
		">=": func(x, y int32) bool { return x >= y },
	}[op]
	return func(a, b value) (value, *fault) {
		x, ok := a.integer()
		y, also := b.integer()
		if !ok || !also {
			return ofBool(false), wrong
		}
		return ofBool(holds(x, y)), nil
	}
}

// calculate computes with more bits than there may be in the result, so that it
// tells an overflow. The language has no word about it but that integers end; a
// number that came out wrong would be worse than none.
func calculate(op string) func(a, b value) (value, *fault) {
	wrong, zero, overflow := noCast("an operand of "+op, integer), &fault{mathFault, "division by zero"}, &fault{mathFault, "the result of " + op + " is beyond the integers"}
	result := arithmetic(op)
	return func(a, b value) (value, *fault) {
		x, ok := a.integer()
		y, also := b.integer()
		if !ok || !also {
			return ofInt(0), wrong
		}
		if y == 0 && (op == "/" || op == "%") {
			return ofInt(0), zero
		}
		n := result(int64(x), int64(y))
		if n != int64(int32(n)) {
			return ofInt(0), overflow
		}
		return ofInt(int32(n)), nil
	}
}

func arithmetic(op string) func(x, y int64) int64 {
	switch op {
	case "+":
		return func(x, y int64) int64 { return x + y }
	case "-":
		return func(x, y int64) int64 { return x - y }
	case "*":
		return func(x, y int64) int64 { return x * y }
	case "/":
		return func(x, y int64) int64 { return x / y }
	}
	return func(x, y int64) int64 { return x % y }
}
