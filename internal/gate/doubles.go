package gate

import (
	"slices"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
)

// toDoubles makes doubles of the whole numbers that a clause writes out or
// computes. All figures are doubles, and CEL compares a double with an int but
// does not multiply them: metrics.f1 * 100 >= 85 would fail at run. What has to
// be whole stays so: the place in a list, and both sides of %.
func toDoubles(a *ast.AST) {
	d := &doubler{a, ast.NewExprFactory(), ast.MaxID(a)}
	d.walk(a.Expr(), false)
}

type doubler struct {
	ast  *ast.AST
	make ast.ExprFactory
	next int64
}

// walk goes from the leaves up; whole says that this one stays a whole number.
func (d *doubler) walk(e ast.Expr, whole bool) {
	if e.Kind() == ast.ComprehensionKind {
		c := e.AsComprehension()
		for _, below := range []ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()} {
			d.walk(below, false)
		}
		return
	}
	for i, below := range children(e) {
		d.walk(below, wantsWhole(e, i))
	}
	switch {
	case whole:
	case e.Kind() == ast.LiteralKind:
		d.literal(e)
	case e.Kind() == ast.CallKind && slices.Contains([]string{overloads.Size, overloads.TypeConvertInt, overloads.TypeConvertUint, operators.Modulo}, e.AsCall().FunctionName()):
		d.call(e)
	}
}

// wantsWhole reports whether an argument of an expression has to be a whole
// number.
func wantsWhole(e ast.Expr, argument int) bool {
	if e.Kind() != ast.CallKind {
		return false
	}
	name := e.AsCall().FunctionName()
	return name == operators.Modulo || name == operators.Index && argument == 1
}

func (d *doubler) literal(e ast.Expr) {
	var number float64
	switch v := e.AsLiteral().(type) {
	case types.Int:
		number = float64(v)
	case types.Uint:
		number = float64(v)
	default:
		return
	}
	e.SetKindCase(d.make.NewLiteral(e.ID(), types.Double(number)))
}

// call puts double( ) around a call.
func (d *doubler) call(e ast.Expr) {
	c := e.AsCall()
	inner := d.make.NewCall(d.next, c.FunctionName(), c.Args()...)
	if c.IsMemberFunction() {
		inner = d.make.NewMemberCall(d.next, c.FunctionName(), c.Target(), c.Args()...)
	}
	if at, known := d.ast.SourceInfo().GetOffsetRange(e.ID()); known {
		d.ast.SourceInfo().SetOffsetRange(d.next, at)
	}
	d.next++
	e.SetKindCase(d.make.NewCall(e.ID(), overloads.TypeConvertDouble, inner))
}
