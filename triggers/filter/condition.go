package filter

import (
	"slices"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker"
	"tidemill.dev/config/cesql"
)

// verdict is the result of a condition. Errors count as no match, so they need no details.
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

// condition is an expression cast to a boolean. It has the same result as eval, but takes only some
// nanoseconds and allocates nothing for the kinds of expressions that most filters use.
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
			return andConditions(newConditions(chain("AND", x, nil)))
		case "OR":
			return orConditions(newConditions(chain("OR", x, nil)))
		case "=":
			return equality(x)
		}
	}
	return anyCondition(x)
}

// anyCondition evaluates any expression with eval, which is slower.
func anyCondition(x cesql.Expr) condition {
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

// isBoolean reports whether an expression's value is a boolean without a cast.
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

// chain returns the operands of a row of equal operators. Parentheses make no difference
// to a row of AND only, or of OR only.
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

// andConditions evaluates AND. It stops at the first operand that is false or has an error.
func andConditions(list []condition) condition {
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

// orConditions evaluates OR. It stops at the first operand that is true or has an error.
func orConditions(list []condition) condition {
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
	if p.open && p.end == "" { // the most frequent case
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

// equality is = between an attribute and a literal; other operands fall back to the slow
// way. The left side is cast to the kind of the right side.
func equality(x *cesql.Binary) condition {
	left, literal := x.X, x.Y
	if _, ok := left.(*cesql.Literal); ok {
		left, literal = literal, left
	}
	a, isAttribute := left.(*cesql.Attribute)
	l, isLiteral := literal.(*cesql.Literal)
	if !isAttribute || !isLiteral {
		return anyCondition(x)
	}
	get, want := attributeOf(a.Name), toValue(l.Value)
	if want.kind == text || left == x.Y {
		return isText(get, want.text())
	}
	return func(v *broker.View) verdict {
		s, there := get(v)
		is, ok := ofText(s).castTo(want.kind)
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

// linear is the number of texts up to which comparing them one by one is faster than a map.
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

// pattern is a pattern of LIKE. Most patterns have wildcards only at their ends; they are
// compared without decoding characters.
type pattern struct {
	plain  bool   // a match needs only begin, end and the two flags
	open   bool   // whether it has a %
	within bool   // whether the pattern is % begin %
	begin  string // text of the pattern without escapes
	end    string

	letters []rune // characters of patterns that are not plain
}

const (
	anyText   rune = -1 - iota // %
	anyLetter                  // _
)

func newPattern(written string) pattern {
	letters := unescape(written)
	p := pattern{letters: letters}
	first, last, many := -1, -1, 0
	for i, r := range letters {
		switch {
		case r == anyLetter:
			return p
		case r == anyText:
			if many++; first < 0 {
				first = i
			}
			last = i
		}
	}
	switch {
	case many == 0:
		p.plain, p.begin = true, string(letters)
	case many == 1:
		p.plain, p.open = true, true
		p.begin, p.end = string(letters[:first]), string(letters[last+1:])
	case many == 2 && first == 0 && last == len(letters)-1:
		p.plain, p.within, p.begin = true, true, string(letters[1:last])
	}
	return p
}

// unescape turns each wildcard, and each row of %, into one character.
func unescape(written string) (letters []rune) {
	escaped := false
	for i, r := range written {
		switch {
		case escaped:
			escaped = false
		case r == '\\' && i+1 < len(written) && (written[i+1] == '%' || written[i+1] == '_'):
			escaped = true
			continue
		case r == '%':
			r = anyText
		case r == '_':
			r = anyLetter
		}
		if r != anyText || len(letters) == 0 || letters[len(letters)-1] != anyText {
			letters = append(letters, r)
		}
	}
	return letters
}

func (p *pattern) matches(s string) bool {
	switch {
	case !p.plain:
		return p.walk(s)
	case p.within:
		return strings.Contains(s, p.begin)
	case p.open:
		return len(s) >= len(p.begin)+len(p.end) && strings.HasPrefix(s, p.begin) && strings.HasSuffix(s, p.end)
	}
	return s == p.begin
}

// walk compares character by character. After a mismatch it goes back to the last % and
// lets that % match one more character. Earlier % need not be tried again, because the
// text between two % was found as early as possible.
func (p *pattern) walk(s string) bool {
	at, back, tried := 0, -1, 0
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case at < len(p.letters) && p.letters[at] == anyText:
			at++
			back, tried = at, i
		case at < len(p.letters) && (p.letters[at] == anyLetter || p.letters[at] == r):
			at++
			i += size
		case back >= 0:
			_, size := utf8.DecodeRuneInString(s[tried:])
			tried += size
			at, i = back, tried
		default:
			return false
		}
	}
	for at < len(p.letters) && p.letters[at] == anyText {
		at++
	}
	return at == len(p.letters)
}
