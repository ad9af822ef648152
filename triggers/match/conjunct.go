package match

import (
	"slices"

	"tidemill.dev/internal/cesql"
)

// conjunct is one of the conditions that must all hold.
type conjunct struct {
	holds condition
	// keys are texts of which an event must have one for it to hold; none where
	// nothing such is known.
	keys []key
	tell bool // holds where an event has one of them
}

// key is a text in an attribute. By keys the index knows, without asking, which
// conditions may hold.
type key struct{ attribute, text string }

func conjuncts(x cesql.Expr) []conjunct {
	parts := chain("AND", x, nil)
	list := make([]conjunct, len(parts))
	for i, part := range parts {
		keys, tell := keysOf(part)
		list[i] = conjunct{newCondition(part), keys, tell}
	}
	return list
}

// keysOf is nil where an expression may be true whatever the texts are.
func keysOf(x cesql.Expr) (keys []key, tell bool) {
	switch x := x.(type) {
	case *cesql.In:
		return membership(x), true
	case *cesql.Binary:
		switch x.Op {
		case "=":
			return sameness(x), true
		case "OR":
			return keysOfAny(x), false // an alternative that cannot be told spoils the others
		case "AND":
			return keysOfAll(x), false
		}
	}
	return nil, false
}

func keysOfAny(x *cesql.Binary) (all []key) {
	for _, part := range chain("OR", x, nil) {
		keys, _ := keysOf(part)
		if keys == nil {
			return nil
		}
		all = append(all, keys...)
	}
	return all
}

// keysOfAll are those of the part that has the fewest. The type tells little:
// what else may match is of the same, mostly.
func keysOfAll(x *cesql.Binary) (best []key) {
	for _, part := range chain("AND", x, nil) {
		keys, _ := keysOf(part)
		if keys != nil && (best == nil || best[0].attribute == "type" || keys[0].attribute != "type" && len(keys) < len(best)) {
			best = keys
		}
	}
	return best
}

// membership is x IN ('a', 'b'), where x is an attribute: what is in the set is
// cast to a text, as that is.
func membership(x *cesql.In) (keys []key) {
	a, ok := x.X.(*cesql.Attribute)
	if !ok {
		return nil
	}
	for _, y := range x.Set {
		l, ok := y.(*cesql.Literal)
		if !ok {
			return nil
		}
		keys = append(keys, key{a.Name, of(l.Value).text()})
	}
	return keys
}

// sameness is x = 'a', where x is an attribute, or 'a' = x.
func sameness(x *cesql.Binary) []key {
	left, right := x.X, x.Y
	if _, ok := left.(*cesql.Literal); ok {
		left, right = right, left
	}
	a, isAttribute := left.(*cesql.Attribute)
	l, isLiteral := right.(*cesql.Literal)
	if !isAttribute || !isLiteral {
		return nil
	}
	if s, ok := l.Value.(string); ok {
		return []key{{a.Name, s}}
	}
	return nil
}

// about tells whether all keys are of one attribute.
func (c *conjunct) about(attribute string) bool {
	return len(c.keys) > 0 && !slices.ContainsFunc(c.keys, func(k key) bool { return k.attribute != attribute })
}

// allOf is a condition that holds where all of the list do.
func allOf(list []conjunct) condition {
	conditions := make([]condition, len(list))
	for i, c := range list {
		conditions[i] = c.holds
	}
	return all(conditions)
}
