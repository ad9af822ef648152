package gate

import (
	"maps"
	"slices"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
)

// maxCopies bounds how often a value that a clause makes may hold what it is made
// of. The cost of a clause counts steps, and not how large a value is that a step
// looks at: [[1]].map(a, [a, a, a, a]), written often enough behind each other, is
// compared in one step that does not end.
const maxCopies = 1000

// copies is how much a value holds: a figure or a text that is written out is one.
type copies struct {
	all  float64 // together
	each float64 // the most that one element holds
}

// growth follows the values of a clause, and keeps the most that any of them
// holds.
type growth struct{ most float64 }

func checkGrowth(a *ast.AST) *SyntaxError {
	var g growth
	g.of(a.Expr(), nil)
	if g.most > maxCopies {
		return &SyntaxError{1, "makes lists or texts that grow too large; ask for less, or write several clauses"}
	}
	return nil
}

// of says how much an expression's value holds at most. bound are the variables
// of the macros around it.
func (g *growth) of(e ast.Expr, bound map[string]copies) copies {
	c := g.holds(e, bound)
	g.most = max(g.most, c.all)
	return c
}

func (g *growth) holds(e ast.Expr, bound map[string]copies) copies {
	if e.Kind() == ast.ComprehensionKind {
		return g.comprehension(e.AsComprehension(), bound)
	}
	if e.Kind() == ast.IdentKind {
		if c, is := bound[e.AsIdent()]; is {
			return c
		}
	}
	below := children(e)
	if len(below) == 0 {
		return copies{1, 1}
	}
	var sum, most copies
	for _, b := range below {
		c := g.of(b, bound)
		sum.all, sum.each = sum.all+c.all, max(sum.each, c.each)
		most.all = max(most.all, c.all)
	}
	switch {
	case e.Kind() == ast.ListKind, e.Kind() == ast.MapKind:
		return copies{sum.all, most.all}
	case e.Kind() == ast.CallKind && isScalar(e.AsCall().FunctionName()):
		return copies{1, 1}
	}
	return sum
}

// comprehension is a macro such as map, whose value is put together step by step.
func (g *growth) comprehension(c ast.ComprehensionExpr, bound map[string]copies) copies {
	over := g.of(c.IterRange(), bound)
	start := g.of(c.AccuInit(), bound)
	within := maps.Clone(bound)
	if within == nil {
		within = map[string]copies{}
	}
	one := copies{over.each, over.each}
	within[c.IterVar()], within[c.IterVar2()], within[c.AccuVar()] = one, one, copies{}
	step := g.of(c.LoopStep(), within)
	within[c.AccuVar()] = copies{start.all + over.all*step.all, max(start.each, step.each)}
	return g.of(c.Result(), within)
}

// isScalar reports whether a function gives a number, or true or false.
func isScalar(function string) bool {
	return slices.Contains([]string{operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
		operators.In, operators.OldIn, operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.NotStrictlyFalse,
		operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo, operators.Negate, overloads.Size,
		overloads.TypeConvertInt, overloads.TypeConvertUint, overloads.TypeConvertDouble, overloads.TypeConvertBool,
		overloads.Contains, overloads.StartsWith, overloads.EndsWith, overloads.Matches}, function)
}
