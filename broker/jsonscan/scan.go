package jsonscan

import "strconv"

// The scanner knows JSON's grammar, RFC 8259, and agrees with encoding/json on every
// document; a fuzz test compares the two. Functions that skip return the index after
// the value, or -1 if no value begins there.

// MaxDepth is how deep objects and arrays may be nested, the same as in encoding/json.
const MaxDepth = 10000

// Valid reports whether b is one JSON document.
func Valid(b []byte) bool { return ValidInside(b, 0) }

// ValidInside reports whether b may be a value inside depth objects and arrays.
func ValidInside(b []byte, depth int) bool {
	end := SkipValue(b, SkipSpace(b, 0), depth)
	return end >= 0 && SkipSpace(b, end) == len(b)
}

// SkipSpace returns the index of the first byte from i on that is not white space.
func SkipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// SkipValue skips a value that is inside depth objects and arrays.
func SkipValue(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return ReadString(b, i).End
	case '{':
		return skipObject(b, i, depth+1)
	case '[':
		return skipArray(b, i, depth+1)
	case 't':
		return SkipWord(b, i, "true")
	case 'f':
		return SkipWord(b, i, "false")
	case 'n':
		return SkipWord(b, i, "null")
	}
	return SkipNumber(b, i)
}

// SkipWord skips a word such as null.
func SkipWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

func skipObject(b []byte, i, depth int) int {
	i, more := Enter(b, i, '}', depth)
	for more {
		if i >= len(b) || b[i] != '"' {
			return -1
		}
		if i = SkipColon(b, ReadString(b, i).End); i < 0 {
			return -1
		}
		if i = SkipValue(b, i, depth); i < 0 {
			return -1
		}
		i, more = Next(b, i, '}')
	}
	return i
}

func skipArray(b []byte, i, depth int) int {
	i, more := Enter(b, i, ']', depth)
	for more {
		if i = SkipValue(b, i, depth); i < 0 {
			return -1
		}
		i, more = Next(b, i, ']')
	}
	return i
}

// Enter skips the opening bracket of an object or an array at nesting level depth, and
// reports whether it has a member.
func Enter(b []byte, i int, closing byte, depth int) (at int, more bool) {
	if depth > MaxDepth {
		return -1, false
	}
	i = SkipSpace(b, i+1)
	if i < len(b) && b[i] == closing {
		return i + 1, false
	}
	return i, true
}

// Next skips the character after a member, and reports whether it was a comma.
func Next(b []byte, i int, closing byte) (at int, more bool) {
	i = SkipSpace(b, i)
	if i >= len(b) {
		return -1, false
	}
	switch b[i] {
	case ',':
		return SkipSpace(b, i+1), true
	case closing:
		return i + 1, false
	}
	return -1, false
}

// SkipColon skips the colon after a member's name, and the white space around it.
func SkipColon(b []byte, i int) int {
	if i < 0 {
		return -1
	}
	if i = SkipSpace(b, i); i >= len(b) || b[i] != ':' {
		return -1
	}
	return SkipSpace(b, i+1)
}

// SkipNumber skips a number.
func SkipNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++ // a digit may not follow
	} else if i = skipDigits(b, i); i < 0 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = skipDigits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i
}

// skipDigits skips one digit or more.
func skipDigits(b []byte, i int) int {
	start := i
	for i < len(b) && b[i]-'0' < 10 {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// TextAt returns the text, number or boolean at a path in JSON, whose parts are names of members
// and indexes of elements. It is empty if no such value is there. Nothing after the last object or
// array on the path is read. The result points into the data unless the text has escapes.
func TextAt(data []byte, path []string) string {
	i := SkipSpace(data, 0)
	for depth, part := range path {
		if i = enter(data, i, depth+1, part); i < 0 {
			return ""
		}
	}
	if i >= len(data) {
		return ""
	}
	switch c := data[i]; {
	case c == '"':
		text, _, _ := Text(data, i, nil)
		return text
	case c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f':
		return literal(data, i)
	}
	return ""
}

// literal returns a number or a word, unless more than it is there: 12x is no number.
func literal(data []byte, i int) string {
	end := SkipValue(data, i, 0)
	if end < 0 {
		return ""
	}
	if next := SkipSpace(data, end); next == end && next < len(data) && data[next] != ',' && data[next] != '}' && data[next] != ']' {
		return ""
	}
	return AsText(data[i:end])
}

// enter returns the index of a member or an element of the value at i, or -1.
func enter(data []byte, i, depth int, part string) int {
	if i >= len(data) {
		return -1
	}
	switch data[i] {
	case '{':
		return member(data, i, depth, part)
	case '[':
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			return element(data, i, depth, n)
		}
	}
	return -1
}

// member returns the index of a member's value. If several have the name, the last one
// counts, as for encoding/json. It returns what it found before a fault in the JSON.
func member(data []byte, i, depth int, name string) (found int) {
	found = -1
	i, more := Enter(data, i, '}', depth)
	for more && i < len(data) && data[i] == '"' {
		text := ReadString(data, i)
		value := SkipColon(data, text.End)
		if value < 0 {
			break
		}
		if text.Is(data, i, name) {
			found = value
		}
		if i = SkipValue(data, value, depth); i < 0 {
			break
		}
		i, more = Next(data, i, '}')
	}
	return found
}

func element(data []byte, i, depth, n int) int {
	i, more := Enter(data, i, ']', depth)
	for ; more; n-- {
		if n == 0 {
			return i
		}
		if i = SkipValue(data, i, depth); i < 0 {
			return -1
		}
		i, more = Next(data, i, ']')
	}
	return -1
}
