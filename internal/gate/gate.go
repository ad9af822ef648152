// Package gate judges a version by its recipe's clauses, which are CEL.
package gate

import (
	"fmt"
	"sync"

	"cel.dev/cel-go/cel"

	"tidemill.dev"
)

// Gate is a list of clauses that were found to be sound.
type Gate struct{ clauses []clause }

// clause is one condition.
type clause struct {
	text      string
	program   cel.Program
	names     []path    // of what it names, each once
	constants []float64 // numbers that it writes out
}

// Facts are what a gate decides by.
type Facts struct {
	Report     tidemill.Report
	Origin     tidemill.Origin
	Seconds    float64 // that the run's command took, and so on: see run.* in docs/gates.md
	Bytes      int64   // of the artifact
	Files      int     // of it
	GPU        float64 // seconds
	PeakMemory int64   // bytes
	Champion   int     // version; 0 if there is none
	Given      int     // version of the champion that the run was given to measure; 0 if none
	// Recorded are the champion's metrics as it was registered with them.
	Recorded *tidemill.Report
	On       tidemill.GateOn // whether those may count where the run has not measured the champion
}

const (
	// maxClause and maxDepth bound what a parser is given, maxCost what a clause
	// may look at: some tenths of a second of work.
	maxClause = 2000 // bytes
	maxDepth  = 50
	maxCost   = 200_000
	// MaxClauses is how many clauses a gate may have.
	MaxClauses = 50
)

// Check finds what is wrong with a clause; nil or a *SyntaxError.
func Check(text string) error {
	env, err := environment()
	if err != nil {
		return &SyntaxError{1, err.Error()}
	}
	_, err = compile(env, text)
	return err
}

// Compile reads the clauses of a gate.
func Compile(clauses []string) (*Gate, error) {
	if len(clauses) == 0 {
		return &Gate{}, nil
	}
	if len(clauses) > MaxClauses {
		return nil, fmt.Errorf("a gate has %d clauses, more than %d; join some with &&", len(clauses), MaxClauses)
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	g := &Gate{}
	for i, text := range clauses {
		c, err := compile(env, text)
		if err != nil {
			return nil, fmt.Errorf("read clause %d of the gate, %s: %w", i+1, brief(text), err)
		}
		g.clauses = append(g.clauses, c)
	}
	return g, nil
}

// environment knows what clauses may name. It takes longer to make than most
// clauses to read, and never changes.
var environment = sync.OnceValues(newEnvironment)

// newEnvironment has dynamic variables, for which metrics there are only a run
// tells.
func newEnvironment() (*cel.Env, error) {
	options := []cel.EnvOption{cel.CrossTypeNumericComparisons(true), cel.ParserRecursionLimit(maxDepth), cel.ParserExpressionSizeLimit(maxClause)}
	for _, name := range variables() {
		options = append(options, cel.Variable(name, cel.DynType))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, fmt.Errorf("make the language of gates: %w", err)
	}
	return env, nil
}

// compile reads a clause; an error is a *SyntaxError. The parser is not ours:
// should it panic on some text, that is refused and the process lives on.
func compile(env *cel.Env, text string) (c clause, err error) {
	defer func() {
		if p := recover(); p != nil {
			c, err = clause{}, &SyntaxError{1, fmt.Sprintf("cannot be read: %v", p)}
		}
	}()
	if wrong := checkText(text); wrong != nil {
		return clause{}, wrong
	}
	parsed, issues := env.Parse(text)
	if wrong := firstOf(text, issues); wrong != nil {
		return clause{}, wrong
	}
	c = clause{text: text}
	found := survey(parsed.NativeRep())
	c.names, c.constants = found.named(), found.constants
	if wrong := found.check(parsed.NativeRep()); wrong != nil {
		return clause{}, wrong
	}
	if wrong := checkGrowth(parsed.NativeRep()); wrong != nil {
		return clause{}, wrong
	}
	toDoubles(parsed.NativeRep())
	checked, issues := check(env, parsed)
	if wrong := firstOf(text, issues); wrong != nil {
		return clause{}, wrong
	}
	if wrong := checkCondition(checked); wrong != nil {
		return clause{}, wrong
	}
	c.program, err = env.Program(checked, cel.CostLimit(maxCost))
	if err != nil {
		return clause{}, &SyntaxError{1, err.Error()}
	}
	return c, nil
}

// checking holds that one clause is checked at a time: cel-go fills in the
// suggestions for its errors in an environment that other checks copy meanwhile.
var checking sync.Mutex

func check(env *cel.Env, parsed *cel.Ast) (*cel.Ast, *cel.Issues) {
	checking.Lock()
	defer checking.Unlock()
	return env.Check(parsed)
}
