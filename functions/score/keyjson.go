package score

import (
	"encoding/json"
	"strconv"
	"strings"
	"unsafe"
)

// textAt is the text, number or boolean that stands at a path in JSON, whose
// parts are names of members and numbers of elements; empty if nothing of that
// sort stands there. What comes before is passed over, and what comes behind is
// not read at all. It points into the data wherever it can.
func textAt(data []byte, path []string) string {
	s := scan{b: data}
	for _, part := range path {
		if !s.enter(part) {
			return ""
		}
	}
	return s.text()
}

// scan is a place in JSON. It bears with what is no JSON, as long as it ends:
// a key that is not found is not scored, and that is all there is to say.
type scan struct {
	b  []byte
	at int
}

// next is the byte behind any spaces; 0 at the end.
func (s *scan) next() byte {
	for s.at < len(s.b) {
		if c := s.b[s.at]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		s.at++
	}
	return 0
}

// enter goes to a member or an element of the value here.
func (s *scan) enter(part string) bool {
	switch s.next() {
	case '{':
		return s.member(part)
	case '[':
		n, err := strconv.Atoi(part)
		return err == nil && n >= 0 && s.element(n)
	}
	return false
}

// member goes to the value of a name. Of several of one name the last counts,
// as it does for encoding/json.
func (s *scan) member(name string) bool {
	found := -1
	for s.at++; s.next() == '"'; s.at++ {
		begin := s.at
		if !s.skipText() {
			break
		}
		same := isText(s.b[begin:s.at], name)
		if s.next() != ':' {
			break
		}
		if s.at++; same {
			found = s.at
		}
		if !s.skip() || s.next() != ',' {
			break
		}
	}
	s.at = max(found, 0)
	return found >= 0
}

func (s *scan) element(n int) bool {
	s.at++
	for ; n > 0; n-- {
		if !s.skip() || s.next() != ',' {
			return false
		}
		s.at++
	}
	c := s.next()
	return c != 0 && c != ']'
}

// skip passes over a value.
func (s *scan) skip() bool {
	depth := 0
	for {
		switch c := s.next(); c {
		case 0:
			return false
		case '"':
			if !s.skipText() {
				return false
			}
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			if depth--; depth < 0 {
				return false
			}
			s.at++
		case ',', ':':
			s.at++
		default:
			s.skipPlain()
		}
		if depth == 0 {
			return true
		}
	}
}

// skipPlain passes over a number or a word.
func (s *scan) skipPlain() {
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case ',', ':', '}', ']', '{', '[', '"', ' ', '\n', '\t', '\r':
			return
		}
		s.at++
	}
}

func (s *scan) skipText() bool {
	for s.at++; s.at < len(s.b); s.at++ {
		switch s.b[s.at] {
		case '\\':
			s.at++
		case '"':
			s.at++
			return true
		}
	}
	return false
}

// text is the value here.
func (s *scan) text() string {
	c := s.next()
	begin := s.at
	switch {
	case c == '"':
		if !s.skipText() {
			return ""
		}
		return unquote(s.b[begin:s.at])
	case c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f':
		s.skipPlain()
		return plainText(s.b[begin:s.at])
	}
	return ""
}

func plainText(b []byte) string {
	if !json.Valid(b) {
		return ""
	}
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// isText tells whether quoted text is a name.
func isText(quoted []byte, name string) bool {
	if len(quoted) == len(name)+2 {
		return string(quoted[1:len(quoted)-1]) == name && !strings.Contains(name, `\`)
	}
	return len(quoted) > len(name)+2 && unquote(quoted) == name
}

// unquote is what quoted text says. Only escapes cost memory.
func unquote(quoted []byte) string {
	inner := quoted[1 : len(quoted)-1]
	for _, c := range inner {
		if c == '\\' {
			var text string
			if json.Unmarshal(quoted, &text) != nil {
				return ""
			}
			return text
		}
	}
	return unsafe.String(unsafe.SliceData(inner), len(inner))
}
