package cesql

import "fmt"

// expected is the error of a token that stands where another should.
func (p *parser) expected(what, advice string) error {
	if p.tok.kind == wrong {
		return p.tok.err
	}
	return fail(columnOf(p.text, p.tok.at), "expected %s, found %s%s", what, p.tok.said(p.text), advice)
}

func (p *parser) expectedValue() error {
	advice := ""
	if p.tok.is("=") && (p.before.is("=") || p.before.is("!=")) {
		advice = fmt.Sprintf("; write %s alone", p.before.text)
	}
	return p.expected("an attribute or a value", advice)
}

// slip guesses what was meant where no operator stands between two operands.
func (p *parser) slip() string {
	switch {
	case p.before.kind == quoted && p.tok.kind == quoted && p.before.end == p.tok.at:
		quote := p.text[p.tok.at]
		return fmt.Sprintf(`; in a string %c is written \%c`, quote, quote)
	case p.tok.kind != word && p.tok.kind != quoted:
		return ""
	}
	if p.before.kind == word {
		if k := nearest(p.before.text, []string{"EXISTS", "NOT"}); k != "" {
			return fmt.Sprintf("; did you mean %s for %s?", k, cut(p.before.text))
		}
	}
	if p.tok.kind == quoted {
		return ""
	}
	return didYouMean(p.tok.text, []string{"AND", "OR", "XOR", "NOT", "LIKE", "IN"})
}
