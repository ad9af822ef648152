package config

import (
	"regexp"
	"unicode/utf8"
)

// shape is how a text is written that has no more than so many letters. The bound
// is not part of the expression: an {0,200} is written out two hundred times when it
// is compiled, at the start of every process and for as long as it lives.
type shape struct {
	most int
	as   *regexp.Regexp
}

func shaped(most int, as string) shape { return shape{most, regexp.MustCompile(as)} }

func (s shape) fits(text string) bool {
	return utf8.RuneCountInString(text) <= s.most && s.as.MatchString(text)
}
