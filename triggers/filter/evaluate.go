package filter

import (
	"tidemill.dev/broker"
	"tidemill.dev/config/cesql"
)

// eval evaluates an expression for any event. With a fault it also returns a value,
// usually the zero value of the operator. Evaluation ends at the first fault.
type eval func(*broker.View) (value, *fault)

func evaluate(x cesql.Expr) eval {
	switch x := x.(type) {
	case *cesql.Literal:
		literal := toValue(x.Value)
		return func(*broker.View) (value, *fault) { return literal, nil }
	case *cesql.Attribute:
		return evaluateAttribute(x.Name)
	case *cesql.Exists:
		get := attributeOf(x.Name)
		return func(v *broker.View) (value, *fault) { _, there := get(v); return ofBool(there), nil }
	case *cesql.Unary:
		if x.Op == "NOT" {
			return not(evaluate(x.X))
		}
		return negative(evaluate(x.X))
	case *cesql.Binary:
		return evaluateBinary(x)
	case *cesql.Like:
		return like(evaluate(x.X), newPattern(x.Pattern))
	case *cesql.In:
		return inSet(evaluate(x.X), evaluateAll(x.Set))
	}
	return call(x.(*cesql.Call)) // the only kind that is left
}

func evaluateAll(list []cesql.Expr) []eval {
	all := make([]eval, len(list))
	for i, x := range list {
		all[i] = evaluate(x)
	}
	return all
}

func evaluateAttribute(name string) eval {
	get, none := attributeOf(name), missing(name)
	return func(v *broker.View) (value, *fault) {
		s, there := get(v)
		if !there {
			return ofBool(false), none
		}
		return ofText(s), nil
	}
}

// not negates. For a number the TCK requires an error together with the value true: the
// cast gives false, and NOT negates it.
func not(x eval) eval {
	wrong := noCast("what follows NOT", boolean)
	return func(v *broker.View) (value, *fault) {
		a, f := x(v)
		if f != nil {
			return ofBool(false), f
		}
		b, ok := a.boolean()
		if !ok || a.kind == integer {
			return ofBool(true), wrong
		}
		return ofBool(!b), nil
	}
}

func negative(x eval) eval {
	minus := calculate("-")
	return func(v *broker.View) (value, *fault) {
		a, f := x(v)
		if f != nil {
			return ofInt(0), f
		}
		return minus(ofInt(0), a)
	}
}

func evaluateBinary(x *cesql.Binary) eval {
	left, right := evaluate(x.X), evaluate(x.Y)
	switch x.Op {
	case "AND", "OR", "XOR":
		return logic(x.Op, left, right)
	case "=":
		return operate(left, right, ofBool(false), equal())
	case "<", "<=", ">", ">=":
		return operate(left, right, ofBool(false), compare(x.Op))
	}
	return operate(left, right, ofInt(0), calculate(x.Op))
}

// operate evaluates both operands and then the operator.
func operate(left, right eval, zero value, op func(a, b value) (value, *fault)) eval {
	return func(v *broker.View) (value, *fault) {
		a, f := left(v)
		if f != nil {
			return zero, f
		}
		b, f := right(v)
		if f != nil {
			return zero, f
		}
		return op(a, b)
	}
}

// logic evaluates the right side only if the left side does not decide alone.
func logic(op string, left, right eval) eval {
	wrong := noCast("an operand of "+op, boolean)
	side := func(x eval, v *broker.View) (bool, *fault) {
		a, f := x(v)
		b, ok := a.boolean()
		if f == nil && !ok {
			f = wrong
		}
		return b && f == nil, f
	}
	return func(v *broker.View) (value, *fault) {
		a, f := side(left, v)
		if f != nil || op == "AND" && !a || op == "OR" && a {
			return ofBool(a), f
		}
		b, f := side(right, v)
		return ofBool(f == nil && b != (op == "XOR" && a)), f
	}
}

func like(x eval, p pattern) eval {
	return func(v *broker.View) (value, *fault) {
		a, f := x(v)
		return ofBool(f == nil && p.matches(a.text())), f
	}
}

// inSet casts each element of the set to the kind of the left value, until one is equal.
func inSet(x eval, set []eval) eval {
	noBool, noInt := noCast("a value of the list", boolean), noCast("a value of the list", integer)
	return func(v *broker.View) (value, *fault) {
		a, f := x(v)
		if f != nil {
			return ofBool(false), f
		}
		for _, y := range set {
			b, f := y(v)
			if f != nil {
				return ofBool(false), f
			}
			switch b, ok := b.castTo(a.kind); {
			case !ok && a.kind == integer:
				return ofBool(false), noInt
			case !ok:
				return ofBool(false), noBool
			case a == b:
				return ofBool(true), nil
			}
		}
		return ofBool(false), nil
	}
}

// equal casts the left side to the kind of the right side.
func equal() func(a, b value) (value, *fault) {
	noBool, noInt := noCast("the left side of =", boolean), noCast("the left side of =", integer)
	return func(a, b value) (value, *fault) {
		a, ok := a.castTo(b.kind)
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

// calculate computes with more bits than the result has, so it notices an overflow. The
// language only says that integers are bounded; an error is better than a wrong number.
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
