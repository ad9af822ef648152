package main

import (
	"fmt"
	"strings"

	"github.com/antlr/antlr4/runtime/Go/antlr"
	"github.com/cloudevents/sdk-go/sql/v2/gen"
	"github.com/cloudevents/sdk-go/sql/v2/parser"
	"github.com/cloudevents/sdk-go/sql/v2/runtime"

	"tidemill.dev/broker"
)

// filter says whether an event is wanted.
type filter func(*broker.View) bool

// parseFilter reads CloudEvents SQL once. Empty text wants every event. An event
// for which the expression fails, or is no boolean, is not wanted.
func parseFilter(text string) (filter, error) {
	if strings.TrimSpace(text) == "" {
		return func(*broker.View) bool { return true }, nil
	}
	if err := checkSyntax(text); err != nil {
		return nil, err
	}
	expression, err := parser.Parse(text)
	if err != nil {
		return nil, usagef("--where: %v\n  %s", err, text)
	}
	return func(v *broker.View) bool {
		e, err := v.Event()
		if err != nil {
			return false
		}
		result, err := expression.Evaluate(e)
		wanted, isBool := result.(bool)
		return err == nil && isBool && wanted
	}, nil
}

// checkSyntax reads the text with sdk-go's own grammar for the sake of the
// error: the sdk's parser does not say where it was, its lexer speaks to the
// terminal, and at some input it panics.
func checkSyntax(text string) error {
	var found firstError
	lexer := gen.NewCESQLParserLexer(parser.NewCaseChangingStream(antlr.NewInputStream(text), true))
	lexer.RemoveErrorListeners()
	lexer.AddErrorListener(&found)
	p := gen.NewCESQLParserParser(antlr.NewCommonTokenStream(lexer, antlr.TokenDefaultChannel))
	p.RemoveErrorListeners()
	p.AddErrorListener(&found)
	found.checkFunctions(p.Cesql())
	if found.message == "" {
		return nil
	}
	return usagef("--where, column %d: %s\n  %s\n  %s^", found.column+1, found.message,
		strings.ReplaceAll(text, "\n", " "), strings.Repeat(" ", found.column))
}

// firstError keeps the first of a parser's complaints; later ones are mostly
// its consequences.
type firstError struct {
	antlr.DefaultErrorListener
	column  int
	message string
}

func (f *firstError) add(column int, message string) {
	if f.message == "" {
		f.column, f.message = column, message
	}
}

// SyntaxError is called by the parser. What it says that it expected is the
// grammar's names for nearly everything.
func (f *firstError) SyntaxError(_ antlr.Recognizer, _ any, _, column int, msg string, _ antlr.RecognitionException) {
	msg, _, _ = strings.Cut(msg, " expecting {")
	msg = strings.NewReplacer("'<EOF>'", "the end", "mismatched input", "did not expect", "extraneous input", "did not expect").Replace(msg)
	f.add(column, msg)
}

// checkFunctions finds calls of what does not exist, which the sdk would notice
// only when it comes to the first event that it needs them for.
func (f *firstError) checkFunctions(tree antlr.Tree) {
	if call, ok := tree.(*gen.FunctionInvocationExpressionContext); ok && f.message == "" {
		name := call.FunctionIdentifier().GetText()
		args := 0
		if list, ok := call.FunctionParameterList().(*gen.FunctionParameterListContext); ok {
			args = len(list.AllExpression())
		}
		if runtime.ResolveFunction(strings.ToUpper(name), args) == nil {
			f.add(call.GetStart().GetColumn(), fmt.Sprintf("there is no function %s of %s", name, count(args, "argument")))
		}
	}
	for _, child := range tree.GetChildren() {
		f.checkFunctions(child)
	}
}
