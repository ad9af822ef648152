package match

import (
	"strings"
	"unicode/utf8"
)

// pattern is one of LIKE's. Most have wildcards at their ends only, and are
// compared without looking at letters.
type pattern struct {
	plain  bool   // begin, and then anything up to end if open
	open   bool   // has a %
	within bool   // is % begin %
	begin  string // without escapes
	end    string

	letters []rune // of the others
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

// unescape makes one letter of each wildcard, and of several % in a row.
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

// walk compares letter by letter. Where it fails it goes back to the last %,
// which then stands for one letter more; those before it need not be tried
// again, for what lies between two % was found as early as it could be.
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
