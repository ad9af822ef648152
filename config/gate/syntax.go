package gate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"

	"tidemill.dev/config/spelling"
)

// SyntaxError says what is wrong with a clause, and in which column (counted from 1). The lines
// of a clause count as one.
type SyntaxError struct {
	Column int
	Reason string
}

// Error returns the column and the reason.
func (e *SyntaxError) Error() string { return fmt.Sprintf("column %d: %s", e.Column, e.Reason) }

func checkText(l language, text string) *SyntaxError {
	switch {
	case strings.TrimSpace(text) == "":
		return &SyntaxError{1, "is empty; write a condition such as " + l.example}
	case len(text) > maxClause:
		return &SyntaxError{1, fmt.Sprintf("is longer than %d bytes; write several clauses", maxClause)}
	}
	return nil
}

// firstOf returns the first error of a parser or checker, because the others often follow from
// it.
func firstOf(l language, text string, issues *cel.Issues) *SyntaxError {
	if issues == nil || len(issues.Errors()) == 0 {
		return nil
	}
	first := issues.Errors()[0]
	line, column := 1, 0
	if first.Location != nil {
		line, column = first.Location.Line(), first.Location.Column()
	}
	at := column
	for i, text := range strings.Split(text, "\n") {
		if i+1 >= line {
			break
		}
		at += len([]rune(text)) + 1
	}
	if m := undeclared.FindStringSubmatch(first.Message); m != nil && strings.HasPrefix(string([]rune(text)[min(max(at, 0), len([]rune(text))):]), "(") {
		at -= len([]rune(m[1])) // the parser reports the column after a function's name
	}
	return &SyntaxError{max(at, 0) + 1, plainly(l, first.Message)}
}

var (
	unexpected = regexp.MustCompile(`^Syntax error: (?:mismatched|extraneous) input '(.*?)' expecting`)
	noWay      = regexp.MustCompile(`^Syntax error: no viable alternative at input '(.*)'`)
	missing    = regexp.MustCompile(`^Syntax error: missing '(.*?)' at`)
	noToken    = regexp.MustCompile(`^Syntax error: token recognition error at: '(.*)'`)
	undeclared = regexp.MustCompile(`^undeclared reference to '(.*?)'`)
	noOverload = regexp.MustCompile(`^found no matching overload for '(.*?)' applied to '(.*?)'`)
	operator   = regexp.MustCompile(`^[_@]*(.*?)_*$`)
)

// plainly translates a message of the parser into Tidemill's words.
func plainly(l language, message string) string {
	if m := unexpected.FindStringSubmatch(message); m != nil {
		return notHere(m[1])
	}
	if m := noWay.FindStringSubmatch(message); m != nil {
		return notHere(m[1])
	}
	if m := noToken.FindStringSubmatch(message); m != nil {
		return notHere(m[1])
	}
	if m := missing.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("a %q is missing here", m[1])
	}
	if m := undeclared.FindStringSubmatch(message); m != nil {
		return unknown(l, m[1])
	}
	if m := noOverload.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("%s cannot be applied to %s", operator.FindStringSubmatch(m[1])[1], m[2])
	}
	if strings.Contains(message, "recursion limit") || strings.Contains(message, "max recursion depth") {
		return "is nested too deeply; write several clauses"
	}
	return strings.TrimPrefix(message, "Syntax error: ")
}

// notHere says that a word is in the wrong place, and suggests what may have been meant.
func notHere(word string) string {
	word = strings.TrimSpace(word)
	if word == "<EOF>" {
		return "the clause ends here, where more is expected"
	}
	if other, is := map[string]string{"and": "&&", "AND": "&&", "or": "||", "OR": "||", "not": "!", "NOT": "!", "=": "==", "<>": "!=", "=>": ">=", "=<": "<=", "&": "&&", "|": "||"}[word]; is {
		return fmt.Sprintf("%q is not CEL; write %s", word, other)
	}
	return fmt.Sprintf("%q is not expected here", word)
}

// unknown suggests a name for an unknown name.
func unknown(l language, name string) string {
	if other, is := map[string]string{"true": "true", "false": "false", "and": "&&", "or": "||", "not": "!"}[strings.ToLower(name)]; is {
		return fmt.Sprintf("there is no %s; write %s", name, other)
	}
	variables := l.shape().names()
	if name == ofStream {
		return "stream has the figures of a trial; write the clause under trial: pass"
	}
	if near, ok := spelling.Nearest(name, append(slices.Clone(variables), "size", "has")); ok {
		return fmt.Sprintf("there is no %s; did you mean %s?", name, near)
	}
	return fmt.Sprintf("there is no %s; a clause may name %s", name, strings.Join(variables, ", "))
}

// check compares the paths of a clause with the names that can exist.
func (f *finding) check(l language, a *ast.AST) *SyntaxError {
	for _, p := range f.paths {
		at := l.shape()
		for i, name := range p.steps {
			if at.isNumber() {
				return &SyntaxError{column(a, p.ids[i]), spellOf(p.steps[:i]) + " is a number, and has nothing within"}
			}
			below := at.child(name)
			if below == nil && i == 0 {
				break // the checker reports it
			}
			if below == nil {
				return &SyntaxError{column(a, p.ids[i]), notWithin(p.steps[:i], name, slices.Sorted(maps.Keys(at.fields)))}
			}
			at = below
		}
	}
	return nil
}

func spellOf(steps []string) string { return path{steps: steps}.String() }

// maxKnown bounds how many names an error lists.
const maxKnown = 12

func notWithin(parent []string, name string, known []string) string {
	text := fmt.Sprintf("there is no %s in %s", brief(name), spellOf(parent))
	if near, ok := spelling.Nearest(name, known); ok {
		if !plainName.MatchString(near) {
			near = spellOf(append(slices.Clone(parent), near))
		}
		return text + "; did you mean " + brief(near) + "?"
	}
	switch {
	case len(known) == 0:
		return text + ", which is empty"
	case len(known) > maxKnown:
		return fmt.Sprintf("%s; there are %s and %d more", text, briefly(known[:maxKnown]), len(known)-maxKnown)
	}
	return text + "; there are " + briefly(known)
}

func briefly(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, brief(name))
	}
	return strings.Join(all, ", ")
}

// column returns the column of a step's name, which is after its dot.
func column(a *ast.AST, id int64) int {
	at, known := a.SourceInfo().GetOffsetRange(id)
	if !known {
		return 1
	}
	return int(at.Start) + 2
}

// checkCondition requires a boolean expression, as far as its type is known before there are
// figures.
func checkCondition(l language, checked *cel.Ast) *SyntaxError {
	next := "; compare it, such as " + l.example
	root := checked.NativeRep().Expr()
	if p, is := trace(root, nil); is && !p.asked {
		return &SyntaxError{1, "names a figure and asks nothing of it" + next}
	}
	if root.Kind() == ast.CallKind && slices.Contains([]string{operators.Add, operators.Subtract, operators.Multiply, operators.Divide, operators.Negate, operators.Modulo}, root.AsCall().FunctionName()) {
		return &SyntaxError{1, "computes a figure and asks nothing of it" + next}
	}
	if t := checked.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return &SyntaxError{1, "is of type " + t.String() + ", and not true or false" + next}
	}
	return nil
}

// maxBrief bounds how much of a foreign text is repeated.
const maxBrief = 120

// brief returns a text on one line, shortened.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > maxBrief {
		return string(r[:maxBrief]) + "…"
	}
	return text
}
