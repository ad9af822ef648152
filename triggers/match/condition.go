package match

import (
	"slices"
	"strings"

	"tidemill.dev/broker"
	"tidemill.dev/internal/cesql"
)

// verdict is what a condition comes to: an error needs no name to be no match.
type verdict uint8

const (
	no verdict = iota
	yes
	failed
)

func verdictOf(b bool) verdict {
	if b {
		return yes
	}
	return no
}

// condition is an expression cast to a boolean. It says the same as eval, and
// exists for what most filters are made of: there it costs some nanoseconds and
// allocates nothing.
type condition func(*broker.View) verdict

func newCondition(x cesql.Expr) condition {
	switch x := x.(type) {
	case *cesql.Exists:
		get := attributeOf(x.Name)
		return func(v *broker.View) verdict { _, there := get(v); return verdictOf(there) }
	case *cesql.Unary:
		if x.Op == "NOT" && isBoolean(x.X) {
			return negated(newCondition(x.X))
		}
	case *cesql.Like:
		if a, ok := x.X.(*cesql.Attribute); ok {
			return likePattern(attributeOf(a.Name), newPattern(x.Pattern))
		}
	case *cesql.In:
		if keys := membership(x); keys != nil {
			return oneOf(keys)
		}
	case *cesql.Binary:
		switch x.Op {
		case "AND":
			return all(newConditions(chain("AND", x, nil)))
		case "OR":
			return either(newConditions(chain("OR", x, nil)))
		case "=":
			return equality(x)
		}
	}
	return whatever(x)
}

// whatever takes the long way.
func whatever(x cesql.Expr) condition {
	value := evaluate(x)
	return func(v *broker.View) verdict {
		result, f := value(v)
		b, ok := result.boolean()
		if f != nil || !ok {
			return failed
		}
		return verdictOf(b)
	}
}

// isBoolean tells whether an expression's value is one without a cast.
func isBoolean(x cesql.Expr) bool {
	switch x := x.(type) {
	case *cesql.Exists, *cesql.Like, *cesql.In:
		return true
	case *cesql.Unary:
		return x.Op == "NOT"
	case *cesql.Binary:
		return slices.Contains([]string{"AND", "OR", "XOR", "=", "<", "<=", ">", ">="}, x.Op)
	}
	return false
}

func negated(holds condition) condition {
	return func(v *broker.View) verdict {
		switch holds(v) {
		case no:
			return yes
		case yes:
			return no
		}
		return failed
	}
}

// chain are the operands of one operator in a row: where all are of one kind,
// parentheses make no difference to AND, nor to OR.
func chain(op string, x cesql.Expr, before []cesql.Expr) []cesql.Expr {
	if b, ok := x.(*cesql.Binary); ok && b.Op == op {
		return chain(op, b.Y, chain(op, b.X, before))
	}
	return append(before, x)
}

func newConditions(list []cesql.Expr) []condition {
	conditions := make([]condition, len(list))
	for i, x := range list {
		conditions[i] = newCondition(x)
	}
	return conditions
}

// all is AND. It stops at the first that does not hold, or cannot be told.
func all(list []condition) condition {
	if len(list) == 1 {
		return list[0]
	}
	return func(v *broker.View) verdict {
		for _, holds := range list {
			if is := holds(v); is != yes {
				return is
			}
		}
		return yes
	}
}

// either is OR. It stops at the first that holds, or cannot be told.
func either(list []condition) condition {
	return func(v *broker.View) verdict {
		for _, holds := range list {
			if is := holds(v); is != no {
				return is
			}
		}
		return no
	}
}

func likePattern(get attribute, p pattern) condition {
	if p.open && p.end == "" { // the most frequent one
		return hasPrefix(get, p.begin)
	}
	return func(v *broker.View) verdict {
		s, there := get(v)
		if !there {
			return failed
		}
		return verdictOf(p.matches(s))
	}
}

func hasPrefix(get attribute, prefix string) condition {
	return func(v *broker.View) verdict {
		s, there := get(v)
		if !there {
			return failed
		}
		return verdictOf(strings.HasPrefix(s, prefix))
	}
}

// equality is = with an attribute on one side and a value on the other, or the
// long way. What is on the left is cast to the kind of what is on the right.
func equality(x *cesql.Binary) condition {
	left, literal := x.X, x.Y
	if _, ok := left.(*cesql.Literal); ok {
		left, literal = literal, left
	}
	a, isAttribute := left.(*cesql.Attribute)
	l, isLiteral := literal.(*cesql.Literal)
	if !isAttribute || !isLiteral {
		return whatever(x)
	}
	get, want := attributeOf(a.Name), of(l.Value)
	if want.kind == text || left == x.Y {
		return isText(get, want.text())
	}
	return func(v *broker.View) verdict {
		s, there := get(v)
		is, ok := ofText(s).as(want.kind)
		if !there || !ok {
			return failed
		}
		return verdictOf(is == want)
	}
}

func isText(get attribute, want string) condition {
	return func(v *broker.View) verdict {
		s, there := get(v)
		if !there {
			return failed
		}
		return verdictOf(s == want)
	}
}

// linear is how many texts are compared one by one before a map is faster.
const linear = 8

func oneOf(keys []key) condition {
	get, texts := attributeOf(keys[0].attribute), make([]string, len(keys))
	for i, k := range keys {
		texts[i] = k.text
	}
	contains := func(s string) bool { return slices.Contains(texts, s) }
	if len(texts) > linear {
		set := map[string]bool{}
		for _, s := range texts {
			set[s] = true
		}
		contains = func(s string) bool { return set[s] }
	}
	return func(v *broker.View) verdict {
		s, there := get(v)
		if !there {
			return failed
		}
		return verdictOf(contains(s))
	}
}
