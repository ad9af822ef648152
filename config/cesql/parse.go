package cesql

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"tidemill.dev/config/spelling"
)

const (
	maxLength  = 16 << 10 // bytes
	maxNesting = 100      // nested parentheses, arguments and signs
)

// Parse parses an expression. The error is a *SyntaxError.
func Parse(text string) (Expr, error) {
	x, _, err := parse(text)
	return x, err
}

func parse(text string) (Expr, *parser, error) {
	if len(text) > maxLength {
		return nil, nil, fail(1, "an expression has %d bytes at most, and this one %d", maxLength, len(text))
	}
	if !utf8.ValidString(text) {
		return nil, nil, fail(columnOf(text, invalidAt(text)), "expected text in UTF-8")
	}
	p := &parser{text: text}
	p.advance()
	x, err := p.whole()
	return x, p, err
}

// ParseCondition parses an expression that must be true or false for an event, such as a
// filter. An expression that can be neither matches nothing, which is an error. So is a name
// without quotes, as in subject = bot-42: the language reads it as a subtraction.
func ParseCondition(text string) (Expr, error) {
	x, p, err := parse(text)
	if err != nil {
		return nil, err
	}
	if p.unquoted.end > 0 {
		name := text[p.unquoted.at:p.unquoted.end]
		return nil, fail(columnOf(text, p.unquoted.at), "%s is a subtraction here: write a text in quotes, '%[1]s', or write spaces around the -", shorten(name))
	}
	switch kindOf(x) {
	case integerKind:
		return nil, fail(1, "expected a condition, and this is a number: compare it with something, as in LENGTH(subject) = 6")
	case textKind:
		return nil, fail(1, "expected a condition, and this is a text: compare it with something, as in type = 'new-data'")
	}
	return x, nil
}

func invalidAt(text string) int {
	for i, r := range text {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(text[i:]); size == 1 {
				return i
			}
		}
	}
	return 0
}

// SyntaxError gives the place of an error in an expression, and the parser's expectation.
type SyntaxError struct {
	Column  int // column of the first wrong character, counted from 1
	Message string
	cause   error
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("column %d: %s", e.Column, e.Message) }

func (e *SyntaxError) Unwrap() error { return e.cause }

func fail(column int, format string, args ...any) *SyntaxError {
	return &SyntaxError{Column: column, Message: fmt.Sprintf(format, args...)}
}

// columnOf counts characters, as editors do.
func columnOf(text string, at int) int { return utf8.RuneCountInString(text[:at]) + 1 }

// parser reads from left to right and never goes back.
type parser struct {
	text   string
	before token // previous token
	tok    token // next token to be read
	depth  int

	unquoted token // first operand of a comparison that looks like a name with hyphens; empty if there is none
}

func (p *parser) advance() {
	p.before = p.tok
	p.tok = scan(p.text, p.tok.end)
}

func (p *parser) take(text string) bool {
	if !p.tok.isText(text) {
		return false
	}
	p.advance()
	return true
}

func (p *parser) whole() (Expr, error) {
	x, err := p.expression(precedenceLogic)
	if err != nil {
		return nil, err
	}
	if p.tok.kind != endToken {
		return nil, p.expected("an operator or the end", p.guessMistake())
	}
	return x, nil
}

// The precedence of operators, lowest first. Signs and NOT have a higher one than all of these.
const (
	precedenceLogic = 1 + iota
	precedenceComparison
	precedenceSum
	precedenceProduct
	precedenceTest // LIKE and IN
)

func (t token) precedence() int {
	if t.kind != keyword && t.kind != symbol {
		return 0
	}
	switch t.text {
	case "AND", "OR", "XOR":
		return precedenceLogic
	case "=", "!=", "<>", "<", "<=", ">", ">=":
		return precedenceComparison
	case "+", "-":
		return precedenceSum
	case "*", "/", "%":
		return precedenceProduct
	case "LIKE", "IN", "NOT":
		return precedenceTest
	}
	return 0
}

// expression reads operators of at least the given precedence. Operators of equal precedence
// are read from left to right.
func (p *parser) expression(least int) (Expr, error) {
	x, err := p.operand()
	for err == nil && p.tok.precedence() >= least {
		x, err = p.operation(x)
	}
	return x, err
}

func (p *parser) operation(x Expr) (Expr, error) {
	op := p.tok
	if op.precedence() == precedenceTest {
		return p.test(x)
	}
	p.advance()
	if op.text == "=" && p.tok.isText("=") {
		return nil, p.expected("a value", "; equality is a single =")
	}
	begin := p.tok.at
	y, err := p.expression(op.precedence() + 1)
	if err != nil {
		return nil, err
	}
	if op.precedence() == precedenceComparison && p.unquoted.end == 0 && isHyphenated(y) && !strings.ContainsAny(p.text[begin:p.before.end], " \t\r\n()") {
		p.unquoted = token{at: begin, end: p.before.end}
	}
	if op.text == "!=" || op.text == "<>" {
		return &Unary{"NOT", &Binary{"=", x, y}}, nil
	}
	return &Binary{op.text, x, y}, nil
}

// isHyphenated reports whether an expression subtracts from an attribute, as bot-42 does.
func isHyphenated(x Expr) bool {
	b, ok := x.(*Binary)
	if !ok || b.Op != "-" {
		return false
	}
	_, ok = b.X.(*Attribute)
	return ok || isHyphenated(b.X)
}

// Unquoted returns the first attribute to the right of an equals sign in a condition, because it may
// be a text whose quotes were forgotten. It returns an empty text if there is none.
func Unquoted(condition string) string {
	x, err := Parse(condition)
	if err != nil {
		return ""
	}
	return unquoted(x)
}

func unquoted(x Expr) string {
	switch x := x.(type) {
	case *Unary:
		return unquoted(x.X)
	case *Binary:
		if a, ok := x.Y.(*Attribute); ok && x.Op == "=" {
			return a.Name
		}
		return cmp.Or(unquoted(x.X), unquoted(x.Y))
	}
	return ""
}

func (p *parser) test(x Expr) (Expr, error) {
	not := p.take("NOT")
	var err error
	switch {
	case p.take("LIKE"):
		x, err = p.like(x)
	case p.take("IN"):
		x, err = p.in(x)
	default:
		err = p.expected("LIKE or IN after NOT", "")
	}
	if not && err == nil {
		x = &Unary{"NOT", x}
	}
	return x, err
}

func (p *parser) like(x Expr) (Expr, error) {
	if p.tok.kind != quoted {
		return nil, p.expected("a pattern in quotes after LIKE", "")
	}
	p.advance()
	return &Like{x, p.before.text}, nil
}

func (p *parser) in(x Expr) (Expr, error) {
	open := p.tok
	if !p.take("(") {
		return nil, p.expected("a list in parentheses after IN", "")
	}
	if p.tok.isText(")") {
		return nil, p.expected("a value in the list", "")
	}
	set, err := p.list(open)
	return &In{x, set}, err
}

// list reads expressions separated by commas, up to and including the closing parenthesis.
func (p *parser) list(open token) (all []Expr, err error) {
	for {
		x, err := p.expression(precedenceLogic)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
		if !p.take(",") {
			return all, p.closes(open, ", or )")
		}
	}
}

func (p *parser) closes(open token, what string) error {
	if p.take(")") {
		return nil
	}
	return p.expected(what+" for the ( of column "+strconv.Itoa(columnOf(p.text, open.at)), p.guessMistake())
}

// operand reads an operand.
func (p *parser) operand() (Expr, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fail(columnOf(p.text, p.tok.at), "expressions nest %d deep at most", maxNesting)
	}
	defer func() { p.depth-- }()
	t := p.tok
	switch t.kind {
	case quoted:
		p.advance()
		return &Literal{t.text}, nil
	case number:
		p.advance()
		return p.integer(t, t.text)
	case word:
		p.advance()
		return p.named(t)
	case keyword, symbol:
		return p.prefixed(t)
	}
	return nil, p.expectedValue()
}

func (p *parser) prefixed(t token) (Expr, error) {
	switch t.text {
	case "TRUE", "FALSE":
		p.advance()
		return &Literal{t.text == "TRUE"}, nil
	case "(":
		p.advance()
		x, err := p.expression(precedenceLogic)
		if err != nil {
			return nil, err
		}
		return x, p.closes(t, ")")
	case "NOT":
		p.advance()
		x, err := p.operand()
		return &Unary{"NOT", x}, err
	case "-", "+":
		return p.signed(t)
	case "EXISTS":
		p.advance()
		return p.exists()
	}
	return nil, p.expectedValue()
}

// signed reads a sign. A sign directly before a number belongs to the number, so that the
// smallest integer can be written. Any other sign is an operator, which can only be -.
func (p *parser) signed(sign token) (Expr, error) {
	p.advance()
	if n := p.tok; n.kind == number && n.at == sign.end {
		p.advance()
		return p.integer(sign, sign.text+n.text)
	}
	if sign.text == "+" {
		return nil, p.expected("a number directly after +", "")
	}
	x, err := p.operand()
	return &Unary{"-", x}, err
}

func (p *parser) integer(at token, digits string) (Expr, error) {
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return nil, fail(columnOf(p.text, at.at), "expected an integer from -2147483648 to 2147483647, found %s", shorten(digits))
	}
	return &Literal{int32(n)}, nil
}

func (p *parser) exists() (Expr, error) {
	if p.tok.kind != word {
		return nil, p.expected("an attribute's name after EXISTS", "")
	}
	name, err := p.attribute(p.tok)
	p.advance()
	return &Exists{name}, err
}

// named reads a call or an attribute.
func (p *parser) named(name token) (Expr, error) {
	open := p.tok
	if !open.isText("(") {
		attribute, err := p.attribute(name)
		return &Attribute{attribute}, err
	}
	p.advance()
	c := &Call{Name: strings.ToUpper(name.text)}
	if !p.take(")") {
		var err error
		if c.Args, err = p.list(open); err != nil {
			return nil, err
		}
	}
	return c, checkCall(columnOf(p.text, name.at), c)
}

func (p *parser) attribute(t token) (string, error) {
	if strings.Contains(t.text, "_") {
		return "", fail(columnOf(p.text, t.at), "expected an attribute's name, which has letters and digits only, found %s", shorten(t.text))
	}
	return strings.ToLower(t.text), nil
}

// expected returns the error of an unexpected token.
func (p *parser) expected(what, advice string) error {
	if p.tok.kind == wrong {
		return p.tok.err
	}
	return fail(columnOf(p.text, p.tok.at), "expected %s, found %s%s", what, p.tok.describe(p.text), advice)
}

func (p *parser) expectedValue() error {
	advice := ""
	if p.tok.isText("=") && (p.before.isText("=") || p.before.isText("!=")) {
		advice = fmt.Sprintf("; write %s alone", p.before.text)
	}
	return p.expected("an attribute or a value", advice)
}

// guessMistake guesses the user's mistake if an operator is missing between two operands.
func (p *parser) guessMistake() string {
	switch {
	case p.before.kind == quoted && p.tok.kind == quoted && p.before.end == p.tok.at:
		quote := p.text[p.tok.at]
		return fmt.Sprintf(`; in a string %c is written \%c`, quote, quote)
	case p.tok.kind != word && p.tok.kind != quoted:
		return ""
	}
	if p.before.kind == word {
		if k, ok := spelling.Nearest(p.before.text, []string{"EXISTS", "NOT"}); ok {
			return fmt.Sprintf("; did you mean %s for %s?", k, shorten(p.before.text))
		}
	}
	if p.tok.kind == quoted {
		return ""
	}
	return didYouMean(p.tok.text, []string{"AND", "OR", "XOR", "NOT", "LIKE", "IN"})
}

// didYouMean returns a suggestion to append to an unknown word, or nothing.
func didYouMean(word string, known []string) string {
	if k, ok := spelling.Nearest(word, known); ok {
		return "; did you mean " + k + "?"
	}
	return ""
}
