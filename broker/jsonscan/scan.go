package jsonscan

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
