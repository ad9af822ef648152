package match

import "tidemill.dev/internal/cesql"

// simplify puts a value where no event makes a difference, so that conditions
// that compare with values are many and fast. What fails stays as it is.
func simplify(x cesql.Expr) cesql.Expr {
	switch x := x.(type) {
	case *cesql.Attribute:
		if x.Name == "specversion" {
			return &cesql.Literal{Value: "1.0"}
		}
	case *cesql.Exists:
		if always(x.Name) {
			return &cesql.Literal{Value: true}
		}
	case *cesql.Unary:
		y := &cesql.Unary{Op: x.Op, X: simplify(x.X)}
		return folded(y, y.X)
	case *cesql.Like:
		y := &cesql.Like{X: simplify(x.X), Pattern: x.Pattern}
		return folded(y, y.X)
	case *cesql.Binary:
		return simplifyBinary(x)
	case *cesql.In:
		set := simplifyAll(x.Set)
		y := &cesql.In{X: simplify(x.X), Set: set}
		return folded(y, append(set, y.X)...)
	case *cesql.Call:
		args := simplifyAll(x.Args)
		return folded(&cesql.Call{Name: x.Name, Args: args}, args...)
	}
	return x
}

func simplifyBinary(x *cesql.Binary) cesql.Expr {
	y := &cesql.Binary{Op: x.Op, X: simplify(x.X), Y: simplify(x.Y)}
	if l, ok := y.X.(*cesql.Literal); ok && (x.Op == "AND" || x.Op == "OR") {
		if b, ok := of(l.Value).boolean(); ok && b == (x.Op == "OR") {
			return &cesql.Literal{Value: b}
		}
	}
	return folded(y, y.X, y.Y)
}

func simplifyAll(list []cesql.Expr) []cesql.Expr {
	all := make([]cesql.Expr, len(list))
	for i, x := range list {
		all[i] = simplify(x)
	}
	return all
}

// folded is the value of an expression whose operands are values.
func folded(x cesql.Expr, operands ...cesql.Expr) cesql.Expr {
	for _, o := range operands {
		if _, ok := o.(*cesql.Literal); !ok {
			return x
		}
	}
	result, f := evaluate(x)(nil)
	if f != nil {
		return x
	}
	return &cesql.Literal{Value: result.any()}
}
