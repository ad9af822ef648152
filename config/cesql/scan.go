package cesql

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

type tokenKind uint8

const (
	endToken tokenKind = iota
	keyword            // word of the language, in capitals
	word               // name of an attribute or a function
	number
	quoted
	symbol
	wrong // not a token; err says why
)

type token struct {
	kind    tokenKind
	text    string // source text, or the value of a string literal
	at, end int    // position in bytes
	err     *SyntaxError
}

// isText reports whether a token is this keyword or symbol.
func (t token) isText(text string) bool {
	return (t.kind == keyword || t.kind == symbol) && t.text == text
}

// describe returns the name of a token for an error.
func (t token) describe(text string) string {
	if t.kind == endToken {
		return "the end"
	}
	if t.kind == quoted {
		return "a string"
	}
	return shorten(text[t.at:t.end])
}

// shorten shortens a text that an error repeats.
func shorten(text string) string {
	const most = 40
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}

// scan returns the first token at or after a position.
func scan(text string, at int) token {
	for at < len(text) && strings.IndexByte(" \t\r\n", text[at]) >= 0 {
		at++
	}
	t := token{at: at, end: at}
	if at == len(text) {
		return t
	}
	switch c := text[at]; {
	case isLetter(c) || isDigit(c):
		return scanWord(text, t)
	case c == '\'' || c == '"':
		return scanString(text, t)
	case at+1 < len(text) && isPair(text[at:at+2]):
		t.end += 2
	case strings.IndexByte("()=<>+-*/%,", c) >= 0:
		t.end++
	default:
		return scanWrong(text, t)
	}
	t.kind, t.text = symbol, text[t.at:t.end]
	return t
}

func isLetter(c byte) bool    { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool     { return c >= '0' && c <= '9' }
func isPair(text string) bool { return text == "!=" || text == "<>" || text == "<=" || text == ">=" }

func scanWord(text string, t token) token {
	digits := true
	for t.end < len(text) && (isLetter(text[t.end]) || isDigit(text[t.end]) || text[t.end] == '_') {
		digits = digits && isDigit(text[t.end])
		t.end++
	}
	t.kind, t.text = word, text[t.at:t.end]
	if digits {
		t.kind = number
		return t
	}
	switch upper := strings.ToUpper(t.text); upper {
	case "AND", "OR", "XOR", "NOT", "LIKE", "EXISTS", "IN", "TRUE", "FALSE":
		t.kind, t.text = keyword, upper
	}
	return t
}

// scanString reads to the quote that ends a string. A backslash prevents the next character
// from ending it. Before a quote the backslash is removed; before other characters it stays,
// because LIKE has its own escapes.
func scanString(text string, t token) token {
	quote := text[t.at]
	var meant strings.Builder
	for i := t.at + 1; i < len(text); i++ {
		switch {
		case text[i] == quote:
			t.kind, t.text, t.end = quoted, meant.String(), i+1
			return t
		case text[i] == '\\' && i+1 < len(text):
			if i++; text[i] != quote {
				meant.WriteByte('\\')
			}
		}
		meant.WriteByte(text[i])
	}
	return t.wrong(text, len(text), "the string that begins here has no end: a %c is missing", quote)
}

// scanWrong recognises operators of other languages, to suggest the right one.
func scanWrong(text string, t token) token {
	r, size := utf8.DecodeRuneInString(text[t.at:])
	end, advice := t.at+size, ""
	switch rest := text[t.at:]; {
	case strings.HasPrefix(rest, "&&"):
		end, advice = t.at+2, "; write AND"
	case strings.HasPrefix(rest, "||"):
		end, advice = t.at+2, "; write OR"
	case r == '!':
		advice = "; write NOT, or != for unequal"
	case strings.ContainsRune("‘’“”„‚«»`´", r):
		advice = `; write strings in ' or "`
	case r == '.' && t.at > 0 && isDigit(text[t.at-1]):
		advice = "; numbers are whole"
	case r == '.':
		advice = "; an expression sees an event's attributes, not its data"
	case r == '_':
		advice = "; the names of attributes have letters and digits only"
	}
	return t.wrong(text, end, "%s means nothing here%s", fmt.Sprintf("%q", text[t.at:end]), advice)
}

func (t token) wrong(text string, end int, format string, args ...any) token {
	t.kind, t.end, t.err = wrong, end, fail(columnOf(text, t.at), format, args...)
	return t
}
