package gate

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// shape describes the values under a name: known fields, any number of names with the same
// shape (each), or free names that a trainer chooses. A shape with none of these is a number.
type shape struct {
	fields map[string]*shape
	each   *shape
	free   bool
}

func (s *shape) isNumber() bool { return s.fields == nil && s.each == nil && !s.free }

// child returns the shape of a name inside this shape; nil if the name is unknown.
func (s *shape) child(name string) *shape {
	switch {
	case s.free:
		return s
	case s.each != nil:
		return s.each
	}
	return s.fields[name]
}

// The names that clauses begin with.
const (
	ofMetrics   = "metrics"
	ofChampion  = "champion"
	ofConfusion = "confusion"
	ofData      = "data"
	ofRun       = "run"
	ofStream    = "stream"
	ofFleet     = "fleet"
)

func (s *shape) names() []string { return slices.Sorted(maps.Keys(s.fields)) }

func of(names ...string) *shape {
	s := &shape{fields: map[string]*shape{}}
	for _, name := range names {
		s.fields[name] = &shape{}
	}
	return s
}

func (s *shape) with(name string, below *shape) *shape {
	s.fields[name] = below
	return s
}

// world returns the shape of everything that a clause may name.
func world() *shape {
	classes := &shape{each: of("precision", "recall", "f1", "support", "predicted")}
	matrix := &shape{each: &shape{each: &shape{}}}
	confusion := of("examples", "accuracy", "macroF1").with("classes", classes).with("matrix", matrix)
	metrics := &shape{free: true}
	return of().
		with(ofMetrics, metrics).
		with(ofConfusion, confusion).
		with(ofChampion, of("version").with(ofMetrics, metrics).with(ofConfusion, confusion).with("lead", of("value", "low", "high"))).
		with(ofData, &shape{each: of("files", "bytes")}).
		with(ofRun, of("attempt", "seconds", "gpuSeconds", "peakMemory", "bytes", "files", "causes"))
}

// streamShape returns the shape of what a clause of a trial may name.
func streamShape() *shape {
	return of().with(ofStream, of("answered", "labelled", "disagree", "errors", "p99").with("lead", of("low", "value", "high")))
}

// path is a name such as champion.metrics.accuracy in a clause, up to the first part that is
// computed.
type path struct {
	steps []string
	ids   []int64 // id of the expression for each step
	asked bool    // used only to test existence: has(metrics.f1)
}

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// String returns the path as a clause writes it.
func (p path) String() string { return strings.TrimPrefix(spell(p.steps), ".") }

func spell(steps []string) string {
	var b strings.Builder
	for _, step := range steps {
		if plainName.MatchString(step) {
			b.WriteString("." + step)
		} else {
			b.WriteString("[" + strconv.Quote(step) + "]")
		}
	}
	return b.String()
}

// needsChampion reports whether the path names figures of the champion.
func (p path) needsChampion() bool { return p.steps[0] == ofChampion && !p.isChampionsVersion() }

func (p path) isChampionsVersion() bool {
	return p.steps[0] == ofChampion && len(p.steps) == 2 && p.steps[1] == "version"
}

// metric returns the name of the metric that the path names; empty if it names another thing.
func (p path) metric() string {
	steps := p.steps
	if steps[0] == ofChampion {
		steps = steps[1:]
	}
	if len(steps) < 2 || steps[0] != ofMetrics && (steps[0] != ofConfusion || len(steps) > 2) {
		return ""
	}
	return strings.Join(steps[1:], ".")
}

// find follows the path. If a step is missing, which is the first such step.
func (p path) find(world map[string]any) (value any, which int, found bool) {
	value = world
	for i, step := range p.steps {
		var next any
		is := false
		switch within := value.(type) {
		case map[string]any:
			next, is = within[step]
		case matrixRow:
			next, is = within.count(step)
		}
		if !is {
			return nil, i, false
		}
		value = next
	}
	return value, 0, true
}

// finding collects the paths and numbers of a clause.
type finding struct {
	paths     []path
	constants []float64
}

func survey(a *ast.AST) *finding {
	f := &finding{}
	f.walk(a.Expr(), nil)
	return f
}

// named returns the paths without duplicates.
func (f *finding) named() (all []path) {
	seen := map[string]bool{}
	for _, p := range f.paths {
		key := p.String() + strconv.FormatBool(p.asked)
		if !seen[key] {
			seen[key], all = true, append(all, p)
		}
	}
	return all
}

// walk collects paths, except those of variables that a macro binds.
func (f *finding) walk(e ast.Expr, bound []string) {
	if p, is := trace(e, bound); is {
		f.paths = append(f.paths, p)
		return
	}
	for _, below := range children(e) {
		f.walk(below, bound)
	}
	switch e.Kind() {
	case ast.LiteralKind:
		f.constant(e)
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		f.walk(c.IterRange(), bound)
		bound = append(bound[:len(bound):len(bound)], c.IterVar(), c.IterVar2(), c.AccuVar())
		for _, below := range []ast.Expr{c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()} {
			f.walk(below, bound)
		}
	}
}

func (f *finding) constant(e ast.Expr) {
	switch v := e.AsLiteral().(type) {
	case types.Double:
		f.constants = append(f.constants, float64(v))
	case types.Int:
		f.constants = append(f.constants, float64(v))
	case types.Uint:
		f.constants = append(f.constants, float64(v))
	}
}

// children returns the direct parts of an expression. It does not handle comprehensions.
func children(e ast.Expr) (all []ast.Expr) {
	switch e.Kind() {
	case ast.CallKind:
		if c := e.AsCall(); c.IsMemberFunction() {
			return append([]ast.Expr{c.Target()}, c.Args()...)
		}
		return e.AsCall().Args()
	case ast.SelectKind:
		return []ast.Expr{e.AsSelect().Operand()}
	case ast.ListKind:
		return e.AsList().Elements()
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			all = append(all, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			all = append(all, field.AsStructField().Value())
		}
	}
	return all
}

// trace returns an expression as a path, if it is one.
func trace(e ast.Expr, bound []string) (path, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		name := e.AsIdent()
		for _, b := range bound {
			if name == b {
				return path{}, false
			}
		}
		return path{steps: []string{name}, ids: []int64{e.ID()}}, true
	case ast.SelectKind:
		s := e.AsSelect()
		p, is := trace(s.Operand(), bound)
		return p.step(s.FieldName(), e.ID(), s.IsTestOnly()), is
	case ast.CallKind:
		c := e.AsCall()
		if c.FunctionName() != operators.Index || len(c.Args()) != 2 || c.Args()[1].Kind() != ast.LiteralKind {
			return path{}, false
		}
		name, text := c.Args()[1].AsLiteral().(types.String)
		p, is := trace(c.Args()[0], bound)
		return p.step(string(name), e.ID(), false), is && text
	}
	return path{}, false
}

func (p path) step(name string, id int64, asked bool) path {
	p.steps, p.ids, p.asked = append(p.steps, name), append(p.ids, id), asked
	return p
}
