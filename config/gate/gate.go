package gate

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"

	"tidemill.dev"
)

// Gate is a list of checked clauses.
type Gate struct{ clauses []clause }

// clause is one condition.
type clause struct {
	text      string
	program   cel.Program
	names     []path    // names in the clause, without duplicates
	constants []float64 // numbers that are written in the clause
}

// Facts is the input of a gate's decision.
type Facts struct {
	Report     tidemill.Report
	Origin     tidemill.Origin
	Seconds    float64 // duration of the run's command (this and the next fields: run.* in docs/gates.md)
	Bytes      int64   // size of the artifact
	Files      int     // number of files in the artifact
	GPU        float64 // GPU seconds
	PeakMemory int64   // bytes
	Champion   int     // version; 0 if there is none
	Given      int     // version of the champion that the run was given to measure; 0 if none
	// Recorded are the champion's metrics from its registration.
	Recorded *tidemill.Report
	On       tidemill.GateOn // whether Recorded may be used if the run has not measured the champion
}

const (
	// maxClause and maxDepth bound the input of the parser. maxCost bounds the evaluation of a
	// clause to some tenths of a second.
	maxClause = 2000 // bytes
	maxDepth  = 50
	maxCost   = 200_000
	// MaxClauses is the greatest number of clauses in a gate.
	MaxClauses = 50
)

// Check returns nil or a *SyntaxError that says what is wrong with a clause.
func Check(text string) error { return checkIn(ofVersions, text) }

func checkIn(l language, text string) error {
	env, err := l.environment()
	if err != nil {
		return &SyntaxError{1, err.Error()}
	}
	_, err = compile(l, env, text)
	return err
}

// Compile parses the clauses of a gate.
func Compile(clauses []string) (*Gate, error) { return compileIn(ofVersions, clauses) }

func compileIn(l language, clauses []string) (*Gate, error) {
	if len(clauses) == 0 {
		return &Gate{}, nil
	}
	if len(clauses) > MaxClauses {
		return nil, fmt.Errorf("a gate has %d clauses, more than %d; join some with &&", len(clauses), MaxClauses)
	}
	env, err := l.environment()
	if err != nil {
		return nil, err
	}
	g := &Gate{}
	for i, text := range clauses {
		c, err := compile(l, env, text)
		if err != nil {
			return nil, fmt.Errorf("read clause %d of the gate, %s: %w", i+1, brief(text), err)
		}
		g.clauses = append(g.clauses, c)
	}
	return g, nil
}

// Metrics returns the metrics that checked clauses name, without duplicates and in the order of the
// clauses. A figure of the confusion matrix counts as the metric of the same name. Metrics is cheaper
// than Compile, because it only parses.
func Metrics(clauses []string) (names []string) {
	env, err := ofVersions.environment()
	if err != nil {
		return nil
	}
	for _, text := range clauses {
		parsed, issues := env.Parse(text)
		if issues.Err() != nil {
			continue
		}
		for _, p := range survey(parsed.NativeRep()).paths {
			if name := p.metric(); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// language is a set of names that clauses may use. Its environment never changes, so it is made once:
// making it takes longer than parsing most clauses.
type language struct {
	shape       func() *shape
	environment func() (*cel.Env, error)
	example     string // clause for error messages
}

// ofVersions is the language of gates, ofStreams that of trials, and ofFleets that of rollouts. The variables must not
// be changed.
var (
	ofVersions = newLanguage(world, "metrics.accuracy >= 0.85")
	ofStreams  = newLanguage(streamShape, "stream.lead.low > 0")
	ofFleets   = newLanguage(fleetShape, "fleet.worse > 0.02")
)

func newLanguage(s func() *shape, example string) language {
	return language{s, sync.OnceValues(func() (*cel.Env, error) { return newEnvironment(s()) }), example}
}

// newEnvironment declares dynamic variables, because only a run decides which metrics exist.
func newEnvironment(s *shape) (*cel.Env, error) {
	options := []cel.EnvOption{cel.CrossTypeNumericComparisons(true), cel.ParserRecursionLimit(maxDepth), cel.ParserExpressionSizeLimit(maxClause)}
	for _, name := range s.names() {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, fmt.Errorf("make the language of gates: %w", err)
	}
	return env, nil
}

// compile parses a clause; an error is a *SyntaxError. The parser is third-party code: if it
// panics on a text, that text is refused and the process continues.
func compile(l language, env *cel.Env, text string) (c clause, err error) {
	defer func() {
		if p := recover(); p != nil {
			c, err = clause{}, &SyntaxError{1, fmt.Sprintf("cannot be read: %v", p)}
		}
	}()
	if wrong := checkText(l, text); wrong != nil {
		return clause{}, wrong
	}
	parsed, issues := env.Parse(text)
	if wrong := firstOf(l, text, issues); wrong != nil {
		return clause{}, wrong
	}
	c = clause{text: text}
	found := survey(parsed.NativeRep())
	c.names, c.constants = found.named(), found.constants
	if wrong := found.check(l, parsed.NativeRep()); wrong != nil {
		return clause{}, wrong
	}
	if wrong := checkGrowth(parsed.NativeRep()); wrong != nil {
		return clause{}, wrong
	}
	toDoubles(parsed.NativeRep())
	checked, issues := check(env, parsed)
	if wrong := firstOf(l, text, issues); wrong != nil {
		return clause{}, wrong
	}
	if wrong := checkCondition(l, checked); wrong != nil {
		return clause{}, wrong
	}
	c.program, err = env.Program(checked, cel.CostLimit(maxCost))
	if err != nil {
		return clause{}, &SyntaxError{1, err.Error()}
	}
	return c, nil
}

// checking allows only one check at a time. To suggest a name, cel-go modifies an environment
// that other checks copy at the same time.
var checking sync.Mutex

func check(env *cel.Env, parsed *cel.Ast) (*cel.Ast, *cel.Issues) {
	checking.Lock()
	defer checking.Unlock()
	return env.Check(parsed)
}

// toDoubles converts the whole numbers that a clause contains or computes to doubles. All
// figures are doubles. CEL compares a double with an int but does not multiply them, so
// metrics.f1 * 100 >= 85 would fail when it is evaluated. Numbers that must be whole stay so: a
// list's index, and both sides of %.
func toDoubles(a *ast.AST) {
	d := &doubler{a, ast.NewExprFactory(), ast.MaxID(a)}
	d.walk(a.Expr(), false)
}

type doubler struct {
	ast  *ast.AST
	make ast.ExprFactory
	next int64
}

// walk visits the leaves first. whole says that this expression stays a whole number.
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
		d.doubleCall(e)
	}
}

// wantsWhole reports whether an argument of an expression must be a whole number.
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

// doubleCall puts double( ) around a call.
func (d *doubler) doubleCall(e ast.Expr) {
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

// maxCopies bounds how many values a computed value may contain. The cost of a clause counts
// steps, but not the size of a value that a step reads. [[1]].map(a, [a, a, a, a]), repeated
// often enough, makes a value that takes one endless step to compare.
const maxCopies = 1000

// copies is the number of values in a value. A number or text that is written in the clause
// counts as one.
type copies struct {
	all  float64 // total
	each float64 // maximum of one element
}

// growth walks through the values of a clause and keeps the largest count.
type growth struct{ most float64 }

func checkGrowth(a *ast.AST) *SyntaxError {
	var g growth
	g.countCopies(a.Expr(), nil)
	if g.most > maxCopies {
		return &SyntaxError{1, "makes lists or texts that are too large; simplify it, or write several clauses"}
	}
	return nil
}

// countCopies returns how many values an expression's value can contain. bound are the variables of the
// surrounding macros.
func (g *growth) countCopies(e ast.Expr, bound map[string]copies) copies {
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
		c := g.countCopies(b, bound)
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

// comprehension handles a macro such as map, which builds its value step by step.
func (g *growth) comprehension(c ast.ComprehensionExpr, bound map[string]copies) copies {
	over := g.countCopies(c.IterRange(), bound)
	start := g.countCopies(c.AccuInit(), bound)
	within := maps.Clone(bound)
	if within == nil {
		within = map[string]copies{}
	}
	one := copies{over.each, over.each}
	within[c.IterVar()], within[c.IterVar2()], within[c.AccuVar()] = one, one, copies{}
	step := g.countCopies(c.LoopStep(), within)
	within[c.AccuVar()] = copies{start.all + over.all*step.all, max(start.each, step.each)}
	return g.countCopies(c.Result(), within)
}

// isScalar reports whether a function returns a number or a boolean.
func isScalar(function string) bool {
	return slices.Contains([]string{operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
		operators.In, operators.OldIn, operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.NotStrictlyFalse,
		operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo, operators.Negate, overloads.Size,
		overloads.TypeConvertInt, overloads.TypeConvertUint, overloads.TypeConvertDouble, overloads.TypeConvertBool,
		overloads.Contains, overloads.StartsWith, overloads.EndsWith, overloads.Matches}, function)
}
